"""Functions that pick one input: the first or the last, with or without NULLs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import polars as pl

from keytide.merge.functions.inputs import AggregateFunction, Inputs
from keytide.merge.windows import Marks, take

__all__ = ["FirstNonNullValue", "FirstValue", "LastNonNullValue", "LastValue"]


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
            adds &= inputs.after(taken_back)
        return take(inputs.values, inputs.latest(adds))

    def needs_older(self, inputs: Inputs) -> Marks:
        """Retracts that leave NULL."""
        last_add = inputs.slices.last_where(inputs.adds & inputs.is_present)
        return inputs.retracts & inputs.is_present & inputs.after(last_add)


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
