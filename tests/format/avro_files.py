"""Avro data files as other engines write them: row by row, by the rules of Java's writer."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import fastavro

from keytide.types import ArrayType, AtomicType, DataType, Field, MapType, MultisetType, RowType

_ATOMS = {
    "BOOLEAN": "boolean", "TINYINT": "int", "SMALLINT": "int", "INT": "int", "BIGINT": "long",
    "FLOAT": "float", "DOUBLE": "double", "CHAR": "string", "VARCHAR": "string",
    "BINARY": "bytes", "VARBINARY": "bytes",
}  # fmt: skip


def avro_bytes(
    fields: Sequence[Field],
    columns: Mapping[str, Sequence[Any]],
    codec: str = "zstandard",
    block_bytes: int = 16_000,
) -> bytes:
    """A file of the columns, whose times and timestamps are given as ticks of their Arrow type."""
    schema = _record("record", fields, count())
    rows = zip(*(columns[field.name] for field in fields), strict=True)
    records = [_value(row, RowType(tuple(fields))) for row in _named(rows, fields)]
    buffer = io.BytesIO()
    fastavro.writer(
        buffer, fastavro.parse_schema(schema), records, codec=codec, sync_interval=block_bytes
    )
    return buffer.getvalue()


def has_avro_type(kind: DataType) -> bool:
    """Whether there is such a type in Avro files; nanoseconds are none."""
    if isinstance(kind, AtomicType):
        return not kind.root.startswith("TIMESTAMP") or (kind.precision or 0) <= 6
    if isinstance(kind, RowType):
        return all(has_avro_type(field.type) for field in kind.fields)
    if isinstance(kind, MapType):
        return has_avro_type(kind.key) and has_avro_type(kind.value)
    assert isinstance(kind, ArrayType | MultisetType)
    return has_avro_type(kind.element)


def _named(rows: Iterator[Sequence[Any]], fields: Sequence[Field]) -> Iterator[dict[str, Any]]:
    names = [field.name for field in fields]
    return (dict(zip(names, row, strict=True)) for row in rows)


def _record(name: str, fields: Sequence[Field], numbers: Iterator[int]) -> dict[str, Any]:
    members = [{"name": f.name, "type": _type(f.type, numbers)} for f in fields]
    return {"type": "record", "name": name, "fields": members}


def _type(kind: DataType, numbers: Iterator[int]) -> Any:
    bare = _bare_type(kind, numbers)
    return ["null", bare] if kind.nullable else bare


def _bare_type(kind: DataType, numbers: Iterator[int]) -> Any:
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": _type(kind.element, numbers)}
    if isinstance(kind, RowType):
        return _record(f"record_{next(numbers)}", kind.fields, numbers)
    if isinstance(kind, MapType | MultisetType):
        key, value = _entry(kind)
        if _is_text(key):
            return {"type": "map", "values": _type(value, numbers)}
        entry = (Field(-1, "key", key.with_nullable(False)), Field(-1, "value", value))
        items = _record(f"record_{next(numbers)}", entry, numbers)
        return {"type": "array", "logicalType": "map", "items": items}
    assert isinstance(kind, AtomicType)
    if kind.root == "DECIMAL":
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if kind.root == "DATE":
        return {"type": "int", "logicalType": "date"}
    if kind.root == "TIME":
        return {"type": "int", "logicalType": "time-millis"}
    if kind.root.startswith("TIMESTAMP"):
        unit = "millis" if (kind.precision or 0) <= 3 else "micros"
        return {"type": "long", "logicalType": f"timestamp-{unit}"}
    return _ATOMS[kind.root]


def _value(value: Any, kind: DataType) -> Any:
    if value is None:
        return None
    if isinstance(kind, ArrayType):
        return [_value(one, kind.element) for one in value]
    if isinstance(kind, RowType):
        return {f.name: _value(value[f.name], f.type) for f in kind.fields}
    if isinstance(kind, MapType | MultisetType):
        key, item = _entry(kind)
        pairs = [(_value(k, key), _value(v, item)) for k, v in value]
        return dict(pairs) if _is_text(key) else [{"key": k, "value": v} for k, v in pairs]
    return value


def _entry(kind: MapType | MultisetType) -> tuple[DataType, DataType]:
    if isinstance(kind, MapType):
        return kind.key, kind.value
    return kind.element, AtomicType("INT", nullable=False)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, AtomicType) and kind.root in ("CHAR", "VARCHAR")
