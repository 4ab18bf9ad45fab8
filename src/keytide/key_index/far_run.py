"""Runs in an object store, of which a lookup fetches only what it needs.

Hashes are evenly distributed within a block, so the position of an entry is known up to a few
thousand entries. The range around it is fetched, for all columns together. If the entry is outside
of it, the whole block is fetched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from keytide.errors import DataError
from keytide.key_index.entries import Entries, Numbers
from keytide.key_index.hashes import KeyHashes, found_among
from keytide.key_index.run import HEADS, Block, Column, decoded, probed

__all__ = ["FarRun", "Fetch"]

Fetch: TypeAlias = "Callable[[Sequence[tuple[int, int]]], list[bytes]]"
"""Returns the bytes of several ranges of a file, in one round of requests."""

# For evenly distributed numbers, one in a billion is further from its expected position.
_DEVIATIONS = 6
_COLUMNS = range(5)
_TOP = 1 << 64


@dataclass(frozen=True)
class _Window:
    """Fetched entries of a block, for a range of probes."""

    block: Block
    some: slice
    probes: slice


@dataclass(frozen=True)
class FarRun:
    """A run of which only the description is loaded. Finds the same entries as `Run`."""

    fetch: Fetch = field(repr=False)
    path: str
    blocks: tuple[Block, ...]

    def find(self, probes: KeyHashes) -> tuple[Numbers, Entries]:
        """See `Run`. Raises `DataError` for damaged data, if it is read."""
        windows = self._windows(probes)
        columns = self._fetched(windows)
        narrow = [
            n for n, window in enumerate(windows) if not _holds(window, columns[n][HEADS], probes)
        ]
        wide = [_whole(windows[n]) for n in narrow]
        for n, whole, fetched in zip(narrow, wide, self._fetched(wide), strict=True):
            windows[n], columns[n] = whole, fetched
        places, entries = [np.empty(0, np.int64)], []
        for window, found in zip(windows, columns, strict=True):
            heads, checks, *others = found
            asked = probes.take(window.probes)
            own, at = found_among(KeyHashes(heads, checks), asked)
            places.append(own + window.probes.start)
            entries.append(decoded(window.block, asked.take(own), [each[at] for each in others]))
        return np.concatenate(places), Entries.together(entries)

    def _windows(self, probes: KeyHashes) -> list[_Window]:
        blocks = [*probed(self.blocks, probes)]
        ends = {block.start: after.first for block, after in pairwise(self.blocks)}
        return [
            window
            for block, start, end in blocks
            for window in _windows_in(block, ends.get(block.start, _TOP), probes, start, end)
        ]

    def _fetched(self, windows: Sequence[_Window]) -> list[list[Column]]:
        """The columns of each window, fetched in one round of requests."""
        if not windows:
            return []
        wanted = [(n, column) for n, w in enumerate(windows) for column in _stored(w.block)]
        ranges = [windows[n].block.places(column, windows[n].some) for n, column in wanted]
        fetched = self.fetch(ranges)
        if [len(data) for data in fetched] != [end - begin for begin, end in ranges]:
            raise DataError(f"{self.path}: the key index is damaged")
        pieces = dict(zip(wanted, fetched, strict=True))
        return [
            [
                window.block.column(
                    np.frombuffer(pieces.get((n, column), b""), np.uint8),
                    column,
                    window.some.stop - window.some.start,
                )
                for column in _COLUMNS
            ]
            for n, window in enumerate(windows)
        ]


def _windows_in(
    block: Block, last: int, probes: KeyHashes, start: int, end: int
) -> Iterator[_Window]:
    """Windows around the expected positions of the probes in a block with hashes up to `last`."""
    heads = probes.heads[start:end]
    part = (heads - np.uint64(block.first)).astype(np.float64) / max(1, last - block.first)
    reach = int(_DEVIATIONS * math.sqrt(block.entries) / 2) + 1
    middle = (part * block.entries).astype(np.int64)
    low, high = np.maximum(middle - reach, 0), np.minimum(middle + reach, block.entries)
    cuts = [0, *(np.flatnonzero(low[1:] > high[:-1]) + 1).tolist(), end - start]
    for first, stop in pairwise(cuts):
        some = slice(int(low[first]), int(high[stop - 1]))
        yield _Window(block, some, slice(start + first, start + stop))


def _holds(window: _Window, heads: Column, probes: KeyHashes) -> bool:
    """Whether the window certainly includes the entries of its probes, if they exist."""
    asked = probes.heads[window.probes]
    begins = window.some.start == 0 or (len(heads) > 0 and heads[0] < asked[0])
    ends = window.some.stop == window.block.entries or (len(heads) > 0 and heads[-1] > asked[-1])
    return bool(begins and ends)


def _whole(window: _Window) -> _Window:
    return _Window(window.block, slice(0, window.block.entries), window.probes)


def _stored(block: Block) -> list[int]:
    return [column for column in _COLUMNS if block.widths[column]]
