"""Level 0 of a section with the versions that it meets above, in files that are not written again.

Of these files only keys that are new on level 0 are read, in windows like everything else: memory
follows the windows, or the keys where they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from keytide.merge.touched import merge_runs, with_keys, without_contained, without_keys
from keytide.merge.windows import Batch, key_windows
from keytide.table.read.lookup import key_range
from keytide.table.read.runs import StoredVersions, table_columns
from keytide.table.read.sections import PlannedFile, Run, Section
from keytide.table.read.versions import Window, batch_rows, rows_in
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
            for batch in self._stored(file, columns).of_run((file,), rows_max):
                is_last = batch.is_last and file is run[-1]
                yield Batch(shaped(file, batch.rows), is_last=is_last)

    def _stored(self, file: PlannedFile, columns: tuple[str, ...]) -> StoredVersions:
        stored = StoredVersions(self.view, self.partition, columns)
        if not self.stays(file) or file.meta.level == 0 or self._new_keys is None:
            return stored
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
