"""Errors of Keytide that come back through Spark, in their own words.

What a task or the data source raises is in Spark's report of it the last line of a traceback of
thousands of characters. Here it is an error of Keytide's class and of Spark's at once, which says
that line; the report is kept.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from keytide import errors
from keytide.errors import KeytideError
from keytide.spark.errors import keytide_error
from keytide.spark.internals import convert_errors
from keytide.spark.pinned import missing_file_error

__all__ = ["speak_plainly"]


def speak_plainly() -> None:
    """From now on Spark's errors in this process say what Keytide said, where it did.

    They are caught as errors of either class. Their attribute `report` has all that Spark says.
    """
    convert_errors(_in_own_words)


def _in_own_words(error: Exception) -> Exception:
    """The error to raise in the place of one of Spark's."""
    if isinstance(error, KeytideError) or not isinstance(error, PySparkException | Py4JError):
        return error
    report = str(error)
    found = keytide_error(report) or missing_file_error(report)
    return error if found is None else _both(found, error, report)


def _both(found: KeytideError, error: Exception, report: str) -> Exception:
    name, known = type(found).__name__, type(error)
    # An unknown exception of the JVM is raised by Spark in another form.
    both = _class_of_both(name, PySparkException if _is_unknown(known) else known)
    made: Any = both.__new__(both, str(found))
    made.__dict__.update(error.__dict__)
    made.args, made.report = (str(found),), report
    in_words: Exception = made
    return in_words


def _is_unknown(sparks: type[Exception]) -> bool:
    return sparks.__name__ == "UnknownException"


class _Said:
    """What an error says is what Keytide said."""

    report: str
    """All that Spark says of it."""
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return str(self.args[0])


def _class_of_both(name: str, sparks: type[Exception]) -> type[Exception]:
    ours: type[KeytideError] = getattr(errors, name)
    members = {"__module__": ours.__module__, "__doc__": ours.__doc__}
    return _CLASSES.setdefault((name, sparks), type(name, (_Said, ours, sparks), members))


_CLASSES: dict[tuple[str, type[Exception]], type[Exception]] = {}
