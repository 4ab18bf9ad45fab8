"""Sorted runs of an index: entries in hash order, in a memory-mapped file.

A run consists of blocks of fixed-width columns, so runs of any length are written and merged block
by block, and a lookup reads a few pages. Positions, files and comparison values use as many bytes
as their block needs. The end of the file describes the blocks.

    magic | blocks | description | version, length and checksum of the description | magic
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, zip_longest
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from keytide.base.lazily import cached_property
from keytide.errors import DataError, UnsupportedError
from keytide.key_index.entries import Entries, Numbers, newest_of_each
from keytide.key_index.hashes import KeyHashes, between, found_among

__all__ = [
    "BLOCK_ENTRIES",
    "HEADS",
    "TAIL_BYTES",
    "Block",
    "Column",
    "DamagedRunError",
    "Part",
    "Run",
    "blocks_of",
    "decoded",
    "merged",
    "probed",
    "write_run",
]

_MAGIC = b"KTKEYIDX"
_VERSION = 1
_END_BYTES = 12 + len(_MAGIC)
TAIL_BYTES = 1 << 14
"""This many bytes at the end of a run contain the description of dozens of blocks."""

BLOCK_ENTRIES = 1 << 18
"""Small enough to be merged in little memory, and large enough for a negligible overhead per
block."""

# The entries merged at a time, which fit into a processor's caches.
_STRETCH_ENTRIES = 1 << 15

Bytes = npt.NDArray[np.uint8]
Column = npt.NDArray[Any]


class DamagedRunError(DataError):
    """A block of a run is damaged."""


@dataclass(frozen=True)
class Block:
    """The positions of a block's columns, their widths, and the base of its comparisons."""

    entries: int
    first: int
    """The head of its first entry."""
    base: int
    start: int
    widths: tuple[int, int, int, int, int]
    """Of heads, checks, files, positions and comparisons. 0 if all values are 0."""
    crc: int

    @cached_property
    def _bounds(self) -> tuple[int, ...]:
        """The start of each column, and the end of the last one."""
        return tuple(accumulate(map(self._aligned, self.widths), initial=self.start))

    @property
    def end(self) -> int:
        """The end of the block."""
        return self._bounds[-1]

    def places(self, column: int, some: slice) -> tuple[int, int]:
        """The byte range of some entries of a column."""
        start, width = self._bounds[column], self.widths[column]
        return start + width * some.start, start + width * some.stop

    def column(self, data: Bytes, column: int, entries: int) -> Column:
        """Entries of a column, from these bytes."""
        width = self.widths[column]
        return data.view(f"<u{width}") if width else np.broadcast_to(np.uint8(0), entries)

    def _aligned(self, width: int) -> int:
        # Mapped columns must be aligned.
        return -(-width * self.entries // 8) * 8


HEADS = 0
"""The column that determines the order of entries."""


# -- writing ---------------------------------------------------------------------------------------


def write_run(
    pieces: Iterable[Entries], output: BinaryIO, block_entries: int = BLOCK_ENTRIES
) -> int:
    """Write a run, holding one block at a time in memory. Returns the number of entries.

    REQUIRES: the pieces are in hash order, with one entry per key, and keys with equal heads are in
    one piece.
    """
    output.write(_MAGIC)
    at, blocks = len(_MAGIC), []
    for parts in _cut(pieces, block_entries):
        blocks.append(_write_block(parts, at, output))
        at = blocks[-1].end
    said = json.dumps([asdict(block) for block in blocks]).encode()
    output.write(said)
    output.write(np.array([_VERSION, len(said), zlib.crc32(said)], "<u4").tobytes() + _MAGIC)
    return sum(block.entries for block in blocks)


def _cut(pieces: Iterable[Entries], block_entries: int) -> Iterator[list[Entries]]:
    """The parts of each block. It has slightly more entries if a head would be split."""
    held: list[Entries] = []
    left = block_entries
    for given in pieces:
        piece = given
        while len(piece) >= left:
            heads = piece.hashes.heads
            end = int(np.searchsorted(heads, heads[left - 1], side="right"))
            yield [*held, piece.take(slice(end))]
            held, piece, left = [], piece.take(slice(end, None)), block_entries
        if len(piece):
            held.append(piece)
            left -= len(piece)
    if held:
        yield held


def _write_block(parts: Sequence[Entries], start: int, output: BinaryIO) -> Block:
    base = min(int(part.comparisons.min()) for part in parts)
    above = [p.comparisons.view(np.uint64) - np.int64(base).view(np.uint64) for p in parts]
    columns: list[list[Column]] = [
        [part.hashes.heads.astype("<u8", copy=False) for part in parts],
        [part.hashes.checks.astype("<u4", copy=False) for part in parts],
        _narrow([part.files for part in parts]),
        _narrow([part.positions for part in parts]),
        _narrow(above),
    ]
    crc = 0
    for column in columns:
        written = sum(part.nbytes for part in column)
        stored: list[bytes | memoryview] = [*map(_bytes, column), bytes(-written % 8)]
        for data in stored:
            crc = zlib.crc32(data, crc)
            output.write(data)
    widths = tuple(column[0].dtype.itemsize if column else 0 for column in columns)
    entries, first = sum(map(len, parts)), int(parts[0].hashes.heads[0])
    return Block(entries, first, base, start, widths, crc)  # type: ignore[arg-type]  # there are five


def _bytes(column: Column) -> memoryview:
    return np.ascontiguousarray(column).data.cast("B")


def _narrow(parts: Sequence[Column]) -> list[Column]:
    """The columns in as few bytes as their largest value needs, none if all are 0."""
    top = max(int(part.max()) for part in parts)
    width = next(w for w in (0, 1, 2, 4, 8) if top < 1 << 8 * w)
    return [part.astype(f"<u{width}") for part in parts] if width else []


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A run in a file. `data` is the file, mapped or in memory. `path` is for messages.

    The checksum of a block is verified when it is first read. Then `DamagedRunError` is raised if
    the block is damaged.
    """

    data: Bytes
    path: str
    blocks: tuple[Block, ...]
    _columns: dict[int, list[Column]] = field(default_factory=dict, compare=False, repr=False)
    """The columns of the blocks that were read, by their start."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": {}}  # they are parts of the data

    @classmethod
    def of(cls, data: Bytes, path: str) -> Run:
        """The run in a file.

        Raises `DataError` for a corrupt file, and `UnsupportedError` for one of a newer release.
        """
        blocks = blocks_of(data, path)
        if isinstance(blocks, int):
            raise _torn(path)
        return cls(data, path, blocks)

    def __len__(self) -> int:
        return sum(block.entries for block in self.blocks)

    def check(self) -> None:
        """Verify the whole run. Raises `DamagedRunError` if it is damaged."""
        for block in self.blocks:
            self._columns_of(block)

    def entries(self, block: Block, places: Numbers | slice = slice(None)) -> Entries:
        """Some entries of a block, by default all."""
        heads, checks, *others = (column[places] for column in self._columns_of(block))
        return decoded(block, KeyHashes(heads, checks), others)

    def cuts(self, stretch: int) -> list[int]:
        """Heads that divide the run into parts of at most `stretch` entries, lowest first."""
        return [
            int(head)
            for block in self.blocks
            for head in self._columns_of(block)[HEADS][::stretch].tolist()
        ]

    def between(self, low: int, high: int | None) -> Entries:
        """The entries with heads from `low` up to, but not including, `high` (None: no limit)."""
        ends = [*(block.first for block in self.blocks[1:]), None]
        return Entries.together(
            [
                self.entries(block, between(self._columns_of(block)[HEADS], low, high))
                for block, end in zip(self.blocks, ends, strict=True)
                if (high is None or block.first < high) and (end is None or end >= low)
            ]
        )

    def find(self, probes: KeyHashes) -> tuple[Numbers, Entries]:
        """The indexes of the probes that have an entry here, and these entries.

        REQUIRES: the probes are in the order of their heads.
        """
        return self.find_in(probed(self.blocks, probes), probes)

    def find_in(
        self, blocks: Iterable[tuple[Block, int, int]], probes: KeyHashes
    ) -> tuple[Numbers, Entries]:
        """The same, for the blocks that `probed` returns."""
        places, found = [np.empty(0, np.int64)], []
        for block, start, end in blocks:
            heads, checks, *others = self._columns_of(block)
            asked = probes.take(slice(start, end))
            own, at = found_among(KeyHashes(heads, checks), asked)
            if len(own):
                places.append(own + start)
                found.append(decoded(block, asked.take(own), [column[at] for column in others]))
        return np.concatenate(places), Entries.together(found)

    def _columns_of(self, block: Block) -> list[Column]:
        known = self._columns.get(block.start)
        if known is None:
            self._check(block)
            every = slice(0, block.entries)
            bounds = [block.places(column, every) for column in range(len(block.widths))]
            known = [
                block.column(self.data[start:end], column, block.entries)
                for column, (start, end) in enumerate(bounds)
            ]
            self._columns[block.start] = known
        return known

    def _check(self, block: Block) -> None:
        if zlib.crc32(self.data[block.start : block.end].data) != block.crc:
            raise DamagedRunError(f"{self.path}: the key index is damaged")


def probed(blocks: Sequence[Block], probes: KeyHashes) -> Iterator[tuple[Block, int, int]]:
    """The blocks that may contain probes, each with the range of these probes.

    REQUIRES: the probes are in the order of their heads.
    """
    firsts = np.array([block.first for block in blocks], np.uint64)
    bounds = [*np.searchsorted(probes.heads, firsts).tolist(), len(probes)]
    for block, start, end in zip(blocks, bounds, bounds[1:], strict=False):
        if start < end:
            yield block, start, end


def blocks_of(tail: Bytes, path: str) -> tuple[Block, ...] | int:
    """The blocks of a run from its last bytes, or the number of bytes needed.

    Raises `DataError` for a corrupt file, and `UnsupportedError` for one of a newer release.
    """
    if len(tail) < _END_BYTES or tail[-len(_MAGIC) :].tobytes() != _MAGIC:
        raise _torn(path)
    version, length, crc = np.frombuffer(tail[-_END_BYTES : -len(_MAGIC)].tobytes(), "<u4").tolist()
    if version > _VERSION:
        raise UnsupportedError(
            f"{path}: a key index of version {version}, but this release supports version "
            f"{_VERSION}; use a newer release"
        )
    begin = len(tail) - _END_BYTES - length
    if begin < 0:
        return int(length) + _END_BYTES
    said = tail[begin : len(tail) - _END_BYTES].tobytes()
    if zlib.crc32(said) != crc:
        raise DataError(f"{path}: the key index is damaged")
    return tuple(Block(**{**b, "widths": tuple(b["widths"])}) for b in json.loads(said))


def _torn(path: str) -> DataError:
    return DataError(f"{path}: this is not a key index, or it is damaged")


def decoded(block: Block, hashes: KeyHashes, others: Sequence[Column]) -> Entries:
    """Entries of a block from the other columns in stored form."""
    files, positions, above = others
    comparisons = above.astype(np.uint64) + np.int64(block.base).view(np.uint64)
    return Entries(
        hashes,
        files.astype(np.int64),
        positions.astype(np.int64),
        comparisons.view(np.int64),
    )


# -- merging ---------------------------------------------------------------------------------------


class Part(Protocol):
    """Entries in hash order, one per key: a run, or entries in memory."""

    def __len__(self) -> int: ...

    def find(self, probes: KeyHashes) -> tuple[Numbers, Entries]:
        """See `Run`."""
        ...

    def cuts(self, stretch: int) -> list[int]:
        """See `Run`."""
        ...

    def between(self, low: int, high: int | None) -> Entries:
        """See `Run`."""
        ...


def merged(parts: Sequence[Part]) -> Iterator[Entries]:
    """The latest entry of each key in some parts, ordered from oldest to newest part, in hash
    order.

    Uses little memory, however long the parts are.
    """
    given = [part for part in parts if len(part)]
    # All parts are divided at the same heads, so that a key is in one piece.
    cuts = sorted({cut for part in given for cut in part.cuts(_STRETCH_ENTRIES)})
    for low, high in zip_longest(cuts, cuts[1:]):
        yield newest_of_each(Entries.together([part.between(low, high) for part in given]))
