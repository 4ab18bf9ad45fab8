"""The inputs of aggregate functions, and the interface of the functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import polars as pl

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.errors import InvalidError
from keytide.merge.refusal import Refusal
from keytide.merge.windows import KeySlices, Marks, Positions, take
from keytide.options import keys

# Lower than every rank.
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Inputs:
    """The inputs of each key for one column, in order of arrival.

    `adds` and `retracts` mark the versions that count. Their order is that of the rows. Late adds
    of a sequence group, marked by `is_late`, precede everything that existed when they arrived.
    """

    values: pl.Series
    slices: KeySlices
    adds: Marks
    retracts: Marks
    is_late: Marks | None = None

    @cached_property
    def rank(self) -> Positions:
        """The order of a key's adds: the row number, or -1 - row number for a late one."""
        if self.is_late is None:
            return self.slices.rows
        return np.where(self.is_late, -1 - self.slices.rows, self.slices.rows)

    @cached_property
    def is_present(self) -> Marks:
        """Which inputs are not NULL."""
        return self.values.is_not_null().to_numpy()

    def latest(self, marks: Marks) -> Positions:
        """The marked version of the highest rank for each key."""
        if self.is_late is None:
            return self.slices.last_where(marks)
        return _row_of(self.slices.greatest(np.where(marks, self.rank, _NEVER)))

    def earliest(self, marks: Marks) -> Positions:
        """The marked version of the lowest rank for each key."""
        if self.is_late is None:
            return self.slices.first_where(marks)
        highest = np.iinfo(np.int64).max
        found = np.minimum.reduceat(np.where(marks, self.rank, highest), self.slices.starts)
        return _row_of(np.where(found == highest, _NEVER, found))

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
        """The elements of list inputs as rows of `frame`, with their position as `place`.

        The elements of a map are structs of key and value.
        """
        rows = self.frame().cast({"value": _list_type(self.values.dtype)})
        rows = rows.explode("value", empty_as_null=False, keep_nulls=False)
        return rows.with_row_index("place")

    def per_key(self, results: pl.DataFrame) -> pl.Series:
        """The `value`s of rows with a `key`, one per key. NULL for a key without a row."""
        places = np.full(self.slices.count, -1)
        places[results["key"].to_numpy()] = np.arange(results.height)
        return take(results["value"], places)

    def not_added_again(self, items: pl.DataFrame, identity: list[str]) -> Marks:
        """The retracts with an item that no later add contains."""
        row = pl.col("row").cast(pl.Int64)
        last_add = row.filter(pl.col("is_add")).max().fill_null(-1)
        late = row.filter(~pl.col("is_add") & (row > last_add)).alias("row")
        return self.rows_of(items.group_by(identity).agg(late))

    def rows_of(self, found: pl.DataFrame) -> Marks:
        """Marks of the inputs whose numbers are in the lists of the column `row`."""
        marks = np.zeros(len(self.values), dtype=bool)
        marks[found["row"].explode().drop_nulls().to_numpy()] = True
        return marks

    def lists_of(self, items: pl.DataFrame) -> pl.Series:
        """The `value`s of each key in the order of `place`, as a list.

        Without items the list is empty, or NULL if all adds of the key are NULL.
        """
        items = items.sort("key", "place").group_by("key", maintain_order=True).agg("value")
        lists = self.per_key(items.cast({"value": _list_type(self.values.dtype)}))
        is_empty = lists.is_null() & pl.Series(self.slices.any_where(self.adds & self.is_present))
        filled: pl.Series = lists.zip_with(~is_empty, pl.Series([[]], dtype=lists.dtype))
        as_column: pl.Series = filled.cast(self.values.dtype)
        return as_column


@dataclass(frozen=True)
class AggregateFunction:
    """A function that aggregates the inputs of a column.

    If `can_retract` is false, it never receives retracts.
    """

    name: ClassVar[str]
    can_retract: ClassVar[bool] = False
    retract_leaves_null: ClassVar[bool] = False
    """Whether a retract can replace a value by NULL."""
    counts_late_adds: ClassVar[bool] = True
    """Whether a late add of a sequence group can become the value, even after a retract."""
    folds_adds: ClassVar[bool] = True
    """Whether an aggregate of adds can replace them, whatever older versions exist."""
    stands_anywhere: ClassVar[bool] = False
    """Whether an aggregate at the place of its latest input can replace all inputs, even if
    others are added between them later."""

    goes_by_later: ClassVar[bool] = False
    """Whether inputs before the deciding one never matter, even if that one is removed together
    with everything before it."""
    ignores_null: ClassVar[bool] = True
    """Whether a NULL input has no effect."""

    column: str

    def deciding(self, inputs: Inputs) -> Marks | None:
        """The adds that alone determine the result, now and with any later ones between them.

        None means all. If `stands_anywhere` is true and NULL is ignored, no add must be kept,
        because the aggregate moves to the latest version.
        """
        return None

    def refusals(self, values: pl.Series, adds: Marks, retracts: Marks) -> Iterator[Refusal]:
        """New values that could not be aggregated with another version.

        An aggregate that becomes too large is not predicted, and raises when it is computed.
        """
        yield from ()

    def fold(self, inputs: Inputs) -> pl.Series:
        """One value per key, in the inputs' type.

        Raises `InvalidError`, naming column and function, if the value does not fit the type.
        """
        raise NotImplementedError

    def needs_older(self, inputs: Inputs) -> Marks:
        """The inputs whose effect on older ones would be lost if aggregation begins here.

        By default none.
        """
        return np.zeros(len(inputs.values), dtype=bool)

    def does_not_fit(self, dtype: pl.DataType) -> InvalidError:
        """The error for a result that the column's type cannot hold."""
        return InvalidError(
            f"column {self.column!r}: the result of aggregate function {self.name!r} does not fit "
            f"{dtype} (overflow); change the column to a wider type"
        )


@dataclass(frozen=True)
class AggregatedColumn:
    """A function with the table's settings for retracts of its column."""

    function: AggregateFunction
    ignore_retract: bool = False

    def fold(self, inputs: Inputs, are_retracts: Marks) -> pl.Series:
        """The aggregate. Raises `InvalidError` for a retract that the function does not support.

        The marked keys have only retracts, which become one retract: it has the effect of all of
        them together, and has the value of the last one if none of them counts.
        """
        inputs = self.accepted(inputs)
        if not are_retracts.any():
            return self.function.fold(inputs)
        alone = inputs.retracts & are_retracts[inputs.slices.keys]
        folded = self.function.fold(
            replace(inputs, adds=inputs.adds | alone, retracts=inputs.retracts & ~alone)
        )
        is_told = pl.Series(~are_retracts | inputs.slices.any_where(alone))
        values: pl.Series = folded.zip_with(is_told, take(inputs.values, inputs.slices.lasts))
        return values

    def needs_older(self, inputs: Inputs) -> Marks:
        """The inputs that must be aggregated together with older ones to have their full effect."""
        if not self.function.can_retract or self.ignore_retract:
            inputs = replace(inputs, retracts=np.zeros_like(inputs.retracts))
        if self.function.folds_adds and not inputs.retracts.any():
            return inputs.retracts
        return self.function.needs_older(inputs)

    def accepted(self, inputs: Inputs) -> Inputs:
        """The inputs that the function gets. Raises `InvalidError` for an unsupported one."""
        if self.ignore_retract:
            return replace(inputs, retracts=np.zeros_like(inputs.retracts))
        if not self.function.can_retract and inputs.retracts.any():
            raise InvalidError(self._no_retraction)
        return inputs

    def refusals(
        self, values: pl.Series, adds: Marks, retracts: Marks, *, is_not_null: bool
    ) -> Iterator[Refusal]:
        """New rows that could not be merged in this column, out of those that affect it."""
        if self.ignore_retract:
            retracts = np.zeros_like(retracts)
        elif not self.function.can_retract:
            yield Refusal(retracts, self._no_retraction)
        elif is_not_null and self.function.retract_leaves_null:
            yield Refusal(retracts, leaves_null(self.function.column))
        yield from self.function.refusals(values, adds, retracts)

    @property
    def _no_retraction(self) -> str:
        name, column = self.function.name, self.function.column
        return (
            f"the aggregate function '{name}' cannot retract values, so column {column!r} does "
            f"not accept rows of kind -U and -D; to skip retractions, set "
            f"'{keys.key_of(keys.IGNORE_RETRACT, column)}'='true'"
        )


def leaves_null(column: str) -> str:
    """The reason why a NOT NULL column does not support retracts."""
    return (
        f"the field '{column}' is NOT NULL, but a retract would leave the value NULL in it; make "
        f"the column nullable"
    )


def _list_type(dtype: pl.DataType) -> pl.DataType:
    # Some Polars releases have a map type but no functions for it. Others use a list.
    if isinstance(dtype, pl.List):
        return dtype
    entry = pl.Struct({"key": dtype.key, "value": dtype.value})  # type: ignore[attr-defined]  # of a map
    return pl.List(entry)


def _row_of(rank: Positions) -> Positions:
    rows: Positions = np.where(rank < 0, -1 - rank, rank)
    rows[rank == _NEVER] = -1
    return rows
