"""Merge functions over scalars: numbers, booleans and ordered types, and the choice of one input.

The functions that pick one input return the first or the last, with or without NULLs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.errors import InvalidError
from keytide.merge.functions.inputs import AggregateFunction, Inputs
from keytide.merge.refusal import Refusal
from keytide.merge.windows import KeySlices, Marks, take
from keytide.options import keys

# -- numbers, booleans and ordered types -----------------------------------------------------------


_VALUE = pl.col("value")

# A threshold between the largest sum that a DECIMAL holds (10^38) and the first that overflows
# (2^127, about 1.7 * 10^38). Floating-point rounding errors are smaller than the distance to both.
_UNSCALED_SUM_MAX = 1.2e38


class Sum(AggregateFunction):
    """The sum of the adds minus that of the retracts.

    NULL is ignored. If there are no values, the sum is NULL. Order does not matter, and aggregation
    can be split up, including retracts (for floats, except for rounding). Only the final result
    must fit the column. For integers and decimals, one that does not fit is an error.
    """

    name: ClassVar[str] = "sum"
    stands_anywhere: ClassVar[bool] = True
    can_retract: ClassVar[bool] = True

    def fold(self, inputs: Inputs) -> pl.Series:
        """The sums, exact for integers and decimals."""
        if inputs.values.dtype.is_decimal():
            values = _marked(inputs.values, inputs.adds | inputs.retracts)
            if inputs.retracts.any():
                values = values.zip_with(pl.Series(~inputs.retracts), -values)
            # The exact sum overflows silently at 2^127. The floating-point sum detects this.
            shadow = _VALUE.cast(pl.Float64).sum().alias("shadow")
            total = pl.when(_VALUE.count() > 0).then(_VALUE.sum()).alias("value")
            sums = _by_key(inputs.slices, values, total, shadow)
            exact = sums["value"].to_physical().abs()
            limit = _UNSCALED_SUM_MAX / 10 ** getattr(values.dtype, "scale", 0)
            if (sums["shadow"].abs() > limit).any() or (
                exact >= pl.Series([10**38], dtype=pl.Int128)
            ).any():
                raise self.does_not_fit(values.dtype)
            return _fitted(self, sums["value"], values.dtype)
        return _reduced(self, inputs, np.add, identity=0)


class Product(AggregateFunction):
    """The product of the adds. A retract divides by its value, truncating for integers.

    NULL is ignored, and a retract before the first add has no effect. For adds of integers, order
    does not matter, and aggregation can be split up. Decimals are rounded half up to the column's
    scale at each step, so for them both are true except for rounding. With retracts, aggregation
    can be split up only from the oldest input on.
    """

    name: ClassVar[str] = "product"
    can_retract: ClassVar[bool] = True

    def refusals(self, values: pl.Series, adds: Marks, retracts: Marks) -> Iterator[Refusal]:
        """Zeros in retracts, except for floats."""
        if not values.dtype.is_float() and retracts.any():
            is_zero = (values == 0).fill_null(value=False).to_numpy()
            yield Refusal(retracts & is_zero, self._no_division)

    def needs_older(self, inputs: Inputs) -> Marks:
        """Every retract, because division and multiplication cannot be reordered."""
        return inputs.retracts & inputs.is_present

    def fold(self, inputs: Inputs) -> pl.Series:
        """The products. Raises `InvalidError` if one does not fit, and for a division by zero."""
        if inputs.values.dtype.is_decimal() or inputs.retracts.any():
            # Process the second inputs of all keys together, then the third ones, and so on.
            keys = inputs.slices.keys
            first = inputs.slices.first_where(inputs.adds & inputs.is_present)
            begun = (first[keys] >= 0) & (inputs.slices.rows >= first[keys])
            rows = np.flatnonzero(begun & inputs.is_present & (inputs.adds | inputs.retracts))
            lengths = np.bincount(keys[rows], minlength=inputs.slices.count)
            starts = np.cumsum(lengths) - lengths
            # Keys sorted by decreasing number of inputs. Those with an input at a given depth then
            # come first.
            longest_first = np.argsort(-lengths, kind="stable")
            starts, lengths = starts[longest_first], lengths[longest_first]
            state = inputs.values.gather(rows[starts[lengths > 0]])
            finished = [state.clear().extend_constant(None, int((lengths == 0).sum()))]
            for depth in range(1, int(lengths[0])):
                active = int((lengths > depth).sum())
                finished.append(state.slice(active))
                step = rows[starts[:active] + depth]
                state = self._step(
                    state.head(active), inputs.values.gather(step), inputs.retracts[step]
                )
            products = pl.concat([state, *reversed(finished)])
            return products.gather(np.argsort(longest_first, kind="stable"))
        return _reduced(self, inputs, np.multiply, identity=1)

    def _step(self, state: pl.Series, values: pl.Series, divides: Marks) -> pl.Series:
        by_division = pl.Series(divides)
        divisors = values.filter(by_division)
        if not divisors.dtype.is_float() and (divisors == 0).any():
            raise InvalidError(self._no_division)
        try:
            products = _product(state.filter(~by_division), values.filter(~by_division))
            quotients = _product(state.filter(by_division), divisors, divides=True)
        except (pl.exceptions.InvalidOperationError, pa.ArrowInvalid):
            raise self.does_not_fit(state.dtype) from None
        places = np.where(divides, len(products) + np.cumsum(divides), np.cumsum(~divides)) - 1
        return pl.concat([products, quotients]).gather(places)

    @property
    def _no_division(self) -> str:
        return (
            f"column {self.column!r}: aggregate function 'product' cannot take back a zero; "
            f"set '{keys.key_of(keys.IGNORE_RETRACT, self.column)}'='true' to skip retracts"
        )


class _Extreme(AggregateFunction):
    """An extreme of the adds. NaN is the largest float, and bytes are compared unsigned.

    NULL is ignored. Order does not matter, and aggregation can be split up. No retraction.
    """

    stands_anywhere: ClassVar[bool] = True
    pick: ClassVar[np.ufunc]
    """Of two plain numbers, the one that wins."""
    pick_any: ClassVar[pl.Expr]
    """The same for values of any type."""

    def fold(self, inputs: Inputs) -> pl.Series:
        """The extreme per key. Vectorized for plain numbers."""
        values = _marked(inputs.values, inputs.adds)
        plain = values.to_physical()
        if not (plain.dtype.is_integer() or plain.dtype.is_float()) or plain.dtype == pl.Int128:
            return _by_key(inputs.slices, values, self.pick_any)["value"]
        # NULLs are replaced by a value that never wins. For floats, the minimum ignores NaN.
        is_largest = self.pick is np.maximum
        loser: float
        if plain.dtype.is_float():
            loser = -math.inf if is_largest else math.nan
        else:
            bounds = np.iinfo(plain.clear().to_numpy().dtype)
            loser = int(bounds.min if is_largest else bounds.max)
        present = values.is_not_null().to_numpy()
        filled = plain.fill_null(loser).to_numpy()
        picked = self.pick.reduceat(filled, inputs.slices.starts)
        extremes = _null_unless(pl.Series(picked, dtype=plain.dtype), present, inputs.slices)
        in_type: pl.Series = extremes.cast(values.dtype)
        return in_type


class Max(_Extreme):
    """The largest add, with the laws of an extreme."""

    name: ClassVar[str] = "max"
    pick: ClassVar[np.ufunc] = np.maximum
    pick_any: ClassVar[pl.Expr] = _VALUE.max()


class Min(_Extreme):
    """The smallest add, with the order and the laws of `max`."""

    name: ClassVar[str] = "min"
    pick: ClassVar[np.ufunc] = np.fmin
    pick_any: ClassVar[pl.Expr] = _VALUE.min()


class BoolAnd(Min):
    """Whether all adds are true, with the laws of `min`."""

    name: ClassVar[str] = "bool_and"


class BoolOr(Max):
    """Whether any add is true, with the laws of `max`."""

    name: ClassVar[str] = "bool_or"


def _marked(values: pl.Series, marks: Marks) -> pl.Series:
    """The values, NULL where not marked."""
    if marks.all():
        return values
    return values.set(pl.Series(~marks), None)


def _by_key(slices: KeySlices, values: pl.Series, *results: pl.Expr) -> pl.DataFrame:
    frame = pl.DataFrame({"key": pl.Series(slices.keys).set_sorted(), "value": values})
    return frame.group_by("key", maintain_order=True).agg(*results)


def _reduced(
    function: AggregateFunction, inputs: Inputs, reduce: np.ufunc, identity: int
) -> pl.Series:
    """Adds, and retracts with the opposite sign, reduced per key. NULL if there are none."""
    values, slices = inputs.values, inputs.slices
    takes_part = (inputs.adds | inputs.retracts) & inputs.is_present
    numbers = np.where(takes_part, values.fill_null(identity).to_numpy(), identity)
    if values.dtype.is_integer():
        numbers = numbers.astype(np.int64)
    signs = np.where(inputs.retracts, -1, 1).astype(numbers.dtype) if inputs.retracts.any() else 1
    with np.errstate(all="ignore"):
        signed = numbers * signs
        if reduce is np.add:
            signed += 0  # -0.0 becomes 0.0, so a retracted zero gives zero
        results = reduce.reduceat(signed, slices.starts)
        # Sums certainly fit in 64 bits if so many of the farthest number do, as nearly always.
        fits = False
        if values.dtype.is_integer() and reduce is np.add:
            farthest = max(int(numbers.max()), -int(numbers.min()))
            fits = farthest * int(slices.lengths.max()) < 2**62
        if values.dtype.is_integer() and not fits:
            # Integers can overflow silently. The floating-point result then differs a lot.
            shadow = reduce.reduceat(numbers.astype(np.float64) * signs, slices.starts)
            distance = np.abs(np.nan_to_num(shadow, nan=0.0) - results)
            if (distance > 2.0**62).any():
                raise function.does_not_fit(values.dtype)
    return _fitted(function, _null_unless(pl.Series(results), takes_part, slices), values.dtype)


def _null_unless(results: pl.Series, marks: Marks, slices: KeySlices) -> pl.Series:
    """The results, NULL for keys without a marked version."""
    if marks.all():
        return results
    return results.set(pl.Series(~slices.any_where(marks)), None)


def _fitted(function: AggregateFunction, results: pl.Series, dtype: pl.DataType) -> pl.Series:
    try:
        fitted: pl.Series = results.cast(dtype)
    except pl.exceptions.InvalidOperationError:
        raise function.does_not_fit(dtype) from None
    return fitted


def _product(values: pl.Series, operands: pl.Series, *, divides: bool = False) -> pl.Series:
    """The products or quotients, rounded half up to the scale of decimals."""
    dtype = values.dtype
    if dtype.is_decimal():
        # Arrow computes in 256 bits but refuses types with more than 76 digits, so one digit less
        # is used.
        digits, scale = 38, getattr(dtype, "scale", 0)
        wide = values.to_arrow().cast(pa.decimal256(digits, scale))
        by = operands.to_arrow().cast(pa.decimal256(digits - 1, scale))
        outcome = pc.divide(wide, by) if divides else pc.multiply(wide, by)
        rounded = pc.round(outcome, ndigits=scale, round_mode="half_towards_infinity")
        exact = pl.Series(rounded.cast(pa.decimal128(digits, scale)))
    elif dtype.is_integer() and divides:
        whole, by = values.cast(pl.Int128), operands.cast(pl.Int128)
        # Java's division truncates towards zero, but Polars rounds down.
        exact = whole.abs() // by.abs() * whole.sign() * by.sign()
    elif dtype.is_integer():
        exact = values.cast(pl.Int128) * operands.cast(pl.Int128)
    else:
        exact = values / operands if divides else values * operands
    in_type: pl.Series = exact.cast(dtype)
    return in_type


# -- choice of one input ---------------------------------------------------------------------------


class LastValue(AggregateFunction):
    """The last input, including NULL. A retract leaves NULL.

    A late add of a sequence group has no effect. Aggregation can be split up, including retracts.
    """

    name: ClassVar[str] = "last_value"
    stands_anywhere: ClassVar[bool] = True
    can_retract: ClassVar[bool] = True
    retract_leaves_null: ClassVar[bool] = True
    counts_late_adds: ClassVar[bool] = False
    goes_by_later: ClassVar[bool] = True
    ignores_null: ClassVar[bool] = False

    def deciding(self, inputs: Inputs) -> Marks:
        """The last input."""
        return inputs.slices.marks(inputs.slices.last_where(inputs.adds))

    def fold(self, inputs: Inputs) -> pl.Series:
        """The last values."""
        in_order = inputs.adds if inputs.is_late is None else inputs.adds & ~inputs.is_late
        last = inputs.slices.last_where(in_order | inputs.retracts)
        # A retract as the last input leaves NULL, and so does a key without any input that counts.
        return take(inputs.values, np.where(inputs.adds[last], last, -1))


class LastNonNullValue(AggregateFunction):
    """The last input that is not NULL. A retract that is not NULL leaves NULL.

    The value of a retract is not compared. A late add of a sequence group replaces a NULL. Adds can
    be aggregated in parts. With retracts, only from the oldest input on.
    """

    name: ClassVar[str] = "last_non_null_value"
    can_retract: ClassVar[bool] = True
    retract_leaves_null: ClassVar[bool] = True
    goes_by_later: ClassVar[bool] = True

    def deciding(self, inputs: Inputs) -> Marks:
        """The last input that is not NULL."""
        return inputs.slices.marks(inputs.slices.last_where(inputs.adds & inputs.is_present))

    def fold(self, inputs: Inputs) -> pl.Series:
        """The last values that are not NULL and were not retracted."""
        adds = inputs.adds & inputs.is_present
        if inputs.retracts.any():
            taken_back = inputs.slices.last_where(inputs.retracts & inputs.is_present)
            adds &= inputs.slices.rows > taken_back[inputs.slices.keys]
        return take(inputs.values, inputs.latest(adds))

    def needs_older(self, inputs: Inputs) -> Marks:
        """Retracts that leave NULL."""
        last_add = inputs.slices.last_where(inputs.adds & inputs.is_present)
        is_after = inputs.slices.rows > last_add[inputs.slices.keys]
        return inputs.retracts & inputs.is_present & is_after


class FirstValue(AggregateFunction):
    """The first input, including NULL.

    A late add of a sequence group becomes the first one, because late adds do not remember how late
    they were. Aggregation can be split up. No retraction.
    """

    name: ClassVar[str] = "first_value"
    ignores_null: ClassVar[bool] = False

    def deciding(self, inputs: Inputs) -> Marks:
        """The first input."""
        return inputs.slices.marks(inputs.slices.first_where(inputs.adds))

    def fold(self, inputs: Inputs) -> pl.Series:
        """The first values."""
        return take(inputs.values, inputs.earliest(inputs.adds))


class FirstNonNullValue(AggregateFunction):
    """The first input that is not NULL, with the laws of `first_value`."""

    name: ClassVar[str] = "first_non_null_value"

    def deciding(self, inputs: Inputs) -> Marks:
        """The first input that is not NULL."""
        return inputs.slices.marks(inputs.slices.first_where(inputs.adds & inputs.is_present))

    def fold(self, inputs: Inputs) -> pl.Series:
        """The first values that are not NULL."""
        return take(inputs.values, inputs.earliest(inputs.adds & inputs.is_present))
