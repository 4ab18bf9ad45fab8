"""Names of temporary columns that are added to a table's columns."""

from __future__ import annotations

__all__ = ["is_scratch", "scratch"]


def scratch(name: str) -> str:
    """A column name that no table and no data file uses.

    The table format reserves names that begin with `_KEY_` for the key columns of data files, so no
    table has one. No file has a key column with this name either.
    """
    return f"{_PREFIX}{name}"


def is_scratch(column: str) -> bool:
    """Whether a column is a temporary one, which users must not see."""
    return column.startswith(_PREFIX)


_PREFIX = "_KEY__KEY_"
