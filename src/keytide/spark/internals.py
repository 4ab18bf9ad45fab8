"""Uses of pyspark that are not part of its public API, and differ between versions.

- Spark Connect: its objects are recognized here, and do not expose everything. Other servers than
  Apache Spark's answer the protocol too, such as Sail. They need not keep the order of rows, number
  their tasks, or know the parts of SQL and of DataFrames that are Spark's own. Uses of a data
  source that they lack or misunderstand are refused before they reach the server: Sail appends for
  every save mode but `overwrite`, and has no streams of Python data sources.
- Once a statement has failed, none of the tasks of its Spark jobs runs any more.
- Spark looks for Python data sources only in the session that is active in the thread. After
  Ctrl-C, Spark leaves a running write alone, which commits later. So writes to a data source in
  classic sessions are wrapped.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from inspect import signature
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

from keytide.errors import UnsupportedError

# -- Spark Connect ---------------------------------------------------------------------------------


def is_connect(handle: Any) -> bool:
    """Whether a session or DataFrame belongs to Spark Connect."""
    return type(handle).__module__.startswith("pyspark.sql.connect.")


def runs_batch_function() -> bool:
    """Whether this process is a Connect server's worker that runs `foreachBatch` functions."""
    return "SPARK_CONNECT_LOCAL_URL" in os.environ


def is_apache_spark(session: Any) -> bool:
    """Whether Apache Spark answers a session. Asks the server once."""
    # Spark's own version is followed by a git revision.
    return not is_connect(session) or len(_version(session).split()) == 2


def server_name(session: Any) -> str:
    """The server of a session that is not Apache Spark's, for messages."""
    with suppress(PySparkException):
        if session.catalog.currentCatalog() == "sail":
            return f"Sail {_version(session)}"
    return "this Spark Connect server"


def _version(session: Any) -> str:
    if session not in _VERSIONS:
        (version,) = session.sql("SELECT version()").first()
        _VERSIONS[session] = str(version)
    return _VERSIONS[session]


_VERSIONS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def refuse_other_servers(session: Any, what: str, lacking: str, instead: str) -> None:
    """Raise `UnsupportedError` if a session's server is not Apache Spark, and lacks something."""
    if not is_apache_spark(session):
        raise UnsupportedError(
            f"{what} needs {lacking}, which {server_name(session)} does not have. "
            f"{instead}, or use a session of Apache Spark"
        )


# -- DataFrames, schemas and tasks -----------------------------------------------------------------


try:
    from pyspark.sql.streaming.datasource import ReadMaxRows as ReadMaxRows
    from pyspark.sql.streaming.datasource import (
        SupportsTriggerAvailableNow as SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:  # before Spark 4.2, a stream always reads everything available
    HAS_READ_LIMITS = False

    class ReadMaxRows:  # type: ignore[no-redef]
        """Never asked for."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Without meaning."""


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
    steps: list[Any] = [plan]
    names: list[str] = []
    while steps and len(names) < _STEPS_MAX:
        step = steps.pop()
        names.append(step.getClass().getSimpleName())
        children = step.children()
        steps += [children.apply(i) for i in range(children.size())]
    if steps or not _KEEPING.issuperset(names):
        return None
    size = int(str(plan.stats().sizeInBytes()))
    if size >= _SIZE_UNKNOWN:
        return None
    return size * (_UNSEEN_STEPS if "LogicalRDD" in names else 1)


_UNSEEN_STEPS = 8


_SIZE_UNKNOWN = 1 << 62
"""Spark's own default is the largest BIGINT."""


def is_deterministic(df: DataFrame) -> bool:
    """Whether a DataFrame returns the same rows each time. REQUIRES: a classic session."""
    execution: Any = df._jdf.queryExecution()
    return bool(execution.analyzed().deterministic())


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function of pyspark, once, by one that gets it before its arguments.

    Others may have wrapped it before.
    """
    original = getattr(owner, name)
    if hasattr(original, _WRAPPED):
        return

    @wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        return around(original, *arguments, **named)

    setattr(wrapped, _WRAPPED, True)
    setattr(owner, name, wrapped)


_WRAPPED = "_keytide_wrapped"


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
        if module is not None:
            wrap(module, "convert_exception", lambda original, *given: convert(original(*given)))


def mark_streams(source: str, option: str) -> None:
    """Make `readStream.format(source)` set an option, in every session of this process.

    Spark asks a Python data source for its columns without saying whether they are for a stream.
    """

    def marked(original: Any, reader: Any, /, *arguments: Any, **named: Any) -> Any:
        reader = original(reader, *arguments, **named)
        (given,) = (*arguments, *named.values())
        return reader.option(option, "true") if str(given).lower() == source else reader

    for name in ("pyspark.sql.streaming.readwriter", "pyspark.sql.connect.streaming.readwriter"):
        reader = getattr(sys.modules.get(name), "DataStreamReader", None)
        if reader is not None:
            wrap(reader, "format", marked)


# -- jobs of a statement ---------------------------------------------------------------------------


_WAIT_S, _WAIT_S_MAX = 0.1, 15.0
"""Spark ends a worker that does not react to being killed after four seconds."""


@contextmanager
def end_after_errors(spark: Any) -> Iterator[None]:
    """A block that runs jobs. An error leaves it when their tasks have been cancelled and ended.

    This includes an interrupt such as Ctrl-C. Waits for a limited time, and not at all on Spark
    Connect, which does not say which tasks run.
    """
    if is_connect(spark):
        yield
        return
    tag = f"keytide-{uuid4().hex}"
    context = spark.sparkContext
    context.addJobTag(tag)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the original error is more useful
            context.cancelJobsWithTag(tag)
            until = time.monotonic() + _WAIT_S_MAX
            while _running_tasks(context, tag) and time.monotonic() < until:
                time.sleep(_WAIT_S)
        raise
    finally:
        with suppress(Exception):  # the session may be over
            context.removeJobTag(tag)


def _running_tasks(context: Any, tag: str) -> int:
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


# -- uses of a data source that other servers lack -------------------------------------------------


_MODES = ("append", "overwrite")
_STREAMS = "streams of Python data sources"


def refuse_unsupported_uses(source: str) -> None:
    """Refuse such uses of a source in every Spark Connect session of this process, from now on."""
    batches: Any = sys.modules.get("pyspark.sql.connect.readwriter")
    streams: Any = sys.modules.get("pyspark.sql.connect.streaming.readwriter")
    if batches is None or streams is None:
        return

    def saved(original: Any, writer: Any, /, *arguments: Any, **named: Any) -> Any:
        given = signature(original).bind(writer, *arguments, **named).arguments
        mode = given.get("mode") or writer._write.mode or "error"
        is_own = str(given.get("format") or writer._write.source).lower() == source
        if is_own and mode.lower() not in _MODES and not is_apache_spark(writer._spark):
            raise UnsupportedError(
                f"save mode {mode!r} is not supported: {server_name(writer._spark)} would append. "
                "Set mode('append') or mode('overwrite')"
            )
        return original(writer, *arguments, **named)

    def loaded(original: Any, reader: Any, /, *arguments: Any, **named: Any) -> Any:
        given = signature(original).bind(reader, *arguments, **named).arguments
        if str(given.get("format") or reader._format).lower() == source:
            instead = "Read table.changes(start=...).to_spark(spark) from time to time"
            refuse_other_servers(reader._client, "a stream of a table", _STREAMS, instead)
        return original(reader, *arguments, **named)

    def started(original: Any, writer: Any, /, *arguments: Any, **named: Any) -> Any:
        given = signature(original).bind(writer, *arguments, **named).arguments
        if str(given.get("format") or writer._write_proto.format).lower() == source:
            instead = "Write batches with table.write(df)"
            refuse_other_servers(writer._session, "a stream into a table", _STREAMS, instead)
        return original(writer, *arguments, **named)

    wrap(batches.DataFrameWriter, "save", saved)
    wrap(streams.DataStreamReader, "load", loaded)
    wrap(streams.DataStreamWriter, "start", started)


# -- writes in classic sessions --------------------------------------------------------------------


_NAME = "_keytide_source"


def wrap_writers(source: str) -> None:
    """Make writes to a source work in every thread, and end at an interrupt, from now on."""

    def activated(original: Any, writer: Any, /, *arguments: Any, **named: Any) -> Any:
        given = next(iter((*arguments, *named.values())), None)
        setattr(writer, _NAME, str(given).lower() == source)
        if getattr(writer, _NAME):
            writer._spark.createDataFrame([], "nothing int")  # makes the session active
        return original(writer, *arguments, **named)

    def ended(original: Any, writer: Any, /, *arguments: Any, **named: Any) -> Any:
        if not getattr(writer, _NAME, False):
            return original(writer, *arguments, **named)
        with end_after_errors(writer._spark):
            return original(writer, *arguments, **named)

    wrap(DataFrameWriter, "format", activated)
    wrap(DataFrameWriter, "save", ended)
