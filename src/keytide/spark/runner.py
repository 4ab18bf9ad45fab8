"""Tasks on Spark's executors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from keytide.errors import KeytideError
from keytide.spark.errors import on_driver
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
    """Work that gives rows. Pickles."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        ...


class MakingTask(Protocol):
    """Work that makes rows of others. Pickles."""

    def batches(self, rows: Iterable[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]:
        """The rows that are made of those of one partition."""
        ...


def running_tasks(spark: SparkSession) -> tuple[int, int]:
    """How many tasks of the stages that run now are done, and how many there are.

    From any thread. Nothing where Spark does not tell: it is for a line of progress only.
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
    """Runs tasks that bring their own work on the executors of a session; see `TaskRunner`."""

    spark: SparkSession

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """Run one Spark job with a task for each, and hand on what they made, in their order.

        A task that fails does not end the job: what the others made would be lost with it.
        """
        payloads = [pickle.dumps(task) for task in tasks]

        def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield _told(tried_here(payloads[number], number))

        with on_driver():
            numbers = self.spark.range(0, len(payloads), 1, max(1, len(payloads)))
            collected = numbers.mapInArrow(run, "outcome binary").collect()
        settled((pickle.loads(bytes(row.outcome)) for row in collected), take)


class Executors:
    """Runs tasks on a cluster: over the partitions of a DataFrame, or as those of a new one."""

    def rows(
        self,
        tasks: Sequence[RowsTask],
        schema: StructType,
        spark: SparkSession,
        count: int | None = None,
    ) -> DataFrame:
        """The rows that tasks give, as a lazy DataFrame of one partition for each of them.

        `count` is how many rows these are at most, None where nobody knows; Spark plans joins by
        it. What a task raises reaches the user as the Keytide error, which is one of Spark's too.
        """
        speak_plainly()
        # Each task is pickled by itself, and unpickled only where it runs.
        payloads = [pickle.dumps(task) for task in tasks]
        weight = _weight(len(payloads), count)

        def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from rows_here(payloads[number // weight])

        numbers = spark.range(0, len(payloads) * weight, 1, max(1, len(payloads)))
        return numbers.where(f"id % {weight} = 0").mapInArrow(run, schema)

    def made(self, task: MakingTask, rows: DataFrame, schema: StructType) -> DataFrame:
        """The rows that a task makes of each partition of other rows, as a lazy DataFrame."""
        payload = pickle.dumps(task)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from made_here(payload, batches)

        return rows.mapInArrow(run, schema)

    def feed(self, task: FeedTask[T], rows: DataFrame, take: Callable[[T], None]) -> None:
        """Run one Spark job and hand on what its tasks made, in the order of the partitions.

        Raises the first error of a task after what the others made was handed on, and Spark's own
        failures as Keytide errors. A stop, such as Ctrl-C, cancels the job.
        """

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield _told(attempted_here(task, batches))

        with on_driver():
            collected = rows.mapInArrow(run, "outcome binary").collect()
        settled((pickle.loads(bytes(row.outcome)) for row in collected), take)


_COUNT_UNKNOWN, _COUNT_MAX = 4 << 20, 64 << 20
"""Rows as Spark is told them; what it takes to count to the larger one is 0.1 s."""


def _weight(tasks: int, count: int | None) -> int:
    """How many numbers stand for a task, so that Spark thinks of as many rows as there are.

    It knows how large a range of numbers is, and takes what Python makes of one for as long, as a
    condition could keep all of it. A power of two, as Spark compiles code for every other number.
    """
    known = _COUNT_UNKNOWN if count is None else min(count, _COUNT_MAX)
    return 1 << max(0, known // max(tasks, 1) - 1).bit_length()


def rows_here(payload: bytes) -> Iterator[pa.RecordBatch]:
    """The rows that a pickled task gives, on this executor."""
    settle()
    task: RowsTask = pickle.loads(payload)
    yield from task.batches()


def made_here(payload: bytes, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that a pickled task makes of others, on this executor."""
    settle()
    task: MakingTask = pickle.loads(payload)
    yield from task.batches(batch for batch in rows if batch.num_rows)


def tried_here(payload: bytes, number: int) -> Outcome[Any]:
    """Run a pickled task on this executor; its error is an outcome."""
    settle()
    try:
        return tried(pickle.loads(payload), number)
    except KeytideError as error:
        return Outcome(number, error=error)


def _told(outcome: Outcome[Any]) -> pa.RecordBatch:
    """An outcome as the row in which it travels to the driver."""
    return pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], names=["outcome"])


def attempted_here(task: FeedTask[T], batches: Iterable[pa.RecordBatch]) -> Outcome[T]:
    """Run a feed task on the rows of the partition that this executor works on."""
    settle()
    context = TaskContext.get()
    assert context is not None
    pieces = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
    return attempted(task, pieces, int(context.partitionId()))
