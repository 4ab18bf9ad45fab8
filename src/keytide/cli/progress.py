"""Progress of long work, on standard error."""

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
from keytide.read.fallback import FallbackScan
from keytide.read.scan import Scan
from keytide.sources.scan import ExternalScan
from keytide.tasks.runner import Threads
from keytide.tasks.strides import listening

__all__ = [
    "SECONDS_BETWEEN_LINES",
    "TrackedThreads",
    "heartbeat",
    "progress_bar",
    "tracked_batches",
]

T = TypeVar("T")

SECONDS_BETWEEN_LINES = 15.0
"""The time between progress lines: logs stay short, and the work does not look stuck."""

_LONG_ROWS = 1_000_000
# Rows become several times as large as text, and a shell needs no larger batches.
_MEMORY_BYTES_MAX = 128 << 20


def tracked_batches(scan: Scan | FallbackScan | ExternalScan) -> Iterator[pa.RecordBatch]:
    """The scan's batches, with a progress bar over its rows if it will take a while.

    How many of a bucket's stored rows remain after merging is not known in advance. The bar moves
    with the merged rows, and skips the others at the end of the bucket.

    The bar needs a terminal to which the rows themselves are not written. External tables have no
    buckets and no bar.
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


def _bar(scan: Scan | FallbackScan) -> Progress:
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    is_long = sum(p.plan.funnel.stages[-1].rows for p in scan.parts) >= _LONG_ROWS
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
    """Shows the progress of some work."""

    def __call__(self, done: int, total: int, rows: int = 0) -> None:
        """Report the number of completed things, of all things, and of written rows."""
        ...


@contextmanager
def progress_bar(what: str) -> Iterator[Show]:
    """A progress bar. Without a terminal, a line from time to time."""
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
    """Write a line from time to time while a block runs that may report nothing for a long time.

    Also on a terminal, because such a block has no bar.
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
    """Writes the progress as a line from time to time."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told_at = time.monotonic()

    def show(self, done: int, total: int, rows: int = 0) -> None:
        """Write the line, if it is time."""
        if time.monotonic() - self._told_at >= SECONDS_BETWEEN_LINES:
            self._told_at = time.monotonic()
            note(f"{done:,} of {total:,} {self._what}{_of_rows(rows)}")


@dataclass(frozen=True)
class TrackedThreads:
    """Runs tasks in this process. Each task is a step of a progress bar. See `TaskRunner`.

    The number of written rows shows the progress within a long task.
    """

    threads: Threads
    what: str

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """Run tasks and yield their results in order."""
        with progress_bar(self.what) as show:
            way = _Way(show, len(tasks))
            self.threads.each([partial(way.tracked, task) for task in tasks], take)


class _Way:
    """The progress of some tasks. Thread-safe."""

    def __init__(self, show: Show, total: int) -> None:
        self._show, self._total = show, total
        self._done = self._rows = 0
        self._lock = Lock()
        show(0, total)

    def tracked(self, task: Callable[[], T]) -> T:
        """Run a task and report its progress."""
        with listening(lambda rows: self._add(0, rows)):
            made = task()
        self._add(1, 0)
        return made

    def _add(self, done: int, rows: int) -> None:
        with self._lock:
            self._done += done
            self._rows += rows
            self._show(self._done, self._total, self._rows)
