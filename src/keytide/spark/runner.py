"""Runs tasks on Spark's executors, or in threads of the driver if they read little.

Tasks are rows of a plan, so that each Spark task receives its own work and that of no other. Spark
sends the function of a job to every task of it. So the function contains nothing that grows with
the number of tasks. The tasks themselves are rows that the driver sends. Spark cuts such rows into
as many parts as it has cores at that moment, so a plan for more parts is a union.

Spark passes rows to a task in batches. It ends a batch after 10,000 rows or 64 MB. It computes the
size of the batch again for each row, from all of its columns, which takes longer than reading and
copying the row. So batches of rows that are not long are limited by number alone, to one that keeps
them far below 64 MB. Rows that reach a task in small pieces are combined into sorted runs.

Executors import this module, so it imports nothing that only planning needs.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from math import ceil
from typing import Any, Protocol, TypeVar, runtime_checkable

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from keytide.base.dataclass import dataclass
from keytide.base.process import scratch
from keytide.compaction.compact import local_runner
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.state import TableView
from keytide.spark.capacity import capacity_of, temporary_setting, work_place
from keytide.spark.columns import row_bytes
from keytide.spark.error_translation import install_messages, on_driver, unsupported_errors
from keytide.spark.internals import end_after_errors, is_apache_spark
from keytide.spark.worker import set_up
from keytide.tasks import FeedTask, Outcome, collect_results, run_feed_task, run_task
from keytide.write.task import TaskResult, WriteTask

# -- tasks as rows of a plan -----------------------------------------------------------------------


_SPARK_SCHEMA = StructType(
    [StructField("number", IntegerType()), StructField("payload", BinaryType())]
)
_SCHEMA = pa.schema([("number", pa.int32()), ("payload", pa.binary())])

_RELATIONS_MAX = 256
"""Each one takes Spark some milliseconds to plan. With more tasks, a Spark task runs several."""

_PAYLOADS_PER_SLICE = 2
"""So a Spark task runs one or two tasks, depending on how many cores are there."""

_BYTES_PER_NUMBER = 56
"""What Spark assumes for a number of a range as a row like the others."""

_NUMBERS_UNTOLD, _NUMBERS_MAX = 1 << 10, 64 << 20
"""Fewer numbers than the first are not worth a step. Generating the second takes 0.1 s."""


def dump_task(task: object) -> bytes:
    """A task as the bytes that are sent to an executor. Tasks repeat much of each other."""
    return zlib.compress(pickle.dumps(task, pickle.HIGHEST_PROTOCOL), 1)


def load_task(payload: bytes) -> Any:
    """The task again."""
    return pickle.loads(zlib.decompress(payload))


def payload_rows(tasks: Iterable[object], spark: SparkSession, made_bytes: int = 0) -> DataFrame:
    """A row with the number and the payload of each task, in order, spread over Spark's tasks.

    Spark is made to assume that a Python step over the rows returns `made_bytes`.
    """
    payloads = [dump_task(task) for task in tasks]
    slices = capacity_of(spark).slices
    each = max(_PAYLOADS_PER_SLICE * slices, ceil(len(payloads) / _RELATIONS_MAX))
    starts = range(0, max(1, len(payloads)), each)
    parts = []
    for start in starts:
        some = payloads[start : start + each]
        rows = pa.table([[*range(start, start + len(some))], some], schema=_SCHEMA)
        parts.append(spark.createDataFrame(rows, _SPARK_SCHEMA))
    numbers = min(made_bytes // _BYTES_PER_NUMBER, _NUMBERS_MAX)
    if numbers <= _NUMBERS_UNTOLD:
        return _joined(parts)
    # Spark knows how many numbers a range has, and assumes that a filter returns as many.
    no_rows = spark.range(0, numbers, 1, 1).where("id < 0")
    nothing = no_rows.selectExpr("CAST(id AS INT) AS number", "CAST(NULL AS BINARY) AS payload")
    # The empty part of the range joins another one, so that it starts no Python worker.
    certain = sum(min(slices, len(payloads) - start) for start in starts)
    return _joined([*parts, nothing]).coalesce(max(1, certain))


def payloads_in(rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """The number and the payload of each task in the rows of a Spark task."""
    for batch in rows:
        for number, payload in zip(*batch.columns, strict=True):
            yield number.as_py(), payload.as_py()


def _joined(parts: list[DataFrame]) -> DataFrame:
    """The union of all parts, not nested deeper than Spark Connect allows."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [*(one.unionAll(other) for one, other in pairs), *odd]
    return parts[0]


# -- execution on executors ------------------------------------------------------------------------


T = TypeVar("T")


class RowsTask(Protocol):
    """Work that returns rows. Can be pickled."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        ...


class RowTask(Protocol):
    """Work that converts rows to other rows. Can be pickled."""

    def batches(self, rows: Iterable[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]:
        """Convert the rows of one partition."""
        ...


def running_tasks(spark: SparkSession) -> tuple[int, int]:
    """The numbers of finished and of all tasks in the stages that are running.

    Can be called from any thread. Returns zeros if Spark does not report them, because this is only
    for a progress line.
    """
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:
        return 0, 0
    known = [stage for stage in stages if stage is not None]
    return sum(each.numCompletedTasks for each in known), sum(each.numTasks for each in known)


@dataclass(frozen=True)
class Cluster:
    """Runs self-contained tasks on the executors of a session. See `TaskRunner`."""

    spark: SparkSession

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """Run one Spark job, and pass on the results in order.

        Spark retries a task that fails, unless a retry cannot fix its error. Then the results of
        the others are passed on first. If a task fails for good, they are lost.
        """
        with on_driver():
            payloads = payload_rows(tasks, self.spark)
            outcomes = payloads.mapInArrow(_outcomes, "outcome binary")
        _collect(outcomes, take)


class Executors:
    """Runs tasks over the partitions of a DataFrame, or as the partitions of a new one."""

    def rows(
        self,
        tasks: Sequence[RowsTask],
        schema: StructType,
        spark: SparkSession,
        count: int | None = None,
    ) -> DataFrame:
        """The rows that tasks return, as a lazy DataFrame. A Spark task runs one task, or several.

        `count` is the maximum number of rows, None if it is unknown. Spark uses it to plan joins.
        An error in a task is raised as the Keytide error, which is also an error class of Spark.
        """
        install_messages()
        made_bytes = (_COUNT_UNKNOWN if count is None else count) * row_bytes(schema)
        return payload_rows(tasks, spark, made_bytes).mapInArrow(_rows, schema)

    def convert(self, task: RowTask, rows: DataFrame, schema: StructType) -> DataFrame:
        """The rows that a task creates from each partition of other rows, as a lazy DataFrame."""
        payload = dump_task(task)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from convert_here(payload, batches)

        return rows.mapInArrow(run, schema)

    def feed(
        self,
        task: FeedTask[T],
        rows: DataFrame,
        take: Callable[[T], None],
        known_row_bytes: float = 0,
    ) -> None:
        """Run one Spark job, and pass on the results of its tasks in the order of the partitions.

        Raises the first error of a task that a retry cannot fix after passing on the results of the
        others, and other errors of tasks as Keytide errors without passing on any. An interrupt
        such as Ctrl-C cancels the job. After an error, no task runs any more. `known_row_bytes` is
        as in `counted_batches`.
        """
        attempt = feed_here
        if not is_apache_spark(rows.sparkSession):
            attempt = _attempted_by_number
            rows = rows.select("*", F.spark_partition_id().alias(_PARTITION))

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield _outcome_row(attempt(task, batches))

        with on_driver():
            outcomes = rows.mapInArrow(run, "outcome binary")
        with counted_batches(rows, known_row_bytes):
            _collect(outcomes, take)


def _collect(outcomes: DataFrame, take: Callable[[T], None]) -> None:
    """Run the tasks whose outcomes are the rows of a DataFrame, and pass on their results."""
    with on_driver(), unsupported_errors(), end_after_errors(outcomes.sparkSession):
        collected = outcomes.collect()
    collect_results((pickle.loads(bytes(row.outcome)) for row in collected), take)


_COUNT_UNKNOWN = 4 << 20
"""The row count that Spark is given."""


def _rows(payloads: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _, payload in payloads_in(payloads):
        yield from rows_here(payload)


def _outcomes(payloads: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for number, payload in payloads_in(payloads):
        yield _outcome_row(run_here(payload, number))


def rows_here(payload: bytes) -> Iterator[pa.RecordBatch]:
    """Run a packed task on this executor and return its rows."""
    set_up()
    task: RowsTask = load_task(payload)
    yield from task.batches()


def convert_here(payload: bytes, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a packed task on this executor and return the rows that it creates from others."""
    set_up()
    task: RowTask = load_task(payload)
    yield from task.batches(batch for batch in rows if batch.num_rows)


def run_here(payload: bytes, number: int) -> Outcome[Any]:
    """Run a packed task on this executor. An error that a retry cannot fix is an outcome."""
    set_up()
    return run_task(load_task(payload), number)


def _outcome_row(outcome: Outcome[Any]) -> pa.RecordBatch:
    """An outcome as the row that is sent to the driver."""
    return pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], names=["outcome"])


def feed_here(task: FeedTask[T], batches: Iterable[pa.RecordBatch]) -> Outcome[T]:
    """Run a feed task on the rows of the partition that this executor processes."""
    set_up()
    context = TaskContext.get()
    # Servers other than Spark's do not tell it to a data source, which needs none there.
    number = 0 if context is None else int(context.partitionId())
    pieces = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
    return run_feed_task(task, pieces, number)


_PARTITION = scratch("partition")


def _attempted_by_number(task: FeedTask[T], batches: Iterable[pa.RecordBatch]) -> Outcome[T]:
    """The same where tasks only know the number of their partition from a column of the rows."""
    set_up()
    filled = (batch for batch in batches if batch.num_rows)
    first = list(islice(filled, 1))
    number = first[0].column(_PARTITION)[0].as_py() if first else 0
    pieces = (
        pa.Table.from_batches([batch]).drop_columns(_PARTITION) for batch in chain(first, filled)
    )
    return run_feed_task(task, pieces, number)


# -- the choice by size ----------------------------------------------------------------------------


@runtime_checkable
class _SizedTask(Protocol):
    """A task that knows what it reads."""

    @property
    def view(self) -> TableView:
        """The table whose files the task reads."""
        ...

    @property
    def stored_bytes(self) -> int:
        """The total size of those files."""
        ...


@dataclass(frozen=True)
class SizedRunner:
    """Runs self-contained tasks where `WorkPlace` decides. See `TaskRunner`."""

    spark: SparkSession

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """See `TaskRunner.each`."""
        given: Sequence[object] = tasks
        sized = [task for task in given if isinstance(task, _SizedTask)]
        is_driver = False
        if sized and len(sized) == len(tasks):
            bytes_max = sized[0].view.options.driver_work_bytes_max
            sizes = (task.stored_bytes for task in sized)
            is_driver = work_place(self.spark, bytes_max, *sizes).is_driver
        runner = local_runner() if is_driver else Cluster(self.spark)
        runner.each(tasks, take)


# -- batches of rows -------------------------------------------------------------------------------


_BYTES, _UNLIMITED = "spark.sql.execution.arrow.maxBytesPerBatch", str((1 << 31) - 1)
_ROWS, _ROWS_MAX = "spark.sql.execution.arrow.maxRecordsPerBatch", "1000"
_OURS = {_BYTES: _UNLIMITED, _ROWS: _ROWS_MAX}
_LONG_ROW = 8 << 10
"""With rows of this many bytes on average, 1,000 are 8 MB. Spark measures the batches of longer
ones."""
_NESTED = frozenset({"array", "map", "struct", "variant"})
_MEMORY_PER_STORED = 4


@contextmanager
def counted_batches(rows: DataFrame, known_row_bytes: float = 0) -> Iterator[None]:
    """A context in which batches of a DataFrame's rows have at most 1,000 rows, of any size.

    `known_row_bytes` is the average of similar rows, 0 if it is unknown. Nothing changes for long
    rows, for nested columns, whose values may be long, and if the session has a limit of its own.
    """
    spark, schema = rows.sparkSession, rows.schema
    is_long = max(row_bytes(schema), known_row_bytes) > _LONG_ROW
    is_nested = not _NESTED.isdisjoint(field.dataType.typeName() for field in schema)
    if (
        is_long
        or is_nested
        or not is_apache_spark(spark)
        or any(spark.conf.get(name, None) not in {None, ours} for name, ours in _OURS.items())
    ):
        yield
        return
    with temporary_setting(spark, _ROWS, _ROWS_MAX), temporary_setting(spark, _BYTES, _UNLIMITED):
        yield


def stored_row_bytes(live: LiveFiles) -> float:
    """About how many bytes of memory a row of a table takes on average, 0 if there are none."""
    size, rows = live.files.columns("_FILE_SIZE", "_ROW_COUNT").sum().row(0)
    return _MEMORY_PER_STORED * size / rows if rows else 0.0


# -- sorted runs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class BufferedTask:
    """Writes rows that arrive in small pieces, combined into runs of 'write-buffer-size'.

    REQUIRES: the rows arrive in their order.
    """

    task: WriteTask

    def feed(self, rows: Iterable[pa.Table], number: int) -> TaskResult:
        """Write the rows as one or more sorted runs for each bucket. Raises as `WriteTask.feed`."""
        return self.task.feed(_runs(rows, self.task.view.options.write_buffer_bytes), number)


def _runs(pieces: Iterable[pa.Table], buffer_bytes: int) -> Iterator[pa.Table]:
    """The rows in tables of about `buffer_bytes`."""
    held: list[pa.Table] = []
    held_bytes = 0
    for piece in pieces:
        held.append(piece)
        held_bytes += piece.nbytes
        if held_bytes >= buffer_bytes:
            yield pa.concat_tables(held)
            held, held_bytes = [], 0
    if held:
        yield pa.concat_tables(held)
