"""Approximate sets as Apache DataSketches sketches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import polars as pl

from keytide.base.extras import library
from keytide.errors import InvalidError
from keytide.merge.functions.inputs import AggregateFunction, Inputs, unsound
from keytide.merge.refusal import Refusal
from keytide.merge.slices import Marks

__all__ = ["HllSketch", "ThetaSketch"]

_NO_SKETCH = (IndexError, RuntimeError, ValueError)
"""The library's error for unknown bytes."""

_THETA_LG_SIZE = 12
"""A theta union keeps 4096 hashes, as in the format's other engines."""


class _Sketch(AggregateFunction):
    stands_anywhere: ClassVar[bool] = True

    def refusals(self, values: pl.Series, adds: Marks, retracts: Marks) -> Iterator[Refusal]:
        """Values that are not such a sketch. Raises `SetupError` without the library."""
        library = _library(self.name, self.column)
        is_sound = partial(self._is_sound, library)
        yield Refusal(unsound(values, adds, is_sound), self._no_sketch)

    def fold(self, inputs: Inputs) -> pl.Series:
        """The unions. Values are decoded one by one, because a sketch has no columnar form."""
        library = _library(self.name, self.column)
        sketches = inputs.frame().group_by("key", maintain_order=True).agg("value")
        unions = [self._union(library, values) for values in sketches["value"]]
        return inputs.per_key(sketches.with_columns(pl.Series("value", unions, pl.Binary)))

    def _union(self, library: Any, values: Sequence[bytes]) -> bytes:
        try:
            return self.union(library, list(values))
        except _NO_SKETCH as error:
            raise InvalidError(f"{self._no_sketch}: {error}") from None

    def _is_sound(self, library: Any, value: bytes) -> bool:
        try:
            self.union(library, [value])
        except _NO_SKETCH:
            return False
        return True

    @property
    def _no_sketch(self) -> str:
        return (
            f"column {self.column!r}: aggregate function {self.name!r} found a value that is "
            f"no serialized sketch as this function takes them"
        )

    def union(self, library: Any, values: Sequence[bytes]) -> bytes:
        """The union of the sketches."""
        raise NotImplementedError


class HllSketch(_Sketch):
    """The union of the adds, HLL sketches of Apache DataSketches.

    NULL is ignored. Order does not matter, and aggregation can be split up, because the registers
    are the same. The union of sketches with different sizes has the smallest size. No retraction.
    Raises `InvalidError` for a value that is not such a sketch, and `SetupError` without the
    library.
    """

    name: ClassVar[str] = "hll_sketch"

    def union(self, library: Any, values: Sequence[bytes]) -> bytes:
        """The HLL union, in its compact form."""
        sketches = [library.hll_sketch.deserialize(value) for value in values]
        # A larger sketch can be reduced to fewer registers, but not the other way round.
        union = library.hll_union(min(sketch.lg_config_k for sketch in sketches))
        for sketch in sketches:
            union.update(sketch)
        compact: bytes = union.get_result().serialize_compact()
        return compact


class ThetaSketch(_Sketch):
    """The union of the adds, theta sketches of Apache DataSketches, with the laws of `hll_sketch`.

    The union keeps the 4096 smallest hashes. Up to that many members it is exact.
    """

    name: ClassVar[str] = "theta_sketch"

    def union(self, library: Any, values: Sequence[bytes]) -> bytes:
        """The theta union, in its compact form."""
        union = library.theta_union(_THETA_LG_SIZE)
        for value in values:
            union.update(library.compact_theta_sketch.deserialize(value))
        compact: bytes = union.get_result().serialize()
        return compact


def _library(name: str, column: str) -> Any:
    needed_for = f"column {column!r}: aggregate function {name!r}"
    return library("datasketches", "sketches", needed_for)
