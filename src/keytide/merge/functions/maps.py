"""Functions that combine maps. A map is a list of structs of key and value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from keytide.merge.functions.inputs import AggregateFunction, Inputs
from keytide.merge.slices import Marks

__all__ = ["MergeMap", "MergeMapWithKeyTime"]

_ENTRY = pl.col("value").struct


class MergeMap(AggregateFunction):
    """The entries of all adds. Of equal keys the last one wins. A retract removes its keys.

    Values of retracts are not compared. NULL inputs are ignored. If all adds are NULL, the result
    is NULL. It can be empty. Adds can be aggregated in parts. With retracts, only from the oldest
    input on. The order of entries is not guaranteed.
    """

    name: ClassVar[str] = "merge_map"
    can_retract: ClassVar[bool] = True

    def fold(self, inputs: Inputs) -> pl.Series:
        """The combined maps."""
        entries = inputs.items().with_columns(name=_ENTRY[0])
        if inputs.retracts.any():
            taken_back = pl.col("row").filter(~pl.col("is_add")).max().fill_null(-1)
            entries = entries.filter(
                pl.col("is_add") & (pl.col("row") > taken_back.over("key", "name"))
            )
        last = entries.sort("rank", "place").unique(["key", "name"], keep="last")
        return inputs.lists_of(last)

    def needs_older(self, inputs: Inputs) -> Marks:
        """Retracts of keys that are not added again."""
        return inputs.not_added_again(inputs.items().with_columns(name=_ENTRY[0]), ["key", "name"])


@dataclass(frozen=True)
class MergeMapWithKeyTime(AggregateFunction):
    """The entries of all adds. Of equal keys the one with the largest time wins.

    The time is a field of the entry's ROW, compared as a string. Of equal times the first one wins.
    A NULL ROW removes its key. A ROW without a time is skipped. The first non-NULL map is
    unchanged. No retraction. A NULL ROW removes earlier entries, so aggregation can be split up
    only from the oldest input on.
    """

    name: ClassVar[str] = "merge_map_with_keytime"
    folds_adds: ClassVar[bool] = False

    time: str = ""

    def fold(self, inputs: Inputs) -> pl.Series:
        """The combined maps."""
        entries = inputs.items().with_columns(
            name=_ENTRY[0],
            time=_ENTRY[1].struct.field(self.time).cast(pl.String),
            is_removal=_ENTRY[1].is_null(),
            is_base=pl.col("row").is_in(inputs.earliest(inputs.adds & inputs.is_present)),
        )
        entries = entries.sort("rank", "place").drop("place").with_row_index("place")
        place = pl.col("place").cast(pl.Int64)
        # An entry with a NULL ROW removes its key only in a later map. In the first map it is an
        # entry.
        removed = place.filter(pl.col("is_removal") & ~pl.col("is_base")).max().fill_null(-1)
        newest = (
            entries.filter(place > removed.over("key", "name"))
            .filter(pl.col("is_base") | pl.col("time").is_not_null())
            .sort("time", "place", descending=[True, False], nulls_last=True)
            .unique(["key", "name"], keep="first", maintain_order=True)
        )
        return inputs.lists_of(newest)

    def needs_older(self, inputs: Inputs) -> Marks:
        """Maps that remove keys."""
        entries = inputs.items().filter(_ENTRY[1].is_null())
        return inputs.rows_of(entries.group_by("key").agg("row"))
