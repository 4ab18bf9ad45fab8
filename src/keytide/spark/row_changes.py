"""Row-level changes on Spark, in executors or, for small amounts of data, in the driver.

- On executors, the splits of a target are the partitions of a DataFrame. Spark SQL finds the rows
  and computes the new values. Then tasks pass these to a page source of the split that they came
  from. If a statement also refers to other tables, Spark may have moved rows, so they are grouped
  by split again. If the splits contain exactly the affected rows and the new values are constants,
  there is nothing to compute, and one task reads and changes the rows.
- The driver shows the rows as a local relation and collects the result, so Spark starts no Python
  task for them.
- A MERGE in the driver collects the source, and reads only the target rows that can match. The
  local engine joins them if nothing has to be computed, such as a condition of a WHEN clause.
  Expressions must have Spark's semantics, so otherwise Spark gets both sides as local relations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from keytide.base.process import cached_property
from keytide.compaction.compact import local_runner
from keytide.dml.deletion import PredicateHost
from keytide.dml.engine import RowChange, Sinks, SplitResult, TargetScan
from keytide.spark.capacity import (
    COPIES,
    WorkPlace,
    bytes_of_rows,
    run_in_utc,
    tasks_for,
    work_place,
)
from keytide.spark.columns import arrow_schema_of, batch_schema, column, spark_schema
from keytide.spark.dml_tasks import (
    SPLIT,
    ChangeTask,
    MergeTask,
    ScanTask,
    ScanTasks,
    WholeTask,
    scanned_schema,
)
from keytide.spark.error_translation import on_driver, reason_of
from keytide.spark.internals import is_apache_spark
from keytide.spark.merge_source import Source, distinct_values, has_exact_types
from keytide.spark.runner import Cluster, Executors
from keytide.spark.worker import check_python
from keytide.sql.change_queries import MergeQuery, RowQuery
from keytide.sql.local_row_changes import LocalMergeHost
from keytide.sql.merged_rows import ROW, PassThrough
from keytide.sql.relation import CallerRelation, Relation, StoredRelation
from keytide.sql.relations import BoundQuery
from keytide.tasks import FeedTask
from keytide.types import quoted

# -- workers: executors, or threads of the driver --------------------------------------------------


T = TypeVar("T")


class Workers(Protocol):
    """The workers for the rows of a target."""

    @property
    def count(self) -> int:
        """The number of tasks among which the rows of a MERGE are distributed."""
        ...

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """See `TaskRunner.each`."""
        ...

    def rows_for_sql(self, target_scan: TargetScan, passed: PassThrough) -> DataFrame:
        """The rows of a target, with the columns of `scanned_schema`."""
        ...

    def feed_splits(
        self, task: FeedTask[T], rows: DataFrame, take: Callable[[T], None], *, moved: bool
    ) -> None:
        """Run a task on rows grouped by split.

        `moved` means that rows of a split may be scattered.
        """
        ...

    def feed_shuffled(
        self, task: FeedTask[T], rows: DataFrame, by: Column, take: Callable[[T], None]
    ) -> None:
        """Run a task on rows grouped by the value of `by`."""
        ...


def one_by_one(target_scan: TargetScan) -> Iterator[TargetScan]:
    """The splits, one at a time."""
    for split in target_scan.splits:
        yield replace(target_scan, splits=[split])


def _scan_tasks(target_scan: TargetScan, passed: PassThrough) -> list[ScanTask]:
    return [ScanTask(one, passed, number) for number, one in enumerate(one_by_one(target_scan))]


@dataclass(frozen=True)
class ExecutorWorkers:
    """Executors, for rows of this size. None: the size is unknown."""

    spark: SparkSession
    known_bytes: int | None

    @cached_property
    def count(self) -> int:
        """See `Workers`."""
        return tasks_for(self.spark, self.known_bytes)

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """See `Workers`. Runs one Spark job."""
        Cluster(self.spark).each(tasks, take)

    def rows_for_sql(self, target_scan: TargetScan, passed: PassThrough) -> DataFrame:
        """See `Workers`. Lazy."""
        return self._read(target_scan, passed)

    def _read(self, target_scan: TargetScan, passed: PassThrough) -> DataFrame:
        check_python(self.spark)
        schema = spark_schema(scanned_schema(target_scan, passed))
        tasks, count = (
            _scan_tasks(target_scan, passed),
            min(len(target_scan.splits), tasks_for(self.spark, target_scan.stored_bytes)),
        )
        shuffled = [ScanTasks(tuple(tasks[first::count])) for first in range(count)]
        return Executors().rows(shuffled, schema, self.spark)

    def rows_to_join(self, target_scan: TargetScan, passed: PassThrough) -> DataFrame:
        """The rows of a target, planned for few rows, for a join with these.

        Few rows are sent to the task that joins them, so that nothing is shuffled. Others are
        shuffled: Spark does not know that there may be many.
        """
        is_little = self.count == 1 and tasks_for(self.spark, target_scan.stored_bytes) == 1
        return self._read(target_scan, passed).hint("broadcast" if is_little else "merge")

    def feed_splits(
        self, task: FeedTask[T], rows: DataFrame, take: Callable[[T], None], *, moved: bool
    ) -> None:
        """See `Workers`. Runs one Spark job."""
        if moved or not is_apache_spark(self.spark):
            rows = self._grouped(rows, column(SPLIT))
        Executors().feed(task, rows, take)

    def feed_shuffled(
        self, task: FeedTask[T], rows: DataFrame, by: Column, take: Callable[[T], None]
    ) -> None:
        """See `Workers`. Runs one Spark job."""
        Executors().feed(task, self._grouped(rows, by), take)

    def _grouped(self, rows: DataFrame, by: Column) -> DataFrame:
        # One task sees all rows, so they need no shuffle.
        return rows.coalesce(1) if self.count == 1 else rows.repartition(self.count, by)


@dataclass(frozen=True)
class DriverWorkers:
    """Threads of the driver, which holds all rows in memory."""

    spark: SparkSession
    count: int = 1

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """See `Workers`."""
        local_runner().each(tasks, take)

    def rows_for_sql(self, target_scan: TargetScan, passed: PassThrough) -> DataFrame:
        """See `Workers`. Reads all rows."""
        schema = batch_schema(scanned_schema(target_scan, passed))
        reads = [partial(_read, task, schema) for task in _scan_tasks(target_scan, passed)]
        tables = local_runner().map(reads)
        # Empty batches are removed, because pyspark's createDataFrame loses the rows after one.
        batches = [each for table in tables for each in table.to_batches() if each.num_rows]
        rows = pa.Table.from_batches(batches, schema)
        return self.spark.createDataFrame(rows, spark_schema(schema))

    def feed_splits(
        self, task: FeedTask[T], rows: DataFrame, take: Callable[[T], None], *, moved: bool
    ) -> None:
        """See `Workers`. Runs a Spark job in the JVM only."""
        found = self._computed(rows)
        splits = found.column(SPLIT).to_numpy()
        tasks = [
            partial(task.feed, [found.filter(pa.array(splits == split))], int(split))
            for split in np.unique(splits)
        ]
        self._run(tasks, take)

    def feed_shuffled(
        self, task: FeedTask[T], rows: DataFrame, by: Column, take: Callable[[T], None]
    ) -> None:
        """See `Workers`. Runs a Spark job in the JVM only. All rows form one group."""
        self._run([partial(task.feed, [self._computed(rows)], 0)], take)

    def _computed(self, rows: DataFrame) -> pa.Table:
        with on_driver():
            return rows.toArrow()

    def _run(self, tasks: Sequence[Callable[[], T | None]], take: Callable[[T], None]) -> None:
        def take_made(made: T | None) -> None:
            if made is not None:
                take(made)

        self.each(tasks, take_made)


def _read(task: ScanTask, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(task.batches(), schema)


# -- MERGE in the driver ---------------------------------------------------------------------------


_SOURCE = "keytide_merged"


@dataclass(frozen=True)
class DriverMerge:
    """Runs a MERGE in the driver."""

    query: MergeQuery
    spark: SparkSession
    rows: Callable[[BoundQuery], DataFrame]
    """Runs a query and returns its rows."""
    compute: Callable[[MergeQuery, PassThrough, Mapping[str, DataFrame]], DataFrame]
    """Runs the query over the given views."""
    memory_bytes: int

    def bytes_of(self, stored_bytes: int | None) -> int | None:
        """The size to count for a MERGE into a target of this size, None if it is unknown."""
        source = self._source_bytes
        if source is None or stored_bytes is None:
            return None
        all_pass = not (self.query.is_plain or self._columns)
        return source + stored_bytes * (COPIES if all_pass else 1)

    def merge(
        self, target_scan: TargetScan, sinks: Sinks, take: Callable[[SplitResult], None]
    ) -> None:
        """See `MergeHost.merge`. REQUIRES: `bytes_of` returns a size."""
        if self.query.is_plain:
            # The local engine's host, over rows that were collected from Spark.
            relations = tuple(map(_collected_relation, self.query.bound.relations))
            bound = replace(self.query.bound, relations=relations)
            local = LocalMergeHost(replace(self.query, bound=bound), self.memory_bytes)
            local.merge(target_scan, sinks, take)
            return

        # The view of the source, and the query over it.
        if self.query.match.view is not None:
            view, query = self.query.match.view, self.query
        else:
            view, query = _SOURCE, self.query.with_source(_SOURCE)[1]
        source = self.source()
        if self._columns and target_scan.scan_of_values is not None:
            target_scan = target_scan.scan_of_values(distinct_values(source, self._columns))
        workers, passed = DriverWorkers(self.spark), query.pass_through(sinks.pages)
        task = MergeTask(sinks, passed, query.made, workers.count)
        try:
            shown = {
                view: self.spark.createDataFrame(source, spark_schema(source.schema)),
                query.view: workers.rows_for_sql(target_scan, passed),
            }
            workers.feed_shuffled(task, self.compute(query, passed, shown), F.lit(0), take)
        except PySparkException as error:
            raise query.bound.refused(reason_of(error)) from error

    # -- the source --------------------------------------------------------------------------------

    @property
    def _relation(self) -> Relation | None:
        """The source, if it is a table or given rows."""
        view = self.query.match.view
        return next((r for r in self.query.bound.relations if r.view == view), None)

    def source(self) -> pa.Table:
        """The rows of the source."""
        relation = self._relation
        if isinstance(relation, StoredRelation):
            return relation.scan().to_arrow()
        if isinstance(relation, CallerRelation) and isinstance(relation.rows, pa.Table):
            return relation.rows.select(list(relation.names))
        return _collected(self._frame)

    @cached_property
    def _frame(self) -> DataFrame:
        """The source as a DataFrame."""
        relation = self._relation
        if relation is None:
            return self.rows(self.query.with_source(_SOURCE)[0])
        assert isinstance(relation, CallerRelation)
        rows: Any = relation.rows
        return rows.select(*map(column, relation.names))

    @cached_property
    def _source_bytes(self) -> int | None:
        relation = self._relation
        if isinstance(relation, StoredRelation):
            return COPIES * sum(task.stored_bytes for task in relation.scan().tasks())
        if isinstance(relation, CallerRelation) and isinstance(relation.rows, pa.Table):
            return int(relation.rows.nbytes)
        if relation is not None and not isinstance(relation, CallerRelation):
            return None
        return bytes_of_rows(self._frame) if has_exact_types(self._frame) else None

    @cached_property
    def _columns(self) -> Mapping[str, str]:
        """Target columns for looking up target rows, each with its source column."""
        if not self.query.needs_matched_only:
            return {}
        relation = self._relation
        types = {field.name: field.type.to_arrow() for field in self.query.target.fields}
        if relation is not None:
            given = {field.name: field.type.to_arrow() for field in relation.fields}
        else:
            schema = arrow_schema_of(self._frame.schema, "of the source")
            given = {field.name: field.type for field in schema}
        return self.query.match.comparable(types, given)


def _collected_relation(relation: Relation) -> Relation:
    if not isinstance(relation, CallerRelation) or isinstance(relation.rows, pa.Table):
        return relation
    return replace(relation, rows=_collected(relation.rows.select(*map(column, relation.names))))


def _collected(rows: DataFrame) -> pa.Table:
    with on_driver():
        return rows.toArrow()


# -- changes by executors or the driver ------------------------------------------------------------


@dataclass(frozen=True)
class SparkDeleteHost:
    """Deletes rows that meet a predicate, in a session. See `Host`.

    Rows of connectors that find others too are chosen in this process.
    """

    here: PredicateHost
    spark: SparkSession
    driver_bytes_max: int

    def plan_lines(self, stored_bytes: int | None, *, is_exact: bool) -> Sequence[str]:
        """See `Host.plan_lines`."""
        return (f"runs {work_place(self.spark, self.driver_bytes_max, stored_bytes)}",)

    def change(
        self, target_scan: TargetScan, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        """See `Host.change`. Runs at most one Spark job."""
        place = work_place(self.spark, self.driver_bytes_max, target_scan.stored_bytes)
        if self.here.predicate is not None and not target_scan.is_exact:
            self.here.change(target_scan, change, take)
            return
        tasks = [
            WholeTask(one, change, (), (), str(target_scan.table))
            for one in one_by_one(target_scan)
        ]
        workers_at(self.spark, place).each(tasks, take)


def workers_at(spark: SparkSession, place: WorkPlace) -> Workers:
    """The workers for a place."""
    return DriverWorkers(spark) if place.is_driver else ExecutorWorkers(spark, place.known_bytes)


@dataclass(frozen=True)
class SparkRowHost:
    """Runs DELETE and UPDATE in a session. See `Host`."""

    query: RowQuery
    spark: SparkSession
    compute: Callable[[Sequence[str], DataFrame], DataFrame]
    """Runs the query over the target's rows. Some columns are passed through unchanged."""
    driver_bytes_max: int

    def plan_lines(self, stored_bytes: int | None, *, is_exact: bool) -> Sequence[str]:
        """See `Host.plan_lines`."""
        return (f"runs {self._place(stored_bytes, self._constants(is_exact))}",)

    def change(
        self, target_scan: TargetScan, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        """See `Host.change`. Runs at most one Spark job."""
        constants = self._constants(target_scan.is_exact)

        workers = workers_at(self.spark, self._place(target_scan.stored_bytes, constants))
        if constants is None:
            self._computed(workers, target_scan, change, take)
            return
        fields, table = self.query.fields, self.query.table
        values = tuple(constants.columns)
        tasks = [WholeTask(one, change, values, fields, table) for one in one_by_one(target_scan)]
        workers.each(tasks, take)

    def _constants(self, is_exact: bool) -> pa.Table | None:
        """The constant new values of all rows in the splits, None if they must be computed."""
        return self.query.constants if is_exact else None

    def _place(self, stored_bytes: int | None, constants: pa.Table | None) -> WorkPlace:
        if stored_bytes is not None and constants is None:
            stored_bytes *= COPIES
        return work_place(self.spark, self.driver_bytes_max, stored_bytes)

    def _computed(
        self,
        workers: Workers,
        target_scan: TargetScan,
        change: RowChange,
        take: Callable[[SplitResult], None],
    ) -> None:
        passed = PassThrough(target_scan.columns[-1].type)
        names = (*passed.names, SPLIT)
        task = ChangeTask(target_scan, change, passed, self.query.fields, self.query.table)
        results: list[list[SplitResult]] = []
        # A join or a subquery can move rows away from the other rows of their split.
        moved = bool(self.query.bound.relations)
        try:
            rows = self.compute(names, workers.rows_for_sql(target_scan, passed))
            with run_in_utc(self.spark):
                workers.feed_splits(task, rows, results.append, moved=moved)
        except PySparkException as error:
            raise self.query.bound.refused(reason_of(error)) from error
        finally:
            for each in results:
                for result in each:
                    take(result)


@dataclass(frozen=True)
class ExecutorMerge:
    """Runs a MERGE on executors. See `MergeHost`."""

    query: MergeQuery
    spark: SparkSession
    compute: Callable[[PassThrough, DataFrame, DataFrame | None], DataFrame]
    """Runs the query over the target's rows, and over rows of the source if there is one."""
    source: Source | None = None
    """The source of the merge, if target rows without a match do not change. Otherwise None."""
    known_bytes: int | None = None
    """The size of source and target, None if it is unknown."""

    def merge(
        self, target_scan: TargetScan, sinks: Sinks, take: Callable[[SplitResult], None]
    ) -> None:
        """See `MergeHost.merge`."""
        passed = self.query.pass_through(sinks.pages)
        source = self.source
        columns = {} if source is None else source.columns(self.query.match, target_scan)
        if source is None or not (columns and target_scan.splits and source.is_shuffled):
            workers = ExecutorWorkers(self.spark, self.known_bytes)
            given = None if source is None else source.rows
            rows = self.compute(passed, workers.rows_for_sql(target_scan, passed), given)
            self._merge(workers, rows, passed, sinks, take)
            return
        # About as many rows take part as the source has.
        workers = ExecutorWorkers(self.spark, source.row_bytes)
        if source.is_small and target_scan.scan_of_values is not None:
            collected = source.collected()
            target_scan = target_scan.scan_of_values(distinct_values(collected, columns))
            given = self.spark.createDataFrame(collected, spark_schema(collected.schema))
            rows = self.compute(passed, workers.rows_to_join(target_scan, passed), given)
            self._merge(workers, rows, passed, sinks, take)
            return
        with source.held():
            target = source.matching(target_scan, passed, columns)
            rows = self.compute(passed, target, source.rows)
            self._merge(workers, rows, passed, sinks, take)

    def _merge(
        self,
        workers: ExecutorWorkers,
        rows: DataFrame,
        passed: PassThrough,
        sinks: Sinks,
        take: Callable[[SplitResult], None],
    ) -> None:
        # Everything about one target row goes to one task. New rows are spread over all tasks.
        task = MergeTask(sinks, passed, self.query.made, workers.count)
        try:
            every = f"xxhash64({', '.join(map(quoted, rows.columns))})"
            by = F.expr(f"coalesce({self._place(sinks, passed)}, {every})")
            workers.feed_shuffled(task, rows, by, take)
        except PySparkException as error:
            raise self.query.bound.refused(reason_of(error)) from error

    def _place(self, sinks: Sinks, passed: PassThrough) -> str:
        """An SQL expression with equal values for rows of the same task, NULL for a new row."""
        if not sinks.layout:
            return quoted(ROW)
        names = [f.name for f in sinks.pages.row_id.type]
        members = ", ".join(quoted(passed.names[names.index(name)]) for name in sinks.layout)
        return f"CASE WHEN {quoted(ROW)} IS NOT NULL THEN xxhash64({members}) END"


@dataclass(frozen=True)
class PlacedMerge:
    """Runs a MERGE in the driver or on executors, depending on its size. See `MergeHost`."""

    here: DriverMerge
    executors: Callable[[int | None], ExecutorMerge]
    """Created for data of this size only when it is needed, because its source is a DataFrame."""
    driver_bytes_max: int

    def plan_lines(self, stored_bytes: int | None) -> Sequence[str]:
        """See `MergeHost.plan_lines`."""
        return (f"runs {self._place(stored_bytes)}",)

    def merge(
        self, target_scan: TargetScan, sinks: Sinks, take: Callable[[SplitResult], None]
    ) -> None:
        """See `MergeHost.merge`."""
        place = self._place(target_scan.stored_bytes)
        host = self.here if place.is_driver else self.executors(place.known_bytes)
        with run_in_utc(self.here.spark):
            host.merge(target_scan, sinks, take)

    def _place(self, stored_bytes: int | None) -> WorkPlace:
        known = self.here.bytes_of(stored_bytes)
        return work_place(self.here.spark, self.driver_bytes_max, known)
