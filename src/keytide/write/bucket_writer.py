"""Writers of buckets: rows, split by partition and bucket, usually as one sorted run per bucket.

A `BucketWriter` is a picklable value: the same code writes in the driver and on executors. It
returns the entries to commit and, if the table requires it, those of its changelog. Several
versions of a key in one write are merged before they are stored (rule R24 of docs/semantics.md). If
one row cannot represent them, they are stored in layers.

As long as they fit in memory, rows are held, split by bucket. Then they are sorted and become a
piece. If there are several pieces, they are on local disk, and the pieces of a bucket are merged by
key ranges. Pieces that do not overlap, such as those of sorted files, are concatenated without a
merge. Rows that arrive in key order need none of this, see `InOrder`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import IO, Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.text import held_by_python
from keytide.errors import InvalidError
from keytide.format import paths
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.data_file import (
    SEQUENCE_NUMBER,
    VALUE_KIND,
    ColumnFilter,
    FileFilters,
    FileReader,
    RunWriter,
)
from keytide.format.manifest_entry import DataFileMeta, FileKind, ManifestEntry
from keytide.format.paths import index_name
from keytide.merge.explanation import shown
from keytide.merge.layers import layers
from keytide.merge.order import IS_ADD, MergeOrder, padded_sequence
from keytide.merge.windows import Batch, key_windows
from keytide.options import TableOptions, keys
from keytide.read.sections import key_ranks
from keytide.snapshot.live_files import BucketId, LiveFiles, number_after
from keytide.snapshot.state import TableView
from keytide.store.interface import disk_errors
from keytide.types import AtomicType, Field, arrow_schema
from keytide.write.input_rows import Rows
from keytide.write.layout import BUCKET_NUMBER, BucketBatch, Numbers, Placing

# -- writers ---------------------------------------------------------------------------------------


# With fewer rows, threads cost more than they save.
_SMALL_ROWS = 200_000


@dataclass(frozen=True)
class SequenceBase:
    """The first sequence numbers of one write.

    All rows of a write get one number per bucket, which is one above all numbers in the bucket. So
    the order of commits equals the order of numbers. If a write needs several layers, each layer
    has the number above that of the layer below. `offset` separates the tasks of one write, in the
    order of their rows.
    """

    highest: Mapping[BucketId, int]
    row_count: int = 0
    """The number of rows written before, from which the counters of auto-padding continue."""
    offset: int = 0

    @classmethod
    def after(cls, live: LiveFiles) -> SequenceBase:
        """Numbers that follow those of the live files."""
        highest = {bucket: state.max_sequence_number for bucket, state in live.buckets.items()}
        count = live.snapshot.total_record_count if live.snapshot is not None else 0
        return cls(highest, count)

    def first(self, bucket: BucketId) -> int:
        """The number for a bucket's rows. Raises `DataError` if there are no numbers left."""
        return number_after(self.highest.get(bucket, -1), bucket) + self.offset

    def advanced(self, entries: Iterable[ManifestEntry], row_count: int) -> SequenceBase:
        """The next numbers of the same task after `row_count` rows were written as `entries`."""
        counts = (
            entry.file.max_sequence_number - self.first((entry.partition, entry.bucket)) + 1
            for entry in entries
        )
        return replace(
            self,
            offset=self.offset + max(counts, default=1),
            row_count=self.row_count + row_count,
        )


Seen: TypeAlias = "Callable[[TableView, ManifestEntry, pa.Table], None]"


@dataclass(frozen=True)
class WrittenFiles:
    """The files that a write created, as entries to commit: data files and changelog files."""

    data: tuple[ManifestEntry, ...] = ()
    changelog: tuple[ManifestEntry, ...] = ()


@dataclass(frozen=True)
class BucketWriter:
    """Writes rows of one table into sorted level-0 files.

    `total_buckets` returns the number of buckets of a partition. With `has_changelog`, the rows are
    also stored as they arrived, with all their kinds.
    """

    view: TableView
    total_buckets: Callable[[bytes], int]
    has_changelog: bool = False
    seen: Seen | None = None
    """Called with the entry of each run that is stored as one file, and with its rows."""

    def write(
        self, batches: Sequence[BucketBatch], base: SequenceBase, *, threads: int = 1
    ) -> WrittenFiles:
        """Write rows and return the entries to commit.

        The rows of a key are merged first. Files are durable on return, but do not belong to the
        table until they are committed. If writing fails or is stopped, they are deleted. Raises
        `DataError` if the store fails. REQUIRES: the table's engine can merge the rows.
        """
        files = NewFiles(self.view)
        rows = sum(batch.rows.height for batch in batches)
        try:
            if threads == 1 or len(batches) < 2 or rows < _SMALL_ROWS:
                parts = [self._write_batch(batch, base, files, threads) for batch in batches]
            else:
                with ThreadPoolExecutor(threads) as pool:
                    write = partial(self._write_batch, base=base, files=files, threads=1)
                    parts = list(pool.map(write, batches))
        except BaseException:
            self.view.store.discard(files.names)
            raise
        return WrittenFiles(
            tuple(entry for part in parts for entry in part.data),
            tuple(entry for part in parts for entry in part.changelog),
        )

    def _write_batch(
        self, batch: BucketBatch, base: SequenceBase, files: NewFiles, threads: int
    ) -> WrittenFiles:
        # Each batch needs its own names, because threads write batches.
        names = self.view.new_names()

        # The rows of all buckets with their numbers, in merge order. Without a key, in the given
        # order, each with its own number, as the format counts rows.
        rows, keeps_versions = batch.rows, self.view.kind.keeps_versions
        paddings = self._options.sequence_auto_padding if keeps_versions else ()
        if paddings:
            (name,) = self._options.sequence_field[:1]
            counter = pl.Series(_counted_from(base.row_count, batch))
            is_add = rows.select(IS_ADD.alias("add"))["add"]
            numbers = padded_sequence(rows[name], is_add, counter, paddings)
        else:
            firsts = np.array([base.first(bucket) for bucket in batch.buckets])
            numbers = pl.Series(
                np.repeat(firsts, batch.lengths) if keeps_versions else _counted_from(firsts, batch)
            )
        places = np.repeat(np.arange(len(batch.buckets)), batch.lengths)
        versions = rows.hstack([numbers.alias(SEQUENCE_NUMBER), pl.Series(BUCKET_NUMBER, places)])
        if keeps_versions:
            # Padded numbers come from the rows, so they do not follow the order of arrival.
            versions = self._order_in(batch).sort(versions, arrival_decides=not paddings)
        writer = run_writer(self.view)
        names_of = files.of(names, self._options.data_file_prefix, writer.file_format)
        data = [
            entry
            for layer in self._layers(batch, versions)
            for entry in self._write_layer(batch, layer, writer, names_of, threads)
        ]
        if not self.has_changelog:
            return WrittenFiles(tuple(data))
        writer = changelog_writer(self.view)
        names_of = files.of(names, self._options.changelog_file_prefix, writer.file_format)
        changelog = self._write_layer(batch, versions, writer, names_of, threads)
        return WrittenFiles(tuple(data), tuple(changelog))

    @property
    def _options(self) -> TableOptions:
        return self.view.options

    def _write_layer(
        self,
        batch: BucketBatch,
        layer: pl.DataFrame,
        writer: RunWriter,
        names_of: NamesOf,
        threads: int,
    ) -> list[ManifestEntry]:
        # The runs of the buckets, one after the other, and the number of rows in each bucket.
        places, lengths = np.unique(layer[BUCKET_NUMBER].to_numpy(), return_counts=True)
        left = zip(places.tolist(), lengths.tolist(), strict=True)
        runs, buckets = (
            to_arrow(layer, stored_schema(self.view)),
            {batch.buckets[place]: length for place, length in left},
        )
        if len(buckets) == 1:
            (bucket,) = buckets
            metas = writer.write(
                runs,
                directory=self.view.bucket_directory(*bucket),
                file_names=names_of(bucket),
                threads=threads,
            )
            made = [added_file(bucket, self.total_buckets(bucket[0]), meta) for meta in metas]
            if self.seen is not None and len(made) == 1:
                self.seen(self.view, made[0], runs)
            return made
        apart = writer.lengths_apart(runs, buckets)
        pieces = [(bucket, length) for bucket, lengths in apart.items() for length in lengths]
        files = {
            paths.join(self.view.bucket_directory(*bucket), next(names_of(bucket))): length
            for bucket, length in pieces
        }
        metas = writer.write_together(runs, files, threads=threads) if files else []
        return [
            added_file(bucket, self.total_buckets(bucket[0]), meta)
            for (bucket, _), meta in zip(pieces, metas, strict=True)
        ]

    def _order_in(self, batch: BucketBatch) -> MergeOrder:
        order = self.view.order
        if len(batch.buckets) == 1:
            return order
        return replace(order, key=(BUCKET_NUMBER, *order.key))

    def _layers(self, batch: BucketBatch, versions: pl.DataFrame) -> list[pl.DataFrame]:
        """The layers of all buckets, usually one.

        Each layer has higher numbers than those below.
        """
        if not self.view.kind.keeps_versions:
            return [versions]
        order = self._order_in(batch)
        with self.view.naming_table():
            found = layers(versions, self.view.engine_in(order), order.key)
        if self._options.sequence_auto_padding:
            return found  # the rows have their own numbers
        return [
            layer.with_columns(pl.col(SEQUENCE_NUMBER) + place) if place else layer
            for place, layer in enumerate(found)
        ]


def _counted_from(firsts: Numbers | int, batch: BucketBatch) -> Numbers:
    """Numbers that count the rows of each bucket, starting at its first number or at one number for
    all.
    """
    starts = np.cumsum(batch.lengths) - batch.lengths
    return np.repeat(firsts - starts, batch.lengths) + np.arange(batch.rows.height)


def restamp(view: TableView, entry: ManifestEntry, sequence_number: int) -> ManifestEntry:
    """Rewrite the file of an entry under a new name, with another sequence number in every row.

    This is needed if other writers committed to the bucket in the meantime. On a tie the later
    commit wins, and only the numbers tell all engines which commit is later.
    """
    fields = view.schema.fields
    reader = FileReader(
        view.store, view.file_path(entry), view.schema, fields,
        system_columns=(SEQUENCE_NUMBER, VALUE_KIND),
        constants=((SEQUENCE_NUMBER, pl.Series([sequence_number], dtype=pl.Int64)),),
        kept_bytes_max=view.options.lookup_cache_bytes_max,
    )  # fmt: skip
    directory = view.file_path(entry).rsplit("/", 1)[0]
    writer = run_writer(view)
    name = view.new_names().data_file(writer.file_format, view.options.data_file_prefix)
    rows = to_arrow(reader.read(), stored_schema(view))
    meta = writer.write_file(rows, f"{directory}/{name}")
    return replace(entry, file=meta)


_BIGINT = AtomicType("BIGINT", nullable=False)
_TINYINT = AtomicType("TINYINT", nullable=False)


def stored_schema(view: TableView) -> pa.Schema:
    """The columns of rows to write: those of the table, their sequence number and their kind."""
    numbered = Field(-1, SEQUENCE_NUMBER, _BIGINT), Field(-1, VALUE_KIND, _TINYINT)
    return arrow_schema((*view.schema.fields, *numbered))


def run_writer(view: TableView, level: int = 0) -> RunWriter:
    """The writer of sorted runs of a level, configured by the table's options."""
    options = view.options
    return RunWriter(
        store=view.store,
        schema=view.schema,
        file_format=format_of_level(view, level),
        compression=options.file_compression,
        zstd_level=options.file_compression_zstd_level,
        dictionaries=options.parquet_dictionaries,
        target_file_size_bytes=options.target_file_size_bytes,
        stats_mode=options.stats_mode,
        thin=options.thin_mode,
        filters=file_filters(options),
    )


def format_of_level(view: TableView, level: int) -> str:
    """The file format of new data files of a level."""
    options = view.options
    if not view.kind.keeps_versions:
        return options.file_format  # an append table has no levels
    return dict(options.file_formats_by_level).get(level, options.file_format)


def changelog_writer(view: TableView) -> RunWriter:
    """The writer of changelog files, configured by the table's options."""
    options = view.options
    return replace(
        run_writer(view),
        file_format=options.changelog_file_format or options.file_format,
        compression=options.changelog_file_compression or options.file_compression,
        awaited=options.changelog_producer == "lookup",
        stats_mode=options.changelog_file_stats_mode or options.stats_mode,
        filters=FileFilters(),
    )


def file_filters(options: TableOptions) -> FileFilters:
    """The bloom filters that new files get."""
    columns = {
        name: ColumnFilter(
            options.value(keys.key_of(keys.FILE_INDEX_BLOOM_FILTER_FPP, name)),
            options.value(keys.key_of(keys.FILE_INDEX_BLOOM_FILTER_ITEMS, name)),
        )
        for name in options.bloom_filter_columns
    }
    return FileFilters(columns, options.index_in_manifest_bytes_max)


NamesOf: TypeAlias = "Callable[[BucketId], Iterator[str]]"


@dataclass(frozen=True)
class NewFiles:
    """The files of one write. All names are created here, so that none is forgotten."""

    view: TableView
    names: list[str] = field(default_factory=list)

    def of(self, names: paths.FileNames, prefix: str, file_format: str) -> NamesOf:
        """Names for new files of a bucket."""
        has_indexes = bool(self.view.options.bloom_filter_columns)

        def given(bucket: BucketId) -> Iterator[str]:
            while True:
                name = names.data_file(file_format, prefix)
                path = paths.join(self.view.bucket_directory(*bucket), name)
                self.names.extend([path, index_name(path)] if has_indexes else [path])
                yield name

        return given


def added_file(bucket: BucketId, total: int, file: DataFileMeta) -> ManifestEntry:
    """The entry that adds a file to a bucket."""
    return ManifestEntry(FileKind.ADD, *bucket, total, file)


# -- sorting of rows that arrive in any order ------------------------------------------------------


COPIES = 4
"""How many copies of a row are in memory: as it arrived, split by bucket, sorted, and as stored."""

# A piece is stored in this many parts. During a merge, one part of each piece of a bucket is in
# memory.
_PARTS = 256
_BATCH_ROWS_MIN = 4 << 10
_NAMED_KEYS_MAX = 3


class OutOfOrderError(Exception):
    """A row does not come after the previous row."""


@dataclass
class InOrder:
    """Rows that arrive in key order, each key once, split by bucket."""

    view: TableView
    placing: Placing
    _last: pl.DataFrame | None = None

    def of(self, rows: Rows) -> Iterator[tuple[BucketId, pl.DataFrame]]:
        """The sorted rows of each bucket.

        Raises `OutOfOrderError` if a row should have come earlier.
        """
        frame, cut = self.placing.cut(rows.frame, rows.table, self.view)
        keys = frame.select(self.view.schema.primary_keys)
        known = keys if self._last is None else pl.concat([self._last, keys])

        # Whether each key is larger than the previous one.
        above = pl.lit(value=False)
        for name in reversed(known.columns):
            column, before = pl.col(name), pl.col(name).shift(1)
            above = (column > before) | ((column == before) & above)
        is_first = pl.int_range(pl.len()) == 0
        if not bool(known.select((above | is_first).all()).item()):
            raise OutOfOrderError
        self._last = known.tail(1)
        yield from cut.parts(frame)


@dataclass
class SortedRows:
    """The rows of a new table, one per key: first `add` all rows, then take them in order.

    Memory and disk space are freed with the object. About `memory_bytes` are in memory, and the
    rest is in an unnamed temporary file. `origin` says in messages where the rows come from.
    """

    view: TableView
    placing: Placing
    memory_bytes: int
    origin: str
    _waiting: dict[BucketId, list[pl.DataFrame]] = field(default_factory=dict)
    _waiting_bytes: int = 0
    _pieces: dict[BucketId, list[_Piece]] = field(default_factory=dict)
    _spill: _Spill | None = None

    def add(self, rows: Rows) -> None:
        """Add rows. Raises `InvalidError`, which names keys that occur several times."""
        frame, cut = self.placing.cut(rows.frame, rows.table, self.view)
        for bucket, part in cut.parts(frame):
            self._waiting.setdefault(bucket, []).append(part)
            self._waiting_bytes += int(part.estimated_size())
        if self._waiting_bytes > self.memory_bytes // COPIES:
            # Write the rows in memory to local disk.
            if self._spill is None:
                schema = stored_schema(self.view)
                schema = schema.remove(schema.get_field_index(SEQUENCE_NUMBER))
                self._spill = _Spill(schema, self._key)
            for bucket, part in self._sorted():
                rows_max = max(_BATCH_ROWS_MIN, part.height // _PARTS)
                self._pieces.setdefault(bucket, []).append(self._spill.add(part, rows_max))

    def in_order(self) -> Iterator[tuple[BucketId, pl.DataFrame]]:
        """The rows bucket by bucket, in key order. Nothing can be added after this call.

        Raises like `add`.
        """
        for bucket, frame in self._sorted():
            self._pieces.setdefault(bucket, []).append(_MemoryPiece(frame, self._key))
        for bucket in sorted(self._pieces):
            runs = _without_overlap(self._pieces.pop(bucket))
            batches = [(Batch(rows) for piece in run for rows in piece.frames()) for run in runs]
            for window in key_windows(batches, self._key):
                rows = window[0]
                if len(window) > 1:
                    rows = pl.concat(window).sort(self._key, nulls_last=False)
                    self._refuse_repeated(rows)
                yield bucket, rows
                del window, rows  # not held while the next rows are read

    @property
    def _key(self) -> tuple[str, ...]:
        return tuple(self.view.schema.primary_keys)

    def _sorted(self) -> Iterator[tuple[BucketId, pl.DataFrame]]:
        """The rows in memory, bucket by bucket, sorted by key. The memory is empty afterwards."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for bucket in sorted(waiting):
            frame = pl.concat(waiting.pop(bucket)).sort(self._key, nulls_last=False)
            self._refuse_repeated(frame)
            yield bucket, frame

    def _refuse_repeated(self, rows: pl.DataFrame) -> None:
        """Refuse several rows of one key. REQUIRES: the rows are sorted by key."""
        same = [pl.col(name).eq_missing(pl.col(name).shift(-1)) for name in self._key]
        is_last = pl.int_range(pl.len()) == pl.len() - 1
        again = rows.select((pl.all_horizontal(same) & ~is_last).alias("equals")).to_series()
        if not again.any():
            return
        keys = rows.filter(again).select(self._key).unique(maintain_order=True)
        named = [
            ", ".join(f"{n} = {shown(v)}" for n, v in zip(self._key, key, strict=True))
            for key in held_by_python(keys.head(_NAMED_KEYS_MAX)).rows()
        ]
        raise InvalidError(
            f"table {self.view.name}: each key has to have one row, and among those with more in "
            f"{self.origin} are {'; '.join(named)}. Define an external table there, which merges "
            f"the rows of a key, and CREATE TABLE ... AS SELECT its rows"
        )


# -- pieces ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _MemoryPiece:
    """Rows of one bucket sorted by key, in memory."""

    rows: pl.DataFrame
    key: tuple[str, ...]

    @property
    def ends(self) -> pl.DataFrame:
        """The first and the last key."""
        keys = self.rows.select(self.key)
        return pl.concat([keys.head(1), keys.tail(1)])

    def frames(self) -> Iterator[pl.DataFrame]:
        """The rows in order."""
        return iter([self.rows])


@dataclass(frozen=True)
class _DiskPiece:
    """The same on local disk: a range of batches in a file."""

    spill: _Spill
    first: int
    stop: int
    ends: pl.DataFrame

    def frames(self) -> Iterator[pl.DataFrame]:
        """The rows in order, some at a time."""
        return (self.spill.batch(number) for number in range(self.first, self.stop))


_Piece = _MemoryPiece | _DiskPiece


class _Spill:
    """A temporary file of batches. First written, then read, possibly by several threads."""

    def __init__(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self._schema = schema
        self._key = key
        self._written = 0
        self._reading = Lock()
        with disk_errors("write", tempfile.gettempdir()):
            self._file: IO[bytes] = tempfile.TemporaryFile(prefix="keytide-sort-")  # noqa: SIM115  # closed with the object
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer: Any = pa.ipc.new_file(self._file, schema, options=options)
        self._reader: Any = None

    def add(self, rows: pl.DataFrame, rows_max: int) -> _DiskPiece:
        """Store rows in batches of at most `rows_max`."""
        first, stored = self._written, to_arrow(rows, self._schema).combine_chunks()
        with disk_errors("write", tempfile.gettempdir()):
            for batch in stored.to_batches(rows_max):
                self._writer.write_batch(batch)
                self._written += 1
        # `take` copies rows. A slice would keep all of them in memory.
        ends = from_arrow(stored.select(self._key).take([0, rows.height - 1]))
        return _DiskPiece(self, first, self._written, ends)

    def batch(self, number: int) -> pl.DataFrame:
        """A batch. Nothing can be added after this call."""
        with disk_errors("read", tempfile.gettempdir()), self._reading:
            if self._reader is None:
                self._writer.close()
                self._file.flush()
                self._reader = pa.ipc.open_file(self._file)
            return from_arrow(pa.Table.from_batches([self._reader.get_batch(number)]))


def _without_overlap(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """The pieces in as few runs as possible. The pieces of a run have no key in common."""
    ranks = key_ranks(pl.concat([piece.ends for piece in pieces]))
    runs: list[tuple[int, list[_Piece]]] = []
    for place in sorted(range(len(pieces)), key=lambda place: ranks[2 * place]):
        low, high = ranks[2 * place], ranks[2 * place + 1]
        free = next((i for i, (end, _) in enumerate(runs) if end < low), None)
        if free is None:
            runs.append((high, [pieces[place]]))
        else:
            runs[free] = (high, [*runs[free][1], pieces[place]])
    return [run for _, run in runs]
