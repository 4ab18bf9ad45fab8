"""Arrays put together from arrays."""

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
    """The elements of all adds; a retract takes out one occurrence of each of its elements.

    NULL inputs count for nothing, NULL elements are kept; without any add that is not NULL the
    result is NULL. `distinct` keeps one of equal elements, and a retract takes it out. Elements
    are equal by value, nested ones too; their order is that of arrival and promised to nobody.
    A retract of what is not there takes nothing back, so folding adds may be split up, but with
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
        """Retracts of elements that are not there; if distinct, of those not added again."""
        items = inputs.items()
        if self.distinct:
            return inputs.not_added_again(items, ["key", "value"])
        return inputs.rows_of(items.group_by("key", "value").agg(row=_not_there()))


class Union(AggregateFunction):
    """The different elements of all adds in ascending order, NULL first.

    NULL inputs count for nothing, and the only one that is not NULL stays as it is, neither
    sorted nor freed of repetitions. Order does not matter and folding may be split up; no
    retraction.
    """

    name: ClassVar[str] = "union"
    stands_anywhere: ClassVar[bool] = True

    def fold(self, inputs: Inputs) -> pl.Series:
        """The united arrays."""
        present = inputs.adds & inputs.is_present
        items = inputs.items().unique(["key", "value"]).sort("key", "value", nulls_last=False)
        united = inputs.lists_of(items.drop("place").with_row_index("place"))
        is_alone = pl.Series(inputs.slices.count_where(present) == 1)
        only = take(inputs.values, inputs.slices.last_where(present))
        as_they_are: pl.Series = only.zip_with(is_alone, united)
        return as_they_are


def _first_not_taken_back() -> pl.Expr:
    """Of equal elements, the place of the first one added after the last one taken out."""
    # -1 comes before every place: nothing was taken out.
    taken_back = _PLACE.filter(~_IS_ADD).max().fill_null(-1)
    return _PLACE.filter(_IS_ADD & _PLACE.gt(taken_back)).head(1)


def _not_there() -> pl.Expr:
    """The rows of the retracts that find no element to take out."""
    count = pl.when(_IS_ADD).then(1).otherwise(-1).cum_sum()
    lowest_before = pl.min_horizontal(count.cum_min().shift(1, fill_value=0), 0)
    return pl.col("row").filter(~_IS_ADD & (count < lowest_before))


def _not_taken_back() -> pl.Expr:
    """Of equal elements, the places of those left when each retract takes out the oldest.

    Counting adds up and retracts down, the count may not go below zero: what a retract does not
    find is not owed.
    """
    count = pl.when(_IS_ADD).then(1).otherwise(-1).cum_sum()
    left = count.last() - pl.min_horizontal(count.min(), 0)
    return _PLACE.filter(_IS_ADD & (_IS_ADD.cum_sum(reverse=True) <= left))
