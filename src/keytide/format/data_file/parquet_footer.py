"""Footers of Parquet files: their checks, and requests for remote files that start from them.

Everything that will be read of a remote file is fetched in one round of requests. A small file is
fetched as a whole. For a large file, the footer is fetched and cached, and then all wanted column
chunks are fetched in parallel.

Arrow crashes the process if Python requests a column chunk or its statistics from a footer that
contradicts itself. A footer with an intact seal is unchanged. In files of other writers, which have
no seal, the members that Arrow compares are compared first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from thrift.protocol.TProtocol import TType

from keytide.base.dataclass import dataclass, field, replace
from keytide.format.cache import FILES
from keytide.format.checksum import FOOTER_SEAL, check_footer
from keytide.format.parquet_encoding import Member, has, read_struct
from keytide.format.paths import main_store
from keytide.store import SeekableReader, Store

# -- checks of footers -----------------------------------------------------------------------------


# The minimum number of bytes in a bound, by the type of its column.
_VALUE_BYTES = {
    "BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8,
}  # fmt: skip
# The types, in the order of their numbers in Parquet's Thrift definition.
_TYPES = (*_VALUE_BYTES, "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
# The lowest and the highest value, in the old and in the present form.
_BOUNDS = (1, 2, 5, 6)


def read_footer(file: pa.NativeFile) -> pq.FileMetaData:
    """The footer of a file. All of its members are safe to request.

    Raises OSError if it has changed since it was written or contradicts itself, and the errors of
    Arrow.
    """
    stored = check_footer(file)
    footer = pq.read_metadata(file)
    if not FOOTER_SEAL.is_set(stored):
        try:
            _refuse_contradictions(footer.schema, read_struct(stored[:-8]))
        except OSError:
            raise
        # Thrift raises any kind of error for bytes that it does not understand.
        except Exception as error:
            raise OSError(f"its footer is not readable: {error!r}") from error
    return footer


def _refuse_contradictions(schema: pq.ParquetSchema, footer: Sequence[Member]) -> None:
    # FileMetaData: 4 row_groups. RowGroup: 1 columns. ColumnChunk: 3 meta_data. ColumnMetaData: 1
    # type, 12 statistics, 16 size_statistics. SizeStatistics: 1 unencoded_byte_array_data_bytes, 2
    # and 3 how many values there are on each level.
    leaves = [schema.column(i) for i in range(len(schema))]
    for group in _items(footer, 4):
        chunks = _items(group, 1)
        if len(chunks) != len(leaves):
            raise OSError(f"its footer lists {len(chunks)} column chunks, expected {len(leaves)}")
        for leaf, chunk in zip(leaves, chunks, strict=True):
            column = _value(chunk, 3, TType.STRUCT, ())
            stored = _TYPES[_value(column, 1, TType.I32, 0)]
            found = leaf.physical_type
            if stored != found:
                raise OSError(f"its footer has type {stored} for a column of type {found}")
            sizes = _value(column, 16, TType.STRUCT, ())
            lists, nulls = len(_items(sizes, 2)), len(_items(sizes, 3))
            is_counted = lists in (0, leaf.max_repetition_level + 1)
            is_counted &= nulls in (0, leaf.max_definition_level + 1)
            if not is_counted or (has(sizes, 1) and stored != "BYTE_ARRAY"):
                raise OSError("its footer has value counts that do not fit its columns")
            bounds, width = _value(column, 12, TType.STRUCT, ()), _VALUE_BYTES.get(stored, 0)
            if any(len(_value(bounds, n, TType.STRING, b"0" * width)) < width for n in _BOUNDS):
                raise OSError("its footer has bounds that do not fit the type of their column")


def _items(members: Sequence[Member], number: int) -> Sequence[Any]:
    found = _value(members, number, TType.LIST, None)
    return () if found is None else found.items


def _value(members: Sequence[Member], number: int, type_: int, default: Any) -> Any:
    """The value of a member that all readers read in the same way: it occurs once, with its
    type.
    """
    found = [member for member in members if member.id == number]
    if not found:
        return default
    if len(found) > 1 or found[0].type != type_:
        raise OSError(f"member {number} of its footer is repeated or has another type")
    return found[0].value


# -- remote Parquet files --------------------------------------------------------------------------


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
class RemoteFile:
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

        # Sorted ranges, with adjacent ones joined.
        joined: list[Range] = []
        for begin, end in sorted(ranges):
            if joined and begin <= joined[-1][1] + _GAP_BYTES:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((begin, end))
        pieces = self.store.read_ranges(self.path, joined)
        begins = [begin for begin, _ in joined]
        return pa.PythonFile(_Pieces(self, begins, pieces), mode="r")


def remote_file(store: Store, path: str, size: int | None, kept_bytes_max: int) -> RemoteFile:
    """A file of which at most the footer is fetched.

    `size` is the recorded size in bytes, and `kept_bytes_max` limits the cache for all files.
    Raises OSError if the footer has changed since it was written, and `DataError` like the store.
    """
    # The key uses the identity, but reads use the caller's store, because credentials of an earlier
    # one may have expired.
    # Data files of branches are stored in the table.
    key = (main_store(store).identity, path, "far")
    kept: RemoteFile | None = FILES.find(key)
    if kept is None:
        size = store.size(path) if size is None else size
        if size < 0:
            raise OSError(f"metadata records a size of {size} bytes")
        begin = 0 if size <= WHOLE_BYTES_MAX else size - _TAIL_BYTES
        end = _bytes(store, path, begin, size)
        footer_bytes = int.from_bytes(end[-8:-4], "little") + 8
        if begin and footer_bytes > len(end):
            begin = max(0, size - footer_bytes)
            end = _bytes(store, path, begin, size)
        held_end = pa.py_buffer(end)
        footer = read_footer(pa.BufferReader(held_end))
        kept = RemoteFile(store, path, size, footer, None if begin else held_end)
        to_keep, held = kept, _TIMES_FOOTER * kept.footer.serialized_size
        if kept.whole is not None and kept.size <= _KEPT_BYTES_MAX:
            held += kept.size
        else:
            to_keep = replace(kept, whole=None)
        FILES.keep(key, to_keep, held, kept_bytes_max)
    return replace(kept, store=store)


def _bytes(store: Store, path: str, begin: int, end: int) -> bytes:
    (found,) = store.read_ranges(path, [(begin, end)])
    if len(found) < end - begin:
        raise OSError(f"it ends before byte {end}, which metadata expects")
    return found


class _Pieces(SeekableReader):
    """A file of which some parts are fetched. Other parts are fetched on demand."""

    def __init__(self, file: RemoteFile, begins: Sequence[int], pieces: Sequence[bytes]) -> None:
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
