"""The result of a MERGE query as pages for sinks. Executors run this.

This module does not import the SQL parser, so that executors need not load it. Row ids and values
that do not change are passed through an engine unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from keytide.base.dataclass import dataclass
from keytide.dml.assignment import stored_values
from keytide.dml.engine import SinkPages
from keytide.dml.spi import ROW_ID, ColumnHandle
from keytide.errors import InvalidError, UnsupportedError
from keytide.types import Field

# -- columns passed through an engine --------------------------------------------------------------


ROW = "$row"
"""The column that contains the positions of rows."""


@dataclass(frozen=True)
class PassThrough:
    """Target columns that an engine passes through, in types that it does not change.

    For example, no engine keeps nanoseconds of a timestamp with time zone, but it keeps them as
    numbers.
    """

    row_id: pa.DataType
    columns: tuple[ColumnHandle, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, under their names in the engine."""
        ids = [f"$id_{i}" for i in range(len(self._members))]
        return (*ids, *(f"$kept_{i}" for i in range(len(self.columns))))

    @property
    def _members(self) -> tuple[pa.Field, ...]:
        is_struct = pa.types.is_struct(self.row_id)
        return tuple(self.row_id) if is_struct else (pa.field("id", self.row_id),)

    def read_columns(self, columns: Sequence[ColumnHandle]) -> tuple[ColumnHandle, ...]:
        """The columns to read. The last one of `columns` contains the row ids."""
        *plain, row_id = columns
        known = {column.name for column in plain}
        return (*plain, *(c for c in self.columns if c.name not in known), row_id)

    def schema(self, columns: Sequence[ColumnHandle]) -> pa.Schema:
        """The columns that the engine gets."""
        types = [*(f.type for f in self._members), *(c.type for c in self.columns)]
        for type_ in types:
            _refuse_nested_times(type_)
        passed = [
            pa.field(n, _passed_type(type_)) for n, type_ in zip(self.names, types, strict=True)
        ]
        plain = [pa.field(c.name, c.type) for c in columns[:-1]]
        return pa.schema([*plain, pa.field(ROW, pa.int64()), *passed])

    def engine_page(
        self, page: pa.RecordBatch, columns: Sequence[ColumnHandle], start: int, schema: pa.Schema
    ) -> pa.RecordBatch:
        """A page in the form for the engine. `start` is the position of its first row."""
        ids = page.column(ROW_ID)
        members = ids.flatten() if pa.types.is_struct(self.row_id) else [ids]
        carried = [page.column(c.name) for c in self.columns]
        passed = []
        for array in (*members, *carried):
            kept = _passed_type(array.type)
            passed.append(array if kept.equals(array.type) else array.view(kept))
        places = pa.array(np.arange(start, start + page.num_rows), pa.int64())
        plain = [page.column(c.name) for c in columns[:-1]]
        return pa.record_batch([*plain, places, *passed], schema=schema)

    def row_ids(self, found: pa.RecordBatch) -> pa.Array:
        """The row ids in the connector's form."""
        members = [
            _from_passed_type(found.column(f"$id_{i}"), f.type) for i, f in enumerate(self._members)
        ]
        if not pa.types.is_struct(self.row_id):
            return members[0]
        return pa.StructArray.from_arrays(members, fields=list(self._members))

    def column(self, found: pa.RecordBatch, name: str) -> pa.Array:
        """A target column in the connector's form."""
        place = next(i for i, c in enumerate(self.columns) if c.name == name)
        return _from_passed_type(found.column(f"$kept_{place}"), self.columns[place].type)


def _refuse_nested_times(type_: pa.DataType) -> None:
    if not pa.types.is_nested(type_):
        return
    for place in range(type_.num_fields):
        member = type_.field(place).type
        if pa.types.is_timestamp(member) and member.unit == "ns":
            raise UnsupportedError(
                f"a column has nanoseconds in a nested value ({type_}), which the SQL engines do "
                "not support, so its rows cannot be changed this way; write whole rows instead"
            )
        _refuse_nested_times(member)


def _passed_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_time32(type_):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(type_) or pa.types.is_time64(type_) else type_


def _from_passed_type(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if array.type.equals(type_):
        return array
    return array.view(type_) if _passed_type(type_).equals(array.type) else array.cast(type_)


# -- pages for sinks -------------------------------------------------------------------------------


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
            if not rows.num_rows:
                continue
            if branch.action == "DELETE":
                yield MergedPage(pages.deleted(passed.row_ids(rows)), rows.num_rows)
                continue
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
                page = pages.updated(kept, passed.row_ids(rows), number)
            else:
                made = []
                for column in pages.columns:
                    if column.name in values:
                        made.append(values[column.name])
                    elif column.default is not None:
                        made.append(pa.repeat(column.default, rows.num_rows))
                    elif column.nullable:
                        made.append(pa.nulls(rows.num_rows, column.type))
                    else:
                        raise InvalidError(
                            f"table {self.table}: NULL value not allowed for NOT NULL column: "
                            f"{column.name}, which the INSERT does not set; nothing was changed"
                        )
                page = pages.inserted(made, number)
            yield MergedPage(page, rows.num_rows)


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
