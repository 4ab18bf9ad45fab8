"""Key-value data files: Parquet written and read.

A data file holds rows sorted by key, at most one per key: the key again under `_KEY_` names,
`_SEQUENCE_NUMBER`, `_VALUE_KIND`, and every column of the table (Paimon format, key-value data
files). Physical types and encodings are those that Java readers before 2.0 understand.

`write_run` turns one sorted table into one or more files; `FileReader` reads rows of a file as
a Polars frame in the shape of the table's *current* schema, pairing columns by field id.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from keytide.errors import DataError, KeytideError, UnsupportedError
from keytide.format import int96
from keytide.format.arrow import from_arrow, polars_schema, sliced_bytes
from keytide.format.binary_row import encode_rows
from keytide.format.checksum import (
    BLOCKS_KEY,
    FOOTER_SEAL,
    SEAL_KEY,
    UNSEALED,
    BlockSink,
    byte_ranges,
    check_blocks,
    check_footer,
)
from keytide.format.deletion_vector import VectorPlace, dead_positions
from keytide.format.encoding import codecs, dictionary_columns
from keytide.format.manifest import DataFileMeta, FileSource
from keytide.format.schema import (
    KEY_PREFIX,
    SEQUENCE_FIELD_ID,
    VALUE_KIND_FIELD_ID,
    TableSchema,
)
from keytide.format.stats import collect_piece_key_stats, collect_piece_stats
from keytide.options.keys import FILE_FORMAT
from keytide.row_kind import RowKind
from keytide.scratch import scratch
from keytide.store import Store
from keytide.types import (
    ArrayType,
    DataType,
    Field,
    MapType,
    MultisetType,
    RowType,
)

__all__ = [
    "KEY_PREFIX",
    "SEQUENCE_NUMBER",
    "VALUE_KIND",
    "WHOLE_FILE",
    "FileReader",
    "RunWriter",
    "Span",
    "physical_schema",
    "read_together",
]

SEQUENCE_NUMBER = "_SEQUENCE_NUMBER"
VALUE_KIND = "_VALUE_KIND"

_ROW_GROUP_BYTES = 64 << 20
_ROW_GROUP_ROWS_MIN = 64 << 10
# Readers take whole row groups at a time, so windows of a merge can be no finer.
_ROW_GROUP_ROWS_MAX = 1 << 18
# Zstd at level 1 roughly halves Arrow's bytes; only the cut between files depends on it.
_COMPRESSION_GUESS = 0.5
# Below this, in Arrow's bytes, an upsert's latency counts for more than its size.
_SMALL_FILE_BYTES = 32 << 20
# Planning a lazy read of a smaller file takes longer than reading all of it.
_LAZY_FILE_BYTES_MIN = 128 << 10
# What files written together may hold in memory before they are stored.
_TOGETHER_BYTES = 32 << 20
# From this many rows on, a run is written as several files at once.
_PARALLEL_ROWS = 2_000_000


@dataclass(frozen=True)
class RunWriter:
    """Writes sorted runs of one table into a bucket's folder.

    Where it runs: driver or executor. Files are durable when `write` returns, and belong to
    nobody until a commit names them.
    """

    store: Store
    schema: TableSchema
    compression: str | None = None
    """None lets the size decide: zstd, and lz4 for small files at level 0."""
    zstd_level: int = 1
    target_file_size_bytes: int = 128 << 20
    stats_mode: str = "truncate(16)"
    thin: bool = False
    key_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Derive the key columns."""
        object.__setattr__(self, "key_names", tuple(self.schema.trimmed_primary_keys))

    def write(
        self,
        run: pa.Table,
        *,
        directory: str,
        file_names: Iterator[str],
        level: int = 0,
        source: int = FileSource.APPEND,
        threads: int = 1,
    ) -> list[DataFileMeta]:
        """Write one run: table columns plus `_SEQUENCE_NUMBER` and `_VALUE_KIND`.

        REQUIRES: rows sorted by key, one per key. The files returned follow each other in key
        order. Raises `DataError` when the store refuses; files already written are left over
        and harmless.
        """
        cuts = _cut(run, self.target_file_size_bytes)
        jobs = [(cut, f"{directory}/{next(file_names)}") for cut in cuts]

        def write_one(job: tuple[pa.Table, str]) -> DataFileMeta:
            return self.write_file(*job, level=level, source=source)

        if threads == 1 or len(jobs) == 1:
            return [write_one(job) for job in jobs]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(write_one, jobs))

    def write_together(
        self, rows: pa.Table, paths: Mapping[str, int], *, threads: int = 1
    ) -> list[DataFileMeta]:
        """Write small level-0 runs, one file each; else like `write`.

        `rows` has the runs one after the other, `paths` the name of each one's file and how many
        rows it has. Files are encoded in memory and stored many at a time: a store is waited for
        a few times instead of once for each file.
        """
        sizes: list[int] = []
        waiting: dict[str, bytes] = {}
        waiting_bytes = 0
        with ThreadPoolExecutor(threads) as pool:
            files = pool.map(self._encoded, _slices(self._physical(rows), paths.values()))
            for path, data in zip(paths, files, strict=True):
                sizes.append(len(data))
                waiting[path] = data
                waiting_bytes += len(data)
                if waiting_bytes > _TOGETHER_BYTES:
                    self.store.put_all(waiting)
                    waiting, waiting_bytes = {}, 0
        self.store.put_all(waiting)
        metas = self._describe(rows, paths, 0, FileSource.APPEND)
        return [replace(meta, file_size=size) for meta, size in zip(metas, sizes, strict=True)]

    def _encoded(self, physical: pa.Table) -> bytes:
        sink = pa.BufferOutputStream()
        _write_parquet(sink, physical, self._codec(physical, 0), self.zstd_level)
        data: bytes = sink.getvalue().to_pybytes()
        return data

    def write_file(
        self,
        rows: pa.Table,
        path: str,
        *,
        level: int = 0,
        source: int = FileSource.APPEND,
    ) -> DataFileMeta:
        """Write rows as one file, whatever its size; else like `write`."""
        # Arrow encodes a file with one core; the other one works out what describes it.
        with ThreadPoolExecutor(1) as pool:
            description = pool.submit(self._describe, rows, {path: rows.num_rows}, level, source)
            physical = self._physical(rows)
            codec = self._codec(physical, level)
            with self.store.open_output(path) as output:
                _write_parquet(output, physical, codec, self.zstd_level)
                size = int(output.tell())
            (meta,) = description.result()
            return replace(meta, file_size=size)

    def _codec(self, rows: pa.Table, level: int) -> str:
        if self.compression is not None:
            return self.compression
        return "lz4" if level == 0 and sliced_bytes(rows) < _SMALL_FILE_BYTES else "zstd"

    def _physical(self, rows: pa.Table) -> pa.Table:
        keys = () if self.thin else self.key_names
        names = [*keys, SEQUENCE_NUMBER, VALUE_KIND, *self.schema.names]
        return pa.Table.from_arrays(
            [rows.column(name) for name in names], schema=physical_schema(self.schema, self.thin)
        )

    def _describe(
        self, rows: pa.Table, paths: Mapping[str, int], level: int, source: int
    ) -> list[DataFileMeta]:
        """All that a manifest says of files but their sizes.

        `rows` has those of all files one after the other, `paths` how many are each one's.
        """
        lengths = list(paths.values())
        key_fields = self.schema.trimmed_primary_key_fields()
        keys = rows.select(self.key_names)
        key_types = [f.type for f in key_fields]
        lasts = np.cumsum(lengths) - 1
        firsts = lasts + 1 - np.array(lengths)
        min_keys, max_keys = (
            encode_rows([_whole(column) for column in keys.take(places).columns], key_types)
            for places in (firsts, lasts)
        )
        key_stats = collect_piece_key_stats(keys, lengths, key_fields)
        value_stats, columns = collect_piece_stats(
            rows, lengths, self.schema.fields, self.stats_mode
        )
        sequences = rows.column(SEQUENCE_NUMBER).to_numpy()
        retracts = pc.is_in(
            rows.column(VALUE_KIND), pa.array([RowKind.UPDATE_BEFORE, RowKind.DELETE], pa.int8())
        ).to_numpy()
        described: dict[str, Iterable[Any]] = {
            "file_name": [path.rsplit("/", 1)[-1] for path in paths],
            "row_count": lengths,
            "min_key": min_keys,
            "max_key": max_keys,
            "key_stats": key_stats,
            "value_stats": value_stats,
            "min_sequence_number": np.minimum.reduceat(sequences, firsts).tolist(),
            "max_sequence_number": np.maximum.reduceat(sequences, firsts).tolist(),
            "delete_row_count": np.add.reduceat(retracts, firsts, dtype=np.int64).tolist(),
        }
        made = partial(
            DataFileMeta,
            file_size=0,
            schema_id=self.schema.id,
            level=level,
            creation_time=_local_wall_clock_ms(),
            file_source=source,
            value_stats_cols=columns,
        )
        files = zip(*described.values(), strict=True)
        return [made(**dict(zip(described, file, strict=True))) for file in files]


def physical_schema(schema: TableSchema, thin: bool = False) -> pa.Schema:
    """The Arrow schema of a data file, field ids included, before INT96 is settled."""
    keys = [] if thin else schema.key_fields()
    arrow = schema.arrow_schema()
    return pa.schema(
        [
            *(
                _with_id(pa.field(f.name, f.type.to_arrow(), nullable=f.type.nullable), f.id)
                for f in keys
            ),
            _with_id(pa.field(SEQUENCE_NUMBER, pa.int64(), nullable=False), SEQUENCE_FIELD_ID),
            _with_id(pa.field(VALUE_KIND, pa.int8(), nullable=False), VALUE_KIND_FIELD_ID),
            *(
                _with_id(
                    arrow.field(f.name).with_type(_identified(f.type, f.id, 1)),
                    f.id,
                )
                for f in schema.fields
            ),
        ]
    )


Span = tuple[int, int | None]
"""Where some rows of a file begin, and how many they are; None stands for all that follow."""

WHOLE_FILE: Span = (0, None)


@dataclass(frozen=True)
class FileReader:
    """Reads rows of one data file in the shape of the current schema.

    `fields` are the table columns wanted; `file_schema` is the schema that the file was
    written with; `constants` override columns whose value the manifest knows (partition
    columns, a single sequence number, a kind that no row departs from).
    """

    store: Store
    path: str
    file_schema: TableSchema
    fields: tuple[Field, ...]
    system_columns: tuple[str, ...] = ()
    constants: tuple[tuple[str, pl.Series], ...] = ()
    dead_rows: VectorPlace | None = None
    """Where a deletion vector marks rows as dead, which are then left out."""

    def read(
        self, offset: int = 0, length: int | None = None, where: pl.Expr | None = None
    ) -> pl.DataFrame:
        """Rows `[offset, offset + length)` that fulfil `where`, in file order.

        Raises `DataError` naming the path when the file is missing, torn or not Parquet.
        """
        return self._collect(self.lazy(offset, length, where))

    def lazy(
        self, offset: int = 0, length: int | None = None, where: pl.Expr | None = None
    ) -> pl.LazyFrame:
        """The same as a plan; from local disk nothing is decoded yet."""
        with _naming_file(self.store, self.path):
            source = _open(self.store, self.path, numbered=self.dead_rows is not None)
            names = self._stored_names(source.schema)
            whole = offset == 0 and length is None and len(names) == len(source.schema)
            wanted = None if whole else partial(byte_ranges, names, offset, length)
            check_blocks(self.store, self.path, wanted)
            frame = source.rows(names, offset, length)
        if self.dead_rows is not None:
            frame = frame.filter(~pl.col(_POSITION).is_in(self._dead_positions.implode()))
        # Not `select` alone: a frame of nothing but constants would have one row.
        names = [*(f.name for f in self.fields), *self.system_columns]
        frame = frame.with_columns(self._expressions(source.schema)).select(names)
        return frame if where is None else frame.filter(where)

    def spans(self, rows_max: int) -> list[Span]:
        """Spans that cut the file into parts of at most `rows_max` rows.

        Row groups stay whole where they fit, because a part of one costs as much as all of it.
        Reads the footer; raises like `read`.
        """
        with _naming_file(self.store, self.path), self.store.open_input(self.path) as file:
            check_footer(file)
            footer = pq.read_metadata(file)
        return _spans(
            [footer.row_group(i).num_rows for i in range(footer.num_row_groups)], rows_max
        )

    @cached_property
    def _dead_positions(self) -> pl.Series:
        assert self.dead_rows is not None
        return pl.Series(dead_positions(self.store, self.dead_rows), dtype=pl.UInt32)

    def _stored_names(self, stored: pl.Schema) -> list[str]:
        """The columns of the file that the expressions look at."""
        constants = dict(self.constants)
        old_names = {f.id: f.name for f in self.file_schema.fields}
        wanted = [old_names.get(f.id, "") for f in self.fields if f.name not in constants]
        system = [name for name in self.system_columns if name not in constants]
        return [name for name in (*wanted, *system) if name in stored]

    def _collect(self, frame: pl.LazyFrame) -> pl.DataFrame:
        with _naming_file(self.store, self.path):
            return frame.collect()

    def _expressions(self, stored: pl.Schema) -> list[pl.Expr]:
        constants = dict(self.constants)
        old_fields = {f.id: f for f in self.file_schema.fields}
        expressions = []
        for f in self.fields:
            if f.name in constants:
                expressions.append(_literal(constants[f.name]).alias(f.name))
                continue
            expressions.append(_column(f, old_fields.get(f.id), stored))
        for name in self.system_columns:
            if name in constants:
                expressions.append(_literal(constants[name]).alias(name))
            else:
                dtype = pl.Int64 if name == SEQUENCE_NUMBER else pl.Int8
                expressions.append(pl.col(name).cast(dtype))
        return expressions


def read_together(readers: Sequence[FileReader], where: pl.Expr | None = None) -> pl.DataFrame:
    """The rows of several files that fulfil `where`, file by file, as `FileReader.read` gives them.

    Takes far less time for small files than one after the other.
    """
    frames = [reader.lazy(where=where) for reader in readers]
    try:
        return pl.concat(frames).collect().rechunk()  # whoever goes on has no small chunks
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        # One of them is torn: read alone, it is named.
        return pl.concat([reader.read(where=where) for reader in readers])


def _spans(group_rows: Sequence[int], rows_max: int) -> list[Span]:
    spans: list[Span] = []
    start = length = 0
    for rows in group_rows:
        if length and length + rows > rows_max:
            spans.append((start, length))
            start, length = start + length, 0
        length += rows
        while length > rows_max:
            spans.append((start, rows_max))
            start, length = start + rows_max, length - rows_max
    return [*spans, (start, length)] if length else spans


_POSITION = scratch("position")


@dataclass(frozen=True)
class _MappedFile:
    """A large file on local disk, which Polars maps and reads with all cores."""

    frame: pl.LazyFrame
    schema: pl.Schema

    def rows(self, names: list[str], offset: int, length: int | None) -> pl.LazyFrame:
        whole = offset == 0 and length is None
        return self.frame if whole else self.frame.slice(offset, length)


@dataclass(frozen=True)
class _FetchedFile:
    """A file in an object store or a small one: the column chunks of the wanted rows are read."""

    file: pq.ParquetFile
    schema: pl.Schema
    numbered: bool

    def rows(self, names: list[str], offset: int, length: int | None) -> pl.LazyFrame:
        metadata = self.file.metadata
        stop = metadata.num_rows if length is None else min(offset + length, metadata.num_rows)
        groups: list[int] = []
        first_row, start = 0, 0
        for group in range(metadata.num_row_groups):
            end = start + metadata.row_group(group).num_rows
            if start < stop and end > offset:
                first_row = start if not groups else first_row
                groups.append(group)
            start = end
        table = self.file.read_row_groups(groups, columns=names or self.schema.names()[:1])
        frame = from_arrow(table.slice(offset - first_row, stop - offset))
        return (frame.with_row_index(_POSITION, offset) if self.numbered else frame).lazy()


def _open(store: Store, path: str, *, numbered: bool) -> _MappedFile | _FetchedFile:
    if not path.endswith(".parquet"):
        raise UnsupportedError(
            f"{store.uri_of(path)}: only Parquet data files can be read; this one was written "
            f"by another engine. Rewrite it there with '{FILE_FORMAT}' = 'parquet'"
        )
    local = store.local_path(path)
    if local is not None and local.stat().st_size >= _LAZY_FILE_BYTES_MIN:
        # A row index keeps Polars from skipping row groups, so only deletion vectors get one.
        frame = pl.scan_parquet(
            local,
            glob=False,
            hive_partitioning=False,
            row_index_name=_POSITION if numbered else None,
        )
        return _MappedFile(frame, frame.collect_schema())
    source = store.open_input(path)
    file = pq.ParquetFile(source, pre_buffer=local is None, page_checksum_verification=True)
    # A footer's metadata has checksums, so that no two files share it.
    return _FetchedFile(file, _stored_schema(file.schema_arrow.remove_metadata()), numbered)


@contextmanager
def _naming_file(store: Store, path: str) -> Iterator[None]:
    """A block in which a file that cannot be read is a `DataError` that names it."""
    try:
        yield
    except KeytideError:
        raise
    except (OSError, UnicodeError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise _unreadable(store, path, error) from error
    except BaseException as error:
        if isinstance(error, pl.exceptions.PanicException):
            raise _unreadable(store, path, error) from error
        raise


def _unreadable(store: Store, path: str, error: BaseException) -> DataError:
    uri = store.uri_of(path)
    if not store.exists(path):
        return DataError(
            f"data file {uri} is missing although a snapshot names it; restore it, or read an "
            f"older snapshot. Other partitions stay readable"
        )
    return DataError(
        f"data file {uri} is torn or not Parquet ({error}); restore it, or read an older "
        f"snapshot. Other partitions stay readable"
    )


def _column(new: Field, old: Field | None, stored: pl.Schema) -> pl.Expr:
    target = _polars_type(new)
    if old is None or old.name not in stored:
        return pl.lit(None, dtype=target).alias(new.name)
    column = pl.col(old.name)
    mapped = _evolve(column, old.type, new.type)
    if mapped is not column or stored[old.name] != target:
        mapped = mapped.cast(target)
    return mapped.alias(new.name)


def _literal(value: pl.Series) -> pl.Expr:
    """The value of a series of one: behind a series, Polars would not filter while it reads."""
    if value.dtype.is_temporal():  # Python's times have no nanoseconds
        return pl.lit(value.to_physical()[0]).cast(value.dtype)
    return pl.lit(value[0], dtype=value.dtype)


@lru_cache(maxsize=256)
def _stored_schema(schema: pa.Schema) -> pl.Schema:
    return from_arrow(schema.empty_table()).schema


@lru_cache(maxsize=4096)
def _polars_type(field: Field) -> pl.DataType:
    return polars_schema([field])[field.name]


def _evolve(column: pl.Expr, old: DataType, new: DataType) -> pl.Expr:
    """Pair members of nested rows by field id; scalar casts are left to the caller."""
    if _has_same_members(old, new):
        return column
    if isinstance(old, RowType) and isinstance(new, RowType):
        by_id = {f.id: f for f in old.fields}
        members = [
            _evolve(column.struct.field(by_id[f.id].name), by_id[f.id].type, f.type).alias(f.name)
            if f.id in by_id
            else pl.lit(None, dtype=polars_schema([f])[f.name]).alias(f.name)
            for f in new.fields
        ]
        return pl.when(column.is_not_null()).then(pl.struct(members))
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return column.list.eval(_evolve(pl.element(), old.element, new.element))
    if isinstance(old, MapType) and isinstance(new, MapType):
        key, value = pl.element().struct.field("key"), pl.element().struct.field("value")
        entry = pl.struct(
            _evolve(key, old.key, new.key).alias("key"),
            _evolve(value, old.value, new.value).alias("value"),
        )
        entries = column.map.entries() if _HAS_MAPS else column
        return entries.list.eval(entry)
    return column


# Before it had maps, Polars kept them as lists of their entries.
_HAS_MAPS = hasattr(pl, "Map")


def _has_same_members(old: DataType, new: DataType) -> bool:
    """Whether nested rows have the same members under the same names, at every depth."""
    if isinstance(old, RowType) and isinstance(new, RowType):
        return [(f.id, f.name) for f in old.fields] == [(f.id, f.name) for f in new.fields] and all(
            _has_same_members(was.type, f.type)
            for was, f in zip(old.fields, new.fields, strict=True)
        )
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return _has_same_members(old.element, new.element)
    if isinstance(old, MapType) and isinstance(new, MapType):
        return _has_same_members(old.key, new.key) and _has_same_members(old.value, new.value)
    return True


# -- writing ---------------------------------------------------------------------------------


def _write_parquet(output: Any, rows: pa.Table, codec: str, zstd_level: int) -> None:
    nanoseconds = any(int96.has_nanoseconds(t) for t in rows.schema.types)
    if nanoseconds:
        rows = _with_int96_bytes(rows)
    row_bytes = max(1, sliced_bytes(rows) // max(1, rows.num_rows))
    group_rows = min(max(_ROW_GROUP_BYTES // row_bytes, _ROW_GROUP_ROWS_MIN), _ROW_GROUP_ROWS_MAX)
    dictionary = dictionary_columns(rows)
    compression = codecs(rows, codec, dictionary)
    zstd_leaves = [path for path, leaf_codec in compression.items() if leaf_codec == "zstd"]
    sink = BlockSink(output)
    with pq.ParquetWriter(
        sink,
        rows.schema,
        compression=compression,
        compression_level=dict.fromkeys(zstd_leaves, zstd_level) or None,
        data_page_version="1.0",
        version="2.6",
        store_decimal_as_integer=True,
        write_time_adjusted_to_utc=True,
        use_dictionary=dictionary,
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(rows, row_group_size=group_rows)
        writer.add_key_value_metadata({BLOCKS_KEY: sink.end_of_blocks(), SEAL_KEY: UNSEALED})
    footer = bytes(sink.rest or b"")
    output.write(FOOTER_SEAL.set(_with_int96(footer) if nanoseconds else footer))


def _with_int96_bytes(rows: pa.Table) -> pa.Table:
    columns = [int96.encode_column(column) for column in rows.columns]
    fields = [f.with_type(int96.physical_type(f.type)) for f in rows.schema]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _with_int96(footer: bytes) -> bytes:
    marked = int96.mark_footer(footer[:-8])
    return marked + len(marked).to_bytes(4, "little") + footer[-4:]


def _cut(run: pa.Table, target_file_size_bytes: int) -> list[pa.Table]:
    estimate = sliced_bytes(run) * _COMPRESSION_GUESS
    pieces = max(1, round(estimate / target_file_size_bytes), run.num_rows // _PARALLEL_ROWS)
    rows = -(-run.num_rows // pieces) if run.num_rows else 1
    return [run.slice(start, rows) for start in range(0, run.num_rows, rows)]


def _slices(rows: pa.Table, lengths: Iterable[int]) -> Iterator[pa.Table]:
    start = 0
    for length in lengths:
        yield rows.slice(start, length)
        start += length


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _local_wall_clock_ms() -> int:
    # The format stores the writer's local time as if it were UTC.
    local = datetime.fromtimestamp(time.time()).replace(tzinfo=timezone.utc)
    return int(local.timestamp() * 1000)


def _with_id(field: pa.Field, field_id: int) -> pa.Field:
    return field.with_metadata({b"PARQUET:field_id": str(field_id).encode()})


def _identified(data_type: DataType, field_id: int, depth: int) -> pa.DataType:
    """The Arrow type with field ids on nested nodes (Paimon format, key-value columns)."""
    node = 1024 * field_id + depth
    if isinstance(data_type, ArrayType):
        element = pa.field(
            "element",
            _identified(data_type.element, field_id, depth + 1),
            nullable=data_type.element.nullable,
        )
        return pa.list_(_with_id(element, 536_870_911 + node))
    if isinstance(data_type, MapType | MultisetType):
        arrow = data_type.to_arrow()
        key, value = (
            (data_type.key, data_type.value)
            if isinstance(data_type, MapType)
            else (data_type.element, None)
        )
        key_field = pa.field("key", _identified(key, field_id, depth + 1), nullable=False)
        value_type = arrow.item_type if value is None else _identified(value, field_id, depth + 1)
        value_field = pa.field("value", value_type, nullable=arrow.item_field.nullable)
        return pa.map_(
            _with_id(key_field, 536_870_911 - node), _with_id(value_field, 536_870_911 + node)
        )
    if isinstance(data_type, RowType):
        # Members are optional even where they are NOT NULL: below a NULL row they have no value.
        return pa.struct(
            [
                _with_id(pa.field(f.name, _identified(f.type, f.id, 1)), f.id)
                for f in data_type.fields
            ]
        )
    return data_type.to_arrow()
