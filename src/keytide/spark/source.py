"""The data source `keytide`: tables by path, for SQL views, ad-hoc reads, writes and streams.

`Scan.to_spark` reads faster, because Spark does not tell a Python data source which columns a query
needs. Set the options `columns` and `where` to reduce the difference. `Table.write` writes faster,
because a data source cannot group the rows of a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from keytide.commit.author import Author
from keytide.commit.result import warn_of_errors
from keytide.commit.strays import has_committed, remove_strays
from keytide.commit.transaction import Transaction, discard
from keytide.compaction.raising import raise_replacement
from keytide.errors import KeytideError, UnsupportedError
from keytide.maintenance.upkeep.behind import BEHIND
from keytide.maintenance.upkeep.writing import writing
from keytide.options import keys
from keytide.read.plain_files import split_tasks
from keytide.snapshot.state import TableState
from keytide.snapshot.statement import Statement
from keytide.snapshot.stored import StoredTable
from keytide.snapshot.view import TableView
from keytide.spark.buffered import BufferedTask
from keytide.spark.change_scan import bins_of
from keytide.spark.growing import grow
from keytide.spark.internals import from_arrow_schema
from keytide.spark.option_names import GivenOptions
from keytide.spark.option_table import MERGE_SCHEMA, Use
from keytide.spark.payloads import packed
from keytide.spark.read import BinTask, bins_of_reads
from keytide.spark.replacing import replacing
from keytide.spark.runner import attempted_here, rows_here
from keytide.spark.sizing import tasks_anywhere
from keytide.spark.source_options import SourceOptions
from keytide.spark.stream import StreamBatch, batch_of_task
from keytide.spark.stream_source import ChangeStreamReader, change_stream_schema
from keytide.spark.types import spark_schema
from keytide.spark.worker import in_few_words, pass_over_broken_pipes
from keytide.spark.write import check_columns
from keytide.tasks.runner import Outcome, settled
from keytide.write.padded_rows import padded
from keytide.write.task import WriteTask, Written
from keytide.write.tasks import task_anew, task_on
from keytide.write.ties import Order, refuse_ties
from keytide.write.writable import writable_view

__all__ = ["FORMAT", "KeytideSource"]

FORMAT = "keytide"


@in_few_words
class KeytideSource(DataSource):
    """A table, addressed by its path.

    The options are those in `option_table`. All others go to the object store, if there is one.

    - A DataFrame keeps reading the snapshot that was the latest when the DataFrame was created.
      When that snapshot has expired, reading raises a `DataError` that says so. A temporary view
      created in SQL shows the latest snapshot to each `spark.sql` and `spark.table`.
    - A write appends rows as upserts and deletes. The mode `overwrite` replaces all rows in every
      partition, as in Spark. A stream commits each batch exactly once, without any option. With
      `mergeSchema`, the table first gets the new columns, as in `Table.write`.
    - With `readChangeFeed`, the rows are changes with their `_row_kind`. This is also the default
      of a stream once `register` was called. Otherwise a stream returns new rows only, and fails at
      any other change.
    """

    # Filters of queries are not pushed down (pushFilters): Spark reuses a reader that was planned
    # with one query's filters for other queries of the same DataFrame or view.

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        pass_over_broken_pipes()

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the result. This call fixes the latest snapshot."""
        options = SourceOptions.parse(self.options)
        if options.tells_kinds:
            rows = options.columns_of_changes()
            self.settled = options.settled_at(rows)
            return change_stream_schema(rows.schema)
        rows = options.columns_of_rows()
        self.settled = options.settled_at(rows)
        return spark_schema(rows.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader for the columns in `schema`."""
        # Spark does not ask for the schema if the user gave one.
        options = getattr(self, "settled", None) or SourceOptions.parse(self.options)
        if options.tells_kinds:
            return ChangesReader(options, tuple(schema.names))
        return ScanReader(options, tuple(schema.names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """A reader of changes. Errors are raised when the query asks it for something."""
        return ChangeStreamReader(SourceOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of one batch. Mode overwrite replaces all rows, unless options restrict it."""
        options = SourceOptions.parse(self.options)
        table = options.table_to_write(Use.OVERWRITE if overwrite else Use.APPEND)
        write = SourceOverwrite if overwrite else SourceWrite
        if isinstance(schema, pa.Schema):  # as Sail passes it
            schema = from_arrow_schema(schema)
        return TableWriter(write(table, schema, options.given), options.author)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  # Spark's name
        """A writer of micro-batches. Raises `UnsupportedError` for output mode complete."""
        options = SourceOptions.parse(self.options)
        table = options.table_to_write(Use.SINK)
        if overwrite:
            raise UnsupportedError(
                f"table {table.name}: output mode 'complete' would replace the table with every "
                f"batch; use 'append', which replaces rows of the same key, or "
                f"foreachBatch with Table.write"
            )
        return TableStreamWriter(SourceWrite(table, schema, options.given))


# -- reading ---------------------------------------------------------------------------------------


@in_few_words
class ScanReader(DataSourceReader):
    """Reads one snapshot, with one bin of tasks per partition. Planned on the driver."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """The bins, pickled with everything that they need."""
        scan = self.options.scan(self.columns)
        bins = bins_of_reads(split_tasks(scan), tasks_anywhere)
        tasks = (
            BinTask(members, scan.schema, scan.view.name, snapshot_ids=scan.snapshot_ids)
            for members in bins
        )
        return [InputPartition(packed(task)) for task in tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read and merge one bin. Runs on executors."""
        yield from _rows_of(partition)


@in_few_words
class ChangesReader(DataSourceReader):
    """Reads the changes between two snapshots.

    All changes of a key are in one partition, in order.
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """The bins, pickled with everything that they need."""
        changes = self.options.changes()
        columns = pa.schema([changes.schema.field(name) for name in self.columns])
        bins = bins_of(changes, tasks_anywhere, columns)
        return [InputPartition(packed(task)) for task in bins]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Compute the changes of one bin. Runs on executors."""
        yield from _rows_of(partition)


def _rows_of(partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    # If there are no partitions, Spark passes None (4.1) or a partition without a value.
    if partition is not None and partition.value is not None:
        yield from rows_here(partition.value)


# -- writing ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What a task sends to the driver. In a stream this includes the batch.

    The driver of a stream keeps neither the statement nor the snapshot that it began on.
    """

    outcome: Outcome[Written]
    batch: StreamBatch | None = None
    statement: Statement | None = None
    began_on: int = 0


class SourceWrite:
    """A write that Spark runs. Planned on the driver, pickled and sent to the tasks."""

    def __init__(self, table: StoredTable, schema: StructType, options: GivenOptions) -> None:
        """Raises what `Table.write` raises for columns that do not fit.

        If the write merges schemas, the table is altered first.
        """
        self.table, seen = table, table.pinned()
        _refuse_dynamic_buckets(writable_view(seen))
        self.merges_schema = bool(options.value(MERGE_SCHEMA))
        if self.merges_schema:
            seen = grow(seen, schema)
        state = seen.state_to_write(writable_view(seen)).in_statement(Statement.new())
        self.view = state.view
        self.began_on = 0 if state.snapshot is None else state.snapshot.id
        self.task = BufferedTask(self._task(state))
        if not self.merges_schema:
            check_columns(schema, self.view)

    def _task(self, state: TableState) -> WriteTask:
        return task_on(state)

    def _publish(self, transaction: Transaction) -> None:
        warn_of_errors(self.view.name, transaction.commit())

    def run(
        self, batches: Iterator[pa.RecordBatch], batch: StreamBatch | None = None
    ) -> TaskMessage:
        """Write the rows of one task. Runs on executors."""
        rows = self._padded(batches) if self.merges_schema else batches
        outcome = attempted_here(self._here, rows)
        return TaskMessage(outcome, batch, self.view.statement, self.began_on)

    @property
    def _here(self) -> BufferedTask:
        """The task on a server that may not number tasks, and so does not keep the rows' order."""
        if TaskContext.get() is not None:
            return self.task
        return BufferedTask(replace(self.task.task, order=Order.UNKNOWN_TO_PARTS))

    def _padded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            yield from padded(rows, self.view.schema, self.view.options).to_batches()

    def commit(self, told: Sequence[TaskMessage], author: Author | None) -> None:
        """Commit the files of all tasks, unless the same author has already done so."""
        statement = told[0].statement if told else None
        with writing(self.table, self.view, author, statement=statement) as transaction:
            settled([message.outcome for message in told], transaction.take)
            made = [m.outcome.made for m in told if m.outcome.made is not None]
            refuse_ties(self.view, [places for part in made for places in part.places])
            if transaction.done is None:
                self._publish(transaction)
            else:
                transaction.already_done()
        BEHIND.settle(self.table.uri)  # Spark can end this process at any time

    def abort(self, told: Sequence[TaskMessage]) -> None:
        """Delete the files of all tasks.

        Spark also calls this after a commit that failed. Its outcome may be unknown, so files that
        a snapshot references stay.
        """
        # Without a message, no file of a stream is known, and this statement is a new one.
        statement, began_on = self.view.statement, self.began_on
        if told and told[0].statement is not None:
            statement, began_on = told[0].statement, told[0].began_on
        assert statement is not None
        with suppress(KeytideError):  # as long as snapshots cannot be read, all files stay
            if not has_committed(self.table.live.metadata, statement, began_on):
                discard(self.view, [m.outcome.made for m in told if m.outcome.made is not None])
                remove_strays(self.view.in_statement(statement))


class SourceOverwrite(SourceWrite):
    """A write that replaces the rows that are live when it commits."""

    def __init__(self, table: StoredTable, schema: StructType, options: GivenOptions) -> None:
        """Raises as an append, and as `replacing`."""
        super().__init__(table, schema, options)
        self.replaces = replacing(options, self.view)

    def _task(self, state: TableState) -> WriteTask:
        return task_anew(state)

    def _publish(self, transaction: Transaction) -> None:
        replaces = self.replaces(transaction)
        raise_replacement(transaction)
        warn_of_errors(self.view.name, transaction.replace(replaces))


def _refuse_dynamic_buckets(view: TableView) -> None:
    """Raise `UnsupportedError` if rows of one key in two tasks would get different buckets."""
    if view.has_dynamic_buckets:
        raise UnsupportedError(
            f"table {view.name} has dynamic buckets ('{keys.BUCKET}' = '-1'), and a data source "
            "cannot bring the rows of a key together. Use table.write(df), or foreachBatch in a "
            "stream"
        )


def _told(messages: Sequence[Any]) -> list[TaskMessage]:
    return [message for message in messages if message is not None]


@in_few_words
class TableWriter(DataSourceArrowWriter):
    """Writes one DataFrame in one commit."""

    def __init__(self, write: SourceWrite, author: Author | None) -> None:
        self._write = write
        self._author = author

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Runs on executors."""
        return self._write.run(iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        """Commit the files of all tasks."""
        self._write.commit(_told(messages), self._author)

    def abort(self, messages: Sequence[Any]) -> None:
        """Delete the files of all tasks."""
        self._write.abort(_told(messages))


@in_few_words
class TableStreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches, each exactly once.

    Spark creates this object again for the tasks of every batch, and again for its commit.
    Therefore everything that a commit needs is part of the messages.
    """

    def __init__(self, write: SourceWrite) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Runs on executors."""
        return self._write.run(iterator, batch_of_task())

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit a batch, unless it is already committed."""
        told = _told(messages)
        if told and told[0].batch is not None:
            self._write.commit(told, told[0].batch.author)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Delete the files of all tasks."""
        self._write.abort(_told(messages))
