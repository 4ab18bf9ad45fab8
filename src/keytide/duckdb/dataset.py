"""Rows as Arrow datasets, to which DuckDB pushes the columns and conditions of a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from keytide.duckdb.asked import Asked
from keytide.errors import InvalidError
from keytide.predicate.arrow_expression import columns_of_arrow
from keytide.predicate.predicate import Predicate
from keytide.read.row_source import RowSource
from keytide.types import Field

__all__ = ["MadeRows", "Narrowed", "TableRows"]

Narrowed: TypeAlias = "Callable[[Sequence[str], Predicate | None], RowSource]"
"""Creates the scan of some columns and of the rows that match a predicate."""


class MadeRows(ds.Dataset):
    """Rows that are computed for each query."""

    # The base class is not initialized. It only tells DuckDB which methods it can call.
    def __init__(self, schema: pa.Schema, made: Callable[[], Iterable[pa.RecordBatch]]) -> None:
        self._schema = schema
        self._made = made

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **hints: Any,
    ) -> Scanned:
        """The rows of a query. Hints about the batch size are ignored."""
        del hints
        return Scanned(self._made, _picked(self._schema, columns), filter)


class TableRows(ds.Dataset):
    """The rows of a table, restricted to what a query needs before they are read."""

    def __init__(self, table: str, fields: Sequence[Field], narrowed: Narrowed) -> None:
        self._table = table
        self._fields = fields
        self._narrowed = narrowed

    @property
    def schema(self) -> pa.Schema:
        """The columns, all nullable."""
        return pa.schema([pa.field(f.name, f.type.to_arrow()) for f in self._fields])

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **hints: Any,
    ) -> Scanned:
        """See `MadeRows.scanner`. Raises as planning a scan, and for a table that was altered."""
        del hints
        asked = Asked.of(filter, self._fields, self._table)
        shown = _picked(self.schema, columns)
        left = () if asked.left is None else columns_of_arrow(asked.left)
        read = [name for name in self.schema.names if name in {*shown.names, *left}]
        rows = self._narrowed(read or self.schema.names[:1], asked.pushed)
        self._check_types(rows.schema)
        return Scanned(rows.to_batches, shown, asked.left)

    def _check_types(self, found: pa.Schema) -> None:
        for column in found:
            known = self.schema.field(column.name).type
            if column.type != known:
                raise InvalidError(
                    f"table {self._table}: column {column.name} is now {column.type}, but was "
                    f"{known} when it was registered; register the lake again"
                )


@dataclass(frozen=True)
class Scanned:
    """The rows of a query, to which the condition `left` must still be applied."""

    made: Callable[[], Iterable[pa.RecordBatch]]
    schema: pa.Schema
    left: pc.Expression | None

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows, read lazily."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self.made():
            kept = batch if self.left is None else batch.filter(self.left)
            columns = [kept.column(name) for name in self.schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _picked(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])
