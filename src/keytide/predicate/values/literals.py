"""Single values from users, as a write would store them.

Converts values from a user to values as a write would store them.

Rows of dicts, lookup keys, partitions and defaults all use this code, so a value means the same in
each of them: exactly what is stored, or an error.

The forms in which equal values may be stored: some writers do not normalize them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.arguments import shown
from keytide.errors import InvalidError
from keytide.format.arrow import polars_schema
from keytide.predicate.values.columns import key_column, stored_column
from keytide.types import AtomicType, DataType, Field

# -- converts values from a user to values as a write would store them -----------------------------


def array_of(values: Sequence[Any], field: Field, table: str) -> pa.Array:
    """Python values as an array of the column's Arrow type, each unchanged.

    Raises `InvalidError`, which names the column, for a value that Arrow would refuse, or truncate
    to fit, such as 1.5 to an integer.
    """
    try:
        return _unchanged(values, field.type.to_arrow())
    except Exception as error:  # a caller's value may raise anything
        raise InvalidError(
            f"table {table}: column {field.name!r} is {field.type.sql()}, found a value that does "
            f"not fit: {error}"
        ) from error


def key_value(value: Any, field: Field, table: str) -> pa.Scalar:
    """One value of a primary key column as it is stored: a Python value, or an Arrow scalar.

    Raises `InvalidError` like a write of the value. NULL is accepted.
    """
    return key_values([value], field, table)[0]


def key_values(values: Sequence[Any], field: Field, table: str) -> pa.ChunkedArray:
    """Values of one kind of a primary key column, converted like `key_value`."""
    scalar = next((value for value in values if isinstance(value, pa.Scalar)), None)
    try:
        given = (
            _unchanged(values, field.type.to_arrow())
            if scalar is None
            else pa.array(values, type=scalar.type)
        )
    except Exception as error:  # a caller's value may raise anything
        found = values[0] if len(values) == 1 else values
        kind = "" if len(values) > 1 else f" of type {type(found).__name__}"
        raise InvalidError(
            f"table {table}: key column {field.name!r} is {field.type.sql()}, found "
            f"{shown(found)}{kind}; give {'a value' if kind else 'values'} of the column's type: "
            f"{error}"
        ) from error
    return key_column(pa.chunked_array([given]), field, table)


def scalar_of_text(text: str, field: Field, table: str) -> pa.Scalar:
    """A value written as a string, of any type except binary types.

    Times without a time zone are in UTC. Raises `InvalidError` for a string that is not a value of
    the column, or that does not fit it.
    """
    try:
        column = pa.chunked_array([array_of_texts([text], field.type.to_arrow())])
    except _NO_VALUE as error:
        raise InvalidError(
            f"table {table}: column {field.name!r} is {field.type.sql()}, found {text!r}, which "
            f"is not a value of this type: {error}"
        ) from error
    return stored_column(column, field, table)[0]


def array_of_texts(texts: Sequence[str], target: pa.DataType) -> pa.Array:
    """Convert strings to values. Times without a time zone are in UTC.

    Raises an Arrow error or a `ValueError` for a string that is not a value.
    """
    if pa.types.is_time(target):
        return _times(texts, target)
    if pa.types.is_timestamp(target):
        # Arrow refuses digits beyond the unit even if they are zeros.
        texts = [_without_spare_digits(text) for text in texts]
        if target.tz is not None:
            texts = [text if _ZONE.search(text) else _in_utc(text) for text in texts]
    return pa.array(texts, pa.string()).cast(target)


_ZONE = re.compile(r":.*([Zz]|[+-]\d\d(:?\d\d)?)$")
_SPARE_DIGITS = re.compile(r"(\.\d*?)0+(?!\d)")


def _without_spare_digits(text: str) -> str:
    return _SPARE_DIGITS.sub(lambda m: "" if m[1] == "." else m[1], text)


def _in_utc(text: str) -> str:
    return (text if ":" in text else f"{text.strip()} 00:00:00") + "Z"


def _times(texts: Sequence[str], target: pa.DataType) -> pa.Array:
    # Arrow has no cast for these. They are read as times of the first day.
    days = pa.array([f"1970-01-01 {_without_spare_digits(text)}" for text in texts], pa.string())
    return days.cast(pa.timestamp(target.unit)).cast(target)


_NO_VALUE = (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError)


def _unchanged(given: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """An array of the values. Raises one of `_NO_VALUE` for a value that would change."""
    made = pa.array(given, type=type_)
    kept = made.to_pylist()
    # The common case, checked by one comparison of lists.
    if kept == given:
        return made
    for before, after in zip(given, kept, strict=True):
        if not _is_same(before, after):
            raise ValueError(f"{before!r} would become {after!r}")
    return made


def _is_same(given: Any, kept: Any) -> bool:
    if given is None or kept is None:
        return given is kept
    if isinstance(kept, list | tuple):
        items = list(given.items() if isinstance(given, Mapping) else given)
        return len(items) == len(kept) and all(map(_is_same, items, kept))
    if isinstance(kept, dict):
        return given.keys() == kept.keys() and all(_is_same(given[n], kept[n]) for n in kept)
    if isinstance(kept, float):
        nearest = math.isfinite(kept) and kept == np.float32(given)
        return bool(given == kept or nearest or (given != given and kept != kept))
    return bool(given == kept)


# -- the forms in which equal values may be stored -------------------------------------------------


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
