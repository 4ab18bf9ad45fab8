"""Scans as Spark plans: native Parquet reads for plain files, merge tasks for the rest.

Files that need no merge are read by Spark's own Parquet reader, with column pruning and filter
pushdown, on local disk and, unless they are small, in object stores for which the session has a
file system. Deletion
vectors are applied to row positions in the JVM. Overlapping sections, and files with columns that
Spark cannot read, are packed into bins of about equal size. Each bin is one Spark task that runs
the same `ReadTask`s as a local scan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil
from typing import TypeAlias

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from keytide.base.plural import counted
from keytide.errors import DataError
from keytide.read.expired import naming_expired
from keytide.read.fallback import FallbackScan
from keytide.read.key_ranges import by_key_range
from keytide.read.plain_files import PlainSplit, split_plain
from keytide.read.row_source import FramesTask
from keytide.read.scan import Scan
from keytide.read.sections import PlannedFile
from keytide.read.statistics import columns_without_nulls
from keytide.read.task import ReadTask
from keytide.spark.file_systems import Locate, far_bytes_min, locate_in, on_local_disk
from keytide.spark.native import native_rows, spark_reads
from keytide.spark.python import check_python
from keytide.spark.runner import Executors
from keytide.spark.sizing import pack, tasks_for
from keytide.spark.types import batch_schema, spark_batches, spark_schema

__all__ = [
    "BinTask",
    "ReadBin",
    "bins_of_reads",
    "fallback_to_spark",
    "scan_to_spark",
    "split_scan",
]

TASK_MEMORY_BYTES = 256 << 20
"""Memory for the merge in one Spark task, unless 'read.memory' is smaller."""

ReadBin: TypeAlias = "tuple[ReadTask, ...]"


def scan_to_spark(scan: Scan, spark: SparkSession) -> DataFrame:
    """The rows of a scan as a lazy DataFrame that keeps reading the scan's snapshot.

    Runs on the driver and reads metadata only. Works in classic and Spark Connect sessions, if the
    executors can access the same paths. Raises `SetupError` when Spark runs another Python version,
    and what planning raises. A later error in a task is raised as the Keytide error, which is also
    an error class of Spark. It is a `DataError` when the snapshot has expired in the meantime.
    """
    check_python(spark)
    locate = locate_in(spark)
    split = split_scan(scan, locate, far_bytes_min(spark))
    parts = [native_rows(scan, shape, files, locate, spark) for shape, files in split.plain.items()]
    bins = bins_of_reads(split.tasks, lambda *work: tasks_for(spark, *work))
    if bins or not parts:
        parts.append(_merged(scan, split.tasks, bins, spark))
    rows = reduce(lambda one, other: one.unionAll(other), parts)
    return rows if scan.limit is None else rows.limit(scan.limit)


def fallback_to_spark(scan: FallbackScan, spark: SparkSession) -> DataFrame:
    """The rows of a scan of two branches, see `scan_to_spark`."""
    first, fallback = (scan_to_spark(part, spark) for part in scan.parts)
    rows = first.unionAll(fallback)
    return rows if scan.limit is None else rows.limit(scan.limit)


# -- native reads and merge tasks -----------------------------------------------------------------


def split_scan(scan: Scan, locate: Locate = on_local_disk, far_bytes_min: int = 0) -> PlainSplit:
    """A scan's files for Spark's own reader, by shape, and the tasks for all other files.

    Tasks read files below `far_bytes_min` that are not on local disk.
    """

    def takes(file: PlannedFile) -> bool:
        store, path = scan.view.data_file(file.entry)
        is_small = file.meta.file_size < far_bytes_min
        if is_small and on_local_disk(store, path) is None:
            return False
        return locate(store, path) is not None

    return split_plain(scan, spark_reads, takes)


@dataclass(frozen=True)
class BinTask:
    """Reads and merges a bin. A NULL in one of the `never_null` columns is an error."""

    tasks: tuple[FramesTask, ...]
    schema: pa.Schema
    table: str
    never_null: frozenset[str] = frozenset()
    snapshot_ids: tuple[int, ...] = ()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in Spark's batch format. Runs on executors.

        Raises `DataError` for a corrupt file, and when one of the snapshots has expired.
        """
        for task in self.tasks:
            memory = min(task.view.options.read_memory_bytes, TASK_MEMORY_BYTES)
            with naming_expired(task.view, self.snapshot_ids):
                for frame in task.frames(memory):
                    _check_not_null(frame, self.never_null, self.table)
                    yield from spark_batches(frame, self.schema)


def bins_of_reads(tasks: Sequence[ReadTask], count_for: Callable[[int, int], int]) -> list[ReadBin]:
    """The reads, packed for as many tasks as `count_for` says for their bytes and rows.

    A bucket that is too large for one task is read by ranges of its keys. Statistics are not sent.
    """
    stored = sum(task.stored_bytes for task in tasks)
    count = count_for(stored, sum(task.stored_rows for task in tasks))
    parts = [part for task in tasks for part in by_key_range(task, ceil(stored / count))]
    return pack((part.without_statistics() for part in parts), count, _stored_bytes)


def _stored_bytes(task: ReadTask) -> int:
    return task.stored_bytes


# -- merge tasks ----------------------------------------------------------------------------------


def _merged(
    scan: Scan, reads: Sequence[ReadTask], bins: Sequence[ReadBin], spark: SparkSession
) -> DataFrame:
    schema = scan.schema
    never_null = _never_null(scan, reads)
    tasks = [
        BinTask(tasks, schema, scan.view.name, never_null, scan.snapshot_ids) for tasks in bins
    ]
    target = spark_schema(schema)
    count = sum(read.stored_rows for read in reads)
    if not never_null:
        return Executors().rows(tasks, target, spark, count)
    narrow = [StructField(f.name, f.dataType, f.name not in never_null) for f in target.fields]
    return _all_nullable(Executors().rows(tasks, StructType(narrow), spark, count), schema)


def _never_null(scan: Scan, tasks: Sequence[ReadTask]) -> frozenset[str]:
    """The columns that have no NULL in any row of the tasks, according to statistics."""
    files = [file.entry for task in tasks for file in task.bucket.files]
    as_stored = scan.columns if scan.view.engine.picks_a_version else scan.view.order.key
    fields = scan.view.schema.select([name for name in scan.columns if name in as_stored])
    return columns_without_nulls(files, fields, scan.view.schemas)


def _check_not_null(rows: pl.DataFrame, never_null: Collection[str], table: str) -> None:
    for name in never_null:
        count = rows[name].null_count()
        if count:
            raise DataError(
                f"table {table}, column {name!r}: found {counted(count, 'row')} with NULL, but "
                "the statistics in a manifest say that there are none. "
                "spark.read.format('keytide') reads the table without these statistics; "
                "overwrite the table with its rows"
            )


def _all_nullable(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """The same rows with nullable columns, so that the schema does not depend on statistics.

    Spark checks nullable values for NULL where rows enter the plan. A union with an empty
    DataFrame, which the optimizer removes, makes the columns nullable only after that point.
    """
    nothing = batch_schema(schema).empty_table()
    return rows.unionAll(rows.sparkSession.createDataFrame(nothing, spark_schema(schema)))
