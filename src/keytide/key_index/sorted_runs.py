"""Sorted runs of a key index, on disk and in object stores.

A run has entries in hash order, in a memory-mapped file. A run consists of blocks of fixed-width
columns, so runs of any length are written and merged block by block, and a lookup reads a few
pages. Positions, files and comparison values use as many bytes as their block needs. The end of the
file describes the blocks.

    magic | blocks | description | version, length and checksum of the description | magic

Of a run in an object store, a lookup fetches only what it needs. Hashes are evenly distributed
within a block, so the position of an entry is known up to a few thousand entries. The range around
it is fetched, for all columns together. If the entry is outside of it, the whole block is fetched.

The head of an index says which data files it covers, and has its runs.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, zip_longest
from typing import Any, BinaryIO, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from keytide.base.dataclass import asdict, dataclass, field, replace
from keytide.base.process import cached_property
from keytide.errors import DataError, UnsupportedError
from keytide.key_index.indexed_keys import (
    NOTHING,
    Entries,
    KeyHashes,
    Numbers,
    between,
    matches_among,
    newest_of_each,
)

# -- runs in memory-mapped files -------------------------------------------------------------------


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
        # Mapped columns must be aligned.
        aligned = (-(-width * self.entries // 8) * 8 for width in self.widths)
        return tuple(accumulate(aligned, initial=self.start))

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
        stored: list[bytes | memoryview] = [
            np.ascontiguousarray(part).data.cast("B") for part in column
        ]
        for data in (*stored, bytes(-written % 8)):
            crc = zlib.crc32(data, crc)
            output.write(data)
    widths = tuple(column[0].dtype.itemsize if column else 0 for column in columns)
    entries, first = sum(map(len, parts)), int(parts[0].hashes.heads[0])
    return Block(entries, first, base, start, widths, crc)  # type: ignore[arg-type]  # there are five


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
        # The same, for the blocks that `blocks_of_probes` returns.
        blocks = blocks_of_probes(self.blocks, probes)
        places, found = [np.empty(0, np.int64)], []
        for block, start, end in blocks:
            heads, checks, *others = self._columns_of(block)
            asked = probes.take(slice(start, end))
            own, at = matches_among(KeyHashes(heads, checks), asked)
            if len(own):
                places.append(own + start)
                found.append(decoded(block, asked.take(own), [column[at] for column in others]))
        return np.concatenate(places), Entries.together(found)

    def _columns_of(self, block: Block) -> list[Column]:
        known = self._columns.get(block.start)
        if known is None:
            if zlib.crc32(self.data[block.start : block.end].data) != block.crc:
                raise DamagedRunError(f"{self.path}: the key index is damaged")
            every = slice(0, block.entries)
            bounds = [block.places(column, every) for column in range(len(block.widths))]
            known = [
                block.column(self.data[start:end], column, block.entries)
                for column, (start, end) in enumerate(bounds)
            ]
            self._columns[block.start] = known
        return known


def blocks_of_probes(
    blocks: Sequence[Block], probes: KeyHashes
) -> Iterator[tuple[Block, int, int]]:
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
        hashes, files.astype(np.int64), positions.astype(np.int64), comparisons.view(np.int64)
    )


# -- merging ---------------------------------------------------------------------------------------


class EntrySource(Protocol):
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


def merged(parts: Sequence[EntrySource]) -> Iterator[Entries]:
    """The latest entry of each key in some parts, ordered from oldest to newest part, in hash
    order.

    Uses little memory, however long the parts are.
    """
    given = [part for part in parts if len(part)]
    # All parts are divided at the same heads, so that a key is in one piece.
    cuts = sorted({cut for part in given for cut in part.cuts(_STRETCH_ENTRIES)})
    for low, high in zip_longest(cuts, cuts[1:]):
        yield newest_of_each(Entries.together([part.between(low, high) for part in given]))


# -- runs in an object store -----------------------------------------------------------------------


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
    entries: slice
    probes: slice


@dataclass(frozen=True)
class RemoteRun:
    """A run of which only the description is loaded. Finds the same entries as `Run`."""

    fetch: Fetch = field(repr=False)
    path: str
    blocks: tuple[Block, ...]

    def find(self, probes: KeyHashes) -> tuple[Numbers, Entries]:
        """See `Run`. Raises `DataError` for damaged data, if it is read."""
        blocks = [*blocks_of_probes(self.blocks, probes)]
        ends = {block.start: after.first for block, after in pairwise(self.blocks)}
        windows = [
            window
            for block, start, end in blocks
            for window in _windows_in(block, ends.get(block.start, _TOP), probes, start, end)
        ]
        columns = self._fetched(windows)
        narrow = [
            n for n, window in enumerate(windows) if not _holds(window, columns[n][HEADS], probes)
        ]
        wide = [
            _Window(w.block, slice(0, w.block.entries), w.probes)
            for w in (windows[n] for n in narrow)
        ]
        for n, whole, fetched in zip(narrow, wide, self._fetched(wide), strict=True):
            windows[n], columns[n] = whole, fetched
        places, entries = [np.empty(0, np.int64)], []
        for window, found in zip(windows, columns, strict=True):
            heads, checks, *others = found
            asked = probes.take(window.probes)
            own, at = matches_among(KeyHashes(heads, checks), asked)
            places.append(own + window.probes.start)
            entries.append(decoded(window.block, asked.take(own), [each[at] for each in others]))
        return np.concatenate(places), Entries.together(entries)

    def _fetched(self, windows: Sequence[_Window]) -> list[list[Column]]:
        """The columns of each window, fetched in one round of requests."""
        if not windows:
            return []
        wanted = [
            (n, column)
            for n, window in enumerate(windows)
            for column in _COLUMNS
            if window.block.widths[column]
        ]
        ranges = [windows[n].block.places(column, windows[n].entries) for n, column in wanted]
        fetched = self.fetch(ranges)
        if [len(data) for data in fetched] != [end - begin for begin, end in ranges]:
            raise DataError(f"{self.path}: the key index is damaged")
        pieces = dict(zip(wanted, fetched, strict=True))
        return [
            [
                window.block.column(
                    np.frombuffer(pieces.get((n, column), b""), np.uint8),
                    column,
                    window.entries.stop - window.entries.start,
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
    begins = window.entries.start == 0 or (len(heads) > 0 and heads[0] < asked[0])
    ends = window.entries.stop == window.block.entries or (len(heads) > 0 and heads[-1] > asked[-1])
    return bool(begins and ends)


# -- the head of an index --------------------------------------------------------------------------


@dataclass(frozen=True)
class IndexedFile:
    """A data file, by its number in entries.

    `dead` of its `rows` are deleted, and `current` are the latest rows of their keys, including
    deletes.
    """

    number: int
    name: str
    rows: int
    dead: int
    current: int

    @property
    def stale(self) -> int:
        """The number of rows that are no longer relevant for their keys."""
        return self.rows - self.current


@dataclass(frozen=True)
class StoredRun:
    """A run by its file name."""

    name: str
    entries: int
    size: int


@dataclass(frozen=True)
class Head:
    """The description of one index of keys. Its runs are ordered from oldest to newest.

    `function` is the hash function of keys, and `compared` the unit of the comparison numbers.
    `mark` is the largest number so far. `next_number` is for the next file: numbers are not reused,
    so an entry of a removed file is recognized. `rowless` is in place of the number of a file in
    the entries of keys that are deleted although no row says so, because another engine removed it.
    """

    function: str
    files: tuple[IndexedFile, ...] = ()
    runs: tuple[StoredRun, ...] = ()
    compared: str = ""
    mark: int = NOTHING
    next_number: int = 0
    rowless: int | None = None

    @cached_property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The numbers in entries that count: those of the files, and `rowless`."""
        rowless = () if self.rowless is None else (self.rowless,)
        return np.array([*(file.number for file in self.files), *rowless], np.int64)

    def with_row(self, entries: Entries) -> npt.NDArray[np.bool_]:
        """Which of some entries that count name a stored row."""
        if self.rowless is None:
            return np.ones(len(entries), np.bool_)
        stored: npt.NDArray[np.bool_] = entries.files != self.rowless
        return stored

    def about(
        self, files: Sequence[IndexedFile], entries: Entries, before: Entries, seen: Numbers
    ) -> Head:
        """The head with these files, after `entries` replaced those in `before`.

        `seen` are the comparison numbers of all new rows.
        """
        tallies = (np.unique(each.files, return_counts=True) for each in (entries, before))
        more, fewer = (
            dict(zip(numbers.tolist(), counts.tolist(), strict=True)) for numbers, counts in tallies
        )
        counted = tuple(
            replace(f, current=f.current + more.get(f.number, 0) - fewer.get(f.number, 0))
            for f in files
        )
        return replace(
            self,
            files=counted,
            mark=int(np.max(seen, initial=self.mark)),
            next_number=max(self.next_number, *(file.number + 1 for file in files), 0),
        )

    def encode(self) -> bytes:
        """The head as bytes."""
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Head:
        """The head from the bytes of a file.

        Raises `DataError` for a corrupt file, and `UnsupportedError` for one of a newer release.
        """
        try:
            said = json.loads(data)
            version = int(said.pop("version"))
            if version > _VERSION:
                raise UnsupportedError(
                    f"{path}: a key index of version {version}, but this release supports "
                    f"version {_VERSION}; use a newer release"
                )
            return cls(
                said["function"],
                tuple(IndexedFile(**file) for file in said["files"]),
                tuple(StoredRun(**run) for run in said["runs"]),
                said["compared"],
                said["mark"],
                said["next_number"],
                said.get("rowless"),  # missing in heads of earlier releases
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path}: the key index is damaged ({error})") from error
