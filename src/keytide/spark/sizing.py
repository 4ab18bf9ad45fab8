"""How many tasks an amount of work is divided into.

A task handles at most about 128 MB. Less work is divided further, so that each core gets several
tasks, but not so far that tasks cost more than they do. If nothing says how many cores there are,
the amount alone decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heapreplace
from itertools import chain
from math import ceil
from typing import Any, TypeVar

from keytide.errors import InvalidError
from keytide.options import parse_memory_size
from keytide.read.key_ranges import TASK_BYTES
from keytide.spark.capacity import Capacity, capacity_of

__all__ = ["TASKS_PER_SLOT", "TASK_SIZE", "pack", "task_count", "tasks_anywhere", "tasks_for"]

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
    return task_count(capacity_of(spark), stored_bytes, rows, _task_bytes(spark))


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


def _task_bytes(spark: Any) -> int:
    given = spark.conf.get(TASK_SIZE, "")
    if not given:
        return TASK_BYTES
    try:
        size = parse_memory_size(given)
    except ValueError:
        size = 0
    if size > 0:
        return size
    raise InvalidError(
        f"the session setting {TASK_SIZE} is {given!r}; expected a size such as '128 mb'"
    )
