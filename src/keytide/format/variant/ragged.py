"""Ranges of bytes of different lengths in one array of bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "Bytes",
    "Numbers",
    "Pool",
    "binary_array",
    "bytes_of",
    "copy_ranges",
    "counted",
    "put_numbers",
    "read_numbers",
    "starts_of",
    "widths_of",
]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass
class Pool:
    """Arrays of bytes that become one."""

    _parts: list[Bytes] = field(default_factory=list)
    _size: int = 0

    def add(self, part: Bytes) -> int:
        """Add bytes. Returns where they begin."""
        begin = self._size
        self._parts.append(part)
        self._size += len(part)
        return begin

    def joined(self) -> Bytes:
        """All bytes that were added."""
        return np.concatenate(self._parts) if self._parts else np.zeros(0, np.uint8)


def bytes_of(values: pa.Array) -> tuple[Bytes, Numbers, Numbers]:
    """The bytes of a column of strings or bytes: the buffer, and start and length of each value."""
    values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    buffer = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return buffer, ends[:-1], np.diff(ends)


def binary_array(data: Bytes, lengths: Numbers) -> pa.Array:
    """A column of values that follow each other in `data`."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def starts_of(lengths: Numbers) -> Numbers:
    """Where each of several ranges starts that follow each other."""
    ends: Numbers = np.cumsum(lengths)
    return ends - lengths


def counted(counts: Numbers) -> tuple[Numbers, Numbers]:
    """For each member of groups of these sizes: its group, and its number in the group."""
    groups: Numbers = np.repeat(np.arange(len(counts)), counts)
    return groups, np.arange(len(groups)) - starts_of(counts)[groups]


def widths_of(numbers: Numbers) -> Numbers:
    """The number of bytes that each number needs, 1 to 4."""
    return 1 + (numbers > 0xFF).astype(np.int64) + (numbers > 0xFFFF) + (numbers > 0xFFFFFF)


def read_numbers(data: Bytes, at: Numbers, widths: Numbers) -> Numbers:
    """Unsigned numbers of 1 to 4 bytes, lowest first. Raises `IndexError` beyond the data."""
    found = np.zeros(len(at), np.int64)
    for place in range(4):
        wide = np.flatnonzero(widths > place)
        found[wide] |= data[at[wide] + place].astype(np.int64) << (8 * place)
    return found


def put_numbers(data: Bytes, at: Numbers, numbers: Numbers, widths: Numbers) -> None:
    """Write unsigned numbers, as `read_numbers` reads them."""
    for place in range(4):
        wide = np.flatnonzero(widths > place)
        data[at[wide] + place] = (numbers[wide] >> (8 * place)) & 0xFF


def copy_ranges(source: Bytes, starts: Numbers, lengths: Numbers, to: Bytes, at: Numbers) -> None:
    """Copy ranges of one array to places of another."""
    owners, steps = counted(lengths)
    to[at[owners] + steps] = source[starts[owners] + steps]
