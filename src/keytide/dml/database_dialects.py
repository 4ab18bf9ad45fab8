"""The dialects of relational databases through ADBC: SQLite and PostgreSQL.

An SQLite column accepts any value. In Keytide its declared type applies, and reading a value of
another type raises `DataError`. BOOLEAN is 0 or 1, and DATE and TIMESTAMP are ISO 8601 strings.
DECIMAL of at most 15 digits is a number with a decimal point, which SQLite stores exactly. With
more digits it is the DOUBLE that SQLite converts it to.

PostgreSQL types that both Arrow and the driver support are read unchanged, and NUMERIC(p, s) of at
most 38 digits as DECIMAL. All others are read as the strings that PostgreSQL uses: NUMERIC without
a precision, TIME, UUID, JSON, enums, arrays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass
from keytide.base.process import library
from keytide.dml.database_addresses import check_postgres, place_of_postgres
from keytide.dml.databases import Database, DatabaseColumn, DatabaseSession, DatabaseTable, quoted
from keytide.errors import InvalidError, NotFoundError

# -- SQLite ----------------------------------------------------------------------------------------


_DIGITS_MAX = 15
_YEARS_MAX = 9_999
_PATIENCE_MS = 10_000
"""How long a statement waits for another transaction before it is a conflict."""


@dataclass(frozen=True)
class SqliteDatabase(Database):
    """An SQLite file. `place` is its path."""

    parameter_sign = "?"
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

    def version(self, table: DatabaseTable, alias: str) -> str:
        """All values of the row as SQL literals. `quote` would truncate at a NUL character."""
        names = [f"{alias}.{quoted(column.name)}" for column in table.columns]
        return _joined(
            [
                f"CASE WHEN typeof({name}) = 'text' AND instr({name}, char(0)) "
                f"THEN 't' || quote(CAST({name} AS BLOB)) ELSE quote({name}) END"
                for name in names
            ]
        )

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
        examples = []
        for _, type_ in items:
            if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
                examples.append("0")
            elif pa.types.is_floating(type_):
                examples.append("0.0")
            else:
                examples.append("x''" if pa.types.is_binary(type_) else "''")
        types = ", ".join(examples)
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
        names = ", ".join(quoted(name) for name in table.key)
        keys = ", ".join(f"t.{quoted(name)}" for name in table.key)
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
            years = pc.min_max(pc.year(values)).as_py()
            if years["min"] is not None and not 0 <= years["min"] <= years["max"] <= _YEARS_MAX:
                year = years["max"] if years["min"] >= 0 else years["min"]
                raise InvalidError(
                    f"column {column.name!r}: a time is in the year {year}, but {self.label} "
                    f"stores times as text for the years 0 to {_YEARS_MAX}"
                )
        if pa.types.is_timestamp(type_):
            return pc.replace_substring_regex(values.cast(pa.string()), r"\.000000$", "")
        if pa.types.is_decimal(type_) or pa.types.is_date(type_):
            return values.cast(pa.string())
        if pa.types.is_floating(type_) and pc.any(pc.is_nan(values)).as_py():
            raise InvalidError(
                f"column {column.name!r}: {self.label} cannot store NaN; use NULL or a number"
            )
        return values

    def changed(self, session: DatabaseSession) -> int:
        """See `Database`."""
        return int(session.rows("SELECT changes()")[0][0])

    def deleted(
        self, session: DatabaseSession, table: DatabaseTable, condition: str, parameters: Any
    ) -> int:
        """See `Database`."""
        session.execute(f"DELETE FROM {self.source(table)} AS t WHERE {condition}", parameters)
        return self.changed(session)


_NO_TEXT = "CAST(x'ff' AS TEXT)"
_TABLES = (
    "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') "
    "AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
)


def _column(name: str, declared: str, not_null: bool, *, is_utf8: bool) -> DatabaseColumn:
    words = declared.upper()
    base = re.split(r"[\s(]", words.strip(), maxsplit=1)[0]
    if base in ("DECIMAL", "NUMERIC", "DEC"):
        found = re.search(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", words)
        precision, scale = (int(found[1]), int(found[2] or 0)) if found else (0, 0)
        is_exact = 0 < precision <= _DIGITS_MAX and scale <= precision
        type_ = pa.decimal128(precision, scale) if is_exact else pa.float64()
    elif "ZONE" in words:
        type_ = pa.string()
    elif base in _TYPES:
        type_ = _TYPES[base]
    else:
        # SQLite's own rule for the affinity of other type names.
        type_ = next((type_ for word, type_ in _AFFINITIES if word in words), pa.string())

    is_text = pa.types.is_string(type_) and ("CHAR" in words or "TEXT" in words) and is_utf8
    # Otherwise integers stay integers, which SQLite compares differently from DOUBLEs.
    is_real = pa.types.is_floating(type_) and any(w in words for w in ("REAL", "FLOA", "DOUB"))
    is_ordered = is_text or is_real or pa.types.is_integer(type_)
    is_equal = is_ordered or pa.types.is_boolean(type_)
    return DatabaseColumn(name, type_, not not_null, words or "ANY", is_equal, is_ordered)


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


def _joined(texts: Sequence[str]) -> str:
    """Strings joined by commas, nested as flat as possible, because SQLite limits the depth."""
    if len(texts) == 1:
        return texts[0]
    middle = len(texts) // 2
    return f"({_joined(texts[:middle])} || ',' || {_joined(texts[middle:])})"


# -- PostgreSQL ------------------------------------------------------------------------------------


_POSTGRES_DIGITS_MAX = 38


@dataclass(frozen=True)
class PostgresDatabase(Database):
    """A database on a server. `place` is a `postgresql://` address."""

    parameter_sign = "$"
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
        connection = dbapi.Connection(
            _SharedDatabase(), lib.AdbcConnection(opened), autocommit=True
        )
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
        columns = []
        for column, declared, modifier, not_null, is_deterministic, default in session.rows(
            _COLUMNS, oid
        ):
            type_ = _POSTGRES_TYPES.get(declared, pa.string())
            precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
            is_exact = modifier >= 0 and scale <= precision <= _POSTGRES_DIGITS_MAX
            if declared == "numeric" and is_exact:
                type_ = pa.decimal128(precision, scale)
            is_ordered = declared in _ORDERED or pa.types.is_decimal(type_)
            is_equal = is_deterministic and (is_ordered or declared == "boolean")
            described = DatabaseColumn(
                column, type_, not not_null, declared, is_equal, is_equal and is_ordered
            )
            columns.append(self.with_default(session, described, default))
        key = tuple(str(column) for (column,) in session.rows(_KEY, oid))
        return DatabaseTable(self.label, schema, name, tuple(columns), key)

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
        self, session: DatabaseSession, table: DatabaseTable, condition: str, parameters: Any
    ) -> None:
        """See `Database`.

        The server records what a transaction reads, however little it returns.
        """
        text = f"SELECT count(*) FROM {self.source(table)} AS t WHERE {condition}"
        session.read(text, parameters).read_all()

    # -- SQL ---------------------------------------------------------------------------------------

    def version(self, table: DatabaseTable, alias: str) -> str:
        """The id of the transaction that wrote the row."""
        return f"{alias}.xmin::text"

    def read_expression(self, column: DatabaseColumn, name: str) -> str:
        """See `Database`."""
        return name if column.declared in _POSTGRES_TYPES else f"{name}::text"

    def read_type(self, column: DatabaseColumn) -> pa.DataType:
        """See `Database`."""
        return _POSTGRES_TYPES.get(column.declared, pa.string())

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
        self, session: DatabaseSession, table: DatabaseTable, condition: str, parameters: Any
    ) -> int:
        """See `Database`."""
        statement = f"DELETE FROM {self.source(table)} AS t WHERE {condition} RETURNING 1"
        (batch,) = session.read(f"WITH c AS ({statement}) SELECT count(*) FROM c", parameters)
        return int(batch.column(0)[0].as_py())


class _SharedDatabase:
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
_POSTGRES_TYPES = {
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
_ORDERED = {*_POSTGRES_TYPES} - {"boolean", "real", "double precision", "bpchar", "bytea"}


@cache
def _first(type_: pa.DataType) -> pa.Scalar | None:
    """The first time of a type in PostgreSQL, None for other types."""
    if type_ == pa.date32():
        return pa.scalar(_DAYS, pa.int32()).cast(type_)
    is_time = pa.types.is_timestamp(type_) and type_.unit == "us"
    return pa.scalar(_DAYS * 86_400_000_000, pa.int64()).cast(type_) if is_time else None


# -- the database of an address --------------------------------------------------------------------


def database_at(place: str) -> Database:
    """The database at an address, without connecting to it.

    `postgresql://user@host/database`, `sqlite:///path` (with a fourth slash for an absolute path)
    or the path of an SQLite file. Raises `InvalidError`, without showing the address, for any other
    one, and `NotFoundError` when the file does not exist.
    """
    scheme, separator, rest = place.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        check_postgres(place)
        return PostgresDatabase(place)
    if separator and scheme != "sqlite":
        raise InvalidError(
            "unknown kind of database URI; expected "
            "postgresql://user:password@host:port/database, sqlite:///path, or the path of a "
            "SQLite file"
        )
    path = os.path.abspath(rest.removeprefix("/") if separator else os.path.expanduser(place))
    if not os.path.isfile(path):
        # A password may be anywhere in an address such as `host=h password=p` or `user:p@host`,
        # whose characters are rare in paths.
        is_address = re.search(r"[=@;?&]|:(?!\\)", place.removeprefix("sqlite://")) is not None
        shown = "of that name" if is_address else path
        raise NotFoundError(
            f"the file {shown} does not exist; create the database and its tables first"
        )
    return SqliteDatabase(path)
