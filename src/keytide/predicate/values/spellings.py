"""The forms in which equal values may be stored: some writers do not normalize them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from keytide.format.arrow import polars_schema
from keytide.types import AtomicType, DataType, Field

__all__ = ["POINTS_MAX", "has_one_spelling", "spellings"]

POINTS_MAX = 1 << 20
"""With more values, hashing every combination takes longer than reading files without them."""


_WHOLE_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")


def has_one_spelling(type_: DataType) -> bool:
    """Whether values of a type are equal, for every engine, only if they are identical."""
    return isinstance(type_, AtomicType) and type_.root in (*_WHOLE_NUMBERS, "VARCHAR")


def spellings(values: Sequence[Any] | None, field: Field) -> pa.Array | None:
    """All forms of the values. None if there are too many.

    Some writers keep -0.0, NaNs of all kinds, and trailing blanks of a CHAR.
    """
    if values is None:
        return None
    assert isinstance(field.type, AtomicType)
    if field.type.root in ("FLOAT", "DOUBLE"):
        # NaN, the only value that differs from itself, has as many forms as a float has spare bits.
        if any(value != value for value in values):
            return None
        values = [*values, *(-0.0 for value in values if value == 0)]
    elif field.type.root == "CHAR":
        length = field.type.length or 0
        if len(values) * length > POINTS_MAX:
            return None
        values = [
            value and value.rstrip(" ").ljust(size)
            for value in values
            for size in range(length if value is None else len(value.rstrip(" ")), length + 1)
        ]
    return _array(values, field)


def _array(values: Sequence[Any], field: Field) -> pa.Array:
    if has_one_spelling(field.type):
        return pa.array(values, field.type.to_arrow())
    frame = pl.DataFrame({field.name: values}, schema=polars_schema([field]))
    array = frame.to_arrow(compat_level=pl.CompatLevel.oldest()).column(0).combine_chunks()
    return array.cast(field.type.to_arrow())
