"""MERGE in the driver: collects the source, and reads only the target rows that can match.

The local engine joins them if nothing has to be computed, such as a condition of a WHEN clause.
Expressions must have Spark's semantics, so otherwise Spark gets both sides as local relations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keytide.base.lazily import cached_property
from keytide.dml.execution import Scanned, SplitResult
from keytide.dml.merge import Sinks
from keytide.spark.dml_tasks import MergeTask
from keytide.spark.dml_workers import DriverWorkers
from keytide.spark.errors import on_driver, reason_of
from keytide.spark.matching import distinct_values, has_exact_types
from keytide.spark.place import COPIES, bytes_of_rows
from keytide.spark.predicate import column
from keytide.spark.types import arrow_schema_of, spark_schema
from keytide.sql.dml_local import LocalMergeHost
from keytide.sql.merge_plan import MergeQuery
from keytide.sql.pass_through import PassThrough
from keytide.sql.relation import GivenRelation, Relation, StoredRelation
from keytide.sql.relations import BoundQuery

__all__ = ["DriverMerge"]

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

    def merge(self, scanned: Scanned, sinks: Sinks, take: Callable[[SplitResult], None]) -> None:
        """See `MergeHost.merge`. REQUIRES: `bytes_of` returns a size."""
        if self.query.is_plain:
            self._local().merge(scanned, sinks, take)
            return
        view, query = self._with_source()
        source = self.source()
        if self._columns and scanned.among is not None:
            scanned = scanned.among(distinct_values(source, self._columns))
        workers, passed = DriverWorkers(self.spark), query.passed(sinks.pages)
        task = MergeTask(sinks, passed, query.made, workers.count)
        try:
            shown = {
                view: self.spark.createDataFrame(source, spark_schema(source.schema)),
                query.view: workers.shown(scanned, passed),
            }
            workers.feed_dealt(task, self.compute(query, passed, shown), F.lit(0), take)
        except PySparkException as error:
            raise query.bound.refused(reason_of(error)) from error

    def _local(self) -> LocalMergeHost:
        """The local engine's host, over rows that were collected from Spark."""
        relations = tuple(map(_brought, self.query.bound.relations))
        bound = replace(self.query.bound, relations=relations)
        return LocalMergeHost(replace(self.query, bound=bound), self.memory_bytes)

    # -- the source

    @property
    def _relation(self) -> Relation | None:
        """The source, if it is a table or given rows."""
        view = self.query.match.view
        return next((r for r in self.query.bound.relations if r.view == view), None)

    def _with_source(self) -> tuple[str, MergeQuery]:
        """The view of the source, and the query over it."""
        if self.query.match.view is not None:
            return self.query.match.view, self.query
        return _SOURCE, self.query.with_source(_SOURCE)[1]

    def source(self) -> pa.Table:
        """The rows of the source."""
        relation = self._relation
        if isinstance(relation, StoredRelation):
            return relation.scan().to_arrow()
        if isinstance(relation, GivenRelation) and isinstance(relation.rows, pa.Table):
            return relation.rows.select(list(relation.names))
        return _collected(self._frame)

    @cached_property
    def _frame(self) -> DataFrame:
        """The source as a DataFrame."""
        relation = self._relation
        if relation is None:
            return self.rows(self.query.with_source(_SOURCE)[0])
        assert isinstance(relation, GivenRelation)
        rows: Any = relation.rows
        return rows.select(*map(column, relation.names))

    @cached_property
    def _source_bytes(self) -> int | None:
        relation = self._relation
        if isinstance(relation, StoredRelation):
            return COPIES * sum(task.stored_bytes for task in relation.scan().tasks())
        if isinstance(relation, GivenRelation) and isinstance(relation.rows, pa.Table):
            return int(relation.rows.nbytes)
        if relation is not None and not isinstance(relation, GivenRelation):
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


def _brought(relation: Relation) -> Relation:
    if not isinstance(relation, GivenRelation) or isinstance(relation.rows, pa.Table):
        return relation
    return replace(relation, rows=_collected(relation.rows.select(*map(column, relation.names))))


def _collected(rows: DataFrame) -> pa.Table:
    with on_driver():
        return rows.toArrow()
