"""The parts of pyspark that are used although it does not promise them; they differ by version."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

__all__ = ["from_arrow_schema", "partition_count", "to_arrow_schema"]

# Spark 4.2 gave the argument another name; before, UTC is the default.
_IN_UTC = {"timezone": "UTC"} if "timezone" in signature(types.to_arrow_schema).parameters else {}


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark gives rows. Raises `PySparkException` where there is none."""
    return types.to_arrow_schema(schema, **_IN_UTC)


def from_arrow_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of Arrow rows; times without a zone stay without one."""
    return types.from_arrow_schema(schema, prefer_timestamp_ntz=True)


def partition_count(df: DataFrame) -> int | None:
    """How many tasks will give a DataFrame's rows; None where only running it would tell.

    REQUIRES: a classic session.
    """
    execution: Any = df._jdf.queryExecution()
    if execution.executedPlan().getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        return None  # to ask it would run its stages
    return int(execution.toRdd().getNumPartitions())
