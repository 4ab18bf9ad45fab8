"""Spark sessions in which Keytide works."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from keytide.spark.internals import mark_streams
from keytide.spark.java import find_java
from keytide.spark.python import check_python
from keytide.spark.source import FORMAT, KeytideSource
from keytide.spark.source_options import STREAM
from keytide.spark.views import keep_views_new
from keytide.spark.words import speak_plainly

__all__ = ["register", "session"]

# Arrow checks each access to a value again; Spark asks for rows that are there.
_ARROW_IN_JAVA = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# The JVM gets a part of the machine: Python workers hold the rows that are merged.
_MEMORY_SHARE = 4
_MEMORY_GIB_MAX = 8


def session(conf: Mapping[str, Any] | None = None, /, **settings: Any) -> SparkSession:
    """A local Spark session in which all works: this Python, Arrow, UTC, `keytide` registered.

    Every setting can be overridden, as a mapping or by keywords: `spark_ui_enabled=True` means
    `spark.ui.enabled`, `master="local[4]"` means `spark.master`. A session that already runs is
    returned with those settings applied that Spark can still change. `remote="..."` makes a
    Spark Connect session.

    Raises `SetupError` when there is no Java 17 or newer, and as `register` does.
    """
    given = {_key(name): _text(value) for name, value in {**(conf or {}), **settings}.items()}
    _use_this_python(given)
    if not given.get("spark.remote", "local").startswith("sc://"):
        os.environ["JAVA_HOME"] = str(find_java().home)
    builder = SparkSession.builder
    for key, value in {**_defaults(given), **given}.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    register(made)
    return made


def register(spark: SparkSession) -> None:
    """Make the format `keytide` known to a session, classic or Spark Connect.

    In this process errors of Keytide then come back through Spark in their own words, and are
    caught as errors of either class; their attribute `report` has all that Spark says of them. In a
    classic session, temporary views of the format show the newest snapshot to each query.

    Executors must be able to import keytide, in a Python of this version. Raises `SetupError` where
    a local session runs tasks in another one.
    """
    check_python(spark)
    # Makes the session the active one, in which Spark looks whether the name is taken.
    spark.createDataFrame([], "nothing int")
    _take_in(spark)
    mark_streams(FORMAT, STREAM)
    keep_views_new(FORMAT)
    speak_plainly()


def _take_in(spark: SparkSession) -> None:
    try:
        spark.dataSource.register(KeytideSource)
    except PySparkException as error:
        # Spark has found the module `pyspark_keytide`, and lets nobody take its place.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _defaults(given: Mapping[str, str]) -> dict[str, str]:
    shared = {
        "spark.app.name": "keytide",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{_driver_memory_gib()}g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # As fast as loopback TCP at least, and without a port.
        "spark.python.unix.domain.socket.enabled": "true",
        # A task is one core's work; threads of tasks side by side would wait for each other.
        "spark.executorEnv.POLARS_MAX_THREADS": "1",
        # Memory of one batch serves the next; given back at once, its pages would be made anew.
        "spark.executorEnv._RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000",
        "spark.driver.defaultJavaOptions": _ARROW_IN_JAVA,
        "spark.executor.defaultJavaOptions": _ARROW_IN_JAVA,
    }
    paths = _own_import_path()
    if paths is not None:
        shared["spark.executorEnv.PYTHONPATH"] = paths
    if "spark.remote" in given:
        return shared
    return {"spark.master": "local[*]", **shared}


def _key(name: str) -> str:
    dotted = name if "." in name else name.replace("_", ".")
    return dotted if dotted.startswith("spark.") else f"spark.{dotted}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _use_this_python(given: Mapping[str, str]) -> None:
    # Workers of another Python version cannot read what this one pickles.
    for role in ("python", "driver.python"):
        variable = "PYSPARK_" + role.upper().replace(".", "_")
        os.environ[variable] = given.get(f"spark.pyspark.{role}", sys.executable)


def _own_import_path() -> str | None:
    """The folder that workers need on their path to import this very keytide, if any."""
    folder = str(Path(__file__).resolve().parents[2])
    return None if folder in site.getsitepackages() else folder


def _driver_memory_gib() -> int:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return max(1, min(_MEMORY_GIB_MAX, gib // _MEMORY_SHARE))
