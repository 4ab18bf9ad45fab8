"""The parts of pyspark that are used although it does not promise them; they differ by version."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

    HAS_READ_LIMITS = True
except ImportError:  # before Spark 4.2 a stream takes all that there is
    HAS_READ_LIMITS = False

    class ReadMaxRows:  # type: ignore[no-redef]
        """Never asked for."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Without meaning."""


__all__ = [
    "HAS_READ_LIMITS",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "convert_errors",
    "from_arrow_schema",
    "is_deterministic",
    "known_bytes",
    "mark_streams",
    "partition_count",
    "planned_bytes",
    "to_arrow_schema",
]

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


def planned_bytes(df: DataFrame) -> int:
    """How large Spark takes a DataFrame for, before it runs. REQUIRES: a classic session."""
    execution: Any = df._jdf.queryExecution()
    return int(str(execution.optimizedPlan().stats().sizeInBytes()))


_KEEPING = frozenset({
    "Aggregate", "Deduplicate", "Distinct", "Except", "Filter", "GlobalLimit", "InMemoryRelation",
    "Intersect", "Join", "LocalLimit", "LocalRelation", "LogicalRDD", "LogicalRelation", "Offset",
    "OneRowRelation", "Project", "Range", "RebalancePartitions", "Repartition",
    "RepartitionByExpression", "ResolvedHint", "Sample", "Sort", "SubqueryAlias", "Tail", "Union",
    "Window", "WithCTE",
})  # fmt: skip
"""Steps of a plan of which Spark says no fewer rows than there are, and that need no Python."""

_STEPS_MAX = 64
"""Plans of more steps are not looked through; each look is a call to the JVM."""


def known_bytes(df: DataFrame) -> int | None:
    """How large Spark takes a DataFrame for that it knows the size of; else None.

    It does where all rows come of files, ranges, what is kept or what the driver brought, and no
    step makes more of them. Of a micro-batch it knows what the stream read, and not what became of
    that: it counts as more. REQUIRES: a classic session.
    """
    plan: Any = df._jdf.queryExecution().optimizedPlan()
    names = _steps(plan)
    if names is None or not names <= _KEEPING:
        return None
    size = int(str(plan.stats().sizeInBytes()))
    if size >= _SIZE_UNKNOWN:
        return None
    return size * (_UNSEEN_STEPS if "LogicalRDD" in names else 1)


def _steps(plan: Any) -> set[str] | None:
    """What a plan does; None where it is too long to be looked through."""
    steps = [plan]
    names: list[str] = []
    while steps and len(names) < _STEPS_MAX:
        step = steps.pop()
        names.append(step.getClass().getSimpleName())
        children = step.children()
        steps += [children.apply(i) for i in range(children.size())]
    return None if steps else set(names)


_UNSEEN_STEPS = 8


_SIZE_UNKNOWN = 1 << 62
"""Spark's own default is the largest BIGINT."""


def is_deterministic(df: DataFrame) -> bool:
    """Whether a DataFrame has the same rows each time. REQUIRES: a classic session."""
    execution: Any = df._jdf.queryExecution()
    return bool(execution.analyzed().deterministic())


def convert_errors(convert: Callable[[Exception], Exception]) -> None:
    """From now on what `convert` makes of Spark's errors is raised, in every session."""
    for name in ("pyspark.errors.exceptions.captured", "pyspark.sql.connect.client.core"):
        module: Any = sys.modules.get(name)
        if module is not None and not hasattr(module.convert_exception, "__wrapped__"):
            module.convert_exception = _converting(module.convert_exception, convert)


def _converting(original: Any, convert: Callable[[Exception], Exception]) -> Any:
    @wraps(original)
    def converted(*arguments: Any) -> Any:
        return convert(original(*arguments))

    return converted


def mark_streams(source: str, option: str) -> None:
    """From now on `readStream.format(source)` sets an option, in every session of this process.

    Spark asks a Python data source for its columns without saying whether a stream is to have them.
    """
    for name in ("pyspark.sql.streaming.readwriter", "pyspark.sql.connect.streaming.readwriter"):
        reader = getattr(sys.modules.get(name), "DataStreamReader", None)
        if reader is not None and not hasattr(reader.format, "__wrapped__"):
            reader.format = _marking(reader.format, source, option)


def _marking(original: Any, source: str, option: str) -> Any:
    @wraps(original)
    def marked(self: Any, given: str) -> Any:
        reader = original(self, given)
        return reader.option(option, "true") if str(given).lower() == source else reader

    return marked
