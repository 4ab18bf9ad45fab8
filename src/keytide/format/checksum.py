"""Checksums inside the files that they protect, where other engines ignore them.

A seal is a string in a file's own metadata with the CRC-32 of all bytes around it. Manifests are
sealed as a whole. So are JSON documents, with a member that other readers do not know. A data file
seals its footer, and the footer contains the CRC-32 of every block before it, so that a reader
verifies only the blocks that it needs. Files without a seal, from other writers, are accepted.

Rows may contain any string, even that of a seal, and statistics repeat it. So a seal is identified
by its key and by its position: before or after everything that comes from rows.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keytide.base.dataclass import dataclass
from keytide.base.process import cached_property, side_by_side
from keytide.store import Store

SEAL_KEY = "keytide.seal"
BLOCKS_KEY = "keytide.blocks"
UNSEALED = "keytide-crc32:00000000"
"""The string to put where the seal will be."""

# Thrift, the encoding of footers, puts the length of a string before it.
_BLOCKS = re.compile(
    BLOCKS_KEY.encode() + rb"\x18[\x80-\xff]*[\x00-\x7f]keytide-crc32s:((?:[0-9a-f]{8})*);"
)
# Small enough that a reader of one column verifies little more than that column.
_BLOCK_BYTES = 1 << 18
# From this number of blocks on, it is faster to verify with several threads.
_PARALLEL_BLOCKS = 16
# A long-lived process must not remember every file that it ever read.
_FILES_MAX = 10_000


@dataclass(frozen=True)
class Seal:
    """The seal of one kind of file.

    `length` is how that kind of file writes the length of the seal's string, between key and
    string. `place` says which of the strings that look like the seal it is.
    """

    length: bytes
    place: int

    def set(self, data: bytes) -> bytes:
        """`data`, which contains the string `UNSEALED`, with its checksum there.

        The length does not change.
        """
        start, end = self._spans(data)[self.place]
        return data[:start] + b"%08x" % zlib.crc32(data) + data[end:]

    def is_set(self, data: bytes) -> bool:
        """Whether the bytes have a seal."""
        return self._pattern.search(data) is not None

    def is_intact(self, data: bytes) -> bool:
        """Whether the bytes are unchanged since they were sealed, or have no seal."""
        spans = self._spans(data)
        if not spans:
            return True
        start, end = spans[self.place]
        # The checksum was computed with zeros in its own position.
        unsealed = zlib.crc32(data[end:], zlib.crc32(b"00000000", zlib.crc32(data[:start])))
        return int(data[start:end], 16) == unsealed

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        return [match.span(1) for match in self._pattern.finditer(data)]

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        key = re.escape(SEAL_KEY.encode() + self.length)
        return re.compile(key + rb"keytide-crc32:([0-9a-f]{8})")


HEADER_SEAL = Seal(length=b",", place=0)
"""For an Avro file, which begins with its metadata."""

DOCUMENT_SEAL = Seal(length=b'" : "', place=-1)
"""For a JSON document. No string in it can look like the seal, because quotes are escaped there."""

FOOTER_SEAL = Seal(length=b"\x18\x16", place=-1)
"""For the footer of a Parquet file, which ends with its metadata."""


class BlockSink(io.RawIOBase):
    """Passes bytes on to `output` and computes a CRC-32 of each block, up to `end_of_blocks`.

    What follows, a footer, is held back in `rest`.
    """

    def __init__(self, output: Any) -> None:
        self.rest: bytearray | None = None
        self._output = output
        self._sums: list[int] = []
        self._position = 0
        self.is_given_up = False
        """Whether what follows is accepted, but not passed on: the file will never be complete."""

    def writable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The number of bytes received."""
        return self._position

    def write(self, data: Any, /) -> int:
        """Write all of the bytes."""
        with memoryview(data) as view, view.cast("B") as piece:
            self._position += len(piece)
            if self.rest is not None:
                self.rest += piece
            elif not self.is_given_up:
                self._output.write(piece)
                filled, start = (self._position - len(piece)) % _BLOCK_BYTES, 0
                while start < len(piece):
                    stop = start + _BLOCK_BYTES - filled
                    if not filled:
                        self._sums.append(0)
                    self._sums[-1] = zlib.crc32(piece[start:stop], self._sums[-1])
                    start, filled = stop, 0
            return len(piece)

    def end_of_blocks(self) -> str:
        """Hold back what follows, and return the checksums as a string for the footer."""
        self.rest = bytearray()
        return f"keytide-crc32s:{''.join(f'{one:08x}' for one in self._sums)};"


def check_blocks_in(
    file: pa.NativeFile, uri: str, wanted: Callable[[pq.FileMetaData], list[tuple[int, int]]] | None
) -> None:
    """Raise OSError if the wanted bytes, with None any bytes, have changed since they were
    written.

    The bytes of the open file are in memory or mapped.
    """
    footer = check_footer(file)
    if not FOOTER_SEAL.is_set(footer):
        return
    size = file.size()
    ranges = wanted(pq.read_metadata(file)) if wanted else [(0, size - len(footer))]
    file.seek(0)
    data = file.read_buffer(size)
    found = _BLOCKS.findall(footer)
    if not found:
        return
    sums = np.frombuffer(bytes.fromhex(found[-1].decode()), ">u4")
    touched = np.zeros(len(sums), dtype=bool)
    for start, stop in ranges:
        # The first block is rounded down and the last one up: a range touches whole blocks.
        touched[start // _BLOCK_BYTES : -(-stop // _BLOCK_BYTES)] = True
    # A process verifies a block once: files are written once, and their names are unique.
    known = _CHECKED.of(uri, len(sums))
    blocks = np.flatnonzero(touched & ~known).tolist()
    end = size - len(footer)

    def is_torn(block: int) -> bool:
        start = block * _BLOCK_BYTES
        piece = data.slice(start, min(_BLOCK_BYTES, end - start))
        return zlib.crc32(piece) != int(sums[block])

    at_once = 1 if len(blocks) < _PARALLEL_BLOCKS else os.cpu_count() or 1
    torn = side_by_side([partial(is_torn, block) for block in blocks], at_once)
    known[[block for block, bad in zip(blocks, torn, strict=True) if not bad]] = True
    first = next((block for block, bad in zip(blocks, torn, strict=True) if bad), None)
    if first is not None:
        raise OSError(f"its checksum does not match, from byte {first * _BLOCK_BYTES} on")


def check_every_block(store: Store, path: str) -> bool:
    """Raise OSError if any byte of a file has changed since it was written, verified before or not.

    False: the file has no block checksums.
    """
    with store.open_input(path) as file:
        footer = check_footer(file)
        found = _BLOCKS.findall(footer)
        if not found:
            return False
        sums = np.frombuffer(bytes.fromhex(found[-1].decode()), ">u4")
        left = file.size() - len(footer)
        for place in range(-(-left // _BLOCK_BYTES)):
            piece = file.read(min(_BLOCK_BYTES, left))
            left -= len(piece)
            if place >= len(sums) or zlib.crc32(piece) != int(sums[place]):
                start = place * _BLOCK_BYTES
                raise OSError(f"its checksum does not match, from byte {start} on")
    return True


def check_footer(file: pa.NativeFile) -> bytes:
    """The footer with its length and magic.

    Raises OSError if it has changed since it was written.
    """
    size = file.size()
    # The last 8 bytes are the length of the footer and the magic.
    file.seek(max(0, size - 8))
    length = int.from_bytes(file.read(4), "little") + 8
    if length > size:
        raise OSError(f"a footer of {length} bytes in a file of {size} bytes")
    file.seek(size - length)
    footer: bytes = file.read(length)
    file.seek(0)
    # Footers with block checksums always have a seal. If it is missing, it was damaged itself.
    is_lost = _BLOCKS.search(footer) is not None and not FOOTER_SEAL.is_set(footer)
    if is_lost or not FOOTER_SEAL.is_intact(footer):
        raise OSError("the checksum of its footer does not match")
    return footer


def byte_ranges(
    names: Sequence[str], offset: int, length: int | None, metadata: pq.FileMetaData
) -> list[tuple[int, int]]:
    """The positions of the column chunks that contain the rows of the columns."""
    stop = metadata.num_rows if length is None else offset + length
    wanted = frozenset(names)
    leaves = []
    for i in range(metadata.num_columns):
        # Names may contain dots, like paths, so a leaf may belong to several columns.
        beginnings = itertools.accumulate(metadata.schema.column(i).path.split("."), "{}.{}".format)
        if not wanted.isdisjoint(beginnings):
            leaves.append(i)
    # The magic at the beginning belongs to every read.
    ranges, first = [(0, 4)], 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        if first < stop and first + group.num_rows > offset:
            for chunk in map(group.column, leaves):
                begin = chunk.dictionary_page_offset or chunk.data_page_offset
                ranges.append((begin, begin + chunk.total_compressed_size))
        first += group.num_rows
    return ranges


class _CheckedBlocks:
    """Which blocks of the recently read files were verified."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, name: str, count: int) -> Any:
        with self._lock:
            if name not in self._files or len(self._files[name]) != count:
                self._files[name] = np.zeros(count, dtype=bool)
            self._files.move_to_end(name)
            if len(self._files) > _FILES_MAX:
                self._files.popitem(last=False)
            return self._files[name]


_CHECKED = _CheckedBlocks()
