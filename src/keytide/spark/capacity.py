"""The capacity of a session: task slots, the number of tasks of a work, and driver or executors.

- Executors come and go: before they have registered, and while dynamic allocation has released
  them, Spark itself reports two cores. So the settings that say how many executors there will be
  come first, and what runs at the moment is only a lower bound.
- A task handles at most about 128 MB. Less work is divided further, so that each core gets several
  tasks, but not so far that tasks cost more than they do. If nothing says how many cores there are,
  the amount alone decides.
- Whether work runs in threads of the driver or on executors is decided once per statement, from
  sizes that are known before anything is read: sizes of files, and Spark's size estimates of
  DataFrames. The tasks are the same in both places.
- Threads that use a session share its settings. SQL statements run in UTC, whatever the session's
  time zone is. Spark binds the time zone to casts, literals and functions of times when it analyzes
  a query: a classic session immediately, and Spark Connect only when the query runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from heapq import heapify, heapreplace
from itertools import chain
from math import ceil
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

from keytide.base.dataclass import dataclass
from keytide.errors import InvalidError
from keytide.options import parse_memory_size
from keytide.read.key_ranges import TASK_BYTES
from keytide.spark.internals import is_connect, known_bytes

# -- task slots of a session -----------------------------------------------------------------------


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
    - `slots_per_process` is the number of them that share a process, and so its cores.
    - `slices` is the number of parts into which Spark certainly cuts rows that the driver sends, if
      there are as many rows.
    """

    slots: int | None
    slots_per_process: int = 1
    slices: int = 1


def capacity_of(spark: Any) -> Capacity:
    """The capacity of a classic or Spark Connect session. Runs no job."""
    if spark not in _FIXED:
        found = {name: spark.conf.get(name, None) for name in _NAMES}
        _FIXED[spark] = {name: value for name, value in found.items() if value}
    slices = spark.conf.get(_SLICES, None)
    known = {**_FIXED[spark], _SLICES: slices} if slices else _FIXED[spark]
    running = None if is_connect(spark) else int(spark.sparkContext.defaultParallelism)
    return capacity_of_settings(known, running)


def capacity_of_settings(settings: Mapping[str, str], running: int | None = None) -> Capacity:
    """The capacity that settings describe.

    `running` is what Spark says of the moment, None if it does not say.
    """
    master = settings.get("spark.master", "")
    own = _number(settings, "spark.default.parallelism")
    seen = None if own is not None else running
    local = _LOCAL.fullmatch(master)
    if local:
        slots = beside = seen if local[1] == "*" else int(local[1] or 1)
    else:
        slots, beside = _slots_of_executors(settings, seen)
    slices = _number(settings, _SLICES) or own
    if slices is None:
        slices = (slots or 1) if local else 2 if "spark.master" in settings else 1
    return Capacity(own if slots is None else slots, beside or 1, max(1, slices))


def _slots_of_executors(
    settings: Mapping[str, str], seen: int | None
) -> tuple[int | None, int | None]:
    """The slots of executors in processes of their own, and those of one executor."""
    master = settings.get("spark.master", "")
    executors = _number(settings, "spark.executor.instances")
    cores = _number(settings, "spark.executor.cores")
    if master.startswith(("yarn", "k8s://")):
        executors, cores = executors or _EXECUTORS_DEFAULT, cores or 1
    # A standalone master gives an executor all cores that a worker has.
    if settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        executors = _number(settings, "spark.dynamicAllocation.maxExecutors")
    if in_test := _LOCAL_CLUSTER.fullmatch(master):
        executors, cores = int(in_test[1]), int(in_test[2])

    cpus = _number(settings, "spark.task.cpus") or 1
    beside = None if cores is None else max(1, cores // cpus)
    all_cores = _number(settings, "spark.cores.max")
    stated = None if all_cores is None else max(1, all_cores // cpus)
    if executors is not None and beside is not None:
        there = executors * beside
        stated = there if stated is None else min(there, stated)
    return None if stated is None else max(stated, seen or 1), beside


def _number(settings: Mapping[str, str], name: str) -> int | None:
    """A positive number, None for anything else, such as no limit."""
    value = settings.get(name, "")
    number = int(value) if value.isdecimal() else 0
    # Spark's own default for the highest number of executors is the largest integer.
    return number if 0 < number < _NO_LIMIT else None


_NO_LIMIT = (1 << 31) - 1


# -- the number of tasks ---------------------------------------------------------------------------


TASK_SIZE = "spark.keytide.task-size"
"""The session setting for the size of the work of a task."""

TASKS_PER_SLOT = 4
"""More tasks balance the work better, but each one costs something."""

_PIECES = 8
"""The smallest work for which another task pays off is this part of the largest.

Starting and ending a task takes as long as reading about half of it."""

_ROW_BYTES = 16
"""What a row counts at least, because files of few columns compress well."""

_COUNT_UNKNOWN = 32
"""Tasks for work of unknown size on a cluster of unknown size."""

T = TypeVar("T")


def tasks_for(spark: Any, stored_bytes: int | None, rows: int = 0) -> int:
    """The number of tasks for work of this size in a session. None: the size is unknown.

    Raises `InvalidError` if the session setting is not a size.
    """
    given, task_bytes = spark.conf.get(TASK_SIZE, ""), TASK_BYTES
    if given:
        try:
            task_bytes = parse_memory_size(given)
        except ValueError:
            task_bytes = 0
        if task_bytes <= 0:
            raise InvalidError(
                f"the session setting {TASK_SIZE} is {given!r}; expected a size such as '128 mb'"
            )
    return task_count(capacity_of(spark), stored_bytes, rows, task_bytes)


def tasks_anywhere(stored_bytes: int | None, rows: int = 0) -> int:
    """The same in processes that have no session, in which Spark plans data sources."""
    return task_count(Capacity(None), stored_bytes, rows)


def task_count(
    capacity: Capacity, stored_bytes: int | None, rows: int = 0, task_bytes: int = TASK_BYTES
) -> int:
    """The number of tasks for work of this size. None: the size is unknown."""
    most = None if capacity.slots is None else capacity.slots * TASKS_PER_SLOT
    if stored_bytes is None:
        return most or _COUNT_UNKNOWN
    work = max(stored_bytes, rows * _ROW_BYTES)
    needed = ceil(work / task_bytes)
    worthwhile = ceil(work * _PIECES / task_bytes)
    return max(1, needed, worthwhile if most is None else min(most, worthwhile))


def pack(tasks: Iterable[T], bins_max: int, bytes_of: Callable[[T], int]) -> list[tuple[T, ...]]:
    """Distribute tasks over at most `bins_max` bins of about equal size, largest tasks first.

    Pairs of neighbours are about equal, too, because one Spark task may run both: the largest bin
    comes first, then the smallest.
    """
    by_size = sorted(((bytes_of(task), task) for task in tasks), key=lambda pair: -pair[0])
    bins: list[list[T]] = [[] for _ in range(min(bins_max, len(by_size)))]
    filled = [(0, number) for number in range(len(bins))]
    heapify(filled)
    for size, task in by_size:
        held, number = filled[0]
        bins[number].append(task)
        heapreplace(filled, (held + size, number))
    largest_first = [number for _, number in sorted(filled, reverse=True)]
    pairs = zip(largest_first, reversed(largest_first), strict=True)
    in_pairs = [*chain.from_iterable(pairs)][: len(bins)]
    return [tuple(bins[number]) for number in in_pairs]


# -- the choice between driver and executors -------------------------------------------------------


SETTING = "spark.keytide.driver-work.max-size"
"""The session setting that overrides a table's 'spark.driver-work.max-size'."""

COPIES = 4
"""Factor for rows that pass through Spark: they are held as rows and as columns, uncompressed."""


@dataclass(frozen=True)
class WorkPlace:
    """The driver, for work up to its size limit, otherwise executors."""

    known_bytes: int | None
    """The size of the data that is read, None if it is unknown."""
    bytes_max: int

    @property
    def is_driver(self) -> bool:
        """Whether threads of the driver do the work."""
        return self.known_bytes is not None and self.known_bytes <= self.bytes_max

    def __str__(self) -> str:
        if self.known_bytes is None:
            return "on executors, because the size of the input is unknown"
        if self.bytes_max <= 0:
            return "on executors, because driver work is disabled"
        where, relation = (
            ("in the driver", "at most") if self.is_driver else ("on executors", "more than")
        )
        return f"{where}, because {self.known_bytes:,} bytes are {relation} {self.bytes_max:,}"


def work_place(spark: SparkSession, bytes_max: int, *sizes: int | None) -> WorkPlace:
    """The place for work on data of these sizes. `bytes_max` is the limit set by the table.

    Raises `InvalidError` for a session setting that is not a size.
    """
    known = None if None in sizes else sum(size or 0 for size in sizes)
    given = spark.conf.get(SETTING, "")
    if given:
        try:
            bytes_max = parse_memory_size(given)
        except ValueError as error:
            raise InvalidError(
                f"the session setting {SETTING} is {given!r}; expected a size such as '128 mb', or "
                "0 for executors only"
            ) from error
    return WorkPlace(known, bytes_max if bytes_max > 0 else -1)


def bytes_of_rows(rows: DataFrame) -> int | None:
    """The size to count for rows that pass through Spark, None if it is unknown."""
    size = None if is_connect(rows) else known_bytes(rows)
    return None if size is None else COPIES * size


# -- temporary settings of a session ---------------------------------------------------------------


@contextmanager
def temporary_setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A context in which a setting of a session has a value.

    Threads can be in it at once, with the same value. The last one restores what the first found.
    """
    with _LOCK:
        held = _SETTINGS.setdefault(spark, {}).setdefault(name, _TemporarySetting())
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
class _TemporarySetting:
    """How many threads hold a setting, and its value before the first one, None if it had none."""

    count: int = 0
    before: str | None = None


_LOCK = Lock()
_SETTINGS: WeakKeyDictionary[Any, dict[str, _TemporarySetting]] = WeakKeyDictionary()


def _change(spark: SparkSession, name: str, now: str | None, then: str | None) -> None:
    if now == then:
        return
    if then is None:
        spark.conf.unset(name)
    else:
        spark.conf.set(name, then)


# -- the time zone of statements -------------------------------------------------------------------


def analyzed_in_utc(spark: SparkSession) -> AbstractContextManager[None]:
    """A context in which a session analyzes queries in UTC. Threads can be in it at once."""
    return temporary_setting(spark, "spark.sql.session.timeZone", "UTC")


def run_in_utc(spark: SparkSession) -> AbstractContextManager[None]:
    """A context in which a query runs in UTC that was analyzed in UTC, if it was already."""
    return analyzed_in_utc(spark) if is_connect(spark) else nullcontext()
