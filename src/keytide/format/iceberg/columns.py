"""Columns in the form of Apache Iceberg."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from keytide.types import ArrayType, AtomicType, DataType, Field, MapType, MultisetType, RowType

__all__ = ["column_ids", "is_promoted", "schema_json", "why_no_column"]

_NAMES = {
    "BOOLEAN": "boolean", "TINYINT": "int", "SMALLINT": "int", "INT": "int", "BIGINT": "long",
    "FLOAT": "float", "DOUBLE": "double", "CHAR": "string", "VARCHAR": "string",
    "BINARY": "binary", "VARBINARY": "binary", "DATE": "date", "TIMESTAMP": "timestamp",
    "TIMESTAMP_LTZ": "timestamptz",
}  # fmt: skip
# Finer timestamps are stored as INT96.
_TIME_PRECISION_MAX = 6
_NESTED_ID = 536_870_911


def why_no_column(field: Field) -> str | None:
    """Why Apache Iceberg does not support the column. None if it does."""
    return _why_no_type(field.type)


def _why_no_type(type_: DataType) -> str | None:
    parts = _parts(type_)
    if parts is not None:
        return next((why for part in parts if (why := _why_no_type(part))), None)
    if isinstance(type_, AtomicType):
        if type_.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
            is_fine = (type_.precision or 0) > _TIME_PRECISION_MAX
            ends = "its times have at most microseconds"
            return f"Apache Iceberg does not support {type_.sql()}: {ends}" if is_fine else None
        if type_.root in _NAMES or type_.root == "DECIMAL":
            return None
    # Iceberg has TIME in microseconds, but the files have it in milliseconds.
    return f"Apache Iceberg does not support {type_.sql()} as it is stored"


def _parts(type_: DataType) -> tuple[DataType, ...] | None:
    if isinstance(type_, RowType):
        return tuple(member.type for member in type_.fields)
    if isinstance(type_, MapType):
        return (type_.key, type_.value)
    return (type_.element,) if isinstance(type_, ArrayType | MultisetType) else None


def is_promoted(old: DataType, new: DataType) -> bool:
    """Whether readers accept values of the old type as values of the new one."""
    if not isinstance(old, AtomicType) or not isinstance(new, AtomicType):
        return old.with_nullable(True) == new.with_nullable(True)
    if "DECIMAL" in (old.root, new.root):
        grows = (old.precision or 0) <= (new.precision or 0)
        return old.root == new.root and old.scale == new.scale and grows
    one, other = _NAMES.get(old.root), _NAMES.get(new.root)
    return one == other or (one, other) in (("int", "long"), ("float", "double"))


def schema_json(fields: Iterable[Field], schema_id: int) -> dict[str, Any]:
    """The columns in the form of metadata. REQUIRES: Apache Iceberg supports the columns."""
    return {"schema-id": schema_id, **_struct(fields)}


def column_ids(schema: dict[str, Any]) -> Iterator[int]:
    """All ids in a schema, or in a type."""
    for name, value in schema.items():
        if name == "id" or (name.endswith("-id") and name != "schema-id"):
            yield value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from column_ids(each)


def _struct(fields: Iterable[Field]) -> dict[str, Any]:
    # Older files may lack a column that is NOT NULL now, so no column is required.
    return {
        "type": "struct",
        "fields": [
            {
                "id": field.id,
                "name": field.name,
                "required": False,
                "type": _type(field.type, field.id, 1),
                **({} if field.description is None else {"doc": field.description}),
            }
            for field in fields
        ],
    }


def _type(type_: DataType, field_id: int, depth: int) -> Any:
    node = 1024 * field_id + depth
    if isinstance(type_, ArrayType):
        return {
            "type": "list",
            "element-id": _NESTED_ID + node,
            "element-required": False,
            "element": _type(type_.element, field_id, depth + 1),
        }
    if isinstance(type_, MapType):
        return _map(node, *(_type(t, field_id, depth + 1) for t in (type_.key, type_.value)))
    if isinstance(type_, MultisetType):
        return _map(node, _type(type_.element, field_id, depth + 1), "int")
    if isinstance(type_, RowType):
        return _struct(type_.fields)
    assert isinstance(type_, AtomicType)
    if type_.root == "DECIMAL":
        return f"decimal({type_.precision}, {type_.scale})"
    return _NAMES[type_.root]


def _map(node: int, key: Any, value: Any) -> dict[str, Any]:
    return {
        "type": "map",
        "key-id": _NESTED_ID - node,
        "key": key,
        "value-id": _NESTED_ID + node,
        "value-required": False,
        "value": value,
    }
