"""Tasks on Spark's executors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from keytide.spark.errors import on_driver
from keytide.spark.worker import settle
from keytide.table.runner import FeedTask, Outcome, attempted, settled

__all__ = ["Executors", "attempted_here"]

T = TypeVar("T")


class Executors:
    """Runs feed tasks over DataFrames, one task for each of Spark's partitions."""

    def feed(self, task: FeedTask[T], rows: DataFrame, take: Callable[[T], None]) -> None:
        """Run one Spark job and hand on what its tasks made, in the order of the partitions.

        Raises the first error of a task after what the others made was handed on, and Spark's own
        failures as Keytide errors. A stop, such as Ctrl-C, cancels the job.
        """

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            outcome = pickle.dumps(attempted_here(task, batches))
            yield pa.record_batch([pa.array([outcome], pa.binary())], names=["outcome"])

        with on_driver():
            collected = rows.mapInArrow(run, "outcome binary").collect()
        settled((pickle.loads(bytes(row.outcome)) for row in collected), take)


def attempted_here(task: FeedTask[T], batches: Iterable[pa.RecordBatch]) -> Outcome[T]:
    """Run a feed task on the rows of the partition that this executor works on."""
    settle()
    context = TaskContext.get()
    assert context is not None
    pieces = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
    return attempted(task, pieces, int(context.partitionId()))
