"""Encodes single values as Apache Iceberg stores bounds of columns."""

from __future__ import annotations

import struct
from datetime import date
from typing import Any

from keytide.types import AtomicType, DataType

__all__ = ["bound", "has_bounds"]

_INTEGERS = {"TINYINT": "<i", "SMALLINT": "<i", "INT": "<i", "BIGINT": "<q"}
_EPOCH = date(1970, 1, 1)


def has_bounds(type_: DataType) -> bool:
    """Whether bounds of such columns are stored."""
    texts_and_days = ("CHAR", "VARCHAR", "DATE")
    return isinstance(type_, AtomicType) and (
        type_.root in _INTEGERS or type_.root in texts_and_days
    )


def bound(value: Any, type_: DataType) -> bytes:
    """The encoded value of a column of such a type."""
    if type_.root in _INTEGERS:
        return struct.pack(_INTEGERS[type_.root], value)
    if isinstance(value, date):
        return struct.pack("<i", (value - _EPOCH).days)
    return str(value).encode()
