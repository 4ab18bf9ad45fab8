"""Uses of pyspark that are not part of its public API, and differ between versions."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

from keytide.spark.connect import is_connect

try:
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

    HAS_READ_LIMITS = True
except ImportError:  # before Spark 4.2, a stream always reads everything available
    HAS_READ_LIMITS = False

    class ReadMaxRows:  # type: ignore[no-redef]
        """Never asked for."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Without meaning."""


__all__ = [
    "HAS_READ_LIMITS",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "check_uses",
    "convert_errors",
    "estimated_bytes",
    "from_arrow_schema",
    "is_deterministic",
    "known_bytes",
    "mark_streams",
    "partition_count",
    "planned_bytes",
    "running_tasks_of",
    "session_of",
    "settings_of_gateway",
    "spark_home",
    "to_arrow_schema",
]

# Spark 4.2 renamed the argument. Before that, UTC is the default.
_IN_UTC = {"timezone": "UTC"} if "timezone" in signature(types.to_arrow_schema).parameters else {}


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of Spark's rows. Raises `PySparkException` for a type without one."""
    return types.to_arrow_schema(schema, **_IN_UTC)


def from_arrow_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of Arrow rows. Times without a time zone remain without one."""
    return types.from_arrow_schema(schema, prefer_timestamp_ntz=True)


def partition_count(df: DataFrame) -> int | None:
    """The number of tasks that return a DataFrame's rows, None if only running it would tell.

    REQUIRES: a classic session.
    """
    execution: Any = df._jdf.queryExecution()
    if execution.executedPlan().getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        return None  # to find out would run its stages
    return int(execution.toRdd().getNumPartitions())


def planned_bytes(df: DataFrame) -> int:
    """Spark's size estimate of a DataFrame before it runs. REQUIRES: a classic session."""
    execution: Any = df._jdf.queryExecution()
    return int(str(execution.optimizedPlan().stats().sizeInBytes()))


def estimated_bytes(df: DataFrame) -> int | None:
    """Spark's size estimate of a DataFrame of any session, None if there is none."""
    if not is_connect(df):
        size = planned_bytes(df)
        return size if size < _SIZE_UNKNOWN else None
    frame: Any = df
    try:
        found = _ESTIMATE.search(frame._explain_string(mode="cost"))
    except Exception:  # other servers of the protocol do not explain costs
        return None
    if found is None or found[2] == "E":
        return None
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2] or " "))


_ESTIMATE = re.compile(r"Statistics\(sizeInBytes=([\d.E+]+) ([KMGTPE]?)i?B")
"""The first one is that of the whole plan."""

_KEEPING = frozenset({
    "Aggregate", "Deduplicate", "Distinct", "Except", "Filter", "GlobalLimit", "InMemoryRelation",
    "Intersect", "Join", "LocalLimit", "LocalRelation", "LogicalRDD", "LogicalRelation", "Offset",
    "OneRowRelation", "Project", "Range", "RebalancePartitions", "Repartition",
    "RepartitionByExpression", "ResolvedHint", "Sample", "Sort", "SubqueryAlias", "Tail", "Union",
    "Window", "WithCTE",
})  # fmt: skip
"""Plan steps that never produce more rows than Spark estimates, and that need no Python."""

_STEPS_MAX = 64
"""Longer plans are not examined, because each step costs a call to the JVM."""


def known_bytes(df: DataFrame) -> int | None:
    """The size of a DataFrame, if Spark knows an upper bound. Otherwise None.

    It is known if all rows come from files, ranges, cached data or the driver, and no step adds
    rows. For a micro-batch, Spark knows the size that the stream read, and not what later steps
    made of it, so the estimate is larger. REQUIRES: a classic session.
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
    """The kinds of steps in a plan, None if the plan is too long to examine."""
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
    """Whether a DataFrame returns the same rows each time. REQUIRES: a classic session."""
    execution: Any = df._jdf.queryExecution()
    return bool(execution.analyzed().deterministic())


def running_tasks_of(context: Any, tag: str) -> int:
    """The number of tasks that run in jobs with a tag, also in those that have failed."""
    tracker = context._jsc.sc().statusTracker()
    found = (tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(tag))
    stages = [
        tracker.getStageInfo(stage)
        for job in found
        if job.isDefined()
        for stage in job.get().stageIds()
    ]
    return sum(stage.get().numActiveTasks() for stage in stages if stage.isDefined())


def session_of(writer: DataFrameWriter) -> SparkSession:
    """The session whose rows a writer writes."""
    session: SparkSession = writer._spark
    return session


def check_uses(source: str, save: Check, read_stream: Check, write_stream: Check) -> None:
    """Call a function before each such use of a source in Spark Connect sessions, from now on.

    It gets the session, and the save mode, which is None if there is none.
    """
    batches: Any = sys.modules.get("pyspark.sql.connect.readwriter")
    streams: Any = sys.modules.get("pyspark.sql.connect.streaming.readwriter")
    if batches is None or streams is None or hasattr(batches.DataFrameWriter.save, "__wrapped__"):
        return
    for owner, name, check in (
        (batches.DataFrameWriter, "save", save),
        (streams.DataStreamReader, "load", read_stream),
        (streams.DataStreamWriter, "start", write_stream),
    ):
        setattr(owner, name, _checked(getattr(owner, name), source, check))


Check: TypeAlias = "Callable[[Any, str | None], None]"


def _checked(original: Any, source: str, check: Check) -> Any:
    @wraps(original)
    def checked(self: Any, *arguments: Any, **named: Any) -> Any:
        given = signature(original).bind(self, *arguments, **named).arguments
        session, source_before, mode_before = _set_before(self)
        if str(given.get("format") or source_before).lower() == source:
            check(session, given.get("mode") or mode_before)
        return original(self, *arguments, **named)

    return checked


def _set_before(use: Any) -> tuple[Any, str | None, str | None]:
    """The session, the format and the mode of a reader or writer of Spark Connect."""
    if hasattr(use, "_write"):
        return use._spark, use._write.source, use._write.mode
    if hasattr(use, "_write_proto"):
        return use._session, use._write_proto.format, None
    return use._client, use._format, None


def settings_of_gateway() -> dict[str, str]:
    """The settings of the JVM that started this process. REQUIRES: spark-submit did."""
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def spark_home() -> str:
    """The folder of Spark."""
    home: str = _find_spark_home()
    return home


def convert_errors(convert: Callable[[Exception], Exception]) -> None:
    """Make every session raise what `convert` returns for Spark's errors, from now on."""
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
    """Make `readStream.format(source)` set an option, in every session of this process.

    Spark asks a Python data source for its columns without saying whether they are for a stream.
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
