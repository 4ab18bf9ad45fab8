"""Writes of DataFrames to tables: appends, overwrites, and schema evolution.

- Executors write sorted files, and the driver commits once. Depending on 'write.distribution', rows
  are first grouped by bucket, or written where they are. The rows of a DataFrame with one partition
  always stay where they are. A task cuts its rows into runs of at most 'write-buffer-size', which
  limits its memory. Within one write, the later row of a key wins: rows keep the order of the
  DataFrame, and sequence numbers increase from task to task and from run to run. Use a sequence
  field if that order has no meaning.
- An overwrite through the data source replaces everything, or some partitions. Changes without a
  column for the row kind must be new rows only.
- The author of a streaming batch has commit ids that stay the same after a restart of the query. A
  query keeps its id over restarts, and a repeated batch has the same number. Together they make
  commits idempotent without any option. A task finds both in its local properties, and a
  `foreachBatch` function in those of the driver's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import ROW_KIND
from keytide.catalogs.local_writes import extended_table, feed
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.compaction.bulk_load import raise_replacement
from keytide.definition.schema_evolution import growth
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.binary_row import decode_rows
from keytide.format.schema import TableSchema
from keytide.maintenance.writes import writing
from keytide.options import TableOptions
from keytide.snapshot.live_files import NO_FILES, LiveFiles
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import PinnedTable, StoredTable
from keytide.spark.capacity import bytes_of_rows, work_place
from keytide.spark.columns import arrow_schema_of, column, constant, distribute, spark_schema
from keytide.spark.error_translation import check_python, on_driver
from keytide.spark.internals import is_connect, runs_batch_function
from keytide.spark.option_rules import WHERE_REPLACED
from keytide.spark.read_plans import BinTask
from keytide.spark.runner import BufferedTask, Executors, SizedRunner, stored_row_bytes
from keytide.types import arrow_schema
from keytide.write.input_rows import incoming_rows, padded_schema
from keytide.write.partition_spec import (
    PartitionSpec,
    every_partition,
    fitting,
    partition_condition,
    partition_to_replace,
)
from keytide.write.refusals import writable_view
from keytide.write.task import WriteTask

# -- the author of a streaming batch ---------------------------------------------------------------


_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"


@dataclass(frozen=True)
class StreamBatch:
    """One micro-batch of a streaming query."""

    query_id: str
    batch_id: int

    @property
    def author(self) -> Author:
        """The author under which the batch is committed."""
        return Author(f"spark-{self.query_id}", self.batch_id)


def batch_of_task() -> StreamBatch:
    """The batch of this task. Runs on executors, in a streaming query."""
    context: Any = TaskContext.get()
    return StreamBatch(
        context.getLocalProperty(_QUERY_ID), int(context.getLocalProperty(_BATCH_ID))
    )


def author_in_stream(df: DataFrame, table_uri: str) -> Author | None:
    """The author of a write inside a `foreachBatch` function, otherwise None.

    The second and later writes to the same table within a batch get users of their own, in the
    order of the calls. So a repeated function must write in the same order. Raises `InvalidError`
    on Spark Connect, which does not say for which query a function runs.
    """
    if is_connect(df):
        if runs_batch_function():
            raise InvalidError(
                "Spark Connect does not tell foreachBatch functions which query they belong to; "
                "for exactly-once, write with table.write(batch, commit_user='a name of this "
                "query', commit_identifier=batch_id)"
            )
        return None
    context = df.sparkSession.sparkContext
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query_id is None or batch_id is None:
        return None
    batch = StreamBatch(query_id, int(batch_id))
    number = _WRITES.count(batch, context.getLocalProperty(_RUN_ID), table_uri)
    author = batch.author
    return author if number == 1 else replace(author, user=f"{author.user}-{number}")


class _WriteCounts:
    """Counts the writes to each table by the current batch of each running query."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str | None, str], tuple[int, int]] = {}
        self._lock = threading.Lock()

    def count(self, batch: StreamBatch, run_id: str | None, table_uri: str) -> int:
        """Count one more write. The first one of a batch is 1."""
        key = (batch.query_id, run_id, table_uri)
        with self._lock:
            last_batch, count = self._counts.get(key, (-1, 0))
            count = count + 1 if last_batch == batch.batch_id else 1
            self._counts[key] = (batch.batch_id, count)
            return count


_WRITES = _WriteCounts()


# -- appends and overwrites ------------------------------------------------------------------------


Fitting: TypeAlias = "Callable[[Transaction, DataFrame], DataFrame]"


def append(
    table: StoredTable, df: DataFrame, author: Author | None = None, fitting: Fitting | None = None
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
        if transaction.own_commit is not None:
            return transaction.previous_result()

        def write() -> None:
            fill(transaction, df if fitting is None else fitting(transaction, df))

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
    if work_place(df.sparkSession, limit, bytes_of_rows(df)).is_driver:
        # Let the driver write rows that it collects from Spark: a job in the JVM only, with no
        # shuffle.
        with on_driver():
            rows = df.toArrow()
        feed(transaction, task, rows)
    else:
        task, df = distribute(task, df, live)
        Executors().feed(BufferedTask(task), df, transaction.collect, stored_row_bytes(live))


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


# -- schema evolution ------------------------------------------------------------------------------


def add_missing_columns(
    table: StoredTable,
    df: DataFrame,
    author: Author | None = None,
    partition: Mapping[str, Any] | None = None,
) -> tuple[PinnedTable, DataFrame]:
    """As `keytide.catalogs.local_writes.extended_for`.

    Types are checked first, values while they are written. Runs no job.
    """
    pinned = table.pinned()
    spec = partition_to_replace(writable_view(pinned), partition)
    df = df if spec is None else with_partition(df, spec)
    pinned = grow(pinned, df.schema, author)
    found = arrow_schema_of(df.schema, table.name)
    target = padded_schema(found, pinned.schema, TableOptions.parse(pinned.schema.options))
    if target.equals(found):
        return pinned, df
    return pinned, df.select(*_members(df.schema, spark_schema(target), column))


def grow(pinned: PinnedTable, columns: StructType, author: Author | None = None) -> PinnedTable:
    """A table that accepts rows with these columns. Raises as `Table.write` does."""
    found = arrow_schema_of(columns, pinned.name)

    def check(schema: TableSchema) -> None:
        options = TableOptions.parse(schema.options)
        check_frame(padded_schema(found, schema, options), schema, options, pinned.name)

    return extended_table(pinned, partial(growth, columns=found, table=pinned.name), check, author)


def _members(
    found: StructType, target: StructType, value_of: Callable[[str], Column]
) -> list[Column]:
    """Columns with the types of a target. Those that are not found are NULL."""
    known = {field.name: field.dataType for field in found.fields}
    return [
        _as_type(value_of(f.name), known[f.name], f.dataType).alias(f.name)
        if f.name in known
        else F.lit(None).cast(f.dataType).alias(f.name)
        for f in target.fields
    ]


def _as_type(value: Column, found: DataType, target: DataType) -> Column:
    if isinstance(found, StructType) and isinstance(target, StructType):
        members = _members(found, target, value.getField)
        return F.when(value.isNotNull(), F.struct(*members))
    if isinstance(found, ArrayType) and isinstance(target, ArrayType):
        element, wide = found.elementType, target.elementType
        return F.transform(value, lambda each: _as_type(each, element, wide))
    if isinstance(found, MapType) and isinstance(target, MapType):
        item, wide = found.valueType, target.valueType
        return F.transform_values(value, lambda _, each: _as_type(each, item, wide))
    return value.cast(target)


# -- the extent of an overwrite --------------------------------------------------------------------


@dataclass(frozen=True)
class ReplacedPartitions:
    """What an overwrite replaces: partitions that match a condition, those of the rows, or all.

    Raises `InvalidError` for a condition on other columns than those of partitions. REQUIRES: keys
    stay in their partitions. Tables where keys move have dynamic buckets.
    """

    where: str | None
    is_dynamic: bool
    view: TableView

    def __post_init__(self) -> None:
        self._fits()

    def _fits(self) -> Callable[[bytes], bool]:
        if self.where is None:
            return every_partition
        schema, name = self.view.schema, self.view.name
        predicate = partition_condition(self.where, schema, name)
        return fitting([predicate], schema, name, self.view.options.partition_default_name)

    def __call__(self, transaction: Transaction) -> Callable[[bytes], bool]:
        """A function that tests a partition, once the rows are written.

        Raises `InvalidError` for rows in partitions that do not match the condition.
        """
        if self.where is None:
            has_parts = self.is_dynamic and transaction.view.schema.partition_keys
            return transaction.touched_partitions() if has_parts else every_partition
        fits = self._fits()
        outside = [each for each in transaction.touched_partitions().partitions if not fits(each)]
        if outside:
            fields = self.view.schema.partition_fields()
            columns = decode_rows(outside[:1], [field.type for field in fields])
            found = ", ".join(
                f"{field.name} = {column[0].as_py()!r}"
                for field, column in zip(fields, columns, strict=True)
            )
            raise InvalidError(
                f"table {self.view.name}: there are rows with {found}, which do not satisfy "
                f"'{WHERE_REPLACED}' = {self.where!r}; remove these rows"
            )
        return fits


# -- changes without a row kind --------------------------------------------------------------------


@dataclass(frozen=True)
class NewRowsTask:
    """Reads a bin of changes, checks their kinds, and returns the rows without the kind."""

    changes: BinTask

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Runs on executors.

        Raises as `changes`, and `UnsupportedError` for a change that is not a new row.
        """
        for batch in self.changes.batches():
            kinds = batch.column(ROW_KIND)
            other = pc.filter(kinds, pc.not_equal(kinds, "+I"))
            if len(other):
                raise UnsupportedError(
                    f"table {self.changes.table}: a row was changed or deleted ({other[0]}), but "
                    f"the stream has no column {ROW_KIND!r} and can emit only new rows. Start "
                    "another stream with it, with option('readChangeFeed', 'true')"
                )
            yield batch.drop_columns([ROW_KIND])
