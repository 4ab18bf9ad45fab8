"""Writes rows, split by partition and bucket, usually as one sorted run per bucket.

A `BucketWriter` is a picklable value: the same code writes in the driver and on executors. It
returns the entries to commit and, if the table requires it, those of its changelog. Several
versions of a key in one write are merged before they are stored (rule R24 of docs/semantics.md). If
one row cannot represent them, they are stored in layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.lazily import cached_property
from keytide.format import paths
from keytide.format.arrow import to_arrow
from keytide.format.data_file import (
    SEQUENCE_NUMBER,
    VALUE_KIND,
    ColumnFilter,
    FileFilters,
    FileReader,
    RunWriter,
)
from keytide.format.file_index import index_name
from keytide.format.manifest import DataFileMeta, FileKind, ManifestEntry
from keytide.merge.layers import layers
from keytide.merge.order import IS_ADD, MergeOrder
from keytide.merge.padding import padded_sequence
from keytide.options import TableOptions, keys
from keytide.snapshot.live_files import BucketId, LiveFiles, number_after
from keytide.snapshot.view import TableView
from keytide.types import AtomicType, Field, arrow_schema
from keytide.write.cut import BUCKET_NUMBER, BucketBatch, Numbers

__all__ = [
    "BucketWriter",
    "Made",
    "NewFiles",
    "Seen",
    "SequenceBase",
    "added_file",
    "changelog_writer",
    "file_filters",
    "format_of_level",
    "restamp",
    "run_writer",
    "stored_schema",
]

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

    def behind(self, entries: Iterable[ManifestEntry], row_count: int) -> SequenceBase:
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
class Made:
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
    ) -> Made:
        """Write rows and return the entries to commit.

        The rows of a key are merged first. Files are durable on return, but do not belong to the
        table until they are committed. If writing fails or is stopped, they are deleted. Raises
        `DataError` if the store fails. REQUIRES: the table's engine can merge the rows.
        """
        files = NewFiles(self.view)
        try:
            parts = self._write_batches(batches, base, files, threads)
        except BaseException:
            self.view.store.discard(files.given)
            raise
        return Made(
            tuple(entry for part in parts for entry in part.data),
            tuple(entry for part in parts for entry in part.changelog),
        )

    # -- the buckets of a batch -----------------------------------------------------------------

    def _write_batches(
        self,
        batches: Sequence[BucketBatch],
        base: SequenceBase,
        files: NewFiles,
        threads: int,
    ) -> list[Made]:
        rows = sum(batch.rows.height for batch in batches)
        if threads == 1 or len(batches) < 2 or rows < _SMALL_ROWS:
            return [self._write_batch(batch, base, files, threads) for batch in batches]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda batch: self._write_batch(batch, base, files, 1), batches))

    def _write_batch(
        self, batch: BucketBatch, base: SequenceBase, files: NewFiles, threads: int
    ) -> Made:
        # Each batch needs its own names, because threads write batches.
        names = self.view.new_names()
        versions = self._versions(batch, base)
        writer = run_writer(self.view)
        names_of = files.of(names, self._options.data_file_prefix, writer.file_format)
        data = [
            entry
            for layer in self._layers(batch, versions)
            for entry in self._write_layer(batch, layer, writer, names_of, threads)
        ]
        if not self.has_changelog:
            return Made(tuple(data))
        writer = changelog_writer(self.view)
        names_of = files.of(names, self._options.changelog_file_prefix, writer.file_format)
        changelog = self._write_layer(batch, versions, writer, names_of, threads)
        return Made(tuple(data), tuple(changelog))

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
        runs, buckets = self._runs(batch, layer)
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

    def _versions(self, batch: BucketBatch, base: SequenceBase) -> pl.DataFrame:
        """The rows of all buckets with their numbers, in merge order.

        Without a key, in the given order.
        """
        if not self.view.kind.keeps_versions:
            return _numbered_by_arrival(batch, base)
        numbered = self._with_sequence_numbers(batch, base).with_columns(
            pl.Series(BUCKET_NUMBER, _bucket_numbers(batch))
        )
        is_padded = bool(self._options.sequence_auto_padding)
        # Padded numbers come from the rows, so they do not follow the order of arrival.
        return self._order_in(batch).sort(numbered, arrival_decides=not is_padded)

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

    def _runs(
        self, batch: BucketBatch, layer: pl.DataFrame
    ) -> tuple[pa.Table, dict[BucketId, int]]:
        """The runs of the buckets, one after the other, and the number of rows in each bucket."""
        places, lengths = np.unique(layer[BUCKET_NUMBER].to_numpy(), return_counts=True)
        left = zip(places.tolist(), lengths.tolist(), strict=True)
        return (
            to_arrow(layer, self._stored_schema),
            {batch.buckets[place]: length for place, length in left},
        )

    @cached_property
    def _stored_schema(self) -> pa.Schema:
        return stored_schema(self.view)

    def _with_sequence_numbers(self, batch: BucketBatch, base: SequenceBase) -> pl.DataFrame:
        rows, paddings = batch.rows, self.view.options.sequence_auto_padding
        if not paddings:
            firsts = np.array([base.first(bucket) for bucket in batch.buckets])
            return rows.with_columns(pl.Series(SEQUENCE_NUMBER, np.repeat(firsts, batch.lengths)))
        (name,) = self.view.options.sequence_field[:1]
        counter = pl.Series(_counted_from(base.row_count, batch))
        is_add = rows.select(IS_ADD.alias("add"))["add"]
        padded = padded_sequence(rows[name], is_add, counter, paddings)
        return rows.with_columns(padded.alias(SEQUENCE_NUMBER))


def _numbered_by_arrival(batch: BucketBatch, base: SequenceBase) -> pl.DataFrame:
    """The rows in order of arrival, each with its own number, as the format counts rows."""
    firsts = np.array([base.first(bucket) for bucket in batch.buckets])
    return batch.rows.with_columns(
        pl.Series(SEQUENCE_NUMBER, _counted_from(firsts, batch)),
        pl.Series(BUCKET_NUMBER, _bucket_numbers(batch)),
    )


def _counted_from(firsts: Numbers | int, batch: BucketBatch) -> Numbers:
    """Numbers that count the rows of each bucket, starting at its first number or at one number for
    all.
    """
    starts = np.cumsum(batch.lengths) - batch.lengths
    return np.repeat(firsts - starts, batch.lengths) + np.arange(batch.rows.height)


def _bucket_numbers(batch: BucketBatch) -> Numbers:
    """The index of each row's bucket in `buckets` of the batch."""
    return np.repeat(np.arange(len(batch.buckets)), batch.lengths)


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
    given: list[str] = field(default_factory=list)

    def of(self, names: paths.FileNames, prefix: str, file_format: str) -> NamesOf:
        """Names for new files of a bucket."""

        def given(bucket: BucketId) -> Iterator[str]:
            while True:
                name = names.data_file(file_format, prefix)
                path = paths.join(self.view.bucket_directory(*bucket), name)
                self.given.extend([path, index_name(path)] if self.has_indexes else [path])
                yield name

        return given

    @cached_property
    def has_indexes(self) -> bool:
        """Whether there may be index files next to them."""
        return bool(self.view.options.bloom_filter_columns)


def added_file(bucket: BucketId, total: int, file: DataFileMeta) -> ManifestEntry:
    """The entry that adds a file to a bucket."""
    return ManifestEntry(FileKind.ADD, *bucket, total, file)
