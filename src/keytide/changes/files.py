"""Rows as they are stored in files, or in one of two snapshots, with their kinds.

If keys move between buckets, the rows of a commit come in two turns: first, in all buckets, those
of keys that leave, then those of keys that stay or arrive. So the delete of a key in one bucket is
emitted before its row in another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import ClassVar

import polars as pl

from keytide.base.row_kind import RETRACTS, RowKind
from keytide.changes.kinds import with_shown_kind
from keytide.changes.lanes import Lane
from keytide.format.data_file import VALUE_KIND
from keytide.format.deletion_vector import VectorPlace, dead_in_one
from keytide.merge.difference import with_kind
from keytide.merge.windows import key_windows, with_whole_keys
from keytide.read.runs import StoredVersions
from keytide.read.sections import PlannedFile
from keytide.read.visible_rows import Rows
from keytide.snapshot.view import TableView

__all__ = ["ComingTask", "FilesTask", "LeavingTask", "MarkedTask"]

_ROWS_MIN = 8 << 10
_ROW_BYTES = 256
_COPIES = 4


@dataclass(frozen=True)
class FilesTask:
    """The rows of files of one bucket, file by file, without a merge. Picklable.

    All rows have the kind `kind`, or the kinds that are stored with them. NULL is shown as the
    column's default.
    """

    view: TableView
    files: tuple[PlannedFile, ...]
    lane: Lane
    kind: RowKind | None = None

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, with `_row_kind` as the first column."""
        return map(self._told, self.outcomes(memory_bytes))

    def outcomes(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows with the columns of the table and `_VALUE_KIND`, and maybe others."""
        names = self.view.schema.names
        rows_max = _rows_in(memory_bytes)
        shown = Rows(self.view, names)
        for partition, files in groupby(self._read(), lambda file: file.entry.partition):
            stored = StoredVersions(self.view, partition, (*names, VALUE_KIND))
            for frame in stored.of_lone_files(files, rows_max):
                if frame.height:
                    yield shown.outcomes(frame)

    @property
    def rows(self) -> int:
        """The maximum number of rows."""
        return sum(file.meta.row_count for file in self.files)

    def _read(self) -> Sequence[PlannedFile]:
        """The files with the rows to emit."""
        return self.files

    def _told(self, rows: pl.DataFrame) -> pl.DataFrame:
        names = self.view.schema.names
        if self.kind is not None:
            rows = with_kind(rows.select(names), self.kind)
        return with_shown_kind(rows, names)


@dataclass(frozen=True)
class MarkedTask(FilesTask):
    """The rows of files that are live in this snapshot and dead in another one. Picklable.

    `dead_elsewhere` has the dead rows of each file in the other snapshot. Files without such rows
    are not read.
    """

    dead_elsewhere: tuple[VectorPlace, ...] = ()

    @property
    def rows(self) -> int:
        """See `FilesTask`. Reads the vectors, which contain all rows that ever died."""
        return sum(len(file.places) for file in self._read() if file.places is not None)

    def _read(self) -> Sequence[PlannedFile]:
        """See `FilesTask`."""
        store, marked = self.view.store, zip(self.files, self.dead_elsewhere, strict=True)
        calls = [partial(dead_in_one, store, place, file.dead_rows) for file, place in marked]
        found = zip(self.files, store.together(calls), strict=True)
        return [replace(file, dead_rows=None, places=dead) for file, dead in found if len(dead)]


class _TurnTask(FilesTask):
    """The rows of some keys, from the files of one commit in one bucket, oldest file first.

    The rows of a key keep their order.
    """

    ends_with: ClassVar[frozenset[RowKind]]
    """The kinds of the last rows of the keys that are emitted."""

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, with `_row_kind` as the first column."""
        if self._retracts(_rows_in(memory_bytes)):
            yield from self._picked(memory_bytes)
        elif RowKind.INSERT in self.ends_with:
            yield from super().frames(memory_bytes)

    def _picked(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        names, key = self.view.schema.names, self.view.order.key
        rows_max = _rows_in(memory_bytes // len(self.files))
        shown = Rows(self.view, names)
        stored = self._stored(*names, VALUE_KIND)
        runs = [with_whole_keys(stored.of_run((file,), rows_max), key) for file in self.files]
        is_told = _last_kind(key).is_in([int(kind) for kind in self.ends_with])
        for window in key_windows(runs, key):
            frames = [frame for frame in window if frame.height]
            rows = pl.concat(frames)
            if len(frames) > 1:
                rows = rows.sort(key, nulls_last=False, maintain_order=True)
            told = rows.filter(is_told)
            if told.height:
                yield self._told(shown.outcomes(told))

    def _retracts(self, rows_max: int) -> bool:
        """Whether there are retractions.

        Usually there are none, but not every writer counts them.
        """
        if not any(file.may_retract for file in self.files):
            return False
        kinds = self._stored(VALUE_KIND).of_lone_files(self.files, rows_max)
        retracts = [int(kind) for kind in RETRACTS]
        return any(frame[VALUE_KIND].is_in(retracts).any() for frame in kinds)

    def _stored(self, *columns: str) -> StoredVersions:
        return StoredVersions(self.view, self.files[0].entry.partition, columns)


class LeavingTask(_TurnTask):
    """The rows of the keys that have no row in a bucket after the commit. Picklable."""

    ends_with = RETRACTS


class ComingTask(_TurnTask):
    """The rows of the keys that have a row in a bucket after the commit. Picklable."""

    ends_with = frozenset(RowKind) - RETRACTS


def _last_kind(key: Sequence[str]) -> pl.Expr:
    """For each row, the kind of the last row of its key. The rows are sorted by key."""
    is_end = pl.int_range(pl.len()) == pl.len() - 1
    differs = (pl.col(name).ne_missing(pl.col(name).shift(-1)) for name in key)
    is_last = pl.any_horizontal(is_end, *differs)
    return pl.when(is_last).then(pl.col(VALUE_KIND)).backward_fill()


def _rows_in(memory_bytes: int) -> int:
    """About how many rows may be in memory."""
    return max(_ROWS_MIN, memory_bytes // _ROW_BYTES // _COPIES)
