"""The connector for tables without a primary key, whose rows are identified by file and position.

A row id is the name of a data file and the position of the row in it, counting deleted rows. For an
UPDATE it also contains the columns that are not set, because whole rows are written. The table
determines how rows are changed:

- With deletion vectors, a removed row is marked as deleted, and an after image is written to a new
  file. A file without remaining rows is removed.
- Without them, the affected files are rewritten with the remaining rows and the after images.

Workers read the rows of some files of one bucket, or receive the rows of one merge sink, and write
the new files. A fragment names these files, and the removed rows as bitmaps of positions.
`finish_...` combines the fragments in one commit. It conflicts if an affected file was removed or
other rows of it were deleted in the meantime, and, with serializable isolation, if anything changed
in a partition that the statement read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from keytide.base.dataclass import dataclass, replace
from keytide.catalogs.catalog import Catalog
from keytide.commit.transaction import Transaction
from keytide.compaction.append_tables import BucketRewrite
from keytide.dml.engine import pages_of
from keytide.dml.fragments import Told
from keytide.dml.own_tables import (
    AppendedHandle,
    Changes,
    StoredHandle,
    StoredMetadata,
    TableSource,
    begin_commit,
    members_of,
    narrowed,
)
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    Connector,
    ConnectorMergeSink,
    ConnectorMergeSinkProvider,
    ConnectorPageSourceProvider,
    ConnectorSession,
    ConnectorSplitManager,
    UpdatablePageSource,
)
from keytide.errors import ConnectorError, InvalidError
from keytide.format.arrow import to_arrow
from keytide.format.data_file import POSITION, VALUE_KIND
from keytide.format.manifest_entry import Entries, FileKind, FileSource, ManifestEntry
from keytide.maintenance.writes import with_follow_ups
from keytide.predicate.predicate import Predicate, columns_of, conjuncts
from keytide.read.merged_versions import Rows, rows_in
from keytide.read.plan import plan_scan
from keytide.read.pruning import matching_partitions
from keytide.read.runs import StoredVersions, table_columns
from keytide.read.sections import PlannedFile
from keytide.snapshot.live_files import (
    BucketId,
    DeadRows,
    by_index_key,
    load_dead_rows,
    vector_files_by_bucket,
)
from keytide.snapshot.state import TableState, TableView
from keytide.snapshot.stored_table import PinnedTable
from keytide.write.input_rows import incoming_rows
from keytide.write.partition_spec import every_partition
from keytide.write.refusals import refuse_unmergeable, writable_view
from keytide.write.task import TaskResult

# -- row changes of workers: removed positions, and new files --------------------------------------


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


def _add_removed_rows(
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
        return _Places(table, number, table.files)


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
        view, split, ids = self._table.view, self._split, self._id_type
        names = self._names([f.name for f in ids.field(_ROW).type] if len(ids) > 2 else [])
        fields = view.schema.arrow_schema()
        places = pa.field(POSITION, pa.int64(), nullable=False)
        schema = pa.schema([*(fields.field(name) for name in names), places])

        # The rows that readers see, out of those that match the predicate.
        reading = Rows(view, names, split.predicate)
        asked = reading.versions()
        columns = dict.fromkeys(
            (*table_columns(asked.columns), *sorted(columns_of(asked.condition)))
        )
        for file in split.files:
            frames = _frames(view, split.bucket, file, tuple(columns), asked.condition)
            for frame in frames:
                for rows in pages_of(to_arrow(reading.outcomes(frame), schema)):
                    yield rows, partial(_ids, file.meta.file_name, rows)


def _ids(file_name: str, rows: pa.RecordBatch, type_: pa.StructType) -> pa.StructArray:
    members = [pa.repeat(pa.scalar(file_name), rows.num_rows), rows.column(POSITION)]
    if len(type_) > len(members):
        row = type_.field(_ROW).type
        carried = [rows.column(f.name) for f in row]
        members.append(pa.StructArray.from_arrays(carried, fields=list(row)))
    return pa.StructArray.from_arrays(members, fields=list(type_))


def _frames(
    view: TableView,
    bucket: BucketId,
    file: PlannedFile,
    columns: tuple[str, ...],
    condition: Predicate | None = None,
) -> Iterator[pl.DataFrame]:
    """The rows of a file, with their positions."""
    stored = StoredVersions(view, bucket[0], (*columns, POSITION), condition, tells_kinds=False)
    rows = rows_in(view.options.read_memory_bytes, [file], view.schema.select(columns))
    return stored.of_lone_files([file], max(_ROWS_MIN, rows))


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
        buckets: dict[BucketId, list[PlannedFile]] = {}
        for name in self._gone if is_rewritten else ():
            file = self._files[name]
            buckets.setdefault((file.entry.partition, file.entry.bucket), []).append(file)
        stays_there = is_rewritten and not (
            self._on.moves_rows or len(buckets) != 1 or bool(self._on.files)
        )
        if is_rewritten:
            # Rewrite the files that lose rows, with `images` at the end of the first bucket's file.
            images = self._made.tables() if stays_there else iter(())
            view = self._on.view
            memory = view.options.read_memory_bytes
            for bucket, files in buckets.items():
                rewriting = BucketRewrite(view, bucket, memory, FileSource.APPEND)
                made = rewriting.write([(files, self._rows_of(bucket, files, images))], DeadRows())
                assert made.result is not None
                self._written.append(made.result)
        if not stays_there:
            self._feed(self._number, self._made)

    def _facts_and_rows(self) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
        if self._gone and self._on.marks_rows:
            bits = [positions.serialize() for positions in self._gone.values()]
            dead = pa.table({FILE: list(self._gone), "dead": pa.array(bits, pa.binary())})
            yield {"rows": 0}, dead

    def _rows_of(
        self, bucket: BucketId, files: Iterable[PlannedFile], images: Iterator[pa.Table]
    ) -> Iterator[pl.DataFrame]:
        view = self._on.view
        for file in files:
            gone = self._gone[file.meta.file_name]
            positions = pl.Series(np.asarray(gone.to_array()), dtype=pl.Int64)
            for frame in _frames(view, bucket, file, tuple(view.schema.names)):
                yield frame.filter(~frame[POSITION].is_in(positions.implode())).drop(POSITION)
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
            _add_removed_rows(
                self._on, self._gone, str(name), positions, some.height - len(positions)
            )
            if not self._on.marks_rows and name not in self._files:
                raise InvalidError(
                    f"{self._on}: a row id refers to file {name}, which is not in split "
                    f"{self._number}; return row ids to the split they came from"
                )


# -- the connector for tables without a primary key ------------------------------------------------


def appended_connector(catalog: Catalog) -> Connector:
    """The connector for the tables of a catalog without a primary key."""
    metadata = AppendedMetadata(catalog)
    return Connector("keytide", metadata, _Splits(), AppendedPages(), AppendedSinks())


@dataclass(frozen=True)
class AppendedMetadata(StoredMetadata[AppendedHandle]):
    """Metadata operations for tables without a primary key."""

    is_changed_by_key: ClassVar[bool] = False

    def handle_of(self, table: PinnedTable) -> AppendedHandle:
        """See `StoredMetadata`."""
        view = writable_view(table)
        return AppendedHandle(table, table.state_on(table.newest_files(), view))

    def commit(
        self, session: ConnectorSession, table: AppendedHandle, contents: Sequence[Told]
    ) -> None:
        """See `StoredMetadata`."""
        change = _Change(table.base_state, session, _watched(table))
        if table.marks_rows:
            # The positions of the removed rows, by file.
            dead: dict[str, BitMap64] = {}
            for rows in (each.rows for each in contents if "dead" in each.rows.column_names):
                for name, some in zip(rows[FILE], rows["dead"], strict=True):
                    _add_removed_rows(table, dead, name.as_py(), BitMap64.deserialize(some.as_py()))
            live = table.base_state.live.entries
            entries = {e.file.file_name: e for e in live if e.file.file_name in dead}
            if len(entries) < len(dead):
                raise ConnectorError(
                    f"{table}: a row id refers to a file that is not part of the table"
                )
            for bucket, touched in _by_bucket(entries.values()).items():
                change.mark(
                    bucket, {e.file.file_name: dead[e.file.file_name] for e in touched}, entries
                )
        _commit(session, table, change, contents)

    # -- DELETE

    def get_delete_row_id_column_handle(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> ColumnHandle:
        """See `ConnectorMetadata`."""
        return place_column(table)

    def apply_delete(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> AppendedHandle | None:
        """See `ConnectorMetadata`. Whole partitions are removed without reading their rows."""
        about = _partition_terms(table)
        return table if len(about) == len(conjuncts(table.predicate)) else None

    def execute_delete(self, session: ConnectorSession, table: AppendedHandle) -> int:
        """See `ConnectorMetadata`. One commit, or none if there are no rows."""
        state = table.base_state
        live = state.live.files
        there = live.filter(live.column("_BUCKET") >= 0)
        gone = matching_partitions(there, state.view.schema, _partition_terms(table))
        rows = int(gone.column("_ROW_COUNT").sum())
        change = _Change(state, session, _watched(table))
        for bucket, entries in _by_bucket(gone).items():
            rows -= change.remove_files(bucket, entries)
        _commit(session, table, change, [])
        return rows

    # -- UPDATE

    def get_update_row_id_column_handle(
        self, session: ConnectorSession, table: AppendedHandle, updated_columns: Sequence[str]
    ) -> ColumnHandle:
        """See `ConnectorMetadata`. The id contains the columns that the UPDATE does not set."""
        names = [n for n in table.view.schema.names if n not in set(updated_columns)]
        return place_column(table, names)

    # -- MERGE

    get_merge_row_id_column_handle = get_delete_row_id_column_handle

    def get_update_layout(self, session: ConnectorSession, table: AppendedHandle) -> Sequence[str]:
        """See `ConnectorMetadata`. Each file is rewritten by one sink."""
        return (FILE,)

    def begin_merge(
        self,
        session: ConnectorSession,
        table: AppendedHandle,
        updated_columns: Mapping[int, Sequence[str]],
    ) -> AppendedHandle:
        """See `ConnectorMetadata`."""
        begun = table.begin_merge_change(updated_columns)
        if table.marks_rows:
            return begun
        plan = plan_scan(table.base_state, table.predicate)
        files = {file.meta.file_name: file for bucket in plan.buckets for file in bucket.files}
        return replace(begun, files=files)


class _Splits(ConnectorSplitManager):
    def get_splits(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> Sequence[AppendedSplit]:
        target_bytes = table.view.options.target_file_size_bytes
        # The files of each bucket in order, with small ones grouped.
        groups: list[tuple[BucketId, list[PlannedFile]]] = []
        for plan in plan_scan(table.base_state, table.predicate).buckets:
            group_bytes: int | None = None
            for file in plan.files:
                size = file.meta.file_size
                if group_bytes is None or group_bytes + size > target_bytes:
                    groups.append(((plan.partition, plan.bucket), []))
                    group_bytes = 0
                groups[-1][1].append(file)
                group_bytes += size
        return [
            AppendedSplit(number, bucket, tuple(files), table.predicate)
            for number, (bucket, files) in enumerate(groups)
        ]

    def stored_bytes(self, splits: Sequence[AppendedSplit]) -> int | None:
        return sum(file.meta.file_size for split in splits for file in split.files)


def _partition_terms(table: AppendedHandle) -> list[Predicate]:
    """The terms that are either true for all rows of a partition or for none."""
    view = table.view
    names = set(view.schema.partition_keys) - view.defaults(view.schema.partition_keys).keys()
    terms = conjuncts(table.predicate)
    return [term for term in terms if columns_of(term) and columns_of(term) <= names]


def _watched(table: AppendedHandle) -> Callable[[bytes], bool]:
    """The partitions that a statement reads, including those that are created meanwhile."""
    about, files = _partition_terms(table), table.base_state.live.entries
    if not about or not files:
        return every_partition

    def is_read(partition: bytes) -> bool:
        entry = Entries.of([replace(files[0], partition=partition)])
        return bool(matching_partitions(entry, table.view.schema, about))

    return is_read


# -- the commit ------------------------------------------------------------------------------------


class _Change:
    """The files that a statement removes, and the rows that it marks as deleted."""

    def __init__(
        self, state: TableState, session: ConnectorSession, is_read: Callable[[bytes], bool]
    ) -> None:
        self._state, self._session = state, session
        self.is_watched = is_read if session.isolation == "serializable" else None
        self._vector_files = vector_files_by_bucket(state.vector_files)
        self._gone: list[ManifestEntry] = []
        self._dead: dict[BucketId, DeadRows] = {}
        self.marked: list[ManifestEntry] = []

    @property
    def written(self) -> TaskResult:
        """The changes to commit, in addition to what tasks wrote."""
        # The vectors of the files that were read must not have changed.
        watched: dict[BucketId, DeadRows] = {}
        if self.is_watched is not None and self._state.view.options.deletion_vectors_enabled:
            for bucket in self._state.live.buckets:
                if self.is_watched(bucket[0]):
                    watched[bucket] = DeadRows(self._vector_files.get(bucket, ()))
        return TaskResult(tuple(self._gone), indexes=by_index_key({**watched, **self._dead}))

    def remove_files(self, bucket: BucketId, entries: Sequence[ManifestEntry]) -> int:
        """Remove whole files. Returns how many of their rows were already deleted."""
        self._gone += [replace(entry, kind=FileKind.DELETE) for entry in entries]
        names = [entry.file.file_name for entry in entries]
        before = self._dead_rows(bucket)
        if self._state.view.options.deletion_vectors_enabled:
            self._update_vectors(bucket, before, names, before.without(names))
        return sum(len(before.of(name)) for name in names)

    def mark(self, bucket: BucketId, dead: Mapping[str, BitMap64], entries: _ByName) -> None:
        """Mark rows of a bucket's files as deleted, and remove files without remaining rows."""
        before = self._dead_rows(bucket)
        positions = {name: np.asarray(some.to_array(), np.int64) for name, some in dead.items()}
        for name, some in positions.items():
            if np.isin(some, before.of(name)).any():
                raise ConnectorError(f"rows of file {name} that this statement read were deleted")
        wide = self._state.view.options.deletion_vectors_bitmap64
        after = before.marking(positions, wide=wide)
        full = [n for n in dead if len(after.vectors[n]) == entries[n].file.row_count]
        self._gone += [replace(entries[name], kind=FileKind.DELETE) for name in full]
        self.marked += [entries[name] for name in dead if name not in full]
        self._update_vectors(bucket, before, list(dead), after.without(full))

    def _update_vectors(
        self, bucket: BucketId, before: DeadRows, names: Iterable[str], after: DeadRows
    ) -> None:
        is_about_all = self.is_watched is not None and self.is_watched(bucket[0])
        went_by = None if is_about_all else before.about(names).observed
        self._dead[bucket] = replace(after, observed=went_by)

    def _dead_rows(self, bucket: BucketId) -> DeadRows:
        """The rows of a bucket that are already marked as deleted."""
        view, files = self._state.view, self._vector_files.get(bucket, ())
        return load_dead_rows(view.store, files, view.name)


_ByName = Mapping[str, ManifestEntry]


def _by_bucket(entries: Iterable[ManifestEntry]) -> dict[BucketId, list[ManifestEntry]]:
    found: dict[BucketId, list[ManifestEntry]] = {}
    for entry in entries:
        found.setdefault((entry.partition, entry.bucket), []).append(entry)
    return found


def _commit(
    session: ConnectorSession, table: AppendedHandle, change: _Change, contents: Sequence[Told]
) -> None:
    begun = Transaction.on(table.table, table.base_state, table.view.statement)
    with with_follow_ups(table.table, begun) as transaction:
        begin_commit(transaction, session, table, contents)
        transaction.collect(change.written)
        transaction.change_rows(change.marked, change.is_watched)
