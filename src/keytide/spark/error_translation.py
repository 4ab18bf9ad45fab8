"""Errors between Spark and Keytide, in both directions, and the Python in which tasks run.

- Spark reports an error of a task or of the data source as the last line of a traceback of
  thousands of characters. Here it becomes an error that is both of Keytide's class and of Spark's,
  and its message is that last line. The full report is kept.
- Spark's own reader looks for a file when it plans a query and again when it reads. Either can
  happen long after the DataFrame was created, in the code of its user. So files that it reads for
  tables are remembered, for the error when it does not find one.
- Spark reports a statement that it cannot run on a temporary view of a table as an unknown table, a
  missing feature or an internal error. The error says what does run.
- Later columns of a SELECT can refer to names that it gives to earlier ones. Spark calls them
  lateral column aliases. A session can switch them off, and Sail does not have them.
- The Python of tasks must have the version of this one, and be able to import keytide. A local
  session is checked before it runs tasks. For a cluster, the errors of its workers are explained.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, UnsupportedOperationException
from pyspark.sql import SparkSession

import keytide.errors
from keytide import errors
from keytide.base.process import this_host
from keytide.errors import DataError, KeytideError, NotFoundError, SetupError, UnsupportedError
from keytide.format.data_file import missing_file
from keytide.snapshot.state import TableView
from keytide.spark.internals import convert_errors, is_apache_spark, is_connect
from keytide.store.interface import storage_error
from keytide.store.local import HOW_TO_SHARE

# -- Keytide errors from Spark's errors ------------------------------------------------------------


# The last line of a Python traceback (which a report may have omitted), without the text that the
# JVM adds after it. An error that is only quoted by another error is not matched.
_RAISED = re.compile(
    r"(?:^|(?<!Error)(?<!Exception): )keytide\.errors\.(\w+): (.*?)"
    r"(?=\n\n|\n\s*(?:at |SQLSTATE|Driver stacktrace)|\Z)",
    re.MULTILINE | re.DOTALL,
)


# What Sail reports of an error of the data source: no module, and the traceback after the message.
_RAISED_IN_SAIL = re.compile(
    r"Python error: \[[\w:]+\] (\w+): (.*?)(?=\nTraceback:\n|\Z)", re.DOTALL
)

_UNFIT_PYTHON = re.compile(
    r"ModuleNotFoundError: No module named '(?:keytide|polars|pyarrow)[^']*'"
    r"|\[PYTHON_VERSION_MISMATCH\][^\n]*"
    r"|Cannot run program \"[^\"\n]*python[^\"\n]*\"[^\n]*No such file or directory"
)


@contextmanager
def on_driver() -> Iterator[None]:
    """Raise a Keytide error from a task again as the same error.

    A file that Spark's own reader cannot read is a `DataError`. An error of Spark itself, including
    a plain Java error, is a `PySparkException`.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text, found = str(error), keytide_error_of(error)
        unreadable = _UNREADABLE.search(text)
        if found is None and unreadable is not None:
            found = DataError(
                f"{unreadable[1]} cannot be read; restore it, or read an older snapshot "
                f"({_last_reason(text)})"
            )
        if found is not None:
            raise found from error
        if isinstance(error, PySparkException):
            raise
        raise PySparkException(_last_reason(text)) from error


def keytide_error_of(error: Exception) -> KeytideError | None:
    """The Keytide error that a Spark error reports or is itself, or None."""
    if not isinstance(error, KeytideError):
        return keytide_error(str(error))
    name = type(error).__name__
    plain: KeytideError = getattr(keytide.errors, name)(str(error))
    return plain


def keytide_error(text: str) -> KeytideError | None:
    """The Keytide error that a Python traceback in `text` ends with, or None.

    An error of workers whose Python cannot run the tasks becomes a `SetupError`.
    """
    raised = [*_RAISED.finditer(text)] or [
        found for found in _RAISED_IN_SAIL.finditer(text) if hasattr(keytide.errors, found[1])
    ]
    if not raised:
        unfit = _UNFIT_PYTHON.search(text)
        return (
            SetupError(f"Spark runs tasks with another Python ({unfit[0]}): {_WAY_OUT}")
            if unfit
            else None
        )
    name, message = raised[-1].groups()
    error_class = getattr(keytide.errors, name, KeytideError)
    error: KeytideError = error_class(message.strip())
    return error


def reason_of(error: Exception) -> str:
    """What Spark says of an error, in one line. For an error of Python code, this is its own."""
    return _python_reason(str(error)) or type(error).__name__


@contextmanager
def file_errors(source: str, table: str) -> Iterator[None]:
    """Raise Spark's errors from reading files for a table as Keytide errors.

    Raises `NotFoundError` if there are no files, the Keytide error of a task if there was one, and
    otherwise `DataError`, which names the file if a file caused the error.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        found = keytide_error_of(error)
        if found is not None:
            raise found from error
        text = str(error)
        if "[PATH_NOT_FOUND]" in text:
            raise NotFoundError(
                f"there is no file or folder {source}; give a folder, a file or a glob of files"
            ) from error
        reason, unreadable = _last_reason(text), _UNREADABLE.search(text)
        if unreadable is not None:
            raise DataError(
                f"table {table}: {unreadable[1]} cannot be read ({reason}); no message of its "
                "batch was applied. Replace the file and run again"
            ) from error
        raise DataError(
            f"table {table}: Spark failed while it read {source}; correct the cause and run "
            f"again: {reason}"
        ) from error


@contextmanager
def unsupported_errors() -> Iterator[None]:
    """Raise what a Spark Connect server does not offer as an `UnsupportedError`."""
    try:
        yield
    except UnsupportedOperationException as error:
        raise UnsupportedError(
            f"the Spark Connect server does not offer a step of this ({reason_of(error)}). Open "
            "the lake without this session: keytide.connect(warehouse), or use Apache Spark"
        ) from error


_UNREADABLE = re.compile(r"error while reading file (\S+?)\.\s")
_REASON = re.compile(r"^(?:Caused by: |: )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)


def _python_reason(text: str) -> str:
    """The line after the last Python traceback, or the first line of a text without any."""
    lines = text.split(_TRACEBACK)[-1].splitlines()
    return next((line for line in lines if line.strip() and not line.startswith(" ")), "")


_TRACEBACK = "Traceback (most recent call last):\n"


def _last_reason(text: str) -> str:
    """The error of a Python task with its type, or the message of the innermost Java exception."""
    if _TRACEBACK in text:
        return _python_reason(text)
    reasons = _REASON.findall(text)
    return str(reasons[-1] if reasons else text.splitlines()[0]).strip()


# -- missing files of tables -----------------------------------------------------------------------


_PLACES_MAX, _SNAPSHOTS_MAX = 1000, 1000
_MISSING = re.compile(
    r"FILE_NOT_EXIST\].*?reading file (?P<escaped>\S+?)\.\s"
    r"|\[PATH_NOT_FOUND\] Path does not exist: (?P<plain>.+?)\.(?: SQLSTATE|\s|$)",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)")
_HOST = re.compile(r"\(TID \d+\) \((\S+) executor ")


def pin(folders: Iterable[str], view: TableView, snapshot_ids: tuple[int, ...]) -> None:
    """Remember that the table's files below some folders are being read for some snapshots.

    The folders are URIs whose names are not escaped.
    """
    with _LOCK:
        for folder in folders:
            place = folder.partition("://")[2], view.store.uri
            _, known = _PINNED.pop(place, (view, ()))
            ids = tuple(dict.fromkeys((*known, *snapshot_ids)))[-_SNAPSHOTS_MAX:]
            _remember(place, (view, ids))


def pin_external(uris: Iterable[str]) -> None:
    """Remember that the files at some URIs, whose names are not escaped, are being read."""
    with _LOCK:
        for folder in {uri.partition("://")[2].rpartition("/")[0] for uri in uris}:
            _PINNED.pop((folder, ""), None)
            _remember((folder, ""), (None, ()))


def missing_file_error(report: str) -> KeytideError | None:
    """The error for a file of such a table that Spark's reader did not find, otherwise None.

    It is the error of a local read of the file. It is a `SetupError` if the file exists here.
    """
    found = _MISSING.search(report)
    if found is None:
        return None
    scheme, _, after = (found["plain"] or unquote(found["escaped"])).partition(":")
    given = after.removeprefix("//")
    # Spark may have been given an escaped name, see `parquet_files`.
    for path in (given, _ESCAPED.sub(r"\1", given)):
        with _LOCK:
            pinned = [e for (folder, _), e in _PINNED.items() if path.startswith(f"{folder}/")]
        if pinned:
            break
    else:
        return None
    if scheme == "file" and os.path.isfile(path):
        hosts = ", ".join(dict.fromkeys(_HOST.findall(report))) or "an executor"
        return SetupError(
            f"{path} exists for the driver on {this_host()}, but not for a task on {hosts}. "
            f"{HOW_TO_SHARE}"
        )
    # Branches of a table share files, so assume the snapshot that was read last.
    view, snapshot_ids = pinned[-1]
    if view is None:
        return storage_error("read", path, FileNotFoundError())
    reason = str(missing_file(path))
    return view.files.why_gone(view.store, view.name, snapshot_ids, reason) or DataError(reason)


def _remember(place: tuple[str, str], read: tuple[TableView | None, tuple[int, ...]]) -> None:
    """Remember what is read below a folder. REQUIRES: the lock."""
    _PINNED[place] = read
    while len(_PINNED) > _PLACES_MAX:
        _PINNED.popitem(last=False)


_LOCK = threading.Lock()
_PINNED: OrderedDict[tuple[str, str], tuple[TableView | None, tuple[int, ...]]] = OrderedDict()


# -- Keytide errors that pass through Spark --------------------------------------------------------


def install_messages() -> None:
    """Give Spark's errors in this process the message of the Keytide error that caused them.

    They can be caught as errors of both classes. Their attribute `report` has Spark's full text.
    """
    convert_errors(_translated)


def _translated(error: Exception) -> Exception:
    """The error to raise instead of one of Spark's."""
    if isinstance(error, KeytideError) or not isinstance(error, PySparkException | Py4JError):
        return error
    report = str(error)
    found = keytide_error(report) or missing_file_error(report)
    return error if found is None else both_errors(found, error, report)


def both_errors(found: KeytideError, error: Exception, report: str) -> Exception:
    """An error of both classes, with the message of `found` and Spark's full text."""
    name, known = type(found).__name__, type(error)
    # pyspark raises an unknown exception of the JVM in another form
    sparks = PySparkException if known.__name__ == "UnknownException" else known
    ours: type[KeytideError] = getattr(errors, name)
    members = {"__module__": ours.__module__, "__doc__": ours.__doc__}
    both = _CLASSES.setdefault(
        (name, sparks), type(name, (_TranslatedError, ours, sparks), members)
    )
    made: Any = both.__new__(both, str(found))
    made.__dict__.update(error.__dict__)
    made.args, made.report = (str(found),), report
    in_words: Exception = made
    return in_words


class _TranslatedError:
    """An error whose message is the one of a Keytide error."""

    report: str
    """Spark's full text."""
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return str(self.args[0])


_CLASSES: dict[tuple[str, type[Exception]], type[Exception]] = {}


# -- statements on temporary views -----------------------------------------------------------------


_GAP = r"(?:\s|--[^\n]*\n|/\*.*?\*/)"
_NAME = r"(?P<name>(?:global_temp\s*\.\s*)?(?:`(?:[^`]|``)+`|\w+))"
_STATEMENTS = tuple(
    re.compile(rf"{_GAP}*{pattern}".replace(" ", f"{_GAP}+"), re.IGNORECASE | re.DOTALL)
    for pattern in (
        rf"(?P<verb>DELETE) FROM {_NAME}",
        rf"(?P<verb>UPDATE) {_NAME}",
        rf"(?P<verb>MERGE)(?: WITH SCHEMA EVOLUTION)? INTO {_NAME}",
        rf"(?P<verb>TRUNCATE) TABLE {_NAME}",
        rf"(?P<verb>ALTER) TABLE {_NAME}",
        rf"(?P<verb>ANALYZE) TABLE {_NAME}",
        rf"(?P<verb>DESC(?:RIBE)? (?:HISTORY|DETAIL)) {_NAME}",
        rf"(?P<verb>SHOW (?:PARTITIONS|CREATE TABLE)) {_NAME}",
        rf"(?:SELECT|WITH)\b.*?\b(?:FROM|JOIN) {_NAME} (?:FOR )?"
        r"(?P<verb>(?:SYSTEM_VERSION|VERSION|SYSTEM_TIME|TIMESTAMP) AS OF)\b",
    )
)


def note_view(spark: SparkSession, view: str, table: str) -> None:
    """Remember that a view of a session shows a table."""
    _VIEWS.setdefault(spark, {})[view.lower()] = table


def view_error(spark: Any, text: str, error: Exception, source: str) -> Exception:
    """The error to raise instead of one that a statement raised.

    It is the same error, unless the statement cannot run on a view, and the view shows a table. A
    view of the data source `source` does.
    """
    match = next((m for each in _STATEMENTS if (m := each.match(text)) is not None), None)
    if match is None or isinstance(error, KeytideError):
        return error
    view = match["name"].replace("`", "").removeprefix("global_temp.").strip()
    table = _VIEWS.get(spark, {}).get(view.lower())
    if table is None:
        plan = ""  # unknown on Spark Connect
        if not is_connect(spark):
            with suppress(PySparkException, Py4JError):
                shown_plan: Any = spark.table(match["name"])._jdf.queryExecution().analyzed()
                plan = str(shown_plan.toString())
        if re.search(rf"\] {re.escape(source)}\b", plan) is None:
            return error
    verb = " ".join(match["verb"].upper().split())
    shown = "a table of Keytide" if table is None else f"table {table}"
    found = UnsupportedError(
        f"view {view} shows {shown}, and Spark cannot run {verb} on a view. Run the statement with "
        f"lake.sql, where lake = keytide.connect(warehouse, spark=spark), and the name "
        f"{table or 'of the table'} instead of {view}"
    )
    return both_errors(found, error, str(error))


_VIEWS: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()


# -- lateral column aliases ------------------------------------------------------------------------


_SETTING = "spark.sql.lateralColumnAlias.enableImplicitResolution"


def knows_aliases(spark: SparkSession) -> bool:
    """Whether a column of a SELECT can refer to columns before it."""
    return is_apache_spark(spark) and spark.conf.get(_SETTING, "true") == "true"


# -- the Python of tasks ---------------------------------------------------------------------------


_WAY_OUT = (
    "create the session with kt.spark.session(), or set PYSPARK_PYTHON to a Python of the same "
    "version with keytide installed before you create the session. On a cluster, install keytide "
    "on every host, or send an environment with spark-submit --archives, and name its Python in "
    "spark.pyspark.python"
)


_NEEDED = ("keytide", "polars", "pyarrow")


_QUESTION = f"""
import importlib.util, sys
lacking = [name for name in {_NEEDED} if importlib.util.find_spec(name) is None]
print("%d.%d" % sys.version_info[:2], *lacking)
"""


_ANSWER_SECONDS_MAX = 60


def check_python(spark: Any) -> None:
    """Raise `SetupError` if tasks would fail in the Python that the session starts for them.

    Checks local sessions only, and each one once. For a cluster, errors of its workers are
    explained when they occur.
    """
    if is_connect(spark) or not spark.sparkContext.master.startswith("local"):
        return
    context = spark.sparkContext
    own_path = spark.conf.get("spark.executorEnv.PYTHONPATH", "")
    _check(context.pythonExec, own_path)


@cache
def _check(executable: str, path: str) -> None:
    paths = [path, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        done = subprocess.run(
            [executable, "-c", _QUESTION],
            capture_output=True,
            text=True,
            check=True,
            timeout=_ANSWER_SECONDS_MAX,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(
            f"Spark runs tasks with {executable!r}, which cannot be run ({error}): {_WAY_OUT}"
        ) from error
    version, *lacking = done.stdout.split()
    this = "{}.{}".format(*sys.version_info[:2])
    if version != this:
        raise SetupError(
            f"Spark runs tasks with {executable!r}, which is Python {version}, but this is "
            f"Python {this}: {_WAY_OUT}"
        )
    if lacking:
        raise SetupError(
            f"Spark runs tasks with {executable!r}, which cannot import {', '.join(lacking)}: "
            f"{_WAY_OUT}"
        )
