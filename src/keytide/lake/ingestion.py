"""Data loading for `Lake.ingest`: files through the Spark session, topics in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keytide.catalogs.catalog import Catalog
from keytide.errors import InvalidError, SetupError
from keytide.feeds.feed import BatchReport, FeedRequest, IngestReport
from keytide.feeds.kafka import ingest as topics
from keytide.feeds.kafka.ingest import (
    IngestListeners,
    KafkaRequest,
    TablesReport,
    TopicOptions,
    run_feeds,
)
from keytide.feeds.kafka.topics import is_kafka, is_template


def feed(
    request: FeedRequest,
    options: TopicOptions,
    catalog: Catalog,
    spark: Any = None,
    on_batch: Callable[[BatchReport], None] | None = None,
) -> IngestReport:
    """Run `Lake.ingest`. Raises what it raises."""
    if is_template(request.table):
        raise InvalidError(
            f"table {request.table!r} is a template for several tables; use Lake.ingest_tables"
        )
    if not is_kafka(request.source):
        options.check_unused(request.source)
        if spark is None:
            raise SetupError(
                f"files such as {request.source} are read by Spark; open the lake with a Spark "
                "session: kt.connect(path, spark=kt.spark.session())"
            )
        from keytide.spark.ingest import run_feed

        return run_feed(request, spark, on_batch, catalog)
    return topics.run_feed(KafkaRequest.of(request, options), on_batch, catalog)


def feed_tables(
    request: FeedRequest, options: TopicOptions, catalog: Catalog, listeners: IngestListeners
) -> TablesReport:
    """Run `Lake.ingest_tables`. Raises what it raises."""
    return run_feeds(KafkaRequest.of(request, options), catalog, listeners)
