"""Keytide errors that pass through Spark, with their own message.

Spark reports an error of a task or of the data source as the last line of a traceback of thousands
of characters. Here it becomes an error that is both of Keytide's class and of Spark's, and its
message is that last line. The full report is kept.
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

__all__ = ["both_errors", "speak_plainly"]


def speak_plainly() -> None:
    """Give Spark's errors in this process the message of the Keytide error that caused them.

    They can be caught as errors of both classes. Their attribute `report` has Spark's full text.
    """
    convert_errors(_in_own_words)


def _in_own_words(error: Exception) -> Exception:
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
    both = _class_of_both(name, PySparkException if _is_unknown(known) else known)
    made: Any = both.__new__(both, str(found))
    made.__dict__.update(error.__dict__)
    made.args, made.report = (str(found),), report
    in_words: Exception = made
    return in_words


def _is_unknown(sparks: type[Exception]) -> bool:
    return sparks.__name__ == "UnknownException"


class _Said:
    """An error whose message is the one of a Keytide error."""

    report: str
    """Spark's full text."""
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return str(self.args[0])


def _class_of_both(name: str, sparks: type[Exception]) -> type[Exception]:
    ours: type[KeytideError] = getattr(errors, name)
    members = {"__module__": ours.__module__, "__doc__": ours.__doc__}
    return _CLASSES.setdefault((name, sparks), type(name, (_Said, ours, sparks), members))


_CLASSES: dict[tuple[str, type[Exception]], type[Exception]] = {}
