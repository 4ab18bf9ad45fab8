"""The columns of a Delta table's schema: their current form, and their form in files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from keytide.errors import UnsupportedError
from keytide.sources.parquet_rows import FIELD_ID, StoredColumn, column_type

__all__ = ["delta_columns"]


def delta_columns(schema: str, owner: str) -> list[StoredColumn]:
    """The columns of a schema in Delta's format.

    Raises `UnsupportedError`, naming the column, for a type that Keytide's tables do not have.
    """
    columns = []
    for field in json.loads(schema)["fields"]:
        name = str(field["name"])
        shown = _type(field["type"], name, owner, _shown)
        columns.append(
            StoredColumn(name, column_type(name, shown, owner), _stored(field, name, owner))
        )
    return columns


def _shown(member: Mapping[str, Any], name: str, owner: str) -> pa.Field:
    type_ = _type(member["type"], name, owner, _shown)
    return pa.field(str(member["name"]), type_, bool(member["nullable"]))


def _stored(member: Mapping[str, Any], name: str, owner: str) -> pa.Field:
    """A field as in files: with its physical name and id if columns are mapped."""
    told = member.get("metadata") or {}
    id_ = told.get("delta.columnMapping.id")
    return pa.field(
        str(told.get("delta.columnMapping.physicalName", member["name"])),
        _type(member["type"], name, owner, _stored),
        bool(member["nullable"]),
        metadata=None if id_ is None else {FIELD_ID: str(id_).encode()},
    )


def _type(told: Any, name: str, owner: str, field_of: Any) -> pa.DataType:
    """An Arrow type whose fields are created by `field_of`."""
    kind = told["type"] if isinstance(told, dict) else told
    if kind == "struct":
        return pa.struct([field_of(member, name, owner) for member in told["fields"]])
    if kind == "array":
        element = _type(told["elementType"], name, owner, field_of)
        return pa.list_(pa.field("element", element, bool(told["containsNull"])))
    if kind == "map":
        key, value = (
            _type(told[f"{part}Type"], name, owner, field_of) for part in ("key", "value")
        )
        return pa.map_(key, pa.field("value", value, bool(told["valueContainsNull"])))
    decimal = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", str(kind))
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if kind not in _TYPES:
        raise UnsupportedError(
            f"{owner}: column {name!r} has the type {kind}, which Keytide does not support; "
            "remove the column from that table, or change its type"
        )
    return _TYPES[kind]


_TYPES = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
