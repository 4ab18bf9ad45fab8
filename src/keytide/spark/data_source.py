"""The data source `keytide`: tables by path, for SQL views, ad-hoc reads, writes and streams.

`Scan.to_spark` reads faster, because Spark does not tell a Python data source which columns a query
needs. Set the options `columns` and `where` to reduce the difference. `Table.write` writes faster,
because a data source cannot group the rows of a bucket.

Tables are streams of their changes. An offset is the last snapshot whose changes were returned,
with its identity. A micro-batch contains the changes from one offset to the next. The same tasks as
for `Table.changes` compute them, so a repeated batch has the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
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

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.base.row_kind import ROW_KIND
from keytide.changes.change_scan import Changes, changes_of, full_rows
from keytide.changes.follower import Start, StoredPosition, start_of
from keytide.commit.change import Author
from keytide.commit.transaction import (
    Transaction,
    discard,
    has_committed,
    remove_strays,
    warn_of_errors,
)
from keytide.compaction.bulk_load import raise_replacement
from keytide.errors import InvalidError, KeytideError, UnsupportedError
from keytide.format.snapshot import CommitKind
from keytide.maintenance.background import BACKGROUND
from keytide.maintenance.writes import writing
from keytide.options import keys
from keytide.read.plain_files import split_tasks
from keytide.snapshot.state import Statement, TableState
from keytide.snapshot.stored_table import StoredTable
from keytide.spark.capacity import tasks_anywhere
from keytide.spark.columns import spark_schema
from keytide.spark.dataframe_writes import (
    NewRowsTask,
    ReplacedPartitions,
    StreamBatch,
    batch_of_task,
    check_columns,
    grow,
)
from keytide.spark.internals import (
    HAS_READ_LIMITS,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    from_arrow_schema,
)
from keytide.spark.option_rules import (
    MERGE_SCHEMA,
    PARTITIONS,
    WHERE_REPLACED,
    OptionValues,
    Use,
    mode_of,
    start_of_changes,
)
from keytide.spark.read_plans import BinTask, bins_of, bins_of_reads
from keytide.spark.runner import BufferedTask, RowsTask, dump_task, feed_here, rows_here
from keytide.spark.source_options import SourceOptions
from keytide.spark.worker import ignore_broken_pipes, shorten_errors
from keytide.tasks import Outcome, collect_results
from keytide.types import arrow_schema
from keytide.write.input_rows import padded
from keytide.write.refusals import writable_view
from keytide.write.task import Order, TaskResult, WriteTask, refuse_ties
from keytide.write.upsert import task_anew, task_on

# -- streams of changes ----------------------------------------------------------------------------


Offset = dict[str, Any]


@dataclass(frozen=True)
class ChangeStream:
    """What a stream reads from a table: where it starts, in which mode, and how much per batch."""

    table: StoredTable
    given: OptionValues
    mode: str

    @classmethod
    def of(cls, options: SourceOptions) -> ChangeStream:
        """The stream that the options describe. Raises `InvalidError` for invalid ones."""
        table = options.table_for(Use.STREAM)
        rows_max = options.given.value("max-rows-per-trigger")
        if rows_max is not None and not HAS_READ_LIMITS:
            raise InvalidError(
                f"table {table.name}: option 'max-rows-per-trigger' is {rows_max}, which "
                "requires Spark 4.2 or newer; remove it"
            )
        return cls(table, options.given, mode_of(options.given, table))

    def begin(self) -> Start:
        """Where a new query begins. Raises what `Table.follow` raises."""
        return start_of_changes(self.given, self.table) or start_of(self.table)

    def newest(self) -> Start:
        """The place after the latest snapshot."""
        return Start.at(self.table.metadata.latest_snapshot())

    def within(self, start_id: int, newest: Start, rows_max: int) -> Start:
        """The place up to which commits after a snapshot contain about `rows_max` rows; at least
        one."""
        rows, place = 0, newest
        for snapshot_id in range(start_id + 1, newest.after_id + 1):
            snapshot = self.table.metadata.snapshot_or_changelog(snapshot_id)
            if self.mode == "changelog":
                rows += snapshot.changelog_record_count or 0
            elif snapshot.commit_kind is not CommitKind.COMPACT:  # a compaction changes no rows
                rows += abs(snapshot.delta_record_count)
            if rows > rows_max and snapshot_id > start_id + 1:
                return place
            place = Start.at(snapshot)
        return newest

    def changes(self, start: Start, end: Start, columns: StructType) -> Changes:
        """The changes between two offsets, with the schema that has the columns.

        Raises `ConflictError` if one of their snapshots is no longer part of the table.
        """
        table, names = self.table.pinned(), {*columns.names, ROW_KIND}
        newest_id = table.metadata.latest_snapshot_id() or 0
        for place in (start, end):
            place.check(table, newest_id)
        # The latest schema that still has the query's columns unchanged.
        for schema_id in range(table.schema.id, -1, -1):
            schema = table.metadata.schema(schema_id)
            found = spark_schema(arrow_schema(schema.fields))
            own = {field.name: field.dataType for field in found.fields}
            if all(own.get(c.name) == c.dataType for c in columns.fields if c.name != ROW_KIND):
                break
        else:
            raise InvalidError(
                f"table {self.table.name}: no schema of it has the columns that the stream reads, "
                f"{', '.join(columns.names)}; do not set a schema, or select columns with "
                'option("columns", ...)'
            )
        if start.is_full:
            return full_rows(table, end.after_id, self.mode, schema, names)
        return changes_of(table, start.after_id, end.after_id, self.mode, schema, names)

    def keep(self, place: Start) -> None:
        """Store the position of the consumer, if there is one."""
        consumer = self.given.value("consumer")
        if consumer is not None:
            StoredPosition(self.table.metadata, consumer, self.mode).keep(place)


@shorten_errors
class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads changes batch by batch. Planned on the driver, in a process of its own.

    Errors in the options are raised when a query asks where to begin. Spark would hide an earlier
    error behind an error of its own.
    """

    def __init__(self, options: SourceOptions, columns: StructType) -> None:
        self.options = options
        self.columns = columns
        self.target: Start | None = None

    @cached_property
    def stream(self) -> ChangeStream:
        """The table and what is read from it."""
        return ChangeStream.of(self.options)

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Where a new query begins."""
        start = self.stream.begin()
        # If this offset differs from the end of the first batch, the first batch includes existing
        # rows.
        return _offset(Start(0, is_full=True)) if start.is_full else _offset(start)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802  # Spark's name
        """Where the next batch ends. Before Spark 4.2, Spark does not pass its start."""
        newest = self.stream.newest() if self.target is None else self.target
        if start is None:
            return _offset(newest)
        begin = _start(start)
        begin.check(self.stream.table, newest.after_id)
        if begin.after_id == newest.after_id:
            return start
        if not begin.is_full and isinstance(limit, ReadMaxRows):
            newest = self.stream.within(begin.after_id, newest, limit.max_rows)
        return _offset(newest)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # Spark's name
        """The maximum size of a batch, according to the options."""
        rows_max = self.options.given.value("max-rows-per-trigger")
        return super().getDefaultReadLimit() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Fix the end, so that later commits are not read."""
        self.target = self.stream.newest()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch, pickled with everything that they need."""
        if start == end:
            return []
        changes = self.stream.changes(_start(start), _start(end), self.columns)
        names, tells_kinds = self.columns.names, ROW_KIND in self.columns.names
        shown = names if tells_kinds else [ROW_KIND, *names]
        columns = pa.schema([changes.schema.field(name) for name in shown])
        bins = bins_of(changes, tasks_anywhere, columns)
        tasks: Sequence[RowsTask] = bins if tells_kinds else [*map(NewRowsTask, bins)]
        return [InputPartition(dump_task(task)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one bin. Runs on executors."""
        yield from rows_here(partition.value)

    def commit(self, end: Offset) -> None:
        """Record that the changes up to this offset were processed."""
        self.stream.keep(_start(end))


def _offset(place: Start) -> Offset:
    members = {"told": place.after_id, "full": place.is_full or None, "commit": place.commit}
    return {name: value for name, value in members.items() if value is not None}


def _start(offset: Offset) -> Start:
    return Start(int(offset["told"]), bool(offset.get("full", False)), offset.get("commit"))


# -- the data source -------------------------------------------------------------------------------


FORMAT = "keytide"


@shorten_errors
class KeytideSource(DataSource):
    """A table, addressed by its path.

    The options are those in `keytide.spark.option_rules`. All others go to the object store, if
    there is one.

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
        ignore_broken_pipes()

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the result. This call fixes the latest snapshot."""
        options = SourceOptions.parse(self.options)
        if options.tells_kinds:
            rows = options.columns_of_changes()
            self.settled = options.fixed_to(rows)
            return spark_schema(pa.schema([pa.field(ROW_KIND, pa.string()), *rows.schema]))
        rows = options.columns_of_rows()
        self.settled = options.fixed_to(rows)
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


# -- reads -----------------------------------------------------------------------------------------


@shorten_errors
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
        return [InputPartition(dump_task(task)) for task in tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read and merge one bin. Runs on executors."""
        yield from _rows_of(partition)


@shorten_errors
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
        return [InputPartition(dump_task(task)) for task in bins]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Compute the changes of one bin. Runs on executors."""
        yield from _rows_of(partition)


def _rows_of(partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    # If there are no partitions, Spark passes None (4.1) or a partition without a value.
    if partition is not None and partition.value is not None:
        yield from rows_here(partition.value)


# -- writes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What a task sends to the driver. In a stream this includes the batch.

    The driver of a stream keeps neither the statement nor the snapshot that it began on.
    """

    outcome: Outcome[TaskResult]
    batch: StreamBatch | None = None
    statement: Statement | None = None
    began_on: int = 0


class SourceWrite:
    """A write that Spark runs. Planned on the driver, pickled and sent to the tasks."""

    def __init__(self, table: StoredTable, schema: StructType, options: OptionValues) -> None:
        """Raises what `Table.write` raises for columns that do not fit.

        If the write merges schemas, the table is altered first.
        """
        self.table, seen = table, table.pinned()
        if writable_view(seen).has_dynamic_buckets:
            # Rows of one key in two tasks would get different buckets.
            raise UnsupportedError(
                f"table {seen.name} has dynamic buckets ('{keys.BUCKET}' = '-1'), and a data "
                "source cannot bring the rows of a key together. Use table.write(df), or "
                "foreachBatch in a stream"
            )
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
        task, rows = self.task, batches
        if self.merges_schema:
            schema, options = self.view.schema, self.view.options
            tables = (pa.Table.from_batches([each]) for each in batches)
            rows = (b for table in tables for b in padded(table, schema, options).to_batches())
        if TaskContext.get() is None:
            # The server may not number tasks, and so does not keep the rows' order.
            task = BufferedTask(replace(task.task, order=Order.UNKNOWN_TO_PARTS))
        outcome = feed_here(task, rows)
        return TaskMessage(outcome, batch, self.view.statement, self.began_on)

    def commit(self, messages: Sequence[TaskMessage], author: Author | None) -> None:
        """Commit the files of all tasks, unless the same author has already done so."""
        statement = messages[0].statement if messages else None
        with writing(self.table, self.view, author, statement=statement) as transaction:
            collect_results([message.outcome for message in messages], transaction.collect)
            made = [m.outcome.result for m in messages if m.outcome.result is not None]
            refuse_ties(self.view, [places for part in made for places in part.places])
            if transaction.own_commit is None:
                self._publish(transaction)
            else:
                transaction.previous_result()
        BACKGROUND.cancel(self.table.uri)  # Spark can end this process at any time

    def abort(self, messages: Sequence[TaskMessage]) -> None:
        """Delete the files of all tasks.

        Spark also calls this after a commit that failed. Its outcome may be unknown, so files that
        a snapshot references stay.
        """
        # Without a message, no file of a stream is known, and this statement is a new one.
        statement, began_on = self.view.statement, self.began_on
        if messages and messages[0].statement is not None:
            statement, began_on = messages[0].statement, messages[0].began_on
        assert statement is not None
        with suppress(KeytideError):  # as long as snapshots cannot be read, all files stay
            if not has_committed(self.table.live.metadata, statement, began_on):
                discard(
                    self.view, [m.outcome.result for m in messages if m.outcome.result is not None]
                )
                remove_strays(self.view.in_statement(statement))


class SourceOverwrite(SourceWrite):
    """A write that replaces the rows that are live when it commits."""

    def __init__(self, table: StoredTable, schema: StructType, options: OptionValues) -> None:
        """Raises as an append, and as `ReplacedPartitions`."""
        super().__init__(table, schema, options)
        where, is_dynamic = options.value(WHERE_REPLACED), options.value(PARTITIONS) == "dynamic"
        self.replaces = ReplacedPartitions(where, is_dynamic, self.view)

    def _task(self, state: TableState) -> WriteTask:
        return task_anew(state)

    def _publish(self, transaction: Transaction) -> None:
        replaces = self.replaces(transaction)
        raise_replacement(transaction)
        warn_of_errors(self.view.name, transaction.replace(replaces))


def _outcomes(messages: Sequence[Any]) -> list[TaskMessage]:
    return [message for message in messages if message is not None]


@shorten_errors
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
        self._write.commit(_outcomes(messages), self._author)

    def abort(self, messages: Sequence[Any]) -> None:
        """Delete the files of all tasks."""
        self._write.abort(_outcomes(messages))


@shorten_errors
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
        outcomes = _outcomes(messages)
        if outcomes and outcomes[0].batch is not None:
            self._write.commit(outcomes, outcomes[0].batch.author)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Delete the files of all tasks."""
        self._write.abort(_outcomes(messages))
