"""Remote Parquet files: fetches everything that will be read in one round of requests.

A small file is fetched as a whole. For a large file, the footer is fetched and cached, and then all
wanted column chunks are fetched in parallel.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from keytide.format.branch import main_store
from keytide.format.cache import FILES
from keytide.format.data_file.footer import read_footer
from keytide.store import SeekableReader, Store

__all__ = ["WHOLE_BYTES_MAX", "FarFile", "far_file"]

# A request takes about as long as the transfer of this many bytes. Smaller files are fetched as a
# whole.
WHOLE_BYTES_MAX = 8 << 20
"""Larger files are fetched in two rounds: the footer, and the wanted parts."""
# Files of up to this size, of which many arrive between two compactions, are cached as a whole.
_KEPT_BYTES_MAX = 1 << 20
# Enough for a footer with the metadata of many column chunks.
_TAIL_BYTES = 1 << 18
_TIMES_FOOTER = 4
# Parts of a file with smaller gaps are fetched together.
_GAP_BYTES = 1 << 16

Range = tuple[int, int]
"""The begin and the end of bytes in a file."""


@dataclass(frozen=True)
class FarFile:
    """A file with a fetched footer. `whole` has all of its bytes, if they are fetched too."""

    store: Store
    path: str
    size: int
    footer: pq.FileMetaData
    whole: pa.Buffer | None = field(default=None, repr=False)

    def open(self, ranges: Sequence[Range]) -> pa.NativeFile:
        """The file. The given bytes are fetched now, others when they are read."""
        if self.whole is not None:
            return pa.BufferReader(self.whole)
        wanted = _joined(ranges)
        pieces = self.store.read_ranges(self.path, wanted)
        begins = [begin for begin, _ in wanted]
        return pa.PythonFile(_Pieces(self, begins, pieces), mode="r")


def far_file(store: Store, path: str, size: int | None, kept_bytes_max: int) -> FarFile:
    """A file of which at most the footer is fetched.

    `size` is the recorded size in bytes, and `kept_bytes_max` limits the cache for all files.
    Raises OSError if the footer has changed since it was written, and `DataError` like the store.
    """
    # The key uses the identity, but reads use the caller's store, because credentials of an earlier
    # one may have expired.
    # Data files of branches are stored in the table.
    key = (main_store(store).identity, path, "far")
    kept: FarFile | None = FILES.find(key)
    if kept is None:
        kept = _fetched(store, path, store.size(path) if size is None else size)
        to_keep, held = kept, _TIMES_FOOTER * kept.footer.serialized_size
        if kept.whole is not None and kept.size <= _KEPT_BYTES_MAX:
            held += kept.size
        else:
            to_keep = replace(kept, whole=None)
        FILES.keep(key, to_keep, held, kept_bytes_max)
    return replace(kept, store=store)


def _fetched(store: Store, path: str, size: int) -> FarFile:
    if size < 0:
        raise OSError(f"metadata records a size of {size} bytes")
    begin = 0 if size <= WHOLE_BYTES_MAX else size - _TAIL_BYTES
    end = _bytes(store, path, begin, size)
    footer_bytes = int.from_bytes(end[-8:-4], "little") + 8
    if begin and footer_bytes > len(end):
        begin = max(0, size - footer_bytes)
        end = _bytes(store, path, begin, size)
    held = pa.py_buffer(end)
    footer = read_footer(pa.BufferReader(held))
    return FarFile(store, path, size, footer, None if begin else held)


def _bytes(store: Store, path: str, begin: int, end: int) -> bytes:
    (found,) = store.read_ranges(path, [(begin, end)])
    if len(found) < end - begin:
        raise OSError(f"it ends before byte {end}, which metadata expects")
    return found


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Sorted ranges, with adjacent ones joined."""
    joined: list[Range] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1] + _GAP_BYTES:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


class _Pieces(SeekableReader):
    """A file of which some parts are fetched. Other parts are fetched on demand."""

    def __init__(self, file: FarFile, begins: Sequence[int], pieces: Sequence[bytes]) -> None:
        super().__init__(file.size)
        self._file = file
        self._begins = begins
        self._pieces = pieces

    def bytes_at(self, position: int, length: int) -> bytes:
        place = bisect_right(self._begins, position) - 1
        if place >= 0:
            start = position - self._begins[place]
            if start + length <= len(self._pieces[place]):
                return self._pieces[place][start : start + length]
        (found,) = self._file.store.read_ranges(self._file.path, [(position, position + length)])
        return found
