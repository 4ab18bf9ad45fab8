"""The connector for relational databases through ADBC: SQLite and PostgreSQL.

A row id is the primary key of a row and a version, which shows whether the row has changed since it
was read: the id of the transaction that wrote it in PostgreSQL, and all values of the row in
SQLite. Sources and sinks change nothing. They only return the row ids and the new values.
`finish_...` makes all changes in one transaction, which checks the version of every row. If a row
has changed, nothing is changed, and a `ConflictError` says to run the statement again. So no update
is lost, although with `snapshot` isolation no transaction lasts from the read to the change. With
`serializable` one does, see `dml.databases`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, field, replace
from keytide.dml.database_changes import (
    Insertion,
    StagedRows,
    apply_changes,
    commit,
    id_names,
    value_names,
)
from keytide.dml.database_dialects import database_at
from keytide.dml.databases import (
    VERSION,
    Condition,
    Database,
    DatabaseTable,
    KeyTakenError,
    Transactions,
    condition_of,
    quoted,
)
from keytide.dml.engine import channel_columns, schema_of
from keytide.dml.fragments import Spool, Told, new_attempt, read_fragments, write_fragment
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
from keytide.errors import ConflictError, InvalidError, UnsupportedError
from keytide.predicate.predicate import Predicate

_SPOOL_BYTES = 64 << 20


def adbc_connector(name: str, place: str | Path) -> Connector:
    """The connector for the tables of a database.

    `place` is `postgresql://user@host/database`, `sqlite:///path` (with a fourth slash for an
    absolute path) or the path of an SQLite file. This connects once, and lists the tables. No error
    contains a password, or an address that is not understood. Raises `InvalidError` for other
    addresses, `NotFoundError` when the file does not exist, `SetupError` when the drivers are not
    installed (`pip install 'keytide[databases]'`), and `DataError` when the database does not
    answer or the file is not an SQLite database.
    """
    database = database_at(os.fspath(place))
    with database.session() as connection:
        database.tables(connection)  # connecting alone may not access the database
    transactions = Transactions(database)
    metadata, splits = _Metadata(database, transactions), _Splits(transactions)
    return Connector(name, metadata, splits, _Pages(database), _MergeSinks())


@dataclass(frozen=True)
class _Handle:
    """A table, the condition for reading it, and the change."""

    table: DatabaseTable
    condition: Condition = field(default_factory=Condition)
    terms: tuple[Predicate, ...] = ()
    changes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The columns that are set, by the number of the WHEN clause. An UPDATE has one entry."""
    row_id: pa.DataType | None = None
    """The type of row ids, once a change has begun."""
    snapshot: str | None = None
    """The snapshot to join for readers, if another connection holds the transaction."""

    def __str__(self) -> str:
        return str(self.table)


@dataclass(frozen=True)
class _Metadata(ConnectorMetadata):
    database: Database
    transactions: Transactions = field(repr=False)
    refused: deque[str] = field(default_factory=partial(deque, maxlen=1000), repr=False)
    """The MERGE statements that could not insert a row because its key existed."""

    # -- tables

    def list_tables(self, session: ConnectorSession) -> Sequence[str]:
        with self.database.session() as connection:
            return self.database.tables(connection)

    def get_table_handle(self, session: ConnectorSession, name: str) -> _Handle | None:
        held = self.transactions.transaction_of(session)
        with self.database.session() as connection:
            found = self.database.find(connection, name)
        return (
            None
            if found is None
            else _Handle(found, snapshot=None if held is None else held.snapshot)
        )

    def end_statement(self, session: ConnectorSession) -> None:
        self.transactions.end(session)

    def get_table_schema(self, session: ConnectorSession, table: _Handle) -> ConnectorTableSchema:
        # A row can be inserted without a value of a column that the database computes.
        columns = tuple(
            ColumnHandle(c.name, c.type, c.nullable or c.computed_default is not None, c.default)
            for c in table.table.columns
        )
        return ConnectorTableSchema(table.table.shown, columns, table.table.key)

    def apply_filter(
        self, session: ConnectorSession, table: _Handle, terms: Sequence[Predicate]
    ) -> tuple[_Handle, Sequence[Predicate]]:
        wanted = (*table.terms, *terms)
        condition, left = condition_of(self.database, table.table, wanted)
        taken = tuple(term for term in wanted if term not in left)
        return replace(table, condition=condition, terms=taken), left

    # -- INSERT

    def begin_insert(
        self, session: ConnectorSession, table: _Handle, columns: Sequence[str]
    ) -> Insertion:
        held = self.transactions.transaction_of(session)
        return Insertion(self.database, table.table, columns, held)

    # -- DELETE

    def get_delete_row_id_column_handle(
        self, session: ConnectorSession, table: _Handle
    ) -> ColumnHandle:
        # The primary key as the database returns it, which can differ from the displayed form.
        described = table.table
        if not described.key:
            raise UnsupportedError(
                f"{described} has no primary key, so its rows cannot be identified; add one"
            )
        members = [
            (name, self.database.read_type(described.column(name))) for name in described.key
        ]
        type_ = pa.struct([*members, (VERSION, pa.string())])
        return ColumnHandle(ROW_ID, type_, nullable=False)

    def begin_delete(self, session: ConnectorSession, table: _Handle) -> _Handle:
        return self.begin_merge(session, table, {0: ()})

    def finish_delete(
        self, session: ConnectorSession, table: _Handle, fragments: Sequence[Fragment]
    ) -> int:
        parts: dict[tuple[str, int], list[pa.Table]] = {}
        for contents in read_fragments(fragments):
            part = contents.facts["are"], contents.facts["case"]
            parts.setdefault(part, []).append(contents.rows)
        found = {part: pa.concat_tables(tables) for part, tables in parts.items()}

        # Clauses that set the same columns are changed together.
        updated: dict[tuple[str, ...], list[pa.Table]] = {}
        for (are, case), rows in found.items():
            if are == "changed":
                updated.setdefault(table.changes[case], []).append(rows)
        rows = StagedRows(
            found.get(("gone", 0)),
            [(columns, pa.concat_tables(tables)) for columns, tables in updated.items()],
            found.get(("added", 0)),
        )
        held = self.transactions.transaction_of(session)
        return apply_changes(self.database, table.table, rows, held) if found else 0

    def apply_delete(self, session: ConnectorSession, table: _Handle) -> _Handle | None:
        return table

    def execute_delete(self, session: ConnectorSession, table: _Handle) -> int:
        text, parameters = table.condition.text or "1 = 1", table.condition.parameters
        held = self.transactions.transaction_of(session)
        if held is None:
            with self.database.session(str(table)) as connection:
                return self.database.deleted(connection, table.table, text, parameters)
        with self.database.errors(str(table)), held.used() as connection:
            done = self.database.deleted(connection, table.table, text, parameters)
            commit(connection)
            return done

    # -- UPDATE

    def get_update_row_id_column_handle(
        self, session: ConnectorSession, table: _Handle, updated_columns: Sequence[str]
    ) -> ColumnHandle:
        return self.get_delete_row_id_column_handle(session, table)

    def begin_update(
        self, session: ConnectorSession, table: _Handle, updated_columns: Sequence[str]
    ) -> _Handle:
        return self.begin_merge(session, table, {0: updated_columns})

    finish_update = finish_delete

    # -- MERGE

    def get_row_change_paradigm(
        self, session: ConnectorSession, table: _Handle
    ) -> RowChangeParadigm:
        return RowChangeParadigm.CHANGE_ONLY_UPDATED_COLUMNS

    get_merge_row_id_column_handle = get_delete_row_id_column_handle

    def begin_merge(
        self,
        session: ConnectorSession,
        table: _Handle,
        updated_columns: Mapping[int, Sequence[str]],
    ) -> _Handle:
        changes = {number: tuple(names) for number, names in updated_columns.items()}
        row_id = self.get_delete_row_id_column_handle(session, table)
        return replace(table, changes=changes, row_id=row_id.type)

    def finish_merge(
        self, session: ConnectorSession, table: _Handle, fragments: Sequence[Fragment]
    ) -> int:
        try:
            return self.finish_delete(session, table, fragments)
        except KeyTakenError as error:
            # Another transaction may have inserted the row after this statement looked for it. Then
            # the next attempt finds it. If not, the statement itself is wrong.
            if session.query_id in self.refused:
                raise
            self.refused.append(session.query_id)
            raise ConflictError(
                f"{error}; if the row was inserted meanwhile, run the statement again"
            ) from error


@dataclass(frozen=True)
class _Splits(ConnectorSplitManager):
    transactions: Transactions

    def get_splits(self, session: ConnectorSession, table: _Handle) -> Sequence[int]:
        condition = table.condition
        self.transactions.touch(
            session, table.table, condition.text or "1 = 1", condition.parameters
        )
        return [0]  # several queries would see several states of the table


# -- page sources, and staged changes --------------------------------------------------------------


@dataclass(frozen=True)
class _Pages(ConnectorPageSourceProvider):
    database: Database

    def create_page_source(
        self, session: ConnectorSession, table: _Handle, split: int, columns: Sequence[ColumnHandle]
    ) -> UpdatablePageSource:
        return _Source(self.database, table, split, tuple(columns))


class _Source(UpdatablePageSource):
    """The rows of a table from one query, page by page, and their changes."""

    def __init__(
        self, database: Database, table: _Handle, split: int, columns: tuple[ColumnHandle, ...]
    ) -> None:
        self._database, self._table, self._columns = database, table, columns
        self._open = ExitStack()
        self._reader: Iterator[pa.RecordBatch] | None = None
        self._is_over = False
        self._staged = _StagedChanges(table, split)

    def get_next_page(self) -> pa.RecordBatch | None:
        if self._is_over:
            return None
        with self._database.errors(str(self._table)):
            if self._reader is None:
                self._reader = self._begin_query()
            for batch in self._reader:
                if batch.num_rows:
                    return self._page(batch)
        self._is_over = True
        self._open.close()
        return None

    def delete_rows(self, row_ids: pa.Array) -> None:
        self._staged.add("gone", 0, row_ids, [])

    def update_rows(
        self, page: pa.RecordBatch, column_value_and_row_id_channels: Sequence[int]
    ) -> None:
        *values, row_ids = channel_columns(
            self._table, self._table.changes[0], page, column_value_and_row_id_channels
        )
        self._staged.add("changed", 0, row_ids, values)

    def finish(self) -> Sequence[Fragment]:
        return self._staged.finish()

    def abort(self) -> None:
        self._staged.abort()

    def close(self) -> None:
        self._is_over = True
        self._open.close()
        self._staged.abort()

    def _begin_query(self) -> Iterator[pa.RecordBatch]:
        # The selected columns, with the key columns and the version instead of row ids.
        table, items = self._table.table, []
        for column in self._columns:
            names = table.key if column.name == ROW_ID else (column.name,)
            for name in names:
                described = table.column(name)
                text = self._database.read_expression(described, f"t.{quoted(name)}")
                items.append((text, described.type))
            if column.name == ROW_ID:
                items.append((self._database.version(table, "t"), pa.string()))

        session = self._open.enter_context(self._database.session(str(self._table)))
        condition = self._table.condition
        text = self._database.select(table, items or [("0", pa.int64())])
        if self._table.snapshot is not None:
            self._database.join_snapshot(session, self._table.snapshot)
        reader = session.read(
            f"{text} WHERE {condition.text}" if condition.text else text, condition.parameters
        )
        return self._database.rows_of(reader)

    def _page(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays, place = [], 0
        for column in self._columns:
            if column.name != ROW_ID:
                described = self._table.table.column(column.name)
                arrays.append(
                    self._database.values(self._table.table, described, batch.column(place))
                )
                place += 1
                continue
            members = [
                values.cast(member.type)
                for values, member in zip(batch.columns[place:], column.type, strict=False)
            ]
            arrays.append(pa.StructArray.from_arrays(members, fields=list(column.type)))
            place += len(members)
        schema = schema_of(self._columns)
        return pa.record_batch(arrays, schema=schema) if arrays else batch.select([])


class _StagedChanges(ConnectorMergeSink):
    """The result of a source or sink: row ids, values or both, staged until it finishes."""

    def __init__(self, table: _Handle, split: int) -> None:
        self._table, self._split, self._attempt = table, split, new_attempt()
        self._spools: dict[tuple[str, int], Spool] = {}
        self._is_over = False

    def add(
        self, are: str, case: int, row_ids: pa.Array | None, values: Sequence[pa.Array]
    ) -> None:
        self._refuse_after_end()
        names, arrays = value_names([""] * len(values)), list(values)
        if row_ids is not None:
            type_ = self._table.row_id
            ids = row_ids.cast(type_)
            members = ids.flatten()
            if ids.null_count or any(member.null_count for member in members):
                raise InvalidError(
                    f"{self._table}: a row id is NULL, or a primary key column is; return the row "
                    "ids of the pages, and give every row a key"
                )
            names, arrays = [*id_names(self._table.table), *names], [*list(members), *arrays]
        batch = pa.record_batch(arrays, names)
        if batch.num_rows:
            self._spools.setdefault((are, case), Spool(_SPOOL_BYTES)).add(batch)

    def store_merged_rows(self, page: pa.RecordBatch) -> None:
        width = page.num_columns - 3
        names = [column.name for column in self._table.table.columns]
        for operation in pc.unique(page.column(width)).to_pylist():
            rows = page.filter(pc.equal(page.column(width), operation))
            if operation == MergeOperation.DELETE:
                self.add("gone", 0, rows.column(width + 2), [])
            elif operation == MergeOperation.INSERT:
                self.add("added", 0, None, rows.columns[:width])
            elif operation == MergeOperation.UPDATE:
                for case in pc.unique(rows.column(width + 1)).to_pylist():
                    if case not in self._table.changes:
                        raise InvalidError(
                            f"{self._table}: begin_merge was called without a WHEN {case}"
                        )
                    some = rows.filter(pc.equal(rows.column(width + 1), case))
                    values = [some.column(names.index(name)) for name in self._table.changes[case]]
                    self.add("changed", case, some.column(width + 2), values)
            else:
                raise InvalidError(
                    f"{self._table}: operation {operation} of a MERGE is not INSERT, DELETE or "
                    "UPDATE"
                )

    def finish(self) -> list[Fragment]:
        self._refuse_after_end()
        self._is_over = True
        return [
            write_fragment(Told(self._split, self._attempt, {"are": are, "case": case}, rows))
            for (are, case), spool in self._spools.items()
            for rows in spool.tables()
        ]

    def abort(self) -> None:
        self._is_over = True
        for spool in self._spools.values():
            spool.close()
        self._spools.clear()

    def _refuse_after_end(self) -> None:
        if self._is_over:
            raise InvalidError(f"{self._table}: split {self._split} is already finished or aborted")


@dataclass(frozen=True)
class _MergeSinks(ConnectorMergeSinkProvider):
    def create_merge_sink(
        self, session: ConnectorSession, table: _Handle, number: int, count: int
    ) -> ConnectorMergeSink:
        return _StagedChanges(table, number)
