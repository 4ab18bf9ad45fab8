"""Tables in the memory of this process: an example connector, also used by tests.

A table is a list of pages. Pages are never changed, only replaced, and each one has a unique
number. A row id is the position of a row in its page, which follows from the split. A DELETE
returns the positions of removed rows. An UPDATE returns positions and the new values of the columns
that it sets. `finish_...` replaces old pages by new ones atomically, and raises `ConflictError` if
another statement replaced one of them meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, field, replace
from keytide.dml.engine import channel_columns
from keytide.dml.fragments import Told, new_attempt, read_fragments, write_fragment
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    Connector,
    ConnectorInsertSink,
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
from keytide.errors import AlreadyExistsError, ConflictError, InvalidError

__all__ = ["MemoryConnector"]

_PLACE = pa.int64()
_ROW = pa.struct([("page", pa.int64()), ("place", pa.int64())])
"""Row ids of a MERGE, whose sinks receive rows of any page."""


@dataclass(frozen=True)
class _Handle:
    """The state of a table when a statement begins: its pages by number."""

    name: str
    pages: Mapping[int, pa.RecordBatch]
    updated: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"table {self.name}"


@dataclass
class _Table:
    schema: ConnectorTableSchema
    pages: dict[int, pa.RecordBatch] = field(default_factory=dict)


class MemoryConnector:
    """Tables in memory. Pass `connector` to an engine. The other methods fill tables.

    Thread-safe. The data exists as long as this object.
    """

    def __init__(self, name: str = "memory") -> None:
        self._tables: dict[str, _Table] = {}
        self._numbers = itertools.count()
        self._lock = Lock()
        metadata, pages = _Metadata(self), _Pages()
        self.connector = Connector(name, metadata, _Splits(), pages, _MergeSinks())

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        primary_key: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Create an empty table. `defaults` are values for columns that an INSERT omits.

        Raises `AlreadyExistsError`.
        """
        given = {n: pa.scalar(v, schema.field(n).type) for n, v in (defaults or {}).items()}
        columns = tuple(ColumnHandle(f.name, f.type, f.nullable, given.get(f.name)) for f in schema)
        with self._lock:
            if name.lower() in self._tables:
                raise AlreadyExistsError(f"table {name} already exists; choose another name")
            described = ConnectorTableSchema(name, columns, tuple(primary_key))
            self._tables[name.lower()] = _Table(described)

    def insert(self, name: str, rows: pa.Table) -> None:
        """Add rows. Each chunk becomes a page."""
        with self._lock:
            table = self._tables[name.lower()]
            for page in rows.select(list(table.schema.names)).to_batches():
                table.pages[next(self._numbers)] = page

    def rows(self, name: str) -> pa.Table:
        """All rows of a table."""
        table = self._tables[name.lower()]
        return pa.Table.from_batches(list(table.pages.values()), _schema(table.schema))

    def names(self) -> list[str]:
        """The tables' names."""
        return sorted(table.schema.name for table in self._tables.values())

    def find(self, name: str) -> _Table | None:
        """The table with a name, case-insensitively."""
        return self._tables.get(name.lower())

    def replace_pages(
        self,
        session: ConnectorSession,
        handle: _Handle,
        changes: Mapping[int, Callable[[pa.RecordBatch], pa.RecordBatch]],
        inserted: Sequence[pa.RecordBatch] = (),
    ) -> None:
        """Replace pages of a handle by changed pages, and add some, atomically.

        Raises `ConflictError` if one of them is gone, or if a serializable statement has read what
        others changed.
        """
        made = {number: change(handle.pages[number]) for number, change in changes.items()}
        with self._lock:
            table = self._tables[handle.name.lower()]
            is_moved = session.isolation == "serializable" and table.pages.keys() != (
                handle.pages.keys()
            )
            if is_moved or not made.keys() <= table.pages.keys():
                raise ConflictError(
                    f"{handle}: another statement changed rows that this one has read; nothing "
                    "was changed: run it again"
                )
            for number, page in made.items():
                del table.pages[number]
                if page.num_rows:
                    table.pages[next(self._numbers)] = page
            for page in inserted:
                whole = pa.record_batch(page.columns, schema=_schema(table.schema))
                table.pages[next(self._numbers)] = whole


@dataclass(frozen=True)
class _Metadata(ConnectorMetadata):
    tables: MemoryConnector

    def list_tables(self, session: ConnectorSession) -> Sequence[str]:
        return self.tables.names()

    def get_table_handle(self, session: ConnectorSession, name: str) -> _Handle | None:
        found = self.tables.find(name)
        return None if found is None else _Handle(found.schema.name, dict(found.pages))

    def get_table_schema(self, session: ConnectorSession, table: _Handle) -> ConnectorTableSchema:
        found = self.tables.find(table.name)
        assert found is not None
        return found.schema

    # -- INSERT

    def begin_insert(
        self, session: ConnectorSession, table: _Handle, columns: Sequence[str]
    ) -> _InsertSink:
        return _InsertSink(self, session, table, tuple(columns))

    # -- DELETE

    def get_delete_row_id_column_handle(
        self, session: ConnectorSession, table: _Handle
    ) -> ColumnHandle:
        return ColumnHandle(ROW_ID, _PLACE, nullable=False)

    def begin_delete(self, session: ConnectorSession, table: _Handle) -> _Handle:
        return table

    def finish_delete(
        self, session: ConnectorSession, table: _Handle, fragments: Sequence[Fragment]
    ) -> int:
        contents = read_fragments(fragments)
        gone = {each.facts["page"]: each.rows.column("place").to_numpy() for each in contents}
        self.tables.replace_pages(
            session, table, {page: _without(places) for page, places in gone.items() if len(places)}
        )
        return sum(map(len, gone.values()))

    def apply_delete(self, session: ConnectorSession, table: _Handle) -> _Handle:
        return table  # without remaining terms, every row is affected

    def execute_delete(self, session: ConnectorSession, table: _Handle) -> int:
        everything = {
            page: _without(np.arange(rows.num_rows)) for page, rows in table.pages.items()
        }
        self.tables.replace_pages(session, table, everything)
        return sum(page.num_rows for page in table.pages.values())

    # -- UPDATE

    def get_update_row_id_column_handle(
        self, session: ConnectorSession, table: _Handle, updated_columns: Sequence[str]
    ) -> ColumnHandle:
        return ColumnHandle(ROW_ID, _PLACE, nullable=False)

    def begin_update(
        self, session: ConnectorSession, table: _Handle, updated_columns: Sequence[str]
    ) -> _Handle:
        return replace(table, updated=tuple(updated_columns))

    def finish_update(
        self, session: ConnectorSession, table: _Handle, fragments: Sequence[Fragment]
    ) -> int:
        contents = [each for each in read_fragments(fragments) if each.rows.num_rows]
        changes = {each.facts["page"]: _changed(each.rows) for each in contents}
        self.tables.replace_pages(session, table, changes)
        return sum(each.rows.num_rows for each in contents)

    # -- MERGE

    def get_row_change_paradigm(
        self, session: ConnectorSession, table: _Handle
    ) -> RowChangeParadigm:
        return RowChangeParadigm.DELETE_ROW_AND_INSERT_ROW

    def get_merge_row_id_column_handle(
        self, session: ConnectorSession, table: _Handle
    ) -> ColumnHandle:
        return ColumnHandle(ROW_ID, _ROW, nullable=False)

    def begin_merge(
        self,
        session: ConnectorSession,
        table: _Handle,
        updated_columns: Mapping[int, Sequence[str]],
    ) -> _Handle:
        return table

    def finish_merge(
        self, session: ConnectorSession, table: _Handle, fragments: Sequence[Fragment]
    ) -> int:
        contents = read_fragments(fragments)
        gone = pa.concat_tables(
            [t.rows for t in contents if t.facts["are"] == "gone"] or [_no_ids()]
        )
        added = [
            batch for t in contents if t.facts["are"] == "added" for batch in t.rows.to_batches()
        ]
        pages, places = gone.column("page").to_numpy(), gone.column("place").to_numpy()
        changes = {int(page): _without(places[pages == page]) for page in np.unique(pages)}
        self.tables.replace_pages(session, table, changes, added)
        return sum(int(t.facts["rows"]) for t in contents)


class _InsertSink(ConnectorInsertSink):
    def __init__(
        self, metadata: _Metadata, session: ConnectorSession, table: _Handle,
        columns: tuple[str, ...],
    ) -> None:  # fmt: skip
        self._metadata, self._session, self._table = metadata, session, table
        self._columns = columns
        self._pages: list[pa.RecordBatch] = []

    def store_rows(self, page: pa.RecordBatch) -> None:
        schema = self._metadata.get_table_schema(self._session, self._table)
        given = dict(zip(self._columns, page.columns, strict=True))
        values = [self._values(column, given, page.num_rows) for column in schema.columns]
        if page.num_rows:
            self._pages.append(pa.record_batch(values, list(schema.names)))

    def finish(self) -> int:
        pages, self._pages = self._pages, []
        # An insert does not depend on anything that was read from the table.
        session = replace(self._session, isolation="snapshot")
        self._metadata.tables.replace_pages(session, self._table, {}, pages)
        return sum(page.num_rows for page in pages)

    def abort(self) -> None:
        self._pages = []

    def _values(self, column: ColumnHandle, given: Mapping[str, pa.Array], count: int) -> pa.Array:
        if column.name in given:
            return given[column.name]
        if column.default is None and not column.nullable:
            raise InvalidError(
                f"{self._table}: column {column.name!r} is NOT NULL and has no default; set it"
            )
        if column.default is None:
            return pa.nulls(count, column.type)
        return pa.repeat(column.default, count)


class _Splits(ConnectorSplitManager):
    def get_splits(self, session: ConnectorSession, table: _Handle) -> Sequence[int]:
        return sorted(table.pages)


@dataclass(frozen=True)
class _Pages(ConnectorPageSourceProvider):
    def create_page_source(
        self,
        session: ConnectorSession,
        table: _Handle,
        split: int,
        columns: Sequence[ColumnHandle],
    ) -> UpdatablePageSource:
        return _Source(table, split, tuple(columns))


class _Source(UpdatablePageSource):
    """One page of a table, and the changes of its rows."""

    def __init__(self, table: _Handle, split: int, columns: tuple[ColumnHandle, ...]) -> None:
        self._table, self._split, self._columns = table, split, columns
        self._page: pa.RecordBatch | None = table.pages[split]
        self._attempt = new_attempt()
        self._changes: list[pa.RecordBatch] = []
        self._is_over = False

    def get_next_page(self) -> pa.RecordBatch | None:
        page, self._page = self._page, None
        return None if page is None else _shown(page, self._split, self._columns)

    def delete_rows(self, row_ids: pa.Array) -> None:
        self._take(pa.record_batch([row_ids.cast(_PLACE)], ["place"]))

    def update_rows(
        self, page: pa.RecordBatch, column_value_and_row_id_channels: Sequence[int]
    ) -> None:
        updated = self._table.updated
        given = channel_columns(self._table, updated, page, column_value_and_row_id_channels)
        self._take(pa.record_batch(given, [*updated, "place"]))

    def finish(self) -> Sequence[Fragment]:
        self._end()
        rows = pa.Table.from_batches(self._changes) if self._changes else _NO_PLACES
        places = rows.column("place").to_numpy()
        if len(np.unique(places)) != len(places):
            raise InvalidError(f"{self._table}: a row is changed twice in one statement")
        facts = {"page": self._split}
        return [write_fragment(Told(self._split, self._attempt, facts, rows))]

    def abort(self) -> None:
        self._is_over = True
        self._changes.clear()

    def close(self) -> None:
        self._page = None

    def _take(self, change: pa.RecordBatch) -> None:
        self._refuse_after_end()
        if change.column("place").null_count:
            raise InvalidError(f"{self._table}: a row id is NULL; return the row ids of the pages")
        self._changes.append(change)

    def _end(self) -> None:
        self._refuse_after_end()
        self._is_over = True

    def _refuse_after_end(self) -> None:
        if self._is_over:
            raise InvalidError(f"{self._table}: split {self._split} is already finished or aborted")


@dataclass(frozen=True)
class _MergeSinks(ConnectorMergeSinkProvider):
    def create_merge_sink(
        self, session: ConnectorSession, table: _Handle, number: int, count: int
    ) -> ConnectorMergeSink:
        return _MergeSink(number)


class _MergeSink(ConnectorMergeSink):
    """Removed and added rows. An update is one of each."""

    def __init__(self, number: int) -> None:
        self._number, self._attempt = number, new_attempt()
        self._gone: list[pa.Table] = []
        self._added: list[pa.RecordBatch] = []
        self._rows = 0

    def store_merged_rows(self, page: pa.RecordBatch) -> None:
        width = page.num_columns - 3
        operation, row_id = page.column(width), page.column(width + 2)
        leaving = [MergeOperation.DELETE, MergeOperation.UPDATE_DELETE]
        is_gone = pc.is_in(operation, pa.array(leaving, pa.int8()))
        gone = row_id.filter(is_gone)
        self._gone.append(pa.table({name: gone.field(name) for name in ("page", "place")}))
        added = page.filter(pc.invert(is_gone)).select(range(width))
        self._added += [added] if added.num_rows else []
        # The two halves of an update count as one row.
        self._rows += (
            page.num_rows
            - pc.sum(
                pc.equal(operation, MergeOperation.UPDATE_INSERT.value).cast(pa.int64())
            ).as_py()
            if page.num_rows
            else 0
        )

    def finish(self) -> Sequence[Fragment]:
        gone = pa.concat_tables(self._gone or [_no_ids()])
        facts = {"are": "gone", "rows": self._rows}
        contents = [Told(self._number, self._attempt, facts, gone)]
        if self._added:
            rows = pa.Table.from_batches(self._added)
            contents.append(Told(self._number, self._attempt, {"are": "added", "rows": 0}, rows))
        return list(map(write_fragment, contents))

    def abort(self) -> None:
        self._gone.clear()
        self._added.clear()


# -- pages -----------------------------------------------------------------------------------------

_NO_PLACES = pa.table({"place": pa.array([], _PLACE)})


def _schema(table: ConnectorTableSchema) -> pa.Schema:
    return pa.schema([pa.field(c.name, c.type, c.nullable) for c in table.columns])


def _no_ids() -> pa.Table:
    return pa.table({"page": pa.array([], pa.int64()), "place": pa.array([], pa.int64())})


def _shown(page: pa.RecordBatch, number: int, columns: Sequence[ColumnHandle]) -> pa.RecordBatch:
    """The requested columns. Row ids are built from the positions."""
    made: list[Any] = []
    for column in columns:
        if column.name != ROW_ID:
            made.append(page.column(column.name))
            continue
        places = pa.array(np.arange(page.num_rows), _PLACE)
        if column.type != _PLACE:
            pages = pa.array(np.full(page.num_rows, number), pa.int64())
            places = pa.StructArray.from_arrays([pages, places], fields=list(_ROW))
        made.append(places)
    schema = pa.schema([pa.field(c.name, c.type, c.nullable) for c in columns])
    return pa.record_batch(made, schema=schema)


def _without(places: np.ndarray[Any, Any]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A change of a page that removes rows."""

    def change(page: pa.RecordBatch) -> pa.RecordBatch:
        stays = np.ones(page.num_rows, bool)
        stays[places] = False
        return page.filter(pa.array(stays))

    return change


def _changed(rows: pa.Table) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A change of a page that sets new values in some rows."""

    def change(page: pa.RecordBatch) -> pa.RecordBatch:
        source = np.full(page.num_rows, -1)
        source[rows.column("place").to_numpy()] = np.arange(rows.num_rows)
        is_changed, taken = pa.array(source >= 0), pa.array(np.maximum(source, 0))
        columns = []
        for field_ in page.schema:
            column = page.column(field_.name)
            if field_.name in rows.column_names:
                values = rows.column(field_.name).combine_chunks().cast(field_.type).take(taken)
                column = pc.if_else(is_changed, values, column)
            columns.append(column)
        return pa.record_batch(columns, schema=page.schema)

    return change
