"""What an aggregate function folds: the inputs of one column, and the seam of the functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import polars as pl

from keytide.errors import InvalidError
from keytide.lazily import cached_property
from keytide.merge.refusal import Refusal
from keytide.merge.slices import KeySlices, Marks, Positions, take
from keytide.options import keys

__all__ = ["AggregateFunction", "AggregatedColumn", "Inputs", "leaves_null", "unsound"]

# Lower than every rank, so that it loses to each.
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

    def not_added_again(self, items: pl.DataFrame, identity: list[str]) -> Marks:
        """The retracts of which an item is not among those of a later add."""
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
    retract_leaves_null: ClassVar[bool] = False
    """Whether a retract may leave NULL where there was a value."""
    counts_late_adds: ClassVar[bool] = True
    """Whether an add of a sequence group that came late, after a retract even, may be the value."""
    folds_adds: ClassVar[bool] = True
    """Whether a fold of adds stands for them on top of whatever is there already."""
    stands_anywhere: ClassVar[bool] = False
    """Whether a fold, in the place of its newest input, stands for all of them also where others
    turn out to belong between them."""

    goes_by_later: ClassVar[bool] = False
    """Whether inputs before the deciding one are of no matter, even should that one be removed
    together with all before it."""
    ignores_null: ClassVar[bool] = True
    """Whether a NULL among the inputs changes nothing."""

    column: str

    def deciding(self, inputs: Inputs) -> Marks | None:
        """The adds that alone decide, now and with any that come between them; None for all.

        Where `stands_anywhere` and NULL is ignored, none is needed: their fold goes to the newest.
        """
        return None

    def refusals(self, values: pl.Series, adds: Marks, retracts: Marks) -> Iterator[Refusal]:
        """Incoming values that could not be folded once another version meets them.

        What a fold becomes too large for is not known before, and found when it is folded.
        """
        yield from ()

    def fold(self, inputs: Inputs) -> pl.Series:
        """One value per key, of the inputs' type.

        Raises `InvalidError` naming column and function when the value does not fit the type.
        """
        raise NotImplementedError

    def needs_older(self, inputs: Inputs) -> Marks:
        """The inputs whose effect on older ones would be lost in a fold that begins with these.

        None, unless a function says otherwise.
        """
        return np.zeros(len(inputs.values), dtype=bool)

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

    def fold(self, inputs: Inputs, are_retracts: Marks) -> pl.Series:
        """As the function folds. Raises `InvalidError` for a retract that it cannot take back.

        The marked keys have nothing but retracts, which become one: it takes back what they take
        back together, and holds the last one's value where none of them takes part.
        """
        inputs = self.accepted(inputs)
        if not are_retracts.any():
            return self.function.fold(inputs)
        alone = inputs.retracts & are_retracts[inputs.slices.keys]
        folded = self.function.fold(
            replace(inputs, adds=inputs.adds | alone, retracts=inputs.retracts & ~alone)
        )
        is_told = pl.Series(~are_retracts | inputs.slices.any_where(alone))
        told: pl.Series = folded.zip_with(is_told, take(inputs.values, inputs.slices.lasts))
        return told

    def needs_older(self, inputs: Inputs) -> Marks:
        """The inputs that have to be folded together with the older ones to take full effect."""
        if not self.function.can_retract or self.ignore_retract:
            inputs = replace(inputs, retracts=np.zeros_like(inputs.retracts))
        if self.function.folds_adds and not inputs.retracts.any():
            return inputs.retracts
        return self.function.needs_older(inputs)

    def accepted(self, inputs: Inputs) -> Inputs:
        """The inputs that the function may see. Raises `InvalidError` for one it cannot take."""
        if self.ignore_retract:
            return replace(inputs, retracts=np.zeros_like(inputs.retracts))
        if not self.function.can_retract and inputs.retracts.any():
            raise InvalidError(self._no_retraction)
        return inputs

    def refusals(
        self, values: pl.Series, adds: Marks, retracts: Marks, *, is_not_null: bool
    ) -> Iterator[Refusal]:
        """Incoming rows that the column could not be merged with, given those that reach it."""
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
            f"Aggregate function '{name}' does not support retraction, so column {column!r} "
            f"cannot take rows of kind -U and -D; if they may be skipped, set "
            f"'{keys.key_of(keys.IGNORE_RETRACT, column)}'='true'"
        )


def leaves_null(column: str) -> str:
    """Why a NOT NULL column takes no retract."""
    return (
        f"Field '{column}' expected not null but found null value, which a retract would leave in "
        f"it; make the column nullable"
    )


def unsound(values: pl.Series, marks: Marks, is_sound: Callable[[bytes], bool]) -> Marks:
    """Which of the marked values that are not NULL are not sound; equal ones are asked once."""
    asked = values.filter(pl.Series(marks)).drop_nulls().unique()
    wrong = asked.filter(pl.Series([not is_sound(value) for value in asked], dtype=pl.Boolean))
    found: Marks = values.is_in(wrong.implode()).fill_null(value=False).to_numpy() & marks
    return found


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
