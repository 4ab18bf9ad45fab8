"""SQL on Spark: the tables of a query become views of lazy scans."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from keytide.base.lazily import cached_property
from keytide.catalogs.catalog import Catalog
from keytide.commit.author import Author
from keytide.commit.result import WriteResult
from keytide.commit.transaction import Transaction
from keytide.errors import UnsupportedError
from keytide.feeds.flow import FlowRequest
from keytide.snapshot.stored import StoredTable
from keytide.spark.aliases import knows_aliases
from keytide.spark.auto_cdc import FlowStream, apply_events
from keytide.spark.dml import ExecutorMerge, PlacedMerge, SparkRowHost
from keytide.spark.driver_merge import DriverMerge
from keytide.spark.errors import on_driver, reason_of
from keytide.spark.matching import Source
from keytide.spark.pages import pages_to_spark
from keytide.spark.predicate import column, constant
from keytide.spark.read import fallback_to_spark, scan_to_spark
from keytide.spark.types import arrow_schema_of, spark_schema
from keytide.spark.write import append, fill, overwrite
from keytide.spark.zone import analyzed_in_utc, run_in_utc
from keytide.sql.analysis import QueryAnalysis
from keytide.sql.assign import check_assignable
from keytide.sql.conditions import spark_condition
from keytide.sql.merge_plan import MergeQuery
from keytide.sql.pass_through import PassThrough
from keytide.sql.query_engine import Means
from keytide.sql.relation import (
    AttachedRelation,
    FallbackRelation,
    GivenRelation,
    Relation,
    StoredRelation,
    SystemRelation,
)
from keytide.sql.relations import BoundQuery
from keytide.sql.result import Result
from keytide.sql.row_query import RowQuery
from keytide.sql.select_aliases import without_aliases
from keytide.sql.unnest import spark_unnest

__all__ = ["SparkEngine", "SparkResult"]

TextFor: TypeAlias = "Callable[..., str]"
"""Creates the text of a query from the rewrites that it needs."""


class SparkResult(Result):
    """The rows of a query on Spark, whose time zone is UTC. All formats except a DataFrame collect
    them, once.

    Collecting raises `InvalidError` when Spark cannot compute a row, and what reading raises.
    """

    def __init__(self, frame: DataFrame, bound: BoundQuery) -> None:
        self._frame = frame
        self._bound = bound

    def __repr__(self) -> str:
        columns = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in self._frame.schema)
        return f"SparkResult({columns})"  # must not compute anything

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table on the driver."""
        return self._collected

    def to_spark(self) -> DataFrame:
        """The rows as a lazy DataFrame.

        Spark Connect computes it in the time zone that the session has at that time.
        """
        return self._frame

    @cached_property
    def _collected(self) -> pa.Table:
        try:
            with on_driver(), run_in_utc(self._frame.sparkSession):
                return self._frame.toArrow()
        except PySparkException as error:
            raise self._bound.refused(reason_of(error)) from error


class SparkEngine:
    """Runs queries on a session, classic or Spark Connect."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def query(self, bound: BoundQuery) -> Result:
        """A query as a lazy result.

        Raises `InvalidError`, which quotes Spark, if Spark refuses it.
        """
        return SparkResult(self.rows(bound), bound)

    def analyze(self, bound: BoundQuery) -> QueryAnalysis:
        """Refuse: who reads the tables are executors. Raises `UnsupportedError`."""
        raise UnsupportedError(
            "EXPLAIN ANALYZE of a query measures reads of this process, but on Spark the "
            "executors read; open the lake without a Spark session, or look at the query in the "
            "Spark UI"
        )

    def rows(self, bound: BoundQuery) -> DataFrame:
        """A query as a lazy DataFrame. Raises as `query`."""
        return self._rows(bound, partial(bound.text_for, "spark"))

    def _rows(self, bound: BoundQuery, text_for: TextFor, **known: DataFrame) -> DataFrame:
        named = {node.name for node in bound.tree.find_all(exp.Table)} - known.keys()
        others = [relation for relation in bound.relations if relation.view in named]
        frames = {relation.view: self._frame(relation) for relation in others} | known
        # Spark creates a view for each frame and drops it again, which also drops the cached data
        # of its plan. The filter makes it a new plan that nobody else has cached.
        frames = {view: frame.where("TRUE") for view, frame in frames.items()}
        try:
            with on_driver(), analyzed_in_utc(self._spark):
                return self._spark.sql(self._text(text_for, frames), **frames)
        except PySparkException as error:
            raise bound.refused(reason_of(error)) from error

    def stream(self, bound: BoundQuery, take: Callable[[pa.RecordBatch], None]) -> None:
        """Pass on the rows of a query as they arrive, partition by partition, on the driver.

        The first batch has no rows and only defines the columns.

        Raises as `query`, `InvalidError` when a row cannot be computed, and what `take` raises.
        """

        def encoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, batch.schema) as file:
                    file.write_batch(batch)
                yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()])], ["page"])

        rows = self.rows(bound)
        rows = rows.toDF(
            *(f"_{i}" for i in range(len(rows.columns)))
        )  # there may be duplicate names
        pages = rows.mapInArrow(encoded, "page binary")
        take(pa.RecordBatch.from_pylist([], self.schema(rows)))
        try:
            with on_driver(), run_in_utc(self._spark):
                for row in pages.toLocalIterator():
                    with pa.ipc.open_stream(bytes(row.page)) as reader:
                        for batch in reader:
                            take(batch)
        except PySparkException as error:
            raise bound.refused(reason_of(error)) from error

    def assigned(
        self, rows: DataFrame, columns: Mapping[str, int | pa.Scalar], table: StoredTable
    ) -> DataFrame:
        """Rows with the columns of a table, each taken by position or from a constant.

        Raises `InvalidError` for a type that a column does not accept. The tasks that write check
        values.
        """
        names = [f"_{i}" for i in range(len(rows.columns))]
        rows = rows.toDF(*names)
        found = arrow_schema_of(rows.schema, table.name)
        targets = spark_schema(table.schema.arrow_schema())
        chosen = []
        for field, target in zip(table.schema.fields, targets.fields, strict=True):
            place = columns[field.name]
            if isinstance(place, int):
                check_assignable(found.field(place).type, field, table.name)
                source = column(names[place])
            else:
                source = constant(place, target.dataType)
            chosen.append(source.cast(target.dataType).alias(field.name))
        with analyzed_in_utc(self._spark):
            return rows.select(chosen)

    def schema(self, rows: DataFrame) -> pa.Schema:
        """The columns of a DataFrame."""
        return arrow_schema_of(rows.schema, "of the query")

    def append(self, table: StoredTable, rows: DataFrame) -> WriteResult:
        """Append rows to a table in one commit. Runs one Spark job."""
        with run_in_utc(self._spark):
            return append(table, rows)

    def overwrite(
        self, table: StoredTable, rows: DataFrame, partition: Mapping[str, Any] | None
    ) -> WriteResult:
        """Replace the rows of a table, or of one partition if given. Runs one Spark job."""
        with run_in_utc(self._spark):
            return overwrite(table, rows, partition)

    def fill(self, transaction: Transaction, rows: DataFrame) -> None:
        """Write rows as part of a transaction. Runs one Spark job."""
        with run_in_utc(self._spark):
            fill(transaction, rows)

    def apply_events(
        self, catalog: Catalog, request: FlowRequest, rows: DataFrame, author: Author | None
    ) -> WriteResult:
        """Apply rows that are change events to the target of a flow."""
        with run_in_utc(self._spark):
            result: WriteResult = apply_events(catalog, request, rows, FlowStream(), author)
            return result

    def row_host(self, query: RowQuery, means: Means) -> SparkRowHost:
        """The host for a DELETE or an UPDATE."""

        def compute(passed: Sequence[str], target: DataFrame) -> DataFrame:
            text_for = partial(query.text_for, "spark", passed)
            return self._rows(query.bound, text_for, **{query.view: target})

        return SparkRowHost(query, self._spark, compute, means.driver_bytes_max)

    def merge_host(self, query: MergeQuery, means: Means) -> PlacedMerge:
        """The host for a MERGE."""

        def compute(
            query: MergeQuery, passed: PassThrough, known: Mapping[str, DataFrame]
        ) -> DataFrame:
            return self._rows(query.bound, partial(query.text_for, "spark", passed), **known)

        here = DriverMerge(query, self._spark, self.rows, compute, means.memory_bytes)
        executors = partial(self._executor_merge, query, here.source)
        return PlacedMerge(here, executors, means.driver_bytes_max)

    def _executor_merge(
        self, query: MergeQuery, collected: Callable[[], pa.Table], known_bytes: int | None
    ) -> ExecutorMerge:
        source = None
        if query.needs_matched_only and query.match.columns:
            query, source = self._source(query, collected)

        def compute(passed: PassThrough, target: DataFrame, given: DataFrame | None) -> DataFrame:
            known = {} if given is None else {query.match.view or "": given}
            text_for = partial(query.text_for, "spark", passed)
            return self._rows(query.bound, text_for, **known, **{query.view: target})

        return ExecutorMerge(query, self._spark, compute, source, known_bytes)

    def _source(
        self, query: MergeQuery, collected: Callable[[], pa.Table]
    ) -> tuple[MergeQuery, Source]:
        """The query with its source as a DataFrame, and the source."""
        if query.match.view is None:
            made, query = query.with_source("keytide_merged")
            rows = self.rows(made)
            return query, Source(rows, False, collected)
        relation = next(r for r in query.bound.relations if r.view == query.match.view)
        stored = isinstance(relation, StoredRelation)
        return query, Source(self._frame(relation), stored, collected)

    def _text(self, text_for: TextFor, frames: Collection[str]) -> str:
        rewrites = () if knows_aliases(self._spark) else (without_aliases,)
        return _text(text_for, frames, *rewrites)

    def _frame(self, relation: Relation) -> DataFrame:
        if isinstance(relation, StoredRelation):
            return scan_to_spark(relation.scan(), self._spark)
        if isinstance(relation, FallbackRelation):
            return fallback_to_spark(relation.scan(), self._spark)
        if isinstance(relation, AttachedRelation):
            return pages_to_spark(relation.scan(), self._spark)
        if isinstance(relation, GivenRelation) and not isinstance(relation.rows, pa.Table):
            return relation.rows.select(*map(column, relation.names))
        if isinstance(relation, GivenRelation):
            rows = relation.rows.select(list(relation.names))
        else:
            assert isinstance(relation, SystemRelation)
            rows = relation.rows()
        return self._spark.createDataFrame(rows, spark_schema(rows.schema))


def _text(
    text_for: TextFor, frames: Collection[str], *rewrites: Callable[[exp.Expr], exp.Expr]
) -> str:
    """The query with its views in braces, where Spark inserts DataFrames."""
    marker = f"keytide_{uuid.uuid4().hex}_"  # a name that does not occur in the query

    def marked(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Table) and node.name in frames:
            node.set("this", exp.to_identifier(marker + node.name))
        return node

    text = text_for(spark_unnest, _constructors, spark_condition, marked, *rewrites)
    text = text.replace("{", "{{").replace("}", "}}")
    return re.sub(rf"{marker}(\w+)", r"{\1}", text)


def _constructors(node: exp.Expr) -> exp.Expr:
    """Convert `MAP['k', v]` and `ROW(...)`, which are Flink syntax."""
    if isinstance(node, exp.Bracket) and node.this.name.upper() == "MAP":
        return exp.func("MAP", *node.expressions, dialect="spark")
    if isinstance(node, exp.Anonymous) and node.name.upper() == "ROW":
        return exp.func("STRUCT", *node.expressions, dialect="spark")
    return node
