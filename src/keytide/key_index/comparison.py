"""The values by which rows of a key are compared.

Numbers and times are stored in the index as 8-byte integers with the same order as the values.
Strings, bytes, decimals, and the columns of several producers have no such numbers. For these, the
index contains the location of the current row, and the row is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keytide.types import Field

__all__ = ["NOTHING", "Comparison", "Numbers", "behind"]

Numbers = npt.NDArray[np.int64]

NOTHING = np.iinfo(np.int64).min
"""The number for NULL, and for a key that was never written: lower than all values."""

_NUMBERED = frozenset(
    ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIME",
     "TIMESTAMP", "TIMESTAMP_LTZ")
)  # fmt: skip


_MS_OF_A_DAY = 86_400_000
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def behind(numbers: Numbers, by: int) -> Numbers:
    """The numbers reduced by `by`. `NOTHING` stays."""
    low = min(NOTHING + by, np.iinfo(np.int64).max)
    return np.asarray(np.maximum(numbers, low) - by, np.int64)


@dataclass(frozen=True)
class Comparison:
    """How rows of a key are compared: by one column, or by one for each producer. Can be pickled.

    If there are several columns, a row has a value in the column of its producer and is compared
    with the key's value there. It takes over the values in the other columns. With `descending` the
    smallest value is the latest. Without columns all rows tie.
    """

    fields: tuple[Field, ...] = ()
    descending: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The column names."""
        return tuple(field.name for field in self.fields)

    @property
    def has_producers(self) -> bool:
        """Whether there are several columns, one for each producer."""
        return len(self.fields) > 1

    @property
    def is_in_index(self) -> bool:
        """Whether index entries contain everything for a comparison. If not, rows are read."""
        return not self.has_producers and all(f.type.root in _NUMBERED for f in self.fields)

    @property
    def counted_in(self) -> str:
        """The unit of the numbers in entries. It can change if a column gets a wider type."""
        if not self.fields or not self.is_in_index:
            return "nothing"
        type_ = self.fields[0].type.to_arrow()
        if pa.types.is_floating(type_):
            return "floating point"
        return str(type_.unit) if pa.types.is_timestamp(type_) else "whole numbers"

    def in_index(self, rows: pa.Table) -> Numbers:
        """The numbers of rows for index entries, 0 if entries do not contain them."""
        if not self.fields or not self.is_in_index:
            return np.zeros(rows.num_rows, np.int64)
        numbers: Numbers = self.numbers(rows)[0]
        return numbers

    def numbers(self, rows: pa.Table) -> Numbers:
        """The rows of each column as numbers with the same order as the values.

        The larger number is the later one. NULL is `NOTHING`, and NaN is highest (rule R1 of
        docs/semantics.md). Only numbers of one call, or of columns stored in the index, can be
        compared.
        """
        if not self.fields:
            return np.zeros((1, rows.num_rows), np.int64)
        return np.stack([self._of_column(rows.column(f.name), f) for f in self.fields])

    def says(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """In which columns rows with these numbers are compared with their keys' values."""
        if not self.has_producers:
            return np.ones_like(numbers, np.bool_)
        says: npt.NDArray[np.bool_] = numbers > NOTHING
        return says

    def ticks(self, milliseconds: int) -> int:
        """The difference between numbers of times with this distance, rounded down."""
        type_ = self.fields[0].type.to_arrow()
        if pa.types.is_date(type_):
            return milliseconds // _MS_OF_A_DAY
        unit = str(type_.unit) if pa.types.is_timestamp(type_) else "ms"
        return milliseconds * _PER_SECOND[unit] // 1000

    def _of_column(self, values: pa.ChunkedArray, field: Field) -> Numbers:
        array = values.combine_chunks()
        numbers = _of_plain(array) if field.type.root in _NUMBERED else _ranks(array, field)
        if self.descending:
            numbers = ~numbers
        # The lowest number is reserved for NULL, so the two lowest BIGINT values are equal.
        numbers = np.maximum(numbers, NOTHING + 1)
        numbers[np.asarray(array.is_null())] = NOTHING
        return numbers


def _of_plain(array: pa.Array) -> Numbers:
    if pa.types.is_floating(array.type):
        return _of_floats(array)
    wide = array.cast(pa.int32()) if array.type in (pa.date32(), pa.time32("ms")) else array
    return np.asarray(wide.cast(pa.int64()).fill_null(0)).astype(np.int64)


def _of_floats(array: pa.Array) -> Numbers:
    found = np.asarray(array.cast(pa.float64()).fill_null(0.0)) + 0.0  # a single zero
    found = np.where(np.isnan(found), np.nan, found)  # a single NaN
    bits = found.view(np.int64)
    # The bits of negative numbers are in reverse order.
    return np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)


def _ranks(array: pa.Array, field: Field) -> Numbers:
    if field.type.root == "CHAR":
        array = pc.utf8_rtrim(array, " ")
    return np.asarray(pc.rank(array, sort_keys="ascending", tiebreaker="dense")).astype(np.int64)
