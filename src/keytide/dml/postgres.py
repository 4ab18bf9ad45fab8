"""PostgreSQL through ADBC.

Types that both Arrow and the driver support are read unchanged, and NUMERIC(p, s) of at most 38
digits as DECIMAL. All others are read as the strings that PostgreSQL uses: NUMERIC without a
precision, TIME, UUID, JSON, enums, arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.process import library
from keytide.dml.attach import place_of_postgres
from keytide.dml.databases import (
    Database,
    DatabaseColumn,
    DatabaseSession,
    DatabaseTable,
    quoted,
)
from keytide.errors import InvalidError

__all__ = ["PostgresDatabase"]

_DIGITS_MAX = 38


@dataclass(frozen=True)
class PostgresDatabase(Database):
    """A database on a server. `place` is a `postgresql://` address."""

    begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
    begin_serializable = "BEGIN ISOLATION LEVEL SERIALIZABLE"
    insert_clause = "OVERRIDING SYSTEM VALUE"
    is_remote = True

    @property
    def label(self) -> str:
        """Host and database, without the user."""
        return f"PostgreSQL {place_of_postgres(self.place)}"

    def connect(self) -> Any:
        """See `Database`."""
        opened, dbapi, lib = _opened(self.place)
        connection = dbapi.Connection(_KeptOpen(), lib.AdbcConnection(opened), autocommit=True)
        with connection.cursor() as cursor:
            for setting in ("TimeZone = 'UTC'", "DateStyle = 'ISO'", "IntervalStyle = 'iso_8601'"):
                cursor.execute(f"SET {setting}")
        return connection

    def tables(self, session: DatabaseSession) -> list[str]:
        """See `Database`. The names include the schema."""
        text = (
            "SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n "
            f"ON n.oid = c.relnamespace WHERE {_IS_TABLE} AND n.nspname !~ '^pg_' "
            "AND n.nspname <> 'information_schema' ORDER BY 1"
        )
        return [str(name) for (name,) in session.rows(text)]

    def find(self, session: DatabaseSession, name: str) -> DatabaseTable | None:
        """See `Database`. Raises `InvalidError` if several differ only in case."""
        schema, dot, table = name.rpartition(".")
        text = (
            "SELECT c.oid::int8, n.nspname::text, c.relname::text FROM pg_class c "
            f"JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_IS_TABLE} "
            "AND lower(c.relname) = lower($1) AND "
        )
        if dot:
            found = session.rows(text + "lower(n.nspname) = lower($2)", table, schema)
        else:
            found = session.rows(text + "pg_table_is_visible(c.oid)", table)
        exact = [row for row in found if row[2] == table and (not dot or row[1] == schema)]
        found = exact or found
        if len(found) > 1:
            names = " or ".join(f"{schema}.{table}" for _, schema, table in found)
            raise InvalidError(
                f"{name!r} is ambiguous in {self.label}: {names}; write the name exactly"
            )
        return self._described(session, *found[0]) if found else None

    def _described(
        self, session: DatabaseSession, oid: int, schema: str, name: str
    ) -> DatabaseTable:
        columns = tuple(
            self.with_default(session, _column(*row), default)
            for *row, default in session.rows(_COLUMNS, oid)
        )
        key = tuple(str(column) for (column,) in session.rows(_KEY, oid))
        return DatabaseTable(self.label, schema, name, columns, key)

    def is_referenced(self, session: DatabaseSession, table: DatabaseTable) -> bool:
        """See `Database`."""
        text = "SELECT 1 FROM pg_constraint WHERE contype = 'f' AND confrelid = $1::regclass"
        return bool(session.rows(text, self.source(table)))

    # -- serializable transactions -----------------------------------------------------------------

    def export_snapshot(self, session: DatabaseSession) -> str | None:
        """See `Database`."""
        ((snapshot,),) = session.rows("SELECT pg_export_snapshot()")
        return str(snapshot)

    def join_snapshot(self, session: DatabaseSession, snapshot: str) -> None:
        """See `Database`."""
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        session.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")

    def touch(
        self, session: DatabaseSession, table: DatabaseTable, condition: str, given: Any
    ) -> None:
        """See `Database`.

        The server records what a transaction reads, however little it returns.
        """
        text = f"SELECT count(*) FROM {self.source(table)} AS t WHERE {condition}"
        session.read(text, given).read_all()

    # -- SQL ---------------------------------------------------------------------------------------

    def placeholder(self, number: int) -> str:
        """See `Database`."""
        return f"${number}"

    def version(self, table: DatabaseTable, alias: str) -> str:
        """The id of the transaction that wrote the row."""
        return f"{alias}.xmin::text"

    def read_expression(self, column: DatabaseColumn, name: str) -> str:
        """See `Database`."""
        return name if column.declared in _TYPES else f"{name}::text"

    def read_type(self, column: DatabaseColumn) -> pa.DataType:
        """See `Database`."""
        return _TYPES.get(column.declared, pa.string())

    def select(self, table: DatabaseTable, items: Sequence[tuple[str, pa.DataType]]) -> str:
        """See `Database`."""
        chosen = ", ".join(f"{text} AS c{i}" for i, (text, _) in enumerate(items))
        return f"SELECT {chosen} FROM {self.source(table)} AS t"

    def compared(self, column: DatabaseColumn, name: str, *, is_ordered: bool) -> str:
        """See `Database`. Collations other than C have another order of strings."""
        return f'{name} COLLATE "C"' if is_ordered and pa.types.is_string(column.type) else name

    def fits(self, column: DatabaseColumn, name: str) -> str | None:
        """See `Database`. NaN and infinity are the largest values in PostgreSQL."""
        if pa.types.is_decimal(column.type):
            return f"{name} <> 'NaN'"
        if pa.types.is_timestamp(column.type):
            return f"isfinite({name}) AND {name} < '294247-01-01'"
        return f"isfinite({name})" if pa.types.is_date(column.type) else None

    def write_expression(self, column: DatabaseColumn, value: str) -> str:
        """See `Database`. Without the length, so that a value that is too long raises an error."""
        return f"CAST({value} AS {column.declared})"

    def delete(self, table: DatabaseTable, stage: str, condition: str) -> str:
        """See `Database`."""
        return f"DELETE FROM {self.source(table)} AS t USING {quoted(stage)} AS s WHERE {condition}"

    # -- values ------------------------------------------------------------------------------------

    def decoded(self, values: pa.Array, column: DatabaseColumn) -> pa.Array:
        """See `Database`.

        The driver returns a value that Arrow cannot represent as a minimal time.
        """
        first = _first(column.type)
        if first is not None and pc.any(pc.less(values, first)).as_py():
            raise pa.ArrowInvalid(
                "infinity, or a time after the year 294246, cannot be represented in an Arrow "
                "column"
            )
        return values.cast(column.type)

    def staged(self, values: pa.Array, column: DatabaseColumn) -> pa.Array:
        """See `Database`."""
        return values.cast(pa.string()) if pa.types.is_decimal(column.type) else values

    def changed(self, session: DatabaseSession) -> int:
        """See `Database`."""
        return int(session.cursor.rowcount)

    def deleted(
        self, session: DatabaseSession, table: DatabaseTable, condition: str, given: Any
    ) -> int:
        """See `Database`."""
        statement = f"DELETE FROM {self.source(table)} AS t WHERE {condition} RETURNING 1"
        (batch,) = session.read(f"WITH c AS ({statement}) SELECT count(*) FROM c", given)
        return int(batch.column(0)[0].as_py())


class _KeptOpen:
    """A wrapper of a database that a connection must not close."""

    def close(self) -> None:
        """Leave it open."""


@cache
def _opened(place: str) -> tuple[Any, Any, Any]:
    """The parts for connections, with the driver's modules. The driver loads all types once.

    This takes ten times as long as a connection.
    """
    names = ("adbc_driver_postgresql", "adbc_driver_manager.dbapi", "adbc_driver_manager")
    driver, dbapi, lib = (library(name, "databases", "PostgreSQL") for name in names)
    return driver.connect(place), dbapi, lib


_IS_TABLE = "c.relkind IN ('r', 'p', 'v', 'm', 'f')"
_COLUMNS = """
    SELECT a.attname::text, format_type(a.atttypid, -1), a.atttypmod, a.attnotnull,
           coalesce(c.collisdeterministic, true),
           CASE a.attidentity WHEN '' THEN pg_get_expr(d.adbin, d.adrelid)
           ELSE format('nextval(%L)', pg_get_serial_sequence(a.attrelid::regclass::text, a.attname))
           END
    FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    ORDER BY a.attnum"""
_KEY = """
    SELECT a.attname::text
    FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (number, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
    WHERE i.indrelid = $1 AND i.indisprimary ORDER BY k.place"""
_TYPES = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "text": pa.string(),
    "character varying": pa.string(),
    "bpchar": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
}
# The first day in PostgreSQL, 24 November 4714 BC.
_DAYS = -2_440_588
# Floats are excluded, because NaN is the largest number in PostgreSQL. CHAR is excluded, because it
# has trailing blanks.
_ORDERED = {*_TYPES} - {"boolean", "real", "double precision", "bpchar", "bytea"}


@cache
def _first(type_: pa.DataType) -> pa.Scalar | None:
    """The first time of a type in PostgreSQL, None for other types."""
    if type_ == pa.date32():
        return pa.scalar(_DAYS, pa.int32()).cast(type_)
    is_time = pa.types.is_timestamp(type_) and type_.unit == "us"
    return pa.scalar(_DAYS * 86_400_000_000, pa.int64()).cast(type_) if is_time else None


def _column(
    name: str, declared: str, modifier: int, not_null: bool, is_deterministic: bool
) -> DatabaseColumn:
    type_ = _TYPES.get(declared, pa.string())
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    if declared == "numeric" and modifier >= 0 and scale <= precision <= _DIGITS_MAX:
        type_ = pa.decimal128(precision, scale)
    is_ordered = declared in _ORDERED or pa.types.is_decimal(type_)
    is_equal = is_deterministic and (is_ordered or declared == "boolean")
    return DatabaseColumn(name, type_, not not_null, declared, is_equal, is_equal and is_ordered)
