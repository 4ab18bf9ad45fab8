"""Avro records as columns and as bytes, so that they can be copied without encoding them again.

The number of bytes of a record follows from its members: integers take one byte for every seven
bits, strings their length and their bytes. So the positions of all records are computed from the
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.base.process import cached_property

__all__ = ["EncodedRecords"]

Lengths: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"


@dataclass(frozen=True)
class EncodedRecords:
    """Records as `columns`, one for each member of the Avro `type`, and in `encoded` form."""

    type: Mapping[str, Any]
    columns: pl.DataFrame
    encoded: bytes

    @classmethod
    def together(cls, parts: Sequence[EncodedRecords]) -> EncodedRecords:
        """The records of several parts of one type, in order. There is at least one part."""
        columns = pl.concat([part.columns for part in parts])
        return cls(parts[0].type, columns, b"".join(part.encoded for part in parts))

    def __len__(self) -> int:
        return self.columns.height

    @cached_property
    def starts(self) -> Lengths:
        """Where each record begins in the bytes, and where the last one ends."""
        lengths = _record_lengths(self.type, self.columns)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        assert starts[-1] == len(self.encoded), "record lengths do not match their members"
        return starts

    def filter(self, kept: Mask) -> EncodedRecords:
        """The records for which `kept` is true."""
        if kept.all():
            return self
        edges = np.flatnonzero(np.diff(kept, prepend=False, append=False))
        places = self.starts[edges].tolist()
        view = memoryview(self.encoded)
        runs = [view[start:stop] for start, stop in zip(places[::2], places[1::2], strict=True)]
        return EncodedRecords(self.type, self.columns.filter(pl.Series(kept)), b"".join(runs))

    def pieces(self, count: int) -> Iterator[EncodedRecords]:
        """The records in at most `count` non-empty pieces with about the same number of bytes."""
        if count < 2:  # finding where records begin takes longer than compressing them
            yield from [self] if len(self) else []
            return
        ends = np.linspace(0, len(self.encoded), count + 1)
        cuts = dict.fromkeys(np.searchsorted(self.starts, ends).tolist())
        for start, stop in pairwise(cuts):
            encoded = self.encoded[self.starts[start] : self.starts[stop]]
            yield EncodedRecords(self.type, self.columns[start:stop], encoded)


def _record_lengths(type_: Mapping[str, Any], columns: pl.DataFrame) -> Lengths:
    lengths = [_lengths(member["type"], columns[member["name"]]) for member in type_["fields"]]
    total: Lengths = np.sum(lengths, axis=0, dtype=np.int64)
    return total


def _lengths(type_: Any, values: pl.Series) -> Lengths:
    if isinstance(type_, list):  # a union of null and another type, selected by a byte in front
        is_there: Mask = values.is_not_null().to_numpy()
        return 1 + np.where(is_there, _lengths(type_[1], values), 0)
    name = type_ if isinstance(type_, str) else type_["type"]
    if name == "record":
        return _record_lengths(type_, values.struct.unnest())
    return _array_lengths(type_["items"], values) if name == "array" else _ATOMS[name](values)


def _array_lengths(items: Any, values: pl.Series) -> Lengths:
    """One block, and a zero that ends the array."""
    counts = values.list.len().fill_null(0).to_numpy().astype(np.int64)
    filled = counts > 0
    lengths = np.ones(len(values), np.int64)
    if filled.any():
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[filled])[:-1]])
        of_items = _lengths(items, values.filter(pl.Series(filled)).explode())
        lengths[filled] += _varint_lengths(counts[filled]) + np.add.reduceat(of_items, starts)
    return lengths


def _integer_lengths(values: pl.Series) -> Lengths:
    numbers: Lengths = values.to_physical().fill_null(0).cast(pl.Int64).to_numpy()
    return _varint_lengths(numbers)


def _text_lengths(values: pl.Series) -> Lengths:
    sizes: Lengths = values.cast(pl.Binary).bin.size().fill_null(0).cast(pl.Int64).to_numpy()
    return _varint_lengths(sizes) + sizes


def _varint_lengths(numbers: Lengths) -> Lengths:
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    more: Lengths = np.searchsorted(_NEXT_BYTE, zigzag, side="right")
    return more + 1


_NEXT_BYTE = np.array([1 << bits for bits in range(7, 64, 7)], np.uint64)
_ATOMS: Mapping[str, Callable[[pl.Series], Lengths]] = {
    "int": _integer_lengths,
    "long": _integer_lengths,
    "string": _text_lengths,
    "bytes": _text_lengths,
}
