"""Row-level changes on Spark: executors read, compute and change; the driver gets fragments.

The splits of a target are the partitions of a DataFrame. Spark SQL finds the rows and computes the
new values; then tasks hand them to a source of the split that they came from. Where a statement
names other tables too, Spark may have moved rows, and they are brought together by split again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keytide.dml.engine import RowChange, Scanned, SplitResult, checked_pages
from keytide.dml.merge import Sinks
from keytide.dml.spi import ROW_ID, ColumnHandle, Split, UpdatablePageSource
from keytide.spark.connect import cores
from keytide.spark.predicate import column
from keytide.spark.python import check_python
from keytide.spark.runner import Executors
from keytide.spark.types import batches_of, spark_schema
from keytide.sql.merge_plan import MergedRows, MergeQuery
from keytide.sql.passed import ROW, Passed
from keytide.sql.row_query import RowQuery, stored_values
from keytide.types import Field

__all__ = ["SparkMergeHost", "SparkRowHost"]

_SPLIT = "$split"
_SPLIT_SHIFT = 40
"""Rows of a split have this many bits for their number: a trillion."""


@dataclass(frozen=True)
class SparkRowHost:
    """Carries DELETE and UPDATE out on a session; see `Host`. One Spark job."""

    query: RowQuery
    spark: SparkSession
    compute: Callable[[Sequence[str], DataFrame], DataFrame]
    """Runs the query with some columns passed through, over the target's rows."""

    def change(
        self, scanned: Scanned, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        """See `Host.change`."""
        passed = Passed(scanned.columns[-1].type)
        names = (*passed.names, _SPLIT)
        rows = self.compute(names, _frame(scanned, passed, self.spark))
        if self.query.bound.relations:
            # A join or a subquery may have moved rows away from those of their split.
            rows = rows.repartition(max(cores(self.spark), 1), column(_SPLIT))
        task = _ChangeTask(scanned, change, passed, self.query.fields, self.query.table)
        results: list[list[SplitResult]] = []
        try:
            Executors().feed(task, rows, results.append)
        except PySparkException as error:
            raise self.query.bound.refused(str(error).splitlines()[0]) from error
        finally:
            for each in results:
                for result in each:
                    take(result)


@dataclass(frozen=True)
class SparkMergeHost:
    """Carries a MERGE out on a session; see `MergeHost`. One Spark job."""

    query: MergeQuery
    spark: SparkSession
    compute: Callable[[Passed, DataFrame], DataFrame]
    """Runs the query over the target's rows."""

    def merge(self, scanned: Scanned, sinks: Sinks, take: Callable[[SplitResult], None]) -> None:
        """See `MergeHost.merge`."""
        passed = self.query.passed(sinks.pages)
        rows = self.compute(passed, _frame(scanned, passed, self.spark))
        count = max(cores(self.spark), 1)
        # All that concerns a row of the target comes to one task; new rows are dealt out.
        places = F.coalesce(*self._places(sinks, passed), F.xxhash64(*map(column, rows.columns)))
        rows = rows.repartition(count, places)
        task = _MergeTask(sinks, passed, self.query.made, count)
        try:
            Executors().feed(task, rows, take)
        except PySparkException as error:
            raise self.query.bound.refused(str(error).splitlines()[0]) from error

    def _places(self, sinks: Sinks, passed: Passed) -> list[object]:
        if not sinks.layout:
            return [column(ROW)]
        names = [f.name for f in sinks.pages.row_id.type]
        members = [column(passed.names[names.index(name)]) for name in sinks.layout]
        return [F.when(column(ROW).isNotNull(), F.xxhash64(*members))]


# -- reading ---------------------------------------------------------------------------------------


def _frame(scanned: Scanned, passed: Passed, spark: SparkSession) -> DataFrame:
    """The rows of a target, one partition for each split, with what is passed through."""
    tasks = [
        _ScanTask(scanned_one, passed, number)
        for number, scanned_one in enumerate(_one_by_one(scanned))
    ]
    schema = passed.schema(scanned.columns).append(pa.field(_SPLIT, pa.int32()))
    check_python(spark)
    return Executors().rows(tasks, spark_schema(schema), spark)


def _one_by_one(scanned: Scanned) -> Iterator[Scanned]:
    for split in scanned.splits:
        yield Scanned(scanned.pages, scanned.session, scanned.table, [split], scanned.columns)


@dataclass(frozen=True)
class _ScanTask:
    """Reads one split."""

    scanned: Scanned
    passed: Passed
    number: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, each with its number and that of the split."""
        wanted = self.passed.read_columns(self.scanned.columns)
        schema = self.passed.schema(self.scanned.columns)
        source = _open(self.scanned, self.scanned.splits[0], wanted)
        try:
            start = self.number << _SPLIT_SHIFT
            for page in checked_pages(source, wanted, type(source).__name__):
                given = self.passed.given(page, self.scanned.columns, start, schema)
                splits = pa.repeat(pa.scalar(self.number, pa.int32()), page.num_rows)
                numbered = schema.append(pa.field(_SPLIT, pa.int32()))
                whole = pa.record_batch([*given.columns, splits], schema=numbered)
                yield from batches_of(pa.Table.from_batches([whole]))
                start += page.num_rows
        finally:
            source.close()


def _open(scanned: Scanned, split: Split, columns: Sequence[ColumnHandle]) -> UpdatablePageSource:
    return scanned.pages.create_page_source(  # type: ignore[return-value]  # as begin promised
        scanned.session, scanned.table, split, columns
    )


# -- changing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ChangeTask:
    """Hands rows to sources of the splits that they came from."""

    scanned: Scanned
    change: RowChange
    passed: Passed
    fields: tuple[Field, ...]
    table: str

    def feed(self, rows: Iterable[pa.Table], number: int) -> list[SplitResult]:
        """What came of the splits whose rows came here."""
        sources: dict[int, UpdatablePageSource] = {}
        counts: dict[int, int] = {}
        try:
            for table in rows:
                splits = table.column(_SPLIT).to_numpy()
                for split in map(int, np.unique(splits)):
                    if split not in sources:
                        given = self.scanned.splits[split]
                        sources[split] = _open(self.scanned, given, self.scanned.columns)
                    page = self._page(table.filter(pa.array(splits == split)))
                    self.change.apply(sources[split], page)
                    counts[split] = counts.get(split, 0) + page.num_rows
            return [SplitResult(counts[s], source.finish()) for s, source in sources.items()]
        except BaseException:
            for source in sources.values():
                with suppress(Exception):  # the error that led here says more
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
class _MergeTask:
    """Hands merged rows to a sink."""

    sinks: Sinks
    passed: Passed
    made: MergedRows
    count: int

    def feed(self, rows: Iterable[pa.Table], number: int) -> SplitResult | None:
        """What came of one sink; None where no row came here."""
        context = TaskContext.get()
        place = number if context is None else int(context.partitionId())
        sink = None
        matched: list[np.ndarray] = []
        changed = 0
        try:
            for table in rows:
                if sink is None:
                    sink = self.sinks.provider.create_merge_sink(
                        self.sinks.session, self.sinks.table, place, self.count
                    )
                matched.append(table.column(ROW).drop_null().to_numpy())
                for batch in table.to_batches():
                    for page in self.made.pages(batch, self.passed, self.sinks.pages):
                        sink.store_merged_rows(page.page)
                        changed += page.rows
            if sink is None:
                return None
            every = np.concatenate(matched)
            self.made.refuse_matches(is_twice=len(np.unique(every)) < len(every))
            return SplitResult(changed, sink.finish())
        except BaseException:
            if sink is not None:
                sink.abort()
            raise
