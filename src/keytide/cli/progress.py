"""What standard error shows while long work runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock, Thread
from typing import Protocol, TypeVar

import pyarrow as pa
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from keytide.cli.output import note
from keytide.external.scan import ExternalScan
from keytide.table.read.scan import Scan
from keytide.table.runner import Threads
from keytide.table.strides import listening

__all__ = [
    "SECONDS_BETWEEN_LINES",
    "TrackedThreads",
    "heartbeat",
    "progress_bar",
    "tracked_batches",
]

T = TypeVar("T")

SECONDS_BETWEEN_LINES = 15.0
"""Between lines of progress: logs stay short, and nobody takes the work for dead."""

_LONG_ROWS = 1_000_000
# Rows become several times as large when they are spelled out; a shell needs no larger batches.
_MEMORY_BYTES_MAX = 128 << 20


def tracked_batches(scan: Scan | ExternalScan) -> Iterator[pa.RecordBatch]:
    """The scan's batches, with a progress bar over its rows if it will take a while.

    Of a bucket nobody knows beforehand how many of its stored rows are left: the bar moves with
    those that come, and makes up for the others where the bucket ends.

    The bar is for people who watch: it needs a terminal that the rows do not go to themselves.
    Rows that others keep lie in no buckets, and come without one.
    """
    if isinstance(scan, ExternalScan):
        yield from scan.to_batches()
        return
    memory = min(scan.view.options.read_memory_bytes, _MEMORY_BYTES_MAX)
    tasks, rows, done = scan.tasks(), 0, 0
    with _bar(scan) as progress:
        bar = progress.add_task("", total=sum(task.stored_rows for task in tasks), rows="0")
        for task in tasks:
            end = done + task.stored_rows
            for table in task.tables(memory):
                rows += table.num_rows
                done = min(done + table.num_rows, end)
                progress.update(bar, completed=done, rows=f"{rows:,}")
                yield from table.to_batches()
            done = end
            progress.update(bar, completed=done)


def _bar(scan: Scan) -> Progress:
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    is_long = scan.plan.funnel.stages[-1].rows >= _LONG_ROWS
    return Progress(
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]} rows"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not (watched and is_long),
    )


class Show(Protocol):
    """Shows how far some work is."""

    def __call__(self, done: int, total: int, rows: int = 0) -> None:
        """So many things are done of all, and so many rows are written."""
        ...


@contextmanager
def progress_bar(what: str) -> Iterator[Show]:
    """A bar over things done of so many; where no terminal shows it, a line from time to time."""
    if not sys.stderr.isatty():
        yield _Lines(what).show
        return
    with Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{what}{{task.fields[rows]}}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        bar = progress.add_task("", total=None, rows="")

        def show(done: int, total: int, rows: int = 0) -> None:
            progress.update(bar, completed=done, total=total, rows=_of_rows(rows))

        yield show


def _of_rows(count: int) -> str:
    return f", {count:,} rows written" if count else ""


@contextmanager
def heartbeat(tell: Callable[[], str]) -> Iterator[None]:
    """A line from time to time while a block runs that may say nothing for long.

    On a terminal too: what runs there has no bar.
    """
    is_over = Event()

    def beat() -> None:
        while not is_over.wait(SECONDS_BETWEEN_LINES):
            note(tell())

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class _Lines:
    """Tells things done of so many, in a line from time to time."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told_at = time.monotonic()

    def show(self, done: int, total: int, rows: int = 0) -> None:
        """Tell it, if it is time to."""
        if time.monotonic() - self._told_at >= SECONDS_BETWEEN_LINES:
            self._told_at = time.monotonic()
            note(f"{done:,} of {total:,} {self._what}{_of_rows(rows)}")


@dataclass(frozen=True)
class TrackedThreads:
    """Runs tasks in this process, each of them a step of a bar; see `TaskRunner`.

    A task that takes long is seen to go on by the rows that it has written.
    """

    threads: Threads
    what: str

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """Run tasks and hand on what they made, in their order."""
        with progress_bar(self.what) as show:
            way = _Way(show, len(tasks))
            self.threads.each([partial(way.tracked, task) for task in tasks], take)


class _Way:
    """How far some tasks are; for many threads."""

    def __init__(self, show: Show, total: int) -> None:
        self._show, self._total = show, total
        self._done = self._rows = 0
        self._lock = Lock()
        show(0, total)

    def tracked(self, task: Callable[[], T]) -> T:
        """Run a task, and tell what it does."""
        with listening(lambda rows: self._add(0, rows)):
            made = task()
        self._add(1, 0)
        return made

    def _add(self, done: int, rows: int) -> None:
        with self._lock:
            self._done += done
            self._rows += rows
            self._show(self._done, self._total, self._rows)
