"""Writes of DataFrames to a data source in classic sessions, in every thread and until Ctrl-C.

Spark looks for Python data sources only in the session that is active in the thread. After Ctrl-C,
Spark leaves a running write alone, which commits later.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from pyspark.sql import DataFrameWriter

from keytide.spark.internals import session_of
from keytide.spark.jobs import ended_after_errors

__all__ = ["steady_writers"]

_NAME = "_keytide_source"


def steady_writers(source: str) -> None:
    """Make writes to a source work in every thread, and end at an interrupt, from now on."""
    writer: Any = DataFrameWriter
    if not hasattr(writer.format, "__wrapped__"):
        writer.format = _activating(writer.format, source)
        writer.save = _ending(writer.save)


def _activating(original: Any, source: str) -> Any:
    @wraps(original)
    def activated(self: Any, given: str) -> Any:
        setattr(self, _NAME, str(given).lower() == source)
        if getattr(self, _NAME):
            session_of(self).createDataFrame([], "nothing int")  # makes the session active
        return original(self, given)

    return activated


def _ending(original: Any) -> Any:
    @wraps(original)
    def ended(self: Any, *arguments: Any, **named: Any) -> Any:
        if not getattr(self, _NAME, False):
            return original(self, *arguments, **named)
        with ended_after_errors(session_of(self)):
            return original(self, *arguments, **named)

    return ended
