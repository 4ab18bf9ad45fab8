"""The connector for tables with a primary key: DELETE appends tombstones, UPDATE new versions.

A row id is the primary key of a row and the other columns that a new version needs. These are the
sequence fields, which a new version copies so that it wins as the later one (rule R21 of
docs/semantics.md), and the columns that an UPDATE does not set. Workers read the rows of one
bucket, or receive the rows of one merge sink, and write level 0 files like any writer. A fragment
names their files, and `finish_...` commits them together. The commit conflicts if another one
changed a bucket that the statement changed or, with serializable isolation, any bucket.

No two rows of a statement, and no unchanged row, may have the same key. So sources and sinks report
keys of four kinds: `came` for added rows, `moved` for rows among them that had another key before,
`gone` for the old keys of these rows, and `new` for added rows whose key no row of the table has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, ClassVar, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import scratch
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.base.text import held_by_python
from keytide.catalogs.catalog import Catalog
from keytide.commit.transaction import Transaction
from keytide.dml.engine import pages_of
from keytide.dml.fragments import Told
from keytide.dml.own_tables import (
    ChangedByKey,
    Changes,
    KeyedHandle,
    StoredMetadata,
    TableSource,
    among_keys,
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
    RowChanges,
    UpdatablePageSource,
)
from keytide.errors import InvalidError, UnsupportedError
from keytide.maintenance.writes import show_rows, with_follow_ups
from keytide.merge.order import IS_ADD, VALUE_KIND, joined
from keytide.options import keys
from keytide.predicate.predicate import Predicate, conjunction, conjuncts
from keytide.read.key_index_rebuild import settled_state
from keytide.read.key_ranges import TASK_BYTES, by_key_range
from keytide.read.merged_versions import Lifetime
from keytide.read.plan import RowSelection
from keytide.read.scan import ReadTask, Scan
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import PinnedTable
from keytide.types import arrow_schema
from keytide.write.generated_columns import filled
from keytide.write.refusals import writable_view

# -- the order of versions by sequence fields ------------------------------------------------------


Rows: TypeAlias = "pa.RecordBatch | pl.DataFrame"


def orders_of(view: TableView) -> Sequence[tuple[str, ...]]:
    """The columns that order versions, or one list per producer if each has its own."""
    order = view.options.sequence_field
    if view.kind.has_key_index:
        return [(name,) for name in order]
    return [order] if order else []


def is_older(new: Rows, old: Rows, order: Sequence[str], *, descends: bool) -> pl.Series:
    """Which rows precede others in an order of several columns, in which NULL is lowest."""
    comes_before, is_decided = pl.repeat(False, len(pl.Series(new[order[0]])), eager=True), None
    for name in order:
        one, other = pl.Series(new[name]), pl.Series(old[name])
        higher, lower = (other, one) if descends else (one, other)
        before = (higher < lower).fill_null(False) | (one.is_null() & other.is_not_null())
        after = (lower < higher).fill_null(False) | (other.is_null() & one.is_not_null())
        open_ = ~is_decided if is_decided is not None else pl.repeat(True, len(one), eager=True)
        comes_before |= before & open_
        is_decided = before | after if is_decided is None else is_decided | before | after
    return comes_before


# -- uniqueness of keys ----------------------------------------------------------------------------


KEYS = "keys"
"""The fact in a fragment that gives the kind of its keys."""


def refuse_duplicates(table: ChangedByKey, keys: Iterable[pa.Table]) -> None:
    """Raise `InvalidError` for a duplicate key."""
    every = _frame(table, table.view.schema.primary_keys, keys)
    _refuse(table, every.filter(every.is_duplicated()))


_PART_ROWS = 1 << 20


def _part(keys: pa.Table, part: int, parts: int) -> pa.Table:
    """The keys of one part. Equal keys are in the same part."""
    if parts == 1:
        return keys
    frame = pl.DataFrame(pl.from_arrow(keys))
    return keys.filter((frame.hash_rows(seed=1) % parts == part).to_arrow())


Outcomes = Callable[[tuple[str, ...], Predicate | None], Iterator[pl.DataFrame]]
"""The merged result of at least all keys that match a condition: columns and `_VALUE_KIND`.

A delete is included as long as it is stored.
"""


def refuse_existing_keys(table: ChangedByKey, contents: Sequence[Told], outcomes: Outcomes) -> None:
    """Raise `InvalidError` for a duplicate key, or one of another row that keeps its key.

    This includes a row that moves to a key whose delete is newer than the row. Reads keys and order
    columns, for keys reported as `came` or `moved`.
    """
    refuse_duplicates(table, _rows_of_kind(contents, "came", "moved", "new"))
    key = table.view.schema.primary_keys
    came = _frame(table, key, _rows_of_kind(contents, "came", "moved"))
    gone = _frame(table, key, _rows_of_kind(contents, "gone"))
    # The same keys with the columns that order their versions.
    names = tuple(dict.fromkeys((*key, *table.view.options.sequence_field)))
    moved = _frame(table, names, _rows_of_kind(contents, "moved"))
    left = _frame(table, names, _rows_of_kind(contents, "gone"))
    coming = pl.concat([_frame(table, names, _rows_of_kind(contents, "came")), moved])
    _refuse_hidden(table, coming, left, "of which a newer row is deleted in the same statement")
    if not came.height:
        return
    for stored in outcomes(tuple(left.columns), among_keys(came, table.view)):
        shown = came.join(stored.filter(IS_ADD), on=came.columns, how="semi", nulls_equal=True)
        _refuse(table, shown.join(gone, on=came.columns, how="anti", nulls_equal=True))
        _refuse_hidden(table, moved, stored.filter(~IS_ADD), "which was deleted at a later time")


def _refuse_hidden(table: ChangedByKey, moved: pl.DataFrame, left: pl.DataFrame, why: str) -> None:
    """Raise `InvalidError` if a row moves to a key that a newer row has left.

    The delete under that key is as new as the row that left it, so readers would not see the moved
    row (rule R21).
    """
    if not (moved.height and left.height):
        return
    key = list(table.view.schema.primary_keys)
    descends = table.view.options.sequence_sort_order == "descending"
    both = joined(moved, left, key, suffix=_LEFT)
    for order in orders_of(table.view):
        other = both.select(
            pl.col(name if name in key else f"{name}{_LEFT}").alias(name) for name in order
        )
        hidden = both.filter(is_older(both.select(order), other, order, descends=descends))
        if hidden.height:
            taken = held_by_python(hidden.select(key).head(1)).row(0, named=True)
            raise InvalidError(
                f"{table}: a row would get the primary key {taken}, {why}, so it would be "
                f"invisible; nothing was changed. Set {', '.join(map(repr, order))} as well"
            )


_LEFT = scratch("left")


def _rows_of_kind(contents: Iterable[Told], *kinds: str) -> list[pa.Table]:
    return [each.rows for each in contents if each.facts.get(KEYS) in kinds]


def _frame(table: ChangedByKey, names: Sequence[str], rows: Iterable[pa.Table]) -> pl.DataFrame:
    """Some columns of rows."""
    none = arrow_schema(table.view.schema.select(names)).empty_table()
    own = (each.select(none.column_names) for each in rows)
    return pl.concat([pl.DataFrame(pl.from_arrow(each)) for each in (none, *own)])


def _refuse(table: ChangedByKey, keys: pl.DataFrame) -> None:
    if keys.height:
        first = held_by_python(keys.head(1)).row(0, named=True)
        raise InvalidError(
            f"{table}: two rows would have the primary key {first}; nothing "
            "was changed. Change or delete the other row in the same statement, or use other keys"
        )


# -- row changes of workers: appended versions -----------------------------------------------------


@dataclass(frozen=True)
class KeyedPages(ConnectorPageSourceProvider):
    """Page sources of single buckets. A split is a number and the task that reads the bucket."""

    def create_page_source(
        self,
        session: ConnectorSession,
        table: KeyedHandle,
        split: tuple[int, ReadTask],
        columns: Sequence[ColumnHandle],
    ) -> UpdatablePageSource:
        """See `ConnectorPageSourceProvider`."""
        number, read = split
        return _Source(table, columns, Versions(table, number, max(table.splits, 1)), read)

    def apply_values(
        self,
        session: ConnectorSession,
        table: KeyedHandle,
        split: tuple[int, ReadTask],
        values: Mapping[str, pa.Array],
    ) -> tuple[int, ReadTask]:
        """See `ConnectorPageSourceProvider`."""
        number, read = split
        return number, replace(read, predicate=narrowed(read.predicate, values, table.view))


@dataclass(frozen=True)
class KeyedSinks(ConnectorMergeSinkProvider):
    """Sinks that append versions."""

    def create_merge_sink(
        self, session: ConnectorSession, table: KeyedHandle, number: int, count: int
    ) -> ConnectorMergeSink:
        """See `ConnectorMergeSinkProvider`."""
        return Versions(table, number, count)


_KEYS = 8
"""The fraction of the row buffer that keys use (1 / this number)."""
_KINDS = ("gone", "came", "moved", "new")
"""The kinds of keys that sources and sinks report."""


class _Source(TableSource):
    """The rows of one bucket. Their ids are columns of the rows."""

    def __init__(
        self,
        table: KeyedHandle,
        columns: Sequence[ColumnHandle],
        versions: Versions,
        read: ReadTask,
    ) -> None:
        super().__init__(table, columns, versions)
        self._bucket, self._splits = read, table.splits

    def _read(self) -> Iterator[tuple[pa.RecordBatch, Callable[[pa.StructType], pa.Array]]]:
        view = self._table.view
        names = self._names([member.name for member in self._id_type])
        task = replace(self._bucket, columns=names or view.schema.names[:1])
        beside = max(1, min(os.cpu_count() or 1, self._splits))  # other splits are read in parallel
        for table in task.tables(max(1, view.options.read_memory_bytes // beside)):
            for rows in pages_of(table):
                yield rows, partial(structs_of, rows)


class Versions(Changes):
    """The versions and the moved keys of one split or sink, out of `count`.

    Tombstones have lower sequence numbers than all new versions of the statement, whatever their
    split, because a row can take a key that another row gives up.
    """

    _on: ChangedByKey

    def __init__(self, table: ChangedByKey, number: int, count: int) -> None:
        super().__init__(table, number)
        self._count = count
        self._gone = self._spool()
        self._keys = {kind: self._spool(_KEYS) for kind in _KINDS}

    def delete(self, row_ids: pa.Array) -> None:
        """Append tombstones."""
        self._begin(row_ids)
        versions = members_of(row_ids)
        versions = _with(versions, self._on.watermarks(versions))
        self._gone.add(self._with_row_kind(versions, RowKind.DELETE))
        if self._on.gives_keys:
            self._tell("gone", versions)
        self._rows += versions.num_rows

    def update(
        self, values: Mapping[str, pa.Array], row_ids: pa.Array, updated: Sequence[str]
    ) -> None:
        """Append new versions, and tombstones (no newer) for rows that leave their key."""
        self._begin(row_ids)
        old = members_of(row_ids)
        new = self._image({**values, **self._on.watermarks(old, updated)}, old, updated)
        for name in updated if self._on.view.engine.fills_gaps else ():
            if values[name].null_count:
                raise InvalidError(
                    f"{self._on}: the UPDATE sets {name!r} to NULL, which the merge engine "
                    "ignores as 'no new value'; set a value, or delete the row and insert it "
                    "without one"
                )
        self._refuse_older(old, new, updated)
        self._rows += new.num_rows
        self._made.add(self._with_row_kind(new, RowKind.UPDATE_AFTER))
        if self._on.moves_rows:
            # Which rows differ in some of these columns.
            names = self._on.view.schema.primary_keys
            before, after = (
                pl.DataFrame(pl.from_arrow(batch.select(names))) for batch in (old, new)
            )
            same = [before[name].eq_missing(after[name]) for name in names]
            moved = (~pl.DataFrame(same).select(pl.all_horizontal(pl.all())).to_series()).to_arrow()
            order = {name: new.column(name) for name in self._on.view.options.sequence_field}
            left = _with(old, order).filter(moved)
            self._gone.add(self._with_row_kind(left, RowKind.DELETE))
            self._tell("gone", left)
            self._tell("moved", new.filter(moved))

    def insert(self, rows: pa.RecordBatch) -> None:
        """Append new rows."""
        self._refuse_after_end()
        name = self._on.view.options.rowkind_field
        if name is not None:
            given = rows.column(name)
            others = given.filter(pc.not_equal(given, RowKind.INSERT.short))
            if others.null_count < len(others):
                raise InvalidError(
                    f"{self._on}: a MERGE inserts a row whose {name!r} is {others[0].as_py()!r}, "
                    f"but '{keys.ROWKIND_FIELD}' makes it the row kind; use "
                    f"{RowKind.INSERT.short!r}, or do not set the column"
                )
        rows = filled(rows, self._on.view)
        self._made.add(self._with_row_kind(rows, RowKind.INSERT))
        # NULL matches nothing in ON, but a NULL in one key equals a NULL in another key.
        may_be_there = any(rows.column(n).null_count for n in self._on.view.schema.primary_keys)
        self._tell("came" if may_be_there or not self._on.inserts_new_keys else "new", rows)
        self._rows += rows.num_rows

    def close(self) -> None:
        """Release the buffered rows."""
        super().close()
        for spool in (self._gone, *self._keys.values()):
            spool.close()

    def _write(self) -> None:
        if self._count == 1:
            # One task, because the rows of a key may be merged: it must know of the tombstones.
            self._feed(self._number, self._gone, self._made)
            return
        self._feed(self._number, self._gone)
        self._feed(self._count + self._number, self._made)

    def _facts_and_rows(self) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
        kinds = list(_KINDS)
        if self._count == 1:
            # These keys are in no other split, and new keys need no lookup.
            come = [self._keys[kind] for kind in ("came", "moved", "new")]
            parts = -(-sum(spool.rows for spool in come) // _PART_ROWS)  # to limit memory
            for part in range(parts):
                tables = chain.from_iterable(spool.tables() for spool in come)
                refuse_duplicates(self._on, (_part(some, part, parts) for some in tables))
            kinds.remove("new")
        for kind in kinds:
            if self._keys[kind].rows:
                yield {"rows": 0, KEYS: kind}, pa.concat_tables(self._keys[kind].tables())

    def _tell(self, kind: str, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            order = self._on.view.options.sequence_field
            names = dict.fromkeys((*self._on.view.schema.primary_keys, *order))
            self._keys[kind].add(rows.select(list(names)))

    def _with_row_kind(self, rows: pa.RecordBatch, kind: RowKind) -> pa.RecordBatch:
        name = self._on.view.options.rowkind_field or ROW_KIND
        kinds = pa.repeat(pa.scalar(kind.short), rows.num_rows)
        return _with(rows, {name: kinds})

    def _refuse_older(
        self, old: pa.RecordBatch, new: pa.RecordBatch, updated: Sequence[str]
    ) -> None:
        """Refuse new versions that would lose against the rows that they replace."""
        order = self._on.view.options.sequence_field
        if not set(order) & set(updated):
            return
        descends = self._on.view.options.sequence_sort_order == "descending"
        are_older = pl.repeat(False, new.num_rows, eager=True)
        for each in orders_of(self._on.view):
            are_older |= is_older(new, old, each, descends=descends)
            if self._on.fresher_by:
                are_older |= ~is_older(old, new, each, descends=descends)
        if are_older.any():
            place = are_older.arg_max()
            assert place is not None
            found = {name: new.column(name)[place].as_py() for name in order}
            stored = {name: old.column(name)[place].as_py() for name in order}
            wrong, right = (
                ("not above", "higher") if self._on.fresher_by else ("older than", "not lower")
            )
            raise InvalidError(
                f"{self._on}: the UPDATE sets {found}, which is {wrong} the stored value "
                f"{stored}, so it would have no effect; set a value that is {right}"
            )


def _with(rows: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Rows with some columns replaced."""
    named = {**dict(zip(rows.schema.names, rows.columns, strict=True)), **columns}
    return pa.record_batch(list(named.values()), list(named))


def structs_of(rows: pa.RecordBatch, type_: pa.StructType) -> pa.Array:
    """Row ids of a type whose fields are columns of the rows."""
    return pa.StructArray.from_arrays([rows.column(f.name) for f in type_], fields=list(type_))


# -- the connector ---------------------------------------------------------------------------------


def keyed_connector(catalog: Catalog) -> Connector:
    """The connector for the tables of a catalog with a primary key."""
    return Connector("keytide", KeyedMetadata(catalog), _Splits(), KeyedPages(), KeyedSinks())


@dataclass(frozen=True)
class KeyedMetadata(StoredMetadata[KeyedHandle]):
    """Metadata operations for tables with a primary key."""

    clock_ns: Callable[[], int] = time.time_ns
    is_changed_by_key: ClassVar[bool] = True

    def handle_of(self, table: PinnedTable) -> KeyedHandle:
        """See `StoredMetadata`."""
        table = show_rows(table)
        view = writable_view(table)
        return KeyedHandle(table, table.state_on(table.newest_files(), view))

    def commit(
        self, session: ConnectorSession, table: KeyedHandle, contents: Sequence[Told]
    ) -> None:
        """See `StoredMetadata`. Raises `InvalidError` if two rows would have the same key."""
        refuse_existing_keys(table, contents, partial(_outcomes, table))
        begun = Transaction.on(table.table, table.base_state, table.view.statement)
        with with_follow_ups(table.table, begun) as transaction:
            begin_commit(transaction, session, table, contents)
            transaction.build_on(serializable=session.isolation == "serializable")

    def check_changes(
        self, session: ConnectorSession, table: KeyedHandle, changes: RowChanges
    ) -> None:
        """See `ConnectorMetadata`. A row with a new key is deleted under its old key."""
        super().check_changes(session, table, changes)
        view = table.view
        for updated in changes.updated.values():
            # Raise `UnsupportedError` for a table that would not store new values unchanged.
            reason = view.engine.refuses_update
            if reason is not None:
                raise UnsupportedError(
                    f"{table}: the merge engine {view.options.merge_engine} does not support "
                    f"UPDATE; {reason}"
                )
            table.refuse_unset(updated)
        if changes.deletes:
            table.refuse_delete()
        if not (changes.deletes or changes.sets & set(table.view.schema.primary_keys)):
            return
        # Deletes would not be supported, or would be ignored.
        if view.options.ignore_delete:
            raise UnsupportedError(
                f"{table}: its option '{keys.IGNORE_DELETE}' drops deletes, so no row can be "
                "deleted; overwrite the table with the rows to keep"
            )
        way_out = view.engine.refuses_delete
        if way_out is not None:
            raise UnsupportedError(
                f"{table}: the merge engine {view.options.merge_engine} does not support DELETE "
                f"of single rows; {way_out}, or overwrite the table with the rows to keep"
            )

    # -- DELETE

    def get_delete_row_id_column_handle(
        self, session: ConnectorSession, table: KeyedHandle
    ) -> ColumnHandle:
        """See `ConnectorMetadata`. The id contains what a tombstone needs, besides its kind."""
        schema, options = table.view.schema, table.view.options
        if not table.view.engine.picks_a_version or options.changelog_producer != "none":
            return row_id_of(table, schema.names)  # retractions and changelogs need whole rows
        needed = {*schema.primary_keys, *options.sequence_field, *(options.bucket_key or ())}
        needed |= set(schema.partition_keys)
        return row_id_of(table, [name for name in schema.names if name in needed])

    # -- UPDATE

    def get_update_row_id_column_handle(
        self, session: ConnectorSession, table: KeyedHandle, updated_columns: Sequence[str]
    ) -> ColumnHandle:
        """See `ConnectorMetadata`. The id contains the columns that the UPDATE does not set."""
        needed = {*table.view.schema.primary_keys, *table.view.options.sequence_field}
        dropped = set(updated_columns) - needed
        return row_id_of(table, [n for n in table.view.schema.names if n not in dropped])

    def begin_update(
        self, session: ConnectorSession, table: KeyedHandle, updated_columns: Sequence[str]
    ) -> KeyedHandle:
        """See `ConnectorMetadata`."""
        begun = table.begin_change(updated_columns)
        return replace(begun, splits=len(_reads(begun)), began_ns=self.clock_ns())

    # -- MERGE

    get_merge_row_id_column_handle = get_delete_row_id_column_handle

    def begin_merge(
        self,
        session: ConnectorSession,
        table: KeyedHandle,
        updated_columns: Mapping[int, Sequence[str]],
    ) -> KeyedHandle:
        """See `ConnectorMetadata`."""
        begun = table.begin_merge_change(updated_columns)
        return replace(begun, began_ns=self.clock_ns(), gives_keys=True)

    def apply_match(
        self, session: ConnectorSession, table: KeyedHandle, columns: Sequence[str]
    ) -> KeyedHandle:
        """See `ConnectorMetadata`. A value that no row has in a key column is in no key."""
        if not set(columns) <= set(table.view.schema.primary_keys):
            return table
        return replace(table, inserts_new_keys=True, gives_keys=table.moves_rows)


class _Splits(ConnectorSplitManager):
    def get_splits(
        self, session: ConnectorSession, table: KeyedHandle
    ) -> Sequence[tuple[int, ReadTask]]:
        return list(enumerate(_reads(table)))

    def stored_bytes(self, splits: Sequence[tuple[int, ReadTask]]) -> int | None:
        return sum(read.stored_bytes for _, read in splits)


def _scan(table: KeyedHandle) -> Scan:
    """The rows that any reader sees."""
    view = table.base_state.view
    lifetime = Lifetime.of(view)
    shown = [] if lifetime is None else [lifetime.shown]
    predicate = conjunction([*conjuncts(table.predicate), *shown])
    return Scan(settled_state(table.base_state), view.schema.names, predicate)


def _outcomes(
    table: KeyedHandle, columns: tuple[str, ...], predicate: Predicate | None
) -> Iterator[pl.DataFrame]:
    view = table.view
    scan = replace(_scan(replace(table, predicate=predicate)), columns=columns)
    for task in scan.tasks():
        yield from task.outcomes(view.options.read_memory_bytes)
    if view.schema.is_indexed:
        # An index excludes deletes from what readers see, but late rows must be compared with them.
        dead = pl.lit(int(RowKind.DELETE), pl.Int8).alias(VALUE_KIND)
        for task in replace(scan, which=RowSelection.DELETES).tasks():
            for frame in task.outcomes(view.options.read_memory_bytes):
                yield frame.with_columns(dead)


def _reads(table: KeyedHandle) -> list[ReadTask]:
    """The rows of each bucket. A large bucket is read by ranges of keys."""
    return [part for task in _scan(table).tasks() for part in by_key_range(task, TASK_BYTES)]


def row_id_of(table: ChangedByKey, names: Sequence[str]) -> ColumnHandle:
    """The column of row ids that consist of some columns of the table."""
    schema = table.view.schema.arrow_schema()
    return ColumnHandle(ROW_ID, pa.struct([schema.field(name) for name in names]), nullable=False)
