"""The data source `keytide`: tables by path, for SQL views, ad-hoc reads, writes and streams.

`Scan.to_spark` is the faster way to read, because Spark does not tell a Python data source
which columns a query needs; give the options `columns` and `where`. `Table.write` is the faster
way to write, because a data source cannot bring rows of a bucket together.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
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

from keytide.errors import InvalidError, UnsupportedError
from keytide.format.snapshot import Snapshot
from keytide.spark.connect import CORES_UNKNOWN
from keytide.spark.read import BINS_PER_CORE, BinTask, bytes_of_read, pack, split_tasks
from keytide.spark.runner import attempted_here, rows_here
from keytide.spark.stream import StreamBatch, batch_of_task
from keytide.spark.types import spark_schema
from keytide.spark.write import BufferedTask, check_columns
from keytide.table.catalog import open_stored
from keytide.table.commit.author import Author
from keytide.table.commit.transaction import discard
from keytide.table.read.scan import Scan
from keytide.table.runner import Outcome, settled
from keytide.table.scans import scan_table
from keytide.table.state.state import TableState
from keytide.table.state.stored import StoredTable
from keytide.table.upkeep.writing import writing
from keytide.table.write.task import WriteTask, Written
from keytide.table.write.writable import writable_view

__all__ = ["KeytideSource"]

FORMAT = "keytide"


class KeytideSource(DataSource):
    """A table by its path.

    Options for reading: `snapshot-id`, `tag` or `as-of` travel in time, `columns` is a comma
    list, `where` a SQL condition; other options go to the object store. A DataFrame or view
    stays with the snapshot that was newest when it was made. Rows are appended as upserts and
    deletes; a stream commits each batch exactly once, with no option set.
    """

    # No filters of queries are taken (pushFilters): Spark keeps what a reader planned with one
    # query's filters and reads it again for other queries of the same DataFrame or view.

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns that are read. The newest snapshot is settled here."""
        options = SourceOptions.parse(self.options)
        scan = options.scan()
        self.settled = options.settled_at(scan.snapshot)
        return spark_schema(scan.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in `schema`."""
        # Spark does not ask for the schema where the user gave one.
        options = getattr(self, "settled", None) or SourceOptions.parse(self.options)
        return ScanReader(options, tuple(schema.names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """A reader that only says that tables are not read as streams yet."""
        return NoStreamReader(SourceOptions.parse(self.options).path)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of one batch. Raises `UnsupportedError` for mode overwrite."""
        table = SourceOptions.parse(self.options).table_to_write()
        if overwrite:
            raise UnsupportedError(
                f"table {table.name}: mode 'overwrite' is not in this release; use mode 'append', "
                f"which replaces rows of the same key, or drop the table and make it anew"
            )
        return TableWriter(table, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  # Spark's name
        """A writer of micro-batches. Raises `UnsupportedError` for output mode complete."""
        table = SourceOptions.parse(self.options).table_to_write()
        if overwrite:
            raise UnsupportedError(
                f"table {table.name}: output mode 'complete' would replace the table with every "
                f"batch; use 'append', which replaces rows of the same key, or "
                f"foreachBatch with Table.write"
            )
        return TableStreamWriter(table, schema)


_SPARK_OPTIONS = ("path", "checkpointlocation", "queryname", "outputmode")


@dataclass(frozen=True)
class SourceOptions:
    """The options of one load, save or stream, parsed."""

    path: str
    columns: tuple[str, ...] | None = None
    where: str | None = None
    snapshot_id: int | None = None
    tag: str | None = None
    as_of: str | int | None = None
    store: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    newest_snapshot_id: int | None = None
    """The newest snapshot at the time when it was settled, 0 for none."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options. Raises `InvalidError` for a missing path or a wrong number."""
        rest = {key.lower(): value for key, value in options.items()}
        path = rest.get("path")
        if path is None:
            raise InvalidError(
                "format 'keytide' needs the path of a table: load(path), save(path) or start(path)"
            )
        for key in _SPARK_OPTIONS:
            rest.pop(key, None)
        columns, snapshot_id = rest.pop("columns", None), rest.pop("snapshot-id", None)
        as_of = rest.pop("as-of", None)
        return cls(
            path=path,
            columns=None if columns is None else tuple(c.strip() for c in columns.split(",")),
            where=rest.pop("where", None),
            snapshot_id=None if snapshot_id is None else _whole("snapshot-id", snapshot_id),
            tag=rest.pop("tag", None),
            as_of=int(as_of) if as_of is not None and as_of.isdecimal() else as_of,
            store=tuple(rest.items()),
        )

    def table(self) -> StoredTable:
        """Open the table. Raises `NotFoundError` when there is none at the path."""
        return open_stored(self.path, dict(self.store))

    def table_to_write(self) -> StoredTable:
        """Open the table to write. Raises `InvalidError` for options that only reads have."""
        table = self.table()
        given = {
            "columns": self.columns, "where": self.where, "snapshot-id": self.snapshot_id,
            "tag": self.tag, "as-of": self.as_of,
        }  # fmt: skip
        found = [name for name, value in given.items() if value is not None]
        if found:
            raise InvalidError(
                f"table {table.name}: {', '.join(map(repr, found))} say what is read, and this is "
                f"a write; leave them out"
            )
        return table

    def scan(self, columns: Sequence[str] | None = None) -> Scan:
        """The scan that the options describe, of other columns if given. Raises as `Table.scan`."""
        table = self.table()
        wanted = self.columns if columns is None else columns
        scan = scan_table(table, wanted, self.where, self.snapshot_id, self.tag, self.as_of)
        if self.newest_snapshot_id is None or self._travels:
            return scan
        if self.newest_snapshot_id == 0:
            return replace(scan, state=table.state(scan.view.schema, None))
        snapshot = table.metadata.snapshot(self.newest_snapshot_id)
        return replace(scan, state=table.state(scan.view.schema, snapshot))

    def settled_at(self, newest: Snapshot | None) -> SourceOptions:
        """The same options for later scans, which will see no newer snapshot."""
        return replace(self, newest_snapshot_id=0 if newest is None else newest.id)

    @property
    def _travels(self) -> bool:
        return any(given is not None for given in (self.snapshot_id, self.tag, self.as_of))


def _whole(option: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InvalidError(f"option {option!r} is {value!r}; expected a whole number") from None


# -- reading ---------------------------------------------------------------------------------------


class ScanReader(DataSourceReader):
    """Reads one snapshot, a bin of tasks per partition. Planned on the driver."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """The bins, pickled with what they need."""
        scan = self.options.scan(self.columns)
        bins = pack(split_tasks(scan), CORES_UNKNOWN * BINS_PER_CORE, bytes_of_read)
        tasks = (BinTask(members, scan.schema, scan.view.name) for members in bins)
        return [InputPartition(pickle.dumps(task)) for task in tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read and merge one bin. Runs on executors."""
        # Where there are no partitions, Spark hands over None (4.1) or one without a value.
        if partition is not None and partition.value is not None:
            yield from rows_here(partition.value)


class NoStreamReader(DataSourceStreamReader):
    """Raises `UnsupportedError` when a stream asks where to begin.

    Spark hides what `streamReader` itself raises behind an error of its own.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """What a stream asks first. Raises `UnsupportedError`."""
        raise UnsupportedError(
            f"table {self.path}: reading a table as a stream (spark.readStream) is not in this "
            f"release; spark.read.format('keytide') reads a snapshot, and writeStream writes"
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Never reached: there are no offsets to read between."""
        raise NotImplementedError

    # What a stream that was started before asks instead.
    latestOffset = initialOffset  # noqa: N815  # Spark's name


# -- writing ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What a task tells the driver; in a stream with the batch it worked for."""

    outcome: Outcome[Written]
    batch: StreamBatch | None = None


class SourceWrite:
    """A write that Spark itself runs. Planned on the driver, pickled to the tasks."""

    def __init__(self, table: StoredTable, schema: StructType) -> None:
        """Raises what `Table.write` raises for columns that do not fit."""
        self.table = table
        self.view = writable_view(table)
        self.task = BufferedTask(WriteTask.on(TableState(self.view, table.newest_files())))
        check_columns(schema, self.view)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Outcome[Written]:
        """Write one task's rows. Runs on executors."""
        return attempted_here(self.task, batches)

    def commit(self, told: Sequence[TaskMessage], author: Author | None) -> None:
        """Commit all tasks' files, unless the author did so before."""
        with writing(self.table, self.view, author) as transaction:
            settled([message.outcome for message in told], transaction.take)
            if transaction.done is None:
                transaction.commit()
            else:
                transaction.already_done()

    def abort(self, told: Sequence[TaskMessage]) -> None:
        """Delete the files of the tasks that did finish."""
        discard(self.view, [m.outcome.made for m in told if m.outcome.made is not None])


def _told(messages: Sequence[Any]) -> list[TaskMessage]:
    return [message for message in messages if message is not None]


class TableWriter(DataSourceArrowWriter):
    """Appends one DataFrame in one commit."""

    def __init__(self, table: StoredTable, schema: StructType) -> None:
        self._write = SourceWrite(table, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows. Runs on executors."""
        return TaskMessage(self._write.run(iterator))

    def commit(self, messages: Sequence[Any]) -> None:
        """Commit all tasks' files."""
        self._write.commit(_told(messages), None)

    def abort(self, messages: Sequence[Any]) -> None:
        """Delete the files of the tasks that did finish."""
        self._write.abort(_told(messages))


class TableStreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches, each exactly once.

    Made anew by Spark for the tasks of every batch and again for its commit, so all that a
    commit needs travels in the messages.
    """

    def __init__(self, table: StoredTable, schema: StructType) -> None:
        self._write = SourceWrite(table, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows. Runs on executors."""
        return TaskMessage(self._write.run(iterator), batch_of_task())

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit a batch unless it was committed before."""
        told = _told(messages)
        if told and told[0].batch is not None:
            self._write.commit(told, told[0].batch.author)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Delete the files of the tasks that did finish."""
        self._write.abort(_told(messages))
