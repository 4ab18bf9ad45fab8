"""Changes as Spark plans: executors run the same tasks as a local read of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from keytide.changes.change_scan import Changes, ChangesTask
from keytide.changes.lanes import Lane
from keytide.spark.python import check_python
from keytide.spark.read import BinTask
from keytide.spark.runner import Executors
from keytide.spark.sizing import pack, tasks_for
from keytide.spark.types import spark_schema

__all__ = ["bins_of", "changes_to_spark"]


def changes_to_spark(changes: Changes, spark: SparkSession) -> DataFrame:
    """The changes as a lazy DataFrame that keeps reading the same snapshots.

    All rows of a key are in one partition, in order.

    Runs on the driver and reads metadata only. Works in classic and Spark Connect sessions. An
    error in a task is raised as the Keytide error, which is also an error class of Spark.
    """
    check_python(spark)
    bins = bins_of(changes, lambda *work: tasks_for(spark, *work), changes.schema)
    # A changed key gives a before and an after image.
    count = 2 * sum(file.meta.row_count for task in changes.tasks() for file in task.files)
    return Executors().rows(bins, spark_schema(changes.schema), spark, count)


def bins_of(
    changes: Changes, count_for: Callable[[int, int], int], schema: pa.Schema
) -> list[BinTask]:
    """Pack the tasks into bins, which return the columns of `schema`.

    `count_for` says how many, for the bytes and rows of all files.

    Tasks of one lane stay together and in order, because the partitions of a DataFrame have no
    order among them.
    """
    of_lanes: dict[Lane, list[ChangesTask]] = {}
    for task in changes.tasks():
        of_lanes.setdefault(task.lane, []).append(task)
    files = [file.meta for tasks in of_lanes.values() for task in tasks for file in task.files]
    count = count_for(sum(f.file_size for f in files), sum(f.row_count for f in files))
    bins = pack(of_lanes.values(), count, _bytes)
    flat = (tuple(chain.from_iterable(members)) for members in bins)
    return [
        BinTask(tasks, schema, changes.view.name, snapshot_ids=changes.snapshot_ids)
        for tasks in flat
    ]


def _bytes(tasks: Sequence[ChangesTask]) -> int:
    files: Iterable[int] = (file.meta.file_size for task in tasks for file in task.files)
    return sum(files)
