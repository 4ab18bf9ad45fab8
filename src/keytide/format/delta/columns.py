"""Columns with Delta Lake's type names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from keytide.types import ArrayType, AtomicType, DataType, Field, MapType, MultisetType, RowType

__all__ = ["column_json", "has_local_times", "schema_string", "why_no_column"]

_NAMES = {
    "BOOLEAN": "boolean", "TINYINT": "byte", "SMALLINT": "short", "INT": "integer",
    "BIGINT": "long", "FLOAT": "float", "DOUBLE": "double", "CHAR": "string", "VARCHAR": "string",
    "BINARY": "binary", "VARBINARY": "binary", "DATE": "date",
}  # fmt: skip
_TIMES = {"TIMESTAMP": "timestamp_ntz", "TIMESTAMP_LTZ": "timestamp"}
# Finer timestamps are stored as INT96, which readers treat as instants.
_TIME_PRECISION_MAX = 6
_NO_NAME = frozenset(" ,;{}()\n\t=")


def why_no_column(field: Field) -> str | None:
    """Why Delta Lake does not support the column. None if it does."""
    found = sorted(_NO_NAME.intersection(field.name))
    if found:
        return f"its name has {found[0]!r}, which Delta Lake does not allow in column names"
    return _why_no_type(field.type)


def _why_no_type(type_: DataType) -> str | None:
    if isinstance(type_, RowType):
        return next((why for f in type_.fields if (why := why_no_column(f))), None)
    if isinstance(type_, AtomicType) and type_.root in _TIMES:
        if (type_.precision or 0) > _TIME_PRECISION_MAX:
            return f"Delta Lake does not support {type_.sql()}: its times have at most microseconds"
        return None
    inner = _parts(type_)
    if inner is not None:
        return next((why for part in inner if (why := _why_no_type(part))), None)
    is_known = isinstance(type_, AtomicType) and (type_.root in _NAMES or type_.root == "DECIMAL")
    return None if is_known else f"Delta Lake does not support {type_.sql()}"


def _parts(type_: DataType) -> tuple[DataType, ...] | None:
    if isinstance(type_, MapType):
        return (type_.key, type_.value)
    return (type_.element,) if isinstance(type_, ArrayType | MultisetType) else None


def has_local_times(fields: Iterable[Field]) -> bool:
    """Whether a column contains times without a time zone, which readers must know."""
    return '"timestamp_ntz"' in schema_string(fields)


def schema_string(fields: Iterable[Field]) -> str:
    """The columns in the form of the log. REQUIRES: Delta Lake supports the columns."""
    return json.dumps(_struct(fields), separators=(",", ":"), ensure_ascii=False)


def column_json(field: Field) -> dict[str, Any]:
    """One column.

    Older files may lack a column that is NOT NULL now, so no column is required. Delta Lake would
    also require the log to name a feature for that.
    """
    comment = {} if field.description is None else {"comment": field.description}
    return {"name": field.name, "type": _type(field.type), "nullable": True, "metadata": comment}


def _struct(fields: Iterable[Field]) -> dict[str, Any]:
    return {"type": "struct", "fields": [column_json(field) for field in fields]}


def _type(type_: DataType) -> Any:
    # All parts inside a column are stored as optional.
    if isinstance(type_, ArrayType):
        return {"type": "array", "elementType": _type(type_.element), "containsNull": True}
    if isinstance(type_, MapType):
        return _map(_type(type_.key), _type(type_.value))
    if isinstance(type_, MultisetType):
        return _map(_type(type_.element), "integer")
    if isinstance(type_, RowType):
        return _struct(type_.fields)
    assert isinstance(type_, AtomicType)
    if type_.root == "DECIMAL":
        return f"decimal({type_.precision},{type_.scale})"
    return _TIMES.get(type_.root) or _NAMES[type_.root]


def _map(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
