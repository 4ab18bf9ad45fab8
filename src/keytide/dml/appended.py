"""Tables without a primary key: rows are known by their files and their positions in them.

A row id is the name of a data file and the position of the row in it, dead rows counted; for an
UPDATE it has the columns that are not set as well, for what is stored is whole rows. What becomes
of rows depends on the table:

- With deletion vectors a row that goes is marked as dead, and a new image is a row of a new file.
  A file whose last row goes is taken away.
- Without them the files whose rows change are written again, with what is left and the new images.

A source writes the new files; a fragment names them and the rows that go. `finish_...` puts them
together in one commit, which conflicts where one of the files whose rows change is gone by then, or
other rows of it died, and when it is serializable where anything happened to a partition that the
statement read.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from keytide.dml.fragments import Told, new_attempt, read_fragments, write_fragment
from keytide.dml.settling import Settling
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    Connector,
    ConnectorMergeSink,
    ConnectorMergeSinkProvider,
    ConnectorMetadata,
    ConnectorPageSourceProvider,
    ConnectorSession,
    ConnectorSplitManager,
    ConnectorTableSchema,
    Fragment,
    MergeOperation,
    RowChangeParadigm,
    UpdatablePageSource,
)
from keytide.dml.spool import Spool
from keytide.dml.values import among
from keytide.errors import ConnectorError, InvalidError, KeytideError
from keytide.format.arrow import to_arrow
from keytide.format.data_file import POSITION, VALUE_KIND
from keytide.format.entry_columns import Entries
from keytide.format.manifest import FileKind, FileSource, ManifestEntry
from keytide.options import keys
from keytide.table.catalog import Catalog
from keytide.table.commit.transaction import Transaction, discard
from keytide.table.conditions.predicate import Predicate, columns_of, conjunction, conjuncts
from keytide.table.conditions.where import parse_where
from keytide.table.definition.defaults import write_default
from keytide.table.read.plan import plan_scan
from keytide.table.read.pruning import matching_partitions
from keytide.table.read.rows import Rows
from keytide.table.read.runs import StoredVersions, table_columns
from keytide.table.read.sections import PlannedFile
from keytide.table.read.versions import rows_in
from keytide.table.state.dead_rows import DeadRows, load_dead_rows, vector_files_by_bucket
from keytide.table.state.live_files import BucketId
from keytide.table.state.state import TableState
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView
from keytide.table.upkeep.appends import Rewriting
from keytide.table.upkeep.writing import keep_up
from keytide.table.write.partition_spec import every_partition
from keytide.table.write.rows import incoming_rows
from keytide.table.write.task import WriteTask, Written
from keytide.table.write.writable import writable_view

__all__ = ["AppendedMetadata", "appended_connector"]

_FILE = pa.field("file", pa.string(), nullable=False)
_POSITION = pa.field("position", pa.int64(), nullable=False)
_ROWS_MIN = 8 << 10


def appended_connector(catalog: Catalog) -> Connector:
    """The tables of a catalog that have no primary key."""
    return Connector("keytide", AppendedMetadata(catalog), _Splits(), _Pages(), _MergeSinks())


@dataclass(frozen=True)
class AppendedHandle:
    """A table at one snapshot, and what a statement does to it.

    `state` is what the commit goes by, `settling` how far it is; they stay on the driver: on its
    way to a worker a handle leaves them behind. `task` writes; `updated` are the columns that an
    UPDATE sets. `files` are those whose rows merge sinks may have to write again.
    """

    table: StoredTable
    state: TableState | None
    predicate: Predicate | None = None
    task: WriteTask | None = None
    updated: tuple[str, ...] = ()
    settling: Settling | None = None
    files: Mapping[str, PlannedFile] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"table {self.table.name}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "state": None, "settling": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def view(self) -> TableView:
        """The table at the schema of the statement."""
        if self.task is not None:
            return self.task.view
        assert self.state is not None
        return self.state.view

    @property
    def known(self) -> TableState:
        """What the commit goes by. Driver only."""
        assert self.state is not None
        return self.state

    @property
    def moves_rows(self) -> bool:
        """Whether rows get to other partitions or buckets."""
        view = self.view
        placing = {*view.schema.partition_keys, *(view.options.bucket_key or ())}
        return bool(set(self.updated) & placing)


# -- on the driver ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class AppendedMetadata(ConnectorMetadata):
    """What is said and decided of tables without a primary key."""

    catalog: Catalog

    def list_tables(self, session: ConnectorSession) -> Sequence[str]:
        """See `ConnectorMetadata`."""
        names = self.catalog.tables()
        return [n for n in names if not self.catalog.table(n).schema.primary_keys]

    def get_table_handle(self, session: ConnectorSession, name: str) -> AppendedHandle | None:
        """See `ConnectorMetadata`. Raises `UnsupportedError` for one that cannot be written to."""
        found = self.catalog.find(name)
        return None if found is None else self.handle_of(self.catalog.table(found))

    def handle_of(self, table: StoredTable) -> AppendedHandle:
        """The newest state of a table."""
        return AppendedHandle(table, table.state_to_write(writable_view(table)))

    def get_table_schema(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> ConnectorTableSchema:
        """See `ConnectorMetadata`."""
        schema = table.view.schema
        defaults = {f.name: write_default(f) for f in schema.fields if f.default_value is not None}
        columns = tuple(
            ColumnHandle(f.name, f.type, f.nullable, defaults.get(f.name))
            for f in schema.arrow_schema()
        )
        return ConnectorTableSchema(table.table.name, columns)

    def apply_filter(
        self, session: ConnectorSession, table: AppendedHandle, terms: Sequence[str]
    ) -> tuple[AppendedHandle, Sequence[str]]:
        """See `ConnectorMetadata`. Terms are what the conditions of a scan may be."""
        parsed = {term: _parsed(term, table) for term in terms}
        understood = [predicate for predicate in parsed.values() if predicate is not None]
        predicate = conjunction([*conjuncts(table.predicate), *understood])
        left = [term for term, predicate in parsed.items() if predicate is None]
        return replace(table, predicate=predicate), left

    # -- DELETE

    def get_delete_row_id_column_handle(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> ColumnHandle:
        """See `ConnectorMetadata`."""
        return _row_id()

    def begin_delete(self, session: ConnectorSession, table: AppendedHandle) -> AppendedHandle:
        """See `ConnectorMetadata`."""
        return _begun(table)

    def finish_delete(
        self, session: ConnectorSession, table: AppendedHandle, fragments: Sequence[Fragment]
    ) -> int:
        """See `ConnectorMetadata`. One commit; none where no row was deleted."""
        return _committed(session, table, fragments)

    def abort_delete(
        self, session: ConnectorSession, table: AppendedHandle, fragments: Sequence[Fragment]
    ) -> None:
        """See `ConnectorMetadata`."""
        _discard(table, fragments)

    def apply_delete(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> AppendedHandle | None:
        """See `ConnectorMetadata`. Whole partitions go without their rows being read."""
        about = _about_partitions(table)
        return table if len(about) == len(conjuncts(table.predicate)) else None

    def execute_delete(self, session: ConnectorSession, table: AppendedHandle) -> int:
        """See `ConnectorMetadata`. One commit; none where there are no rows."""
        state = table.known
        live = state.live.files
        there = live.filter(live.column("_BUCKET") >= 0)
        gone = matching_partitions(there, state.view.schema, _about_partitions(table))
        rows = int(gone.column("_ROW_COUNT").sum())
        change = _Change(state, session, _watched(table))
        for bucket, entries in _by_bucket(gone).items():
            names = [entry.file.file_name for entry in entries]
            dead = change.dead_rows(bucket)
            rows -= sum(len(dead.of(name)) for name in names)
            change.take_away(bucket, entries, dead)
        _settle(table, change, [])
        return rows

    # -- UPDATE

    def get_update_row_id_column_handle(
        self, session: ConnectorSession, table: AppendedHandle, updated_columns: Sequence[str]
    ) -> ColumnHandle:
        """See `ConnectorMetadata`. The id carries the columns that the UPDATE does not set."""
        _check_updatable(table, updated_columns)
        names = [n for n in table.view.schema.names if n not in set(updated_columns)]
        return _row_id(table, names)

    def begin_update(
        self, session: ConnectorSession, table: AppendedHandle, updated_columns: Sequence[str]
    ) -> AppendedHandle:
        """See `ConnectorMetadata`."""
        return replace(_begun(table), updated=tuple(updated_columns))

    def finish_update(
        self, session: ConnectorSession, table: AppendedHandle, fragments: Sequence[Fragment]
    ) -> int:
        """See `ConnectorMetadata`. One commit; none where no row was changed."""
        return _committed(session, table, fragments)

    def abort_update(
        self, session: ConnectorSession, table: AppendedHandle, fragments: Sequence[Fragment]
    ) -> None:
        """See `ConnectorMetadata`."""
        _discard(table, fragments)

    # -- MERGE

    def get_row_change_paradigm(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> RowChangeParadigm:
        """See `ConnectorMetadata`."""
        return RowChangeParadigm.CHANGE_ONLY_UPDATED_COLUMNS

    def get_merge_row_id_column_handle(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> ColumnHandle:
        """See `ConnectorMetadata`."""
        return _row_id()

    def get_update_layout(self, session: ConnectorSession, table: AppendedHandle) -> Sequence[str]:
        """See `ConnectorMetadata`. A file is written again by one sink."""
        return (_FILE.name,)

    def begin_merge(
        self,
        session: ConnectorSession,
        table: AppendedHandle,
        updated_columns: Mapping[int, Sequence[str]],
    ) -> AppendedHandle:
        """See `ConnectorMetadata`."""
        updated = {name for names in updated_columns.values() for name in names}
        _check_updatable(table, sorted(updated))
        begun = replace(_begun(table), updated=tuple(sorted(updated)))
        if _has_vectors(table.view):
            return begun
        plan = plan_scan(table.known, table.predicate)
        files = {file.meta.file_name: file for bucket in plan.buckets for file in bucket.files}
        return replace(begun, files=files)

    def apply_values(
        self, session: ConnectorSession, table: AppendedHandle, values: Mapping[str, pa.Array]
    ) -> AppendedHandle:
        """See `ConnectorMetadata`."""
        wanted = conjunction([*conjuncts(table.predicate), *conjuncts(among(values, table.view))])
        return replace(table, predicate=wanted)

    def finish_merge(
        self, session: ConnectorSession, table: AppendedHandle, fragments: Sequence[Fragment]
    ) -> int:
        """See `ConnectorMetadata`. One commit; none where nothing was changed."""
        return _committed(session, table, fragments)

    def abort_merge(
        self, session: ConnectorSession, table: AppendedHandle, fragments: Sequence[Fragment]
    ) -> None:
        """See `ConnectorMetadata`."""
        _discard(table, fragments)


@dataclass(frozen=True)
class AppendedSplit:
    """Some files of one bucket."""

    number: int
    bucket: BucketId
    files: tuple[PlannedFile, ...]


class _Splits(ConnectorSplitManager):
    def get_splits(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> Sequence[AppendedSplit]:
        target_bytes = table.view.options.target_file_size_bytes
        groups = [
            ((plan.partition, plan.bucket), group)
            for plan in plan_scan(table.known, table.predicate).buckets
            for group in _groups(plan.files, target_bytes)
        ]
        return [AppendedSplit(number, *group) for number, group in enumerate(groups)]


def _groups(files: Iterable[PlannedFile], bytes_max: int) -> Iterator[tuple[PlannedFile, ...]]:
    """The files in their order, small ones together."""
    group: list[PlannedFile] = []
    for file in files:
        if group and sum(f.meta.file_size for f in group) + file.meta.file_size > bytes_max:
            yield tuple(group)
            group = []
        group.append(file)
    if group:
        yield tuple(group)


def _parsed(term: str, table: AppendedHandle) -> Predicate | None:
    try:
        return parse_where(term, table.view.schema.fields, table.table.name)
    except KeytideError:
        return None  # the engine's own


def _check_updatable(table: AppendedHandle, columns: Sequence[str]) -> None:
    name = table.view.options.rowkind_field
    if name in columns:
        raise InvalidError(
            f"{table}: an UPDATE cannot set {name!r}: '{keys.ROWKIND_FIELD}' makes it say what "
            f"becomes of a row that is written; DELETE the rows that are to go"
        )


def _has_vectors(view: TableView) -> bool:
    return view.options.deletion_vectors_enabled


def _row_id(table: AppendedHandle | None = None, carried: Sequence[str] = ()) -> ColumnHandle:
    """The column of row ids; what they carry is a struct of its own, whatever columns are named."""
    members = [_FILE, _POSITION]
    if table is not None and carried:
        schema = table.view.schema.arrow_schema()
        row = pa.struct([schema.field(name) for name in carried])
        members.append(pa.field("row", row, nullable=False))
    return ColumnHandle(ROW_ID, pa.struct(members), nullable=False)


def _begun(table: AppendedHandle) -> AppendedHandle:
    task = replace(WriteTask.on(table.known), stored=None)
    return replace(table, task=task, settling=Settling())


def _about_partitions(table: AppendedHandle) -> list[Predicate]:
    """The terms that hold for all rows of a partition or for none."""
    view = table.view
    names = set(view.schema.partition_keys) - view.defaults(view.schema.partition_keys).keys()
    terms = conjuncts(table.predicate)
    return [term for term in terms if columns_of(term) and columns_of(term) <= names]


def _watched(table: AppendedHandle) -> Callable[[bytes], bool]:
    """The partitions that a statement reads, those that are made meanwhile among them."""
    about, files = _about_partitions(table), table.known.live.entries
    if not about or not files:
        return every_partition

    def is_read(partition: bytes) -> bool:
        entry = Entries.of([replace(files[0], partition=partition)])
        return bool(matching_partitions(entry, table.view.schema, about))

    return is_read


# -- the commit ------------------------------------------------------------------------------------


class _Change:
    """The files that a statement takes away, and the rows that it marks as dead."""

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
    def written(self) -> Written:
        """What there is to commit, besides what tasks wrote."""
        return Written(tuple(self._gone), dead={**self._watched_vectors(), **self._dead})

    def dead_rows(self, bucket: BucketId) -> DeadRows:
        """The rows of a bucket that are dead already."""
        view, files = self._state.view, self._vector_files.get(bucket, ())
        return load_dead_rows(view.store, files, view.name)

    def take_away(
        self, bucket: BucketId, entries: Iterable[ManifestEntry], dead: DeadRows | None = None
    ) -> None:
        """Whole files go, and what is said of their rows."""
        gone = [replace(entry, kind=FileKind.DELETE) for entry in entries]
        self._gone += gone
        if _has_vectors(self._state.view):
            names = [entry.file.file_name for entry in gone]
            before = self.dead_rows(bucket) if dead is None else dead
            self._go_by(bucket, before, names, before.without(names))

    def mark(self, bucket: BucketId, dead: Mapping[str, BitMap64], entries: _ByName) -> None:
        """Rows of files of a bucket die, and files go of which that was the last."""
        before = self.dead_rows(bucket)
        positions = {name: np.asarray(some.to_array(), np.int64) for name, some in dead.items()}
        for name, some in positions.items():
            if np.isin(some, before.of(name)).any():
                raise ConnectorError(f"rows of file {name} are dead that this statement has read")
        wide = self._state.view.options.deletion_vectors_bitmap64
        after = before.marking(positions, wide=wide)
        full = [n for n in dead if len(after.vectors[n]) == entries[n].file.row_count]
        self._gone += [replace(entries[name], kind=FileKind.DELETE) for name in full]
        self.marked += [entries[name] for name in dead if name not in full]
        self._go_by(bucket, before, list(dead), after.without(full))

    def _go_by(
        self, bucket: BucketId, before: DeadRows, names: Iterable[str], after: DeadRows
    ) -> None:
        is_about_all = self.is_watched is not None and self.is_watched(bucket[0])
        went_by = None if is_about_all else before.about(names).went_by
        self._dead[bucket] = replace(after, went_by=went_by)

    def _watched_vectors(self) -> dict[BucketId, DeadRows]:
        """The vectors of what was read, to which nothing else may have happened."""
        if self.is_watched is None or not _has_vectors(self._state.view):
            return {}
        return {
            bucket: DeadRows(self._vector_files.get(bucket, ()))
            for bucket in self._state.live.buckets
            if self.is_watched(bucket[0])
        }


_ByName = Mapping[str, ManifestEntry]


def _by_bucket(entries: Iterable[ManifestEntry]) -> dict[BucketId, list[ManifestEntry]]:
    found: dict[BucketId, list[ManifestEntry]] = {}
    for entry in entries:
        found.setdefault((entry.partition, entry.bucket), []).append(entry)
    return found


def _committed(
    session: ConnectorSession, table: AppendedHandle, fragments: Sequence[Fragment]
) -> int:
    told = read_fragments(fragments)
    change = _Change(table.known, session, _watched(table))
    if _has_vectors(table.view):
        _mark_rows(change, table, told)
    _settle(table, change, told)
    return sum(int(each.facts["rows"]) for each in told)


def _mark_rows(change: _Change, table: AppendedHandle, told: Sequence[Told]) -> None:
    dead: dict[str, BitMap64] = {}
    for each in told:
        for name, some in _told_dead(each):
            _refuse_twice(len(dead.get(name, BitMap64()) & some), table)
            dead[name] = dead.get(name, BitMap64()) | some
    entries = {
        e.file.file_name: e for e in table.known.live.entries if e.file.file_name in dead
    }  # fmt: skip
    if len(entries) < len(dead):
        raise ConnectorError(f"{table}: a row id names a file that is none of the table's")
    for bucket, touched in _by_bucket(entries.values()).items():
        change.mark(bucket, {e.file.file_name: dead[e.file.file_name] for e in touched}, entries)


def _settle(table: AppendedHandle, change: _Change, told: Sequence[Told]) -> None:
    transaction = Transaction.on(table.table, table.known)
    with transaction:
        for each in told:
            for written in _written(each):
                transaction.take(written)
        transaction.take(change.written)
        if table.settling is not None:
            table.settling.has_begun = True
        transaction.change_rows(change.marked, change.is_watched)
    keep_up(table.table, transaction)


def _discard(table: AppendedHandle, fragments: Sequence[Fragment]) -> None:
    if table.settling is not None and table.settling.has_begun:
        return  # the commit has tidied up, unless a snapshot may name the files
    discard(table.view, [made for each in read_fragments(fragments) for made in _written(each)])


def _written(told: Told) -> Iterator[Written]:
    if "written" in told.rows.column_names:
        for value in told.rows.column("written"):
            made = pickle.loads(value.as_py())
            if not isinstance(made, Written):
                raise ConnectorError(f"a fragment names no files, but a {type(made).__name__}")
            yield made


def _told_dead(told: Told) -> Iterator[tuple[str, BitMap64]]:
    if "dead" in told.rows.column_names:
        for name, dead in zip(told.rows["file"], told.rows["dead"], strict=True):
            yield name.as_py(), BitMap64.deserialize(dead.as_py())


def _refuse_twice(count: int, table: AppendedHandle) -> None:
    if count:
        raise InvalidError(
            f"{table}: {count} of the rows are changed twice in one statement; nothing was changed"
        )


# -- on workers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pages(ConnectorPageSourceProvider):
    def create_page_source(
        self,
        session: ConnectorSession,
        table: AppendedHandle,
        split: AppendedSplit,
        columns: Sequence[ColumnHandle],
    ) -> UpdatablePageSource:
        return _Source(table, split, tuple(columns))


class _Source(UpdatablePageSource):
    """The rows of some files, and what is to become of them."""

    def __init__(
        self, table: AppendedHandle, split: AppendedSplit, columns: tuple[ColumnHandle, ...]
    ) -> None:
        self._table, self._split, self._columns = table, split, columns
        self._pages: Iterator[pa.RecordBatch] | None = None
        files = {file.meta.file_name: file for file in split.files}
        self._changes = _Changes(table, split.number, files)

    def get_next_page(self) -> pa.RecordBatch | None:
        self._pages = self._pages or self._all_pages()
        return next(self._pages, None)

    def delete_rows(self, row_ids: pa.Array) -> None:
        self._changes.delete(row_ids)

    def update_rows(
        self, page: pa.RecordBatch, column_value_and_row_id_channels: Sequence[int]
    ) -> None:
        channels = list(column_value_and_row_id_channels)
        updated = self._table.updated
        if len(channels) != len(updated) + 1 or not all(
            0 <= c < page.num_columns for c in channels
        ):
            raise InvalidError(
                f"{self._table}: update_rows was given the channels {channels} of a page of "
                f"{page.num_columns} columns; expected one for each of "
                f"{', '.join((*updated, 'row id'))}"
            )
        values = dict(zip(updated, (page.column(c) for c in channels[:-1]), strict=True))
        self._changes.update(values, page.column(channels[-1]))

    def finish(self) -> Sequence[Fragment]:
        return self._changes.finish()

    def abort(self) -> None:
        self._changes.abort()

    def close(self) -> None:
        self._pages = None
        self._changes.close()

    def _all_pages(self) -> Iterator[pa.RecordBatch]:
        wanted = {column.name for column in self._columns} | set(self._carried)
        names = [n for n in self._table.view.schema.names if n in wanted]
        reading = _Reading(self._table.view, self._split.bucket, tuple(names))
        for file in self._split.files:
            for rows in reading.shown(file, self._table.predicate):
                for batch in rows.combine_chunks().to_batches():
                    yield self._page(file.meta.file_name, batch)

    @cached_property
    def _carried(self) -> list[str]:
        """The columns that row ids carry."""
        ids = [column.type for column in self._columns if column.name == ROW_ID]
        return [f.name for each in ids if len(each) > 2 for f in each.field("row").type]

    def _page(self, file_name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        made = [
            self._row_ids(file_name, batch, c.type) if c.name == ROW_ID else batch.column(c.name)
            for c in self._columns
        ]
        schema = pa.schema([pa.field(c.name, c.type, c.nullable) for c in self._columns])
        return pa.record_batch(made, schema=schema)

    def _row_ids(
        self, file_name: str, batch: pa.RecordBatch, type_: pa.StructType
    ) -> pa.StructArray:
        members = [pa.repeat(pa.scalar(file_name), batch.num_rows), batch.column(POSITION)]
        if self._carried:
            row = type_.field("row").type
            columns = [batch.column(f.name) for f in row]
            members.append(pa.StructArray.from_arrays(columns, fields=list(row)))
        return pa.StructArray.from_arrays(members, fields=list(type_))


@dataclass(frozen=True)
class _Reading:
    """Reads rows of files of one bucket, with their positions."""

    view: TableView
    bucket: BucketId
    names: tuple[str, ...]

    def shown(self, file: PlannedFile, predicate: Predicate | None) -> Iterator[pa.Table]:
        """The rows that readers are shown, of those that meet a predicate."""
        rows = Rows(self.view, self.names, predicate)
        asked = rows.versions()
        columns = dict.fromkeys(
            (*table_columns(asked.columns), *sorted(columns_of(asked.condition)))
        )
        for frame in self._frames(file, tuple(columns), asked.condition):
            yield to_arrow(rows.outcomes(frame), self._schema)

    def left(self, file: PlannedFile, gone: BitMap64) -> Iterator[pl.DataFrame]:
        """The rows as they are stored, but for some."""
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


@dataclass(frozen=True)
class _MergeSinks(ConnectorMergeSinkProvider):
    def create_merge_sink(
        self, session: ConnectorSession, table: AppendedHandle, number: int, count: int
    ) -> ConnectorMergeSink:
        return _MergeSink(table, number)


class _MergeSink(ConnectorMergeSink):
    """Rows that come, change and go, those of a file all in one sink."""

    def __init__(self, table: AppendedHandle, number: int) -> None:
        self._changes = _Changes(table, number, table.files)

    def store_merged_rows(self, page: pa.RecordBatch) -> None:
        width = page.num_columns - 3
        operation = page.column(width)
        for wanted, take in (
            (MergeOperation.DELETE, self._delete),
            (MergeOperation.UPDATE, self._update),
            (MergeOperation.INSERT, self._insert),
        ):
            rows = page.filter(pc.equal(operation, pa.scalar(wanted.value, operation.type)))
            if rows.num_rows:
                take(rows, width)

    def finish(self) -> Sequence[Fragment]:
        return self._changes.finish()

    def abort(self) -> None:
        self._changes.abort()

    def _delete(self, rows: pa.RecordBatch, width: int) -> None:
        self._changes.delete(rows.column(width + 2))

    def _update(self, rows: pa.RecordBatch, width: int) -> None:
        values = dict(zip(rows.schema.names[:width], rows.columns[:width], strict=True))
        self._changes.update(values, rows.column(width + 2))

    def _insert(self, rows: pa.RecordBatch, width: int) -> None:
        self._changes.insert(rows.select(range(width)))


class _Changes:
    """The rows that go of some files, and those that come.

    `files` are those that may have to be written again, by name. Positions are kept as bitmaps, new
    images on disk where they are many.
    """

    def __init__(
        self, table: AppendedHandle, number: int, files: Mapping[str, PlannedFile]
    ) -> None:
        memory = 1 if table.task is None else table.task.view.options.write_buffer_bytes
        self._table, self._number, self._files = table, number, files
        self._gone: dict[str, BitMap64] = {}
        self._made = Spool(memory)
        self._attempt = new_attempt()
        self._rows = 0
        self._written: list[Written] = []
        self._is_over = False

    def delete(self, row_ids: pa.Array) -> None:
        """Rows go."""
        self._take(row_ids)
        self._rows += len(row_ids)

    def update(self, values: Mapping[str, pa.Array], row_ids: pa.Array) -> None:
        """Rows go, and new images come, of the values and of what the ids carry."""
        self._take(row_ids)
        carried = row_ids.type.get_field_index("row")
        row = pc.struct_field(row_ids, carried) if carried >= 0 else None
        columns = [
            values[f.name].cast(f.type) if f.name in values else pc.struct_field(row, f.name)
            for f in self._table.view.schema.arrow_schema()
        ]
        self._made.add(pa.record_batch(columns, list(self._table.view.schema.names)))
        self._rows += len(row_ids)

    def insert(self, rows: pa.RecordBatch) -> None:
        """Rows come."""
        self._refuse_after_end()
        self._made.add(rows)
        self._rows += rows.num_rows

    def finish(self) -> Sequence[Fragment]:
        """Write what comes; the fragments name the new files and the rows that go."""
        self._refuse_after_end()
        self._is_over = True
        try:
            is_rewritten = bool(self._gone) and not _has_vectors(self._table.view)
            stays_there = is_rewritten and not self._has_left
            if is_rewritten:
                self._write_again(self._made.tables() if stays_there else iter(()))
            if self._made.rows and not stays_there:
                assert self._table.task is not None
                self._written.append(self._table.task.feed(self._made.tables(), self._number))
        except BaseException:
            self.abort()
            raise
        return self._fragments()

    def abort(self) -> None:
        """Delete what was written."""
        self._is_over = True
        written, self._written = self._written, []
        if written:
            discard(self._table.view, written)
        self.close()

    def close(self) -> None:
        """Let go of what waits."""
        self._made.close()

    @property
    def _has_left(self) -> bool:
        """Whether new images may belong to another bucket than the files that are written again."""
        return self._table.moves_rows or len(self._buckets) != 1 or bool(self._table.files)

    @property
    def _buckets(self) -> dict[BucketId, list[PlannedFile]]:
        found: dict[BucketId, list[PlannedFile]] = {}
        for name in self._gone:
            file = self._files[name]
            found.setdefault((file.entry.partition, file.entry.bucket), []).append(file)
        return found

    def _write_again(self, images: Iterator[pa.Table]) -> None:
        """Write the files that lose rows again, with `images` at the end of the first bucket's."""
        view = self._table.view
        memory = view.options.read_memory_bytes
        for bucket, files in self._buckets.items():
            rewriting = Rewriting(view, bucket, memory, FileSource.APPEND)
            made = rewriting.done([(files, self._rows_of(bucket, files, images))], DeadRows())
            assert made.written is not None
            self._written.append(made.written)

    def _rows_of(
        self, bucket: BucketId, files: Iterable[PlannedFile], images: Iterator[pa.Table]
    ) -> Iterator[pl.DataFrame]:
        view = self._table.view
        reading = _Reading(view, bucket, tuple(view.schema.names))
        for file in files:
            yield from reading.left(file, self._gone[file.meta.file_name])
        for rows in images:
            checked = incoming_rows(rows, view.schema, view.options, view.name)
            yield checked.frame.drop(VALUE_KIND)

    def _fragments(self) -> list[Fragment]:
        files = pa.table({"written": pa.array(map(pickle.dumps, self._written), pa.binary())})
        told = [Told(self._number, self._attempt, {"rows": self._rows}, files)]
        if self._gone and _has_vectors(self._table.view):
            bits = [positions.serialize() for positions in self._gone.values()]
            dead = pa.table({"file": list(self._gone), "dead": pa.array(bits, pa.binary())})
            told.append(Told(self._number, self._attempt, {"rows": 0}, dead))
        return list(map(write_fragment, told))

    def _take(self, row_ids: pa.Array) -> None:
        self._refuse_after_end()
        if row_ids.null_count:
            raise InvalidError(f"{self._table}: a row id is NULL; hand back those that pages gave")
        ids = pl.DataFrame({"file": pl.Series(pc.struct_field(row_ids, 0)),
                            "position": pl.Series(pc.struct_field(row_ids, 1))})  # fmt: skip
        for (name,), some in ids.group_by("file"):
            self._take_of(str(name), BitMap64(some["position"].to_numpy()), some.height)

    def _take_of(self, name: str, positions: BitMap64, count: int) -> None:
        known = self._gone.setdefault(name, BitMap64())
        _refuse_twice(count - len(positions) + len(known & positions), self._table)
        known |= positions
        self._gone[name] = known
        if not _has_vectors(self._table.view) and name not in self._files:
            raise InvalidError(
                f"{self._table}: a row id names file {name}, which is none of split "
                f"{self._number}; hand row ids back where they came from"
            )

    def _refuse_after_end(self) -> None:
        if self._is_over:
            raise InvalidError(
                f"{self._table}: split {self._number} was finished or aborted before"
            )
