"""Appends rows to a table of another engine, in one commit of that engine.

Invalid rows, and tables that this release cannot append to, are refused before anything is written:
a missing or unknown column, a value that does not have its column's type, or a NULL in a NOT NULL
or key column. An append depends on nothing but the columns. So if it loses a race with another
writer, it is retried, with the columns of that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from keytide.dml.fragments import Spool
from keytide.errors import ConflictError, InvalidError

__all__ = ["Appender", "ConformedRows", "Rows", "again_after_conflicts", "conform"]

T = TypeVar("T")
Rows: TypeAlias = pa.Table | Spool
"""Rows with one schema, in memory or on disk, that can be read repeatedly."""

_TRIES = 5


class Appender(Protocol):
    """A table to which rows are appended."""

    @property
    def location(self) -> str:
        """The location for messages, without secrets."""
        ...

    def append(self, rows: Rows, key: Sequence[str]) -> str | None:
        """Append rows atomically in one commit. Returns the name of the new version, if any.

        There is at least one row. `rows` have all columns of the table, in any order, and no NULL
        in `key`. Raises:

        - `InvalidError` for other rows, `UnsupportedError` naming what this release cannot write,
          and `NotFoundError` when there is no table. Nothing is written in these cases.
        - `ConflictError` after several attempts that lost a race with other writers. Nothing is
          committed, but files of these attempts may remain until the table's own cleanup.
        - `DataError` when the table does not respond. The rows may or may not have been written.
        """
        ...


@dataclass(frozen=True)
class ConformedRows:
    """Rows with the columns, order and types of a schema."""

    schema: pa.Schema
    parts: Callable[[], Iterator[pa.Table]]
    """Returns all rows. Can be called repeatedly."""

    def reader(self) -> pa.RecordBatchReader:
        """The rows as a stream, with few of them in memory."""
        batches = (batch for part in self.parts() for batch in part.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def table(self) -> pa.Table:
        """The rows in memory."""
        return pa.concat_tables(self.parts())


def conform(rows: Rows, schema: pa.Schema, key: Sequence[str], owner: str) -> ConformedRows:
    """The rows converted to a schema.

    Raises `InvalidError`, naming the column that does not fit, in whichever row it is.
    """
    if isinstance(rows, pa.Table):
        held = _fitted(rows, schema, key, owner)
        return ConformedRows(schema, lambda: iter([held]))
    spool = rows

    def parts() -> Iterator[pa.Table]:
        return (_fitted(part, schema, key, owner) for part in spool.tables())

    for _ in parts():  # all rows are checked before anything is written
        pass
    return ConformedRows(schema, parts)


def _fitted(rows: pa.Table, schema: pa.Schema, key: Sequence[str], owner: str) -> pa.Table:
    given = rows.schema.names
    wanted = schema.names
    twice = sorted({name for name in given if given.count(name) > 1})
    unknown = [name for name in (*given, *key) if name not in wanted]
    missing = [name for name in wanted if name not in given]
    for names, what in (
        (twice, "come twice"),
        (unknown, "do not exist in the table"),
        (missing, "are missing"),
    ):
        if names:
            raise InvalidError(
                f"{owner}: columns {', '.join(map(repr, names))} {what}; expected exactly "
                f"{', '.join(wanted)}, because each row is appended completely"
            )
    columns = [_column(rows.column(field.name), field, owner) for field in schema]
    for name in key:
        _refuse_null(columns[schema.names.index(name)], name, owner, "is in the primary key")
    return pa.table(columns, schema=schema)


def again_after_conflicts(attempt: Callable[[], T]) -> T:
    """The result of an attempt, retried several times after conflicts."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except ConflictError:  # noqa: PERF203  # there are few tries
            continue
    return attempt()


def _column(values: pa.ChunkedArray, field: pa.Field, owner: str) -> pa.ChunkedArray:
    if not field.nullable:
        _refuse_null(values, field.name, owner, "is NOT NULL there")
    try:
        return values.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidError(
            f"{owner}: column {field.name!r} is {field.type}, but the rows have {values.type} "
            f"values that do not fit: {error}; cast them first"
        ) from error


def _refuse_null(values: pa.ChunkedArray, name: str, owner: str, why: str) -> None:
    if values.null_count:
        place = pc.index(pc.is_null(values), True).as_py()
        raise InvalidError(
            f"{owner}: column {name!r} {why}, but {values.null_count} rows are NULL, the first "
            f"is row {place}; set a value in every row"
        )
