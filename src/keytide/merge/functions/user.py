"""User-defined merge functions, written as Polars expressions.

A `MergeFunction` can be pickled, so a table takes those it needs to every process that reads it. If
a table uses a function that this process has not registered, an `UnregisteredFunction` replaces it,
so that the other columns can be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import polars as pl

from keytide.errors import InvalidError, KeytideError, OverflowingError, SetupError
from keytide.merge.functions.inputs import AggregateFunction, Inputs
from keytide.merge.slices import Marks
from keytide.types import ArrayType, AtomicType, DataType, MapType, RowType

__all__ = ["MergeFunction", "UnregisteredFunction", "UserFunction"]

_VALUE, _ADDED, _TAKEN = "value", "added", "taken"


@dataclass(frozen=True)
class MergeFunction:
    """A function for the columns of some types, as `register_merge_function` describes it."""

    name: str
    function: Callable[[pl.Expr], pl.Expr]
    types: tuple[DataType, ...]
    retract: Callable[[pl.Expr, pl.Expr], pl.Expr] | None = None
    skip_nulls: bool = True

    def __reduce__(self) -> tuple[Any, ...]:
        # Lambdas and functions of a notebook are pickled by value.
        parts = (self.name, self.function, self.types, self.retract, self.skip_nulls)
        return _unpickled, (cloudpickle.dumps(parts),)

    def takes(self, type_: DataType) -> bool:
        """Whether columns of the type can be aggregated."""
        return any(_is_alike(type_, taken) for taken in self.types)

    def folded(self, values: pl.DataFrame, dtype: pl.DataType) -> pl.DataFrame:
        """One `value` per `key`, from rows sorted by key and then in merge order.

        Raises `InvalidError`, naming the function, if it fails or does not return one value of the
        type per key.
        """
        if self.skip_nulls:
            values = values.filter(pl.col(_VALUE).is_not_null())
        fold = self._expression(lambda: self.function(pl.col(_VALUE)))
        groups = values.group_by("key", maintain_order=True)
        results: pl.DataFrame = self._made(lambda: groups.agg(fold))
        return results.with_columns(self._fitted(results[_VALUE], dtype))

    def taken_back(self, added: pl.Series, taken: pl.Series) -> pl.Series:
        """The result of retracting a value from each aggregate. Raises as `folded` does."""
        assert self.retract is not None
        retract = self.retract
        frame = pl.DataFrame({_ADDED: added, _TAKEN: taken})
        rest = self._expression(lambda: retract(pl.col(_ADDED), pl.col(_TAKEN)))
        left: pl.DataFrame = self._made(lambda: frame.select(rest))
        if left.height != frame.height:
            raise InvalidError(
                f"merge function {self.name!r}: retract made {left.height} values of "
                f"{frame.height}; it works row by row"
            )
        return self._fitted(left[_VALUE], added.dtype)

    def _expression(self, make: Callable[[], Any]) -> pl.Expr:
        made = self._made(make)
        if not isinstance(made, pl.Expr):
            raise InvalidError(
                f"merge function {self.name!r} returns {made!r}; expected a Polars expression"
            )
        return made.alias(_VALUE)

    def _made(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except KeytideError:
            raise
        except Exception as error:
            raise InvalidError(
                f"merge function {self.name!r} failed with {type(error).__name__}: {error}"
            ) from error

    def _fitted(self, results: pl.Series, dtype: pl.DataType) -> pl.Series:
        """The results in the column's type, if only their width differs."""
        if results.dtype == dtype:
            return results
        if _family(results.dtype) != _family(dtype) and results.dtype != pl.Null:
            hint = "; reduce the values to one" if results.dtype == pl.List(dtype) else ""
            raise InvalidError(
                f"merge function {self.name!r} gives {results.dtype} for a column of {dtype}; "
                f"expected one value of the column's type per key{hint}"
            )
        try:
            fitted: pl.Series = results.cast(dtype)
        except pl.exceptions.InvalidOperationError:
            raise OverflowingError(
                f"the result of merge function {self.name!r} does not fit {dtype} (overflow); "
                f"change the column to a wider type"
            ) from None
        return fitted


@dataclass(frozen=True)
class UserFunction(AggregateFunction):
    """A user-defined function on one column, with the laws tested on registration.

    Adds are aggregated in merge order, and the aggregate of the retracts is retracted from it.
    """

    given: MergeFunction

    @property
    def name(self) -> str:  # type: ignore[override]  # other functions have theirs by class
        """The name it was registered under."""
        return self.given.name

    @property
    def can_retract(self) -> bool:  # type: ignore[override]  # likewise
        """Whether it was registered with a retract."""
        return self.given.retract is not None

    def fold(self, inputs: Inputs) -> pl.Series:
        """The aggregates. Raises `InvalidError`, naming column and function, if that fails."""
        try:
            added = self._folded(inputs, inputs.adds)
            retracts = inputs.retracts
            if self.given.skip_nulls:
                retracts = retracts & inputs.is_present
            if not retracts.any():
                return added
            left = self.given.taken_back(added, self._folded(inputs, retracts))
        except InvalidError as error:
            raise InvalidError(f"column {self.column!r} cannot be merged: {error}") from error
        result: pl.Series = left.zip_with(pl.Series(inputs.slices.any_where(retracts)), added)
        return result

    def needs_older(self, inputs: Inputs) -> Marks:
        """Every retract, because its effect without the retracted value is unknown."""
        return inputs.retracts & inputs.is_present if self.given.skip_nulls else inputs.retracts

    def _folded(self, inputs: Inputs, marks: Marks) -> pl.Series:
        columns = {"key": inputs.slices.keys, "rank": inputs.rank, _VALUE: inputs.values}
        marked = pl.DataFrame(columns).filter(pl.Series(marks)).sort("key", "rank").drop("rank")
        return inputs.per_key(self.given.folded(marked, inputs.values.dtype))


@dataclass(frozen=True)
class UnregisteredFunction(AggregateFunction):
    """A placeholder for an unregistered function. Aggregating raises `SetupError`."""

    wanted: str

    @property
    def name(self) -> str:  # type: ignore[override]  # other functions have theirs by class
        """The name in the table's options."""
        return self.wanted

    @property
    def can_retract(self) -> bool:  # type: ignore[override]  # likewise
        """True, so that the error is not about retracts."""
        return True

    def fold(self, inputs: Inputs) -> pl.Series:
        """Raise `SetupError`."""
        raise SetupError(
            f"column {self.column!r} is folded by merge function {self.wanted!r}, which is not "
            f"registered in this process; call keytide.register_merge_function({self.wanted!r}, "
            f"...) before the table is opened, or read other columns: scan(columns=[...])"
        )


def _unpickled(payload: bytes) -> MergeFunction:
    return MergeFunction(*cloudpickle.loads(payload))


def _family(dtype: pl.DataType) -> Any:
    """A common value for types that differ only in width."""
    if dtype.is_integer() or dtype.is_float() or dtype.is_decimal():
        return dtype.is_integer(), dtype.is_float()
    return dtype


def _is_alike(one: DataType, other: DataType) -> bool:
    """Whether two types differ at most in lengths, precisions and nullability."""
    if isinstance(one, AtomicType) and isinstance(other, AtomicType):
        return one.root == other.root
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return _is_alike(one.element, other.element)
    if isinstance(one, MapType) and isinstance(other, MapType):
        return _is_alike(one.key, other.key) and _is_alike(one.value, other.value)
    if isinstance(one, RowType) and isinstance(other, RowType):
        return [f.name for f in one.fields] == [f.name for f in other.fields] and all(
            _is_alike(a.type, b.type) for a, b in zip(one.fields, other.fields, strict=True)
        )
    return False
