"""Changes to rows of tables without a key, identified by file and position.

Workers read the rows of some files of one bucket, or receive the rows of one merge sink. Positions
of removed rows are stored as bitmaps. After images become rows of new files. Without deletion
vectors, affected files are rewritten with the remaining rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from keytide.base.lazily import cached_property
from keytide.compaction.appends import Rewriting
from keytide.dml.fragments import Told
from keytide.dml.handles import AppendedHandle, StoredHandle
from keytide.dml.pages import pages_of
from keytide.dml.row_changes import Changes, TableSink, TableSource, members_of
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    ConnectorMergeSink,
    ConnectorMergeSinkProvider,
    ConnectorPageSourceProvider,
    ConnectorSession,
    UpdatablePageSource,
)
from keytide.dml.values import narrowed
from keytide.errors import InvalidError
from keytide.format.arrow import to_arrow
from keytide.format.data_file import POSITION, VALUE_KIND
from keytide.format.manifest import FileSource
from keytide.predicate.predicate import Predicate, columns_of
from keytide.read.merged_versions import rows_in
from keytide.read.runs import StoredVersions, table_columns
from keytide.read.sections import PlannedFile
from keytide.read.visible_rows import Rows
from keytide.snapshot.dead_rows import DeadRows
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.view import TableView
from keytide.write.input_rows import incoming_rows
from keytide.write.refusals import refuse_unmergeable

__all__ = ["FILE", "AppendedPages", "AppendedSinks", "AppendedSplit", "dead_rows", "place_column"]

FILE = "file"
_ROW = "row"
_ROWS_MIN = 8 << 10


def place_column(table: AppendedHandle, carried: Sequence[str] = ()) -> ColumnHandle:
    """The column of row ids. Additional columns in it form a struct, to avoid name clashes."""
    members = [
        pa.field(FILE, pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
    ]
    if carried:
        schema = table.view.schema.arrow_schema()
        row = pa.struct([schema.field(name) for name in carried])
        members.append(pa.field(_ROW, row, nullable=False))
    return ColumnHandle(ROW_ID, pa.struct(members), nullable=False)


def dead_rows(table: AppendedHandle, told: Iterable[Told]) -> dict[str, BitMap64]:
    """The positions of the removed rows, by file. Raises `InvalidError` for a duplicate."""
    dead: dict[str, BitMap64] = {}
    for each in told:
        if "dead" in each.rows.column_names:
            for name, some in zip(each.rows[FILE], each.rows["dead"], strict=True):
                _go(table, dead, name.as_py(), BitMap64.deserialize(some.as_py()))
    return dead


def _go(
    table: StoredHandle, gone: dict[str, BitMap64], name: str, some: BitMap64, twice: int = 0
) -> None:
    """Add removed rows to those of their file. `twice` is the number of duplicates found before."""
    known = gone.get(name, BitMap64())
    count = len(known & some) + twice
    if count:
        raise InvalidError(
            f"{table}: {count} rows are changed twice in one statement; nothing was changed"
        )
    gone[name] = known | some


@dataclass(frozen=True)
class AppendedSplit:
    """Some files of one bucket. Rows that do not match the predicate are not read."""

    number: int
    bucket: BucketId
    files: tuple[PlannedFile, ...]
    predicate: Predicate | None = None


@dataclass(frozen=True)
class AppendedPages(ConnectorPageSourceProvider):
    """Page sources of files."""

    def create_page_source(
        self,
        session: ConnectorSession,
        table: AppendedHandle,
        split: AppendedSplit,
        columns: Sequence[ColumnHandle],
    ) -> UpdatablePageSource:
        """See `ConnectorPageSourceProvider`."""
        files = {file.meta.file_name: file for file in split.files}
        return _Source(table, columns, _Places(table, split.number, files), split)

    def apply_values(
        self,
        session: ConnectorSession,
        table: AppendedHandle,
        split: AppendedSplit,
        values: Mapping[str, pa.Array],
    ) -> AppendedSplit:
        """See `ConnectorPageSourceProvider`."""
        return replace(split, predicate=narrowed(split.predicate, values, table.view))


@dataclass(frozen=True)
class AppendedSinks(ConnectorMergeSinkProvider):
    """Sinks that receive all changes of a file."""

    def create_merge_sink(
        self, session: ConnectorSession, table: AppendedHandle, number: int, count: int
    ) -> ConnectorMergeSink:
        """See `ConnectorMergeSinkProvider`."""
        return TableSink(table, _Places(table, number, table.files))


class _Source(TableSource):
    """The rows of some files."""

    def __init__(
        self,
        table: AppendedHandle,
        columns: Sequence[ColumnHandle],
        places: _Places,
        split: AppendedSplit,
    ) -> None:
        super().__init__(table, columns, places)
        self._split = split

    def _read(self) -> Iterator[tuple[pa.RecordBatch, Callable[[pa.StructType], pa.Array]]]:
        ids = self._id_type
        carried = [f.name for f in ids.field(_ROW).type] if len(ids) > 2 else []
        reading = _Reading(self._table.view, self._split.bucket, self._names(carried))
        for file in self._split.files:
            for table in reading.shown(file, self._split.predicate):
                for rows in pages_of(table):
                    name = file.meta.file_name
                    yield rows, partial(_ids, name, rows)


def _ids(file_name: str, rows: pa.RecordBatch, type_: pa.StructType) -> pa.StructArray:
    members = [pa.repeat(pa.scalar(file_name), rows.num_rows), rows.column(POSITION)]
    if len(type_) > len(members):
        row = type_.field(_ROW).type
        carried = [rows.column(f.name) for f in row]
        members.append(pa.StructArray.from_arrays(carried, fields=list(row)))
    return pa.StructArray.from_arrays(members, fields=list(type_))


@dataclass(frozen=True)
class _Reading:
    """Reads rows of files of one bucket, with their positions."""

    view: TableView
    bucket: BucketId
    names: tuple[str, ...]

    def shown(self, file: PlannedFile, predicate: Predicate | None) -> Iterator[pa.Table]:
        """The rows that readers see, out of those that match a predicate."""
        rows = Rows(self.view, self.names, predicate)
        asked = rows.versions()
        columns = dict.fromkeys(
            (*table_columns(asked.columns), *sorted(columns_of(asked.condition)))
        )
        for frame in self._frames(file, tuple(columns), asked.condition):
            yield to_arrow(rows.outcomes(frame), self._schema)

    def left(self, file: PlannedFile, gone: BitMap64) -> Iterator[pl.DataFrame]:
        """The rows as they are stored, except those in `gone`."""
        positions = pl.Series(np.asarray(gone.to_array()), dtype=pl.Int64)
        for frame in self._frames(file, self.names):
            yield frame.filter(~frame[POSITION].is_in(positions.implode())).drop(POSITION)

    def _frames(
        self, file: PlannedFile, columns: tuple[str, ...], condition: Predicate | None = None
    ) -> Iterator[pl.DataFrame]:
        stored = StoredVersions(
            self.view, self.bucket[0], (*columns, POSITION), condition, tells_kinds=False
        )
        memory = self.view.options.read_memory_bytes
        fields = self.view.schema.select(columns)
        return stored.of_lone_files([file], max(_ROWS_MIN, rows_in(memory, [file], fields)))

    @cached_property
    def _schema(self) -> pa.Schema:
        fields = self.view.schema.arrow_schema()
        places = pa.field(POSITION, pa.int64(), nullable=False)
        return pa.schema([*(fields.field(name) for name in self.names), places])


class _Places(Changes):
    """The removed and the added rows of some files.

    `files` are those that may have to be rewritten, by name.
    """

    _on: AppendedHandle

    def __init__(
        self, table: AppendedHandle, number: int, files: Mapping[str, PlannedFile]
    ) -> None:
        super().__init__(table, number)
        self._files = files
        self._gone: dict[str, BitMap64] = {}

    def delete(self, row_ids: pa.Array) -> None:
        """Remove rows."""
        self._take(row_ids)
        self._rows += len(row_ids)

    def update(
        self, values: Mapping[str, pa.Array], row_ids: pa.Array, updated: Sequence[str]
    ) -> None:
        """Remove rows and add after images, from the values and the columns in the ids."""
        self._take(row_ids)
        carried = row_ids.type.get_field_index(_ROW)
        row = members_of(pc.struct_field(row_ids, carried)) if carried >= 0 else None
        self._made.add(self._image(values, row, updated))
        self._rows += len(row_ids)

    def insert(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self._refuse_after_end()
        self._made.add(rows)
        self._rows += rows.num_rows

    def _write(self) -> None:
        is_rewritten = bool(self._gone) and not self._on.marks_rows
        stays_there = is_rewritten and not self._may_leave
        if is_rewritten:
            self._write_again(self._made.tables() if stays_there else iter(()))
        if not stays_there:
            self._feed(self._number, self._made)

    def _told(self) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
        if self._gone and self._on.marks_rows:
            bits = [positions.serialize() for positions in self._gone.values()]
            dead = pa.table({FILE: list(self._gone), "dead": pa.array(bits, pa.binary())})
            yield {"rows": 0}, dead

    @property
    def _may_leave(self) -> bool:
        """Whether after images can belong to another bucket than the rewritten files."""
        return self._on.moves_rows or len(self._buckets) != 1 or bool(self._on.files)

    @property
    def _buckets(self) -> dict[BucketId, list[PlannedFile]]:
        found: dict[BucketId, list[PlannedFile]] = {}
        for name in self._gone:
            file = self._files[name]
            found.setdefault((file.entry.partition, file.entry.bucket), []).append(file)
        return found

    def _write_again(self, images: Iterator[pa.Table]) -> None:
        """Rewrite the files that lose rows, with `images` at the end of the first bucket's file."""
        view = self._on.view
        memory = view.options.read_memory_bytes
        for bucket, files in self._buckets.items():
            rewriting = Rewriting(view, bucket, memory, FileSource.APPEND)
            made = rewriting.done([(files, self._rows_of(bucket, files, images))], DeadRows())
            assert made.written is not None
            self._written.append(made.written)

    def _rows_of(
        self, bucket: BucketId, files: Iterable[PlannedFile], images: Iterator[pa.Table]
    ) -> Iterator[pl.DataFrame]:
        view = self._on.view
        reading = _Reading(view, bucket, tuple(view.schema.names))
        for file in files:
            yield from reading.left(file, self._gone[file.meta.file_name])
        for rows in images:
            checked = incoming_rows(rows, view.schema, view.options, view.name)
            refuse_unmergeable(checked.frame, view, checked.refusals)
            yield checked.frame.drop(VALUE_KIND)

    def _take(self, row_ids: pa.Array) -> None:
        self._begin(row_ids)
        ids = pl.DataFrame({"file": pl.Series(pc.struct_field(row_ids, 0)),
                            "position": pl.Series(pc.struct_field(row_ids, 1))})  # fmt: skip
        for (name,), some in ids.group_by("file"):
            positions = BitMap64(some["position"].to_numpy())
            _go(self._on, self._gone, str(name), positions, some.height - len(positions))
            if not self._on.marks_rows and name not in self._files:
                raise InvalidError(
                    f"{self._on}: a row id refers to file {name}, which is not in split "
                    f"{self._number}; return row ids to the split they came from"
                )
