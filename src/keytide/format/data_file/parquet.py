"""Parquet data files: reader and writer, checks of footers, and requests for remote files.

Physical types and encodings are those that Java readers before 2.0 support. Footer and blocks have
checksums, which are verified before anything is decoded.

Everything that will be read of a remote file is fetched in one round of requests. A small file is
fetched as a whole. For a large file, the footer is fetched and cached, and then all wanted column
chunks are fetched in parallel.

Arrow crashes the process if Python requests a column chunk or its statistics from a footer that
contradicts itself. A footer with an intact seal is unchanged. In files of other writers, which have
no seal, the members that Arrow compares are compared first.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from thrift.protocol.TProtocol import TType

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.format.arrow import from_arrow, has_nanoseconds
from keytide.format.cache import FILES, version_of
from keytide.format.checksum import (
    BLOCKS_KEY,
    FOOTER_SEAL,
    SEAL_KEY,
    UNSEALED,
    BlockSink,
    byte_ranges,
    check_blocks_in,
    check_footer,
)
from keytide.format.data_file.file_format import (
    POSITION,
    GroupEnds,
    Rows,
    StoredFile,
    numbered_rows,
)
from keytide.format.parquet_encoding import (
    Member,
    bounded_leaves,
    codecs,
    dictionary_columns,
    has,
    in_physical_types,
    mark_footer,
    read_struct,
)
from keytide.format.paths import main_store
from keytide.format.schema import TableSchema
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


# -- requests for remote files ---------------------------------------------------------------------


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


# -- the reader and the writer ---------------------------------------------------------------------


# Planning a lazy read of a smaller file takes longer than reading all of it.
_LAZY_FILE_BYTES_MIN = 128 << 10

# This few values are decoded before threads have started.
_ALONE_MAX = 1 << 17

# The measured memory of a mapping: its decoded footer, and a plan.
_MAPPING_BYTES, _MAPPING_TIMES_FOOTER = 16 << 10, 4

_Read: TypeAlias = "tuple[tuple[str, ...], int, int | None]"
"""Which columns of which row groups are read."""

_WRITE_BYTES = 4 << 20
_WRITE_BATCH_ROWS = 1 << 14
_ROW_GROUP_BYTES = 64 << 20
_ROW_GROUP_ROWS_MIN = 16 << 10
# Readers read whole row groups, so the windows of a merge cannot be smaller. To read one row,
# Polars reads all column chunks of its group. Smaller groups hardly save more.
_ROW_GROUP_ROWS_MAX = 64 << 10


def stored_file(
    store: Store,
    path: str,
    schema: TableSchema,
    size: int | None,
    *,
    numbered: bool,
    kept_bytes_max: int,
) -> StoredFile:
    """The file as it is: its columns have their types."""
    local = store.local_path(path)
    if local is not None:
        found = local.stat()
        if found.st_size >= _LAZY_FILE_BYTES_MIN:
            version = (found.st_ino, found.st_size, found.st_mtime_ns)
            mapping = _mapped(local, version, numbered, kept_bytes_max)
            return _MappedFile(store, path, mapping, mapping.schema.names())
        file = pq.ParquetFile(store.open_input(path), page_checksum_verification=True)
        return _SmallFile(store, path, file, file.schema_arrow.names, numbered)
    far = remote_file(store, path, size, kept_bytes_max)
    return _FetchedFile(far, far.footer.schema.to_arrow_schema().names, numbered)


def group_rows(store: Store, path: str, size: int | None, kept_bytes_max: int) -> list[int]:
    """The number of rows in each row group."""
    footer = _footer(store, path, size, kept_bytes_max)
    return [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]


def group_ends(
    store: Store, path: str, names: Sequence[str], size: int | None, kept_bytes_max: int
) -> dict[str, GroupEnds]:
    """The ends of the row groups, from the footer."""
    footer = _footer(store, path, size, kept_bytes_max)
    places = {footer.schema.column(i).path: i for i in range(len(footer.schema))}
    ends: dict[str, GroupEnds] = {}
    for name in names:
        if name not in places:
            continue
        column = footer.schema.column(places[name])
        logical, physical = str(column.logical_type.type), str(column.physical_type)
        is_text = (logical, physical) == ("STRING", "BYTE_ARRAY")
        is_integer = logical == "INT" or (logical == "NONE" and physical in ("INT32", "INT64"))
        if is_text or is_integer:
            groups = map(footer.row_group, range(footer.num_row_groups))
            found = [group.column(places[name]).statistics for group in groups]
            known = [each if each is not None and each.has_min_max else None for each in found]
            ends[name] = (
                [each and each.min for each in known],
                [each and each.max for each in known],
            )
    return ends


def _footer(store: Store, path: str, size: int | None, kept_bytes_max: int) -> pq.FileMetaData:
    if store.local_path(path) is None:
        return remote_file(store, path, size, kept_bytes_max).footer
    key = (*version_of(store, path), "footer")
    kept: pq.FileMetaData | None = FILES.find(key)
    if kept is None:
        with store.open_input(path) as file:
            kept = read_footer(file)
        FILES.keep(key, kept, _MAPPING_TIMES_FOOTER * kept.serialized_size, kept_bytes_max)
    return kept


def note(store: Store, path: str, key: str) -> str | None:
    """A note in the footer."""
    with store.open_input(path) as file:
        check_footer(file)
        found = (pq.read_metadata(file).metadata or {}).get(key.encode())
    return None if found is None else found.decode()


def check_columns(columns: pa.Schema) -> None:
    """All columns are supported."""


def write(
    output: Any,
    rows: pa.Table,
    codec: str,
    zstd_level: int,
    notes: Mapping[str, str],
    *,
    dictionaries: bool = True,
) -> None:
    """Write rows. Each column and nested node gets its field id."""
    nanoseconds = any(has_nanoseconds(t) for t in rows.schema.types)
    if nanoseconds:
        rows = in_physical_types(rows)
    row_bytes = max(1, rows.nbytes // max(1, rows.num_rows))
    group_rows = min(max(_ROW_GROUP_BYTES // row_bytes, _ROW_GROUP_ROWS_MIN), _ROW_GROUP_ROWS_MAX)
    dictionary = dictionary_columns(rows) if dictionaries else []
    compression = codecs(rows, codec, dictionary)
    # Arrow refuses a compression level for a codec without levels.
    zstd_leaves = [path for path, leaf_codec in compression.items() if leaf_codec == "zstd"]
    sink = BlockSink(output)
    with (
        _buffered(sink) as stream,
        pq.ParquetWriter(
            stream,
            rows.schema,
            compression=compression,
            compression_level=dict.fromkeys(zstd_leaves, zstd_level) or None,
            data_page_version="1.0",
            version="2.6",
            store_decimal_as_integer=True,
            write_time_adjusted_to_utc=True,
            use_dictionary=dictionary,
            write_statistics=bounded_leaves(rows),
            store_schema=False,
            write_page_checksum=True,
            write_batch_size=_WRITE_BATCH_ROWS,
        ) as writer,
    ):
        writer.write_table(rows, row_group_size=group_rows)
        stream.flush()
        sealed = {BLOCKS_KEY: sink.end_of_blocks(), SEAL_KEY: UNSEALED}
        writer.add_key_value_metadata({**notes, **sealed})
    # The footer was held back, so that it can be changed and sealed before it is written.
    footer = bytes(sink.rest or b"")
    if nanoseconds:
        marked = mark_footer(footer[:-8])
        footer = marked + len(marked).to_bytes(4, "little") + footer[-4:]
    output.write(FOOTER_SEAL.set(footer))


@contextmanager
def _buffered(sink: BlockSink) -> Iterator[pa.BufferedOutputStream]:
    """A stream to a sink that collects many pages: each call waits for Python's global lock."""
    stream = pa.BufferedOutputStream(pa.PythonFile(sink, "w"), _WRITE_BYTES)
    try:
        yield stream
        stream.flush()
    except BaseException:
        sink.is_given_up = True  # Arrow writes the rest when it closes the stream
        raise


@dataclass(frozen=True)
class _Mapping:
    """A plan over a file whose footer was read, and the reads whose blocks were verified."""

    frame: pl.LazyFrame
    schema: pl.Schema
    local: Path
    checked: set[_Read] = field(default_factory=set)

    @cached_property
    def ends(self) -> list[int]:
        """Where each row group ends."""
        footer = pq.read_metadata(self.local)
        rows = (footer.row_group(group).num_rows for group in range(footer.num_row_groups))
        return [*itertools.accumulate(rows)] or [0]


def _mapped(local: Path, version: tuple[int, ...], numbered: bool, bytes_max: int) -> _Mapping:
    """The mapping of one version of a file: a lookup reads little more than footers."""
    key = (local, version, numbered)
    found: _Mapping | None = FILES.find(key)
    if found is None:
        # With a row index, some releases of Polars do not skip row groups. So only reads with
        # deletion vectors get one.
        frame = pl.scan_parquet(
            local,
            glob=False,
            hive_partitioning=False,
            row_index_name=POSITION if numbered else None,
        )
        found = _Mapping(frame, frame.collect_schema(), local)
        with local.open("rb") as file:
            file.seek(-8, os.SEEK_END)  # the length of the footer, and the magic
            footer_bytes = int.from_bytes(file.read(4), "little")
        FILES.keep(key, found, _MAPPING_BYTES + _MAPPING_TIMES_FOOTER * footer_bytes, bytes_max)
    return found


@dataclass(frozen=True)
class _MappedFile:
    """A large file on local disk, which Polars maps and reads with all cores."""

    store: Store
    path: str
    mapping: _Mapping
    names: Sequence[str]

    def rows(self, names: Sequence[str], offset: int, length: int | None) -> Rows:
        """The rows, not decoded yet."""
        whole = offset == 0 and length is None
        frame, begin, count = self.mapping.frame, offset, length
        if not whole:
            frame, ends = frame.slice(offset, length), self.mapping.ends
            # The row groups that contain the rows: their first row and their number of rows.
            stop = ends[-1] if length is None else offset + length
            first = bisect_right(ends, offset)
            last = min(bisect_left(ends, stop), len(ends) - 1)
            begin = ends[first - 1] if first else 0
            count = max(0, ends[last] - begin)
        read = (tuple(names), begin, count)
        if read not in self.mapping.checked:
            _check_blocks(self, names, begin, count)
            self.mapping.checked.add(read)
        return frame, self.mapping.schema


@dataclass(frozen=True)
class _SmallFile:
    """A small file on local disk: the column chunks of the wanted rows are read."""

    store: Store
    path: str
    file: pq.ParquetFile
    names: Sequence[str]
    numbered: bool

    def rows(self, names: Sequence[str], offset: int, length: int | None) -> Rows:
        """The decoded rows."""
        _check_blocks(self, names, offset, length)
        return _decoded(self.file, names or self.names[:1], offset, length, numbered=self.numbered)


@dataclass(frozen=True)
class _FetchedFile:
    """A file in an object store: the column chunks of the wanted rows are fetched."""

    remote: RemoteFile
    names: Sequence[str]
    numbered: bool

    def rows(self, names: Sequence[str], offset: int, length: int | None) -> Rows:
        """The decoded rows."""
        # At least one column is read: otherwise Arrow would not know the number of rows.
        read, footer = names or self.names[:1], self.remote.footer
        ranges = byte_ranges(read, offset, length, footer)
        with self.remote.open(ranges) as source:
            if self.remote.whole is not None:
                # In partial files, each page has its own checksum.
                uri = self.remote.store.uri_of(self.remote.path)
                check_blocks_in(source, uri, partial(byte_ranges, read, offset, length))
            file = pq.ParquetFile(
                source, metadata=footer, pre_buffer=True, page_checksum_verification=True
            )
            return _decoded(file, read, offset, length, numbered=self.numbered)


def _decoded(
    file: pq.ParquetFile, names: Sequence[str], offset: int, length: int | None, *, numbered: bool
) -> Rows:
    """Rows of some columns, which are read by whole row groups."""
    metadata = file.metadata
    stop = metadata.num_rows if length is None else min(offset + length, metadata.num_rows)
    groups: list[int] = []
    first_row, start = 0, 0
    for group in range(metadata.num_row_groups):
        end = start + metadata.row_group(group).num_rows
        if start < stop and end > offset:
            first_row = start if not groups else first_row
            groups.append(group)
        start = end
    values = (start - first_row) * len(names) if groups else 0
    table = file.read_row_groups(groups, columns=names, use_threads=values > _ALONE_MAX)
    frame = from_arrow(table.slice(offset - first_row, stop - offset))
    return numbered_rows(frame, offset, numbered=numbered)


def _check_blocks(
    file: _MappedFile | _SmallFile, names: Sequence[str], offset: int, length: int | None
) -> None:
    whole = offset == 0 and length is None and len(names) == len(file.names)
    # None verifies every block without searching the positions of the columns.
    wanted = None if whole else partial(byte_ranges, names, offset, length)
    local = file.store.local_path(file.path)
    with (
        pa.memory_map(str(local)) if local is not None else file.store.open_input(file.path)
    ) as source:
        check_blocks_in(source, file.store.uri_of(file.path), wanted)
