"""Parquet data files.

Physical types and encodings are those that Java readers before 2.0 support. Footer and blocks have
checksums, which are verified before anything is decoded.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from keytide.base.process import cached_property
from keytide.format import parquet_encoding
from keytide.format.arrow import from_arrow, has_nanoseconds
from keytide.format.cache import FILES, version_of
from keytide.format.checksum import (
    BLOCKS_KEY,
    FOOTER_SEAL,
    SEAL_KEY,
    UNSEALED,
    BlockSink,
    byte_ranges,
    check_blocks,
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
from keytide.format.data_file.parquet_footer import RemoteFile, read_footer, remote_file
from keytide.format.parquet_encoding import bounded_leaves, codecs, dictionary_columns
from keytide.format.schema import TableSchema
from keytide.store import Store

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
            return _MappedFile(store, path, _mapped(local, version, numbered, kept_bytes_max))
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
    return {
        name: _ends(footer, places[name])
        for name in names
        if name in places and _is_comparable(footer.schema.column(places[name]))
    }


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


def _is_comparable(column: pq.ColumnSchema) -> bool:
    """Whether the values of a column are integers or strings."""
    logical, physical = str(column.logical_type.type), str(column.physical_type)
    if logical == "NONE":
        return physical in ("INT32", "INT64")
    return logical == "INT" or (logical == "STRING" and physical == "BYTE_ARRAY")


def _ends(footer: pq.FileMetaData, place: int) -> GroupEnds:
    groups = range(footer.num_row_groups)
    found = [footer.row_group(group).column(place).statistics for group in groups]
    known = [each if each is not None and each.has_min_max else None for each in found]
    return [each and each.min for each in known], [each and each.max for each in known]


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
        rows = _with_int96_bytes(rows)
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
    output.write(FOOTER_SEAL.set(_with_int96(footer) if nanoseconds else footer))


@contextmanager
def _buffered(sink: BlockSink) -> Iterator[pa.BufferedOutputStream]:
    """A stream to a sink that collects many pages: each call waits for Python's global lock."""
    stream = pa.BufferedOutputStream(pa.PythonFile(sink, "w"), _WRITE_BYTES)
    try:
        yield stream
        stream.flush()
    except BaseException:
        sink.give_up()  # Arrow writes the rest when it closes the stream
        raise


@dataclass(frozen=True)
class _Mapping:
    """A plan over a file whose footer was read, and the reads whose blocks were verified."""

    frame: pl.LazyFrame
    schema: pl.Schema
    local: Path
    checked: set[_Read] = field(default_factory=set)

    def row_groups_around(self, offset: int, length: int | None) -> tuple[int, int | None]:
        """The row groups that contain the rows, given as their first row and their total number of
        rows.
        """
        if offset == 0 and length is None:
            return 0, None
        stop = self._ends[-1] if length is None else offset + length
        first = bisect_right(self._ends, offset)
        last = min(bisect_left(self._ends, stop), len(self._ends) - 1)
        begin = self._ends[first - 1] if first else 0
        return begin, max(0, self._ends[last] - begin)

    @cached_property
    def _ends(self) -> list[int]:
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
        size = _MAPPING_BYTES + _MAPPING_TIMES_FOOTER * _footer_bytes(local)
        FILES.keep(key, found, size, bytes_max)
    return found


def _footer_bytes(local: Path) -> int:
    with local.open("rb") as file:
        file.seek(-8, os.SEEK_END)  # the length of the footer, and the magic
        return int.from_bytes(file.read(4), "little")


@dataclass(frozen=True)
class _MappedFile:
    """A large file on local disk, which Polars maps and reads with all cores."""

    store: Store
    path: str
    mapping: _Mapping

    @property
    def names(self) -> Sequence[str]:
        """The columns."""
        return self.mapping.schema.names()

    def rows(self, names: Sequence[str], offset: int, length: int | None) -> Rows:
        """The rows, not decoded yet."""
        groups = self.mapping.row_groups_around(offset, length)
        read = (tuple(names), *groups)
        if read not in self.mapping.checked:
            _check_blocks(self, names, *groups)
            self.mapping.checked.add(read)
        whole = offset == 0 and length is None
        frame = self.mapping.frame if whole else self.mapping.frame.slice(offset, length)
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
    check_blocks(file.store, file.path, wanted)


def _with_int96_bytes(rows: pa.Table) -> pa.Table:
    columns = [parquet_encoding.encode_column(column) for column in rows.columns]
    fields = [f.with_type(parquet_encoding.physical_type(f.type)) for f in rows.schema]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _with_int96(footer: bytes) -> bytes:
    marked = parquet_encoding.mark_footer(footer[:-8])
    return marked + len(marked).to_bytes(4, "little") + footer[-4:]
