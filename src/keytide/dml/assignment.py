"""New values of columns: those given in Python, and which values SQL stores in a column.

A number can go to any numeric column that holds it without loss, a string to date and time columns,
and a date to a timestamp column. Any other conversion needs a CAST.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from keytide.base.arguments import shown
from keytide.errors import InvalidError
from keytide.predicate.value_columns import cast_exactly
from keytide.types import AtomicType, Field

# -- values given in Python ------------------------------------------------------------------------


def given_values(given: Mapping[str, Any], call: str) -> dict[str, str | pa.Scalar]:
    """The values of columns: strings are SQL expressions, and anything else is a literal.

    A literal has the type that SQL gives it. Raises `InvalidError` for a value without one.
    """
    if not given:
        raise InvalidError(f"{call} sets no columns; give {{'column': value}}")
    return {
        name: value if isinstance(value, str) else _literal(value, name)
        for name, value in given.items()
    }


def _literal(value: Any, column: str) -> pa.Scalar:
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item()
    with suppress(ArithmeticError, LookupError, ValueError, TypeError, pa.ArrowException):
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            return _number(Decimal(value))
        if isinstance(value, datetime) and value.tzinfo is not None:
            return pa.scalar(value.astimezone(timezone.utc), pa.timestamp("us", "UTC"))
        if not isinstance(value, time) or value.tzinfo is None:
            types_ = [type_ for kind, type_ in _LITERALS if isinstance(value, kind)]
            return pa.scalar(value, types_[0])
    raise InvalidError(
        f"column {column!r} is set to {shown(value)} of type {type(value).__name__}, for which "
        "SQL has no literal; give an expression as a string"
    )


_LITERALS = (
    (type(None), pa.null()), (bool, pa.bool_()), (float, pa.float64()), (bytes, pa.binary()),
    (datetime, pa.timestamp("us")), (date, pa.date32()), (time, pa.time64("us")),
)  # fmt: skip


def _number(value: Decimal) -> pa.Scalar:
    """A number. Raises `ValueError` for one that does not fit into a DECIMAL."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(value)
    scale = max(0, -exponent)
    precision = max(len(digits) + max(exponent, 0), scale)
    if precision > _DIGITS_MAX:
        raise ValueError(value)
    if scale == 0 and precision < _LONG_DIGITS:
        bits = int(value).bit_length()
        return pa.scalar(int(value), pa.int32() if bits < 32 else pa.int64())
    return pa.scalar(value, pa.decimal128(max(1, precision), scale))


_DIGITS_MAX = 38
_LONG_DIGITS = 19


# -- the assignment rules of INSERT: which values SQL stores in a column ---------------------------


def assign(column: pa.ChunkedArray, field: Field, table: str) -> pa.ChunkedArray:
    """A column of a query result, converted to the type of a table column.

    Raises `InvalidError`, which names the column, both types and the first value that does not fit.
    """
    target = field.type.to_arrow()
    if column.type.equals(target) and not types.is_timestamp(target):
        return column
    if column.null_count == len(column):
        # The engine chooses an arbitrary type for a column that is only NULL.
        return pa.chunked_array([pa.nulls(len(column), target)])
    check_assignable(column.type, field, table)
    try:
        chunks = [_stored(chunk, target) for chunk in column.chunks]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidError(
            f"table {table}: column {field.name!r} is {field.type.sql()}, found {column.type} "
            f"with a value that does not fit: {error}"
        ) from error
    precision = field.type.precision if isinstance(field.type, AtomicType) else None
    if types.is_timestamp(target) and precision is not None and precision < _DIGITS[target.unit]:
        # Truncate fractions of a second that the column does not hold but its Arrow unit does.
        step, unit = 10 ** (_DIGITS[target.unit] - precision), _UNIT_NAMES[target.unit]
        plain = [chunk.cast(pa.timestamp(target.unit)) for chunk in chunks]
        chunks = [pc.floor_temporal(c, multiple=step, unit=unit).cast(target) for c in plain]
    return pa.chunked_array(chunks, type=target)


def stored_values(
    columns: Sequence[pa.ChunkedArray], fields: Sequence[Field], table: str
) -> list[pa.Array]:
    """New values in the types of their columns.

    Raises `InvalidError` for a type or value that a column does not accept, including NULL.
    """
    made = []
    for column, field in zip(columns, fields, strict=True):
        stored = assign(column, field, table).combine_chunks()
        if stored.null_count and not field.type.nullable:
            raise InvalidError(
                f"table {table}: NULL value not allowed for NOT NULL column: {field.name}; nothing "
                f"was changed"
            )
        made.append(stored)
    return made


def check_assignable(source: pa.DataType, field: Field, table: str) -> None:
    """Refuse types that SQL does not convert without a CAST."""
    if not _is_assignable(source, field.type.to_arrow()):
        raise InvalidError(
            f"table {table}: column {field.name!r} is {field.type.sql()}, but the query returns "
            f"{source}; to convert it, use CAST(... AS {field.type.with_nullable(True).sql()})"
        )


def _is_assignable(source: pa.DataType, target: pa.DataType) -> bool:
    if types.is_null(source) or source.equals(target):
        return True
    if types.is_map(target):
        return types.is_map(source) and all(
            _is_assignable(s, t)
            for s, t in ((source.key_type, target.key_type), (source.item_type, target.item_type))
        )
    if types.is_list(target):
        return bool(
            types.is_list(source) or types.is_large_list(source) or types.is_fixed_size_list(source)
        ) and _is_assignable(source.value_type, target.value_type)
    if types.is_struct(target):
        return (
            types.is_struct(source)
            and source.num_fields == target.num_fields
            and all(_is_assignable(s.type, t.type) for s, t in zip(source, target, strict=True))
        )
    return _class(source) in _STORES.get(_class(target), ())


_STORES = {
    "number": ("number",),
    "text": ("text",),
    "bytes": ("bytes",),
    "boolean": ("boolean",),
    "date": ("date", "text"),
    "time": ("time", "text"),
    "timestamp": ("timestamp", "date", "text"),
}


def _class(type_: pa.DataType) -> str:
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        return "number"
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return "text"
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return "bytes"
    for name in ("boolean", "date", "time", "timestamp"):
        if getattr(types, f"is_{name}")(type_):
            return name
    return str(type_)


def _stored(array: pa.Array, target: pa.DataType) -> pa.Array:
    if array.type.equals(target):
        return array
    if types.is_struct(target):
        # The fields of ROW(...) have no names, so their position decides.
        members = [_stored(array.field(i), target.field(i).type) for i in range(len(target))]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(members, fields=list(target), mask=mask)
    if types.is_map(target):
        # The result must not be a slice. Engines return whole chunks, and concatenating guarantees
        # it.
        whole = pa.concat_arrays([array])
        keys, items = _stored(whole.keys, target.key_type), _stored(whole.items, target.item_type)
        mask = whole.is_null() if whole.null_count else None
        return pa.MapArray.from_arrays(whole.offsets, keys, items, type=target, mask=mask)
    if types.is_list(target):
        whole = pa.concat_arrays([array]).cast(pa.list_(array.type.value_type))
        values = _stored(whole.values, target.value_type)
        mask = whole.is_null() if whole.null_count else None
        return pa.ListArray.from_arrays(whole.offsets, values, type=target, mask=mask)
    if types.is_timestamp(target):
        # Smaller fractions of a second are truncated. Strings and times without a zone are in UTC.
        if not types.is_timestamp(array.type):
            unit = "ns" if target.unit == "ns" else "us"
            if _class(array.type) == "text":
                array = pc.replace_substring_regex(array, _TOO_FINE[unit], r"\1")
            array = array.cast(pa.timestamp(unit))
        # The same instants in UTC, because rounding down must not depend on the time zone.
        array = array.cast(pa.timestamp(array.type.unit, tz=array.type.tz and "UTC"))
        array = pc.floor_temporal(array, unit=_UNIT_NAMES[target.unit])
        return array.cast(pa.timestamp(target.unit, array.type.tz)).cast(target)
    if types.is_floating(target):
        if types.is_decimal(array.type):
            array = array.cast(
                pa.string()
            )  # the nearest number, which Arrow's own cast does not give
        return array.cast(pa.float64()).cast(target, safe=False)
    return cast_exactly(array, target)


_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_TOO_FINE = {"us": r"(\.\d{6})\d+", "ns": r"(\.\d{9})\d+"}
"""Digits of a string that no Arrow unit can hold."""
_UNIT_NAMES = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}
