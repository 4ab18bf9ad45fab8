"""Where the work of a lake runs: in this process or on Spark, by an SQL engine or without one.

What a choice needs is imported once it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from keytide.catalogs.catalog import Catalog
from keytide.errors import InvalidError, SetupError

# -- where the work of a lake runs -----------------------------------------------------------------


if TYPE_CHECKING:
    from keytide.dml.engine import Changed, EngineLimits, Host
    from keytide.dml.matching_rows import MatchingRows
    from keytide.dml.row_statements import CallTarget, Target
    from keytide.feeds.feed import BatchReport, FeedRequest, IngestReport
    from keytide.feeds.kafka.ingest import IngestListeners, TablesReport
    from keytide.predicate.condition import Condition
    from keytide.sql.query_engine import Engine


def engine_of(spark: Any, allows_external_files: bool) -> Engine:
    """The Spark engine if there is a session, otherwise DuckDB in this process.

    Raises `SetupError` when the extra `spark` is not installed.
    """
    if spark is not None:
        from keytide.spark.session_sql import SparkEngine

        return SparkEngine(spark)
    from keytide.sql.local_engine import LocalEngine

    return LocalEngine(allows_external_files)


def change_rows(
    table: CallTarget,
    values: Mapping[str, Any] | None,
    where: Condition | None,
    isolation: Literal["snapshot", "serializable"],
    spark: Any,
) -> Changed:
    """Run `Table.update` or, without values, `Table.delete`: in this process or in a session.

    Raises what they raise, and `SetupError` when the extra `spark` is not installed.
    """
    from keytide.dml.matching_rows import MatchingRowsHost, change_matching

    def by_sql(target: Target) -> Changed:
        from keytide.sql.python_calls import change_where

        engine = engine_of(spark, target.catalog.allows_external_files)
        return change_where(target, engine, values, where)

    def host_for(rows: MatchingRows, limits: EngineLimits) -> Host:
        if spark is None:
            return MatchingRowsHost(rows)
        from keytide.spark.row_changes import SparkMatchingRowsHost

        return SparkMatchingRowsHost(rows, spark, limits.driver_bytes_max)

    return change_matching(
        table, values, where, isolation, host_for, by_sql, is_local=spark is None
    )


def feed(
    request: FeedRequest,
    catalog: Catalog,
    spark: Any = None,
    on_batch: Callable[[BatchReport], None] | None = None,
) -> IngestReport:
    """Run `Lake.ingest`: files through the Spark session, topics in this process.

    Raises what it raises.
    """
    from keytide.feeds.kafka.ingest import KafkaRequest
    from keytide.feeds.kafka.ingest import run_feed as run_topics
    from keytide.feeds.kafka.topics import is_kafka, is_template

    if is_template(request.table):
        raise InvalidError(
            f"table {request.table!r} is a template for several tables; use Lake.ingest_tables"
        )
    if is_kafka(request.source):
        return run_topics(KafkaRequest.of(request), on_batch, catalog)
    request.refuse_topic_options()
    if spark is None:
        raise SetupError(
            f"files such as {request.source} are read by Spark; open the lake with a Spark "
            "session: kt.connect(path, spark=kt.spark.session())"
        )
    from keytide.spark.ingest import run_feed as run_files

    return run_files(request, spark, on_batch, catalog)


def feed_tables(request: FeedRequest, catalog: Catalog, listeners: IngestListeners) -> TablesReport:
    """Run `Lake.ingest_tables`. Raises what it raises."""
    from keytide.feeds.kafka.ingest import KafkaRequest, run_feeds

    return run_feeds(KafkaRequest.of(request), catalog, listeners)
