"""Relational databases as connectors: sessions, pushdown and transactions.

- This module contains what the dialects have in common. `database_dialects` implements the rest.
  Values are exchanged in Arrow: `read_expression` and `decoded` convert a column from the database
  to its Arrow type, and `staged` and `write_expression` convert it back, through a temporary table.
- Conditions are pushed down if they have the same meaning in the database as in Keytide. A database
  column can contain values that do not have its type, such as a string among numbers, and the
  database can compare these too. Such values match no comparison that is pushed down.
- A serializable statement is one database transaction from the first read to the change. The
  driver, where statements begin and end, holds it open. Other connections, possibly in other
  processes, read rows at the transaction's snapshot, and the transaction is informed of what they
  read.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from math import isnan
from typing import Any

import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.dml.database_addresses import without_secrets
from keytide.dml.spi import ConnectorSession
from keytide.errors import ConflictError, DataError, InvalidError, KeytideError, NotFoundError
from keytide.predicate.predicate import And, Comparison, In, IsNull, Like, Not, Or, Predicate

# -- the interface to a relational database --------------------------------------------------------


VERSION = "$version"
"""The field of row ids that shows whether a row has changed since it was read."""


_CONSTANT = re.compile(
    r"\(?(-?\d+(\.\d+)?|[xX]?'([^']|'')*'|true|false)\)?(::[\w ]+(\(\d+(,\d+)?\))?)?", re.IGNORECASE
)
"""A DEFAULT that is a constant. In PostgreSQL the type follows it."""


@dataclass(frozen=True)
class DatabaseColumn:
    """A column. `declared` is the type in the database, which the dialect uses.

    `is_ordered` says that comparisons have the same meaning in the database, and `is_equal` that
    equality does. `default` is a constant. `computed_default` is the expression of a NOT NULL
    column.
    """

    name: str
    type: pa.DataType
    nullable: bool
    declared: str
    is_equal: bool = False
    is_ordered: bool = False
    default: pa.Scalar | None = None
    computed_default: str | None = None


@dataclass(frozen=True)
class DatabaseTable:
    """A table: its location, its columns, and those of its primary key in key order."""

    label: str
    schema: str | None
    name: str
    columns: tuple[DatabaseColumn, ...]
    key: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The name as users write it in queries."""
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    def __str__(self) -> str:
        return f"table {self.shown} in {self.label}"

    def column(self, name: str) -> DatabaseColumn:
        """The column with a name."""
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True)
class Database(ABC):
    """One database. Can be pickled. `place` can contain a password and is never shown."""

    place: str = field(repr=False)

    parameter_sign = "?"
    """What precedes the number of a parameter, counted from 1."""
    begin = "BEGIN"
    begin_serializable = "BEGIN"
    insert_clause = ""
    is_remote = False

    # -- location ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def label(self) -> str:
        """The name in messages."""

    @abstractmethod
    def connect(self) -> Any:
        """A new connection of the driver, in which every statement is its own transaction.

        Raises `SetupError` if the driver is not installed, and what the driver raises.
        """

    @contextmanager
    def session(self, what: str = "") -> Iterator[DatabaseSession]:
        """A connection for the duration of a block. Errors of the driver become `KeytideError`s."""
        with self.errors(what or self.label), closing(DatabaseSession(self, self.connect())) as s:
            yield s

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Convert errors of the driver. `what` is their subject."""
        try:
            yield
        except KeytideError:
            raise
        except Exception as error:
            if not isinstance(error, (OSError, pa.ArrowException)) and not type(
                error
            ).__module__.startswith("adbc_driver_manager"):
                raise
            # The message of the database, without text of the driver if it can be removed.
            details = dict(getattr(error, "details", None) or [])
            names = (b"PG_DIAG_MESSAGE_PRIMARY", b"PG_DIAG_MESSAGE_DETAIL")
            parts = [bytes(details[n]).decode(errors="replace") for n in names if n in details]
            message = ". ".join(parts) or str(error)
            text = without_secrets(" ".join(message.split()), self.place)
            raise _translated(error, what, text) from None

    def export_snapshot(self, session: DatabaseSession) -> str | None:
        """The snapshot of a serializable transaction for other connections.

        None if they see it anyway.
        """
        return None

    def join_snapshot(self, session: DatabaseSession, snapshot: str) -> None:  # noqa: B027  # see above
        """Read from an exported snapshot from now on."""

    def touch(  # noqa: B027  # some know by themselves
        self, session: DatabaseSession, table: DatabaseTable, condition: str, parameters: Any
    ) -> None:
        """Let a serializable transaction know that the rows `t` of a condition are read for it."""

    # -- contents ----------------------------------------------------------------------------------

    @abstractmethod
    def tables(self, session: DatabaseSession) -> list[str]:
        """The names of all tables and views."""

    @abstractmethod
    def find(self, session: DatabaseSession, name: str) -> DatabaseTable | None:
        """The table with a name, case-insensitively."""

    @abstractmethod
    def is_referenced(self, session: DatabaseSession, table: DatabaseTable) -> bool:
        """Whether a foreign key refers to the table."""

    def with_default(
        self, session: DatabaseSession, column: DatabaseColumn, text: str | None
    ) -> DatabaseColumn:
        """The column with the DEFAULT that the database reports."""
        if text is None or text.upper() == "NULL":
            return column
        if not _CONSTANT.fullmatch(text):
            # NULL represents the default if the column cannot be NULL. Otherwise NULL could be the
            # value.
            return column if column.nullable else replace(column, computed_default=f"({text})")
        ((value,),) = session.rows(f"SELECT {self.read_expression(column, f'({text})')}")
        try:
            (default,) = self.decoded(pa.array([value]), column)
        except pa.ArrowException:
            return column
        return replace(column, default=default)

    # -- SQL ---------------------------------------------------------------------------------------

    @abstractmethod
    def version(self, table: DatabaseTable, alias: str) -> str:
        """A string expression that changes when a row is changed. Never NULL."""

    @abstractmethod
    def read_expression(self, column: DatabaseColumn, name: str) -> str:
        """The expression that reads a column that the query calls `name`."""

    @abstractmethod
    def read_type(self, column: DatabaseColumn) -> pa.DataType:
        """The type of `read_expression`, which `write_expression` accepts too."""

    @abstractmethod
    def select(self, table: DatabaseTable, items: Sequence[tuple[str, pa.DataType]]) -> str:
        """SELECT expressions with values of these types FROM the table as `t`."""

    def rows_of(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """The rows of a query that `select` created."""
        return iter(reader)

    @abstractmethod
    def compared(self, column: DatabaseColumn, name: str, *, is_ordered: bool) -> str:
        """The expression of a column for a comparison with a parameter."""

    def fits(self, column: DatabaseColumn, name: str) -> str | None:
        """A condition that a value has the column's type, None if every value does."""
        return None

    def write_expression(self, column: DatabaseColumn, value: str) -> str:
        """An expression that converts a `staged` value to the column's type."""
        return value

    def source(self, table: DatabaseTable) -> str:
        """The table name in statements."""
        name = quoted(table.name)
        return name if table.schema is None else f"{quoted(table.schema)}.{name}"

    @abstractmethod
    def delete(self, table: DatabaseTable, stage: str, condition: str) -> str:
        """Delete the rows `t` that have a matching row `s` in a temporary table."""

    # -- values ------------------------------------------------------------------------------------

    def values(self, table: DatabaseTable, column: DatabaseColumn, found: pa.Array) -> pa.Array:
        """The values of a query for a column, in its type.

        Raises `DataError`, naming the column.
        """
        try:
            return self.decoded(found, column)
        except pa.ArrowException as error:
            raise DataError(
                f"{table}: column {column.name!r} is declared {column.declared} but contains "
                f"another kind of value: {error}; correct the value, or do not read the column"
            ) from error

    @abstractmethod
    def decoded(self, values: pa.Array, column: DatabaseColumn) -> pa.Array:
        """The values of `read_expression`, in the column's type. Raises Arrow's errors."""

    @abstractmethod
    def staged(self, values: pa.Array, column: DatabaseColumn) -> pa.Array:
        """Values of the column's type in a type that the driver accepts."""

    @abstractmethod
    def changed(self, session: DatabaseSession) -> int:
        """The number of rows that the last statement without parameters changed."""

    @abstractmethod
    def deleted(
        self, session: DatabaseSession, table: DatabaseTable, condition: str, parameters: Any
    ) -> int:
        """Delete the rows `t` that match a condition with parameters. Returns their number."""


class DatabaseSession:
    """One connection and one cursor, for one thread. A new statement ends the previous result."""

    def __init__(self, database: Database, connection: Any) -> None:
        self.database = database
        self._connection = connection
        self.cursor = connection.cursor()
        self._reader: Any = None

    def execute(self, text: str, parameters: pa.RecordBatch | None = None) -> None:
        """Execute a statement."""
        self._end_reading()
        self.cursor.execute(text, parameters)

    def change(self, text: str) -> int:
        """Execute a statement that changes rows. Returns their number."""
        self.execute(text)
        return self.database.changed(self)

    def read(self, text: str, parameters: pa.RecordBatch | None = None) -> pa.RecordBatchReader:
        """The rows of a query, batch by batch."""
        self.execute(text, parameters)
        self._reader = self.cursor.fetch_record_batch()
        return self._reader

    def rows(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """All rows of a query with parameters."""
        self._end_reading()
        batch = pa.record_batch({f"p{i}": [value] for i, value in enumerate(parameters)})
        self.cursor.execute(text, batch if parameters else None)
        return list(self.cursor.fetchall())

    def stage(self, name: str, rows: pa.Table, *, adds: bool = False) -> None:
        """Insert rows into a new temporary table, or into an existing one."""
        self._end_reading()
        self.cursor.adbc_ingest(name, rows, mode="append" if adds else "create", temporary=True)

    def close(self) -> None:
        """Close the connection. Uncommitted changes are rolled back."""
        self._end_reading()
        self.cursor.close()
        self._connection.close()

    def _end_reading(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def quoted(name: str) -> str:
    """An identifier as both dialects write it."""
    return '"' + name.replace('"', '""') + '"'


# -- errors ----------------------------------------------------------------------------------------


_REFUSED = "{what}: the database refuses the rows, and nothing was changed: {text}"
_LOCKED = ("database is locked", "database table is locked", "database schema is locked")
_MISFITS = ("datatype mismatch", "constraint failed", "cannot store", "too big")


class KeyTakenError(InvalidError):
    """The key of a new row already exists."""


def _translated(error: Exception, what: str, text: str) -> KeytideError:
    state = str(getattr(error, "sqlstate", None) or "")
    if state in ("40001", "40P01", "55P03") or any(locked in text for locked in _LOCKED):
        return ConflictError(
            f"{what}: another transaction blocks this one; nothing was changed: run the "
            f"statement again ({text})"
        )
    if state == "23505" or "UNIQUE constraint failed" in text:
        return KeyTakenError(_REFUSED.format(what=what, text=text))
    is_refused = type(error).__name__ == "IntegrityError" or any(m in text for m in _MISFITS)
    if state[:2] in ("22", "23", "44") or is_refused:
        return InvalidError(
            f"{what}: the database refuses the rows, and nothing was changed: {text}"
        )
    if state in ("42P01", "42703", "3F000"):
        return NotFoundError(f"{what}: it has changed since it was opened: {text}")
    if state == "42501":
        return InvalidError(f"{what}: this user lacks a permission; grant it: {text}")
    return DataError(f"{what}: the database reports: {text}")


# -- pushdown of conditions ------------------------------------------------------------------------


_OPPOSITES = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_VALUES_MAX = 1000
"""Longer lists are not pushed down, because a statement has a limited number of parameters."""


@dataclass(frozen=True)
class Condition:
    """A WHERE condition and its parameters in one row. Both are empty if there are no terms."""

    text: str = ""
    parameters: pa.RecordBatch | None = None


def condition_of(
    database: Database, table: DatabaseTable, terms: Sequence[Predicate]
) -> tuple[Condition, tuple[Predicate, ...]]:
    """The terms that the database evaluates, as one condition on `t`, and the remaining terms."""
    writer, texts, left = _Writer(database, table), [], []
    for term in terms:
        known = len(writer.parameters)
        try:
            texts.append(writer.write(term))
        except _OpenError:
            del writer.parameters[known:]
            left.append(term)
    names = [f"p{i}" for i in range(len(writer.parameters))]
    parameters = pa.record_batch(writer.parameters, names) if names else None
    return Condition(" AND ".join(f"({text})" for text in texts), parameters), tuple(left)


class _OpenError(Exception):
    """A term does not have the same meaning in the database."""


@dataclass
class _Writer:
    database: Database
    table: DatabaseTable
    parameters: list[pa.Array] = field(default_factory=list)

    def write(self, predicate: Predicate, *, holds: bool = True) -> str:
        """SQL that is true if a predicate is true, or else if it is false. Raises `_OpenError`.

        If the predicate is NULL, the SQL can be false: it contains no NOT of a nullable condition.
        """
        if isinstance(predicate, And | Or):
            word = " AND " if isinstance(predicate, And) is holds else " OR "
            return word.join(f"({self.write(term, holds=holds)})" for term in predicate.terms)
        if isinstance(predicate, Not):
            return self.write(predicate.term, holds=not holds)
        name = f"t.{quoted(predicate.column)}"
        if isinstance(predicate, IsNull):
            return f"{name} IS {'' if holds else 'NOT '}NULL"
        if isinstance(predicate, Like):
            raise _OpenError

        column = self.table.column(predicate.column)
        is_ordered = isinstance(predicate, Comparison) and predicate.operator not in ("=", "!=")
        if not (column.is_ordered if is_ordered else column.is_equal):
            raise _OpenError
        if isinstance(predicate, In) and len(predicate.values) > _VALUES_MAX:
            raise _OpenError
        compared = self.database.compared(column, name, is_ordered=is_ordered)
        if isinstance(predicate, Comparison):
            operator = predicate.operator if holds else _OPPOSITES[predicate.operator]
            value = next(self._values(column, [predicate.value]))
            comparison = f"{compared} {'<>' if operator == '!=' else operator} {value}"
        elif predicate.values:
            values = ", ".join(self._values(column, predicate.values))
            comparison = f"{compared} {'IN' if holds else 'NOT IN'} ({values})"
        else:
            return "1 = 0" if holds else f"{name} IS NOT NULL"
        # The comparison is never true for a value that does not have the column's type.
        fits = self.database.fits(column, name)
        return comparison if fits is None else f"{comparison} AND {fits}"

    def _values(self, column: DatabaseColumn, values: Sequence[Any]) -> Iterator[str]:
        for value in values:
            if isinstance(value, str) and "\0" in value:
                raise _OpenError  # PostgreSQL supports it in no string
            if isinstance(value, float) and isnan(value):
                raise _OpenError  # SQLite treats it as NULL
            array = pa.array([value], column.type)
            self.parameters.append(self.database.staged(array, column))
            mark = f"{self.database.parameter_sign}{len(self.parameters)}"
            yield self.database.write_expression(column, mark)


# -- transactions of serializable statements -------------------------------------------------------


@dataclass
class OpenTransaction:
    """An open transaction. `snapshot` lets other connections see its state, if they need that."""

    session: DatabaseSession
    snapshot: str | None
    open: ExitStack
    lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def used(self) -> Iterator[DatabaseSession]:
        """The connection, for exclusive use within a block."""
        with self.lock:
            yield self.session


class Transactions:
    """The transactions of serializable statements in a database, by statement.

    They stay in their process. Pickling drops them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open_transactions: dict[str, OpenTransaction] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Transactions, (self._database,)

    def transaction_of(self, statement: ConnectorSession) -> OpenTransaction | None:
        """The transaction of a statement. The first call begins it. None for `snapshot`."""
        if statement.isolation == "snapshot":
            return None
        with self._lock:
            held = self._open_transactions.get(statement.query_id)
            if held is None:
                with ExitStack() as stack:
                    session = stack.enter_context(self._database.session())
                    session.execute(self._database.begin_serializable)
                    snapshot = self._database.export_snapshot(session)
                    held = OpenTransaction(session, snapshot, stack.pop_all())
                self._open_transactions[statement.query_id] = held
            return held

    def touch(
        self, statement: ConnectorSession, table: DatabaseTable, condition: str, parameters: Any
    ) -> None:
        """Record that rows of a condition are read for a statement."""
        held = self.transaction_of(statement)
        if held is not None:
            with self._database.errors(str(table)), held.used() as session:
                self._database.touch(session, table, condition, parameters)

    def end(self, statement: ConnectorSession) -> None:
        """End the transaction of a statement. Uncommitted changes are rolled back."""
        with self._lock:
            held = self._open_transactions.pop(statement.query_id, None)
        if held is not None:
            held.open.close()
