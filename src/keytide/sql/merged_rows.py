"""The result of a MERGE query as pages for sinks. Executors run this.

This module does not import the SQL parser, so that executors need not load it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from keytide.dml.engine import SinkPages
from keytide.dml.spi import ColumnHandle
from keytide.errors import InvalidError
from keytide.sql.assign import stored_values
from keytide.sql.pass_through import ROW, PassThrough
from keytide.types import Field

CASE = "$case"


class MergedPage(NamedTuple):
    """A page for a sink, and the number of statement rows that it represents."""

    page: pa.RecordBatch
    rows: int


@dataclass(frozen=True)
class Branch:
    """One WHEN clause: its action, and the columns that it sets.

    The columns in `matched` get the values by which the rows matched.
    """

    kind: str
    action: str
    fields: tuple[Field, ...] = ()
    matched: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it sets."""
        return tuple(field.name for field in self.fields)

    def updated(self, key: Collection[str]) -> tuple[str, ...]:
        """The columns that it changes, without key columns that certainly keep their value."""
        kept = self.matched & set(key) if self.kind == "MATCHED" else ()
        return tuple(name for name in self.names if name not in kept) or self.names


def value_name(number: int, place: int) -> str:
    """The query column that contains a WHEN clause's new value for a column."""
    return f"$value_{number}_{place}"


@dataclass(frozen=True)
class MergedRows:
    """Converts rows of a MERGE query to pages for sinks. Can be pickled."""

    table: str
    branches: tuple[Branch, ...]

    def pages(
        self, found: pa.RecordBatch, passed: PassThrough, pages: SinkPages
    ) -> Iterator[MergedPage]:
        """The pages for sinks from some rows of the query.

        Raises `InvalidError` for values that do not fit their columns.
        """
        for number, branch in enumerate(self.branches):
            rows = found.filter(pc.equal(found.column(CASE), number))
            if rows.num_rows:
                yield MergedPage(self._page(number, branch, rows, passed, pages), rows.num_rows)

    def _page(
        self,
        number: int,
        branch: Branch,
        rows: pa.RecordBatch,
        passed: PassThrough,
        pages: SinkPages,
    ) -> pa.RecordBatch:
        if branch.action == "DELETE":
            return pages.deleted(passed.row_ids(rows))
        columns = [
            pa.chunked_array([rows.column(value_name(number, i))])
            for i in range(len(branch.fields))
        ]
        given = stored_values(columns, branch.fields, self.table)
        values = dict(zip(branch.names, given, strict=True))
        if branch.action == "UPDATE":
            kept = [
                values[c.name] if c.name in values else passed.column(rows, c.name)
                for c in pages.columns
            ]
            return pages.updated(kept, passed.row_ids(rows), number)
        made = [
            values[c.name] if c.name in values else _left_out(c, rows.num_rows, self.table)
            for c in pages.columns
        ]
        return pages.inserted(made, number)


class MatchedRows:
    """The target rows that were matched so far. Needs at most one bit per row."""

    def __init__(self, table: str) -> None:
        self._table, self._places = table, BitMap64()

    def take(self, found: pa.RecordBatch) -> None:
        """Add rows of the query. Raises `InvalidError` if a target row occurs again."""
        places = found.column(ROW).drop_null().to_numpy(zero_copy_only=False)
        some = BitMap64(places.astype(np.uint64))
        if len(some) < len(places) or not self._places.isdisjoint(some):
            raise InvalidError(
                f"table {self._table}: One MERGE target table row matched more than one source "
                "row, so the result is ambiguous; nothing was changed. Use one source row per "
                "key, or make the WHEN conditions exclude each other"
            )
        self._places |= some


def _left_out(column: ColumnHandle, rows: int, table: str) -> pa.Array:
    """The values that an INSERT stores in a column that it omits."""
    if column.default is not None:
        return pa.repeat(column.default, rows)
    if not column.nullable:
        raise InvalidError(
            f"table {table}: NULL value not allowed for NOT NULL column: {column.name}, which "
            "the INSERT does not set; nothing was changed"
        )
    return pa.nulls(rows, column.type)
