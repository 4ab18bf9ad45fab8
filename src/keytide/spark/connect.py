"""Spark Connect: how to recognize its objects, and what they do not expose."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["is_connect", "runs_batch_function"]


def is_connect(handle: Any) -> bool:
    """Whether a session or DataFrame belongs to Spark Connect."""
    return type(handle).__module__.startswith("pyspark.sql.connect.")


def runs_batch_function() -> bool:
    """Whether this process is a Connect server's worker that runs `foreachBatch` functions."""
    return "SPARK_CONNECT_LOCAL_URL" in os.environ
