"""The primary key of a table from message keys: Debezium's keys name the columns."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

__all__ = ["key_columns"]

_LOOKED_AT = 100


def key_columns(keys: pa.Array | pa.ChunkedArray) -> tuple[str, ...]:
    """The fields of the first keys, with or without a schema. Empty if these differ."""
    found = {_members(key) for key in keys.drop_null()[:_LOOKED_AT].to_pylist()}
    return found.pop() if len(found) == 1 else ()


def _members(key: bytes) -> tuple[str, ...]:
    try:
        value: Any = json.loads(key)
    except ValueError:
        return ()
    if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
        value = value["payload"]
    return tuple(map(str, value)) if isinstance(value, dict) else ()
