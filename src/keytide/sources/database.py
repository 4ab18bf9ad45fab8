"""SQLite and PostgreSQL tables as sources, through ADBC.

A database does not store the order of its rows, so there is one part without an order. A query
returns one consistent state of the table, as of its first row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.dml.database_dialects import database_at
from keytide.dml.databases import Database, DatabaseTable, condition_of, quoted
from keytide.errors import InvalidError, NotFoundError, UnsupportedError
from keytide.predicate.predicate import Predicate, conjunction, conjuncts
from keytide.sources.parquet import column_type, matching_rows
from keytide.sources.source import Place

OPTIONS = ("table",)
"""The options of a definition: the table name."""


def open_source(place: Place) -> DatabaseSource:
    """A database table, without connecting yet.

    `location` is an address without a password, see `database_at`. The option `table` names the
    table. The PostgreSQL password comes from PGPASSWORD or a password file, as for the server's own
    clients. Raises `InvalidError` if the table is missing or the address contains a password, and
    as `database_at`.
    """
    table = place.options.get("table")
    if not table:
        raise InvalidError("a database table requires the option 'table' with its name")
    if re.search(r"//[^/]*:[^/]*@|[?&](ssl)?passw", place.location):
        raise InvalidError(
            "the database URI contains a password, which would be stored with the definition: "
            "set PGPASSWORD instead, or use a password file"
        )
    return DatabaseSource(database_at(place.location), table)


@dataclass(frozen=True)
class DatabaseSource:
    """A database table. See `Source`."""

    database: Database
    table: str

    @property
    def location(self) -> str:
        """The table, and the database without user and password."""
        return f"table {self.table} in {self.database.label}"

    def pin(self, version: str | int | None = None) -> PinnedDatabase:
        """See `Source`. A database has no versions."""
        if version is not None:
            raise UnsupportedError(
                f"{self.location} has no versions, found {version!r}: read it without a version"
            )
        with self.database.session(self.location) as session:
            found = self.database.find(session, self.table)
        if found is None:
            raise NotFoundError(f"{self.location} does not exist")
        for column in found.columns:
            column_type(column.name, column.type, str(found))
        return PinnedDatabase(self.database, found)


@dataclass(frozen=True)
class PinnedDatabase:
    """The columns of a table. The rows are those that exist when they are read."""

    database: Database
    table: DatabaseTable

    @property
    def schema(self) -> pa.Schema:
        """See `PinnedSource`."""
        return pa.schema([pa.field(column.name, column.type) for column in self.table.columns])

    version = None
    tells_order = False
    cut_by = ()

    @property
    def properties(self) -> Mapping[str, str]:
        """See `AppendableSource`. Always empty."""
        return {}

    @property
    def required(self) -> frozenset[str]:
        """See `AppendableSource`."""
        return frozenset(
            column.name
            for column in self.table.columns
            if not column.nullable and column.computed_default is None
        )

    def parts(self, key_condition: Predicate | None = None) -> list[DatabasePart]:
        """See `PinnedSource`.

        One part, because several queries would see several states of the table.
        """
        return [DatabasePart(self.database, self.table)]


@dataclass(frozen=True)
class DatabasePart:
    """All rows of a table in one query. See `SourcePart`."""

    database: Database
    table: DatabaseTable

    rows = None
    stored_bytes = None
    commit = 0
    is_in_order = False

    def __str__(self) -> str:
        return str(self.table)

    def batches(
        self, columns: Sequence[str], key_condition: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """See `SourcePart`. The database applies terms that have the same meaning there."""
        condition, left = condition_of(self.database, self.table, conjuncts(key_condition))
        found = self._found(columns, condition.text, condition.parameters)
        cut = (
            batch.slice(begin, rows_max)
            for batch in found
            for begin in range(0, batch.num_rows, rows_max)
        )
        return matching_rows(cut, conjunction(left))

    def _found(
        self, columns: Sequence[str], condition: str, parameters: pa.RecordBatch | None
    ) -> Iterator[pa.RecordBatch]:
        described = [self.table.column(name) for name in columns]
        items = [
            (self.database.read_expression(c, f"t.{quoted(c.name)}"), c.type) for c in described
        ]
        schema = pa.schema([pa.field(c.name, c.type) for c in described])
        text = self.database.select(self.table, items)
        with self.database.session(str(self.table)) as session:
            reader = session.read(f"{text} WHERE {condition}" if condition else text, parameters)
            for batch in self.database.rows_of(reader):
                values = [
                    self.database.values(self.table, column, array)
                    for column, array in zip(described, batch.columns, strict=True)
                ]
                yield pa.record_batch(values, schema=schema)
