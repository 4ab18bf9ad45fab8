"""Tables as streams of their changes: the stream reader of the data source.

An offset is the snapshot up to which changes were told. A micro-batch has the changes from one
offset to the next, found by the same tasks as `Table.changes`, so that a batch that is run again
has the same rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from keytide.errors import ConflictError, InvalidError
from keytide.format.schema import TableSchema
from keytide.format.snapshot import CommitKind
from keytide.lazily import cached_property
from keytide.row_kind import ROW_KIND
from keytide.spark.change_scan import bins_of
from keytide.spark.connect import CORES_UNKNOWN
from keytide.spark.internals import HAS_READ_LIMITS, ReadMaxRows, SupportsTriggerAvailableNow
from keytide.spark.new_rows import NewRowsTask
from keytide.spark.option_names import GivenOptions
from keytide.spark.option_table import Use
from keytide.spark.read import BINS_PER_CORE
from keytide.spark.runner import RowsTask, rows_here
from keytide.spark.source_options import SourceOptions
from keytide.spark.span import mode_of, start_of_changes
from keytide.spark.types import spark_schema
from keytide.spark.worker import in_few_words
from keytide.table.changes.change_scan import Changes, changes_of, full_rows
from keytide.table.changes.follow import KeptPlace, Start, start_of
from keytide.table.state.stored import StoredTable
from keytide.types import arrow_schema

__all__ = ["ChangeStream", "ChangeStreamReader", "change_stream_schema"]

Offset = dict[str, Any]


@dataclass(frozen=True)
class ChangeStream:
    """What a stream reads of a table: from where, in which mode, and how much at a time."""

    table: StoredTable
    given: GivenOptions
    mode: str

    @classmethod
    def of(cls, options: SourceOptions) -> ChangeStream:
        """What options ask for. Raises `InvalidError` for those that do not fit a stream."""
        table = options.table_for(Use.STREAM)
        rows_max = options.given.value("max-rows-per-trigger")
        if rows_max is not None and not HAS_READ_LIMITS:
            raise InvalidError(
                f"table {table.name}: option 'max-rows-per-trigger' is {rows_max}, which needs "
                f"Spark 4.2 or newer; leave it out"
            )
        return cls(table, options.given, mode_of(options.given, table))

    def begin(self) -> Start:
        """Where a new query begins. Raises what `Table.follow` raises."""
        return start_of_changes(self.given, self.table) or start_of(self.table)

    def newest(self) -> int:
        """The newest snapshot, 0 for none."""
        return self.table.metadata.latest_snapshot_id() or 0

    def check_reach(self, start: Start, newest: int) -> None:
        """Raise `ConflictError` where a query has told more than the table has."""
        if newest < start.told:
            raise ConflictError(
                f"table {self.table.name}: the stream has told of snapshot {start.told}, and the "
                f"newest one is {newest}: the table was rolled back, or made anew. Begin again "
                f"with another checkpoint"
            )

    def within(self, told: int, newest: int, rows_max: int) -> int:
        """The snapshot up to which commits after `told` tell about so many rows; one at least."""
        rows = 0
        for snapshot_id in range(told + 1, newest + 1):
            snapshot = self.table.metadata.logged(snapshot_id)
            if self.mode == "changelog":
                rows += snapshot.changelog_record_count or 0
            elif snapshot.commit_kind is not CommitKind.COMPACT:  # which tells of nothing
                rows += abs(snapshot.delta_record_count)
            if rows > rows_max and snapshot_id > told + 1:
                return snapshot_id - 1
        return newest

    def changes(self, start: Start, end: int, columns: StructType) -> Changes:
        """What is told between two offsets, by the schema that has the columns."""
        table, names = self.table.pinned(), {*columns.names, ROW_KIND}
        schema = self._schema_with(columns, table)
        if start.is_full:
            return full_rows(table, end, self.mode, schema, names)
        return changes_of(table, start.told, end, self.mode, schema, names)

    def keep(self, told: int) -> None:
        """Keep the place of the consumer, where there is one."""
        consumer = self.given.value("consumer")
        if consumer is not None:
            KeptPlace(self.table.metadata, consumer, self.mode).keep(told)

    def _schema_with(self, columns: StructType, table: StoredTable) -> TableSchema:
        """The newest schema of the table in which a query's columns are as they were."""
        newest = table.schema
        for schema_id in range(newest.id, -1, -1):
            schema = table.metadata.schema(schema_id)
            own = {field.name: field.dataType for field in _columns(schema).fields}
            if all(own.get(c.name) == c.dataType for c in columns.fields if c.name != ROW_KIND):
                return schema
        raise InvalidError(
            f"table {self.table.name}: no schema of it has the columns that the stream reads, "
            f"{', '.join(columns.names)}; leave the schema to the table, or name its columns with "
            f'option("columns", ...)'
        )


def change_stream_schema(schema: pa.Schema) -> StructType:
    """The columns of a stream of changes of rows with these columns."""
    return spark_schema(pa.schema([pa.field(ROW_KIND, pa.string()), *schema]))


def _columns(schema: TableSchema) -> StructType:
    return spark_schema(arrow_schema(schema.fields))


@in_few_words
class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads changes batch by batch. Planned on the driver, in a process of its own.

    What is wrong with the options is said when a query asks where to begin: Spark hides what is
    raised before behind an error of its own.
    """

    def __init__(self, options: SourceOptions, columns: StructType) -> None:
        self.options = options
        self.columns = columns
        self.target: int | None = None

    @cached_property
    def stream(self) -> ChangeStream:
        """The table and what is read of it."""
        return ChangeStream.of(self.options)

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Where a new query begins."""
        start = self.stream.begin()
        # Rows that are there are told as well where the offset differs from the first batch's end.
        return _offset(0, is_full=True) if start.is_full else _offset(start.told)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802  # Spark's name
        """Up to where the next batch goes. Before Spark 4.2 it is not said from where."""
        newest = self.stream.newest() if self.target is None else self.target
        if start is None:
            return _offset(newest)
        told = _start(start)
        self.stream.check_reach(told, newest)
        if told.is_full:
            return _offset(newest) if newest else start
        if isinstance(limit, ReadMaxRows):
            newest = self.stream.within(told.told, newest, limit.max_rows)
        return _offset(newest)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # Spark's name
        """How much a batch may have, as the options say."""
        rows_max = self.options.given.value("max-rows-per-trigger")
        return super().getDefaultReadLimit() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Read nothing that is committed later."""
        self.target = self.stream.newest()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch, pickled with what they need."""
        if start == end:
            return []
        changes = self.stream.changes(_start(start), _start(end).told, self.columns)
        names, tells_kinds = self.columns.names, ROW_KIND in self.columns.names
        shown = names if tells_kinds else [ROW_KIND, *names]
        columns = pa.schema([changes.schema.field(name) for name in shown])
        bins = bins_of(changes, CORES_UNKNOWN * BINS_PER_CORE, columns)
        tasks: Sequence[RowsTask] = bins if tells_kinds else [*map(NewRowsTask, bins)]
        return [InputPartition(pickle.dumps(task)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one bin. Runs on executors."""
        yield from rows_here(partition.value)

    def commit(self, end: Offset) -> None:
        """Changes up to here were taken."""
        self.stream.keep(_start(end).told)


def _offset(told: int, *, is_full: bool = False) -> Offset:
    return {"told": told, "full": True} if is_full else {"told": told}


def _start(offset: Offset) -> Start:
    return Start(int(offset["told"]), bool(offset.get("full", False)))
