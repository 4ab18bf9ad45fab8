"""What an aggregate function folds: the inputs of one column, and the seam of the functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import polars as pl

from keytide.errors import InvalidError
from keytide.merge.slices import KeySlices, Marks, Positions, take

__all__ = ["AggregateFunction", "AggregatedColumn", "Inputs"]

_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Inputs:
    """What the versions of each key bring to one column, in order of arrival.

    `adds` and `retracts` mark the versions that take part. Their order is that of the rows,
    except for late adds of a sequence group, which come before all that was there when they
    arrived: `is_late` marks them, if there are any.
    """

    values: pl.Series
    slices: KeySlices
    adds: Marks
    retracts: Marks
    is_late: Marks | None = None

    @cached_property
    def rank(self) -> Positions:
        """What orders the adds of a key: the row number, of a late one -1 - row number."""
        if self.is_late is None:
            return self.slices.rows
        return np.where(self.is_late, -1 - self.slices.rows, self.slices.rows)

    @cached_property
    def is_present(self) -> Marks:
        """Which inputs are not NULL."""
        return self.values.is_not_null().to_numpy()

    def latest(self, marks: Marks) -> Positions:
        """The marked version of highest rank of each key."""
        if self.is_late is None:
            return self.slices.last_where(marks)
        return _row_of(self.slices.greatest(np.where(marks, self.rank, _NEVER)))

    def earliest(self, marks: Marks) -> Positions:
        """The marked version of lowest rank of each key."""
        if self.is_late is None:
            return self.slices.first_where(marks)
        highest = np.iinfo(np.int64).max
        found = np.minimum.reduceat(np.where(marks, self.rank, highest), self.slices.starts)
        return _row_of(np.where(found == highest, _NEVER, found))

    def after(self, rows: Positions) -> Marks:
        """Which versions come after the given row of their key."""
        marks: Marks = self.slices.rows > rows[self.slices.keys]
        return marks

    def frame(self) -> pl.DataFrame:
        """The inputs that are not NULL as rows `key`, `row`, `rank`, `is_add`, `value`."""
        taking_part = (self.adds | self.retracts) & self.is_present
        columns = {
            "key": self.slices.keys,
            "row": self.slices.rows,
            "rank": self.rank,
            "is_add": self.adds,
            "value": self.values,
        }
        return pl.DataFrame(columns).filter(pl.Series(taking_part))

    def items(self) -> pl.DataFrame:
        """The elements of list inputs as rows of `frame`, with their place as `place`.

        The elements of a map are structs of key and value.
        """
        rows = self.frame().cast({"value": _list_type(self.values.dtype)})
        rows = rows.explode("value", empty_as_null=False, keep_nulls=False)
        return rows.with_row_index("place")

    def per_key(self, results: pl.DataFrame) -> pl.Series:
        """The `value`s of rows with a `key` each, one per key; NULL for a key without a row."""
        places = np.full(self.slices.count, -1)
        places[results["key"].to_numpy()] = np.arange(results.height)
        return take(results["value"], places)

    def lists_of(self, items: pl.DataFrame) -> pl.Series:
        """Each key's `value`s in the order of `place` as a list.

        Without items the list is empty, or NULL where a key has no add that is not NULL.
        """
        items = items.sort("key", "place").group_by("key", maintain_order=True).agg("value")
        lists = self.per_key(items.cast({"value": _list_type(self.values.dtype)}))
        is_empty = lists.is_null() & pl.Series(self.slices.any_where(self.adds & self.is_present))
        filled: pl.Series = lists.zip_with(~is_empty, pl.Series([[]], dtype=lists.dtype))
        as_column: pl.Series = filled.cast(self.values.dtype)
        return as_column


@dataclass(frozen=True)
class AggregateFunction:
    """A fold over the inputs of a column.

    Functions whose `can_retract` is false are never given retracts.
    """

    name: ClassVar[str]
    can_retract: ClassVar[bool] = False

    column: str

    def fold(self, inputs: Inputs) -> pl.Series:
        """One value per key, of the inputs' type.

        Raises `InvalidError` naming column and function when the value does not fit the type.
        """
        raise NotImplementedError

    def does_not_fit(self, dtype: pl.DataType) -> InvalidError:
        """The error of a result that the column's type cannot hold."""
        return InvalidError(
            f"column {self.column!r}: the result of aggregate function {self.name!r} does not fit "
            f"{dtype} (overflow); change the column to a wider type"
        )


@dataclass(frozen=True)
class AggregatedColumn:
    """A function with what the table says about retracts of its column."""

    function: AggregateFunction
    ignore_retract: bool = False

    def fold(self, inputs: Inputs) -> pl.Series:
        """As the function folds; `InvalidError` for a retract that it cannot take back."""
        return self.function.fold(self.accepted(inputs))

    def accepted(self, inputs: Inputs) -> Inputs:
        """The inputs that the function may see."""
        if self.ignore_retract:
            return replace(inputs, retracts=np.zeros_like(inputs.retracts))
        if not self.function.can_retract and inputs.retracts.any():
            raise InvalidError(
                f"Aggregate function '{self.function.name}' does not support retraction, but "
                f"column {self.function.column!r} has -U or -D rows to merge; if they may be "
                f"skipped, set 'fields.{self.function.column}.ignore-retract'='true'"
            )
        return inputs


def _list_type(dtype: pl.DataType) -> pl.DataType:
    # Some Polars releases have a map type and no functions for it; others show a list.
    if isinstance(dtype, pl.List):
        return dtype
    entry = pl.Struct({"key": dtype.key, "value": dtype.value})  # type: ignore[attr-defined]  # of a map
    return pl.List(entry)


def _row_of(rank: Positions) -> Positions:
    rows: Positions = np.where(rank < 0, -1 - rank, rank)
    rows[rank == _NEVER] = -1
    return rows
