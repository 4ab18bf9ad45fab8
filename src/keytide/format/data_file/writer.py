"""The writer of data files: sorted rows as files, with their metadata for the manifest.

A run is cut into files at wide gaps in its keys. Spark packs the ends of several input files into
one task. If these files are sorted, the run of the task has few keys, which are far apart. As one
file, it would overlap with everything between them, and readers would have to merge that. As
several files, it overlaps with nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import begin, side_by_side
from keytide.base.row_kind import RowKind
from keytide.format.binary_row import EMPTY_ROW, encode_rows
from keytide.format.data_file.file_format import (
    SEQUENCE_NUMBER,
    VALUE_KIND,
    FileFilters,
    physical_schema,
)
from keytide.format.data_file.reader import FORMATS
from keytide.format.manifest_entry import DataFileMeta, FileSource
from keytide.format.parquet_encoding import BALANCED
from keytide.format.schema import TableSchema
from keytide.format.stats import collect_piece_stats
from keytide.store import Store

# -- wide gaps in the keys of a run ----------------------------------------------------------------


# A gap is wide if it is at least this part of the range of keys, so a run has at most three.
_WIDE = 1 / 4
# Files of fewer rows would cost readers more than a merge.
_ROWS_MIN = 10_000
DIVISIBLE_ROWS = 2 * _ROWS_MIN
"""Runs with fewer rows are never cut."""


def lengths_between_gaps(keys: pa.ChunkedArray) -> list[int]:
    """The numbers of rows of the parts of a run, which is cut where the next key is far away.

    Only integers, dates and timestamps have a distance here. Every part has many rows. REQUIRES:
    `keys` are the first key column of the run, in ascending order and without nulls.
    """
    count = len(keys)
    type_ = keys.type
    if count < DIVISIBLE_ROWS or not (
        pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_)
    ):
        return [count]
    # Distances of 64-bit numbers can exceed 64 bits.
    numbers = pc.cast(keys, pa.int64()).to_numpy().astype(np.float64)
    wide = np.flatnonzero(np.diff(numbers) > (numbers[-1] - numbers[0]) * _WIDE) + 1
    cuts = [0]
    for cut in wide.tolist():
        if min(cut - cuts[-1], count - cut) >= _ROWS_MIN:
            cuts.append(cut)
    return [end - start for start, end in itertools.pairwise([*cuts, count])]


# -- the writer ------------------------------------------------------------------------------------


# Zstd at level 1 roughly halves Arrow's bytes. Only the cuts between files depend on this.
_COMPRESSION_GUESS = 0.5
# Below this size in Arrow, the latency of an upsert matters more than the file size.
_SMALL_FILE_BYTES = 32 << 20
# The maximum memory of files that are written together, before they are stored.
_TOGETHER_BYTES = 32 << 20
# From this number of rows on, a run is written as several files in parallel.
_PARALLEL_ROWS = 2_000_000

_Name = TypeVar("_Name")


@dataclass(frozen=True)
class RunWriter:
    """Writes sorted runs of one table to the folder of a bucket.

    Runs in the driver or on an executor. Files are durable when `write` returns, but belong to the
    table only after a commit references them.
    """

    store: Store
    schema: TableSchema
    file_format: str = "parquet"
    compression: str | None = None
    """None: the size decides. lz4 for small files that writes wait for, otherwise `BALANCED`."""
    awaited: bool = False
    """Whether writes wait for files of every level, not only of level 0."""
    zstd_level: int = 1
    dictionaries: bool = True
    """Whether columns of Parquet files may have dictionaries."""
    target_file_size_bytes: int = 128 << 20
    stats_mode: str = "truncate(16)"
    thin: bool = False
    filters: FileFilters = field(default_factory=FileFilters)
    notes: Mapping[str, str] = field(default_factory=dict)
    """Notes that are stored in the metadata of each file, only for Keytide."""
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

        REQUIRES: rows sorted by key, one per key. Without a key, in any order. The returned files
        are in the order of the rows. Raises `DataError` if the store fails. Files written before
        that are left over and harmless.
        """
        # Only on level 0 other runs may have files for a gap.
        lengths = self.lengths_apart(run, {0: run.num_rows})[0] if level == 0 else [run.num_rows]
        parts = _slices(run, lengths)
        cuts = [cut for part in parts for cut in _cut(part, self.target_file_size_bytes)]
        jobs = [(cut, f"{directory}/{next(file_names)}") for cut in cuts]

        write = partial(self.write_file, level=level, source=source)
        return side_by_side([partial(write, *job) for job in jobs], threads)

    def lengths_apart(self, rows: pa.Table, lengths: Mapping[_Name, int]) -> dict[_Name, list[int]]:
        """The numbers of rows of the files for each level-0 run, cut at wide gaps between its keys.

        `rows` has the runs one after the other, and `lengths` the number of rows of each.
        """
        if not self.key_names or max(lengths.values(), default=0) < DIVISIBLE_ROWS:
            return {name: [length] for name, length in lengths.items()}
        keys, ends = rows.column(self.key_names[0]), accumulate(lengths.values())
        return {
            name: lengths_between_gaps(keys.slice(end - length, length))
            for (name, length), end in zip(lengths.items(), ends, strict=True)
        }

    def write_together(
        self, rows: pa.Table, paths: Mapping[str, int], *, threads: int = 1
    ) -> list[DataFileMeta]:
        """Write small level-0 runs, one file each. Otherwise like `write`.

        `rows` has the runs one after the other, and `paths` the file name and the number of rows of
        each. Files are encoded in memory and stored many at a time, so there are a few waits for
        the store instead of one for each file.
        """
        # The metadata of the files are computed while they are encoded and stored.
        description = begin(partial(self._describe, rows, paths, 0, FileSource.APPEND))
        try:
            members = self._stored_together(rows, paths, threads)
        finally:
            metas = description.result()
        return [replace(meta, **own) for meta, own in zip(metas, members, strict=True)]

    def _stored_together(
        self, rows: pa.Table, paths: Mapping[str, int], threads: int
    ) -> list[dict[str, Any]]:
        """Store the files. The result says how each is stored, as members of the manifest."""
        members: list[dict[str, Any]] = []
        physical = self._physical(rows)
        pieces = zip(
            paths, *(_slices(each, paths.values()) for each in (rows, physical)), strict=True
        )
        for some in _batches(pieces):
            encode = [partial(self._encoded, stored) for _, _, stored in some]
            waiting: dict[str, bytes] = {}
            for data, (path, piece, _) in zip(side_by_side(encode, threads), some, strict=True):
                index = self.filters.of_file(piece, self.schema, path)
                members.append({"file_size": len(data), **index.members})
                waiting |= {path: data, **index.files}
            self.store.put_all(waiting)
        return members

    def _encoded(self, physical: pa.Table) -> bytes:
        sink = pa.BufferOutputStream()
        self._encoding(physical, 0)(sink)
        data: bytes = sink.getvalue().to_pybytes()
        return data

    def write_file(
        self, rows: pa.Table, path: str, *, level: int = 0, source: int = FileSource.APPEND
    ) -> DataFileMeta:
        """Write rows as one file, whatever its size. Otherwise like `write`."""
        # Arrow encodes a file with one core. Another one computes its metadata.
        write_to = self._encoding(self._physical(rows), level)
        names = {path: rows.num_rows}
        description = begin(partial(self._describe, rows, names, level, source))
        with self.store.open_output(path) as output:
            write_to(output)
            size = int(output.tell())
        index = self.filters.of_file(rows, self.schema, path)
        if index.files:
            self.store.put_all(index.files)
        (meta,) = description.result()
        return replace(meta, file_size=size, **index.members)

    def _encoding(self, physical: pa.Table, level: int) -> Callable[[Any], None]:
        """A function that writes the rows of a file to an output."""
        write, codec = FORMATS[self.file_format].write, self.compression
        if codec is None:
            is_awaited = level == 0 or self.awaited
            is_small = is_awaited and _sliced_bytes(physical) < _SMALL_FILE_BYTES
            codec = "lz4" if is_small else BALANCED
        return lambda output: write(
            output, physical, codec, self.zstd_level, self.notes, dictionaries=self.dictionaries
        )

    def _physical(self, rows: pa.Table) -> pa.Table:
        keys = () if self.thin else self.key_names
        system = (SEQUENCE_NUMBER, VALUE_KIND) if self.key_names else ()
        names = [*keys, *system, *self.schema.names]
        return pa.Table.from_arrays(
            [rows.column(name) for name in names], schema=physical_schema(self.schema, self.thin)
        )

    def _describe(
        self, rows: pa.Table, paths: Mapping[str, int], level: int, source: int
    ) -> list[DataFileMeta]:
        """All metadata of files for the manifest, except their sizes.

        `rows` has the rows of all files one after the other, and `paths` the number of rows of
        each.
        """
        lengths = list(paths.values())
        key_fields = self.schema.trimmed_primary_key_fields()
        keys = rows.select(self.key_names)
        key_types = [f.type for f in key_fields]
        lasts = np.cumsum(lengths) - 1
        firsts = lasts + 1 - np.array(lengths)
        # `take` first joins the chunks of whole columns, which is unnecessary for a large file.
        ends = [
            list(map(_whole, (keys.slice(at[0], 1) if len(at) == 1 else keys.take(at)).columns))
            for at in (firsts, lasts)
        ]
        stats = collect_piece_stats(rows, lengths, key_fields, self.schema.fields, self.stats_mode)
        min_keys, max_keys = (
            encode_rows(columns, key_types) if key_types else [EMPTY_ROW] * len(lengths)
            for columns in ends
        )
        lowest, highest = _bounds(rows.column(SEQUENCE_NUMBER), firsts)
        retracts = pc.is_in(
            rows.column(VALUE_KIND), pa.array([RowKind.UPDATE_BEFORE, RowKind.DELETE], pa.int8())
        ).to_numpy()
        described: dict[str, Iterable[Any]] = {
            "file_name": [path.rsplit("/", 1)[-1] for path in paths],
            "row_count": lengths,
            "min_key": min_keys,
            "max_key": max_keys,
            "key_stats": stats.keys,
            "value_stats": stats.values,
            "min_sequence_number": lowest,
            "max_sequence_number": highest,
            "delete_row_count": [
                int(np.count_nonzero(retracts[first : last + 1]))
                for first, last in zip(firsts, lasts, strict=True)
            ],
        }
        made = partial(
            DataFileMeta,
            file_size=0,
            schema_id=self.schema.id,
            level=level,
            creation_time=local_wall_clock_ms(),
            file_source=source,
            value_stats_cols=stats.columns,
        )
        files = zip(*described.values(), strict=True)
        return [made(**dict(zip(described, file, strict=True))) for file in files]


def _cut(run: pa.Table, target_file_size_bytes: int) -> list[pa.Table]:
    estimate = _sliced_bytes(run) * _COMPRESSION_GUESS
    # A run with very many rows is cut into more pieces than its size requires: each piece has a
    # thread.
    pieces = max(1, round(estimate / target_file_size_bytes), run.num_rows // _PARALLEL_ROWS)
    rows = -(-run.num_rows // pieces) if run.num_rows else 1
    return [run.slice(start, rows) for start in range(0, run.num_rows, rows)]


def _slices(rows: pa.Table, lengths: Iterable[int]) -> Iterator[pa.Table]:
    start = 0
    for length in lengths:
        yield rows.slice(start, length)
        start += length


_Piece: TypeAlias = "tuple[str, pa.Table, pa.Table]"
"""The name of a file, its rows, and the rows in stored form."""


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces in groups of about as many bytes as may be in memory before they are stored."""
    batch: list[_Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += _sliced_bytes(piece[2])
        if size > _TOGETHER_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _sliced_bytes(table: pa.Table) -> int:
    """The bytes of the rows that a (sliced) table shows, not of the buffers that it references."""
    return int(table.get_total_buffer_size()) if table.num_rows == 0 else int(table.nbytes)


def _bounds(numbers: pa.ChunkedArray, firsts: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """The smallest and the largest number of each piece, given the first row of each."""
    if len(firsts) == 1:  # there may be as many rows as in the largest file: avoid a copy
        found = pc.min_max(numbers)
        return [found["min"].as_py()], [found["max"].as_py()]
    values = numbers.to_numpy()
    lowest, highest = (ends.reduceat(values, firsts) for ends in (np.minimum, np.maximum))
    return lowest.tolist(), highest.tolist()


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def local_wall_clock_ms() -> int:
    """The creation time of a file: the writer's local time, as if it were UTC."""
    local = datetime.fromtimestamp(time.time()).replace(tzinfo=timezone.utc)
    return int(local.timestamp() * 1000)
