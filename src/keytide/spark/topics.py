"""Topics into tables on Spark."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from keytide.cdc.report import BatchReport, IngestReport
from keytide.errors import UnsupportedError
from keytide.kafka.request import KafkaRequest
from keytide.table.catalog import Catalog

__all__ = ["run_topics"]


def run_topics(
    request: KafkaRequest,
    spark: SparkSession,
    on_batch: Callable[[BatchReport], None] | None = None,
    catalog: Catalog | None = None,
) -> IngestReport:
    """Raises `UnsupportedError`."""
    raise UnsupportedError(
        f"{request.address} is read without Spark alone; open the lake without a session"
    )
