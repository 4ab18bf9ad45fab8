"""The difference between two states of some keys, as a pure function."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from operator import and_

import polars as pl

from keytide.base.process import scratch
from keytide.base.row_kind import RowKind
from keytide.merge.order import VALUE_KIND, sorted_by_key

__all__ = ["difference", "with_kind"]

_IS_AFTER = scratch("is_after")
_HAS_PARTNER = scratch("has_partner")
_IS_EQUAL = scratch("is_equal")


def difference(
    before: pl.DataFrame,
    after: pl.DataFrame,
    key: Sequence[str],
    compared: Collection[str] | None = None,
    *,
    keeps_equal: bool = False,
) -> pl.DataFrame:
    """The changes from the rows before to the rows after, with `_VALUE_KIND`, in key order.

    -D and +I for keys that only one side has, adjacent -U and +U for keys whose rows differ, and
    nothing for equal rows unless `keeps_equal`. NULL equals NULL, NaN equals NaN, 0.0 equals -0.0.
    Rows are equal if their `compared` columns are equal. None means all columns.

    REQUIRES: both have the same columns, including `key` but not `_VALUE_KIND`, and one row per
    key.
    """
    if not before.height or not after.height:
        rows, kind = (after, RowKind.INSERT) if after.height else (before, RowKind.DELETE)
        return with_kind(rows.sort(key, nulls_last=False), kind)
    sides = [
        side.with_columns(pl.lit(is_after).alias(_IS_AFTER))
        for side, is_after in ((before, False), (after, True))
    ]
    # One chunk, from which rows are gathered several times as fast as from many.
    both = pl.concat(sides, rechunk=True)
    rows = sorted_by_key(both, key)
    is_last = pl.int_range(pl.len()) == pl.len() - 1
    rows = rows.with_columns((~is_last & _equals_next(key)).alias(_HAS_PARTNER))
    told = rows.with_columns(_kind())
    if not keeps_equal:
        others = [
            name
            for name in before.columns
            if name not in key and (compared is None or name in compared)
        ]
        told = told.with_columns((pl.col(_HAS_PARTNER) & _equals_next(others)).alias(_IS_EQUAL))
        told = told.filter(~(pl.col(_IS_EQUAL) | _row_before(_IS_EQUAL)))
    return told.select(VALUE_KIND, *before.columns)


def with_kind(rows: pl.DataFrame, kind: RowKind) -> pl.DataFrame:
    """The rows with the given kind in the first column."""
    return rows.select(pl.lit(kind, pl.Int8).alias(VALUE_KIND), *rows.columns)


def _equals_next(columns: Sequence[str]) -> pl.Expr:
    """Whether a row has the same values as the next one."""
    equal = [pl.col(name).eq_missing(pl.col(name).shift(-1)) for name in columns]
    return reduce(and_, equal, pl.lit(value=True))


def _row_before(flag: str) -> pl.Expr:
    return pl.col(flag).shift(1, fill_value=False)


def _kind() -> pl.Expr:
    def either(paired: pl.Expr, pair: RowKind, alone: RowKind) -> pl.Expr:
        return pl.when(paired).then(pl.lit(pair, pl.Int8)).otherwise(pl.lit(alone, pl.Int8))

    after = either(_row_before(_HAS_PARTNER), RowKind.UPDATE_AFTER, RowKind.INSERT)
    before = either(pl.col(_HAS_PARTNER), RowKind.UPDATE_BEFORE, RowKind.DELETE)
    return pl.when(pl.col(_IS_AFTER)).then(after).otherwise(before).alias(VALUE_KIND)
