"""DELETE and UPDATE on Spark, in executors or, for small amounts of data, in the driver.

- On executors, the splits of a target are the partitions of a DataFrame. Spark SQL finds the rows
  and computes the new values. Then tasks pass these to a page source of the split that they came
  from. If a statement also refers to other tables, Spark may have moved rows, so they are grouped
  by split again. If the splits contain exactly the affected rows and the new values are constants,
  there is nothing to compute, and one task reads and changes the rows.
- The driver shows the rows as a local relation and collects the result, so Spark starts no Python
  task for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.compaction.compact import local_runner
from keytide.dml.engine import RowChange, SplitResult, TargetScan
from keytide.dml.matching_rows import MatchingRows
from keytide.spark.capacity import COPIES, WorkPlace, run_in_utc, tasks_for, work_place
from keytide.spark.columns import batch_schema, column, spark_schema
from keytide.spark.dml_tasks import (
    SPLIT,
    ChangeTask,
    ScanTask,
    ScanTasks,
    scanned_schema,
)
from keytide.spark.error_translation import check_python, on_driver, reason_of
from keytide.spark.internals import is_apache_spark
from keytide.spark.runner import Cluster, Executors
from keytide.sql.change_queries import RowQuery
from keytide.sql.merged_rows import PassThrough
from keytide.tasks import FeedTask

# -- workers: executors, or threads of the driver --------------------------------------------------


T = TypeVar("T")


Workers: TypeAlias = "ExecutorWorkers | DriverWorkers"
"""The workers for the rows of a target. `count` is the number of tasks of a MERGE."""


def one_by_one(target_scan: TargetScan) -> Iterator[TargetScan]:
    """The splits, one at a time."""
    for split in target_scan.splits:
        yield replace(target_scan, splits=[split])


@dataclass(frozen=True)
class ExecutorWorkers:
    """Executors, for rows of this size. None: the size is unknown."""

    spark: SparkSession
    known_bytes: int | None

    @cached_property
    def count(self) -> int:
        """The number of tasks among which the rows of a MERGE are distributed."""
        return tasks_for(self.spark, self.known_bytes)

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """See `TaskRunner.each`. Runs one Spark job."""
        Cluster(self.spark).each(tasks, take)

    def rows_for_sql(self, target_scan: TargetScan, passed: PassThrough) -> DataFrame:
        """The rows of a target, with the columns of `scanned_schema`. Lazy."""
        return self._read(target_scan, passed)

    def rows_to_join(self, target_scan: TargetScan, passed: PassThrough) -> DataFrame:
        """The rows of a target, planned for few rows, for a join with these.

        Few rows are sent to the task that joins them, so that nothing is shuffled. Others are
        shuffled: Spark does not know that there may be many.
        """
        is_little = self.count == 1 and tasks_for(self.spark, target_scan.stored_bytes) == 1
        return self._read(target_scan, passed).hint("broadcast" if is_little else "merge")

    def _read(self, target_scan: TargetScan, passed: PassThrough) -> DataFrame:
        check_python(self.spark)
        schema = spark_schema(scanned_schema(target_scan, passed))
        splits = enumerate(one_by_one(target_scan))
        tasks = [ScanTask(one, passed, number) for number, one in splits]
        count = min(len(target_scan.splits), tasks_for(self.spark, target_scan.stored_bytes))
        shuffled = [ScanTasks(tuple(tasks[first::count])) for first in range(count)]
        return Executors().rows(shuffled, schema, self.spark)

    def feed_splits(
        self, task: FeedTask[T], rows: DataFrame, take: Callable[[T], None], *, moved: bool
    ) -> None:
        """Run a task on rows grouped by split. Runs one Spark job.

        `moved` means that rows of a split may be scattered.
        """
        if moved or not is_apache_spark(self.spark):
            rows = self._grouped(rows, column(SPLIT))
        Executors().feed(task, rows, take)

    def feed_shuffled(
        self, task: FeedTask[T], rows: DataFrame, by: Column, take: Callable[[T], None]
    ) -> None:
        """Run a task on rows grouped by the value of `by`. Runs one Spark job."""
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
        """See `TaskRunner.each`."""
        local_runner().each(tasks, take)

    def rows_for_sql(self, target_scan: TargetScan, passed: PassThrough) -> DataFrame:
        """See `ExecutorWorkers`. Reads all rows."""
        schema = batch_schema(scanned_schema(target_scan, passed))
        splits = enumerate(one_by_one(target_scan))
        tasks = [ScanTask(one, passed, number) for number, one in splits]
        tables = local_runner().map([partial(_read, task, schema) for task in tasks])
        # Empty batches are removed, because pyspark's createDataFrame loses the rows after one.
        batches = [each for table in tables for each in table.to_batches() if each.num_rows]
        rows = pa.Table.from_batches(batches, schema)
        return self.spark.createDataFrame(rows, spark_schema(schema))

    def feed_splits(
        self, task: FeedTask[T], rows: DataFrame, take: Callable[[T], None], *, moved: bool
    ) -> None:
        """See `ExecutorWorkers`. Runs a Spark job in the JVM only."""
        found = self._computed(rows)
        splits = found.column(SPLIT).to_numpy()
        tasks = [
            partial(task.feed, [found.filter(pa.array(splits == split))], int(split))
            for split in np.unique(splits)
        ]
        self._run(tasks, take)

    def feed_shuffled(
        self, task: FeedTask[T], rows: DataFrame, by: Column, take: Callable[[T], None]
    ) -> None:
        """See `ExecutorWorkers`. Runs a Spark job in the JVM only. All rows form one group."""
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


# -- changes by executors or the driver ------------------------------------------------------------


@dataclass(frozen=True)
class SparkMatchingRowsHost:
    """Changes rows that meet a predicate, in a session. See `Host`."""

    rows: MatchingRows
    spark: SparkSession
    driver_bytes_max: int

    def plan_lines(self, stored_bytes: int | None, *, is_exact: bool) -> Sequence[str]:
        """See `Host.plan_lines`."""
        return (f"runs {work_place(self.spark, self.driver_bytes_max, stored_bytes)}",)

    def change(
        self, target_scan: TargetScan, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        """See `Host.change`. Runs at most one Spark job."""
        place = work_place(self.spark, self.driver_bytes_max, target_scan.stored_bytes)
        tasks = [partial(self.rows.change, one, change, 0) for one in one_by_one(target_scan)]
        workers_at(self.spark, place).each(tasks, take)


def workers_at(spark: SparkSession, place: WorkPlace) -> Workers:
    """The workers for a place."""
    return DriverWorkers(spark) if place.is_driver else ExecutorWorkers(spark, place.known_bytes)


@dataclass(frozen=True)
class SparkRowHost:
    """Runs DELETE and UPDATE in a session. See `Host`."""

    query: RowQuery
    spark: SparkSession
    compute: Callable[[Sequence[str], DataFrame], DataFrame]
    """Runs the query over the target's rows. Some columns are passed through unchanged."""
    driver_bytes_max: int

    def plan_lines(self, stored_bytes: int | None, *, is_exact: bool) -> Sequence[str]:
        """See `Host.plan_lines`."""
        return (f"runs {self._place(stored_bytes, self.query.constants if is_exact else None)}",)

    def change(
        self, target_scan: TargetScan, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        """See `Host.change`. Runs at most one Spark job."""
        fields, table = self.query.fields, self.query.table
        constants = self.query.constants if target_scan.is_exact else None
        if constants is not None:
            values = [column[0] for column in constants.columns]
            rows = MatchingRows(updated=fields, values=values, table=table)
            host = SparkMatchingRowsHost(rows, self.spark, self.driver_bytes_max)
            host.change(target_scan, change, take)
            return
        workers = workers_at(self.spark, self._place(target_scan.stored_bytes, None))
        passed = PassThrough(target_scan.columns[-1].type)
        task = ChangeTask(target_scan, change, passed, fields, table)
        results: list[list[SplitResult]] = []
        # A join or a subquery can move rows away from the other rows of their split.
        moved = bool(self.query.bound.relations)
        try:
            target = workers.rows_for_sql(target_scan, passed)
            found = self.compute((*passed.names, SPLIT), target)
            with run_in_utc(self.spark):
                workers.feed_splits(task, found, results.append, moved=moved)
        except PySparkException as error:
            raise self.query.bound.refused(reason_of(error)) from error
        finally:
            for each in results:
                for result in each:
                    take(result)

    def _place(self, stored_bytes: int | None, constants: pa.Table | None) -> WorkPlace:
        if stored_bytes is not None and constants is None:
            stored_bytes *= COPIES
        return work_place(self.spark, self.driver_bytes_max, stored_bytes)
