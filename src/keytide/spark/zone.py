"""The time zone of SQL statements on Spark: UTC, whatever the session's time zone is.

Spark binds the time zone to casts, literals and functions of times when it analyzes a query: a
classic session immediately, and Spark Connect only when the query runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from keytide.spark.connect import is_connect

__all__ = ["analyzed_in_utc", "run_in_utc"]

_SETTING, _UTC = "spark.sql.session.timeZone", "UTC"


@contextmanager
def analyzed_in_utc(spark: SparkSession) -> Iterator[None]:
    """A context in which a session analyzes queries in UTC. Threads can be in it at once."""
    with _LOCK:
        uses = _USES.setdefault(spark, _Uses())
        if not uses.count:
            uses.before = str(spark.conf.get(_SETTING))
            _change(spark, uses.before, _UTC)
        uses.count += 1
    try:
        yield
    finally:
        with _LOCK:
            uses.count -= 1
            if not uses.count:
                _change(spark, _UTC, uses.before)


def run_in_utc(spark: SparkSession) -> AbstractContextManager[None]:
    """A context in which a query runs in UTC that was analyzed in UTC, if it was already."""
    return analyzed_in_utc(spark) if is_connect(spark) else nullcontext()


@dataclass
class _Uses:
    """How many threads use a session in UTC, and its time zone before the first one."""

    count: int = field(default=0)
    before: str = field(default=_UTC)


_LOCK = Lock()
_USES: WeakKeyDictionary[Any, _Uses] = WeakKeyDictionary()


def _change(spark: SparkSession, now: str, then: str) -> None:
    if now != then:
        spark.conf.set(_SETTING, then)
