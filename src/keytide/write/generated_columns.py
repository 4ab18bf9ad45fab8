"""Computes the values of generated columns in incoming rows.

If a row has no value, or NULL, the value is computed. A given value must equal the computed one.
Rows are refused if the value cannot be computed or differs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.definition.column_rules import GeneratedColumn, generated_columns
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.merge.refusal import Refusal, named_rows
from keytide.options import TableOptions
from keytide.predicate.value_columns import key_column, stored_column
from keytide.snapshot.state import TableView

# -- generated columns -----------------------------------------------------------------------------


Flags = npt.NDArray[np.bool_]
Columns = Mapping[str, pa.ChunkedArray]


class Generated(NamedTuple):
    """Columns with all values of generated columns, and the refused rows."""

    columns: dict[str, pa.ChunkedArray]
    refusals: tuple[Refusal, ...]


def generated(
    given: Columns, retracts: Flags, schema: TableSchema, options: TableOptions, table: str
) -> Generated:
    """The rows (with all columns of the table) with the values of generated columns.

    A row that retracts may contain only its key. In this case, only the given value is checked.
    """
    columns, refusals = dict(given), []
    for column in generated_columns(schema, options):
        name, own = column.field.name, given[column.field.name]
        made, failed = computed_values(column, given, schema, table)
        judged = ~retracts | (name in schema.primary_keys)
        differs = np.zeros(len(own), np.bool_)
        if own.null_count < len(own):
            brought = pl.Series(own)
            is_other = brought.is_not_null() & brought.ne_missing(pl.Series(made))
            differs = judged & ~failed & is_other.to_numpy()
        brings = (
            f"the row contains another {name!r} than GENERATED ALWAYS AS ({column.text}) computes"
        )
        code, read = f"generated-{name}", column.columns
        refusals.append(Refusal(judged & failed, _why_failed(column), code, read))
        refusals.append(Refusal(differs, brings, code, (name, *read)))
        columns[name] = pc.if_else(pc.is_valid(own), own, made)
    return Generated(columns, tuple(refusals))


def computed_values(
    column: GeneratedColumn, given: Columns, schema: TableSchema, table: str
) -> tuple[pa.ChunkedArray, Flags]:
    """The values of a generated column, and for which rows they cannot be computed.

    Raises `InvalidError` for a value that does not fit the column.
    """
    count = len(given[column.field.name])
    read = pa.table({name: given[name] for name in column.columns} or {"": pa.nulls(count)})
    values, failed = column.expression.tried(read, column.field)
    is_placing = column.field.name in (*schema.primary_keys, *schema.partition_keys)
    stored = key_column if is_placing else stored_column
    return stored(values, column.field, table), failed


def regenerated(
    rows: pa.RecordBatch, view: TableView, kept: Collection[str] = ()
) -> pa.RecordBatch:
    """After images of rows with recomputed generated columns, except for those in `kept`.

    Raises `InvalidError`, which names the row, if a value cannot be computed.
    """
    columns = generated_columns(view.schema, view.options)
    if not columns:
        return rows
    given = {name: pa.chunked_array([rows.column(name)]) for name in view.schema.names}
    for column in columns:
        name = column.field.name
        if name in kept:
            continue
        made, failed = computed_values(column, given, view.schema, view.name)
        if failed.any():
            found = pl.DataFrame({n: pl.Series(given[n]) for n in column.columns})
            named = named_rows(found.filter(pl.Series(failed)), column.columns)
            raise InvalidError(f"table {view.name}: {_why_failed(column)}; examples: {named}")
        given[name] = made
    arrays = []
    for name in view.schema.names:
        made_rows = given[name].combine_chunks()
        is_chunked = isinstance(made_rows, pa.ChunkedArray)
        arrays.append(made_rows.chunk(0) if is_chunked else made_rows)
    return pa.record_batch(arrays, list(view.schema.names))


def filled(rows: pa.RecordBatch, view: TableView) -> pa.RecordBatch:
    """Complete rows, with generated columns filled where they are missing.

    Raises like `regenerated`.
    """
    made = generated_columns(view.schema, view.options)
    if not any(rows.column(column.field.name).null_count for column in made):
        return rows
    computed = regenerated(rows, view)
    columns = {name: rows.column(name) for name in rows.schema.names}
    for name in (column.field.name for column in made):
        given = columns[name]
        columns[name] = pc.if_else(pc.is_valid(given), given, computed.column(name))
    return pa.record_batch(list(columns.values()), list(columns))


def _why_failed(column: GeneratedColumn) -> str:
    return f"column {column.field.name!r}, GENERATED ALWAYS AS ({column.text}), cannot be computed"
