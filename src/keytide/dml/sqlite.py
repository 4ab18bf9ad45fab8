"""SQLite through ADBC.

An SQLite column accepts any value. In Keytide its declared type applies, and reading a value of
another type raises `DataError`. BOOLEAN is 0 or 1, and DATE and TIMESTAMP are ISO 8601 strings.
DECIMAL of at most 15 digits is a number with a decimal point, which SQLite stores exactly. With
more digits it is the DOUBLE that SQLite converts it to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.process import library
from keytide.dml.databases import (
    Database,
    DatabaseColumn,
    DatabaseSession,
    DatabaseTable,
    quoted,
)
from keytide.errors import InvalidError

__all__ = ["SqliteDatabase"]

_DIGITS_MAX = 15
_YEARS_MAX = 9_999
_PATIENCE_MS = 10_000
"""How long a statement waits for another transaction before it is a conflict."""


@dataclass(frozen=True)
class SqliteDatabase(Database):
    """An SQLite file. `place` is its path."""

    begin = "BEGIN IMMEDIATE"
    begin_serializable = "BEGIN IMMEDIATE"  # nobody else writes until it ends

    @property
    def label(self) -> str:
        """The path."""
        return f"SQLite {self.place}"

    def connect(self) -> Any:
        """See `Database`. Foreign keys are enforced, which SQLite leaves to each connection."""
        driver = library("adbc_driver_sqlite.dbapi", "databases", self.label)
        connection = driver.connect(self.place, autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
            cursor.execute("PRAGMA foreign_keys = ON")
        return connection

    def tables(self, session: DatabaseSession) -> list[str]:
        """See `Database`."""
        return [str(name) for (name,) in session.rows(_TABLES + " ORDER BY name")]

    def find(self, session: DatabaseSession, name: str) -> DatabaseTable | None:
        """See `Database`. SQLite itself is case-insensitive for ASCII letters."""
        found = session.rows(_TABLES + " AND name = ?1 COLLATE NOCASE", name)
        if not found:
            return None
        stored = str(found[0][0])
        described = session.rows(
            'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?1) ORDER BY cid',
            stored,
        )
        # In other encodings, strings are ordered by their bytes.
        is_utf8 = session.rows("PRAGMA encoding") == [("UTF-8",)]
        columns = tuple(
            self.with_default(
                session, _column(str(n), str(t), bool(not_null), is_utf8=is_utf8), default
            )
            for n, t, not_null, default, _ in described
        )
        key = sorted((pk, str(column)) for column, *_, pk in described if pk)
        return DatabaseTable(self.label, None, stored, columns, tuple(c for _, c in key))

    def is_referenced(self, session: DatabaseSession, table: DatabaseTable) -> bool:
        """See `Database`."""
        text = (
            "SELECT 1 FROM sqlite_schema AS m, pragma_foreign_key_list(m.name) AS f "
            "WHERE m.type = 'table' AND f.\"table\" = ?1 COLLATE NOCASE LIMIT 1"
        )
        return bool(session.rows(text, table.name))

    # -- SQL ---------------------------------------------------------------------------------------

    def placeholder(self, number: int) -> str:
        """See `Database`."""
        return f"?{number}"

    def version(self, table: DatabaseTable, alias: str) -> str:
        """All values of the row as SQL literals."""
        return _joined([_literal(f"{alias}.{quoted(c.name)}") for c in table.columns])

    def read_expression(self, column: DatabaseColumn, name: str) -> str:
        """See `Database`."""
        if pa.types.is_decimal(column.type):
            text = f"printf('%.{column.type.scale}f', {name})"
            return f"CASE WHEN typeof({name}) IN ('integer', 'real') THEN {text} ELSE {name} END"
        if column.declared == "ANY":
            return f"CAST({name} AS TEXT)"
        if pa.types.is_string(column.type):
            return f"CASE typeof({name}) WHEN 'blob' THEN {_NO_TEXT} ELSE {name} END"
        return name

    def read_type(self, column: DatabaseColumn) -> pa.DataType:
        """See `Database`."""
        if pa.types.is_boolean(column.type):
            return pa.int64()
        kept = (pa.types.is_integer, pa.types.is_floating, pa.types.is_binary)
        return column.type if any(check(column.type) for check in kept) else pa.string()

    def select(self, table: DatabaseTable, items: Sequence[tuple[str, pa.DataType]]) -> str:
        """See `Database`. The first row is not a row of the table: it gives the driver the types.

        The driver infers types from the first values, and a column may begin with NULLs.
        """
        types = ", ".join(_example(type_) for _, type_ in items)
        chosen = ", ".join(expression for expression, _ in items)
        return f"SELECT {types} UNION ALL SELECT {chosen} FROM {self.source(table)} AS t"

    def rows_of(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """See `Database`."""
        first = next(iter(reader), None)
        if first is not None:
            yield first.slice(1)
        yield from reader

    def compared(self, column: DatabaseColumn, name: str, *, is_ordered: bool) -> str:
        """See `Database`."""
        if pa.types.is_boolean(column.type):
            return f"({name} <> 0)"
        return f"{name} COLLATE BINARY" if pa.types.is_string(column.type) else name

    def fits(self, column: DatabaseColumn, name: str) -> str | None:
        """See `Database`. Any column can contain a string, a number or bytes."""
        if pa.types.is_string(column.type):
            return f"typeof({name}) = 'text'"
        return f"typeof({name}) = '{'real' if pa.types.is_floating(column.type) else 'integer'}'"

    def delete(self, table: DatabaseTable, stage: str, condition: str) -> str:
        """See `Database`."""
        names = ", ".join(self.key_names(table))
        keys = ", ".join(f"t.{name}" for name in self.key_names(table))
        source = self.source(table)
        return (
            f"DELETE FROM {source} WHERE ({names}) IN (SELECT {keys} FROM {quoted(stage)} AS s "
            f"CROSS JOIN {source} AS t ON {condition})"
        )

    # -- values ------------------------------------------------------------------------------------

    def decoded(self, values: pa.Array, column: DatabaseColumn) -> pa.Array:
        """See `Database`."""
        if pa.types.is_boolean(column.type):
            return pc.not_equal(values.cast(pa.int64()), 0)
        values.validate(full=True)  # SQLite and its driver accept strings that are not UTF-8
        return values.cast(column.type)

    def staged(self, values: pa.Array, column: DatabaseColumn) -> pa.Array:
        """See `Database`.

        Raises `InvalidError` for NaN, which SQLite would store as NULL, and for dates whose strings
        have more digits than SQLite and other programs can compare and read.
        """
        type_ = column.type
        if pa.types.is_boolean(type_):
            return values.cast(pa.int64())
        if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
            self._check_years(values, column)
        if pa.types.is_timestamp(type_):
            return pc.replace_substring_regex(values.cast(pa.string()), r"\.000000$", "")
        if pa.types.is_decimal(type_) or pa.types.is_date(type_):
            return values.cast(pa.string())
        if pa.types.is_floating(type_) and pc.any(pc.is_nan(values)).as_py():
            raise InvalidError(
                f"column {column.name!r}: {self.label} cannot store NaN; use NULL or a number"
            )
        return values

    def _check_years(self, values: pa.Array, column: DatabaseColumn) -> None:
        years = pc.min_max(pc.year(values)).as_py()
        if years["min"] is not None and not 0 <= years["min"] <= years["max"] <= _YEARS_MAX:
            year = years["max"] if years["min"] >= 0 else years["min"]
            raise InvalidError(
                f"column {column.name!r}: a time is in the year {year}, but {self.label} stores "
                f"times as text for the years 0 to {_YEARS_MAX}"
            )

    def changed(self, session: DatabaseSession) -> int:
        """See `Database`."""
        return int(session.rows("SELECT changes()")[0][0])

    def deleted(
        self, session: DatabaseSession, table: DatabaseTable, condition: str, given: Any
    ) -> int:
        """See `Database`."""
        session.execute(f"DELETE FROM {self.source(table)} AS t WHERE {condition}", given)
        return self.changed(session)


_NO_TEXT = "CAST(x'ff' AS TEXT)"
_TABLES = (
    "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') "
    "AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
)


def _column(name: str, declared: str, not_null: bool, *, is_utf8: bool) -> DatabaseColumn:
    type_ = _type_of(declared)
    words = declared.upper()
    is_text = pa.types.is_string(type_) and ("CHAR" in words or "TEXT" in words) and is_utf8
    # Otherwise integers stay integers, which SQLite compares differently from DOUBLEs.
    is_real = pa.types.is_floating(type_) and any(word in words for word in _REAL)
    is_ordered = is_text or is_real or pa.types.is_integer(type_)
    is_equal = is_ordered or pa.types.is_boolean(type_)
    return DatabaseColumn(name, type_, not not_null, words or "ANY", is_equal, is_ordered)


_REAL = ("REAL", "FLOA", "DOUB")


def _type_of(declared: str) -> pa.DataType:
    """The type of a column for its declared type."""
    words = declared.upper().strip()
    base = re.split(r"[\s(]", words, maxsplit=1)[0]
    if base in ("DECIMAL", "NUMERIC", "DEC"):
        return _decimal_of(words)
    if "ZONE" in words:
        return pa.string()
    if base in _TYPES:
        return _TYPES[base]
    # SQLite's own rule for the affinity of other type names.
    return next((type_ for word, type_ in _AFFINITIES if word in words), pa.string())


def _decimal_of(words: str) -> pa.DataType:
    found = re.search(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", words)
    precision, scale = (int(found[1]), int(found[2] or 0)) if found else (0, 0)
    is_exact = 0 < precision <= _DIGITS_MAX and scale <= precision
    return pa.decimal128(precision, scale) if is_exact else pa.float64()


_TYPES = {
    **dict.fromkeys(("BOOLEAN", "BOOL"), pa.bool_()),
    **dict.fromkeys(("TIMESTAMP", "DATETIME"), pa.timestamp("us")),
    "DATE": pa.date32(),
    "INTERVAL": pa.string(),
}
_AFFINITIES = (
    ("INT", pa.int64()),
    ("CHAR", pa.string()),
    ("CLOB", pa.string()),
    ("TEXT", pa.string()),
    ("BLOB", pa.binary()),
    ("REAL", pa.float64()),
    ("FLOA", pa.float64()),
    ("DOUB", pa.float64()),
)


def _example(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return "0"
    if pa.types.is_floating(type_):
        return "0.0"
    return "x''" if pa.types.is_binary(type_) else "''"


def _literal(name: str) -> str:
    """A value as an SQL literal. `quote` would truncate a string at a NUL character."""
    return (
        f"CASE WHEN typeof({name}) = 'text' AND instr({name}, char(0)) "
        f"THEN 't' || quote(CAST({name} AS BLOB)) ELSE quote({name}) END"
    )


def _joined(texts: Sequence[str]) -> str:
    """Strings joined by commas, nested as flat as possible, because SQLite limits the depth."""
    if len(texts) == 1:
        return texts[0]
    middle = len(texts) // 2
    return f"({_joined(texts[:middle])} || ',' || {_joined(texts[middle:])})"
