"""Checks for NULL in NOT NULL columns after a merge."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from keytide.errors import InvalidError
from keytide.merge.order import IS_ADD
from keytide.options import keys
from keytide.types import Field

__all__ = ["check_not_null", "not_null_names"]


def not_null_names(fields: Iterable[Field]) -> frozenset[str]:
    """The columns that are NOT NULL."""
    return frozenset(f.name for f in fields if not f.type.nullable)


def check_not_null(rows: pl.DataFrame, not_null: frozenset[str]) -> None:
    """Raise `InvalidError`, naming the column, if a merged row has NULL in a NOT NULL column.

    Retracts can have NULLs, because their values are not used.
    """
    names = [name for name in rows.columns if name in not_null and rows[name].null_count()]
    for name in names:
        if rows.select((pl.col(name).is_null() & IS_ADD).any()).item():
            raise InvalidError(
                f"the field '{name}' is NOT NULL, but a delete or an aggregate function set it to "
                "NULL. Make the column nullable, or "
                f"set '{keys.key_of(keys.IGNORE_RETRACT, name)}'='true' if the function can skip "
                "deletes"
            )
