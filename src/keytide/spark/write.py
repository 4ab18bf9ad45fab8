"""DataFrames into tables: executors write sorted files, the driver commits them once.

Rows are first brought together by bucket, so that each bucket gets one sorted run and readers
have little to merge; a DataFrame of one partition is written as it lies. A task cuts its rows
into runs of at most 'write-buffer-size', which bounds its memory. Within one write the later row
of a key wins: rows keep the order of the DataFrame through the shuffle, and sequence numbers grow
from task to task and from run to run. Where that order means nothing, use a sequence field.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from keytide.errors import (
    ConflictError,
    DataError,
    InvalidError,
    KeytideError,
    NotFoundError,
    UnsupportedError,
)
from keytide.format.manifest import ManifestEntry
from keytide.row_kind import ROW_KIND
from keytide.scratch import scratch
from keytide.spark.bucket import with_bucket
from keytide.spark.connect import cores, is_connect
from keytide.spark.errors import on_driver
from keytide.spark.internals import partition_count
from keytide.spark.predicate import column
from keytide.spark.python import check_python
from keytide.spark.stream import author_in_stream
from keytide.spark.types import arrow_schema_of
from keytide.spark.worker import settle
from keytide.table.commit.commit import Author, Change, Start
from keytide.table.state.live_files import LiveFiles
from keytide.table.state.view import TableView
from keytide.table.table import Table, WriteResult
from keytide.table.write.bucket_writer import BucketWriter, SequenceBase
from keytide.table.write.out_of_order import count_out_of_order
from keytide.table.write.rows import incoming_rows

__all__ = [
    "TaskResult",
    "WriteJob",
    "check_columns",
    "commit_results",
    "discard",
    "task_number",
    "write_dataframe",
    "write_task",
]

TASKS_PER_CORE = 4
"""Tasks of a write at most; more balance better where partitions differ in size."""

RUNS_PER_TASK = 1 << 16
"""How far the sequence numbers of neighbouring tasks lie apart."""


def write_dataframe(
    table: Table,
    df: DataFrame,
    commit_user: str | None = None,
    commit_identifier: int | None = None,
) -> WriteResult:
    """Write a DataFrame in one atomic commit, like `Table.write`.

    Runs one Spark job. Columns and types are checked before it starts, values by its tasks;
    after an error nothing is committed, and the files of finished tasks are deleted. Inside a
    `foreachBatch` function, commit user and identifier come from the query and batch by
    themselves; on Spark Connect they have to be given there. A repeated write runs no job, so it
    reports no rows.
    """
    author = Author.given(commit_user, commit_identifier)
    start = table.begin(author or author_in_stream(df, table.uri))
    check_python(df.sparkSession)
    job = WriteJob.plan(table, start.live)
    check_columns(df.schema, job.view)
    if start.done is not None:
        return WriteResult(start.done.id, 0, 0, 0, is_new=False)
    if _is_one_partition(df):
        results = _run(df, replace(job, is_one_task=True))
    else:
        results = _run(_by_bucket(df, job.view), job)
    return commit_results(table, job.view, start, results)


# -- what tasks do ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class WriteJob:
    """What each task of one write has to know. Pickles."""

    view: TableView
    partition_buckets: Mapping[bytes, int]
    base: SequenceBase
    is_one_task: bool = False
    """Whether a single task writes everything, and may so use all cores."""
    stored: tuple[ManifestEntry, ...] = ()
    """The files that a count of rows out of order looks at, if it is asked for."""

    @classmethod
    def plan(cls, table: Table, live: LiveFiles) -> WriteJob:
        """A write on top of some live files. Raises `UnsupportedError` as `Table.write`."""
        view = table.writable_view()
        stored = tuple(live.entries) if view.options.counts_out_of_order else ()
        return cls(view, live.partition_buckets, SequenceBase.after(live), stored=stored)


@dataclass(frozen=True)
class TaskResult:
    """What one task wrote, or why the rows could not be written.

    Errors that no repetition mends travel as values, so that Spark does not try again and the
    driver learns of every file.
    """

    number: int
    entries: tuple[ManifestEntry, ...] = ()
    rows: int = 0
    error: KeytideError | None = None
    out_of_order: int = 0


def task_number() -> int:
    """The number of the task that this is, within its stage. Runs on executors."""
    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def write_task(job: WriteJob, batches: Iterable[pa.RecordBatch], number: int) -> TaskResult:
    """Write the rows of task `number` as one or more sorted runs per bucket.

    Runs on executors. Rows of a later task are newer, and within a task those of a later run.
    Raises `DataError` when the store refuses; then nothing is left behind, as far as possible.
    """
    settle()
    writer = BucketWriter(job.view, job.partition_buckets)
    threads = (os.cpu_count() or 1) if job.is_one_task else 1
    entries: list[ManifestEntry] = []
    rows = out_of_order = 0
    try:
        base = replace(job.base, offset=number * RUNS_PER_TASK)
        for run in _runs(batches, job.view.options.write_buffer_bytes):
            incoming = incoming_rows(run, job.view.schema, job.view.options, job.view.name)
            out_of_order += count_out_of_order(writer, incoming, (*job.stored, *entries)) or 0
            written = writer.write(incoming, base, threads=threads)
            base = base.behind(written, run.num_rows)
            entries += written
            rows += run.num_rows
    except (ConflictError, InvalidError, NotFoundError, UnsupportedError) as error:
        return TaskResult(number, tuple(entries), rows, error)
    except BaseException:
        discard(job.view, entries)
        raise
    return TaskResult(number, tuple(entries), rows, out_of_order=out_of_order)


def _runs(batches: Iterable[pa.RecordBatch], buffer_bytes: int) -> Iterator[pa.Table]:
    """The rows in pieces of about `buffer_bytes`, each in the DataFrame's order."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= buffer_bytes:
            yield _in_order(pa.Table.from_batches(held))
            held, held_bytes = [], 0
    if held:
        yield _in_order(pa.Table.from_batches(held))


def _in_order(rows: pa.Table) -> pa.Table:
    if _ORDER not in rows.column_names:
        return rows
    order = rows.column(_ORDER).combine_chunks()
    rows = rows.drop_columns([_ORDER])
    if pc.all(pc.less_equal(order[:-1], order[1:])).as_py() in (True, None):
        return rows  # as a rule: shuffle blocks come in the order of their tasks
    return rows.take(pc.array_sort_indices(order))


# -- what the driver does --------------------------------------------------------------------------


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


def commit_results(
    table: Table,
    view: TableView,
    start: Start,
    results: Iterable[TaskResult],
) -> WriteResult:
    """Commit what tasks wrote, or raise the first task's error with their files deleted."""
    ordered = sorted(results, key=lambda result: result.number)
    entries = tuple(entry for result in ordered for entry in result.entries)
    rows = sum(result.rows for result in ordered)
    error = next((result.error for result in ordered if result.error is not None), None)
    if error is not None:
        discard(view, entries)
        raise error
    late = sum(result.out_of_order for result in ordered)
    out_of_order = late if view.options.counts_out_of_order else None
    if not entries:
        return WriteResult(None, rows, 0, 0, out_of_order=out_of_order)
    try:
        committed = table.commit(view, Change(entries, start.author), start.live)
    except ConflictError:
        discard(view, entries)
        raise
    if not committed.is_new:
        return WriteResult(committed.snapshot.id, rows, 0, 0, is_new=False)
    stored = sum(entry.file.row_count for entry in entries)
    return WriteResult(committed.snapshot.id, rows, stored, len(entries), out_of_order=out_of_order)


def discard(view: TableView, entries: Iterable[ManifestEntry]) -> None:
    """Delete files that no commit names. Best effort: what is left over is harmless."""
    try:
        view.store.delete([view.file_path(entry) for entry in entries])
    except DataError:
        return


def _run(rows: DataFrame, job: WriteJob) -> list[TaskResult]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result = pickle.dumps(write_task(job, batches, task_number()))
        yield pa.record_batch([pa.array([result], pa.binary())], names=["result"])

    with on_driver():
        collected = rows.mapInArrow(write, "result binary").collect()
    return [pickle.loads(bytes(row.result)) for row in collected]


# -- bringing rows of a bucket together ----------------------------------------------------------

_ORDER, _BUCKET, _TARGET = map(scratch, ("order", "bucket", "target"))


def _by_bucket(df: DataFrame, view: TableView) -> DataFrame:
    """The rows with each bucket in one partition; their order in the DataFrame is in `_ORDER`."""
    names = [column(name) for name in df.columns]
    partition_keys = [column(name) for name in view.schema.partition_keys]
    count = cores(df.sparkSession) * TASKS_PER_CORE
    if not partition_keys:
        count = min(count, view.options.bucket)
    target = F.pmod(F.hash(*partition_keys), F.lit(count)) if partition_keys else F.lit(0)
    rows = df.select(*names, F.monotonically_increasing_id().alias(_ORDER))
    if view.options.bucket > 1:
        rows = with_bucket(rows, view, _BUCKET)
        target = target + F.col(_BUCKET)
    targeted = rows.select(*names, _ORDER, target.alias(_TARGET))
    return targeted.repartitionById(count, _TARGET).drop(_TARGET)


def _is_one_partition(df: DataFrame) -> bool:
    """Whether all rows will be in one task, as far as can be told without running anything."""
    return not is_connect(df) and partition_count(df) == 1
