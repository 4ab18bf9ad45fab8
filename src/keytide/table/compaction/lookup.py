"""Level 0 of a section with the versions that it meets above, in files that are not written again.

Of these files only keys that are new on level 0 are read, in windows like everything else: memory
follows the windows, or the keys where they are few. Where they are few, files that are looked up
again have lookup files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from keytide.format.data_file import IS_DEAD, POSITION, VALUE_KIND
from keytide.format.deletion_vector import dead_positions
from keytide.lazily import cached_property
from keytide.merge.touched import merge_runs, with_keys, without_contained, without_keys
from keytide.merge.windows import Batch, key_windows
from keytide.row_kind import RETRACTS
from keytide.table.read.lookup import key_range
from keytide.table.read.lookup_files import LOOKUP_FILES, Bounds, LookupFile
from keytide.table.read.merged_versions import Window, batch_rows, rows_in
from keytide.table.read.runs import StoredVersions, table_columns
from keytide.table.read.sections import PlannedFile, Run, Section
from keytide.table.state.view import TableView

__all__ = ["Lookup"]

# Keys of level 0 are held while the levels above it are read, if they fit in so much of the memory.
_KEYS_SHARE = 8
_KEY_BYTES = 64


@dataclass(frozen=True)
class Lookup:
    """Reads one section of a bucket.

    `section` has all files that hold keys of it, those that stay where they are too: their names
    are in `staying`. The rows have `columns`, or fewer in files that stay.
    """

    view: TableView
    partition: bytes
    section: Section
    staying: frozenset[str]
    columns: tuple[str, ...]
    memory_bytes: int

    def windows(
        self,
        staying_columns: tuple[str, ...] | None = None,
        shaped: Callable[[PlannedFile, pl.DataFrame], pl.DataFrame] = lambda _, rows: rows,
    ) -> Iterator[list[pl.DataFrame]]:
        """The versions as windows of keys, with a frame for each run, as `shaped` has them.

        Of files above level 0 that stay, only keys that are on level 0. Raises `DataError` naming
        a file that cannot be read.
        """
        fields = self.view.schema.select(table_columns(self.columns))
        rows = rows_in(self.memory_bytes, self.section.files, fields)
        sizes = [sum(file.meta.row_count for file in run) for run in self.section.runs]
        held = batch_rows(sizes, rows)
        runs = [
            self._run(run, count, staying_columns or self.columns, shaped)
            for run, count in zip(self.section.runs, held, strict=True)
        ]
        for window in key_windows(runs, self.view.order.key):
            yield self._narrowed(window)

    def merged(self) -> Iterator[Window]:
        """Windows with what the versions become. Raises as `MergedVersions.windows`."""
        order, engine = self.view.order, self.view.engine
        for runs in self.windows():
            counted = without_contained(runs, self.section.containing, order.key)
            with self.view.reading():
                merged = merge_runs(
                    counted, order, engine, arrival_decides=self.section.arrival_decides
                )
            yield Window(runs, counted, merged)

    def to_write(self, window: Window) -> list[pl.DataFrame]:
        """What of a merged window has to be written: rows that never change are there already."""
        if not self.view.engine.keeps_rows:
            return window.merged
        names = self.section.upper
        there = [window.runs[p] for p in names if self.stays(self.section.runs[p][0])]
        return [without_keys(rows, there, self.view.order.key) for rows in window.merged]

    def stays(self, file: PlannedFile) -> bool:
        """Whether a file stays where it is."""
        return file.meta.file_name in self.staying

    def _run(
        self,
        run: Run,
        rows_max: int,
        staying_columns: tuple[str, ...],
        shaped: Callable[[PlannedFile, pl.DataFrame], pl.DataFrame],
    ) -> Iterator[Batch]:
        for file in run:
            columns = staying_columns if self.stays(file) else self.columns
            for batch in self._batches(file, columns, rows_max):
                is_last = batch.is_last and file is run[-1]
                yield Batch(shaped(file, batch.rows), is_last=is_last)

    def _batches(
        self, file: PlannedFile, columns: tuple[str, ...], rows_max: int
    ) -> Iterator[Batch]:
        known = self._lookup_file(file, columns, rows_max)
        if known is None:
            yield from self._stored(file, columns).of_run((file,), rows_max)
            return
        assert self._new_keys is not None
        found = [
            self._without_dead(rows, file)
            for rows in known.with_keys(self._new_keys)
            if rows.height
        ]
        # Few keys in large frames: together they make fewer windows.
        pile: list[pl.DataFrame] = []
        for rows in found:
            if pile and sum(map(len, pile)) + rows.height > rows_max:
                yield Batch(pl.concat(pile))
                pile = []
            pile.append(rows)
        yield Batch(pl.concat(pile or [known.frames[0].clear()]), is_last=True)

    def _lookup_file(
        self, file: PlannedFile, columns: tuple[str, ...], rows_max: int
    ) -> LookupFile | None:
        """The lookup file of a file that stays, if it has one."""
        if not self._is_looked_up(file):
            return None
        if file.dead_rows is not None and not {POSITION, VALUE_KIND} <= set(columns):
            return None
        whole = file.as_stored()
        told = (self.view.schema.id, columns, file.keeps_retracts, file.may_retract, file.has_kinds)
        stored = StoredVersions(self.view, self.partition, columns)
        key = (*stored.version_of(file), *told)

        def versions() -> Iterator[pl.DataFrame]:
            return (batch.rows for batch in stored.of_run((whole,), rows_max))

        options = self.view.options
        bounds = Bounds(options.lookup_files_bytes_max, options.lookup_file_retention_ms / 1000)
        return LOOKUP_FILES.find(key, versions, bounds)

    def _without_dead(self, rows: pl.DataFrame, file: PlannedFile) -> pl.DataFrame:
        """Rows of a lookup file without those that are dead by now, told as `FileReader` does."""
        if file.dead_rows is None:
            return rows
        dead = pl.Series(dead_positions(self.view.store, file.dead_rows)).cast(
            rows.schema[POSITION]
        )
        is_dead = pl.col(POSITION).is_in(dead.implode())
        is_read = ~is_dead
        if file.keeps_retracts:
            is_read |= pl.col(VALUE_KIND).is_in(list(RETRACTS))
        told = [is_dead.alias(IS_DEAD)] if IS_DEAD in rows.columns else []
        return rows.filter(is_read).with_columns(*told)

    def _is_looked_up(self, file: PlannedFile) -> bool:
        """Whether of a file only the new keys are wanted, and these are known."""
        return self.stays(file) and file.meta.level > 0 and self._new_keys is not None

    def _stored(self, file: PlannedFile, columns: tuple[str, ...]) -> StoredVersions:
        stored = StoredVersions(self.view, self.partition, columns)
        if not self._is_looked_up(file):
            return stored
        assert self._new_keys is not None
        about = key_range(self._new_keys)
        return StoredVersions(self.view, self.partition, columns, about, self._new_keys)

    @cached_property
    def _new_keys(self) -> pl.DataFrame | None:
        """The keys on level 0, each once, where they fit in memory."""
        key = self.view.order.key
        new = [file for file in self.section.files if file.meta.level == 0]
        rows = sum(file.meta.row_count for file in new)
        if rows * _KEY_BYTES * len(key) > self.memory_bytes // _KEYS_SHARE:
            return None
        stored = StoredVersions(self.view, self.partition, key)
        keys = [stored.of_file(file) for file in new]
        return pl.concat(keys).unique() if len(keys) > 1 else keys[0]

    def _narrowed(self, window: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
        """A window with those keys of files that stay above level 0 that are on level 0."""
        narrowed = list(window)
        upper = [place for place in self.section.upper if window[place].width]
        new = [
            rows.select(self.view.order.key)
            for place, rows in enumerate(window)
            if rows.height and place not in upper
        ]
        for place in upper:
            if self.stays(self.section.runs[place][0]):
                rows = narrowed[place]
                narrowed[place] = with_keys(rows, pl.concat(new)) if new else rows.clear()
        return narrowed
