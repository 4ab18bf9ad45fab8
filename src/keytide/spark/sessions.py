"""Spark sessions with the settings that Keytide needs, and the Java runtime for them.

Settings that a user gave to Spark itself, with spark-submit, in its files, and in variables, are
applied when Spark starts. They are needed before that, so that defaults do not replace them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from keytide.base.arguments import check_spark_session
from keytide.base.dataclass import dataclass
from keytide.errors import SetupError
from keytide.spark.data_source import FORMAT, KeytideSource
from keytide.spark.error_translation import check_python, install_messages
from keytide.spark.internals import (
    mark_streams,
    refuse_unsupported_uses,
    settings_of_gateway,
    spark_home,
    wrap_writers,
)
from keytide.spark.option_rules import STREAM
from keytide.spark.session_sql import renew_views

# -- the Java runtime ------------------------------------------------------------------------------


JAVA_VERSION_MIN = 17
"""The minimum version for Spark 4."""

_INSTALLED_BELOW = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"))
# A first start on a busy machine takes several seconds, but a Java process that hangs must not
# block the session.
_ANSWER_SECONDS_MAX = 60


@dataclass(frozen=True)
class JavaRuntime:
    """A Java installation: its home, its feature version (17, 21, ...), and where it was found."""

    home: Path
    version: int
    found_by: str


def find_java(
    environment: Mapping[str, str] | None = None, installed_below: Sequence[Path] = _INSTALLED_BELOW
) -> JavaRuntime:
    """The first usable runtime: from JAVA_HOME, then PATH, then the usual installation folders.

    Runs `java -version` for each until one is new enough. Raises `SetupError`, which names what was
    found and how to fix it.
    """
    variables = os.environ if environment is None else environment
    found: list[str] = []
    for found_by, home in _candidates(variables, installed_below):
        version = _version(home / "bin" / "java")
        if version is not None and version >= JAVA_VERSION_MIN:
            return JavaRuntime(home, version, found_by)
        what = "no working bin/java" if version is None else f"Java {version}"
        found.append(f"{found_by} ({home}) has {what}")
    there = "; ".join(found) or "JAVA_HOME is not set and there is no java on the PATH"
    raise SetupError(
        f"Spark requires Java {JAVA_VERSION_MIN} or newer, but {there}. Install it, for example "
        "with 'apt-get install openjdk-17-jre-headless', 'brew install openjdk@17' or from "
        "https://adoptium.net, and set JAVA_HOME to its folder"
    )


def _candidates(
    variables: Mapping[str, str], installed_below: Sequence[Path]
) -> Iterator[tuple[str, Path]]:
    # Folders that are not needed are not looked at: some of them may not be readable.
    if variables.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(variables["JAVA_HOME"])
    on_path = shutil.which("java", path=variables.get("PATH", ""))
    if on_path is not None:
        yield "the PATH", Path(on_path).resolve().parents[1]
    for folder in installed_below:
        for home in sorted(folder.glob("*")):
            bundled = home / "Contents" / "Home"  # macOS
            yield str(folder), bundled if bundled.is_dir() else home


def _version(java: Path) -> int | None:
    """The feature version that `java -version` reports, None if it does not run."""
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_ANSWER_SECONDS_MAX,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None


# -- settings of the user --------------------------------------------------------------------------


_SETTINGS_OF_OPTIONS = {
    "--master": "spark.master",
    "--remote": "spark.remote",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--executor-memory": "spark.executor.memory",
}
# Earlier ones count first. Spark itself knows the last two.
_SETTINGS_OF_VARIABLES = {
    "SPARK_MASTER": "spark.master",
    "MASTER": "spark.master",
    "SPARK_REMOTE": "spark.remote",
}
_SETTING = re.compile(r"\s*(spark\.[^\s=:]+)\s*[=:\s]\s*(.*?)\s*")


def submitted_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings of Spark that are known before a session exists. Starts nothing.

    Raises `SetupError` if `PYSPARK_SUBMIT_ARGS` has a quote that is not closed.
    """
    if "PYSPARK_GATEWAY_PORT" in environment:  # spark-submit has started this process
        return settings_of_gateway()
    text = environment.get("PYSPARK_SUBMIT_ARGS", "")
    try:
        options = dict(_options(shlex.split(text)))
    except ValueError as error:
        raise SetupError(
            f"the variable PYSPARK_SUBMIT_ARGS is {text!r}, which cannot be divided into arguments "
            f"({error}); close its quotes, or unset it"
        ) from error
    file = options.pop("--properties-file", None)
    if file is None:
        home = environment.get("SPARK_HOME") or spark_home()
        folder = environment.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
        file = os.path.join(folder, "spark-defaults.conf")
    found: dict[str, str] = {}
    for variable, setting in _SETTINGS_OF_VARIABLES.items():
        if environment.get(variable):
            found.setdefault(setting, environment[variable])
    return {**found, **_stored(Path(file)), **options}


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The settings in arguments of spark-submit, and its file of settings."""
    for argument, following in pairwise((*arguments, "")):
        name, has_value, value = argument.partition("=")
        given = value if has_value else following
        if name in ("--conf", "-c"):
            setting, _, text = given.partition("=")
            yield setting, text
        elif name == "--properties-file":
            yield name, given
        elif name in _SETTINGS_OF_OPTIONS:
            yield _SETTINGS_OF_OPTIONS[name], given


def _stored(file: Path) -> dict[str, str]:
    """The settings in a file. Spark itself reports a file that cannot be read."""
    lines: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        lines = file.read_text("utf-8").splitlines()
    found = map(_SETTING.fullmatch, lines)
    return {each[1]: each[2] for each in found if each is not None}


# -- sessions --------------------------------------------------------------------------------------


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
    given = {}
    for name, value in {**(conf or {}), **settings}.items():
        dotted = name if "." in name else name.replace("_", ".")
        key = dotted if dotted.startswith("spark.") else f"spark.{dotted}"
        given[key] = str(value).lower() if isinstance(value, bool) else str(value)
    known = submitted_settings()
    if given.keys() & _PLACES:
        known = {key: value for key, value in known.items() if key not in _PLACES}
    known.update(given)
    # Workers with another Python version cannot unpickle what this one pickles.
    is_local = known.get("spark.master", "local").startswith("local")
    for role in ("python", "driver.python"):
        variable = "PYSPARK_" + role.upper().replace(".", "_")
        own = sys.executable if is_local else os.environ.get(variable, sys.executable)
        stated = given if is_local else known
        os.environ[variable] = stated.get(f"spark.pyspark.{role}", own)
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

    try:
        spark.dataSource.register(KeytideSource)
    except PySparkException as error:
        # Spark has found the module `pyspark_keytide`, and does not allow replacing it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    mark_streams(FORMAT, STREAM)
    wrap_writers(FORMAT)
    refuse_unsupported_uses(FORMAT)
    renew_views(FORMAT)
    install_messages()


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

    # The folder that workers need on their path to import this copy of keytide, if any.
    folder = str(Path(__file__).resolve().parents[2])
    if folder not in site.getsitepackages():
        shared["spark.executorEnv.PYTHONPATH"] = folder
    if "spark.remote" in known:
        return shared
    master = known.get("spark.master", "local[*]")
    if master.startswith("local"):  # executors are in the driver's process, or next to it
        gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
        memory = max(1, min(_MEMORY_GIB_MAX, gib // _MEMORY_SHARE))
        shared["spark.driver.memory"] = f"{memory}g"
        shared["spark.driver.host"] = shared["spark.driver.bindAddress"] = "127.0.0.1"
    return {"spark.master": master, **shared}
