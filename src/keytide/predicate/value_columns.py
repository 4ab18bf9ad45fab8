"""Columns of values from users, exact and with bounded nesting.

A column is converted to a table's exact type without loss, or refused with a clear error.

Beyond some depth of nested values, Arrow and Polars crash the process. They process lists and dicts
recursively, and a container that contains itself never ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keytide.errors import InvalidError
from keytide.format.arrow import has_nanoseconds
from keytide.format.parquet_encoding import NANOSECONDS_MIN
from keytide.types import LENGTH_MAX, AtomicType, Field, type_from_arrow
from keytide.types.logical import common_type

# -- conversion to the exact type ------------------------------------------------------------------


def stored_column(column: pa.ChunkedArray, field: Field, table: str) -> pa.ChunkedArray:
    """A column as it is stored outside the primary key.

    Raises `InvalidError`, which names the column, for values that would be lost or that do not fit.
    """
    converted = convert_column(column, field, table)
    _check_text(converted, field, table)
    _check_lengths(converted, field, table)

    # NULL elements, entries and members whose type is NOT NULL.
    chunks = converted.chunks if _has_required_part(field.type.to_arrow()) else []
    part = next(filter(None, map(_missing_part, chunks)), None)
    if part is not None:
        raise InvalidError(
            f"table {table}: column {field.name!r} is {field.type.sql()}, found a value "
            f"whose {part} is NULL; set it, or make the whole value NULL"
        )

    # Nanosecond times so early that readers of the format would overflow.
    chunks = converted.chunks if has_nanoseconds(converted.type) else []
    for leaf in (leaf for chunk in chunks for leaf in _leaves(chunk)):
        if not has_nanoseconds(leaf.type):
            continue
        earliest = pc.min(leaf.cast(pa.int64())).as_py()
        if earliest is not None and earliest < NANOSECONDS_MIN:
            raise InvalidError(
                f"table {table}: column {field.name!r} is {field.type.sql()}, found a time "
                "before 1677-09-22, which nanoseconds cannot represent; use TIMESTAMP(6) for "
                "such times"
            )
    return converted


def key_column(column: pa.ChunkedArray, field: Field, table: str) -> pa.ChunkedArray:
    """A column as it is stored in the primary key. Raises like `stored_column`."""
    return as_key(stored_column(column, field, table), field)


def as_key(column: pa.ChunkedArray, field: Field) -> pa.ChunkedArray:
    """A stored column as it is stored in the primary key, where equal values have equal bytes.

    In SQL, -0.0 and 0.0 are equal, and so are CHARs that differ in trailing blanks (rules R27 and
    R28 of docs/semantics.md). But buckets depend on bytes.
    """
    if pa.types.is_floating(column.type):
        # -0.0 + 0.0 is 0.0, and no other value changes.
        return pc.add(column, pa.scalar(0.0, column.type))
    if field.type.root == "CHAR":
        return pc.utf8_rtrim(column, " ")
    return column


def convert_column(column: pa.ChunkedArray, field: Field, table: str) -> pa.ChunkedArray:
    """The column in the exact Arrow type of `field`.

    Integers may change width and become decimals, and decimals and fractions of a second may change
    scale, as long as every value survives. Float becomes double. No other conversions are made.
    Raises `InvalidError`, which names the type found, the type expected, and the first value that
    would be lost.
    """
    target = field.type.to_arrow()
    if column.type.equals(target):
        return column
    # Arrow encodings with the same meaning.
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    elif pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if not _may_convert(column.type, target):
        way_out = f"convert it to {target} before writing{_way_to_widen(column.type, field)}"
        if {_family(column.type), _family(target)} == {"timestamp", "instant"}:
            way_out = "the time zone is ambiguous: add a time zone to the column, or remove it"
        raise InvalidError(
            f"table {table}: column {field.name!r} is {field.type.sql()}, found "
            f"{column.type}; {way_out}"
        )
    try:
        chunks = [_convert(chunk, target, field, table) for chunk in column.chunks]
    except pa.ArrowException as error:
        raise InvalidError(
            f"table {table}: column {field.name!r} is {field.type.sql()}, found {column.type} "
            "with a value that cannot be converted without loss: "
            f"{error}{_way_to_widen(column.type, field)}"
        ) from error
    return pa.chunked_array(chunks, type=target)


def cast_exactly(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Arrow's checked cast. For decimals, it checks the values, not their type."""
    if pa.types.is_decimal(target) and pa.types.is_integer(array.type):
        # Uses a decimal that can represent every integer: Arrow itself requires this many digits,
        # whatever the values are.
        array = array.cast(pa.decimal128(20, 0))
    return array.cast(target)


def _check_lengths(column: pa.ChunkedArray, field: Field, table: str) -> None:
    """Refuse strings and binaries longer than their type, and times finer than their precision."""
    type_ = field.type
    if not isinstance(type_, AtomicType) or not len(column):
        return
    if type_.length is not None and type_.length < LENGTH_MAX:
        length = pc.utf8_length if type_.root in ("CHAR", "VARCHAR") else pc.binary_length
        longest = pc.max(length(column)).as_py()
        if longest is not None and longest > type_.length:
            unit = "characters" if type_.root in ("CHAR", "VARCHAR") else "bytes"
            raise InvalidError(
                f"table {table}: column {field.name!r} is {type_.sql()}, found a value of "
                f"{longest} {unit}; shorten it or widen the column"
            )
    if type_.root not in ("TIMESTAMP", "TIMESTAMP_LTZ", "TIME"):
        return
    spare = _UNIT_DIGITS[column.type.unit] - (type_.precision or 0)
    if spare <= 0:
        return
    ticks = column.cast(pa.int32() if type_.root == "TIME" else pa.int64()).cast(pa.int64())
    step = pa.scalar(10**spare, pa.int64())
    remainder = pc.subtract(ticks, pc.multiply(pc.divide(ticks, step), step))
    finer = pc.not_equal(remainder, pa.scalar(0, pa.int64()))
    if pc.any(finer).as_py():
        value = column.filter(finer)[0].as_py()
        raise InvalidError(
            f"table {table}: column {field.name!r} is {type_.sql()}, found {value}, which has "
            "more fractional digits; round it before writing"
        )


def _check_text(column: pa.ChunkedArray, field: Field, table: str) -> None:
    """Refuse strings that are not UTF-8, which Arrow does not check, at any nesting level."""
    if _is_utf8(column):
        return
    row = _first_bad(column)
    texts = [leaf for leaf in _texts(column.slice(row, 1)) if not _is_utf8(leaf)]
    value = texts[0].view(pa.binary())[_first_bad(texts[0])].as_py()
    value = value if len(value) <= _SHOWN_BYTES else value[:_SHOWN_BYTES] + b"..."
    raise InvalidError(
        f"table {table}: column {field.name!r} is {field.type.sql()}, found a string that is not "
        f"UTF-8 in row {row + 1} of {len(column)}: {value!r}; decode it with its "
        "encoding, or use the column type BYTES"
    )


_SHOWN_BYTES = 40


def _texts(values: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    leaves = chain.from_iterable(map(_leaves, chunks))
    return (leaf for leaf in leaves if pa.types.is_string(leaf.type))


def _is_utf8(values: pa.Array | pa.ChunkedArray) -> bool:
    try:
        for text in _texts(values):
            text.view(pa.binary()).cast(pa.string())  # checks each value, copies none
    except pa.ArrowInvalid:
        return False
    return True


def _first_bad(values: pa.Array | pa.ChunkedArray) -> int:
    """The index of the first value that is not UTF-8, by bisection. There is one."""
    start, end = 0, len(values)
    while end - start > 1:
        middle = (start + end) // 2
        if _is_utf8(values.slice(start, middle - start)):
            start = middle
        else:
            end = middle
    return start


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    parts = _part_values(array)
    if not parts:
        yield array
    for part in parts:
        yield from _leaves(part)


def _has_required_part(data_type: pa.DataType) -> bool:
    # The keys of a map are required in any case: Arrow allows no NULL there.
    first_own = 1 if pa.types.is_map(data_type) else 0
    parts = _parts(data_type)
    return any(not part.nullable for part in parts[first_own:]) or any(
        _has_required_part(part.type) for part in parts
    )


def _parts(data_type: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(data_type):
        return [data_type.key_field, data_type.item_field]
    return [data_type.field(i) for i in range(data_type.num_fields)]


def _missing_part(array: pa.Array) -> str | None:
    """The name of a part that is NULL although its type forbids it."""
    for part, values in zip(_parts(array.type), _part_values(array), strict=True):
        if values.null_count and not part.nullable:
            return str(part.name)
        deeper = _missing_part(values)
        if deeper is not None:
            return f"{part.name}.{deeper}"
    return None


def _part_values(array: pa.Array) -> list[pa.Array]:
    if pa.types.is_map(array.type):
        whole = pa.concat_arrays([array])  # drops what a slice hides
        return [whole.keys, whole.items]
    if pa.types.is_list(array.type):
        return [array.flatten()]
    if pa.types.is_struct(array.type):
        there = array.filter(array.is_valid())
        return [there.field(i) for i in range(array.type.num_fields)]
    return []


_UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def _may_convert(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_null(source):
        return True
    if pa.types.is_map(target):
        if pa.types.is_map(source):
            return _may_convert(source.key_type, target.key_type) and _may_convert(
                source.item_type, target.item_type
            )
        entry = source.value_type if _is_list(source) else None
        return (
            entry is not None
            and pa.types.is_struct(entry)
            and entry.num_fields == 2
            and _may_convert(entry.field(0).type, target.key_type)
            and _may_convert(entry.field(1).type, target.item_type)
        )
    if pa.types.is_list(target):
        return _is_list(source) and _may_convert(source.value_type, target.value_type)
    if pa.types.is_struct(target):
        return (
            pa.types.is_struct(source)
            and {f.name for f in source} == {f.name for f in target}
            and all(_may_convert(source.field(f.name).type, f.type) for f in target)
        )
    return _family(source) in _ACCEPTED.get(_family(target), ())


def _is_list(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(data_type)
        or pa.types.is_large_list(data_type)
        or pa.types.is_fixed_size_list(data_type)
        or _is_view(data_type)
    )


def _is_view(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(data_type) or pa.types.is_large_list_view(data_type))


# Families of Arrow types, and which of them a target accepts. Conversions within a family are
# checked value by value.
_ACCEPTED = {
    "integer": ("integer",),
    "decimal": ("decimal", "integer"),
    "float": ("float", "half"),
    "double": ("double", "float", "half"),
    "text": ("text",),
    "binary": ("binary",),
    "boolean": ("boolean",),
    "date": ("date",),
    "time": ("time",),
    "timestamp": ("timestamp",),
    "instant": ("instant",),
}


def _family(data_type: pa.DataType) -> str:
    checks: list[tuple[str, Any]] = [
        ("boolean", pa.types.is_boolean),
        ("integer", pa.types.is_integer),
        ("half", pa.types.is_float16),
        ("float", pa.types.is_float32),
        ("double", pa.types.is_float64),
        ("decimal", pa.types.is_decimal),
        ("date", pa.types.is_date),
        ("time", pa.types.is_time),
    ]
    for name, check in checks:
        if check(data_type):
            return name
    if pa.types.is_timestamp(data_type):
        return "timestamp" if data_type.tz is None else "instant"
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if any(check(data_type) for check in text):
        return "text"
    binary = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    return "binary" if any(check(data_type) for check in binary) else "other"


def _way_to_widen(source: pa.DataType, field: Field) -> str:
    """How to widen a column so that it accepts such values, if possible.

    Key columns cannot be widened.
    """
    if not field.type.nullable:
        return ""
    if pa.types.is_nested(source) and pa.types.is_nested(field.type.to_arrow()):
        return ", or write with merge_schema=True, which adds members that a ROW lacks"
    try:
        found = type_from_arrow(source)
    except InvalidError:
        return ""
    if not (isinstance(found, AtomicType) and isinstance(field.type, AtomicType)):
        return ""
    wider = common_type(field.type, found)
    if wider is None or wider.root == field.type.root == "VARCHAR":
        return ""
    return f", or write with merge_schema=True, which makes the column {wider.sql()}"


def _convert(array: pa.Array, target: pa.DataType, field: Field, table: str) -> pa.Array:
    if array.type.equals(target):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), target)
    if pa.types.is_map(target):
        return _convert_map(array, target, field, table)
    if pa.types.is_list(target):
        whole = _as_list(array)
        return _relist(whole, target, _convert(whole.values, target.value_type, field, table))
    if pa.types.is_struct(target):
        children = [_convert(array.field(f.name), f.type, field, table) for f in target]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    return cast_exactly(array, target)


def _as_list(array: pa.Array) -> pa.Array:
    """Lists of any layout as lists with 32-bit offsets."""
    if pa.types.is_list(array.type):
        return array
    if not _is_view(array.type):
        return array.cast(pa.list_(array.type.value_field))
    # Arrow's own cast uses the offsets of views as those of lists.
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends = pc.cumulative_sum_checked(lengths).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, array.flatten(), mask=array.is_null())


def _convert_map(array: pa.Array, target: pa.DataType, field: Field, table: str) -> pa.Array:
    if pa.types.is_map(array.type):
        keys, items = array.keys, array.items
    else:
        array = _as_list(array)
        keys, items = array.values.field(0), array.values.field(1)
    if keys.null_count:
        raise InvalidError(
            f"table {table}: column {field.name!r} is {field.type.sql()}, found a NULL map key; "
            f"leave the entry out"
        )
    entries = pa.StructArray.from_arrays(
        [
            _convert(keys, target.key_type, field, table),
            _convert(items, target.item_type, field, table),
        ],
        fields=[target.key_field, target.item_field],
    )
    return _relist(array, target, entries)


def _relist(array: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    # A slice has offsets into the values of its whole array, and its validity may begin in the
    # middle of a byte. Both are recreated, and the values stay.
    validity = array.is_valid().buffers()[1] if array.null_count else None
    offsets = array.offsets
    return pa.Array.from_buffers(
        target, len(array), [validity, pa.concat_arrays([offsets]).buffers()[1]],
        array.null_count, children=[child],
    )  # fmt: skip


# -- limits of nesting -----------------------------------------------------------------------------


NESTING_MAX = 60
"""The maximum nesting of lists, dicts and structs.

Arrow passes at most 64 levels to other libraries.
"""

_CONTAINERS = (Mapping, list, tuple, set, frozenset, np.ndarray)


def refuse_nested_values(values: Iterable[Any], column: object, table: str) -> None:
    """Raise `InvalidError`, which names the column, for a Python value with too many levels.

    For values whose type is not known yet: with a type, nothing is deeper than the type.
    """
    level = list(values)
    for _ in range(NESTING_MAX + 1):
        # Most columns contain no containers, which the classes of their values show.
        if not any(issubclass(each, _CONTAINERS) for each in set(map(type, level))):
            return
        # Each container once. Otherwise, containers that share their items would double at every
        # level.
        held = {id(value): value for value in level if isinstance(value, _CONTAINERS)}
        level = [item for value in held.values() for item in _items(value)]
    raise _too_deep(column, table)


def refuse_nested_types(schema: pa.Schema, table: str) -> None:
    """Raise `InvalidError` for a column whose type has too many levels."""
    for field in schema:
        level, depth = [field.type], 0
        while level := [part for each in level for part in _nesting_parts(each)]:
            depth += 1
            if depth > NESTING_MAX:
                raise _too_deep(field.name, table)


def _items(container: Any) -> Iterable[Any]:
    if isinstance(container, Mapping):
        return container.values()
    # An array of numbers or strings has no lower levels.
    if isinstance(container, np.ndarray):
        return container.flat if container.dtype == object else ()
    return container  # type: ignore[no-any-return]  # a list, a tuple or a set


def _nesting_parts(type_: pa.DataType) -> Iterator[pa.DataType]:
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        yield type_.value_type
        return
    yield from (type_.field(place).type for place in range(type_.num_fields))


def _too_deep(column: object, table: str) -> InvalidError:
    return InvalidError(
        f"table {table}: column {column!r} has a value with more than {NESTING_MAX} nested "
        "lists, dicts or structs; flatten it, or store it as a JSON string"
    )
