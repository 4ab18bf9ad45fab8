"""How the rows of a DataFrame come to the tasks that write them.

By `hash`, a shuffle brings the rows of each bucket into one task, so that each bucket gets one
sorted run. By `none` the rows stay in the partitions of the DataFrame, and each task writes a run
for each bucket that it meets: that saves a third to a half of the work of a load, and leaves the
runs to be merged by readers until they are compacted. Either way the later row of a key wins: rows
keep the order of the DataFrame through a shuffle, and tasks have higher sequence numbers than those
of the partitions before.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace

from pyspark.sql import DataFrame

from keytide.scratch import scratch
from keytide.spark.bucket import with_bucket
from keytide.spark.buffered import ORDER
from keytide.spark.connect import cores, is_connect
from keytide.spark.generated import with_placing_columns
from keytide.spark.internals import partition_count, planned_bytes
from keytide.table.definition.distribution import check_distribution, why_brought_together
from keytide.table.state.live_files import LiveFiles
from keytide.table.state.view import TableView
from keytide.table.write.task import WriteTask
from keytide.types import quoted

__all__ = ["TASKS_PER_CORE", "by_bucket", "distributed"]

TASKS_PER_CORE = 4
"""Tasks of a write at most; more balance better where partitions differ in size."""

_SMALL_BYTES = 10 << 20
"""Up to here a task costs more than it balances. Spark's own idea of a small relation."""

_ROWS_PER_PLANNED = 2
"""How many times larger rows are in memory than Spark plans for those of files."""


def distributed(task: WriteTask, df: DataFrame, live: LiveFiles) -> tuple[WriteTask, DataFrame]:
    """A task and the partitions to feed to it, as 'write.distribution' says.

    `live` are the files that the rows come on top of. Plans the DataFrame, and runs nothing. Raises
    `InvalidError` where an option that another engine has set cannot be.
    """
    check_distribution(task.view.schema, task.view.options)
    partitions = None if is_connect(df) else partition_count(df)
    if partitions == 1:
        return replace(task, threads=os.cpu_count() or 1), df  # a single task may use all cores
    if _stays(task.view, df, partitions, live):
        return replace(task, threads=_threads(df, partitions)), df
    task = replace(task, layout=task.layout.for_tasks(cores(df.sparkSession)))
    return task, by_bucket(df, task.view, task.layout.spread)


def _stays(view: TableView, df: DataFrame, partitions: int | None, live: LiveFiles) -> bool:
    """Whether rows stay in their partitions."""
    if _scatters(view):
        return True
    chosen = view.options.write_distribution
    if chosen != "auto":
        return chosen == "none"
    if partitions is None or view.schema.partition_keys or _has_files(live):
        return False
    if why_brought_together(view.schema, view.options) is not None:
        return False
    planned = planned_bytes(df)
    if planned <= _SMALL_BYTES:
        return False
    return _runs(partitions, planned, view) < view.options.compaction_trigger_runs


def _scatters(view: TableView) -> bool:
    """Whether any number of tasks may write to where the rows go, as none is merged there."""
    one_place = not view.schema.partition_keys and view.options.bucket <= 1
    return one_place and not view.kind.has_key


def _has_files(live: LiveFiles) -> bool:
    return any(not bucket.is_empty for bucket in live.buckets.values())


def _runs(partitions: int, planned: int, view: TableView) -> int:
    """How many runs each bucket gets of so many partitions."""
    held = _ROWS_PER_PLANNED * planned / max(partitions, 1)
    return partitions * math.ceil(held / view.options.write_buffer_bytes)


def _threads(df: DataFrame, partitions: int | None) -> int:
    """Threads of each task, where there are fewer tasks than cores."""
    if partitions is None:
        return 1
    return max(1, min(os.cpu_count() or 1, cores(df.sparkSession) // max(partitions, 1)))


# -- bringing rows of a bucket together ----------------------------------------------------------

_BUCKET, _TARGET = map(scratch, ("bucket", "target"))


def by_bucket(df: DataFrame, view: TableView, spread: int) -> DataFrame:
    """The rows with each bucket in one partition; their order in the DataFrame is in `ORDER`."""
    df = with_placing_columns(df, view)
    names = [quoted(name) for name in df.columns]
    # A key that may come in any partition has to come to one task.
    apart = () if view.moves_keys else view.schema.partition_keys
    partition_keys = ", ".join(map(quoted, apart))
    count = _task_count(df) if partition_keys else min(_task_count(df), spread)
    # Any spread will do that keeps a bucket together: the bucket itself is computed by the format's
    # own hash, below.
    target = f"pmod(hash({partition_keys}), {count})" if partition_keys else "0"
    rows = df.selectExpr(*names, f"monotonically_increasing_id() AS {ORDER}")
    if spread > 1:
        rows = with_bucket(rows, view, spread, _BUCKET)
        target = f"{target} + {_BUCKET}"
    targeted = rows.selectExpr(*names, ORDER, f"{target} AS {_TARGET}")
    return targeted.repartitionById(count, _TARGET).drop(_TARGET)


def _task_count(df: DataFrame) -> int:
    """How many tasks write at most: no more than run at a time where there is little to write."""
    is_small = not is_connect(df) and planned_bytes(df) <= _SMALL_BYTES
    return cores(df.sparkSession) * (1 if is_small else TASKS_PER_CORE)
