"""Sorted runs of an index: entries in the order of their hashes, in a file that is mapped.

A run is cut into blocks, each of them columns of one width, so that runs of any length are written
and merged block by block, and a look-up touches a few pages. Positions, files and comparison values
take as many bytes as those of their block need. What the blocks are is said at the end.

    magic | blocks | description | version, length and checksum of the description | magic
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from keytide.errors import DataError, UnsupportedError
from keytide.index.entries import Entries, Numbers, newest_of_each
from keytide.index.hashes import KeyHashes

__all__ = [
    "BLOCK_ENTRIES",
    "CHECKS",
    "HEADS",
    "TAIL_BYTES",
    "Block",
    "Column",
    "Run",
    "blocks_of",
    "decoded",
    "found_among",
    "merged",
    "probed",
    "write_run",
]

_MAGIC = b"KTKEYIDX"
_VERSION = 1
_END_BYTES = 12 + len(_MAGIC)
TAIL_BYTES = 1 << 13
"""As many bytes of the end of a run describe dozens of blocks."""

BLOCK_ENTRIES = 1 << 20
"""Few enough to be merged in little memory, and so many that a block costs nothing."""

Bytes = npt.NDArray[np.uint8]
Column = npt.NDArray[Any]


@dataclass(frozen=True)
class Block:
    """Where the columns of a block lie, how wide they are, and what its comparisons count from."""

    entries: int
    first: int
    """The head of its first entry."""
    base: int
    start: int
    widths: tuple[int, int, int, int, int]
    """Of heads, checks, files, positions and comparisons; 0 where all are 0."""
    crc: int

    def place(self, column: int) -> tuple[int, int]:
        """Where a column begins, and its width."""
        before = (self._aligned(width) for width in self.widths[:column])
        return self.start + sum(before), self.widths[column]

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + sum(map(self._aligned, self.widths))

    def places(self, column: int, some: slice) -> tuple[int, int]:
        """Where some entries of a column begin and end."""
        start, width = self.place(column)
        return start + width * some.start, start + width * some.stop

    def column(self, data: Bytes, column: int, entries: int) -> Column:
        """Entries of a column, whose bytes these are."""
        width = self.widths[column]
        return data.view(f"<u{width}") if width else np.broadcast_to(np.uint8(0), entries)

    def _aligned(self, width: int) -> int:
        # What is mapped begins where a number may.
        return -(-width * self.entries // 8) * 8


HEADS, CHECKS = 0, 1
"""The columns that keys are found by."""


# -- writing ---------------------------------------------------------------------------------------


def write_run(pieces: Iterable[Entries], output: BinaryIO) -> int:
    """Write a run; gives how many entries it has. One block at a time is held in memory.

    REQUIRES: the pieces follow each other in the order of their hashes, with one entry of a key.
    """
    output.write(_MAGIC)
    at, blocks = len(_MAGIC), []
    for piece in pieces:
        for start in range(0, len(piece), BLOCK_ENTRIES):
            block, data = _encoded(piece.take(slice(start, start + BLOCK_ENTRIES)), at)
            output.write(data)
            at += len(data)
            blocks.append(block)
    said = json.dumps([asdict(block) for block in blocks]).encode()
    output.write(said)
    output.write(np.array([_VERSION, len(said), zlib.crc32(said)], "<u4").tobytes() + _MAGIC)
    return sum(block.entries for block in blocks)


def _encoded(entries: Entries, start: int) -> tuple[Block, bytes]:
    base = int(entries.comparisons.min())
    above = entries.comparisons.view(np.uint64) - np.int64(base).view(np.uint64)
    columns: list[Column] = [
        entries.hashes.heads.astype("<u8"),
        entries.hashes.checks.astype("<u4"),
        *map(_narrow, (entries.files, entries.positions, above)),
    ]
    parts = [column.tobytes() for column in columns]
    data = b"".join(part + bytes(-len(part) % 8) for part in parts)
    widths = tuple(column.dtype.itemsize if len(column) else 0 for column in columns)
    first = int(entries.hashes.heads[0])
    block = Block(len(entries), first, base, start, widths, zlib.crc32(data))  # type: ignore[arg-type]  # there are five
    return block, data


def _narrow(numbers: Column) -> Column:
    """The same in as few bytes as the largest of them needs; none where all are 0."""
    top = int(numbers.max())
    width = next(w for w in (0, 1, 2, 4, 8) if top < 1 << 8 * w)
    return numbers.astype(f"<u{width}") if width else np.empty(0, np.uint8)


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A run in a file. `data` is the file, mapped or in memory; `path` is for messages."""

    data: Bytes
    path: str
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, data: Bytes, path: str) -> Run:
        """The run in a file. What the blocks have is looked at by `check` alone.

        Raises `DataError` for a torn file, and `UnsupportedError` for one of a newer release.
        """
        blocks = blocks_of(data, path)
        if isinstance(blocks, int):
            raise _torn(path)
        return cls(data, path, blocks)

    def __len__(self) -> int:
        return sum(block.entries for block in self.blocks)

    def check(self) -> None:
        """Read all of it. Raises `DataError` where it is not what was written."""
        for block in self.blocks:
            self.check_block(block)

    def check_block(self, block: Block) -> None:
        """The same of one block."""
        if zlib.crc32(self.data[block.start : block.end].data) != block.crc:
            raise DataError(f"{self.path}: the index of keys is damaged")

    def entries(self, block: Block, places: Numbers | slice = slice(None)) -> Entries:
        """Some entries of a block, all of them by default."""
        return decoded(block, [self._column(block, column)[places] for column in range(5)])

    def find(self, probes: KeyHashes) -> tuple[Numbers, Entries]:
        """The places of those probes that have an entry here, and these entries.

        REQUIRES: the probes are in the order of their heads.
        """
        found = [
            self._find_in(block, probes, start, end)
            for block, start, end in probed(self.blocks, probes)
        ]
        places = [np.empty(0, np.int64), *(places for places, _ in found)]
        return np.concatenate(places), Entries.together([entries for _, entries in found])

    def _column(self, block: Block, column: int) -> Column:
        start, end = block.places(column, slice(0, block.entries))
        return block.column(self.data[start:end], column, block.entries)

    def _find_in(
        self, block: Block, probes: KeyHashes, start: int, end: int
    ) -> tuple[Numbers, Entries]:
        heads, checks = self._column(block, HEADS), self._column(block, CHECKS)
        places, at = found_among(heads, checks, probes.take(slice(start, end)))
        return places + start, self.entries(block, at)


def probed(blocks: Sequence[Block], probes: KeyHashes) -> Iterator[tuple[Block, int, int]]:
    """The blocks that may have some probes, and which these are, from one place to another.

    REQUIRES: the probes are in the order of their heads.
    """
    firsts = np.array([block.first for block in blocks], np.uint64)
    numbers = np.searchsorted(firsts, probes.heads, side="right") - 1
    bounds = np.searchsorted(numbers, np.arange(len(blocks) + 1)).tolist()
    for block, start, end in zip(blocks, bounds, bounds[1:], strict=False):
        if start < end:
            yield block, start, end


def blocks_of(tail: Bytes, path: str) -> tuple[Block, ...] | int:
    """The blocks of a run, of which the last bytes are here; or how many of these it takes.

    Raises `DataError` for a torn file, and `UnsupportedError` for one of a newer release.
    """
    if len(tail) < _END_BYTES or tail[-len(_MAGIC) :].tobytes() != _MAGIC:
        raise _torn(path)
    version, length, crc = np.frombuffer(tail[-_END_BYTES : -len(_MAGIC)].tobytes(), "<u4").tolist()
    if version > _VERSION:
        raise UnsupportedError(
            f"{path}: an index of keys of version {version}, and this release knows version "
            f"{_VERSION}; use a newer release"
        )
    begin = len(tail) - _END_BYTES - length
    if begin < 0:
        return int(length) + _END_BYTES
    said = tail[begin : len(tail) - _END_BYTES].tobytes()
    if zlib.crc32(said) != crc:
        raise DataError(f"{path}: the index of keys is torn or damaged")
    return tuple(Block(**{**b, "widths": tuple(b["widths"])}) for b in json.loads(said))


def _torn(path: str) -> DataError:
    return DataError(f"{path}: this is no index of keys, or a torn one")


def decoded(block: Block, columns: Sequence[Column]) -> Entries:
    """Entries of a block, of which these are the columns as they are stored."""
    heads, checks, files, positions, above = columns
    comparisons = above.astype(np.uint64) + np.int64(block.base).view(np.uint64)
    return Entries(
        KeyHashes(heads, checks),
        files.astype(np.int64),
        positions.astype(np.int64),
        comparisons.view(np.int64),
    )


def found_among(heads: Column, checks: Column, probes: KeyHashes) -> tuple[Numbers, Numbers]:
    """The places of those probes that are among some sorted entries, and where they are there."""
    at = np.searchsorted(heads, probes.heads)
    left = np.arange(len(probes))
    places, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    # Keys of one head follow each other; hardly ever are there more than one.
    while len(left := _where_equal(heads, at, probes.heads, left)):
        is_it = checks[at[left]] == probes.checks[left]
        places.append(left[is_it])
        found.append(at[left[is_it]])
        left = left[~is_it]
        at[left] += 1
    return np.concatenate(places), np.concatenate(found)


def _where_equal(heads: Column, at: Numbers, asked: Column, left: Numbers) -> Numbers:
    """Those of some probes whose head stands where they were led."""
    left = left[at[left] < len(heads)]
    equal: Numbers = left[heads[at[left]] == asked[left]]
    return equal


# -- merging ---------------------------------------------------------------------------------------


def merged(runs: Sequence[Run]) -> Iterator[Entries]:
    """The newest entry of each key of some runs, the newest run last, in the order of the hashes.

    About one block of each run is held in memory.
    """
    cursors = [_Cursor(run) for run in runs]
    # All runs are cut at the same heads, so that a key lies in one piece.
    edges = sorted({block.first for run in runs for block in run.blocks})[1:]
    for edge in [*edges, None]:
        piece = newest_of_each(Entries.together([cursor.before(edge) for cursor in cursors]))
        if len(piece):
            yield piece


class _Cursor:
    """Goes through a run once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._next = 0
        self._held = Entries.none()

    def before(self, edge: int | None) -> Entries:
        """The entries that are left and lie before a head, all of them for None."""
        blocks = self._run.blocks[self._next :]
        begun = [block for block in blocks if edge is None or block.first < edge]
        self._next += len(begun)
        held = Entries.together([self._held, *map(self._run.entries, begun)])
        heads = held.hashes.heads
        end = len(heads) if edge is None else int(np.searchsorted(heads, np.uint64(edge)))
        self._held = held.take(slice(end, None))
        return held.take(slice(end))
