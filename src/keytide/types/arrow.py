"""Conversion of Arrow types to logical types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from keytide.errors import InvalidError
from keytide.types.logical import (
    LENGTH_MAX,
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    RowType,
)

__all__ = ["type_from_arrow"]


def type_from_arrow(arrow_type: pa.DataType, nullable: bool = True) -> DataType:
    """The narrowest logical type that holds every value of an Arrow type.

    Unsigned integers are widened (uint64 to DECIMAL(20, 0)). Large types, view types and
    dictionaries become the plain type. Any time zone gives the timestamp type with local time zone.
    Field ids are -1. Raises InvalidError for null, interval and duration columns and for times
    finer than milliseconds. The message names the cast to use.
    """
    if isinstance(arrow_type, pa.BaseExtensionType):
        return type_from_arrow(arrow_type.storage_type, nullable)
    if pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
        return type_from_arrow(arrow_type.value_type, nullable)
    for matches, convert in _FROM_ARROW:
        if matches(arrow_type):
            return convert(arrow_type).with_nullable(nullable)
    raise InvalidError(
        f"Arrow type {arrow_type} has no table type: "
        f"{_WAY_OUT.get(arrow_type.id, 'cast the column to a supported type first')}"
    )


def _atomic(root: str, **parameters: Any) -> Callable[[pa.DataType], DataType]:
    made = AtomicType(root, **parameters)
    return lambda _: made


def _decimal_from_arrow(arrow_type: pa.DataType) -> DataType:
    return AtomicType("DECIMAL", precision=arrow_type.precision, scale=arrow_type.scale)


def _binary_from_arrow(arrow_type: pa.DataType) -> DataType:
    return AtomicType("BINARY", length=arrow_type.byte_width)


def _time_from_arrow(arrow_type: pa.DataType) -> DataType:
    # TIME is stored in milliseconds. Finer times are refused above.
    return AtomicType("TIME", precision=0 if arrow_type.unit == "s" else 3)


def _timestamp_from_arrow(arrow_type: pa.DataType) -> DataType:
    precision = {"s": 0, "ms": 3, "us": 6, "ns": 9}[arrow_type.unit]
    return AtomicType("TIMESTAMP" if arrow_type.tz is None else "TIMESTAMP_LTZ", None, precision)


def _map_from_arrow(arrow_type: pa.DataType) -> DataType:
    value = arrow_type.item_field
    # Arrow keys are never NULL. The plain key type is the one that DDL writes.
    return MapType(
        type_from_arrow(arrow_type.key_type), type_from_arrow(value.type, value.nullable)
    )


def _array_from_arrow(arrow_type: pa.DataType) -> DataType:
    element = arrow_type.value_field
    return ArrayType(type_from_arrow(element.type, element.nullable))


def _row_from_arrow(arrow_type: pa.DataType) -> DataType:
    members = (arrow_type.field(i) for i in range(arrow_type.num_fields))
    return RowType(tuple(Field(-1, m.name, type_from_arrow(m.type, m.nullable)) for m in members))


def _is_text(arrow_type: pa.DataType) -> bool:
    is_text = pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type)
    return bool(is_text or pa.types.is_string_view(arrow_type))


def _is_bytes(arrow_type: pa.DataType) -> bool:
    is_bytes = pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type)
    return bool(is_bytes or pa.types.is_binary_view(arrow_type))


def _is_list(arrow_type: pa.DataType) -> bool:
    is_list = pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)
    is_view = pa.types.is_list_view(arrow_type) or pa.types.is_large_list_view(arrow_type)
    return bool(is_list or is_view or pa.types.is_fixed_size_list(arrow_type))


_FROM_ARROW: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], DataType]]] = (
    (pa.types.is_boolean, _atomic("BOOLEAN")),
    (pa.types.is_int8, _atomic("TINYINT")),
    (pa.types.is_int16, _atomic("SMALLINT")),
    (pa.types.is_int32, _atomic("INT")),
    (pa.types.is_int64, _atomic("BIGINT")),
    (pa.types.is_uint8, _atomic("SMALLINT")),
    (pa.types.is_uint16, _atomic("INT")),
    (pa.types.is_uint32, _atomic("BIGINT")),
    (pa.types.is_uint64, _atomic("DECIMAL", precision=20, scale=0)),
    (pa.types.is_float16, _atomic("FLOAT")),
    (pa.types.is_float32, _atomic("FLOAT")),
    (pa.types.is_float64, _atomic("DOUBLE")),
    (pa.types.is_decimal, _decimal_from_arrow),
    (_is_text, _atomic("VARCHAR", length=LENGTH_MAX)),
    (_is_bytes, _atomic("VARBINARY", length=LENGTH_MAX)),
    (pa.types.is_fixed_size_binary, _binary_from_arrow),
    (pa.types.is_date, _atomic("DATE")),
    (pa.types.is_time32, _time_from_arrow),
    (pa.types.is_timestamp, _timestamp_from_arrow),
    (pa.types.is_map, _map_from_arrow),
    (_is_list, _array_from_arrow),
    (pa.types.is_struct, _row_from_arrow),
)

_WAY_OUT: Mapping[int, str] = {
    pa.null().id: "the column contains only NULLs; cast it to the intended type",
    pa.time64("us").id: "TIME has milliseconds; cast the column to pa.time32('ms') first",
    pa.duration("us").id: "cast the duration to int64 and put its unit into the column name",
    pa.month_day_nano_interval().id: "split the interval into integer columns first",
}
