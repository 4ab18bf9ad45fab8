"""External tables on Spark: versions are shuffled by key and merged in tasks.

There are two ways. If Spark's own reader reads the files correctly, only keys and the columns that
decide between versions are shuffled, or read by one task if they are few. The result is one bitmap
per file, of versions that lost and of rows that the source itself has deleted, and Spark's reader
reads the files without these rows. Keys for which whole rows must be compared come from tasks. In
all other cases, whole versions are shuffled, and Spark receives the merged rows. In both cases the
rows belong to the one version that the scan has, and nothing is read until rows are requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keytide.base.dataclass import dataclass, replace
from keytide.dml.attachments import PagesScan
from keytide.predicate.predicate import columns_of
from keytide.read.runs import prefetched
from keytide.snapshot.state import TableView
from keytide.sources.parquet import ParquetPart
from keytide.sources.scan import ExternalHandle
from keytide.sources.shuffle import (
    CUT,
    OUTCOME_SCHEMA,
    PAGE_SCHEMA,
    PART,
    ShuffleTask,
    TiedRowsTask,
    cuts_of_shuffle,
    outcome_rows,
    read_outcomes,
    shuffled_frames,
)
from keytide.sources.version_merge import (
    TIMES_STORED,
    VALUE_BYTES,
    KeyMerge,
    SourceMerge,
    budget_of,
    rows_at_once,
    split_condition,
)
from keytide.sources.versions import RowNumbers, SourceVersions, VisibleRows
from keytide.spark.capacity import pack, tasks_for
from keytide.spark.columns import column, partition_by, spark_batches, spark_condition, spark_schema
from keytide.spark.error_translation import pin_external
from keytide.spark.read_plans import (
    BITS,
    FILE,
    TASK_MEMORY_BYTES,
    bitmaps_of,
    file_identity,
    parquet_files,
    spark_reads,
    with_floats_read,
    without_deleted,
)
from keytide.spark.runner import Executors
from keytide.spark.stored_files import Locate, locate_in
from keytide.types import AtomicType, arrow_schema, quoted, type_from_arrow

# -- the shuffle of versions -----------------------------------------------------------------------


_PLACES_MAX = 4096


def shuffle_by_key(
    versions: SourceVersions, columns: tuple[str, ...], spark: SparkSession, count: int | None
) -> DataFrame:
    """Some columns of the versions, shuffled by key: one partition for each place.

    `count` is the row count that Spark should assume for the result, None if it is unknown.
    """
    places = places_for(versions, columns, spark)
    rows_max = rows_at_once(memory_of(versions.view), len(columns))
    sizes = [part.stored_bytes or part.rows or 0 for part in versions.parts]
    rows = sum(part.rows or 0 for part in versions.parts)
    bins = pack(range(len(sizes)), tasks_for(spark, sum(sizes), rows), sizes.__getitem__)
    tasks = [ShuffleTask(versions.some(sorted(bin_)), columns, places, rows_max) for bin_ in bins]
    shuffled = Executors().rows(tasks, spark_schema(PAGE_SCHEMA), spark, count)
    return partition_by(shuffled, places, column(CUT))


def places_for(versions: SourceVersions, columns: Sequence[str], spark: SparkSession) -> int:
    """The number of partitions: one for each amount merged together, and several per core."""
    held = bytes_of(versions, columns)
    needed = (held or 0) // budget_of(memory_of(versions.view))
    return min(_PLACES_MAX, max(tasks_for(spark, held), needed))


def memory_of(view: TableView) -> int:
    """The memory that a task can use for a table."""
    return min(view.options.read_memory_bytes, TASK_MEMORY_BYTES)


@dataclass(frozen=True)
class MergeTask:
    """Merges the versions of one partition."""

    by_key: KeyMerge
    shown: VisibleRows
    schema: pa.Schema

    def batches(self, shuffled: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows in Spark's batch format. Runs on executors."""
        frames = shuffled_frames(shuffled)
        for rows in self.by_key.merged(frames, memory_of(self.by_key.view), cuts_of_shuffle, []):
            yield from spark_batches(self.shown.of(rows), self.schema)


def bytes_of(versions: SourceVersions, columns: Sequence[str]) -> int | None:
    """The approximate size of the versions in memory, None if it is unknown."""
    rows = [part.rows for part in versions.parts]
    if None not in rows:
        return sum(n or 0 for n in rows) * VALUE_BYTES * len(columns)
    stored = [part.stored_bytes for part in versions.parts]
    return None if None in stored else sum(n or 0 for n in stored) * TIMES_STORED


# -- plain files, without the rows that lost -------------------------------------------------------


_ROWS_MARKED_MAX = 1 << 30
"""Above this number of rows, bitmaps are not broadcast."""


@dataclass(frozen=True)
class PlainFiles:
    """Files as Spark finds them, and the column and values by which it tells them apart."""

    uris: tuple[str, ...]
    identity_column: str
    values: pa.Array


def plain_files(table: ExternalHandle, merging: SourceMerge, locate: Locate) -> PlainFiles | None:
    """The files of the parts, if Spark's own reader reads them correctly. Otherwise None."""
    names = _columns_of_files(table, merging)
    versions = merging.versions
    if sum(part.rows or 0 for part in versions.parts) > _ROWS_MARKED_MAX:
        return None
    for name in names:
        # The column must have the type that is stored, and Spark read this type as Keytide does.
        own = table.table.view.schema.field(name).type.with_nullable(True)
        there = type_from_arrow(table.table.source.schema.field(name).type).with_nullable(True)
        if not (isinstance(own, AtomicType) and own == there and spark_reads(own)):
            return None
    if any(not field.type.nullable for field in merging.view.schema.select(merging.columns)):
        return None  # a column must be checked for NULLs
    lowered = {name.lower() for name in table.table.source.schema.names}
    if len(lowered) < len(table.table.source.schema.names):
        return None  # Spark does not distinguish names that differ only in case
    parts = [part for part in versions.parts if isinstance(part, ParquetPart)]
    files = [file for part in parts if (file := part.plain_file(names)) is not None]
    file_names = {path.rpartition("/")[2] for _, path in files}
    if len(files) < len(versions.parts) or len(file_names) != len(files):
        return None
    local = (store.uncached().local_path(path) for store, path in files)
    if any(path is not None and not path.is_file() for path in local):
        return None  # tasks say which file is missing, and of which table
    uris = [uri for file in files if (uri := locate(*file)) is not None]
    return PlainFiles(tuple(uris), *file_identity(files)) if len(uris) == len(files) else None


def _columns_of_files(table: ExternalHandle, merging: SourceMerge) -> tuple[str, ...]:
    asked = sorted(columns_of(table.predicate))
    return tuple(dict.fromkeys((*merging.columns, *asked)))


def rows_of_files(
    table: ExternalHandle,
    merging: SourceMerge,
    files: PlainFiles,
    schema: pa.Schema,
    spark: SparkSession,
) -> DataFrame:
    """The rows, which Spark reads once it knows which versions to skip.

    If versions tie and whole rows must be compared, these rows come from tasks.
    """
    are_decided = merging.versions.are_in_order and not merging.refuses_ties
    parts = enumerate(merging.versions.parts)
    with_dead: dict[int, ParquetPart] = {
        place: part for place, part in parts if isinstance(part, ParquetPart) and part.has_dead_rows
    }
    bitmap = _BitmapTask(files.values, with_dead)
    if _is_small(merging):
        find = _OutcomeTask(merging, tuple(bitmap.deleted))
        found = (
            None if are_decided else Executors().rows([find], spark_schema(OUTCOME_SCHEMA), spark)
        )
        bitmaps = Executors().rows([_MarkingTask(find, bitmap)], spark_schema(bitmap.schema), spark)
    else:
        found = _outcomes(merging, tuple(bitmap.deleted), spark)
        bitmaps = Executors().convert(bitmap, found, spark_schema(bitmap.schema))
    rows = _rows_without(table, merging, files, bitmaps, spark)
    if are_decided or found is None:
        return rows
    return rows.unionAll(_tied(merging, found, schema, spark))


def _is_small(merging: SourceMerge) -> bool:
    """Whether one task decides between all versions sooner than several after a shuffle."""
    held = bytes_of(merging.versions, merging.columns_deciding)
    return held is not None and held <= memory_of(merging.view) // 2


def _outcomes(merging: SourceMerge, deleted: Sequence[int], spark: SparkSession) -> DataFrame:
    """The outcome of the versions in each part. The rows of one part are in one partition."""
    versions = merging.versions
    shuffled = shuffle_by_key(versions.by_place(), merging.columns_deciding, spark, 0)
    task = _SortTask(merging.by_freshness, versions.numbers)
    schema = spark_schema(OUTCOME_SCHEMA)
    found = Executors().convert(task, shuffled, schema)
    if deleted:
        found = found.unionAll(spark.createDataFrame(_no_outcomes(deleted), schema))
    stored = [part.stored_bytes for part in versions.parts]
    tasks = tasks_for(spark, None if None in stored else sum(size or 0 for size in stored))
    places = min(len(versions.parts), tasks)
    return partition_by(found, places, F.expr(f"{quoted(PART)} % {places}"))


def _no_outcomes(parts: Sequence[int]) -> pa.Table:
    """Rows of `OUTCOME_SCHEMA` for parts with deleted rows, which may have no other outcome."""
    none = [b""] * len(parts)
    return pa.table([pa.array(parts, pa.int32()), none, none], schema=OUTCOME_SCHEMA)


def _rows_without(
    table: ExternalHandle,
    merging: SourceMerge,
    files: PlainFiles,
    bitmaps: DataFrame,
    spark: SparkSession,
) -> DataFrame:
    """The rows that Spark reads from the files, without those that bitmaps mark."""
    fields = merging.view.schema.select(_columns_of_files(table, merging))
    schema = spark_schema(arrow_schema(fields))
    pin_external(files.uris)
    rows = without_deleted(parquet_files(files.uris, schema, spark), bitmaps, files.identity_column)
    rows = with_floats_read(rows, fields)
    if table.predicate is not None:
        rows = rows.where(spark_condition(table.predicate, fields, schema))
    return rows.selectExpr(*map(quoted, merging.columns))


def _tied(
    merging: SourceMerge, found: DataFrame, schema: pa.Schema, spark: SparkSession
) -> DataFrame:
    """The rows of keys whose latest versions tie."""
    whole, versions = replace(merging, compares_rows=True), merging.versions
    places = places_for(versions, merging.columns_deciding, spark)
    rows_max = rows_at_once(memory_of(whole.view), len(whole.columns_read))
    read = TiedRowsTask(versions, places, rows_max)
    shuffled = Executors().convert(read, found, spark_schema(PAGE_SCHEMA))
    shuffled = partition_by(shuffled, places, column(CUT))
    task = MergeTask(whole.by_key, whole.shown, schema)
    return Executors().convert(task, shuffled, spark_schema(schema))


@dataclass(frozen=True)
class _SortTask:
    """Decides between the versions in one partition."""

    by_key: KeyMerge
    numbers: tuple[RowNumbers, ...]

    def batches(self, shuffled: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of `OUTCOME_SCHEMA`. Runs on executors."""
        frames = shuffled_frames(shuffled)
        return outcome_rows(self.by_key, self.numbers, frames, memory_of(self.by_key.view))


@dataclass(frozen=True)
class _OutcomeTask:
    """Reads all versions and decides between them. `deleted` are the parts with deleted rows."""

    merging: SourceMerge
    deleted: tuple[int, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of `OUTCOME_SCHEMA`. Runs on an executor."""
        versions, by_key = self.merging.versions, self.merging.by_freshness
        columns, memory = self.merging.columns_deciding, memory_of(by_key.view)
        frames = versions.by_place().frames(columns, rows_at_once(memory, len(columns)))
        yield from _no_outcomes(self.deleted).to_batches()
        yield from outcome_rows(by_key, versions.numbers, prefetched(frames), memory)


@dataclass(frozen=True)
class _BitmapTask:
    """Builds bitmaps of rows that lost or tie, and of rows that the source has deleted."""

    values: pa.Array
    deleted: dict[int, ParquetPart]

    @property
    def schema(self) -> pa.Schema:
        """For each file, the value by which Spark identifies it, and the rows to skip."""
        return pa.schema([(FILE, self.values.type), (BITS, pa.list_(pa.list_(pa.int64())))])

    def batches(self, found: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row for each file that has such rows. Runs on executors."""
        for place, each in read_outcomes(found).items():
            part = self.deleted.get(place)
            dead = np.empty(0, np.int64) if part is None else part.dead_rows()
            bits = bitmaps_of([np.unique(np.concatenate([each.lost, each.tied, dead]))])
            yield pa.record_batch([self.values.slice(place, 1), bits], [FILE, BITS])


@dataclass(frozen=True)
class _MarkingTask:
    """Reads all versions, and builds the bitmaps."""

    find: _OutcomeTask
    bitmap: _BitmapTask

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See `_BitmapTask`."""
        return self.bitmap.batches(self.find.batches())


# -- merged rows -----------------------------------------------------------------------------------


_SMALL_BYTES = 64 << 20
"""Versions up to this size are merged by one task, because a shuffle would take longer."""


def merged_to_spark(
    scan: PagesScan, table: ExternalHandle, spark: SparkSession
) -> DataFrame | None:
    """The rows of an external table as a lazy DataFrame, None if a single task should merge them.

    Runs on the driver, and plans the parts here. Raises what planning raises.
    """
    key_condition, rest = split_condition(table.predicate, table.table.view.schema.primary_keys)
    versions = table.table.versions(key_condition)
    merging = SourceMerge(versions, tuple(column.name for column in scan.columns), rest)
    # A shuffle is worth it for many versions, in parts of which several can be read in parallel.
    parts = versions.parts
    has_one = len(parts) == 1 and not isinstance(parts[0], ParquetPart)
    if not merging.columns or not parts or has_one:
        return None
    size = bytes_of(versions, merging.columns_read)
    if size is None or size <= _SMALL_BYTES:
        return None
    files = plain_files(table, merging, locate_in(spark))
    if files is None:
        # The rows, all of them read in Python.
        schema = scan.schema
        # Other tasks have read the versions, so it would be too late to fetch whole rows only for
        # the keys that need them.
        whole = replace(merging, compares_rows=not merging.versions.are_in_order)
        task = MergeTask(whole.by_key, whole.shown, schema)
        count = sum(part.rows or 0 for part in merging.versions.parts) or None
        shuffled = shuffle_by_key(merging.versions, whole.columns_read, spark, count)
        return Executors().convert(task, shuffled, spark_schema(schema))
    return rows_of_files(table, merging, files, scan.schema, spark)
