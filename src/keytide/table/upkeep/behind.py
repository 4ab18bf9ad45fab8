"""Compactions behind the writers of a process, one at a time for each table.

A write hands over what it made due and returns; a thread compacts that while the next writes go on.
What is handed over meanwhile waits for the thread and is compacted together, as does what is put
off until it is more or no write of the table comes for a while. A process that dies
leaves what a compaction that was killed leaves: files that no snapshot names.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, replace

from keytide.callers import warn_caller
from keytide.table.compaction.compact import CompactionResult, compact_due
from keytide.table.compaction.planning import Planner
from keytide.table.runner import TaskRunner, Threads
from keytide.table.state.live_files import BucketId, LiveFiles
from keytide.table.state.stored import StoredTable
from keytide.table.upkeep.afterwards import Made, follow

__all__ = ["BEHIND", "Behind", "Due"]

# How often what is due is looked for again, beside other compactions: each of them has one under
# way at most that does not know of what was written last.
_ROUNDS_MAX = 100
# Longer than between the writes of a loop, and shorter than anybody waits for to read.
_REST_S = 0.2


@dataclass(frozen=True)
class Due:
    """Buckets of a table that have runs enough to be looked at, and what compacts them."""

    table: StoredTable
    planner: Planner
    buckets: frozenset[BucketId]
    runner: TaskRunner

    def compact(self) -> None:
        """Compact what is due of the buckets until none has more runs than it may have."""
        runner = _beside_writers(self.runner)
        for _ in range(_ROUNDS_MAX):
            done, live = compact_due(self.table, self.buckets, runner)
            if done.snapshot_id is not None:
                self._follow(done)
            if not self._has_more(done, live):
                break

    def _has_more(self, done: CompactionResult, live: LiveFiles) -> bool:
        is_idle = done.snapshot_id is None and not done.overtaken
        return not is_idle and self.planner.are_too_many(live, self.buckets)

    def _follow(self, done: CompactionResult) -> None:
        assert done.snapshot_id is not None
        follow(Made(self.table, self.planner.view, done.snapshot_id, "the table is compacted"))

    def and_also(self, before: Due | None) -> Due:
        """The same with the buckets that waited before."""
        buckets = frozenset[BucketId]() if before is None else before.buckets
        return replace(self, buckets=self.buckets | buckets)


def _beside_writers(runner: TaskRunner) -> TaskRunner:
    """The same runner, which leaves half of this machine to the writers."""
    return Threads(max(1, runner.count // 2)) if isinstance(runner, Threads) else runner


class Behind:
    """What is compacted, and what waits to be, by the address of the table.

    Safe to share between threads. A failure is a warning at the next call about the table.
    """

    _lock: threading.Condition
    _waiting: dict[str, Due]
    _begin_at: dict[str, float]
    _threads: dict[str, threading.Thread]
    _failures: dict[str, str]

    def __init__(self) -> None:
        self.forget()

    def compact(self, due: Due) -> None:
        """Compact behind the caller what is due, once what is under way of the table has ended."""
        self._tell(due.table.uri)
        self._add(due, 0)

    def put_off(self, due: Due) -> None:
        """The same once no write comes for a while, or more of the table is compacted before."""
        self._tell(due.table.uri)
        self._add(due, _REST_S)

    def wait(self, uri: str) -> None:
        """Wait until nothing of a table is left to compact behind its writers.

        Returns at once in the thread that compacts it.
        """
        with self._lock:
            if uri in self._waiting:
                self._begin_at[uri] = 0
                self._lock.notify_all()
        self._join(uri)

    def settle(self, uri: str) -> None:
        """Wait for what is under way of a table, and forget what waits.

        It is for whoever makes other files of the table anyway, or leaves it to a later write.
        """
        with self._lock:
            self._waiting.pop(uri, None)
            self._lock.notify_all()
        self._join(uri)

    def wait_for_all(self) -> None:
        """Wait for all tables, one after the other."""
        for uri in self._known():
            self.wait(uri)

    def wait_below(self, folder: str) -> None:
        """Wait for all tables in a folder, likewise."""
        for uri in self._known():
            if uri.startswith(f"{folder.rstrip('/')}/"):
                self.wait(uri)

    def _known(self) -> list[str]:
        with self._lock:
            return [*self._threads, *self._failures]

    def is_busy(self, uri: str) -> bool:
        """Whether something of a table is compacted, or waits to be."""
        with self._lock:
            return uri in self._threads

    def forget(self) -> None:
        """Begin anew, as in a process to which a fork took no threads along."""
        self._lock = threading.Condition()
        self._waiting, self._begin_at, self._threads, self._failures = {}, {}, {}, {}

    def _add(self, due: Due, rest_s: float) -> None:
        """Have what is due compacted with what waits, in so many seconds if nothing more comes."""
        uri = due.table.uri
        with self._lock:
            self._waiting[uri] = due.and_also(self._waiting.get(uri))
            is_begun = self._begin_at.get(uri) == 0
            self._begin_at[uri] = 0 if is_begun or not rest_s else time.monotonic() + rest_s
            if uri in self._threads:
                self._lock.notify_all()
                return
            # A stop of the process that is in a hurry does not wait for it.
            name = f"keytide-compaction-{due.table.name}"
            thread = threading.Thread(target=self._run, args=[uri], name=name, daemon=True)
            thread.start()  # it waits for the lock; one that cannot start is none to wait for
            self._threads[uri] = thread

    def _join(self, uri: str) -> None:
        with self._lock:
            thread = self._threads.get(uri)
        if thread is threading.current_thread():
            return
        if thread is not None:
            thread.join()
        self._tell(uri)

    def _run(self, uri: str) -> None:
        while (due := self._next(uri)) is not None:
            self._carry_out(due)

    def _carry_out(self, due: Due) -> None:
        try:
            due.compact()
        except Exception as error:
            self._failures[due.table.uri] = (
                f"table {due.table.name}: the rows are written, and their compaction behind that "
                f"failed, which a later write or Table.compact makes up for: {error}"
            )

    def _next(self, uri: str) -> Due | None:
        """What is to be compacted of a table, once it is time; None ends its thread."""
        with self._lock:
            while uri in self._waiting and (left := self._begin_at[uri] - time.monotonic()) > 0:
                self._lock.wait(left)
            due = self._waiting.pop(uri, None)
            self._begin_at.pop(uri, None)
            if due is None:
                del self._threads[uri]
            return due

    def _tell(self, uri: str) -> None:
        failure = self._failures.pop(uri, None)
        if failure is not None:
            warn_caller(failure)


BEHIND = Behind()
"""That of this process."""

os.register_at_fork(after_in_child=BEHIND.forget)


def _wait_at_exit() -> None:
    """Wait at the end of the interpreter, as long as threads can be started.

    `atexit` would come too late: the interpreter has shut all executors down by then. The hook
    that executors use themselves comes before that, for what registered last is called first.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(BEHIND.wait_for_all)


_wait_at_exit()
