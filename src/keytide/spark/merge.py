"""MERGE on Spark: in the driver for small amounts of data, otherwise on executors.

A MERGE in the driver collects the source, and reads only the target rows that can match. The local
engine joins them if nothing has to be computed, such as a condition of a WHEN clause. Expressions
must have Spark's semantics, so otherwise Spark gets both sides as local relations.

For executors, the driver collects a small source too, plans the target again for the values of its
columns in ON, and sends them along with the splits. It receives nothing of a larger source: a
shuffle sends the values to every group of splits, and tasks read the rows with these values. If the
source has many rows, this step is skipped, because it would exclude few target rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.dml.engine import Sinks, SplitResult, TargetScan
from keytide.spark.capacity import (
    COPIES,
    WorkPlace,
    bytes_of_rows,
    run_in_utc,
    tasks_for,
    work_place,
)
from keytide.spark.columns import arrow_schema_of, column, partition_by, spark_schema
from keytide.spark.dml_tasks import GROUP, MatchingTask, MergeTask, scanned_schema
from keytide.spark.error_translation import check_python, on_driver, reason_of
from keytide.spark.internals import is_connect, is_deterministic, known_bytes, planned_bytes
from keytide.spark.row_changes import DriverWorkers, ExecutorWorkers
from keytide.spark.runner import Executors
from keytide.sql.change_queries import Match, MergeQuery
from keytide.sql.local_row_changes import LocalMergeHost
from keytide.sql.merged_rows import ROW, PassThrough
from keytide.sql.relation import CallerRelation, Relation, StoredRelation
from keytide.sql.relations import BoundQuery
from keytide.types import quoted

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
            relations: list[Relation] = []
            for relation in self.query.bound.relations:
                if isinstance(relation, CallerRelation) and not isinstance(relation.rows, pa.Table):
                    rows = relation.rows.select(*map(column, relation.names))
                    relation = replace(relation, rows=_collected(rows))
                relations.append(relation)
            bound = replace(self.query.bound, relations=tuple(relations))
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


def _collected(rows: DataFrame) -> pa.Table:
    with on_driver():
        return rows.toArrow()


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
        place = quoted(ROW)
        if sinks.layout:
            names = [f.name for f in sinks.pages.row_id.type]
            members = ", ".join(quoted(passed.names[names.index(name)]) for name in sinks.layout)
            place = f"CASE WHEN {quoted(ROW)} IS NOT NULL THEN xxhash64({members}) END"
        task = MergeTask(sinks, passed, self.query.made, workers.count)
        try:
            every = f"xxhash64({', '.join(map(quoted, rows.columns))})"
            workers.feed_shuffled(task, rows, F.expr(f"coalesce({place}, {every})"), take)
        except PySparkException as error:
            raise self.query.bound.refused(reason_of(error)) from error


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


_BYTES_MAX = 64 << 20


_COLLECTED_BYTES_MAX = 10 << 20
"""Spark itself collects a relation up to this size, to send it to every executor."""


@dataclass(frozen=True)
class Source:
    """The source of a merge.

    `stored` means that reading the rows repeatedly gives the same rows, so they need not be cached.
    """

    rows: DataFrame
    stored: bool
    collected: Callable[[], pa.Table]
    """The rows in the driver. Runs a Spark job, unless they are stored or were given."""

    @property
    def is_shuffled(self) -> bool:
        """Whether it should pay off to look at the source's values first, as far as is known
        before."""
        if is_connect(self.rows) or not (self.stored or is_deterministic(self.rows)):
            return False
        return planned_bytes(self.rows) <= _BYTES_MAX

    @property
    def row_bytes(self) -> int:
        """About the memory of its rows, each with a row of the target."""
        return COPIES * planned_bytes(self.rows)

    @property
    def is_small(self) -> bool:
        """Whether the driver can collect the rows, as far as is known before."""
        size = known_bytes(self.rows)
        return size is not None and size <= _COLLECTED_BYTES_MAX and has_exact_types(self.rows)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which the rows are computed once, even if they are read several times."""
        # If a user has cached the same plan, Keytide must not release that cache.
        level = self.rows.storageLevel
        holds = not (self.stored or level.useMemory or level.useDisk)
        if holds:
            self.rows.persist()
        try:
            yield
        finally:
            if holds:
                self.rows.unpersist()

    def columns(self, match: Match, target_scan: TargetScan) -> dict[str, str]:
        """Target columns that are matched by value, each with its source column."""
        target = {column.name: column.type for column in target_scan.columns}
        source = arrow_schema_of(self.rows.schema, "of the source")
        return match.comparable(target, {field.name: field.type for field in source})

    def matching(
        self, target_scan: TargetScan, passed: PassThrough, columns: Mapping[str, str]
    ) -> DataFrame:
        """The target rows that may have a source row with equal values in `columns`.

        The result has the columns of `scanned_schema`.
        """
        spark = self.rows.sparkSession
        groups = max(1, min(len(target_scan.splits), tasks_for(spark, target_scan.stored_bytes)))
        values = [f"{quoted(name)} AS _{i}" for i, name in enumerate(columns.values())]
        every = f"explode(sequence(0, {groups - 1})) AS {quoted(GROUP)}"
        dealt = self.rows.selectExpr(*values, every)
        dealt = partition_by(dealt, groups, column(GROUP))
        check_python(spark)
        task = MatchingTask(target_scan, passed, tuple(columns), groups)
        schema = spark_schema(scanned_schema(target_scan, passed))
        # Spark estimates few rows, but a value can occur in any number of target rows.
        return Executors().convert(task, dealt, schema).hint("merge")


def has_exact_types(rows: DataFrame) -> bool:
    """Whether rows keep their types when they are collected and sent back to Spark."""
    back = spark_schema(arrow_schema_of(rows.schema, "of the source"))
    return bool(back.simpleString() == rows.schema.simpleString())


def distinct_values(rows: pa.Table, columns: Mapping[str, str]) -> dict[str, pa.Array]:
    """The values of source rows for the target columns in `columns`."""
    return {name: pc.drop_null(rows.column(other).unique()) for name, other in columns.items()}
