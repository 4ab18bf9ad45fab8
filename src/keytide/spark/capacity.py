"""How many tasks of a session can run at the same time, from what the session says of its cluster.

Executors come and go: before they have registered, and while dynamic allocation has released them,
Spark itself reports two cores. So the settings that say how many executors there will be come
first, and what runs at the moment is only a lower bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from keytide.spark.connect import is_connect

__all__ = ["Capacity", "capacity_of", "described"]

_NAMES = (
    "spark.master",
    "spark.task.cpus",
    "spark.cores.max",
    "spark.executor.cores",
    "spark.executor.instances",
    "spark.dynamicAllocation.enabled",
    "spark.dynamicAllocation.maxExecutors",
    "spark.default.parallelism",
)
"""None of these changes within a session."""

_SLICES = "spark.sql.leafNodeDefaultParallelism"

_FIXED: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:, *\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[ *(\d+) *, *(\d+) *, *\d+ *\]")

_EXECUTORS_DEFAULT = 2
"""What YARN and Kubernetes start if nothing is set."""


@dataclass(frozen=True)
class Capacity:
    """What can run at the same time when all executors of a session are there.

    - `slots` is the number of tasks. None if nothing limits it, or nothing says.
    - `beside` is the number of them that share a process, and so its cores.
    - `slices` is the number of parts into which Spark certainly cuts rows that the driver sends, if
      there are as many rows.
    """

    slots: int | None
    beside: int = 1
    slices: int = 1


def capacity_of(spark: Any) -> Capacity:
    """The capacity of a classic or Spark Connect session. Runs no job."""
    if spark not in _FIXED:
        _FIXED[spark] = _settings(spark, _NAMES)
    known = {**_FIXED[spark], **_settings(spark, [_SLICES])}
    running = None if is_connect(spark) else int(spark.sparkContext.defaultParallelism)
    return described(known, running)


def _settings(spark: Any, names: Iterable[str]) -> dict[str, str]:
    found = {name: spark.conf.get(name, None) for name in names}
    return {name: value for name, value in found.items() if value}


def described(settings: Mapping[str, str], running: int | None = None) -> Capacity:
    """The capacity that settings describe.

    `running` is what Spark says of the moment, None if it does not say.
    """
    local = _LOCAL.fullmatch(settings.get("spark.master", ""))
    own = _number(settings, "spark.default.parallelism")
    seen = None if own is not None else running
    slots = _slots_here(local, seen) if local else _slots_there(settings, seen)
    slices = _number(settings, _SLICES) or own
    if slices is None:
        slices = (slots or 1) if local else 2 if "spark.master" in settings else 1
    beside = slots if local else _beside(settings)
    return Capacity(own if slots is None else slots, beside or 1, max(1, slices))


def _slots_here(local: re.Match[str], seen: int | None) -> int | None:
    return seen if local[1] == "*" else int(local[1] or 1)


def _slots_there(settings: Mapping[str, str], seen: int | None) -> int | None:
    """The slots of executors in processes of their own."""
    stated = _stated(settings)
    return None if stated is None else max(stated, seen or 1)


def _stated(settings: Mapping[str, str]) -> int | None:
    cpus = _number(settings, "spark.task.cpus") or 1
    all_cores = _number(settings, "spark.cores.max")
    in_all = None if all_cores is None else max(1, all_cores // cpus)
    executors, beside = _executors(settings), _beside(settings)
    if executors is None or beside is None:
        return in_all
    return executors * beside if in_all is None else min(executors * beside, in_all)


def _beside(settings: Mapping[str, str]) -> int | None:
    """The tasks that run at the same time in one executor."""
    cores = _cores(settings)
    return None if cores is None else max(1, cores // (_number(settings, "spark.task.cpus") or 1))


def _executors(settings: Mapping[str, str]) -> int | None:
    """The highest number of executors."""
    if in_test := _LOCAL_CLUSTER.fullmatch(settings.get("spark.master", "")):
        return int(in_test[1])
    if settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        return _number(settings, "spark.dynamicAllocation.maxExecutors")
    given = _number(settings, "spark.executor.instances")
    return given if given is not None or not _counts_executors(settings) else _EXECUTORS_DEFAULT


def _cores(settings: Mapping[str, str]) -> int | None:
    """The cores of an executor. A standalone master gives all that a worker has."""
    if in_test := _LOCAL_CLUSTER.fullmatch(settings.get("spark.master", "")):
        return int(in_test[2])
    given = _number(settings, "spark.executor.cores")
    return given if given is not None or not _counts_executors(settings) else 1


def _counts_executors(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.master", "").startswith(("yarn", "k8s://"))


def _number(settings: Mapping[str, str], name: str) -> int | None:
    """A positive number, None for anything else, such as no limit."""
    value = settings.get(name, "")
    number = int(value) if value.isdecimal() else 0
    # Spark's own default for the highest number of executors is the largest integer.
    return number if 0 < number < _NO_LIMIT else None


_NO_LIMIT = (1 << 31) - 1
