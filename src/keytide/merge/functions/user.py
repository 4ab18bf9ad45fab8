"""User-defined merge functions, written as Polars expressions, and tests of their laws.

A `MergeFunction` can be pickled, so a table takes those it needs to every process that reads it. If
a table uses a function that this process has not registered, an `UnregisteredFunction` replaces it,
so that the other columns can be read.

The tests use generated values. Keys are merged in any steps that reads, writes and compactions
take, so a function must give the same result however its inputs are grouped. The values come from a
fixed seed, so a function either always passes or never.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import cloudpickle
import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.errors import InvalidError, KeytideError, OverflowingError, SetupError
from keytide.format.arrow import from_arrow
from keytide.merge.functions.inputs import AggregateFunction, Inputs
from keytide.merge.windows import Marks
from keytide.types import ArrayType, AtomicType, DataType, Field, MapType, RowType, arrow_schema

# -- user-defined functions ------------------------------------------------------------------------


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

    def retracted(self, added: pl.Series, taken: pl.Series) -> pl.Series:
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

    function: MergeFunction

    @property
    def name(self) -> str:  # type: ignore[override]  # other functions have theirs by class
        """The name it was registered under."""
        return self.function.name

    @property
    def can_retract(self) -> bool:  # type: ignore[override]  # likewise
        """Whether it was registered with a retract."""
        return self.function.retract is not None

    def fold(self, inputs: Inputs) -> pl.Series:
        """The aggregates. Raises `InvalidError`, naming column and function, if that fails."""
        try:
            added = self._folded(inputs, inputs.adds)
            retracts = inputs.retracts
            if self.function.skip_nulls:
                retracts = retracts & inputs.is_present
            if not retracts.any():
                return added
            left = self.function.retracted(added, self._folded(inputs, retracts))
        except InvalidError as error:
            raise InvalidError(f"column {self.column!r} cannot be merged: {error}") from error
        result: pl.Series = left.zip_with(pl.Series(inputs.slices.any_where(retracts)), added)
        return result

    def needs_older(self, inputs: Inputs) -> Marks:
        """Every retract, because its effect without the retracted value is unknown."""
        return inputs.retracts & inputs.is_present if self.function.skip_nulls else inputs.retracts

    def _folded(self, inputs: Inputs, marks: Marks) -> pl.Series:
        columns = {"key": inputs.slices.keys, "rank": inputs.rank, _VALUE: inputs.values}
        marked = pl.DataFrame(columns).filter(pl.Series(marks)).sort("key", "rank").drop("rank")
        return inputs.per_key(self.function.folded(marked, inputs.values.dtype))


@dataclass(frozen=True)
class UnregisteredFunction(AggregateFunction):
    """A placeholder for an unregistered function. Aggregating raises `SetupError`."""

    stored_name: str

    @property
    def name(self) -> str:  # type: ignore[override]  # other functions have theirs by class
        """The name in the table's options."""
        return self.stored_name

    @property
    def can_retract(self) -> bool:  # type: ignore[override]  # likewise
        """True, so that the error is not about retracts."""
        return True

    def fold(self, inputs: Inputs) -> pl.Series:
        """Raise `SetupError`."""
        raise SetupError(
            f"column {self.column!r} is folded by merge function {self.stored_name!r}, which is "
            f"not registered in this process; call "
            f"keytide.register_merge_function({self.stored_name!r}, ...) before the table is "
            "opened, or read other columns: scan(columns=[...])"
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


# -- tests of the laws -----------------------------------------------------------------------------


_SEED = 20_240_229
# Enough to detect functions that average, count or pick by position, within a few milliseconds.
_TRIALS = 150
_NULL_SHARE = 0.15
_INTEGER_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}


def check_laws(function: MergeFunction, examples: Sequence[Any] = ()) -> None:
    """Refuse a function that gives different results when its inputs are grouped differently.

    Tested with small values, with larger ones if results fit, and with `examples`. Raises
    `InvalidError` with two groupings that differ, and what the function itself raises.
    """
    for type_ in function.types:
        trials = _Trials(function, type_, examples)
        trials.check_grouping(trials.lists(1, 4))
        with suppress(OverflowingError):
            trials.check_grouping(trials.lists(1, 3, large=True))
        if function.retract is not None:
            trials.check_retract()


class _Trials:
    """Runs one function on lists of values of one type."""

    def __init__(self, function: MergeFunction, type_: DataType, examples: Sequence[Any]) -> None:
        self.function = function
        self.type = type_
        self.field = Field(-1, "value", type_.with_nullable(True))
        self.random = np.random.default_rng(_SEED)
        try:
            given = pa.table({"value": pa.array(examples, self.field.to_arrow().type)})
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidError(
                f"merge function {function.name!r}: the examples must be values of "
                f"{type_.sql()}, and one is not: {error}"
            ) from error
        self.examples = from_arrow(given)["value"].to_list()

    def check_grouping(self, lists: list[list[Any]]) -> None:
        """Check that aggregating partial aggregates gives the same result."""
        cuts = [sorted(self.random.integers(0, len(values) + 1, 2)) for values in lists]
        grouped = [
            [values[:low], values[low:high], values[high:]]
            for values, (low, high) in zip(lists, cuts, strict=True)
        ]
        at_once = self.folds(lists)
        for fold_lone in (True, False):
            # The aggregates of the groups of each list. Empty groups are skipped.
            folded = iter(self.folds([part for parts in grouped for part in parts]))
            partly = []
            for parts in grouped:
                pairs = [(part, next(folded)) for part in parts]
                partly.append(
                    [p[0] if len(p) == 1 and not fold_lone else fold for p, fold in pairs if p]
                )
            refolded = self.folds(partly)
            for i, values in enumerate(lists):
                if not _is_same(at_once[i], refolded[i]):
                    groups = " and ".join(str(list(part)) for part in grouped[i] if part)
                    raise self._broken(
                        f"{values} folds to {at_once[i]}, but in groups {groups} to "
                        f"{partly[i]} and then to {refolded[i]}"
                    )

    def check_retract(self) -> None:
        """Check that retracting together or in steps, before or after other adds, is the same."""
        added, more = self.lists(0, 2), self.lists(0, 2)
        taken, again = self.lists(1, 2), self.lists(1, 2)
        f, taken_back = self.folds, self.retracted
        together = taken_back(f(_sums(added, more)), f(taken))
        later = f(_sums([[v] for v in taken_back(f(added), f(taken))], more))
        for i, (one, other) in enumerate(zip(together, later, strict=True)):
            if not _is_same(one, other):
                raise self._broken(
                    f"{added[i]}, then {more[i]}, less {taken[i]} is {one}, but {added[i]} less "
                    f"{taken[i]}, then {more[i]} is {other}"
                )
        at_once = taken_back(f(added), f(_sums(taken, again)))
        in_steps = taken_back(taken_back(f(added), f(taken)), f(again))
        for i, (one, other) in enumerate(zip(at_once, in_steps, strict=True)):
            if not _is_same(one, other):
                raise self._broken(
                    f"{added[i]} less {taken[i] + again[i]} is {one}, but less {taken[i]} and "
                    f"then less {again[i]} it is {other}"
                )

    # -- values ----------------------------------------------------------------------------------

    def lists(self, shortest: int, longest: int, *, large: bool = False) -> list[list[Any]]:
        """Lists of values, some of them NULL."""
        lists = []
        for length in self.random.integers(shortest, longest + 1, _TRIALS):
            values: list[Any] = []
            for _ in range(length):
                if self.random.random() < _NULL_SHARE:
                    values.append(None)
                elif self.examples and self.random.random() < 0.5:
                    values.append(self.examples[self.random.integers(len(self.examples))])
                else:
                    values.append(_value(self.type, self.random, large))
            lists.append(values)
        return lists

    # -- aggregation -----------------------------------------------------------------------------

    def folds(self, lists: Sequence[Sequence[Any]]) -> list[Any]:
        """The aggregate of each list, NULL for an empty one."""
        keys = np.repeat(np.arange(len(lists)), [len(values) for values in lists])
        values = self.series([value for values in lists for value in values])
        frame = pl.DataFrame({"key": keys, "value": values})
        folded = self.function.folded(frame, frame.schema["value"])
        results: list[Any] = [None] * len(lists)
        for key, value in zip(folded["key"], folded["value"].to_list(), strict=True):
            results[key] = value
        return results

    def retracted(self, added: Sequence[Any], taken: Sequence[Any]) -> list[Any]:
        """The result of each retraction, unchanged if nothing is retracted."""
        left = self.function.retracted(self.series(added), self.series(taken)).to_list()
        if not self.function.skip_nulls:
            return left
        return [a if t is None else rest for a, t, rest in zip(added, taken, left, strict=True)]

    def series(self, values: Sequence[Any]) -> pl.Series:
        """Values in the column's type."""
        table = arrow_schema([self.field]).empty_table()
        shape = from_arrow(table)["value"]
        return pl.Series("value", values, dtype=shape.dtype, strict=False)

    def _broken(self, example: str) -> InvalidError:
        return InvalidError(
            f"merge function {self.function.name!r} depends on how the values of a key are "
            f"grouped, which changes with every write, read and compaction. For "
            f"{self.type.sql()}: {example}. Folding the results of folds must give the fold of "
            f"all values: sums, extremes and unions do so; an average does not"
        )


def _value(type_: DataType, random: np.random.Generator, large: bool) -> Any:
    if isinstance(type_, ArrayType):
        return [_member(type_.element, random, large) for _ in range(random.integers(0, 4))]
    if isinstance(type_, MapType):
        keys = {_value(type_.key, random, large) for _ in range(random.integers(0, 4))}
        ordered = sorted(keys)
        return [{"key": key, "value": _member(type_.value, random, large)} for key in ordered]
    if isinstance(type_, RowType):
        return {f.name: _member(f.type, random, large) for f in type_.fields}
    if not isinstance(type_, AtomicType):
        raise InvalidError(f"merge functions cannot be tried out on {type_.sql()}")
    return _atom(type_, random, large)


def _member(type_: DataType, random: np.random.Generator, large: bool) -> Any:
    return None if random.random() < _NULL_SHARE else _value(type_, random, large)


def _atom(type_: AtomicType, random: np.random.Generator, large: bool) -> Any:
    number = int(random.integers(-3, 4))
    if large:
        number *= int(10 ** random.integers(1, 4))
    root = type_.root
    if root == "BOOLEAN":
        return number > 0
    if root in _INTEGER_BITS:
        # Leaves room for the sum of a whole list, so that the law is tested and not the width.
        highest = 2 ** (_INTEGER_BITS[root] - 4)
        return max(-highest, min(highest, number))
    if root in ("FLOAT", "DOUBLE"):
        return number / 4
    if root == "DECIMAL":
        digits = (type_.precision or 1) - 1
        return Decimal(number % 10 ** max(1, digits)).scaleb(-(type_.scale or 0))
    if root in ("CHAR", "VARCHAR"):
        return "".join(
            random.choice(list("ab "), random.integers(0, min(3, type_.length or 1) + 1))
        )
    if root in ("BINARY", "VARBINARY"):
        return bytes(
            random.integers(0, 3, random.integers(0, min(3, type_.length or 1) + 1)).tolist()
        )
    if root == "DATE":
        return date(2024, 3, 1) + timedelta(days=number)
    if root == "TIME":
        return time(12, 30, number % 60)
    zone = timezone.utc if root == "TIMESTAMP_LTZ" else None
    return datetime(2024, 3, 1, tzinfo=zone) + timedelta(seconds=number)


def _sums(one: Sequence[list[Any]], other: Sequence[list[Any]]) -> list[list[Any]]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[k], other[k]) for k in one)
    return bool(one == other)
