"""Sets of integers as serialized roaring bitmaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import polars as pl
from pyroaring import BitMap, BitMap64

from keytide.errors import InvalidError
from keytide.merge.functions.inputs import AggregateFunction, Inputs, unsound
from keytide.merge.functions.roaring import (
    decode_bitmap64,
    encode_bitmap32,
    encode_bitmap64,
)
from keytide.merge.refusal import Refusal
from keytide.merge.slices import Marks

__all__ = ["RoaringBitmap32", "RoaringBitmap64"]


class RoaringBitmap32(AggregateFunction):
    """The union of the adds, bitmaps of 32-bit integers in the portable roaring format.

    NULL is ignored. Order does not matter, and aggregation can be split up. Equal sets have equal
    bytes. No retraction. Raises `InvalidError` for a value that is not such a bitmap.
    """

    name: ClassVar[str] = "rbm32"
    stands_anywhere: ClassVar[bool] = True

    def refusals(self, values: pl.Series, adds: Marks, retracts: Marks) -> Iterator[Refusal]:
        """Values that are not such a bitmap."""
        yield Refusal(unsound(values, adds, self._is_sound), self._no_bitmap)

    def fold(self, inputs: Inputs) -> pl.Series:
        """The unions. Values are decoded one by one, because a bitmap has no columnar form."""
        bitmaps = inputs.frame().group_by("key", maintain_order=True).agg("value")
        unions = bitmaps.with_columns(
            pl.Series("value", [self._union(values) for values in bitmaps["value"]], pl.Binary)
        )
        return inputs.per_key(unions)

    def _union(self, values: Sequence[bytes]) -> bytes:
        try:
            return self.union(values)
        except ValueError as error:
            raise InvalidError(f"{self._no_bitmap}: {error}") from None

    def _is_sound(self, value: bytes) -> bool:
        try:
            self.union([value])
        except ValueError:
            return False
        return True

    @property
    def _no_bitmap(self) -> str:
        return (
            f"column {self.column!r}: aggregate function {self.name!r} found a value that is "
            f"no serialized roaring bitmap as this function takes them"
        )

    def union(self, values: Sequence[bytes]) -> bytes:
        """The bytes of the union. Raises `ValueError` for a value that is not such a bitmap."""
        if not all(values):
            raise ValueError("it has no bytes")
        return encode_bitmap32(BitMap.union(*map(BitMap.deserialize, values)))


class RoaringBitmap64(RoaringBitmap32):
    """The union of bitmaps of 64-bit integers in Java's layout, with the laws of `rbm32`."""

    name: ClassVar[str] = "rbm64"

    def union(self, values: Sequence[bytes]) -> bytes:
        """The bytes of the union. Raises `ValueError` for a value that is not such a bitmap."""
        return encode_bitmap64(BitMap64.union(*map(decode_bitmap64, values)))
