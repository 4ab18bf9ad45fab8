"""Spark Connect: how to tell its objects, and what they cannot tell us."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["CORES_UNKNOWN", "cores", "is_connect", "runs_batch_function"]

CORES_UNKNOWN = 8
"""A guess: Spark Connect does not say how many tasks run at a time."""


def is_connect(handle: Any) -> bool:
    """Whether a session or DataFrame belongs to Spark Connect."""
    return type(handle).__module__.startswith("pyspark.sql.connect.")


def cores(spark: Any) -> int:
    """How many tasks of a session run at a time."""
    return CORES_UNKNOWN if is_connect(spark) else int(spark.sparkContext.defaultParallelism)


def runs_batch_function() -> bool:
    """Whether this process is a Connect server's worker that runs functions of `foreachBatch`."""
    return "SPARK_CONNECT_LOCAL_URL" in os.environ
