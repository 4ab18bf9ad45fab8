"""Versions of external tables on Spark: a shuffle by key, and the tasks that merge them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from keytide.snapshot.view import TableView
from keytide.sources.dealt import CUT, DEALT, DealTask, cuts_of_dealt, dealt_frames
from keytide.sources.key_merge import KeyMerge, budget_of
from keytide.sources.merging import TIMES_STORED, VALUE_BYTES, rows_at_once
from keytide.sources.shown_rows import ShownRows
from keytide.sources.versions import SourceVersions
from keytide.spark.predicate import column
from keytide.spark.read import TASK_MEMORY_BYTES
from keytide.spark.runner import Executors
from keytide.spark.shuffle import brought_together
from keytide.spark.sizing import pack, tasks_for
from keytide.spark.types import spark_batches, spark_schema

__all__ = ["MergeTask", "bytes_of", "dealt_by_key", "memory_of", "places_for"]

_PLACES_MAX = 4096


def dealt_by_key(
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
    tasks = [DealTask(versions.some(sorted(bin_)), columns, places, rows_max) for bin_ in bins]
    dealt = Executors().rows(tasks, spark_schema(DEALT), spark, count)
    return brought_together(dealt, places, column(CUT))


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
    shown: ShownRows
    schema: pa.Schema

    def batches(self, dealt: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows in Spark's batch format. Runs on executors."""
        frames = dealt_frames(dealt)
        for rows in self.by_key.merged(frames, memory_of(self.by_key.view), cuts_of_dealt, []):
            yield from spark_batches(self.shown.of(rows), self.schema)


def bytes_of(versions: SourceVersions, columns: Sequence[str]) -> int | None:
    """The approximate size of the versions in memory, None if it is unknown."""
    rows = [part.rows for part in versions.parts]
    if None not in rows:
        return sum(n or 0 for n in rows) * VALUE_BYTES * len(columns)
    stored = [part.stored_bytes for part in versions.parts]
    return None if None in stored else sum(n or 0 for n in stored) * TIMES_STORED
