"""Rows as they are stored in some files, or in one of two snapshots, with their kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import polars as pl

from keytide.format.data_file import POSITION, VALUE_KIND
from keytide.format.deletion_vector import VectorPlace, dead_positions
from keytide.merge.difference import with_kind
from keytide.row_kind import RowKind
from keytide.table.changes.kinds import with_shown_kind
from keytide.table.read.rows import Rows
from keytide.table.read.runs import StoredVersions
from keytide.table.read.sections import PlannedFile
from keytide.table.state.view import TableView

__all__ = ["FilesTask", "MarkedTask"]

_ROWS_MIN = 8 << 10
_ROW_BYTES = 256
_COPIES = 4


@dataclass(frozen=True)
class FilesTask:
    """The rows of files of one bucket, file by file, nothing merged. Pickles.

    All rows are of `kind`, or of the kinds that are stored with them. NULL is shown as the
    column's default.
    """

    view: TableView
    files: tuple[PlannedFile, ...]
    kind: RowKind | None = None

    @property
    def place(self) -> tuple[bytes, int]:
        """The bucket."""
        return self.files[0].entry.partition, self.files[0].entry.bucket

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, with `_row_kind` in the first column."""
        names = self.view.schema.names
        rows_max = _rows_in(memory_bytes)
        shown = Rows(self.view, names)
        for partition, files in groupby(self.files, lambda file: file.entry.partition):
            stored = StoredVersions(self.view, partition, (*names, VALUE_KIND))
            for frame in stored.of_lone_files(files, rows_max):
                if frame.height:
                    yield self._told(shown.outcomes(frame))

    def _told(self, rows: pl.DataFrame) -> pl.DataFrame:
        names = self.view.schema.names
        if self.kind is not None:
            rows = with_kind(rows.select(names), self.kind)
        return with_shown_kind(rows, names)


@dataclass(frozen=True)
class MarkedTask(FilesTask):
    """The rows of files that are dead in another snapshot and not in this one. Pickles.

    `dead_elsewhere` says of each file which are dead in the other. Files of which no row is are not
    read.
    """

    dead_elsewhere: tuple[VectorPlace, ...] = ()

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, with `_row_kind` in the first column."""
        names = self.view.schema.names
        shown = Rows(self.view, names)
        for file, place in zip(self.files, self.dead_elsewhere, strict=True):
            dead = dead_positions(self.view.store, place)
            if file.dead_rows is not None:
                dead = np.setdiff1d(dead, dead_positions(self.view.store, file.dead_rows))
            if not len(dead):
                continue
            columns = (*names, VALUE_KIND, POSITION)
            stored = StoredVersions(self.view, file.entry.partition, columns)
            for frame in stored.of_lone_files([file], _rows_in(memory_bytes)):
                rows = frame.filter(frame[POSITION].is_in(pl.Series(dead).implode()))
                if rows.height:
                    yield self._told(shown.outcomes(rows))


def _rows_in(memory_bytes: int) -> int:
    """About how many rows may be held."""
    return max(_ROWS_MIN, memory_bytes // _ROW_BYTES // _COPIES)
