"""Tables with a primary key: a DELETE appends tombstones, an UPDATE appends new images.

A row id is a row's primary key, with what else a version of it needs: the sequence fields, which a
new version copies so that it wins as the later one (rule R21 of docs/semantics.md), and for an
UPDATE the columns that it does not set. Sources write files of level 0 like any writer; a fragment
names them, and `finish_...` commits them together. The commit conflicts where another one came to
a bucket that the statement changed or, when it is serializable, to any bucket.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.dml.fragments import Told, new_attempt, read_fragments, write_fragment
from keytide.dml.pages import pages_of
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
from keytide.dml.values import among, among_keys
from keytide.errors import ConnectorError, InvalidError, KeytideError, UnsupportedError
from keytide.options import keys
from keytide.row_kind import ROW_KIND, RowKind
from keytide.table.catalog import Catalog
from keytide.table.commit.transaction import Transaction, discard
from keytide.table.conditions.predicate import Predicate, conjunction, conjuncts
from keytide.table.conditions.where import parse_where
from keytide.table.definition.defaults import write_default
from keytide.table.read.lifetime import Lifetime
from keytide.table.read.scan import Scan
from keytide.table.read.task import ReadTask
from keytide.table.state.state import TableState
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView
from keytide.table.upkeep.writing import keep_up, show_rows
from keytide.table.write.task import WriteTask, Written
from keytide.table.write.writable import writable_view
from keytide.types import arrow_schema

__all__ = ["KeyedMetadata", "keyed_connector"]


def keyed_connector(catalog: Catalog) -> Connector:
    """The tables of a catalog that have a primary key."""
    return Connector("keytide", KeyedMetadata(catalog), _Splits(), _Pages(), _MergeSinks())


@dataclass(frozen=True)
class KeyedHandle:
    """A table at one snapshot, and what a statement does to it.

    `state` is what the commit goes by, `settling` how far it is; they stay on the driver: on its
    way to a worker a handle leaves them behind. `task` writes; `updated` are the columns that an
    UPDATE sets. With `gives_keys` a row may come under the key of one that goes; rows that a MERGE
    inserts have keys that no row has with `inserts_new_keys`.
    """

    table: StoredTable
    state: TableState | None
    predicate: Predicate | None = None
    task: WriteTask | None = None
    updated: tuple[str, ...] = ()
    splits: int = 0
    settling: Settling | None = None
    gives_keys: bool = False
    inserts_new_keys: bool = False

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
    def moves_rows(self) -> bool:
        """Whether rows get other keys."""
        return bool(set(self.updated) & set(self.view.schema.primary_keys))


# -- on the driver ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyedMetadata(ConnectorMetadata):
    """What is said and decided of tables with a primary key."""

    catalog: Catalog

    def list_tables(self, session: ConnectorSession) -> Sequence[str]:
        """See `ConnectorMetadata`."""
        names = self.catalog.tables()
        return [n for n in names if self.catalog.table(n).schema.primary_keys]

    def get_table_handle(self, session: ConnectorSession, name: str) -> KeyedHandle | None:
        """See `ConnectorMetadata`. Raises `UnsupportedError` for one that cannot be written to."""
        found = self.catalog.find(name)
        return None if found is None else self.handle_of(self.catalog.table(found))

    def handle_of(self, table: StoredTable) -> KeyedHandle:
        """The newest state of a table."""
        view = writable_view(table)
        show_rows(table, view)
        return KeyedHandle(table, table.state_to_write(view))

    def get_table_schema(
        self, session: ConnectorSession, table: KeyedHandle
    ) -> ConnectorTableSchema:
        """See `ConnectorMetadata`."""
        schema = table.view.schema
        defaults = {f.name: write_default(f) for f in schema.fields if f.default_value is not None}
        columns = tuple(
            ColumnHandle(f.name, f.type, f.nullable, defaults.get(f.name))
            for f in schema.arrow_schema()
        )
        return ConnectorTableSchema(table.table.name, columns, tuple(schema.primary_keys))

    def apply_filter(
        self, session: ConnectorSession, table: KeyedHandle, terms: Sequence[str]
    ) -> tuple[KeyedHandle, Sequence[str]]:
        """See `ConnectorMetadata`. Terms are what the conditions of a scan may be."""
        parsed = {term: _parsed(term, table) for term in terms}
        understood = [predicate for predicate in parsed.values() if predicate is not None]
        predicate = conjunction([*conjuncts(table.predicate), *understood])
        left = [term for term, predicate in parsed.items() if predicate is None]
        return replace(table, predicate=predicate), left

    # -- DELETE

    def get_delete_row_id_column_handle(
        self, session: ConnectorSession, table: KeyedHandle
    ) -> ColumnHandle:
        """See `ConnectorMetadata`."""
        check_deletable(table)
        return _row_id(table, _version_columns(table.view))

    def begin_delete(self, session: ConnectorSession, table: KeyedHandle) -> KeyedHandle:
        """See `ConnectorMetadata`."""
        return _begun(table)

    def finish_delete(
        self, session: ConnectorSession, table: KeyedHandle, fragments: Sequence[Fragment]
    ) -> int:
        """See `ConnectorMetadata`. One commit; none where no row was deleted."""
        return _committed(session, table, read_fragments(fragments))

    def abort_delete(
        self, session: ConnectorSession, table: KeyedHandle, fragments: Sequence[Fragment]
    ) -> None:
        """See `ConnectorMetadata`."""
        _discard(table, fragments)

    # -- UPDATE

    def get_update_row_id_column_handle(
        self, session: ConnectorSession, table: KeyedHandle, updated_columns: Sequence[str]
    ) -> ColumnHandle:
        """See `ConnectorMetadata`. The id carries the columns that the UPDATE does not set."""
        check_updatable(table)
        moving = replace(table, updated=tuple(updated_columns))
        if moving.moves_rows:
            check_deletable(table)  # a row that moves is deleted under its old key
        needed = {*_version_columns(table.view), *table.view.schema.names} - set(updated_columns)
        needed |= {*table.view.schema.primary_keys, *table.view.options.sequence_field}
        return _row_id(table, [n for n in table.view.schema.names if n in needed])

    def begin_update(
        self, session: ConnectorSession, table: KeyedHandle, updated_columns: Sequence[str]
    ) -> KeyedHandle:
        """See `ConnectorMetadata`."""
        return replace(_begun(table), updated=tuple(updated_columns))

    def finish_update(
        self, session: ConnectorSession, table: KeyedHandle, fragments: Sequence[Fragment]
    ) -> int:
        """See `ConnectorMetadata`. Raises `InvalidError` where two rows would have one key."""
        told = read_fragments(fragments)
        if table.moves_rows:
            _refuse_taken_keys(table, told)
        return _committed(session, table, told)

    def abort_update(
        self, session: ConnectorSession, table: KeyedHandle, fragments: Sequence[Fragment]
    ) -> None:
        """See `ConnectorMetadata`."""
        _discard(table, fragments)

    # -- MERGE

    def get_row_change_paradigm(
        self, session: ConnectorSession, table: KeyedHandle
    ) -> RowChangeParadigm:
        """See `ConnectorMetadata`. An update writes a row once, unless its key changes."""
        return RowChangeParadigm.CHANGE_ONLY_UPDATED_COLUMNS

    def get_merge_row_id_column_handle(
        self, session: ConnectorSession, table: KeyedHandle
    ) -> ColumnHandle:
        """See `ConnectorMetadata`."""
        return _row_id(table, _version_columns(table.view))

    def begin_merge(
        self,
        session: ConnectorSession,
        table: KeyedHandle,
        updated_columns: Mapping[int, Sequence[str]],
    ) -> KeyedHandle:
        """See `ConnectorMetadata`."""
        updated = {name for names in updated_columns.values() for name in names}
        if updated:
            check_updatable(table)
        return replace(_begun(table), updated=tuple(sorted(updated)), gives_keys=True)

    def apply_match(
        self, session: ConnectorSession, table: KeyedHandle, columns: Sequence[str]
    ) -> KeyedHandle:
        """See `ConnectorMetadata`. What no row has in a part of its key is in no key."""
        if not set(columns) <= set(table.view.schema.primary_keys):
            return table
        return replace(table, inserts_new_keys=True, gives_keys=table.moves_rows)

    def apply_values(
        self, session: ConnectorSession, table: KeyedHandle, values: Mapping[str, pa.Array]
    ) -> KeyedHandle:
        """See `ConnectorMetadata`."""
        wanted = conjunction([*conjuncts(table.predicate), *conjuncts(among(values, table.view))])
        return replace(table, predicate=wanted)

    def finish_merge(
        self, session: ConnectorSession, table: KeyedHandle, fragments: Sequence[Fragment]
    ) -> int:
        """See `ConnectorMetadata`. Raises `InvalidError` where two rows would have one key."""
        told = read_fragments(fragments)
        _refuse_taken_keys(table, told)
        return _committed(session, table, told)

    def abort_merge(
        self, session: ConnectorSession, table: KeyedHandle, fragments: Sequence[Fragment]
    ) -> None:
        """See `ConnectorMetadata`."""
        _discard(table, fragments)


class _Splits(ConnectorSplitManager):
    def get_splits(
        self, session: ConnectorSession, table: KeyedHandle
    ) -> Sequence[tuple[int, ReadTask]]:
        return list(enumerate(_scan(table).tasks()))


def check_deletable(table: KeyedHandle) -> None:
    """Raise `UnsupportedError` for a table that takes no deletes, or would drop them."""
    view = table.view
    if view.options.ignore_delete:
        raise UnsupportedError(
            f"{table}: its option '{keys.IGNORE_DELETE}' drops deletes, so no row can be deleted; "
            f"overwrite what is to stay"
        )
    way_out = view.engine.refuses_delete
    if way_out is not None:
        raise UnsupportedError(
            f"{table}: merge engine {view.options.merge_engine} can not support Delete of single "
            f"rows; {way_out}, or overwrite what is to stay"
        )


def check_updatable(table: KeyedHandle) -> None:
    """Raise `UnsupportedError` for a table that would not store new values as they are."""
    view = table.view
    reason = view.engine.refuses_update
    if reason is not None:
        raise UnsupportedError(
            f"{table}: merge engine {view.options.merge_engine} can not support Update; {reason}"
        )


def _parsed(term: str, table: KeyedHandle) -> Predicate | None:
    try:
        return parse_where(term, table.view.schema.fields, table.table.name)
    except KeytideError:
        return None  # the engine's own


def _scan(table: KeyedHandle) -> Scan:
    """The rows that are shown, as any reader sees them."""
    assert table.state is not None
    lifetime = Lifetime.of(table.state.view)
    shown = [] if lifetime is None else [lifetime.shown]
    predicate = conjunction([*conjuncts(table.predicate), *shown])
    return Scan(table.state, table.state.view.schema.names, predicate)


def _begun(table: KeyedHandle) -> KeyedHandle:
    assert table.state is not None
    task = replace(WriteTask.on(table.state), stored=None)
    return replace(table, task=task, splits=len(_scan(table).tasks()), settling=Settling())


def _committed(session: ConnectorSession, table: KeyedHandle, told: Sequence[Told]) -> int:
    assert table.state is not None
    transaction = Transaction.on(table.table, table.state)
    for each in told:
        for written in _written(each):
            transaction.take(written)
    if table.settling is not None:
        table.settling.has_begun = True
    transaction.build_on(serializable=session.isolation == "serializable")
    keep_up(table.table, transaction)
    return sum(int(each.facts["rows"]) for each in told)


def _discard(table: KeyedHandle, fragments: Sequence[Fragment]) -> None:
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


def _refuse_taken_keys(table: KeyedHandle, told: Sequence[Told]) -> None:
    """Refuse rows that come under a key which another row has and keeps, or which come twice."""
    _refuse_two_of(table, _twice(_keys(told, ("came", "new"), table)))
    came = _keys(told, ("came",), table)
    if came.height:
        about = replace(table, predicate=among_keys(came, table.view))
        stored = replace(_scan(about), columns=tuple(came.columns))
        _refuse_two_of(table, _stored_among(stored, came, _keys(told, ("gone",), table)))


def _twice(keys: pl.DataFrame) -> pl.DataFrame:
    return keys.filter(keys.is_duplicated())


def _stored_among(scan: Scan, came: pl.DataFrame, gone: pl.DataFrame) -> pl.DataFrame:
    """Keys that come and are stored already, but for those that go."""
    join = partial(pl.DataFrame.join, on=came.columns, nulls_equal=True)
    for batch in scan.to_batches():
        found = join(came, pl.DataFrame(pl.from_arrow(batch)), how="semi")
        found = join(found, gone, how="anti")
        if found.height:
            return found
    return came.clear()


def _keys(told: Sequence[Told], which: Sequence[str], table: KeyedHandle) -> pl.DataFrame:
    found = [each.rows for each in told if each.facts.get("keys") in which]
    return _keys_in(table, found)


def _keys_in(table: KeyedHandle, found: Sequence[pa.Table]) -> pl.DataFrame:
    schema = table.view.schema
    none = arrow_schema(schema.select(schema.primary_keys)).empty_table()
    return pl.concat([pl.DataFrame(pl.from_arrow(rows)) for rows in (none, *found)])


def _refuse_two_of(table: KeyedHandle, keys: pl.DataFrame) -> None:
    if keys.height:
        raise InvalidError(
            f"{table}: two rows would have the primary key {keys.row(0, named=True)}; nothing "
            f"was changed. Change or delete the other row in the same statement, or use other keys"
        )


# -- row ids ---------------------------------------------------------------------------------------


def _version_columns(view: TableView) -> list[str]:
    """The columns that a tombstone has to have, besides its kind."""
    schema, options = view.schema, view.options
    if not view.engine.picks_a_version or options.changelog_producer != "none":
        return list(schema.names)  # what is taken back, and what a changelog tells, is a whole row
    needed = {*schema.primary_keys, *options.sequence_field, *(options.bucket_key or ())}
    needed |= set(schema.partition_keys)
    return [name for name in schema.names if name in needed]


def _row_id(table: KeyedHandle, names: Sequence[str]) -> ColumnHandle:
    schema = table.view.schema.arrow_schema()
    return ColumnHandle(ROW_ID, pa.struct([schema.field(name) for name in names]), nullable=False)


# -- on workers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pages(ConnectorPageSourceProvider):
    def create_page_source(
        self,
        session: ConnectorSession,
        table: KeyedHandle,
        split: tuple[int, ReadTask],
        columns: Sequence[ColumnHandle],
    ) -> UpdatablePageSource:
        return _Source(table, split, tuple(columns))


class _Source(UpdatablePageSource):
    """The rows of one bucket, and the versions to append for those that change."""

    def __init__(
        self,
        table: KeyedHandle,
        split: tuple[int, ReadTask],
        columns: tuple[ColumnHandle, ...],
    ) -> None:
        self._table, (self._number, self._read), self._columns = table, split, columns
        self._pages: Iterator[pa.RecordBatch] | None = None
        self._versions = _Versions(table, self._number, max(table.splits, 1))

    def get_next_page(self) -> pa.RecordBatch | None:
        self._pages = self._pages or self._all_pages()
        return next(self._pages, None)

    def delete_rows(self, row_ids: pa.Array) -> None:
        self._versions.delete(row_ids)

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
        self._versions.update(values, page.column(channels[-1]))

    def finish(self) -> Sequence[Fragment]:
        return self._versions.finish()

    def abort(self) -> None:
        self._versions.abort()

    def close(self) -> None:
        self._pages = None
        self._versions.close()

    def _all_pages(self) -> Iterator[pa.RecordBatch]:
        plain = [c.name for c in self._columns if c.name != ROW_ID]
        ids = [f.name for c in self._columns if c.name == ROW_ID for f in c.type]
        wanted = set(plain) | set(ids)
        names = tuple(n for n in self._table.view.schema.names if n in wanted)
        task = replace(self._read, columns=names or self._table.view.schema.names[:1])
        memory = self._table.view.options.read_memory_bytes
        for table in task.tables(memory):
            for batch in pages_of(table):
                yield self._page(batch)

    def _page(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made = [
            _struct(batch, column.type) if column.name == ROW_ID else batch.column(column.name)
            for column in self._columns
        ]
        schema = pa.schema([pa.field(c.name, c.type, c.nullable) for c in self._columns])
        return pa.record_batch(made, schema=schema)


@dataclass(frozen=True)
class _MergeSinks(ConnectorMergeSinkProvider):
    def create_merge_sink(
        self, session: ConnectorSession, table: KeyedHandle, number: int, count: int
    ) -> ConnectorMergeSink:
        return _MergeSink(table, number, count)


class _MergeSink(ConnectorMergeSink):
    """Versions to append for rows that come, change and go."""

    def __init__(self, table: KeyedHandle, number: int, count: int) -> None:
        self._table = table
        self._versions = _Versions(table, number, count)

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
        return self._versions.finish()

    def abort(self) -> None:
        self._versions.abort()

    def _delete(self, rows: pa.RecordBatch, width: int) -> None:
        self._versions.delete(rows.column(width + 2))

    def _update(self, rows: pa.RecordBatch, width: int) -> None:
        values = dict(zip(rows.schema.names[:width], rows.columns[:width], strict=True))
        self._versions.update(values, rows.column(width + 2))

    def _insert(self, rows: pa.RecordBatch, width: int) -> None:
        self._versions.insert(rows.select(range(width)))


class _Versions:
    """The versions that one split or sink appends, and the keys that move.

    Tombstones have lower numbers than all new images of the statement, whichever split they come
    from: a key that one row leaves another may take.
    """

    def __init__(self, table: KeyedHandle, number: int, count: int) -> None:
        memory = 1 if table.task is None else table.task.view.options.write_buffer_bytes
        self._table, self._number, self._count = table, number, count
        self._gone, self._made = Spool(memory), Spool(memory)
        self._keys = {which: Spool(memory) for which in ("gone", "came", "new")}
        self._attempt = new_attempt()
        self._rows = 0
        self._written: list[Written] = []
        self._is_over = False

    def delete(self, row_ids: pa.Array) -> None:
        """Append tombstones."""
        self._begin(row_ids)
        versions = _plain(row_ids)
        self._gone.add(self._of_kind(versions, RowKind.DELETE))
        if self._table.gives_keys:
            self._keys["gone"].add(self._keys_of(versions))
        self._rows += versions.num_rows

    def update(self, values: Mapping[str, pa.Array], row_ids: pa.Array) -> None:
        """Append new images, and tombstones for rows that leave their key."""
        self._begin(row_ids)
        old = _plain(row_ids)
        new = self._image(values, old)
        self._refuse_gaps(values)
        self._refuse_older(old, new)
        self._rows += new.num_rows
        self._made.add(self._of_kind(new, RowKind.UPDATE_AFTER))
        if not self._table.moves_rows:
            return
        moved = _differs(old, new, self._table.view.schema.primary_keys)
        left, came = old.filter(moved), new.filter(moved)
        if left.num_rows:
            self._gone.add(self._of_kind(left, RowKind.DELETE))
            self._keys["gone"].add(self._keys_of(left))
            self._keys["came"].add(self._keys_of(came))

    def insert(self, rows: pa.RecordBatch) -> None:
        """Append rows that were not there."""
        self._refuse_after_end()
        self._made.add(self._of_kind(rows, RowKind.INSERT))
        which = "new" if self._table.inserts_new_keys else "came"
        self._keys[which].add(self._keys_of(rows))
        self._rows += rows.num_rows

    def finish(self) -> Sequence[Fragment]:
        """Write the versions; the fragments name their files."""
        self._refuse_after_end()
        self._is_over = True
        if self._count == 1:
            # Nobody else has rows that come, and what no row has needs to be looked up nowhere.
            new = self._keys.pop("new")
            came = [*self._keys["came"].tables(), *new.tables()]
            new.close()
            _refuse_two_of(self._table, _twice(_keys_in(self._table, came)))
        for spool, part in ((self._gone, 0), (self._made, self._count)):
            if spool.rows:
                self._write(spool, part + self._number)
        rows = [pickle.dumps(written) for written in self._written]
        files = pa.table({"written": pa.array(rows, pa.binary())})
        told = partial(Told, self._number, self._attempt)
        fragments = [write_fragment(told({"rows": self._rows}, files))]
        for which, spool in self._keys.items():
            if spool.rows:
                keys_of = pa.concat_tables(spool.tables())
                fragments.append(write_fragment(told({"rows": 0, "keys": which}, keys_of)))
        return fragments

    def abort(self) -> None:
        """Delete what was written."""
        self._is_over = True
        written, self._written = self._written, []
        if written:
            discard(self._table.view, written)
        self.close()

    def close(self) -> None:
        """Let go of what waits."""
        for spool in (self._gone, self._made, *self._keys.values()):
            spool.close()

    def _write(self, spool: Spool, part: int) -> None:
        assert self._table.task is not None
        try:
            made = self._table.task.feed(spool.tables(), part)
        except BaseException:
            self.abort()
            raise
        if made is not None:
            self._written.append(made)

    def _image(self, values: Mapping[str, pa.Array], old: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._table.view.schema.arrow_schema()
        columns = [
            values[f.name].cast(f.type) if f.name in values else old.column(f.name) for f in schema
        ]
        return pa.record_batch(columns, list(schema.names))

    def _of_kind(self, rows: pa.RecordBatch, kind: RowKind) -> pa.RecordBatch:
        name = self._table.view.options.rowkind_field or ROW_KIND
        kinds = pa.repeat(pa.scalar(kind.short), rows.num_rows)
        named = dict(zip(rows.schema.names, rows.columns, strict=True)) | {name: kinds}
        return pa.record_batch(list(named.values()), list(named))

    def _keys_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(list(self._table.view.schema.primary_keys))

    def _refuse_gaps(self, values: Mapping[str, pa.Array]) -> None:
        """Refuse NULLs that a merge engine would take for 'no new value'."""
        if not self._table.view.engine.fills_gaps:
            return
        for name in self._table.updated:
            if name in values and values[name].null_count:
                raise InvalidError(
                    f"{self._table}: the UPDATE sets {name!r} to NULL, which its merge engine "
                    f"takes for 'no new value'; give a value, or delete the row and insert it "
                    f"without one"
                )

    def _refuse_older(self, old: pa.RecordBatch, new: pa.RecordBatch) -> None:
        """Refuse new images that would lose against the rows that they are made of."""
        order = self._table.view.options.sequence_field
        if not set(order) & set(self._table.updated):
            return
        descends = self._table.view.options.sequence_sort_order == "descending"
        is_older = _is_older(new, old, order, descends=descends)
        if is_older.any():
            place = is_older.arg_max()
            assert place is not None
            found = {name: new.column(name)[place].as_py() for name in order}
            stored = {name: old.column(name)[place].as_py() for name in order}
            raise InvalidError(
                f"{self._table}: the UPDATE sets {found}, which is older than what is stored, "
                f"{stored}, so it would not be seen; set a value that is not lower"
            )

    def _begin(self, row_ids: pa.Array) -> None:
        self._refuse_after_end()
        if row_ids.null_count:
            raise InvalidError(f"{self._table}: a row id is NULL; hand back those that pages gave")

    def _refuse_after_end(self) -> None:
        if self._is_over:
            raise InvalidError(
                f"{self._table}: split {self._number} was finished or aborted before"
            )


def _struct(batch: pa.RecordBatch, type_: pa.StructType) -> pa.Array:
    return pa.StructArray.from_arrays([batch.column(f.name) for f in type_], fields=list(type_))


def _plain(row_ids: pa.Array) -> pa.RecordBatch:
    """Row ids as the columns that they are made of."""
    return pa.record_batch(row_ids.flatten(), [f.name for f in row_ids.type])


def _differs(old: pa.RecordBatch, new: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """Which rows have other values in some of these columns."""
    before, after = (pl.DataFrame(pl.from_arrow(batch.select(names))) for batch in (old, new))
    same = [before[name].eq_missing(after[name]) for name in names]
    return (~pl.DataFrame(same).select(pl.all_horizontal(pl.all())).to_series()).to_arrow()


def _is_older(
    new: pa.RecordBatch, old: pa.RecordBatch, order: Sequence[str], *, descends: bool
) -> pl.Series:
    """Which rows come before others in an order of several columns, in which NULL is lowest."""
    is_older, is_decided = pl.repeat(False, new.num_rows, eager=True), None
    for name in order:
        one, other = pl.Series(new.column(name)), pl.Series(old.column(name))
        higher, lower = (other, one) if descends else (one, other)
        before = (higher < lower).fill_null(False) | (one.is_null() & other.is_not_null())
        after = (lower < higher).fill_null(False) | (other.is_null() & one.is_not_null())
        open_ = ~is_decided if is_decided is not None else pl.repeat(True, len(one), eager=True)
        is_older |= before & open_
        is_decided = before | after if is_decided is None else is_decided | before | after
    return is_older
