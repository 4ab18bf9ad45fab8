"""Tasks: the work of a table as picklable values, executed by threads or by a cluster.

A *task* does its work when it is called. A *feed task* processes rows that it receives piece by
piece: there is one task for each part of the rows, numbered in the order of the rows. Runners do
not know what tasks do, and tasks do not know where they run.

A task that fails leaves nothing behind: it deletes what it wrote. A runner passes on the results of
the other tasks before it raises the error, as far as it has them. A cluster can lose results, and
kill tasks that do not clean up. Their files are found by the name of the `Statement`.

For progress displays, tasks report how many rows they have processed, and do not know who listens.
If nobody does, it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.errors import (
    ConflictError,
    InvalidError,
    KeytideError,
    NotFoundError,
    SetupError,
    UnsupportedError,
)

# -- tasks and runners -----------------------------------------------------------------------------


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Rows_contra = TypeVar("Rows_contra", contravariant=True)


class FeedTask(Protocol[T_co]):
    """Work on rows. Picklable."""

    def feed(self, rows: Iterable[pa.Table], number: int) -> T_co | None:
        """Process part `number` of the rows, which arrives piece by piece.

        None if there was nothing to do.
        """
        ...


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The result of a feed task, or an error that a retry would not fix.

    Errors travel as values. So a cluster does not retry what cannot succeed, and the results of
    other tasks still arrive.
    """

    number: int
    result: T | None = None
    error: KeytideError | None = None


def run_feed_task(task: FeedTask[T], rows: Iterable[pa.Table], number: int) -> Outcome[T]:
    """Run a feed task. Raises only errors that a retry may fix, such as `DataError`."""
    return run_task(partial(task.feed, rows, number), number)


def run_task(task: Callable[[], T | None], number: int) -> Outcome[T]:
    """Run a task. Raises like `run_feed_task`."""
    try:
        return Outcome(number, task())
    except (ConflictError, InvalidError, NotFoundError, SetupError, UnsupportedError) as error:
        return Outcome(number, error=error)


def collect_results(outcomes: Iterable[Outcome[T]], take: Callable[[T], None]) -> None:
    """Pass on the results of tasks, in the order of the rows, then raise the first error, if
    any.
    """
    ordered = sorted(outcomes, key=lambda outcome: outcome.number)
    for outcome in ordered:
        if outcome.result is not None:
            take(outcome.result)
    error = next((outcome.error for outcome in ordered if outcome.error is not None), None)
    if error is not None:
        raise error


class Runner(Protocol[Rows_contra]):
    """Runs feed tasks over rows. Each runner accepts rows in its own form."""

    def feed(self, task: FeedTask[T], rows: Rows_contra, take: Callable[[T], None]) -> None:
        """Run a task for each part of the rows and pass on the results, in their order.

        Raises the first error of a task, after the known results of the others were passed on.
        """
        ...


class TaskRunner(Protocol):
    """Runs tasks that contain their own work."""

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """Run picklable tasks and pass on the results, in their order.

        Raises the first error of a task after the known results of the others were passed on. The
        same applies to an interrupt, such as Ctrl-C: running tasks are waited for.
        """
        ...


@dataclass(frozen=True)
class Threads:
    """Runs tasks in this process."""

    count: int

    def map(self, tasks: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Run tasks and return their results in order, while the next ones run.

        After an error, or if the caller stops, tasks that have not started are dropped.
        """
        threads = min(self.count, len(tasks))
        if threads <= 1:
            yield from (task() for task in tasks)
            return
        with unawaited_threads(threads) as pool:
            yield from pool.map(lambda task: task(), tasks)

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """Run tasks and pass on the results, in order. See `TaskRunner`."""
        futures: list[Future[T]] = []
        try:
            with ThreadPoolExecutor(max(1, min(self.count, len(tasks)))) as pool:
                futures += [pool.submit(task) for task in tasks]
                try:
                    wait(futures, return_when=FIRST_EXCEPTION)
                finally:
                    for future in futures:
                        future.cancel()  # those that have not started
        finally:
            begun = [future for future in futures if not future.cancelled()]
            for future in begun:
                if future.exception() is None:
                    take(future.result())
        for future in begun:
            future.result()

    def feed(self, task: FeedTask[T], rows: pa.Table, take: Callable[[T], None]) -> None:
        """Run a task over all of the rows, which are one part. Raises its errors."""
        made = task.feed([rows], 0)
        if made is not None:
            take(made)


@contextmanager
def unawaited_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for a generator. Running work is not waited for when the block ends.

    The garbage collector may close an abandoned generator at any point, even while a thread starts.
    Waiting for threads there would never end.
    """
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


# -- progress --------------------------------------------------------------------------------------


_LISTENER: ContextVar[Callable[[int], None] | None] = ContextVar("keytide-strides", default=None)


def rows_done(count: int) -> None:
    """Report that the task of this thread has written this many more rows."""
    if tell := _LISTENER.get():
        tell(count)


@contextmanager
def listening(tell: Callable[[int], None]) -> Iterator[None]:
    """Receive the number of rows that the work of a block writes, in this thread."""
    token = _LISTENER.set(tell)
    try:
        yield
    finally:
        _LISTENER.reset(token)
