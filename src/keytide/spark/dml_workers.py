"""Where row-level changes run: on executors, or in threads of the driver.

Both read the splits of a target, show the rows to Spark SQL, and feed its result to tasks. The
driver shows the rows as a local relation and collects the result, so Spark starts no Python task
for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession

from keytide.base.process import cached_property
from keytide.compaction.compact import local_runner
from keytide.dml.engine import Scanned
from keytide.spark.columns import batch_schema, column, spark_schema
from keytide.spark.connect import is_apache_spark
from keytide.spark.dml_tasks import SPLIT, ScanTask, ScanTasks, scanned_schema
from keytide.spark.errors import on_driver
from keytide.spark.place import Place
from keytide.spark.python import check_python
from keytide.spark.runner import Cluster, Executors
from keytide.spark.sizing import tasks_for
from keytide.sql.pass_through import PassThrough
from keytide.tasks.runner import FeedTask

__all__ = ["DriverWorkers", "ExecutorWorkers", "Workers", "one_by_one", "workers_at"]

T = TypeVar("T")


class Workers(Protocol):
    """The workers for the rows of a target."""

    @property
    def count(self) -> int:
        """The number of tasks among which the rows of a MERGE are distributed."""
        ...

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """See `TaskRunner.each`."""
        ...

    def shown(self, scanned: Scanned, passed: PassThrough) -> DataFrame:
        """The rows of a target, with the columns of `scanned_schema`."""
        ...

    def feed_splits(
        self, task: FeedTask[T], rows: DataFrame, take: Callable[[T], None], *, moved: bool
    ) -> None:
        """Run a task on rows grouped by split.

        `moved` means that rows of a split may be scattered.
        """
        ...

    def feed_dealt(
        self, task: FeedTask[T], rows: DataFrame, by: Column, take: Callable[[T], None]
    ) -> None:
        """Run a task on rows grouped by the value of `by`."""
        ...


def workers_at(place: Place, spark: SparkSession) -> Workers:
    """The workers for a place."""
    return DriverWorkers(spark) if place.is_driver else ExecutorWorkers(spark, place.known_bytes)


def one_by_one(scanned: Scanned) -> Iterator[Scanned]:
    """The splits, one at a time."""
    for split in scanned.splits:
        yield replace(scanned, splits=[split])


def _scan_tasks(scanned: Scanned, passed: PassThrough) -> list[ScanTask]:
    return [ScanTask(one, passed, number) for number, one in enumerate(one_by_one(scanned))]


@dataclass(frozen=True)
class ExecutorWorkers:
    """Executors, for rows of this size. None: the size is unknown."""

    spark: SparkSession
    known_bytes: int | None

    @cached_property
    def count(self) -> int:
        """See `Workers`."""
        return tasks_for(self.spark, self.known_bytes)

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """See `Workers`. Runs one Spark job."""
        Cluster(self.spark).each(tasks, take)

    def shown(self, scanned: Scanned, passed: PassThrough) -> DataFrame:
        """See `Workers`. Lazy."""
        return self._read(scanned, passed)

    def _read(self, scanned: Scanned, passed: PassThrough) -> DataFrame:
        check_python(self.spark)
        schema = spark_schema(scanned_schema(scanned, passed))
        tasks, count = _scan_tasks(scanned, passed), self._scans(scanned)
        dealt = [ScanTasks(tuple(tasks[first::count])) for first in range(count)]
        return Executors().rows(dealt, schema, self.spark)

    def shown_to_join(self, scanned: Scanned, passed: PassThrough) -> DataFrame:
        """The rows of a target, planned for few rows, for a join with these.

        Few rows are sent to the task that joins them, so that nothing is shuffled. Others are
        shuffled: Spark does not know that there may be many.
        """
        is_little = self.count == 1 and tasks_for(self.spark, scanned.stored_bytes) == 1
        return self._read(scanned, passed).hint("broadcast" if is_little else "merge")

    def _scans(self, scanned: Scanned) -> int:
        return min(len(scanned.splits), tasks_for(self.spark, scanned.stored_bytes))

    def feed_splits(
        self, task: FeedTask[T], rows: DataFrame, take: Callable[[T], None], *, moved: bool
    ) -> None:
        """See `Workers`. Runs one Spark job."""
        if moved or not is_apache_spark(self.spark):
            rows = self._grouped(rows, column(SPLIT))
        Executors().feed(task, rows, take)

    def feed_dealt(
        self, task: FeedTask[T], rows: DataFrame, by: Column, take: Callable[[T], None]
    ) -> None:
        """See `Workers`. Runs one Spark job."""
        Executors().feed(task, self._grouped(rows, by), take)

    def _grouped(self, rows: DataFrame, by: Column) -> DataFrame:
        # One task sees all rows, so they need no shuffle.
        return rows.coalesce(1) if self.count == 1 else rows.repartition(self.count, by)


@dataclass(frozen=True)
class DriverWorkers:
    """Threads of the driver, which holds all rows in memory."""

    spark: SparkSession
    count: int = 1

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """See `Workers`."""
        local_runner().each(tasks, take)

    def shown(self, scanned: Scanned, passed: PassThrough) -> DataFrame:
        """See `Workers`. Reads all rows."""
        schema = batch_schema(scanned_schema(scanned, passed))
        reads = [partial(_read, task, schema) for task in _scan_tasks(scanned, passed)]
        tables = local_runner().map(reads)
        # Empty batches are removed, because pyspark's createDataFrame loses the rows after one.
        batches = [each for table in tables for each in table.to_batches() if each.num_rows]
        rows = pa.Table.from_batches(batches, schema)
        return self.spark.createDataFrame(rows, spark_schema(schema))

    def feed_splits(
        self, task: FeedTask[T], rows: DataFrame, take: Callable[[T], None], *, moved: bool
    ) -> None:
        """See `Workers`. Runs a Spark job in the JVM only."""
        found = self._computed(rows)
        splits = found.column(SPLIT).to_numpy()
        tasks = [
            partial(task.feed, [found.filter(pa.array(splits == split))], int(split))
            for split in np.unique(splits)
        ]
        self._run(tasks, take)

    def feed_dealt(
        self, task: FeedTask[T], rows: DataFrame, by: Column, take: Callable[[T], None]
    ) -> None:
        """See `Workers`. Runs a Spark job in the JVM only. All rows form one group."""
        self._run([partial(task.feed, [self._computed(rows)], 0)], take)

    def _computed(self, rows: DataFrame) -> pa.Table:
        with on_driver():
            return rows.toArrow()

    def _run(self, tasks: Sequence[Callable[[], T | None]], take: Callable[[T], None]) -> None:
        def take_made(made: T | None) -> None:
            if made is not None:
                take(made)

        self.each(tasks, take_made)


def _read(task: ScanTask, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(task.batches(), schema)
