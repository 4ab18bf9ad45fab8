"""Conversion of Spark's errors back to the Keytide errors that caused them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, UnsupportedOperationException

import keytide.errors
from keytide.errors import DataError, KeytideError, NotFoundError, SetupError, UnsupportedError
from keytide.spark.python import WAY_OUT

__all__ = ["keytide_error", "keytide_error_of", "offered", "on_driver", "over_files", "reason_of"]

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
        found = keytide_error_of(error) or _of_a_file(str(error))
        if found is not None:
            raise found from error
        if isinstance(error, PySparkException):
            raise
        raise PySparkException(_last_reason(str(error))) from error


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
            SetupError(f"Spark runs tasks with another Python ({unfit[0]}): {WAY_OUT}")
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
def over_files(source: str, table: str) -> Iterator[None]:
    """Raise Spark's errors from reading files for a table as Keytide errors.

    Raises `NotFoundError` if there are no files, the Keytide error of a task if there was one, and
    otherwise `DataError`, which names the file if a file caused the error.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise keytide_error_of(error) or _of_files(str(error), source, table) from error


@contextmanager
def offered() -> Iterator[None]:
    """Raise what a Spark Connect server does not offer as an `UnsupportedError`."""
    try:
        yield
    except UnsupportedOperationException as error:
        raise UnsupportedError(
            f"the Spark Connect server does not offer a step of this ({reason_of(error)}). Open "
            "the lake without this session: keytide.connect(warehouse), or use Apache Spark"
        ) from error


def _of_a_file(text: str) -> DataError | None:
    unreadable = _UNREADABLE.search(text)
    if unreadable is None:
        return None
    return DataError(
        f"{unreadable[1]} cannot be read; restore it, or read an older snapshot "
        f"({_last_reason(text)})"
    )


def _of_files(text: str, source: str, table: str) -> KeytideError:
    if "[PATH_NOT_FOUND]" in text:
        return NotFoundError(
            f"there is no file or folder {source}; give a folder, a file or a glob of files"
        )
    reason = _last_reason(text)
    unreadable = _UNREADABLE.search(text)
    if unreadable is not None:
        return DataError(
            f"table {table}: {unreadable[1]} cannot be read ({reason}); no message of its batch "
            "was applied. Replace the file and run again"
        )
    return DataError(
        f"table {table}: Spark failed while it read {source}; correct the cause and run again: "
        f"{reason}"
    )


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
