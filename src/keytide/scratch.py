"""Names of columns of our own that stand beside a table's, for a while, in one frame."""

from __future__ import annotations

__all__ = ["is_scratch", "scratch"]


def scratch(name: str) -> str:
    """A column name that no table and no data file has.

    The table format keeps names that begin with `_KEY_` from tables, and uses them for the key
    columns of data files; so no file has a key column of such a name either.
    """
    return f"{_PREFIX}{name}"


def is_scratch(column: str) -> bool:
    """Whether a column is one of our own, which users are not told of."""
    return column.startswith(_PREFIX)


_PREFIX = "_KEY__KEY_"
