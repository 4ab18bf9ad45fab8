"""DataFrames into tables: executors write sorted files, the driver commits them once.

Rows are first brought together by bucket, so that each bucket gets one sorted run and readers
have little to merge; a DataFrame of one partition is written as it lies. A task cuts its rows
into runs of at most 'write-buffer-size', which bounds its memory. Within one write the later row
of a key wins: rows keep the order of the DataFrame through the shuffle, and sequence numbers grow
from task to task and from run to run. Where that order means nothing, use a sequence field.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from keytide.row_kind import ROW_KIND
from keytide.scratch import scratch
from keytide.spark.bucket import with_bucket
from keytide.spark.connect import cores, is_connect
from keytide.spark.errors import on_driver
from keytide.spark.internals import partition_count, planned_bytes
from keytide.spark.place import bytes_of_rows, place_of
from keytide.spark.python import check_python
from keytide.spark.runner import Executors
from keytide.spark.sized_runner import SizedRunner
from keytide.spark.stream import author_in_stream
from keytide.spark.types import arrow_schema_of, spark_schema
from keytide.table.commit.author import Author
from keytide.table.commit.result import WriteResult
from keytide.table.commit.transaction import Transaction
from keytide.table.local_writes import feed
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView
from keytide.table.upkeep.writing import writing
from keytide.table.write.input_rows import incoming_rows
from keytide.table.write.overwriting import partition_to_replace
from keytide.table.write.partition_spec import PartitionSpec
from keytide.table.write.task import WriteTask, Written
from keytide.table.write.writable import writable_view
from keytide.types import arrow_schema, quoted

__all__ = ["BufferedTask", "append", "check_columns", "fill", "overwrite"]

TASKS_PER_CORE = 4
"""Tasks of a write at most; more balance better where partitions differ in size."""

_SMALL_BYTES = 10 << 20
"""Up to here a task costs more than it balances. Spark's own idea of a small relation."""


def append(table: StoredTable, df: DataFrame, author: Author | None = None) -> WriteResult:
    """Write a DataFrame in one atomic commit, like `Table.write`.

    Runs one Spark job. Columns and types are checked before it starts, values by its tasks;
    after an error nothing is committed, and the files of finished tasks are deleted. Inside a
    `foreachBatch` function, commit user and identifier come from the query and batch by
    themselves; on Spark Connect they have to be given there. A repeated write runs no job, so it
    reports no rows. Raises as `Table.write` does.
    """
    check_python(df.sparkSession)
    table = table.pinned()
    view = writable_view(table)
    check_columns(df.schema, view)
    author = author or author_in_stream(df, table.uri)
    with writing(table, view, author, SizedRunner(df.sparkSession)) as transaction:
        if transaction.done is not None:
            return transaction.already_done()

        def write() -> None:
            fill(transaction, df)

        write()
        return transaction.commit(write)


def overwrite(
    table: StoredTable, df: DataFrame, partition: Mapping[str, Any] | None = None
) -> WriteResult:
    """Replace rows by those of a DataFrame in one atomic commit, like `Table.overwrite`.

    Runs one Spark job. Raises as `append` and `Table.overwrite` do.
    """
    check_python(df.sparkSession)
    table = table.pinned()
    view = writable_view(table)
    spec = partition_to_replace(view, partition)
    if spec is not None:
        df = _filled(df, spec)
    check_columns(df.schema, view)
    with writing(table, view, runner=SizedRunner(df.sparkSession)) as transaction:
        _feed(transaction, transaction.task_anew(spec), df)
        return transaction.overwrite(spec)


def _filled(df: DataFrame, spec: PartitionSpec) -> DataFrame:
    """The rows with the partition columns that they lack."""
    lacking = [
        (f, value)
        for f, value in zip(spec.fields, spec.values, strict=True)
        if f.name not in df.columns
    ]
    types = spark_schema(arrow_schema([f for f, _ in lacking]))
    constants = [
        F.lit(value[0].as_py()).cast(target.dataType).alias(target.name)
        for (_, value), target in zip(lacking, types.fields, strict=True)
    ]
    return df.select("*", *constants)


def fill(transaction: Transaction, df: DataFrame) -> None:
    """Write a DataFrame as the parts of a transaction; one Spark job. Raises as `append`."""
    _feed(transaction, transaction.task(), df)


def _feed(transaction: Transaction, task: WriteTask, df: DataFrame) -> None:
    limit = transaction.view.options.driver_work_bytes_max
    place = place_of(df.sparkSession, limit, bytes_of_rows(df))
    (_feed_here if place.is_driver else _feed_executors)(transaction, task, df)


def _feed_here(transaction: Transaction, task: WriteTask, df: DataFrame) -> None:
    """Have the driver write rows that Spark gives it: a job of the JVM alone, without a shuffle."""
    with on_driver():
        rows = df.toArrow()
    feed(transaction, task, rows)


def _feed_executors(transaction: Transaction, task: WriteTask, df: DataFrame) -> None:
    view = transaction.view
    if _is_one_partition(df):
        task = replace(task, threads=os.cpu_count() or 1)  # a single task may use all cores
    elif not _scatters(view):
        task = replace(task, layout=task.layout.for_tasks(cores(df.sparkSession)))
        df = _by_bucket(df, view, task.layout.spread)
    Executors().feed(BufferedTask(task), df, transaction.take)


@dataclass(frozen=True)
class BufferedTask:
    """A write of rows that come in small pieces, gathered into runs of 'write-buffer-size'."""

    task: WriteTask

    def feed(self, rows: Iterable[pa.Table], number: int) -> Written:
        """Write the rows as one or more sorted runs per bucket. Raises as `WriteTask.feed`."""
        return self.task.feed(_runs(rows, self.task.view.options.write_buffer_bytes), number)


def _runs(pieces: Iterable[pa.Table], buffer_bytes: int) -> Iterator[pa.Table]:
    """The rows in tables of about `buffer_bytes`, each in the DataFrame's order."""
    held: list[pa.Table] = []
    held_bytes = 0
    for piece in pieces:
        held.append(piece)
        held_bytes += piece.nbytes
        if held_bytes >= buffer_bytes:
            yield _in_order(pa.concat_tables(held))
            held, held_bytes = [], 0
    if held:
        yield _in_order(pa.concat_tables(held))


def _in_order(rows: pa.Table) -> pa.Table:
    if _ORDER not in rows.column_names:
        return rows
    order = rows.column(_ORDER).combine_chunks()
    rows = rows.drop_columns([_ORDER])
    if pc.all(pc.less_equal(order[:-1], order[1:])).as_py() in (True, None):
        return rows  # as a rule: shuffle blocks come in the order of their tasks
    return rows.take(pc.array_sort_indices(order))


def check_columns(schema: StructType, view: TableView) -> None:
    """Check a DataFrame's columns and types against a table.

    Raises `InvalidError` or `NotFoundError` as `Table.write`.
    """
    rows = arrow_schema_of(schema, view.name).empty_table()
    kinds = view.options.rowkind_field or ROW_KIND
    if kinds in rows.column_names:
        # Deletions need no more than the key; only the tasks will see whether there are others.
        for field in view.schema.fields:
            if field.name not in (*rows.column_names, *view.schema.primary_keys):
                rows = rows.append_column(field.name, pa.array([], field.type.to_arrow()))
    incoming_rows(rows, view.schema, view.options, view.name)


# -- bringing rows of a bucket together ----------------------------------------------------------

_ORDER, _BUCKET, _TARGET = map(scratch, ("order", "bucket", "target"))


def _by_bucket(df: DataFrame, view: TableView, spread: int) -> DataFrame:
    """The rows with each bucket in one partition; their order in the DataFrame is in `_ORDER`."""
    names = [quoted(name) for name in df.columns]
    # A key that may come in any partition has to come to one task.
    apart = () if view.moves_keys else view.schema.partition_keys
    partition_keys = ", ".join(map(quoted, apart))
    count = _task_count(df) if partition_keys else min(_task_count(df), spread)
    # Any spread will do that keeps a bucket together: the bucket itself is computed by the format's
    # own hash, below.
    target = f"pmod(hash({partition_keys}), {count})" if partition_keys else "0"
    rows = df.selectExpr(*names, f"monotonically_increasing_id() AS {_ORDER}")
    if spread > 1:
        rows = with_bucket(rows, view, spread, _BUCKET)
        target = f"{target} + {_BUCKET}"
    targeted = rows.selectExpr(*names, _ORDER, f"{target} AS {_TARGET}")
    return targeted.repartitionById(count, _TARGET).drop(_TARGET)


def _task_count(df: DataFrame) -> int:
    """How many tasks write at most: no more than run at a time where there is little to write."""
    is_small = not is_connect(df) and planned_bytes(df) <= _SMALL_BYTES
    return cores(df.sparkSession) * (1 if is_small else TASKS_PER_CORE)


def _scatters(view: TableView) -> bool:
    """Whether any number of tasks may write to where the rows go, as none is merged there."""
    one_place = not view.schema.partition_keys and view.options.bucket <= 1
    return one_place and not view.kind.has_key


def _is_one_partition(df: DataFrame) -> bool:
    """Whether all rows will be in one task, as far as can be told without running anything."""
    return not is_connect(df) and partition_count(df) == 1
