"""Functions over numbers, truth values and anything that has an order."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.errors import InvalidError
from keytide.merge.functions.inputs import AggregateFunction, Inputs
from keytide.merge.slices import KeySlices, Marks, Positions

__all__ = ["BoolAnd", "BoolOr", "Max", "Min", "Product", "Sum"]

_VALUE = pl.col("value")


class Sum(AggregateFunction):
    """The sum of the adds less that of the retracts.

    NULL counts for nothing; without any value the sum is NULL. Order does not matter and folding
    may be split up, retracts included (floats: up to rounding). Only the outcome has to fit the
    column; a whole number or decimal that does not is an error.
    """

    name: ClassVar[str] = "sum"
    can_retract: ClassVar[bool] = True

    def fold(self, inputs: Inputs) -> pl.Series:
        """The sums; exact for whole numbers and decimals."""
        values = _marked(inputs.values, inputs.adds | inputs.retracts)
        exact = values.cast(pl.Int128) if values.dtype.is_integer() else values
        if inputs.retracts.any():
            exact = exact.zip_with(pl.Series(~inputs.retracts), _negated(exact))
        shadow = _VALUE.cast(pl.Float64).sum()
        sums = _by_key(inputs.slices, exact, _unless_empty(_VALUE.sum()), shadow.alias("shadow"))
        return _fitted(self, sums, values.dtype)


class Product(AggregateFunction):
    """The product of the adds; a retract divides by its value, whole numbers truncating.

    NULL counts for nothing, and a retract before the first add takes nothing back. Of adds of
    whole numbers order does not matter and folding may be split up. Decimals are rounded half up
    to the column's scale at each step, so there both hold up to rounding only. With retracts,
    folding may be split up only from the oldest input on.
    """

    name: ClassVar[str] = "product"
    can_retract: ClassVar[bool] = True

    def fold(self, inputs: Inputs) -> pl.Series:
        """The products; `InvalidError` for one that does not fit and for division by zero."""
        dtype = inputs.values.dtype
        if dtype.is_decimal() or inputs.retracts.any():
            return self._step_by_step(inputs)
        values = _marked(inputs.values, inputs.adds)
        exact = values.cast(pl.Int128) if dtype.is_integer() else values
        # Infinity times zero is no number, but the exact product of a zero is zero.
        shadow = _VALUE.cast(pl.Float64).product().fill_nan(0)
        whole = _unless_empty(_VALUE.product())
        return _fitted(self, _by_key(inputs.slices, exact, whole, shadow.alias("shadow")), dtype)

    def _step_by_step(self, inputs: Inputs) -> pl.Series:
        """Fold the second inputs of all keys at once, then the third ones, and so on."""
        rows, starts, lengths = _inputs_from_first_add(inputs)
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

    def _step(self, state: pl.Series, values: pl.Series, divides: Marks) -> pl.Series:
        divides_by = pl.Series(divides)
        if state.dtype.is_float():
            floats: pl.Series = (state / values).zip_with(divides_by, state * values)
            return floats
        if (values.filter(divides_by) == 0).any():
            raise InvalidError(
                f"column {self.column!r}: aggregate function 'product' cannot take back a zero; "
                f"set 'fields.{self.column}.ignore-retract'='true' to skip retracts"
            )
        ones = values.clear().cast(pl.Int8).extend_constant(1, len(values)).cast(values.dtype)
        factors, divisors = ones.zip_with(divides_by, values), values.zip_with(divides_by, ones)
        exact = _decimal_step if state.dtype.is_decimal() else _whole_step
        try:
            return exact(state, factors, divisors)
        except (pl.exceptions.InvalidOperationError, pa.ArrowInvalid):
            raise self.does_not_fit(state.dtype) from None


class Max(AggregateFunction):
    """The greatest add; NaN is the greatest float, bytes compare unsigned.

    NULL counts for nothing. Order does not matter and folding may be split up; no retraction.
    """

    name: ClassVar[str] = "max"

    def fold(self, inputs: Inputs) -> pl.Series:
        """The greatest values."""
        greatest = _VALUE.nan_max() if inputs.values.dtype.is_float() else _VALUE.max()
        return _by_key(inputs.slices, _marked(inputs.values, inputs.adds), greatest)["value"]


class Min(AggregateFunction):
    """The least add, ordered as for `max`, with the same laws."""

    name: ClassVar[str] = "min"

    def fold(self, inputs: Inputs) -> pl.Series:
        """The least values."""
        return _by_key(inputs.slices, _marked(inputs.values, inputs.adds), _VALUE.min())["value"]


class BoolAnd(Min):
    """Whether all adds are true, with the laws of `min`."""

    name: ClassVar[str] = "bool_and"


class BoolOr(Max):
    """Whether an add is true, with the laws of `max`."""

    name: ClassVar[str] = "bool_or"


def _marked(values: pl.Series, marks: Marks) -> pl.Series:
    """The values with NULL where not marked."""
    if marks.all():
        return values
    return values.set(pl.Series(~marks), None)


def _negated(values: pl.Series) -> pl.Series:
    # 128-bit numbers have no negation of their own.
    return values * pl.Series([-1], dtype=pl.Int128) if values.dtype.is_integer() else -values


def _by_key(slices: KeySlices, values: pl.Series, *results: pl.Expr) -> pl.DataFrame:
    frame = pl.DataFrame({"key": pl.Series(slices.keys).set_sorted(), "value": values})
    return frame.group_by("key", maintain_order=True).agg(*results)


def _unless_empty(result: pl.Expr) -> pl.Expr:
    return pl.when(_VALUE.count() > 0).then(result).alias("value")


def _fitted(function: AggregateFunction, results: pl.DataFrame, dtype: pl.DataType) -> pl.Series:
    """Results in the column's type.

    Exact results are computed in 128 bits, where they could still wrap around; the same in
    floating point, the shadow, then lies far outside what the column holds.
    """
    values, shadow = results["value"], results["shadow"]
    fitted: pl.Series
    if dtype.is_float():
        fitted = values.cast(dtype)
        return fitted
    limit = 1e20 if dtype.is_integer() else 1.2e38 / 10 ** _scale(dtype)
    if (shadow.abs() > limit).any():
        raise function.does_not_fit(dtype)
    if dtype.is_decimal() and (values.to_physical().abs() >= _power_of_ten(38)).any():
        raise function.does_not_fit(dtype)
    try:
        fitted = values.cast(dtype)
    except pl.exceptions.InvalidOperationError:
        raise function.does_not_fit(dtype) from None
    return fitted


def _inputs_from_first_add(inputs: Inputs) -> tuple[Positions, Positions, Positions]:
    """The rows that take part in a product, and where each key's start among them, how many."""
    keys = inputs.slices.keys
    first = inputs.slices.first_where(inputs.adds & inputs.is_present)
    begun = (first[keys] >= 0) & (inputs.slices.rows >= first[keys])
    rows = np.flatnonzero(begun & inputs.is_present & (inputs.adds | inputs.retracts))
    lengths = np.bincount(keys[rows], minlength=inputs.slices.count)
    return rows, np.cumsum(lengths) - lengths, lengths


def _whole_step(state: pl.Series, factors: pl.Series, divisors: pl.Series) -> pl.Series:
    wide = state.cast(pl.Int128) * factors.cast(pl.Int128)
    by = divisors.cast(pl.Int128)
    quotients = wide.abs() // by.abs() * wide.sign() * by.sign()
    stepped: pl.Series = quotients.cast(state.dtype)
    return stepped


def _decimal_step(state: pl.Series, factors: pl.Series, divisors: pl.Series) -> pl.Series:
    # Arrow computes in 256 bits and rounds as asked; a result type of more than 76 digits is
    # refused, hence the digit less.
    precision, scale = 38, _scale(state.dtype)
    wide, operand = pa.decimal256(precision, scale), pa.decimal256(precision - 1, scale)
    product = pc.multiply(state.to_arrow().cast(wide), factors.to_arrow().cast(operand))
    product = pc.round(product, ndigits=scale, round_mode="half_towards_infinity")
    quotient = pc.divide(product.cast(wide), divisors.to_arrow().cast(operand))
    rounded = pc.round(quotient, ndigits=scale, round_mode="half_towards_infinity")
    stepped: pl.Series = pl.Series(rounded.cast(pa.decimal128(precision, scale))).cast(state.dtype)
    return stepped


def _scale(dtype: pl.DataType) -> int:
    scale: int = getattr(dtype, "scale", 0)
    return scale


def _power_of_ten(exponent: int) -> pl.Series:
    return pl.Series([10**exponent], dtype=pl.Int128)
