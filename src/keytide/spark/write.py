"""Writes of DataFrames to tables: executors write sorted files, and the driver commits once.

Depending on 'write.distribution', rows are first grouped by bucket, or written where they are. The
rows of a DataFrame with one partition always stay where they are. A task cuts its rows into runs of
at most 'write-buffer-size', which limits its memory. Within one write, the later row of a key wins:
rows keep the order of the DataFrame, and sequence numbers increase from task to task and from run
to run. Use a sequence field if that order has no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from keytide.base.row_kind import ROW_KIND
from keytide.catalogs.local_writes import feed
from keytide.commit.author import Author
from keytide.commit.result import WriteResult
from keytide.commit.transaction import Transaction
from keytide.compaction.raising import raise_replacement
from keytide.format.schema import TableSchema
from keytide.maintenance.upkeep.writing import writing
from keytide.options import TableOptions
from keytide.snapshot.live_files import NO_FILES, LiveFiles
from keytide.snapshot.stored import StoredTable
from keytide.snapshot.view import TableView
from keytide.spark.buffered import BufferedTask
from keytide.spark.distribution import distributed
from keytide.spark.errors import on_driver
from keytide.spark.place import bytes_of_rows, place_of
from keytide.spark.predicate import constant
from keytide.spark.python import check_python
from keytide.spark.row_batches import stored_row_bytes
from keytide.spark.runner import Executors
from keytide.spark.sized_runner import SizedRunner
from keytide.spark.stream import author_in_stream
from keytide.spark.types import arrow_schema_of, spark_schema
from keytide.types import arrow_schema
from keytide.write.input_rows import incoming_rows
from keytide.write.overwriting import partition_to_replace
from keytide.write.partition_spec import PartitionSpec
from keytide.write.task import WriteTask
from keytide.write.writable import writable_view

__all__ = ["append", "check_columns", "check_frame", "fill", "overwrite", "with_partition"]


Fitting: TypeAlias = "Callable[[Transaction, DataFrame], DataFrame]"


def _as_they_are(transaction: Transaction, df: DataFrame) -> DataFrame:
    return df


def append(
    table: StoredTable,
    df: DataFrame,
    author: Author | None = None,
    fitting: Fitting = _as_they_are,
) -> WriteResult:
    """Write a DataFrame in one atomic commit, like `Table.write`.

    Runs one Spark job, or none if the driver already has the rows and they are few. Columns and
    types are checked before anything is written, and values while they are written. After an error
    nothing is committed, and the files of finished tasks are deleted. Inside a `foreachBatch`
    function, commit user and identifier are derived from the query and the batch. On Spark Connect
    they must be given there. A repeated write runs no job, so it reports no rows. `fitting` is the
    same as for in-memory rows, see `keytide.catalogs.local_writes`. Raises as `Table.write` does.
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
            fill(transaction, fitting(transaction, df))

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
        df = with_partition(df, spec)
    check_columns(df.schema, view)
    with writing(table, view, runner=SizedRunner(df.sparkSession)) as transaction:
        _feed(transaction, transaction.task_anew(spec), df, NO_FILES)
        raise_replacement(transaction)
        return transaction.overwrite(spec)


def with_partition(df: DataFrame, spec: PartitionSpec) -> DataFrame:
    """Add the partition columns that the rows lack."""
    lacking = [
        (f, value)
        for f, value in zip(spec.fields, spec.values, strict=True)
        if f.name not in df.columns
    ]
    types = spark_schema(arrow_schema([f for f, _ in lacking]))
    constants = [
        constant(value[0], target.dataType).alias(target.name)
        for (_, value), target in zip(lacking, types.fields, strict=True)
    ]
    return df.select("*", *constants)


def fill(transaction: Transaction, df: DataFrame) -> None:
    """Write a DataFrame as part of a transaction, like `append`, with at most one Spark job."""
    _feed(transaction, transaction.task(), df, transaction.state.live)


def _feed(transaction: Transaction, task: WriteTask, df: DataFrame, live: LiveFiles) -> None:
    limit = transaction.view.options.driver_work_bytes_max
    if place_of(df.sparkSession, limit, bytes_of_rows(df)).is_driver:
        _feed_here(transaction, task, df)
    else:
        task, df = distributed(task, df, live)
        Executors().feed(BufferedTask(task), df, transaction.take, stored_row_bytes(live))


def _feed_here(transaction: Transaction, task: WriteTask, df: DataFrame) -> None:
    """Let the driver write rows that it collects from Spark: a job in the JVM only, with no
    shuffle."""
    with on_driver():
        rows = df.toArrow()
    feed(transaction, task, rows)


def check_columns(schema: StructType, view: TableView) -> None:
    """Check a DataFrame's columns and types against a table.

    Raises `InvalidError` or `NotFoundError` as `Table.write`.
    """
    check_frame(arrow_schema_of(schema, view.name), view.schema, view.options, view.name)


def check_frame(columns: pa.Schema, schema: TableSchema, options: TableOptions, table: str) -> None:
    """Check Arrow columns against a definition that may not be stored yet."""
    rows = columns.empty_table()
    kinds = options.rowkind_field or ROW_KIND
    if kinds in rows.column_names:
        # Deletions need only the key, and only the tasks see whether there are other rows.
        for field in schema.fields:
            if field.name not in (*rows.column_names, *schema.primary_keys):
                rows = rows.append_column(field.name, pa.array([], field.type.to_arrow()))
    incoming_rows(rows, schema, options, table)
