"""Tables as streams of their changes: the stream reader of the data source.

An offset is the last snapshot whose changes were returned, with its identity. A micro-batch
contains the changes from one offset to the next. The same tasks as for `Table.changes` compute
them, so a repeated batch has the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from keytide.base.lazily import cached_property
from keytide.base.row_kind import ROW_KIND
from keytide.changes.change_scan import Changes, changes_of, full_rows
from keytide.changes.follow import KeptPlace, Start, start_of
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.format.snapshot import CommitKind
from keytide.snapshot.stored import StoredTable
from keytide.spark.change_scan import bins_of
from keytide.spark.internals import HAS_READ_LIMITS, ReadMaxRows, SupportsTriggerAvailableNow
from keytide.spark.new_rows import NewRowsTask
from keytide.spark.option_names import GivenOptions
from keytide.spark.option_table import Use
from keytide.spark.payloads import packed
from keytide.spark.runner import RowsTask, rows_here
from keytide.spark.sizing import tasks_anywhere
from keytide.spark.source_options import SourceOptions
from keytide.spark.span import mode_of, start_of_changes
from keytide.spark.types import spark_schema
from keytide.spark.worker import in_few_words
from keytide.types import arrow_schema

__all__ = ["ChangeStream", "ChangeStreamReader", "change_stream_schema"]

Offset = dict[str, Any]


@dataclass(frozen=True)
class ChangeStream:
    """What a stream reads from a table: where it starts, in which mode, and how much per batch."""

    table: StoredTable
    given: GivenOptions
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

    def within(self, told: int, newest: Start, rows_max: int) -> Start:
        """The place up to which commits after `told` contain about `rows_max` rows; at least
        one."""
        rows, place = 0, newest
        for snapshot_id in range(told + 1, newest.told + 1):
            snapshot = self.table.metadata.logged(snapshot_id)
            if self.mode == "changelog":
                rows += snapshot.changelog_record_count or 0
            elif snapshot.commit_kind is not CommitKind.COMPACT:  # a compaction changes no rows
                rows += abs(snapshot.delta_record_count)
            if rows > rows_max and snapshot_id > told + 1:
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
        schema = self._schema_with(columns, table)
        if start.is_full:
            return full_rows(table, end.told, self.mode, schema, names)
        return changes_of(table, start.told, end.told, self.mode, schema, names)

    def keep(self, place: Start) -> None:
        """Store the position of the consumer, if there is one."""
        consumer = self.given.value("consumer")
        if consumer is not None:
            KeptPlace(self.table.metadata, consumer, self.mode).keep(place)

    def _schema_with(self, columns: StructType, table: StoredTable) -> TableSchema:
        """The table's latest schema that still has the query's columns unchanged."""
        newest = table.schema
        for schema_id in range(newest.id, -1, -1):
            schema = table.metadata.schema(schema_id)
            own = {field.name: field.dataType for field in _columns(schema).fields}
            if all(own.get(c.name) == c.dataType for c in columns.fields if c.name != ROW_KIND):
                return schema
        raise InvalidError(
            f"table {self.table.name}: no schema of it has the columns that the stream reads, "
            f"{', '.join(columns.names)}; do not set a schema, or select columns with "
            'option("columns", ...)'
        )


def change_stream_schema(schema: pa.Schema) -> StructType:
    """The columns of a stream of changes, given the columns of the rows."""
    return spark_schema(pa.schema([pa.field(ROW_KIND, pa.string()), *schema]))


def _columns(schema: TableSchema) -> StructType:
    return spark_schema(arrow_schema(schema.fields))


@in_few_words
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
        begin.check(self.stream.table, newest.told)
        if begin.told == newest.told:
            return start
        if not begin.is_full and isinstance(limit, ReadMaxRows):
            newest = self.stream.within(begin.told, newest, limit.max_rows)
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
        return [InputPartition(packed(task)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one bin. Runs on executors."""
        yield from rows_here(partition.value)

    def commit(self, end: Offset) -> None:
        """Record that the changes up to this offset were processed."""
        self.stream.keep(_start(end))


def _offset(place: Start) -> Offset:
    members = {"told": place.told, "full": place.is_full or None, "commit": place.commit}
    return {name: value for name, value in members.items() if value is not None}


def _start(offset: Offset) -> Start:
    return Start(int(offset["told"]), bool(offset.get("full", False)), offset.get("commit"))
