"""Runs tasks on Spark's executors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from keytide.spark.errors import on_driver
from keytide.spark.jobs import ended_after_errors
from keytide.spark.words import speak_plainly
from keytide.spark.worker import settle
from keytide.table.runner import FeedTask, Outcome, attempted, settled, tried

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
        """Run one Spark job with one Spark task for each task, and pass on the results in order.

        Spark retries a task that fails, unless a retry cannot fix its error. Then the results of
        the others are passed on first. If a task fails for good, they are lost.
        """
        payloads = [pickle.dumps(task) for task in tasks]

        def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield _told(tried_here(payloads[number], number))

        with on_driver():
            numbers = self.spark.range(0, len(payloads), 1, max(1, len(payloads)))
            outcomes = numbers.mapInArrow(run, "outcome binary")
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
        """The rows that tasks return, as a lazy DataFrame with one partition for each task.

        `count` is the maximum number of rows, None if it is unknown. Spark uses it to plan joins.
        An error in a task is raised as the Keytide error, which is also an error class of Spark.
        """
        speak_plainly()
        # Each task is pickled separately, and unpickled only where it runs.
        payloads = [pickle.dumps(task) for task in tasks]
        weight = _weight(len(payloads), count)

        def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from rows_here(payloads[number // weight])

        numbers = spark.range(0, len(payloads) * weight, 1, max(1, len(payloads)))
        return numbers.where(f"id % {weight} = 0").mapInArrow(run, schema)

    def made(self, task: MakingTask, rows: DataFrame, schema: StructType) -> DataFrame:
        """The rows that a task creates from each partition of other rows, as a lazy DataFrame."""
        payload = pickle.dumps(task)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from made_here(payload, batches)

        return rows.mapInArrow(run, schema)

    def feed(self, task: FeedTask[T], rows: DataFrame, take: Callable[[T], None]) -> None:
        """Run one Spark job, and pass on the results of its tasks in the order of the partitions.

        Raises the first error of a task that a retry cannot fix after passing on the results of the
        others, and other errors of tasks as Keytide errors without passing on any. An interrupt
        such as Ctrl-C cancels the job. After an error, no task runs any more.
        """

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield _told(attempted_here(task, batches))

        with on_driver():
            outcomes = rows.mapInArrow(run, "outcome binary")
        _settle(outcomes, take)


def _settle(outcomes: DataFrame, take: Callable[[T], None]) -> None:
    """Run the tasks whose outcomes are the rows of a DataFrame, and pass on their results."""
    with on_driver(), ended_after_errors(outcomes.sparkSession):
        collected = outcomes.collect()
    settled((pickle.loads(bytes(row.outcome)) for row in collected), take)


_COUNT_UNKNOWN, _COUNT_MAX = 4 << 20, 64 << 20
"""The row counts that Spark is given. Generating the larger number of rows takes 0.1 s."""


def _weight(tasks: int, count: int | None) -> int:
    """How many numbers of a range represent a task, so that Spark estimates the right row count.

    Spark knows the size of a range of numbers, and assumes that a Python step on it returns as many
    rows. The result is a power of two, because Spark compiles code for each different number.
    """
    known = _COUNT_UNKNOWN if count is None else min(count, _COUNT_MAX)
    return 1 << max(0, known // max(tasks, 1) - 1).bit_length()


def rows_here(payload: bytes) -> Iterator[pa.RecordBatch]:
    """Run a pickled task on this executor and return its rows."""
    settle()
    task: RowsTask = pickle.loads(payload)
    yield from task.batches()


def made_here(payload: bytes, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a pickled task on this executor and return the rows that it creates from others."""
    settle()
    task: MakingTask = pickle.loads(payload)
    yield from task.batches(batch for batch in rows if batch.num_rows)


def tried_here(payload: bytes, number: int) -> Outcome[Any]:
    """Run a pickled task on this executor. An error that a retry cannot fix is an outcome."""
    settle()
    return tried(pickle.loads(payload), number)


def _told(outcome: Outcome[Any]) -> pa.RecordBatch:
    """An outcome as the row that is sent to the driver."""
    return pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], names=["outcome"])


def attempted_here(task: FeedTask[T], batches: Iterable[pa.RecordBatch]) -> Outcome[T]:
    """Run a feed task on the rows of the partition that this executor processes."""
    settle()
    context = TaskContext.get()
    assert context is not None
    pieces = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
    return attempted(task, pieces, int(context.partitionId()))
