"""Parquet files that lie far away: what will be read of one is fetched at once.

A small file comes as a whole. Of a large one comes the footer, which is kept for the next read,
and then all column chunks that are wanted, side by side.
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

# A request takes about as long as the transfer of so many bytes: up to here, one for all is best.
WHOLE_BYTES_MAX = 8 << 20
"""Larger files come in two rounds: the footer, and what is wanted."""
# So small files, many of which come between two compactions, are kept as they are.
_KEPT_BYTES_MAX = 1 << 20
# A footer with the metadata of many column chunks fits.
_TAIL_BYTES = 1 << 18
_TIMES_FOOTER = 4
# Pieces of a file that lie closer together come as one.
_GAP_BYTES = 1 << 16

Range = tuple[int, int]
"""Where some bytes of a file begin and end."""


@dataclass(frozen=True)
class FarFile:
    """A file whose footer is here; `whole` has all of its bytes, if they are here too."""

    store: Store
    path: str
    size: int
    footer: pq.FileMetaData
    whole: pa.Buffer | None = field(default=None, repr=False)

    def open(self, ranges: Sequence[Range]) -> pa.NativeFile:
        """The file, of which some bytes are fetched now, and others when they are read."""
        if self.whole is not None:
            return pa.BufferReader(self.whole)
        wanted = _joined(ranges)
        pieces = self.store.read_ranges(self.path, wanted)
        begins = [begin for begin, _ in wanted]
        return pa.PythonFile(_Pieces(self, begins, pieces), mode="r")


def far_file(store: Store, path: str, size: int | None, kept_bytes_max: int) -> FarFile:
    """A file of which nothing but perhaps its footer is fetched.

    `size` is the recorded one, in bytes, and `kept_bytes_max` bounds what is kept of all files.
    Raises OSError where the footer is not as it was written, and `DataError` as the store.
    """
    # By the identity and with the store of whoever asks: credentials of an earlier one may be over.
    key = (main_store(store).identity, path, "far")  # data files of branches lie in the table's
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
        raise OSError(f"metadata says that it has {size} bytes")
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
        raise OSError(f"it ends before byte {end}, where metadata says it does")
    return found


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Ranges in their order, neighbours as one."""
    joined: list[Range] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1] + _GAP_BYTES:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


class _Pieces(SeekableReader):
    """A file of which some pieces are here; what is asked for beside them is fetched."""

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
