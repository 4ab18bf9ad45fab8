"""Rows as Avro records, in the same form as Java's writer of the format.

Nullable members are a union with null first. Times and timestamps are counts of milliseconds or
microseconds, and decimals are integers in bytes. A map with strings as keys is an Avro map. Any
other map is an array of records of key and value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from keytide.errors import InvalidError
from keytide.options.keys import FILE_FORMAT

__all__ = ["record_type", "records", "why_no_name"]

_NAMESPACE = "org.apache.paimon.avro.generated"
_BATCH_ROWS = 4096


def record_type(schema: pa.Schema) -> dict[str, Any]:
    """The type of a file's records.

    Raises `InvalidError` for columns that Avro does not support.
    """
    for column in schema:
        reason = why_no_name(column.name) or _why_no_type(column.type)
        if reason is not None:
            raise InvalidError(
                f"column {column.name!r}: Avro files do not support {reason}; write the table with "
                f"'{FILE_FORMAT}' = 'parquet'"
            )
    return _record(f"{_NAMESPACE}.record", list(schema), count())


def records(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows, one after the other. A limited number of them is in memory."""
    names = rows.schema.names
    for batch in rows.to_batches(max_chunksize=_BATCH_ROWS):
        columns = map(_values, batch.columns)
        yield from (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def why_no_name(name: str) -> str | None:
    """Why no Avro record can have a member with that name. None if it can."""
    # Java's library, which reads the files, accepts any letters. Others accept only these.
    is_name = name.isascii() and name.isidentifier()
    return None if is_name else f"the name {name!r} (only ASCII letters, digits and underscores)"


def _why_no_type(kind: pa.DataType) -> str | None:
    if pa.types.is_timestamp(kind):
        return "nanoseconds" if kind.unit == "ns" else None
    if pa.types.is_struct(kind):
        reasons = (why_no_name(f.name) or _why_no_type(f.type) for f in kind.fields)
        return next(filter(None, reasons), None)
    if pa.types.is_nested(kind):
        children = (kind.field(i).type for i in range(kind.num_fields))
        return next(filter(None, map(_why_no_type, children)), None)
    return None


# -- types -----------------------------------------------------------------------------------------


def _record(name: str, members: Sequence[pa.Field], numbers: Iterator[int]) -> dict[str, Any]:
    fields = [{"name": each.name, "type": _type(each, numbers)} for each in members]
    return {"type": "record", "name": name, "fields": fields}


def _type(field: pa.Field, numbers: Iterator[int]) -> Any:
    bare = _bare_type(field.type, numbers)
    return ["null", bare] if field.nullable else bare


def _bare_type(kind: pa.DataType, numbers: Iterator[int]) -> Any:
    if pa.types.is_struct(kind):
        return _record(f"record_{next(numbers)}", kind.fields, numbers)
    if pa.types.is_map(kind):
        if pa.types.is_string(kind.key_type):
            return {"type": "map", "values": _type(kind.item_field, numbers)}
        entry = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
        items = _record(f"record_{next(numbers)}", entry, numbers)
        return {"type": "array", "logicalType": "map", "items": items}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _type(kind.value_field, numbers)}
    if pa.types.is_decimal(kind):
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if pa.types.is_timestamp(kind):
        unit = {"ms": "millis", "us": "micros"}[kind.unit]
        return {"type": "long", "logicalType": f"timestamp-{unit}"}
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        what = "date" if pa.types.is_date(kind) else "time-millis"
        return {"type": "int", "logicalType": what}
    return next(name for is_one, name in _PLAIN if is_one(kind))


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "bytes"),
)


# -- values ----------------------------------------------------------------------------------------


def _made(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """The function that converts a Python value to one that is written. None if none is needed."""
    if pa.types.is_struct(kind):
        made = {f.name: one for f in kind.fields if (one := _made(f.type)) is not None}
        if not made:
            return None
        return _unless_none(lambda row: {n: made[n](v) if n in made else v for n, v in row.items()})
    if pa.types.is_map(kind):
        key, item = _made(kind.key_type) or _same, _made(kind.item_type) or _same
        if pa.types.is_string(kind.key_type):
            return _unless_none(lambda pairs: {k: item(v) for k, v in pairs})
        return _unless_none(lambda pairs: [{"key": key(k), "value": item(v)} for k, v in pairs])
    if pa.types.is_list(kind):
        one = _made(kind.value_type)
        return None if one is None else _unless_none(lambda many: list(map(one, many)))
    return None


def _same(value: Any) -> Any:
    return value


def _unless_none(made: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else made(value)


def _counted(kind: pa.DataType) -> pa.DataType:
    """The type with counts instead of times, because Python's own types cannot represent all
    times.
    """
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return pa.int32()
    if pa.types.is_map(kind):
        return pa.map_(_counted(kind.key_type), _counted(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_counted(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _counted(f.type)) for f in kind.fields])
    return kind


def _values(column: pa.Array) -> list[Any]:
    counted = column.cast(_counted(column.type))
    made = _made(column.type)
    values: list[Any] = counted.to_pylist()
    return values if made is None else list(map(made, values))
