"""Level 0 on top of deletion vectors: what each key becomes, and which rows are dead from then on.

In a table with deletion vectors every key has at most one version above level 0 that is not marked
dead. So the versions on level 0 are folded with that one, wherever it lies; what comes of them is
written, or stays where it is, and the others are marked. Files that nobody writes again lose rows
in this way and change in no other.

A delete that has to be remembered is a version like any other, but for its mark: it is dead from
the beginning, so that readers, who merge nothing, never show it. Where a key has no other version
above level 0, the newest of its dead deletes is folded with what comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.format.arrow import polars_schema
from keytide.format.data_file import IS_DEAD, POSITION
from keytide.format.index_manifest import IndexFile
from keytide.format.manifest import ManifestEntry
from keytide.merge.order import IS_ADD
from keytide.merge.touched import merge_runs, with_keys, without_contained, without_outlived
from keytide.merge.windows import Batch, key_windows
from keytide.row_kind import RETRACTS
from keytide.scratch import scratch
from keytide.table.read.lookup import key_range
from keytide.table.read.runs import PLACE_COLUMNS, SYSTEM_COLUMNS, StoredVersions, table_columns
from keytide.table.read.sections import PlannedFile, Run, Section
from keytide.table.read.versions import batch_rows, rows_in
from keytide.table.state.view import TableView

__all__ = ["Marker", "Marks", "Vectors", "retracts_of"]

_FILE = scratch("file")

# Keys of level 0 are held while the levels above it are read, if they fit in so much of the memory.
_KEYS_SHARE = 8
_KEY_BYTES = 64

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Vectors:
    """What a compaction has to know of a bucket with deletion vectors, beside what it compacts.

    `file` is the index file that has them, None where no row is dead yet; `beside` are the files
    above level 0 that stay where they are.
    """

    file: IndexFile | None
    beside: tuple[ManifestEntry, ...]


@dataclass(frozen=True)
class Marks:
    """Rows that are dead from now on, by file."""

    found: dict[str, list[Positions]] = field(default_factory=dict)

    def add(self, file_name: str, positions: Positions) -> None:
        """Note down rows of a file."""
        if len(positions):
            self.found.setdefault(file_name, []).append(positions)

    @property
    def by_file(self) -> dict[str, Positions]:
        """All of them."""
        return {name: np.concatenate(positions) for name, positions in self.found.items()}


def retracts_of(kinds: pl.Series) -> Positions:
    """The positions of the retracts among rows."""
    return np.flatnonzero(kinds.is_in(list(RETRACTS)).to_numpy())


@dataclass(frozen=True)
class Marker:
    """Folds the versions of one section of a bucket, and marks those that are dead from then on.

    `section` has all files that hold keys of it, those that stay where they are too: their names
    are in `staying`. REQUIRES: unless the engine picks a version, no file of level 0 stays that has
    a key in common with another file.
    """

    view: TableView
    partition: bytes
    section: Section
    staying: frozenset[str]
    marks: Marks
    memory_bytes: int

    def windows(self) -> Iterator[list[pl.DataFrame]]:
        """What has to be written, as windows of versions with all columns, in key order.

        Rows that are dead from then on, in files that stay, are added to the marks as windows are
        taken. Raises as `MergedVersions.of`.
        """
        for window in self._key_windows():
            yield self._folded(window)

    # -- reading --------------------------------------------------------------------------------

    def _key_windows(self) -> Iterator[list[pl.DataFrame]]:
        fields = self.view.schema.select(table_columns(self._columns))
        rows = rows_in(self.memory_bytes, self.section.files, fields)
        sizes = [sum(file.meta.row_count for file in run) for run in self.section.runs]
        held = batch_rows(sizes, rows)
        runs = [self._run(run, count) for run, count in zip(self.section.runs, held, strict=True)]
        return key_windows(runs, self.view.order.key)

    def _run(self, run: Run, rows_max: int) -> Iterator[Batch]:
        for file in run:
            number = pl.lit(self._numbers[file.meta.file_name], pl.Int32).alias(_FILE)
            for batch in self._stored(file).of_run((file,), rows_max):
                # What stays is not written, so its other columns need not be read.
                missing = [
                    pl.lit(None, dtype).alias(name)
                    for name, dtype in self._types.items()
                    if name not in batch.rows.columns
                ]
                rows = batch.rows.with_columns(number, *missing).select(*self._columns, _FILE)
                yield Batch(rows, is_last=batch.is_last and file is run[-1])

    def _stored(self, file: PlannedFile) -> StoredVersions:
        if not self._stays(file):
            return StoredVersions(self.view, self.partition, self._columns)
        columns = self._columns
        if self._finds_winners:
            columns = (*self.view.engine.columns(()), *SYSTEM_COLUMNS, *PLACE_COLUMNS)
        if file.meta.level == 0 or self._new_keys is None:
            return StoredVersions(self.view, self.partition, columns)
        # Of files that stay, only what has a new version matters.
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

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        all_stay = all(map(self._stays, self.section.files))
        own = self.view.engine.columns(()) if all_stay else self.view.schema.names
        return (*own, *SYSTEM_COLUMNS, *PLACE_COLUMNS)

    @cached_property
    def _types(self) -> dict[str, pl.DataType]:
        fields = self.view.schema.select(table_columns(self._columns))
        return dict(polars_schema(fields))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {file.meta.file_name: n for n, file in enumerate(self.section.files)}

    def _stays(self, file: PlannedFile) -> bool:
        return file.meta.file_name in self.staying

    # -- folding --------------------------------------------------------------------------------

    @property
    def _finds_winners(self) -> bool:
        """Whether what becomes of a key is one of its versions, wherever that lies."""
        return self.view.engine.picks_a_version or not self.section.needs_merge

    def _folded(self, window: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """What has to be written of a window; what is dead from then on is marked."""
        frames = self._counted(window)
        if not frames:
            return []
        staying = [self._of(frame, stays=True) for frame in frames]
        if not self._finds_winners:
            frames = [frame.drop(_FILE, *PLACE_COLUMNS) for frame in frames]
        with self.view.reading():
            merged = merge_runs(frames, self.view.order, self.view.engine)
        if not self._finds_winners:
            self._mark(staying, [])
            return merged
        self._mark(staying, [self._of(piece, stays=True).filter(IS_ADD) for piece in merged])
        return [self._of(piece, stays=False) for piece in merged]

    def _counted(self, window: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """The versions that count, of keys that are new or in files to be written again."""
        key, upper = self.view.order.key, [p for p in self.section.upper if window[p].width]
        counted = list(window)
        new = [f.select(key) for p, f in enumerate(window) if f.height and p not in upper]
        for place in upper:
            if self._stays(self.section.runs[place][0]):
                frame = counted[place]
                counted[place] = with_keys(frame, pl.concat(new)) if new else frame.clear()
        counted = without_outlived(counted, upper, key, IS_DEAD)
        counted = without_contained(counted, self.section.containing, key)
        return [frame for frame in counted if frame.height]

    def _of(self, rows: pl.DataFrame, *, stays: bool) -> pl.DataFrame:
        """The rows in files that stay where they are, or in the others."""
        numbers = [n for name, n in self._numbers.items() if (name in self.staying) == stays]
        return rows.filter(pl.col(_FILE).is_in(numbers))

    def _mark(self, staying: Sequence[pl.DataFrame], shown: Sequence[pl.DataFrame]) -> None:
        """Mark rows of files that stay, but for those that are shown from then on."""
        place = [_FILE, POSITION]
        dead = pl.concat([rows.filter(~pl.col(IS_DEAD)).select(place) for rows in staying])
        if shown:
            left = pl.concat([rows.select(place) for rows in shown])
            dead = dead.join(left, on=place, how="anti")
        names = list(self._numbers)
        for (number,), rows in dead.group_by(_FILE):
            self.marks.add(names[int(str(number))], rows[POSITION].to_numpy())
