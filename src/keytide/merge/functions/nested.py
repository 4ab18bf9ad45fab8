"""Nested tables: arrays of ROWs that are updated row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from keytide.errors import InvalidError
from keytide.merge.functions.inputs import AggregateFunction, Inputs
from keytide.merge.refusal import Refusal
from keytide.merge.windows import Marks
from keytide.options import keys

__all__ = ["NestedPartialUpdate", "NestedUpdate"]

_ROW = pl.col("value").struct


@dataclass(frozen=True)
class _NestedTable(AggregateFunction):
    key: tuple[str, ...] = ()
    null_strategy: str = "merge"
    """How a row with NULL in its key is handled: `merge` like others, `ignore`, or `error`."""

    def refusals(self, values: pl.Series, adds: Marks, retracts: Marks) -> Iterator[Refusal]:
        """Nested rows with NULL in their key, if that is an error."""
        if not self.key or self.null_strategy != "error":
            return
        element = pl.element().struct
        is_incomplete = pl.any_horizontal(element.field(name).is_null() for name in self.key)
        has_one = values.list.eval(pl.element().is_not_null() & is_incomplete).list.any()
        marks = has_one.fill_null(value=False).to_numpy()
        yield Refusal(marks & (adds | retracts), self._null_in_key)

    def rows_of(self, inputs: Inputs) -> pl.DataFrame:
        """The nested rows in rank order, with their key fields as columns `key_0`, ..."""
        rows = inputs.items().filter(pl.col("value").is_not_null())
        rows = rows.with_columns(_ROW.field(k).alias(f"key_{i}") for i, k in enumerate(self.key))
        rows = rows.sort("rank", "place").drop("place").with_row_index("place")
        if not self.key or self.null_strategy == "merge":
            return rows
        is_complete = pl.all_horizontal(pl.col(name).is_not_null() for name in self._key_columns)
        complete = rows.filter(is_complete)
        if self.null_strategy == "error" and complete.height < rows.height:
            raise InvalidError(self._null_in_key)
        return complete

    @property
    def _null_in_key(self) -> str:
        return (
            f"column {self.column!r}: an element has NULL in its nested key "
            f"({', '.join(self.key)}); set "
            f"'{keys.key_of(keys.NESTED_KEY_NULL_STRATEGY, self.column)}' to 'ignore' or 'merge' "
            "to accept such rows"
        )

    @property
    def _key_columns(self) -> list[str]:
        return [f"key_{i}" for i in range(len(self.key))]


@dataclass(frozen=True)
class NestedUpdate(_NestedTable):
    """The rows of all adds. Of equal nested keys the last one wins. A retract removes its keys.

    With a nested sequence, the row with the largest sequence wins (NULL lowest, ties to the later
    one). Without a nested key all rows are kept, and a retract removes equal rows. NULL inputs and
    NULL rows are ignored. If all adds are NULL, the result is NULL. It can be empty. `count_limit`
    drops rows of new keys above the limit, counted after retracts have been applied.

    Aggregation can be split up from the oldest input on, and without a limit anywhere. With
    retracts it can be split up from the oldest input on, but not at all if they are combined with a
    limit. The order of rows is not guaranteed.
    """

    name: ClassVar[str] = "nested_update"
    can_retract: ClassVar[bool] = True

    sequence: tuple[str, ...] = ()
    count_limit: int | None = None

    def fold(self, inputs: Inputs) -> pl.Series:
        """The updated tables."""
        rows = self.rows_of(inputs)
        identity = ["key", *self._key_columns] if self.key else ["key", "value"]
        if inputs.retracts.any():
            taken_back = pl.col("row").filter(~pl.col("is_add")).max().fill_null(-1)
            rows = rows.filter(pl.col("is_add") & (pl.col("row") > taken_back.over(identity)))
        if self.key:
            rows = self._newest(rows, identity)
        if self.count_limit is not None:
            # Counted in order of arrival of the keys, so that the first rows are kept.
            rows = rows.sort("key", "place")
            rows = rows.filter(pl.int_range(pl.len()).over("key") < self.count_limit)
        return inputs.lists_of(rows)

    @property
    def folds_adds(self) -> bool:  # type: ignore[override]  # other functions know it by class
        """True unless there is a limit, for which older rows count too."""
        return self.count_limit is None

    def needs_older(self, inputs: Inputs) -> Marks:
        """Retracts of rows that no later add replaces, and rows above the limit."""
        rows = self.rows_of(inputs)
        if self.key and not self.sequence and self.count_limit is None:
            return inputs.not_added_again(rows, ["key", *self._key_columns])
        marks = inputs.rows_of(rows.filter(~pl.col("is_add")).group_by("key").agg("row"))
        return marks if self.count_limit is None else marks | self._exceeding(rows, inputs)

    def _exceeding(self, rows: pl.DataFrame, inputs: Inputs) -> Marks:
        """The adds with more rows, or more keys, than the limit allows."""
        adds = rows.filter("is_add").sort("key", "place")
        if self.key:
            adds = adds.unique(["key", *self._key_columns], keep="first", maintain_order=True)
        exceeding = adds.filter(pl.int_range(pl.len()).over("key") >= self.count_limit)
        return inputs.rows_of(exceeding.group_by("key").agg("row"))

    def _newest(self, rows: pl.DataFrame, identity: list[str]) -> pl.DataFrame:
        """The last row of each nested key, at the position of its first one."""
        sequence = [_ROW.field(name).alias(f"sequence_{i}") for i, name in enumerate(self.sequence)]
        ordered = rows.sort(*sequence, "place", nulls_last=False)
        return ordered.group_by(identity, maintain_order=True).agg(
            pl.col("place").min(), pl.col("value").last()
        )


@dataclass(frozen=True)
class NestedPartialUpdate(_NestedTable):
    """The rows of all adds. Rows with equal nested keys are merged: each field's last value.

    NULL fields, rows and inputs are ignored. If all adds are NULL, the result is NULL. Aggregation
    can be split up. No retraction. The order of rows is not guaranteed.
    """

    name: ClassVar[str] = "nested_partial_update"

    def fold(self, inputs: Inputs) -> pl.Series:
        """The updated tables."""
        rows = self.rows_of(inputs)
        members = [member.name for member in rows.schema["value"].fields]  # type: ignore[attr-defined]  # rows
        merged = pl.struct(_ROW.field(name).drop_nulls().last().alias(name) for name in members)
        rows = rows.group_by("key", *self._key_columns, maintain_order=True).agg(
            pl.col("place").min(), value=merged
        )
        return inputs.lists_of(rows)
