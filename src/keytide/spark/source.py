"""The data source `keytide`: tables by path, for SQL views, ad-hoc reads, writes and streams.

`Scan.to_spark` is the faster way to read, because Spark does not tell a Python data source
which columns a query needs; give the option `columns`. `Table.write` is the faster way to write,
because a data source cannot bring rows of a bucket together.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from keytide.errors import InvalidError, UnsupportedError
from keytide.format.snapshot import BATCH_COMMIT_IDENTIFIER
from keytide.spark.connect import CORES_UNKNOWN
from keytide.spark.predicate import push_filters
from keytide.spark.read import BINS_PER_CORE, pack, read_bin, split_tasks
from keytide.spark.stream import StreamBatch, batch_of_task
from keytide.spark.types import spark_schema
from keytide.spark.write import (
    TaskResult,
    WriteJob,
    check_columns,
    commit_results,
    discard,
    write_task,
)
from keytide.table.lake import open_table
from keytide.table.predicate import Predicate, conjunction
from keytide.table.scan import Scan
from keytide.table.table import Table

__all__ = ["FilteringKeytideSource", "KeytideSource", "source_class"]

FORMAT = "keytide"


def source_class(*, takes_filters: bool) -> type[DataSource]:
    """The data source to register; Spark refuses one that takes filters while it offers none."""
    return FilteringKeytideSource if takes_filters else KeytideSource


class KeytideSource(DataSource):
    """A table by its path.

    Options for reading: `snapshot-id`, `tag` or `as-of` travel in time, `columns` is a comma
    list, `where` a SQL condition; without the first three every query reads the newest snapshot.
    Other options go to the object store. Rows are appended as upserts and deletes; a stream
    commits each batch exactly once, with no option set.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns that are read."""
        return spark_schema(SourceOptions.parse(self.options).scan().schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in `schema`."""
        return ScanReader(SourceOptions.parse(self.options), tuple(schema.names))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of one batch. Raises `UnsupportedError` for mode overwrite."""
        table = SourceOptions.parse(self.options).table()
        if overwrite:
            raise UnsupportedError(
                f"table {table.name}: mode 'overwrite' is not in this release; use mode 'append', "
                f"which replaces rows of the same key, or drop the table and make it anew"
            )
        return TableWriter(table, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  # Spark's name
        """A writer of micro-batches. Raises `UnsupportedError` for output mode complete."""
        table = SourceOptions.parse(self.options).table()
        if overwrite:
            raise UnsupportedError(
                f"table {table.name}: output mode 'complete' would replace the table with every "
                f"batch; use 'update' or 'append', rows of the same key are replaced anyway"
            )
        return TableStreamWriter(table, schema)


class FilteringKeytideSource(KeytideSource):
    """The same for sessions that hand filters to Python data sources."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader that takes filters."""
        return FilteringScanReader(SourceOptions.parse(self.options), tuple(schema.names))


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
    store: tuple[tuple[str, str], ...] = ()

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

    def table(self) -> Table:
        """Open the table."""
        return open_table(self.path, options=dict(self.store))

    def scan(self, columns: Sequence[str] | None = None) -> Scan:
        """The scan that the options describe, of other columns if given."""
        return self.table().scan(
            self.columns if columns is None else columns,
            self.where,
            self.snapshot_id,
            self.tag,
            self.as_of,
        )


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
        self.pushed: Predicate | None = None

    def partitions(self) -> list[InputPartition]:
        """The bins, pickled with what they need."""
        scan = self.options.scan(self.columns)
        terms = [term for term in (scan.predicate, self.pushed) if term is not None]
        tasks = split_tasks(replace(scan, predicate=conjunction(terms)))
        bins = pack(tasks, CORES_UNKNOWN * BINS_PER_CORE)
        return [InputPartition(pickle.dumps((tasks, scan.schema))) for tasks in bins]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read and merge one bin. Runs on executors."""
        if partition.value is None:  # Spark's stand-in for no partitions at all
            return iter(())
        tasks, schema = pickle.loads(partition.value)
        return read_bin(tasks, schema)


class FilteringScanReader(ScanReader):
    """The same, with filters of the query applied while reading."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        """Take the filters that a scan can apply; Spark applies the others."""
        schema = self.options.table().table_schema
        self.pushed, left = push_filters(filters, schema)
        return iter(left)


# -- writing ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What a task tells the driver; in a stream with the batch it worked for."""

    result: TaskResult
    batch: StreamBatch | None = None


class TableWriter(DataSourceArrowWriter):
    """Appends one DataFrame in one commit. Planned on the driver, pickled to the tasks."""

    def __init__(self, table: Table, schema: StructType) -> None:
        self.table = table
        self.job = WriteJob.plan(table)
        check_columns(schema, self.job.view)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows. Runs on executors."""
        return TaskMessage(write_task(self.job, iterator))

    def commit(self, messages: Sequence[Any]) -> None:
        """Commit all tasks' files."""
        results = [message.result for message in messages if message is not None]
        live = self.table.live_files()
        user = str(uuid.uuid4())
        commit_results(self.table, self.job.view, live, results, user, BATCH_COMMIT_IDENTIFIER)

    def abort(self, messages: Sequence[Any]) -> None:
        """Delete the files of the tasks that did finish."""
        for message in messages:
            if message is not None:
                discard(self.job.view, message.result.entries)


class TableStreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches, each exactly once.

    Made anew by Spark for the tasks of every batch and again for its commit, so all that a
    commit needs travels in the messages.
    """

    def __init__(self, table: Table, schema: StructType) -> None:
        self.table = table
        self.job = WriteJob.plan(table)
        check_columns(schema, self.job.view)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows. Runs on executors."""
        return TaskMessage(write_task(self.job, iterator), batch_of_task())

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit a batch unless it was committed before."""
        told = [message for message in messages if message is not None]
        if not told:
            return
        results = [message.result for message in told]
        batch: StreamBatch = told[0].batch
        live = self.table.live_files()
        if self.table.find_commit(batch.commit_user, batch.batch_id) is not None:
            self.abort(messages, batchId)
            return
        commit_results(self.table, self.job.view, live, results, batch.commit_user, batch.batch_id)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Delete the files of the tasks that did finish."""
        for message in messages:
            if message is not None:
                discard(self.job.view, message.result.entries)
