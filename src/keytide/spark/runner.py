"""Runs tasks on Spark's executors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from keytide.base.process import scratch
from keytide.spark.columns import row_bytes
from keytide.spark.connect import is_apache_spark
from keytide.spark.errors import offered, on_driver, speak_plainly
from keytide.spark.jobs import ended_after_errors
from keytide.spark.payloads import packed, payload_rows, payloads_in, unpacked
from keytide.spark.row_batches import counted_batches
from keytide.spark.worker import settle
from keytide.tasks.runner import FeedTask, Outcome, attempted, settled, tried

__all__ = [
    "Cluster",
    "Executors",
    "MakingTask",
    "RowsTask",
    "attempted_here",
    "made_here",
    "rows_here",
    "running_tasks",
]

T = TypeVar("T")


class RowsTask(Protocol):
    """Work that returns rows. Can be pickled."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        ...


class MakingTask(Protocol):
    """Work that converts rows to other rows. Can be pickled."""

    def batches(self, rows: Iterable[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]:
        """Convert the rows of one partition."""
        ...


def running_tasks(spark: SparkSession) -> tuple[int, int]:
    """The numbers of finished and of all tasks in the stages that are running.

    Can be called from any thread. Returns zeros if Spark does not report them, because this is only
    for a progress line.
    """
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:
        return 0, 0
    known = [stage for stage in stages if stage is not None]
    return sum(each.numCompletedTasks for each in known), sum(each.numTasks for each in known)


@dataclass(frozen=True)
class Cluster:
    """Runs self-contained tasks on the executors of a session. See `TaskRunner`."""

    spark: SparkSession

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """Run one Spark job, and pass on the results in order.

        Spark retries a task that fails, unless a retry cannot fix its error. Then the results of
        the others are passed on first. If a task fails for good, they are lost.
        """
        with on_driver():
            payloads = payload_rows(tasks, self.spark)
            outcomes = payloads.mapInArrow(_outcomes, "outcome binary")
        _settle(outcomes, take)


class Executors:
    """Runs tasks over the partitions of a DataFrame, or as the partitions of a new one."""

    def rows(
        self,
        tasks: Sequence[RowsTask],
        schema: StructType,
        spark: SparkSession,
        count: int | None = None,
    ) -> DataFrame:
        """The rows that tasks return, as a lazy DataFrame. A Spark task runs one task, or several.

        `count` is the maximum number of rows, None if it is unknown. Spark uses it to plan joins.
        An error in a task is raised as the Keytide error, which is also an error class of Spark.
        """
        speak_plainly()
        made_bytes = (_COUNT_UNKNOWN if count is None else count) * row_bytes(schema)
        return payload_rows(tasks, spark, made_bytes).mapInArrow(_rows, schema)

    def made(self, task: MakingTask, rows: DataFrame, schema: StructType) -> DataFrame:
        """The rows that a task creates from each partition of other rows, as a lazy DataFrame."""
        payload = packed(task)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from made_here(payload, batches)

        return rows.mapInArrow(run, schema)

    def feed(
        self,
        task: FeedTask[T],
        rows: DataFrame,
        take: Callable[[T], None],
        known_row_bytes: float = 0,
    ) -> None:
        """Run one Spark job, and pass on the results of its tasks in the order of the partitions.

        Raises the first error of a task that a retry cannot fix after passing on the results of the
        others, and other errors of tasks as Keytide errors without passing on any. An interrupt
        such as Ctrl-C cancels the job. After an error, no task runs any more. `known_row_bytes` is
        as in `counted_batches`.
        """
        attempt = attempted_here
        if not is_apache_spark(rows.sparkSession):
            attempt = _attempted_by_number
            rows = rows.select("*", F.spark_partition_id().alias(_PARTITION))

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield _told(attempt(task, batches))

        with on_driver():
            outcomes = rows.mapInArrow(run, "outcome binary")
        with counted_batches(rows, known_row_bytes):
            _settle(outcomes, take)


def _settle(outcomes: DataFrame, take: Callable[[T], None]) -> None:
    """Run the tasks whose outcomes are the rows of a DataFrame, and pass on their results."""
    with on_driver(), offered(), ended_after_errors(outcomes.sparkSession):
        collected = outcomes.collect()
    settled((pickle.loads(bytes(row.outcome)) for row in collected), take)


_COUNT_UNKNOWN = 4 << 20
"""The row count that Spark is given."""


def _rows(payloads: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _, payload in payloads_in(payloads):
        yield from rows_here(payload)


def _outcomes(payloads: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for number, payload in payloads_in(payloads):
        yield _told(tried_here(payload, number))


def rows_here(payload: bytes) -> Iterator[pa.RecordBatch]:
    """Run a packed task on this executor and return its rows."""
    settle()
    task: RowsTask = unpacked(payload)
    yield from task.batches()


def made_here(payload: bytes, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a packed task on this executor and return the rows that it creates from others."""
    settle()
    task: MakingTask = unpacked(payload)
    yield from task.batches(batch for batch in rows if batch.num_rows)


def tried_here(payload: bytes, number: int) -> Outcome[Any]:
    """Run a packed task on this executor. An error that a retry cannot fix is an outcome."""
    settle()
    return tried(unpacked(payload), number)


def _told(outcome: Outcome[Any]) -> pa.RecordBatch:
    """An outcome as the row that is sent to the driver."""
    return pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], names=["outcome"])


def attempted_here(task: FeedTask[T], batches: Iterable[pa.RecordBatch]) -> Outcome[T]:
    """Run a feed task on the rows of the partition that this executor processes."""
    settle()
    context = TaskContext.get()
    # Servers other than Spark's do not tell it to a data source, which needs none there.
    number = 0 if context is None else int(context.partitionId())
    pieces = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
    return attempted(task, pieces, number)


_PARTITION = scratch("partition")


def _attempted_by_number(task: FeedTask[T], batches: Iterable[pa.RecordBatch]) -> Outcome[T]:
    """The same where tasks only know the number of their partition from a column of the rows."""
    settle()
    filled = (batch for batch in batches if batch.num_rows)
    first = list(islice(filled, 1))
    number = first[0].column(_PARTITION)[0].as_py() if first else 0
    pieces = (
        pa.Table.from_batches([batch]).drop_columns(_PARTITION) for batch in chain(first, filled)
    )
    return attempted(task, pieces, number)
