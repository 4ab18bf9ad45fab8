"""Executor tasks for row-level changes and for reads of connectors, without an SQL parser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from keytide.base.dataclass import dataclass, replace
from keytide.dml.assignment import stored_values
from keytide.dml.attachments import PagesScan, PagesTask
from keytide.dml.engine import RowChange, Sinks, SplitResult, TargetScan, checked_pages
from keytide.dml.spi import ROW_ID, ColumnHandle, Split, UpdatablePageSource
from keytide.sources.scan import ExternalHandle
from keytide.spark.columns import batches_of, spark_schema
from keytide.spark.error_translation import check_python
from keytide.spark.external_merge import merged_to_spark
from keytide.spark.runner import Executors
from keytide.sql.merged_rows import MatchedRows, MergedRows, PassThrough
from keytide.types import Field

SPLIT = "$split"
"""The column that contains the split number."""

GROUP = "$group"
"""The column that contains the number of the group of splits."""

_SPLIT_SHIFT = 40
"""Number of bits for a row's number within a split: up to a trillion rows."""


def scanned_schema(target_scan: TargetScan, passed: PassThrough) -> pa.Schema:
    """The columns that tasks return for a target: those passed through, and the split number."""
    return passed.schema(target_scan.columns).append(pa.field(SPLIT, pa.int32()))


@dataclass(frozen=True)
class MatchingTask:
    """Reads the rows of splits that can match a source.

    The input contains the source's values for `columns` of the target and, in the last column, a
    group of splits. There are `groups` groups, and split `n` belongs to group `n % groups`. No row
    is read from a group without values.
    """

    target_scan: TargetScan
    passed: PassThrough
    columns: tuple[str, ...]
    groups: int

    def batches(self, shuffled: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Like `ScanTask.batches`, for the groups that occur in the input."""
        for group, values in _gathered(shuffled, self.columns).items():
            for number in range(group, len(self.target_scan.splits), self.groups):
                split = self.target_scan.pages.apply_values(
                    self.target_scan.session,
                    self.target_scan.table,
                    self.target_scan.splits[number],
                    values,
                )
                one = replace(self.target_scan, splits=[split])
                yield from ScanTask(one, self.passed, number).batches()


_GATHERED_MAX = 1 << 20
"""With more rows than this, the distinct values are not collected."""


def _gathered(
    shuffled: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> dict[int, dict[str, pa.Array]]:
    """The values of each column, by group. Groups with too many rows have no values."""
    counts: dict[int, int] = {}
    held: dict[int, list[pa.RecordBatch]] = {}
    for batch in shuffled:
        of_rows = batch.column(GROUP)
        for group in of_rows.unique().to_pylist():
            some = pa.record_batch(batch.columns[:-1], list(columns)).filter(
                pc.equal(of_rows, group)
            )
            counts[group] = counts.get(group, 0) + some.num_rows
            if counts[group] <= _GATHERED_MAX:
                held.setdefault(group, []).append(some)
            else:
                held[group] = []
    found: dict[int, dict[str, pa.Array]] = {}
    for group, batches in held.items():
        rows = pa.Table.from_batches(batches) if batches else pa.table({})
        names = rows.column_names
        found[group] = {name: pc.drop_null(rows.column(name).unique()) for name in names}
    return found


@dataclass(frozen=True)
class ScanTask:
    """Reads one split."""

    target_scan: TargetScan
    passed: PassThrough
    number: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, each with its row number and its split number."""
        wanted = self.passed.read_columns(self.target_scan.columns)
        schema = self.passed.schema(self.target_scan.columns)
        source = _open(self.target_scan, self.target_scan.splits[0], wanted)
        try:
            start = self.number << _SPLIT_SHIFT
            for page in checked_pages(source, wanted, type(source).__name__):
                given = self.passed.engine_page(page, self.target_scan.columns, start, schema)
                splits = pa.repeat(pa.scalar(self.number, pa.int32()), page.num_rows)
                columns = [*given.columns, splits]
                whole = pa.record_batch(
                    columns, schema=scanned_schema(self.target_scan, self.passed)
                )
                yield from batches_of(pa.Table.from_batches([whole]))
                start += page.num_rows
        finally:
            source.close()


@dataclass(frozen=True)
class ScanTasks:
    """Reads several splits, one after the other."""

    tasks: tuple[ScanTask, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See `ScanTask.batches`."""
        for task in self.tasks:
            yield from task.batches()


def _open(
    target_scan: TargetScan, split: Split, columns: Sequence[ColumnHandle]
) -> UpdatablePageSource:
    return target_scan.pages.create_page_source(  # type: ignore[return-value]  # as begin promised
        target_scan.session, target_scan.table, split, columns
    )


# -- changes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChangeTask:
    """Passes rows to page sources of the splits that they came from."""

    target_scan: TargetScan
    change: RowChange
    passed: PassThrough
    fields: tuple[Field, ...]
    table: str

    def feed(self, rows: Iterable[pa.Table], number: int) -> list[SplitResult]:
        """The results of the splits whose rows this task received."""
        sources: dict[int, UpdatablePageSource] = {}
        counts: dict[int, int] = {}
        try:
            for table in rows:
                splits = table.column(SPLIT).to_numpy()
                for split in map(int, np.unique(splits)):
                    if split not in sources:
                        given = self.target_scan.splits[split]
                        sources[split] = _open(self.target_scan, given, self.target_scan.columns)
                    page = self._page(table.filter(pa.array(splits == split)))
                    self.change.apply(sources[split], page)
                    counts[split] = counts.get(split, 0) + page.num_rows
            return [SplitResult(counts[s], source.finish()) for s, source in sources.items()]
        except BaseException:
            for source in sources.values():
                with suppress(Exception):  # the original error is more useful
                    source.abort()
            raise
        finally:
            for source in sources.values():
                source.close()

    def _page(self, table: pa.Table) -> pa.RecordBatch:
        values = stored_values(table.columns[: len(self.fields)], self.fields, self.table)
        batch = table.combine_chunks().to_batches()[0]
        names = [*(field.name for field in self.fields), ROW_ID]
        return pa.record_batch([*values, self.passed.row_ids(batch)], names)


@dataclass(frozen=True)
class MergeTask:
    """Passes merged rows to a sink."""

    sinks: Sinks
    passed: PassThrough
    made: MergedRows
    count: int

    def feed(self, rows: Iterable[pa.Table], number: int) -> SplitResult | None:
        """The result of one sink, None if the task received no rows."""
        context = TaskContext.get()
        place = number if context is None else int(context.partitionId())
        sink = None
        matched = MatchedRows(self.made.table)
        changed = 0
        try:
            for table in rows:
                if sink is None:
                    sink = self.sinks.provider.create_merge_sink(
                        self.sinks.session, self.sinks.table, place, self.count
                    )
                for batch in table.to_batches():
                    matched.take(batch)
                    for page in self.made.pages(batch, self.passed, self.sinks.pages):
                        sink.store_merged_rows(page.page)
                        changed += page.rows
            if sink is None:
                return None
            return SplitResult(changed, sink.finish())
        except BaseException:
            if sink is not None:
                sink.abort()
            raise


# -- tables of connectors --------------------------------------------------------------------------


def pages_to_spark(scan: PagesScan, spark: SparkSession) -> DataFrame:
    """The rows of a connector's table as a lazy DataFrame.

    Runs on the driver. Splits are listed here, and read when rows are requested. Raises
    `SetupError` when Spark runs another Python version, and what the connector raises. A later
    error in a task is raised as the Keytide error, which is also an error class of Spark.
    """
    check_python(spark)
    table, _ = scan.narrowed()
    rows = merged_to_spark(scan, table, spark) if isinstance(table, ExternalHandle) else None
    if rows is not None:
        return rows
    tasks = [_Pages(task) for task in scan.tasks()]
    return Executors().rows(tasks, spark_schema(scan.schema), spark)


@dataclass(frozen=True)
class _Pages:
    task: PagesTask

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in Spark's batch format. Runs on executors."""
        for page in self.task.batches():
            yield from batches_of(pa.Table.from_batches([page]))
