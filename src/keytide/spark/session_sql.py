"""SQL on Spark, and views of tables in a session.

- The tables of a query become views of lazy scans.
- Temporary views of the data source show the latest snapshot to each query. Spark plans the read of
  a Python data source once per view. Therefore a view that was created by `CREATE TEMPORARY VIEW
  ... USING keytide` is recreated before a query that may use it, if its table has a newer snapshot.
  This works in classic sessions only, because a Spark Connect session does not say whether a view
  of that name is still the same one.
- All tables of a lake can be registered as temporary views of a session.
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from string import Formatter
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from sqlglot import exp

from keytide.base.arguments import check_spark_session
from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.catalogs.catalog import Catalog
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.dml.assignment import check_assignable
from keytide.dml.attachments import AttachedCatalog
from keytide.dml.engine import EngineLimits
from keytide.errors import InvalidError, KeytideError, UnsupportedError
from keytide.feeds.flow import FlowRequest
from keytide.snapshot.stored_table import StoredTable
from keytide.sources.federated import tables_of
from keytide.spark.auto_cdc import FlowStream, apply_events
from keytide.spark.capacity import analyzed_in_utc, run_in_utc
from keytide.spark.columns import arrow_schema_of, column, constant, spark_schema
from keytide.spark.data_source import FORMAT
from keytide.spark.dataframe_writes import append, fill, overwrite
from keytide.spark.dml_tasks import pages_to_spark
from keytide.spark.error_translation import (
    knows_aliases,
    note_view,
    on_driver,
    reason_of,
    view_error,
)
from keytide.spark.internals import is_apache_spark, is_connect, wrap
from keytide.spark.merge import DriverMerge, ExecutorMerge, PlacedMerge, Source
from keytide.spark.read_plans import fallback_to_spark, scan_to_spark
from keytide.spark.row_changes import SparkRowHost
from keytide.spark.source_options import SourceOptions
from keytide.sql.change_queries import MergeQuery, RowQuery
from keytide.sql.engine_text import QueryAnalysis
from keytide.sql.from_clause import spark_unnest
from keytide.sql.merged_rows import PassThrough
from keytide.sql.pushdown import spark_condition
from keytide.sql.relation import (
    AttachedRelation,
    CallerRelation,
    FallbackRelation,
    Relation,
    StoredRelation,
    SystemRelation,
    without_aliases,
)
from keytide.sql.relations import BoundQuery
from keytide.sql.result import Result

# -- the SQL engine --------------------------------------------------------------------------------


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
                rewrites = () if knows_aliases(self._spark) else (without_aliases,)
                return self._spark.sql(_text(text_for, frames, *rewrites), **frames)
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

    def row_host(self, query: RowQuery, limits: EngineLimits) -> SparkRowHost:
        """The host for a DELETE or an UPDATE."""

        def compute(passed: Sequence[str], target: DataFrame) -> DataFrame:
            text_for = partial(query.text_for, "spark", passed)
            return self._rows(query.bound, text_for, **{query.view: target})

        return SparkRowHost(query, self._spark, compute, limits.driver_bytes_max)

    def merge_host(self, query: MergeQuery, limits: EngineLimits) -> PlacedMerge:
        """The host for a MERGE."""

        def compute(
            query: MergeQuery, passed: PassThrough, known: Mapping[str, DataFrame]
        ) -> DataFrame:
            return self._rows(query.bound, partial(query.text_for, "spark", passed), **known)

        here = DriverMerge(query, self._spark, self.rows, compute, limits.memory_bytes)
        executors = partial(self._executor_merge, query, here.source)
        return PlacedMerge(here, executors, limits.driver_bytes_max)

    def _executor_merge(
        self, query: MergeQuery, collected: Callable[[], pa.Table], known_bytes: int | None
    ) -> ExecutorMerge:
        source = None
        if query.needs_matched_only and query.match.columns:
            if query.match.view is None:
                made, query = query.with_source("keytide_merged")
                source = Source(self.rows(made), False, collected)
            else:
                relations = query.bound.relations
                relation = next(r for r in relations if r.view == query.match.view)
                stored = isinstance(relation, StoredRelation)
                source = Source(self._frame(relation), stored, collected)

        def compute(passed: PassThrough, target: DataFrame, given: DataFrame | None) -> DataFrame:
            known = {} if given is None else {query.match.view or "": given}
            text_for = partial(query.text_for, "spark", passed)
            return self._rows(query.bound, text_for, **known, **{query.view: target})

        return ExecutorMerge(query, self._spark, compute, source, known_bytes)

    def _frame(self, relation: Relation) -> DataFrame:
        if isinstance(relation, StoredRelation):
            return scan_to_spark(relation.scan(), self._spark)
        if isinstance(relation, FallbackRelation):
            return fallback_to_spark(relation.scan(), self._spark)
        if isinstance(relation, AttachedRelation):
            return pages_to_spark(relation.scan(), self._spark)
        if isinstance(relation, CallerRelation) and not isinstance(relation.rows, pa.Table):
            return relation.rows.select(*map(column, relation.names))
        if isinstance(relation, CallerRelation):
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


# -- temporary views of the data source ------------------------------------------------------------


def renew_views(source: str) -> None:
    """Keep the views of a source current for `sql` and `table` of every session, from now on.

    A statement that Spark cannot run on a view raises an error that says what to do instead. A
    Spark Connect session does only that.
    """
    views = _views_of(source)
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    if connect is not None:
        wrap(connect.SparkSession, "sql", views.sql)


@cache
def _views_of(source: str) -> _Views:
    views = _Views(source, SparkSession.sql)
    wrap(SparkSession, "sql", views.sql)
    wrap(SparkSession, "table", views.table)
    wrap(DataFrameReader, "table", views.table)
    return views


@dataclass(frozen=True)
class _View:
    """A view, and the latest snapshot and schema of its table when it was created.

    `plan` is what Spark's catalog had under its name at that time. `renewal` is the statement that
    recreates it.
    """

    name: str
    is_global: bool
    renewal: str
    table: StoredTable
    seen: tuple[int, int]
    plan: Any


def _newest(table: StoredTable) -> tuple[int, int]:
    seen = table.pinned()
    return seen.metadata.latest_snapshot_id() or 0, seen.schema.id


class _Views:
    """The views of this process that may have to be recreated, by session."""

    def __init__(self, source: str, run: Any) -> None:
        self.source = source
        self._made = re.compile(_MADE.format(gap=_GAP, source=source), re.IGNORECASE | re.DOTALL)
        self._run = run
        self._of_sessions: dict[str, dict[str, _View]] = {}

    def sql(self, original: Any, spark: Any, /, sqlQuery: str, *more: Any, **named: Any) -> Any:  # noqa: N803  # Spark's name
        """Run `SparkSession.sql` with current views."""
        self.renew(spark)
        try:
            made = original(spark, sqlQuery, *more, **named)
        except (PySparkException, Py4JError) as error:
            if (instead := view_error(spark, sqlQuery, error, self.source)) is not error:
                raise instead from None
            raise
        self.note(spark, sqlQuery)
        return made

    def table(self, original: Any, session: Any, /, *arguments: Any, **named: Any) -> Any:
        """Run `SparkSession.table`, or that of a reader, with current views."""
        self.renew(session if isinstance(session, SparkSession) else session._spark)
        return original(session, *arguments, **named)

    def note(self, spark: Any, text: str) -> None:
        """Remember the view that a statement created, if it can become outdated."""
        found = self._made.match(text)
        if found is None:
            return
        with suppress(*_ERRORS):
            options = SourceOptions.parse(_options(found["rest"]))
            table, name = options.table(), _unquoted(found["name"])
            note_view(spark, name, table.name)
            if options.travels or is_connect(spark):
                return
            is_global, columns = found["global"] is not None, found["columns"] or ""
            kind = "GLOBAL TEMPORARY" if is_global else "TEMPORARY"
            using = text[found.end("columns") if columns else found.end("name") :]
            renewal = f"CREATE OR REPLACE {kind} VIEW {found['name']}{columns} {using}"
            self._keep(spark, _View(name, is_global, renewal, table, _newest(table), None))

    def renew(self, spark: Any) -> None:
        """Recreate the outdated views of a session."""
        if not self._of_sessions or is_connect(spark):
            return
        known = self._of_sessions.get(str(spark._jsparkSession.sessionUUID()), {})
        for view in list(known.values()):
            with suppress(*_ERRORS):
                newest = _newest(view.table)
                if newest == view.seen:
                    continue
                plan = _plan_of(spark, view)
                name = "`{}`".format(view.name.replace("`", "``"))
                name = f"global_temp.{name}" if view.is_global else name
                identity = spark._jvm.java.lang.System.identityHashCode
                if plan is None or identity(plan) != identity(view.plan):
                    del known[view.name]  # it was dropped or replaced
                elif not spark.catalog.isCached(name):
                    self._run(spark, view.renewal)
                    self._keep(spark, replace(view, seen=newest))

    def _keep(self, spark: Any, view: _View) -> None:
        known = self._of_sessions.setdefault(str(spark._jsparkSession.sessionUUID()), {})
        known[view.name] = replace(view, plan=_plan_of(spark, view))


# An invalid view raises an error when it is queried, but other queries must not fail because of it.
_ERRORS = KeytideError, PySparkException, Py4JError


# -- the text of a statement -----------------------------------------------------------------------

_GAP = r"(?:\s|--[^\n]*\n|/\*.*?\*/)"
_MADE = (
    r"{gap}*CREATE{gap}+(?:OR{gap}+REPLACE{gap}+)?(?P<global>GLOBAL{gap}+)?TEMP(?:ORARY)?{gap}+"
    r"VIEW{gap}+(?P<name>`(?:[^`]|``)+`|\w+)(?P<columns>{gap}*\(.*?\))?{gap}*"
    r"USING{gap}+`?{source}`?\b(?P<rest>.*)"
)
_PAIR = re.compile(
    r"(?P<key>`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\w.]+)\s*(?:=\s*)?"
    r"(?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\w.]+)"
)


def _options(rest: str) -> dict[str, str]:
    inside = rest.partition("(")[2].rpartition(")")[0]
    return {
        _unquoted(pair["key"]).lower(): _unquoted(pair["value"]) for pair in _PAIR.finditer(inside)
    }


def _unquoted(text: str) -> str:
    if text[0] == "`":
        return text[1:-1].replace("``", "`")
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[0] in "'\"" else text


# -- views in a classic session --------------------------------------------------------------------


def _plan_of(spark: Any, view: _View) -> Any:
    """What Spark's catalog has under the name of a view, None if there is nothing."""
    catalog = spark._jsparkSession.sessionState().catalog()
    of = catalog.getRawGlobalTempView if view.is_global else catalog.getRawTempView
    found = of(view.name)
    return found.get() if found.isDefined() else None


# -- the tables of a lake as temporary views -------------------------------------------------------


_PLACES = ("table", "database")


class LakeOfTables(Protocol):
    """The part of a lake that this module needs."""

    @property
    def catalog(self) -> AttachedCatalog:
        """The lake's tables, and what is attached."""
        ...

    @property
    def exists(self) -> bool:
        """Whether the warehouse exists."""
        ...

    def tables(self) -> list[str]:
        """The names of the lake's own tables."""
        ...

    def table(self, name: str) -> Any:
        """A table by name."""
        ...


def register_lake(
    spark: SparkSession,
    lake: LakeOfTables,
    tables: Sequence[str] | None = None,
    *,
    name: str = "{table}",
) -> dict[str, str]:
    """Register the tables of a lake as temporary views of a session. Returns the table of each
    view.

    `tables` are the tables to register. By default these are all tables of the lake, including
    external ones, and those of attachments with a format. Temporary views have no database, so
    `name` is a template for the view name with `{table}` and `{database}`: the default names the
    view of `shop.orders` `orders`, and `"{database}_{table}"` names it `shop_orders`.

    Every query reads the state of a table when it was registered, each table at one snapshot.
    Register the lake again to see later snapshots. Files that need no merge are read by Spark's own
    Parquet reader, with only the columns and conditions of a query. Works in classic and Spark
    Connect sessions.

    Raises `InvalidError` when the views of two tables would have the same name, before any view is
    created, for an invalid `name`, and for anything but a session. Raises
    `NotFoundError` for a table that does not exist, and what `scan` and `to_spark` raise.
    """
    check_spark_session(spark, "register_lake")
    renew_views(FORMAT)
    chosen = list(dict.fromkeys(tables or ()))
    if tables is None:
        chosen = lake.tables() if lake.exists else []
        for attached, connector in lake.catalog.attached.items():
            known = tables_of(connector)
            chosen += [f"{attached}.{table}" for table in sorted(known.tables if known else ())]
    views = _views(chosen, name)
    frames = {view: lake.table(table).scan().to_spark(spark) for view, table in views.items()}
    for view, frame in frames.items():
        table, quoted = views[view], "`{}`".format(view.replace("`", "``"))
        # Other servers take a name as it is.
        view_name = quoted if is_apache_spark(frame.sparkSession) else view
        try:
            frame.createOrReplaceTempView(view_name)
        except PySparkException as error:
            raise InvalidError(
                f"table {table} cannot become a view {view!r}; Spark says: {reason_of(error)}"
            ) from error
        note_view(spark, view, table)
    return views


def _views(tables: Iterable[str], name: str) -> dict[str, str]:
    try:
        places = [place for _, place, _, _ in Formatter().parse(name) if place is not None]
    except ValueError as error:
        raise InvalidError(f"name is {name!r}: {error}") from None
    if not places or any(place not in _PLACES for place in places):
        raise InvalidError(
            f"name is {name!r}; expected a string with {{table}}, and optionally {{database}}, "
            "such as '{database}_{table}'"
        )
    views: dict[str, str] = {}
    lowered: dict[str, str] = {}
    for each in tables:
        database, _, table = each.rpartition(".")
        view = name.format(table=table, database=database or "default")
        other = lowered.setdefault(view.lower(), each)
        if other != each:
            raise InvalidError(
                f"tables {other} and {each} would both become the view {view!r}; set a name that "
                "distinguishes them, such as name='{database}_{table}'"
            )
        views[view] = each
    return views
