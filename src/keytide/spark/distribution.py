"""How the rows of a DataFrame are distributed to the tasks that write them.

With `hash`, a shuffle brings the rows of each bucket to one task, so that each bucket gets one
sorted run. With `none`, the rows stay in the partitions of the DataFrame, and each task writes a
run for each bucket in its rows. This saves a third to a half of the work of a load, but readers
must merge the runs until they are compacted. In both cases the later row of a key wins: the rows of
a task are sorted by their position in the DataFrame after a shuffle, whose blocks arrive in any
order, and the tasks of later partitions use higher sequence numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from pyspark.sql import DataFrame

from keytide.base.scratch import scratch
from keytide.definition.distribution import check_distribution, why_brought_together
from keytide.errors import UnsupportedError
from keytide.options import keys
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.view import TableView
from keytide.spark.bucket import with_bucket
from keytide.spark.capacity import capacity_of
from keytide.spark.connect import is_apache_spark, is_connect, server_name
from keytide.spark.generated import with_placing_columns
from keytide.spark.internals import estimated_bytes, partition_count, planned_bytes
from keytide.spark.predicate import column
from keytide.spark.shuffle import brought_together
from keytide.spark.sizing import TASKS_PER_SLOT, tasks_for
from keytide.types import quoted
from keytide.write.task import WriteTask
from keytide.write.ties import Order

__all__ = ["by_bucket", "distributed", "order_by_bucket", "tasks_for_rows", "writers_for_rows"]

_SMALL_BYTES = 10 << 20
"""Below this size, a task costs more than it gains.

It is Spark's own limit for a small relation.
"""

_ROWS_PER_PLANNED = 2
"""How many times larger rows are in memory than Spark estimates for rows from files."""


def distributed(task: WriteTask, df: DataFrame, live: LiveFiles) -> tuple[WriteTask, DataFrame]:
    """The write task and the DataFrame to feed it with, according to 'write.distribution'.

    `live` are the table's current files. Plans the DataFrame, but runs no job. Raises
    `InvalidError` for an option set by another engine whose value is not supported.
    """
    check_distribution(task.view.schema, task.view.options)
    task = replace(task, order=order_by_bucket(df))
    partitions = None if is_connect(df) else partition_count(df)
    if partitions == 1:
        return replace(task, threads=_threads(df, 1)), df  # a single task can use all cores
    if _stays(task.view, df, partitions, live):
        return replace(task, threads=_threads(df, partitions)), df
    task = replace(task, layout=task.layout.for_tasks(writers_for_rows(df)))
    return task, by_bucket(df, task.view, task.layout.spread)


def order_by_bucket(df: DataFrame) -> Order:
    """What tasks know of the order of a DataFrame's rows that are grouped by bucket."""
    return Order.KNOWN if is_apache_spark(df.sparkSession) else Order.UNKNOWN


def _stays(view: TableView, df: DataFrame, partitions: int | None, live: LiveFiles) -> bool:
    """Whether rows stay in their partitions."""
    if _scatters(view):
        return True
    chosen = view.options.write_distribution
    if chosen == "none" and view.kind.has_key and not is_apache_spark(df.sparkSession):
        raise UnsupportedError(
            f"table {view.name}: '{keys.WRITE_DISTRIBUTION}' = 'none' leaves rows where they are, "
            f"but {server_name(df.sparkSession)} does not keep their order. Set it to 'auto', or "
            "write df.toArrow()"
        )
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
    """Whether any number of tasks can write to one bucket, because its rows are never merged."""
    one_place = not view.schema.partition_keys and view.options.bucket <= 1
    return one_place and not view.kind.has_key


def _has_files(live: LiveFiles) -> bool:
    return any(not bucket.is_empty for bucket in live.buckets.values())


def _runs(partitions: int, planned: int, view: TableView) -> int:
    """The number of runs that each bucket gets from this number of partitions."""
    held = _ROWS_PER_PLANNED * planned / max(partitions, 1)
    return partitions * math.ceil(held / view.options.write_buffer_bytes)


def _threads(df: DataFrame, partitions: int | None) -> int:
    """Threads of each task, when there are fewer tasks than cores."""
    if partitions is None:
        return 1
    capacity = capacity_of(df.sparkSession)
    return max(1, min(capacity.beside, (capacity.slots or 1) // max(partitions, 1)))


# -- grouping rows by bucket ---------------------------------------------------------------------

_BUCKET, _TARGET, _ORDER = map(scratch, ("bucket", "target", "order"))


def by_bucket(df: DataFrame, view: TableView, spread: int) -> DataFrame:
    """Shuffle each bucket into one partition, whose rows keep their order in the DataFrame."""
    df = with_placing_columns(df, view)
    names = [quoted(name) for name in df.columns]
    # When keys can move between partitions, all rows of a key must reach one task.
    apart = () if view.moves_keys else view.schema.partition_keys
    partition_keys = ", ".join(map(quoted, apart))
    count = tasks_for_rows(df) if partition_keys else min(tasks_for_rows(df), spread)
    # Any hash works here as long as a bucket stays together. The bucket itself is computed below by
    # the format's own hash.
    target = f"pmod(hash({partition_keys}), {count})" if partition_keys else "0"
    keeps_order = is_apache_spark(df.sparkSession)
    rows = df
    if keeps_order:
        rows = rows.selectExpr(*names, f"monotonically_increasing_id() AS {_ORDER}")
        names = [*names, _ORDER]
    if spread > 1:
        rows = with_bucket(rows, view, spread, _BUCKET)
        target = f"{target} + {_BUCKET}"
    targeted = rows.selectExpr(*names, f"{target} AS {_TARGET}")
    shuffled = brought_together(targeted, count, column(_TARGET))
    if not keeps_order:
        return shuffled.drop(_TARGET)
    # Blocks of other executors arrive in any order, and Spark can spill what it sorts.
    return shuffled.sortWithinPartitions(_ORDER).drop(_TARGET, _ORDER)


def tasks_for_rows(df: DataFrame) -> int:
    """The number of tasks of a step over all rows.

    Spark's estimate for a join is far too large. So it never leads to more tasks than several for
    each core, or than Spark uses for a shuffle.
    """
    spark = df.sparkSession
    most, shuffled = tasks_for(spark, None), spark.conf.get("spark.sql.shuffle.partitions", None)
    limit = max(most, int(shuffled)) if shuffled and shuffled.isdecimal() else most
    return min(limit, tasks_for(spark, estimated_bytes(df)))


def writers_for_rows(df: DataFrame) -> int:
    """The number of tasks that may each begin new buckets: fewer, so that buckets are not small."""
    return math.ceil(tasks_for_rows(df) / TASKS_PER_SLOT)
