"""Refusals of new rows that cannot be merged with other versions of their key, with the reasons.

NULL in NOT NULL columns is found after a merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, time
from decimal import Decimal

import numpy as np
import polars as pl

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass
from keytide.base.row_kind import RowKind
from keytide.base.text import held_by_python
from keytide.errors import InvalidError
from keytide.merge.order import IS_ADD, VALUE_KIND
from keytide.merge.windows import Marks
from keytide.options import keys

# -- refused rows ----------------------------------------------------------------------------------


IGNORED = f"the table has '{keys.IGNORE_DELETE}'"
WITHOUT_KEY = "a scan with a condition on the key that excludes it"
WITHOUT_COLUMN = f"a scan without the column, or {WITHOUT_KEY}"
AFTER_DELETE = f"writing a row of kind -D for the key, {WITHOUT_COLUMN}"


@dataclass(frozen=True)
class Refusal:
    """Marks the rows that are refused for one reason. They are counted under `name`.

    `columns` are those whose values are the reason, if known.
    """

    rows: Marks
    reason: str
    name: str = "unmergeable"
    columns: tuple[str, ...] = ()


NAMED_ROWS_MAX = 5
"""The maximum number of rows that an error names."""


def named_rows(rows: pl.DataFrame, columns: Sequence[str]) -> str:
    """The first of some rows by their values, up to the maximum."""
    first = held_by_python(rows.select(columns).head(NAMED_ROWS_MAX)).rows()
    descriptions = []
    for row in first:
        # Times and decimals are shown without Python syntax.
        texts = (str(v) if isinstance(v, date | time | Decimal) else shown(v) for v in row)
        descriptions.append(
            ", ".join(f"{n} = {text}" for n, text in zip(columns, texts, strict=True))
        )
    return "; ".join([*descriptions, "..."] if rows.height > len(first) else descriptions)


def reasons(refusals: list[Refusal], height: int) -> pl.Series:
    """The first reason for each row, NULL if there is none."""
    found = pl.repeat(None, height, dtype=pl.String, eager=True)
    for refusal in reversed(refusals):
        found = found.set(pl.Series(refusal.rows), refusal.reason)
    return found


def retracts_of(rows: pl.DataFrame) -> Marks:
    """Which rows are of kind -U or -D."""
    marks: Marks = ~rows.select(IS_ADD).to_series().to_numpy()
    return marks


def deletes_of(rows: pl.DataFrame) -> Marks:
    """Which rows are of kind -D."""
    return np.asarray(rows[VALUE_KIND] == RowKind.DELETE)


# -- NULL in NOT NULL columns ----------------------------------------------------------------------


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
