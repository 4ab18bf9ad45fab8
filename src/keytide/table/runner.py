"""Carrying tasks out: the work of a table as picklable values, done by threads or by a cluster.

A *task* does its work when it is called. A *feed task* does it on rows that it is handed piece by
piece, one task for each part of them, numbered in the order of the rows. Whoever runs tasks knows
nothing of what they do, and they know nothing of where they run.

A task that fails leaves nothing behind: it deletes what it wrote. A runner hands on what the
others made before it raises, so that whoever asked for the work can clean up after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from keytide.errors import (
    ConflictError,
    InvalidError,
    KeytideError,
    NotFoundError,
    UnsupportedError,
)

__all__ = [
    "FeedTask",
    "Outcome",
    "Runner",
    "TaskRunner",
    "Threads",
    "attempted",
    "settled",
    "tried",
    "unawaited_threads",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Rows_contra = TypeVar("Rows_contra", contravariant=True)


class FeedTask(Protocol[T_co]):
    """Work on rows. Pickles."""

    def feed(self, rows: Iterable[pa.Table], number: int) -> T_co | None:
        """Do the work on part `number` of the rows, which comes piece by piece.

        None where there was nothing to do.
        """
        ...


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What one feed task made, or the error that trying again would not mend.

    Errors travel as values, so that a cluster does not try again what cannot succeed, and so that
    what other tasks made arrives nevertheless.
    """

    number: int
    made: T | None = None
    error: KeytideError | None = None


def attempted(task: FeedTask[T], rows: Iterable[pa.Table], number: int) -> Outcome[T]:
    """Run a feed task. Raises only what trying again may mend, such as `DataError`."""
    return tried(partial(task.feed, rows, number), number)


def tried(task: Callable[[], T | None], number: int) -> Outcome[T]:
    """Run a task. Raises as `attempted`."""
    try:
        return Outcome(number, task())
    except (ConflictError, InvalidError, NotFoundError, UnsupportedError) as error:
        return Outcome(number, error=error)


def settled(outcomes: Iterable[Outcome[T]], take: Callable[[T], None]) -> None:
    """Hand on what tasks made, in the order of the rows, then raise the first error there is."""
    ordered = sorted(outcomes, key=lambda outcome: outcome.number)
    for outcome in ordered:
        if outcome.made is not None:
            take(outcome.made)
    error = next((outcome.error for outcome in ordered if outcome.error is not None), None)
    if error is not None:
        raise error


class Runner(Protocol[Rows_contra]):
    """Runs feed tasks over rows, which each runner takes in a form of its own."""

    def feed(self, task: FeedTask[T], rows: Rows_contra, take: Callable[[T], None]) -> None:
        """Run a task for each part of the rows and hand on what was made, in their order.

        Raises the first error of a task, after what the others made was handed on.
        """
        ...


class TaskRunner(Protocol):
    """Runs tasks that bring their own work."""

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """Run tasks, which pickle, and hand on what they made, in their order.

        Raises the first error of a task after what the others made was handed on; so does a stop,
        such as Ctrl-C, and tasks that have begun then are waited for.
        """
        ...


@dataclass(frozen=True)
class Threads:
    """Runs tasks in this process."""

    count: int

    def map(self, tasks: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Run tasks and give what they make, in their order, while the next ones run.

        After an error, or where the caller stops, tasks that have not begun are dropped.
        """
        threads = min(self.count, len(tasks))
        if threads <= 1:
            yield from (task() for task in tasks)
            return
        with unawaited_threads(threads) as pool:
            yield from pool.map(lambda task: task(), tasks)

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """Run tasks and hand on what they made, in their order; see `TaskRunner`."""
        futures: list[Future[T]] = []
        try:
            with ThreadPoolExecutor(max(1, min(self.count, len(tasks)))) as pool:
                futures += [pool.submit(task) for task in tasks]
                try:
                    wait(futures, return_when=FIRST_EXCEPTION)
                finally:
                    for future in futures:
                        future.cancel()  # those that have not begun
        finally:
            begun = [future for future in futures if not future.cancelled()]
            for future in begun:
                if future.exception() is None:
                    take(future.result())
        for future in begun:
            future.result()

    def feed(self, task: FeedTask[T], rows: pa.Table, take: Callable[[T], None]) -> None:
        """Run a task over all of the rows, which are one part. Raises what it raises."""
        made = task.feed([rows], 0)
        if made is not None:
            take(made)


@contextmanager
def unawaited_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for a generator; work begun is not waited for when the block is left.

    An abandoned generator may be closed by the garbage collector in the midst of anything, even
    of the start of a thread, and there a wait for threads never ends.
    """
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
