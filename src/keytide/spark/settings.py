"""Settings of a session that apply for a while. Threads that use the session share them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

__all__ = ["held_setting"]


@contextmanager
def held_setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A context in which a setting of a session has a value.

    Threads can be in it at once, with the same value. The last one restores what the first found.
    """
    with _LOCK:
        held = _HELD.setdefault(spark, {}).setdefault(name, _Held())
        if not held.count:
            held.before = spark.conf.get(name, None)
            _change(spark, name, held.before, value)
        held.count += 1
    try:
        yield
    finally:
        with _LOCK:
            held.count -= 1
            if not held.count:
                _change(spark, name, value, held.before)


@dataclass
class _Held:
    """How many threads hold a setting, and its value before the first one, None if it had none."""

    count: int = 0
    before: str | None = None


_LOCK = Lock()
_HELD: WeakKeyDictionary[Any, dict[str, _Held]] = WeakKeyDictionary()


def _change(spark: SparkSession, name: str, now: str | None, then: str | None) -> None:
    if now == then:
        return
    if then is None:
        spark.conf.unset(name)
    else:
        spark.conf.set(name, then)
