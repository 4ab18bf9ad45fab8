"""Checks whether readers that match columns by name read old files correctly."""

from __future__ import annotations

from keytide.format.schema import TableSchema
from keytide.publish.content import Content
from keytide.types import AtomicType, DataType

__all__ = ["why_not_by_name"]


def why_not_by_name(content: Content) -> str | None:
    """Why a reader that matches by name would take a stored column for another one, or for none."""
    schema = content.view.schema
    for number, older in content.older_schemas.items():
        reason = _why_not(older, schema)
        if reason is not None:
            return f"files of schema {number} are from before {reason}"
    return None


def _why_not(older: TableSchema, newer: TableSchema) -> str | None:
    before = {field.id: field for field in older.fields}
    for field in newer.fields:
        stored = before.get(field.id)
        if stored is None:
            if field.name in older.by_name:
                return f"column {field.name!r} took the name of another column"
        elif stored.name != field.name:
            return f"column {stored.name!r} was renamed to {field.name!r}"
        elif not _are_alike(stored.type, field.type):
            return f"column {field.name!r} was {stored.type.sql()}"
    return None


def _are_alike(one: DataType, other: DataType) -> bool:
    are_atomic = isinstance(one, AtomicType) and isinstance(other, AtomicType)
    if are_atomic and one.root in _LENGTHS and _LENGTHS[one.root] == _LENGTHS.get(other.root):
        return True
    return one.with_nullable(True) == other.with_nullable(True)


_LENGTHS = {"CHAR": "text", "VARCHAR": "text", "BINARY": "bytes", "VARBINARY": "bytes"}
"""Types that differ only in their length."""
