"""The time zone of SQL statements on Spark: UTC, whatever the session's time zone is.

Spark binds the time zone to casts, literals and functions of times when it analyzes a query: a
classic session immediately, and Spark Connect only when the query runs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from pyspark.sql import SparkSession

from keytide.spark.connect import is_connect
from keytide.spark.settings import held_setting

__all__ = ["analyzed_in_utc", "run_in_utc"]


def analyzed_in_utc(spark: SparkSession) -> AbstractContextManager[None]:
    """A context in which a session analyzes queries in UTC. Threads can be in it at once."""
    return held_setting(spark, "spark.sql.session.timeZone", "UTC")


def run_in_utc(spark: SparkSession) -> AbstractContextManager[None]:
    """A context in which a query runs in UTC that was analyzed in UTC, if it was already."""
    return analyzed_in_utc(spark) if is_connect(spark) else nullcontext()
