"""Arrow rows as the strings that the cells of a page show."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from keytide.base.text import cell_text, check_spelled, frame_of

__all__ = ["Cell", "Column", "columns_of", "rows_of"]

Cell = str | None
"""A string as it is shown, truncated if it is long. None for NULL."""

_TEXT_MAX = 400


@dataclass(frozen=True)
class Column:
    """A column of rows that are shown."""

    name: str
    type: str
    is_number: bool


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """The columns of some rows."""
    return tuple(Column(f.name, str(f.type), _is_number(f.type)) for f in schema)


def rows_of(rows: pa.Table) -> list[tuple[Cell, ...]]:
    """The rows as strings. Raises `UnsupportedError` for a type without a text format."""
    check_spelled(rows.schema)
    if not rows.num_columns:
        return []
    texts = frame_of(rows).select(
        _cut(cell_text(pl.nth(i), field.type)).alias(str(i)) for i, field in enumerate(rows.schema)
    )
    return texts.rows()


def _cut(value: pl.Expr) -> pl.Expr:
    is_long = value.str.len_chars() > _TEXT_MAX
    return pl.when(is_long).then(value.str.slice(0, _TEXT_MAX) + "…").otherwise(value)


def _is_number(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    )
