"""Functions that combine arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from keytide.merge.functions.inputs import AggregateFunction, Inputs
from keytide.merge.slices import Marks, take

__all__ = ["Collect", "Union"]

_PLACE = pl.col("place").cast(pl.Int64)
_IS_ADD = pl.col("is_add")


@dataclass(frozen=True)
class Collect(AggregateFunction):
    """The elements of all adds. A retract removes one occurrence of each of its elements.

    NULL inputs are ignored, but NULL elements are kept. If all adds are NULL, the result is NULL.
    With `distinct`, equal elements are kept once, and a retract removes them. Elements, including
    nested ones, are compared by value. They are in order of arrival, but no order is guaranteed. A
    retract of a missing element has no effect. So adds can be aggregated in parts, but with
    retracts only from the oldest input on.
    """

    name: ClassVar[str] = "collect"
    can_retract: ClassVar[bool] = True

    distinct: bool = False

    def fold(self, inputs: Inputs) -> pl.Series:
        """The collected arrays."""
        items = inputs.items()
        if self.distinct or inputs.retracts.any():
            kept = _first_not_taken_back() if self.distinct else _not_taken_back()
            items = items.group_by("key", "value", maintain_order=True).agg(place=kept)
            items = items.explode("place", empty_as_null=False, keep_nulls=False)
        return inputs.lists_of(items)

    def needs_older(self, inputs: Inputs) -> Marks:
        """Retracts of missing elements or, with `distinct`, of elements not added again."""
        items = inputs.items()
        if self.distinct:
            return inputs.not_added_again(items, ["key", "value"])
        return inputs.rows_of(items.group_by("key", "value").agg(row=_not_there()))


class Union(AggregateFunction):
    """The distinct elements of all adds in ascending order, NULL first.

    NULL inputs are ignored. If only one input is not NULL, it is unchanged, neither sorted nor
    deduplicated. Order does not matter, and aggregation can be split up. No retraction.
    """

    name: ClassVar[str] = "union"
    stands_anywhere: ClassVar[bool] = True

    def fold(self, inputs: Inputs) -> pl.Series:
        """The combined arrays."""
        present = inputs.adds & inputs.is_present
        items = inputs.items().unique(["key", "value"]).sort("key", "value", nulls_last=False)
        united = inputs.lists_of(items.drop("place").with_row_index("place"))
        is_alone = pl.Series(inputs.slices.count_where(present) == 1)
        only = take(inputs.values, inputs.slices.last_where(present))
        as_they_are: pl.Series = only.zip_with(is_alone, united)
        return as_they_are


def _first_not_taken_back() -> pl.Expr:
    """Of equal elements, the position of the first one added after the last removed one."""
    # -1 precedes every position: nothing was removed.
    taken_back = _PLACE.filter(~_IS_ADD).max().fill_null(-1)
    return _PLACE.filter(_IS_ADD & _PLACE.gt(taken_back)).head(1)


def _not_there() -> pl.Expr:
    """The rows of the retracts that find no element to remove."""
    count = pl.when(_IS_ADD).then(1).otherwise(-1).cum_sum()
    lowest_before = pl.min_horizontal(count.cum_min().shift(1, fill_value=0), 0)
    return pl.col("row").filter(~_IS_ADD & (count < lowest_before))


def _not_taken_back() -> pl.Expr:
    """Of equal elements, the positions that remain if each retract removes the oldest one.

    The count increases with adds and decreases with retracts, but never below zero, because a
    retract of a missing element has no effect.
    """
    count = pl.when(_IS_ADD).then(1).otherwise(-1).cum_sum()
    left = count.last() - pl.min_horizontal(count.min(), 0)
    return _PLACE.filter(_IS_ADD & (_IS_ADD.cum_sum(reverse=True) <= left))
