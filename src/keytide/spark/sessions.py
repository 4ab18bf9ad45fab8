"""Spark sessions with the settings that Keytide needs."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from keytide.base.arguments import check_spark_session
from keytide.spark.errors import speak_plainly
from keytide.spark.internals import mark_streams
from keytide.spark.java import find_java
from keytide.spark.other_servers import refuse_what_they_lack
from keytide.spark.python import check_python
from keytide.spark.source import FORMAT, KeytideSource
from keytide.spark.source_options import STREAM
from keytide.spark.sql import keep_views_new
from keytide.spark.submitted import submitted
from keytide.spark.writers import steady_writers

__all__ = ["register", "session"]

# Arrow checks each access to a value twice, although Spark only requests rows that exist.
_ARROW_IN_JAVA = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# The JVM gets only a part of the memory, because Python workers hold the rows that are merged.
_MEMORY_SHARE = 4
_MEMORY_GIB_MAX = 8
_PLACES = frozenset({"spark.master", "spark.remote"})


def session(conf: Mapping[str, Any] | None = None, /, **settings: Any) -> SparkSession:
    """Create a Spark session for Keytide: this Python, Arrow, UTC, `keytide` registered.

    The session is local unless the settings say otherwise, or those that Spark itself was given:
    with `spark-submit`, in `spark-defaults.conf`, or in `PYSPARK_SUBMIT_ARGS`, `SPARK_MASTER`,
    `MASTER` and `SPARK_REMOTE`. These are kept. With the master of a cluster, host, memory and
    Python are Spark's own, or this Python if none is named: it must exist on all hosts.

    Any setting can be overridden, in a mapping or by keyword: `spark_ui_enabled=True` means
    `spark.ui.enabled`, and `master="local[4]"` means `spark.master`. If a session is already
    running, it is returned after applying those settings that Spark can still change.
    `remote="..."` creates a Spark Connect session.

    Raises `SetupError` when there is no Java 17 or newer, and as `register` does.
    """
    given = {_key(name): _text(value) for name, value in {**(conf or {}), **settings}.items()}
    known = submitted()
    if given.keys() & _PLACES:
        known = {key: value for key, value in known.items() if key not in _PLACES}
    known.update(given)
    _use_this_python(known, given)
    if not known.get("spark.remote", "local").startswith("sc://"):
        os.environ["JAVA_HOME"] = str(find_java().home)
    defaults = {key: value for key, value in _defaults(known).items() if key not in known}
    places = {key: known[key] for key in _PLACES & known.keys()}
    builder = SparkSession.builder
    for key, value in {**defaults, **places, **given}.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    register(made)
    return made


def register(spark: SparkSession) -> None:
    """Register the format `keytide` in a session, classic or Spark Connect.

    After this, errors of Keytide that pass through Spark keep their own message in this process.
    They can be caught as errors of both classes, and their attribute `report` has Spark's full
    text. In a classic session, temporary views of the format show the latest snapshot to each
    query.

    Executors must be able to import keytide, in the same Python version. Raises `SetupError` when a
    local session runs tasks in another Python version, and `InvalidError` for anything else.
    """
    check_spark_session(spark, "register")
    check_python(spark)
    # This makes the session active. Spark checks in the active session whether the name is taken.
    spark.createDataFrame([], "nothing int")
    _take_in(spark)
    mark_streams(FORMAT, STREAM)
    steady_writers(FORMAT)
    refuse_what_they_lack(FORMAT)
    keep_views_new(FORMAT)
    speak_plainly()


def _take_in(spark: SparkSession) -> None:
    try:
        spark.dataSource.register(KeytideSource)
    except PySparkException as error:
        # Spark has found the module `pyspark_keytide`, and does not allow replacing it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _defaults(known: Mapping[str, str]) -> dict[str, str]:
    shared = {
        "spark.app.name": "keytide",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # At least as fast as loopback TCP, and without a port.
        "spark.python.unix.domain.socket.enabled": "true",
        # A task uses one core. The threads of parallel tasks would compete with each other.
        "spark.executorEnv.POLARS_MAX_THREADS": "1",
        # Keep the memory of one batch for the next. Otherwise its pages would be mapped again each
        # time.
        "spark.executorEnv._RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000",
        "spark.driver.defaultJavaOptions": _ARROW_IN_JAVA,
        "spark.executor.defaultJavaOptions": _ARROW_IN_JAVA,
    }
    paths = _own_import_path()
    if paths is not None:
        shared["spark.executorEnv.PYTHONPATH"] = paths
    if "spark.remote" in known:
        return shared
    master = known.get("spark.master", "local[*]")
    return {"spark.master": master, **shared, **(_on_one_host() if _is_local(master) else {})}


def _on_one_host() -> dict[str, str]:
    """Settings for executors in the driver's process, or next to it."""
    return {
        "spark.driver.memory": f"{_driver_memory_gib()}g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _key(name: str) -> str:
    dotted = name if "." in name else name.replace("_", ".")
    return dotted if dotted.startswith("spark.") else f"spark.{dotted}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _use_this_python(known: Mapping[str, str], given: Mapping[str, str]) -> None:
    # Workers with another Python version cannot unpickle what this one pickles.
    is_local = _is_local(known.get("spark.master", "local"))
    settings = given if is_local else known
    for role in ("python", "driver.python"):
        variable = "PYSPARK_" + role.upper().replace(".", "_")
        own = sys.executable if is_local else os.environ.get(variable, sys.executable)
        os.environ[variable] = settings.get(f"spark.pyspark.{role}", own)


def _own_import_path() -> str | None:
    """The folder that workers need on their path to import this copy of keytide, if any."""
    folder = str(Path(__file__).resolve().parents[2])
    return None if folder in site.getsitepackages() else folder


def _driver_memory_gib() -> int:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return max(1, min(_MEMORY_GIB_MAX, gib // _MEMORY_SHARE))
