"""Writing rows: cut by partition and bucket, one sorted run per bucket.

A `BucketWriter` is a picklable value: the same code writes on the driver and on executors. What
it returns, `BucketFiles`, is what a commit needs. Several versions of a key in one write are
merged before they are stored (watermark rule R24).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.errors import ConflictError, UnsupportedError
from keytide.format import paths
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.binary_row import encode_rows
from keytide.format.bucket import bucket_ids
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND, FileReader, RunWriter
from keytide.format.manifest import DataFileMeta, FileKind, ManifestEntry
from keytide.format.schema import TableSchema
from keytide.merge.order import IS_ADD
from keytide.merge.padding import padded_sequence
from keytide.options import TableOptions
from keytide.table.live_files import BucketId, LiveFiles
from keytide.table.refusals import refuse_unmergeable
from keytide.table.rows import Rows
from keytide.table.view import TableView
from keytide.types import AtomicType, Field, arrow_schema

__all__ = ["BucketWriter", "SequenceBase", "check_writable", "restamp"]

_SMALL_ROWS = 200_000


@dataclass(frozen=True)
class SequenceBase:
    """Where the sequence numbers of one write begin.

    Every row of a write gets one number per bucket, one above all that the bucket has seen: the
    order of commits is then the order of numbers. `offset` tells tasks of one write apart, in
    the order of their rows.
    """

    highest: Mapping[BucketId, int]
    row_count: int = 0
    """Rows written before, from which counters of auto-padding go on."""
    offset: int = 0

    @classmethod
    def after(cls, live: LiveFiles) -> SequenceBase:
        """Numbers that follow those of some live files."""
        highest = {bucket: state.max_sequence_number for bucket, state in live.buckets.items()}
        count = live.snapshot.total_record_count if live.snapshot is not None else 0
        return cls(highest, count)

    def first(self, bucket: BucketId) -> int:
        """The number for a bucket's rows."""
        return self.highest.get(bucket, -1) + 1 + self.offset


@dataclass(frozen=True)
class BucketWriter:
    """Writes rows of one table into sorted level-0 files.

    `partition_buckets` holds the number of buckets that existing partitions have.
    """

    view: TableView
    partition_buckets: Mapping[bytes, int]

    def write(self, rows: Rows, base: SequenceBase, *, threads: int = 1) -> list[ManifestEntry]:
        """Write rows and return the entries to commit, none for no rows.

        Rows are merged per key first. Files are durable on return but belong to nobody until
        they are committed. Raises `InvalidError` for rows that the table's engine could not
        merge, `DataError` when the store refuses, `ConflictError` when a partition has another
        number of buckets.
        """
        frame = from_arrow(rows.table).with_columns(
            pl.Series(VALUE_KIND, rows.kinds, dtype=pl.Int8)
        )
        if not frame.height:
            return []
        refuse_unmergeable(frame, self.view)
        groups = list(self.by_bucket(frame, rows.table))
        names = paths.FileNames()
        if threads == 1 or len(groups) == 1 or frame.height < _SMALL_ROWS:
            parts = [
                self._write_bucket(partition, bucket, part, base, names, threads)
                for partition, bucket, part in groups
            ]
        else:
            with ThreadPoolExecutor(threads) as pool:
                parts = list(
                    pool.map(lambda g: self._write_bucket(g[0], g[1], g[2], base, names, 1), groups)
                )
        return [entry for part in parts for entry in part]

    # -- cutting ------------------------------------------------------------------------------

    def by_bucket(
        self, frame: pl.DataFrame, table: pa.Table
    ) -> Iterator[tuple[bytes, int, pl.DataFrame]]:
        """The rows of `frame` by partition and bucket, in arrival order within each.

        `table` has the same rows, with the key and partition columns in their exact types.
        """
        for partition, rows, arrow in self._by_partition(frame, table):
            total = self._total_buckets(partition)
            if total == 1:
                yield partition, 0, rows
                continue
            ids = self._bucket_ids(arrow, total)
            for bucket in np.unique(ids).tolist():
                yield partition, bucket, rows.filter(pl.Series(ids == bucket))

    def _by_partition(
        self, frame: pl.DataFrame, table: pa.Table
    ) -> Iterator[tuple[bytes, pl.DataFrame, pa.Table]]:
        fields = self.view.schema.partition_fields()
        if not fields:
            yield _EMPTY_PARTITION, frame, table
            return
        names = [f.name for f in fields]
        numbered = frame.with_row_index("_ROW")
        for part in numbered.partition_by(names, maintain_order=True):
            arrow = table.take(pa.array(part["_ROW"].to_numpy()))
            first = arrow.select(names).slice(0, 1).combine_chunks()
            (partition,) = encode_rows(
                [column.chunk(0) for column in first.columns], [f.type for f in fields]
            )
            yield partition, part.drop("_ROW"), arrow

    def _total_buckets(self, partition: bytes) -> int:
        wanted = self.view.options.bucket
        found = self.partition_buckets.get(partition, wanted)
        if found != wanted:
            raise ConflictError(
                f"table {self.view.name}: Try to write partition/table with a new bucket num "
                f"{wanted}, but the previous bucket num is {found}. Set 'bucket' back to "
                f"{found}, or overwrite the partition to lay it out anew"
            )
        return wanted

    def _bucket_ids(
        self, table: pa.Table, total: int
    ) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        names = self.view.options.bucket_key or self.view.schema.trimmed_primary_keys
        fields = self.view.schema.select(names)
        columns = [_one_chunk(table.column(f.name)) for f in fields]
        return bucket_ids(
            columns, [f.type for f in fields], total, self.view.options.bucket_function
        )

    # -- one bucket -----------------------------------------------------------------------------

    def _write_bucket(
        self,
        partition: bytes,
        bucket: int,
        rows: pl.DataFrame,
        base: SequenceBase,
        names: paths.FileNames,
        threads: int,
    ) -> list[ManifestEntry]:
        run = self._sorted_run(rows, (partition, bucket), base)
        if not run.height:
            return []
        fields = (
            *self.view.schema.fields,
            Field(-1, SEQUENCE_NUMBER, _BIGINT),
            Field(-1, VALUE_KIND, _TINYINT),
        )
        metas = _run_writer(self.view).write(
            to_arrow(run, arrow_schema(fields)),
            directory=self.view.bucket_directory(partition, bucket),
            file_names=_data_file_names(names, self.view.options),
            threads=threads,
        )
        return [_added(partition, bucket, self.view.options.bucket, meta) for meta in metas]

    def _sorted_run(self, rows: pl.DataFrame, bucket: BucketId, base: SequenceBase) -> pl.DataFrame:
        numbered = self._with_sequence_numbers(rows, bucket, base)
        arrival_decides = not self.view.options.sequence_auto_padding
        versions = self.view.order.sort(numbered, arrival_decides=arrival_decides)
        with self.view.naming_table():
            return self.view.engine.merge(versions)

    def _with_sequence_numbers(
        self, rows: pl.DataFrame, bucket: BucketId, base: SequenceBase
    ) -> pl.DataFrame:
        if not self.view.options.sequence_auto_padding:
            return rows.with_columns(
                pl.lit(base.first(bucket), dtype=pl.Int64).alias(SEQUENCE_NUMBER)
            )
        (name,) = self.view.options.sequence_field[:1]
        counter = pl.int_range(base.row_count, base.row_count + rows.height, eager=True)
        is_add = rows.select(IS_ADD.alias("add"))["add"]
        padded = padded_sequence(
            rows[name], is_add, counter, self.view.options.sequence_auto_padding
        )
        return rows.with_columns(padded.alias(SEQUENCE_NUMBER))


def check_writable(schema: TableSchema, options: TableOptions, table: str) -> None:
    """Raise `UnsupportedError` for a table that this release must not append to, with the reason.

    Writing into such a table would lose the uniqueness of keys or a reader's changes.
    """
    reason = _why_not_writable(schema, options)
    if reason is not None:
        raise UnsupportedError(f"table {table}: this release cannot write to it: {reason}")


def restamp(view: TableView, entry: ManifestEntry, sequence_number: int) -> ManifestEntry:
    """The entry's file again under a new name, with another sequence number in every row.

    Needed when other writers committed to the bucket meanwhile: ties go to the later commit, and
    for every engine that reads the files only the numbers say which one that was.
    """
    fields = view.schema.fields
    reader = FileReader(
        view.store, view.file_path(entry), view.schema, fields,
        system_columns=(SEQUENCE_NUMBER, VALUE_KIND),
        constants=((SEQUENCE_NUMBER, pl.Series([sequence_number], dtype=pl.Int64)),),
    )  # fmt: skip
    stamped = (*fields, Field(-1, SEQUENCE_NUMBER, _BIGINT), Field(-1, VALUE_KIND, _TINYINT))
    directory = view.file_path(entry).rsplit("/", 1)[0]
    meta = _run_writer(view).write_file(
        to_arrow(reader.read(), arrow_schema(stamped)),
        f"{directory}/{next(_data_file_names(paths.FileNames(), view.options))}",
    )
    return replace(entry, file=meta)


_EMPTY_PARTITION = bytes(12)
_BIGINT = AtomicType("BIGINT", nullable=False)
_TINYINT = AtomicType("TINYINT", nullable=False)


def _run_writer(view: TableView) -> RunWriter:
    options = view.options
    return RunWriter(
        store=view.store,
        schema=view.schema,
        compression=options.file_compression,
        zstd_level=options.file_compression_zstd_level,
        target_file_size_bytes=options.target_file_size_bytes,
        stats_mode=options.stats_mode,
        thin=options.thin_mode,
    )


def _data_file_names(names: paths.FileNames, options: TableOptions) -> Iterator[str]:
    while True:
        yield names.data_file("parquet", options.data_file_prefix)


def _added(partition: bytes, bucket: int, total: int, file: DataFileMeta) -> ManifestEntry:
    return ManifestEntry(FileKind.ADD, partition, bucket, total, file)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _why_not_writable(schema: TableSchema, options: TableOptions) -> str | None:
    if not schema.primary_keys:
        return "it has no primary key. Create one with a primary key, or append with another tool"
    if options.bucket < 1:
        kind = "dynamic" if options.bucket == -1 else "postpone"
        return (
            f"'bucket' = '{options.bucket}' ({kind} buckets) allows one writer at a time and an "
            f"index that only its owner may keep. Use a fixed number of buckets"
        )
    if options.file_format != "parquet":
        return f"'file.format' = {options.file_format!r}; only 'parquet' can be written"
    if options.changelog_producer == "input":
        return "'changelog-producer' = 'input' asks every writer for changelog files"
    if options.deletion_vectors_enabled:
        return "'deletion-vectors.enabled' hides rows until a compaction, which it lacks"
    return None
