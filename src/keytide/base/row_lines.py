"""Rows as lines for programs: JSON lines with one object per row, and CSV.

CSV quotes every string, so an empty string (`""`) and NULL (nothing) are different. Nested values
are JSON inside of CSV. `keytide.base.value_text` defines the format of values.
"""

from __future__ import annotations

import json

import polars as pl
import pyarrow as pa
from pyarrow import csv

from keytide.base.value_text import cell_text, json_text
from keytide.errors import UnsupportedError

__all__ = ["check_spelled", "csv_header", "csv_lines", "frame_of", "has_union", "json_lines"]


def check_spelled(schema: pa.Schema) -> None:
    """Raise `UnsupportedError` for a column of intervals or unions, which have no text format."""
    for field in schema:
        unwritten = _unwritten(field.type)
        if unwritten is not None:
            raise UnsupportedError(
                f"column {field.name!r} contains {unwritten}, which cannot be written; CAST them "
                "AS STRING"
            )


def _unwritten(type_: pa.DataType) -> str | None:
    if pa.types.is_interval(type_):
        return "intervals"
    return "values of a UNION" if has_union(type_) else None


def has_union(type_: pa.DataType) -> bool:
    """Whether a type is a UNION, or contains one."""
    parts = (type_.field(place).type for place in range(type_.num_fields))
    return pa.types.is_union(type_) or any(map(has_union, parts))


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Rows as JSON objects, one per line."""
    parts = []
    for index, field in enumerate(batch.schema):
        name = ("," if index else "{") + json.dumps(field.name, ensure_ascii=False) + ":"
        parts += [pl.lit(name), json_text(pl.nth(index), field.type).fill_null("null")]
    lines = frame_of(batch).select(pl.concat_str(*parts, pl.lit("}\n")).str.join(""))
    return str(lines.item()).encode()


def csv_header(schema: pa.Schema) -> bytes:
    """The header line with the column names."""
    return _csv(
        pa.schema([(name, pa.string()) for name in schema.names]).empty_table(), header=True
    )


def csv_lines(batch: pa.RecordBatch) -> bytes:
    """Rows as lines without a header."""
    columns = [
        _csv_column(column, field)
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]
    return _csv(pa.table(columns, names=batch.schema.names), header=False)


def frame_of(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Rows as a frame. Its columns have their places as names, because two may have one name."""
    frame = pl.from_arrow(rows.rename_columns([str(place) for place in range(rows.num_columns)]))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _csv_column(column: pa.Array, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """Nested values and bytes become strings. Arrow can write all other types."""
    if not (pa.types.is_nested(field.type) or pa.types.is_binary(field.type)):
        return column
    frame = frame_of(pa.table([column], names=["value"]))
    return frame.select(value=cell_text(pl.nth(0), field.type)).to_arrow()["value"]


def _csv(table: pa.Table, *, header: bool) -> bytes:
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=header))
    return bytes(sink.getvalue())
