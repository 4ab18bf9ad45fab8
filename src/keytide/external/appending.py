"""Rows for tables that others keep, appended as one commit of the table's own engine.

Whatever is wrong with rows, or with a table to which this release cannot append, is refused before
anything is written: a column that is missing or not known, a value that is none of its column's
type, a NULL where the table takes none or in a key. An append is based on nothing but the columns,
so one that loses against another writer is made again, on the columns as they are then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from keytide.dml.spool import Spool
from keytide.errors import ConflictError, InvalidError

__all__ = ["Appender", "FittingRows", "Rows", "again_after_conflicts", "fitting"]

T = TypeVar("T")
Rows: TypeAlias = pa.Table | Spool
"""Rows of one schema that are held, or lie on disk, and can be read again and again."""

_TRIES = 5


class Appender(Protocol):
    """A table to which rows are appended."""

    @property
    def location(self) -> str:
        """Where it is, for messages: without any secret."""
        ...

    def append(self, rows: Rows, key: Sequence[str]) -> str | None:
        """Append rows, all of them or none, as one commit; returns what people call it, if any.

        There is at least one.

        `rows` have all columns of the table, in any order; none of `key` is NULL. Raises
        `InvalidError` for other rows, `UnsupportedError` naming what this release cannot write,
        `NotFoundError` where there is no table: nothing was written then. `ConflictError` after
        some tries against other writers: nothing was committed, but files of the tries may be left
        to the table's own clean-up. `DataError` where the table does not answer; it may then have
        the rows, or not.
        """
        ...


@dataclass(frozen=True)
class FittingRows:
    """Rows with the columns of a schema, in its order and its types."""

    schema: pa.Schema
    parts: Callable[[], Iterator[pa.Table]]
    """All of them, as often as they are asked for."""

    def reader(self) -> pa.RecordBatchReader:
        """The rows, of which few are held."""
        batches = (batch for part in self.parts() for batch in part.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def table(self) -> pa.Table:
        """The rows, held."""
        return pa.concat_tables(self.parts())


def fitting(rows: Rows, schema: pa.Schema, key: Sequence[str], owner: str) -> FittingRows:
    """The rows as a schema has them.

    Raises `InvalidError` naming the column that does not fit, in whichever row that is.
    """
    if isinstance(rows, pa.Table):
        held = _fitted(rows, schema, key, owner)
        return FittingRows(schema, lambda: iter([held]))
    spool = rows

    def parts() -> Iterator[pa.Table]:
        return (_fitted(part, schema, key, owner) for part in spool.tables())

    for _ in parts():  # nothing is written before all rows are known to fit
        pass
    return FittingRows(schema, parts)


def _fitted(rows: pa.Table, schema: pa.Schema, key: Sequence[str], owner: str) -> pa.Table:
    _check_names(rows.schema.names, schema.names, key, owner)
    columns = [_column(rows.column(field.name), field, owner) for field in schema]
    for name in key:
        _refuse_null(columns[schema.names.index(name)], name, owner, "is in the primary key")
    return pa.table(columns, schema=schema)


def again_after_conflicts(attempt: Callable[[], T]) -> T:
    """What an attempt gives that may be made again, as it is after some tries."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except ConflictError:  # noqa: PERF203  # there are few tries
            continue
    return attempt()


def _check_names(
    given: Sequence[str], wanted: Sequence[str], key: Sequence[str], owner: str
) -> None:
    twice = sorted({name for name in given if given.count(name) > 1})
    unknown = [name for name in (*given, *key) if name not in wanted]
    missing = [name for name in wanted if name not in given]
    for names, what in (
        (twice, "come twice"),
        (unknown, "are not known"),
        (missing, "are missing"),
    ):
        if names:
            raise InvalidError(
                f"{owner}: of the columns of the rows {', '.join(map(repr, names))} {what}; "
                f"expected are exactly {', '.join(wanted)}, for every row is appended whole"
            )


def _column(values: pa.ChunkedArray, field: pa.Field, owner: str) -> pa.ChunkedArray:
    if not field.nullable:
        _refuse_null(values, field.name, owner, "is NOT NULL there")
    try:
        return values.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidError(
            f"{owner}: column {field.name!r} is of {field.type}, and the rows have values of "
            f"{values.type} that do not fit: {error}; cast them first"
        ) from error


def _refuse_null(values: pa.ChunkedArray, name: str, owner: str, why: str) -> None:
    if values.null_count:
        place = pc.index(pc.is_null(values), True).as_py()
        raise InvalidError(
            f"{owner}: column {name!r} {why}, and has {values.null_count} NULL, the first in row "
            f"{place}; give every row a value"
        )
