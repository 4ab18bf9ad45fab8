"""What rows are compared by, as whole numbers of eight bytes that order as the values do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.errors import UnsupportedError
from keytide.types import Field

__all__ = ["check_comparable", "comparison_numbers"]

Numbers = npt.NDArray[np.int64]

_LOWEST = np.iinfo(np.int64).min
_ROOTS = frozenset(
    ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIME",
     "TIMESTAMP", "TIMESTAMP_LTZ")
)  # fmt: skip


def check_comparable(field: Field) -> None:
    """Raise `UnsupportedError` for a column whose values are wider than an entry has room for."""
    if field.type.root not in _ROOTS:
        raise UnsupportedError(
            f"column {field.name!r} is {field.type.sql()}, and rows of a table with an index of "
            f"keys are compared by a number or a time; name another one as sequence field"
        )


def comparison_numbers(values: pa.ChunkedArray, *, descending: bool = False) -> Numbers:
    """A number for each value; NULL is lowest, NaN highest, as rule R1 of docs/semantics.md has it.

    With `descending` the least value has the highest number, but for NULL.
    """
    array = values.combine_chunks()
    is_null = np.asarray(array.is_null())
    if pa.types.is_floating(array.type):
        numbers = _of_floats(array)
    else:
        wide = array.cast(pa.int32()) if array.type in (pa.date32(), pa.time32("ms")) else array
        numbers = np.asarray(wide.cast(pa.int64()).fill_null(0)).astype(np.int64)
    if descending:
        numbers = ~numbers
    # The lowest number is that of NULL alone, which costs the two lowest of a BIGINT their order.
    numbers = np.maximum(numbers, _LOWEST + 1)
    numbers[is_null] = _LOWEST
    return numbers


def _of_floats(array: pa.Array) -> Numbers:
    found = np.asarray(array.cast(pa.float64()).fill_null(0.0)) + 0.0  # of zero there is one
    found = np.where(np.isnan(found), np.nan, found)  # and of NaN
    bits = found.view(np.int64)
    # Bits of negative numbers count the other way round.
    return np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)
