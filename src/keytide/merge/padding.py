"""`sequence.auto-padding`: sequence numbers derived from a coarse sequence field.

Paimon releases before 0.8 stored the padded number as the record's sequence number. Keytide does
the same, so every reader can use it for ordering. Functions are applied left to right.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from keytide.errors import InvalidError
from keytide.options import keys

__all__ = ["padded_sequence"]

_INT64_MIN = -(2**63)


def padded_sequence(
    field: pl.Series, is_add: pl.Series, counter: pl.Series, paddings: tuple[str, ...]
) -> pl.Series:
    """The sequence numbers of rows: `field` as an integer, padded.

    `counter` increases by one per row and fills the digits that a coarse clock lacks. Timestamps
    count milliseconds and dates count days. Fractions are truncated, and strings are parsed. NULL
    is lowest. Raises `InvalidError` for a type that cannot be converted.
    """
    value: pl.Series = _as_integer(field)
    for padding in paddings:
        if padding == "row-kind-flag":
            value = value * 2 + is_add.cast(pl.Int64)
        elif padding == "second-to-micro":
            seconds = value // 1000 if field.dtype == pl.Datetime else value
            value = seconds * 1_000_000 + counter % 1_000_000
        else:
            value = value * 1000 + counter % 1000
    padded: pl.Series = value.fill_null(_INT64_MIN)
    return padded


def _as_integer(field: pl.Series) -> Any:
    dtype = field.dtype
    if dtype == pl.Datetime:
        return field.dt.epoch("ms")
    if dtype == pl.Date:
        return field.to_physical().cast(pl.Int64)
    if dtype == pl.String:
        return _parsed(field)
    if dtype.is_float():
        return field.cast(pl.Int64, strict=False)
    if dtype.is_decimal():
        return _truncated(field)
    if dtype.is_integer():
        return field.cast(pl.Int64)
    raise InvalidError(
        f"sequence field {field.name!r} is {dtype}, which '{keys.SEQUENCE_AUTO_PADDING}' cannot "
        "convert to a number; use a numeric, string, date or timestamp column"
    )


def _parsed(field: pl.Series) -> pl.Series:
    numbers: pl.Series = field.str.strip_chars().cast(pl.Int64, strict=False)
    wrong = field.filter(numbers.is_null() & field.is_not_null())
    if wrong.len():
        raise InvalidError(
            f"sequence field {field.name!r} has the value {wrong[0]!r}, which "
            f"'{keys.SEQUENCE_AUTO_PADDING}' cannot convert to an integer"
        )
    return numbers


def _truncated(field: pl.Series) -> pl.Series:
    # A cast to an integer would round, but Java truncates.
    text = field.cast(pl.String).str.split_exact(".", 1).struct.field("field_0")
    whole: pl.Series = text.cast(pl.Int64)
    return whole
