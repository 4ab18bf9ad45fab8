"""Finds columns by name."""

from __future__ import annotations

from collections.abc import Mapping

from keytide.errors import NotFoundError
from keytide.types import Field

__all__ = ["field_of"]


def field_of(name: str, fields: Mapping[str, Field], table: str) -> Field:
    """The column with that name. Raises `NotFoundError`, which lists the existing columns."""
    if name not in fields:
        raise NotFoundError(f"table {table} has no column {name!r}; columns: {', '.join(fields)}")
    return fields[name]
