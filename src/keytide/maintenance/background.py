"""Background compactions of a process, one at a time for each table, and what follows a change.

A write queues what it made due and returns. A thread compacts it while the next writes continue.
What is queued in the meantime waits for the thread and is compacted together. Small work is
postponed until there is more, or until no write of the table comes for a while. If a process dies,
it leaves what a killed compaction leaves: files that no snapshot references.

Code that has changed a table reports it here. Errors in what follows do not make the call fail:
they become warnings, and a later change tries again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from keytide.base.arguments import warn_caller
from keytide.base.dataclass import dataclass, replace
from keytide.compaction.compact import Planner, compact_due
from keytide.errors import KeytideError, NotFoundError
from keytide.format.paths import BRANCH_MARK
from keytide.maintenance.expiry import expire_due
from keytide.maintenance.partition_expiry import PartitionAge, expire_partitions
from keytide.maintenance.tags import create_automatic_tags, forget_over
from keytide.publish.publish import publish_after
from keytide.snapshot.lineage import CheckTimes
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.tasks import TaskRunner, Threads

# -- maintenance after a change --------------------------------------------------------------------


@dataclass(frozen=True)
class TableChange:
    """A committed change of a table.

    `newest_id` is its snapshot or a later one, and `description` says what was done.
    """

    table: StoredTable
    view: TableView
    newest_id: int
    description: str
    is_batch: bool = False
    """Whether it is a write of rows that do not belong to a stream."""
    leaves_upkeep: bool = False
    """Whether it leaves the maintenance of the table to others, as writers of write-only tables
    do.
    """
    compact_due: Callable[[], int] | None = None
    """Compacts what the change made due, and returns the latest snapshot. None: nothing is due."""


@dataclass(frozen=True)
class FollowUp:
    """Something that follows changes. `action` returns a newer snapshot if it created one."""

    name: str
    alternative: str
    """What the user can do if it failed, instead of waiting for a later write."""
    action: Callable[[TableChange], int | None]
    is_upkeep: bool = True
    """Whether it is maintenance, which a change may leave to others."""


def run_follow_ups(made: TableChange) -> None:
    """Run all followers, one after the other. Failures become warnings."""
    for follower in FOLLOW_UPS:
        if follower.is_upkeep and made.leaves_upkeep:
            continue
        with as_warning(made.table, made.description, follower.name, follower.alternative):
            made = replace(made, newest_id=follower.action(made) or made.newest_id)


def follow_up_newest(table: StoredTable, done: str, *, leaves_upkeep: bool = False) -> None:
    """The same for a change that led to the present latest snapshot, if there is one."""
    with as_warning(table, done, "the operations after it", "Table.compact"):
        newest_id = table.metadata.latest_snapshot_id()
        if newest_id is not None:
            view = table.view(table.schema)
            run_follow_ups(TableChange(table, view, newest_id, done, leaves_upkeep=leaves_upkeep))


def _expire_partitions(made: TableChange) -> int | None:
    seconds = made.view.options.partition_expiration_interval_ms / 1000
    if made.view.options.partition_lifetime_ms is None or not made.view.schema.partition_keys:
        return None
    if not _LOOKS.is_time(made.table.uri, seconds):
        return None
    return expire_partitions(made.table, PartitionAge()).snapshot_id


def _expire_tags(made: TableChange) -> None:
    # Tags have a retention time, which need not be exact to the second.
    if made.view.options.tag_time_expire_enabled and _TAG_LOOKS.is_time(made.table.uri, 60.0):
        forget_over(made.table.metadata)


_LOOKS, _TAG_LOOKS = CheckTimes(), CheckTimes()

FOLLOW_UPS = [
    FollowUp(
        "the compaction after it",
        "Table.compact",
        lambda made: None if made.compact_due is None else made.compact_due(),
    ),
    FollowUp(
        "creating automatic tags",
        "CALL sys.trigger_tag_automatic_creation",
        lambda made: (
            create_automatic_tags(made.table.metadata, made.view.options, is_batch=made.is_batch)
            if made.view.options.tag_automatic_creation != "none"
            else None
        ),
    ),
    FollowUp("deleting expired tags", "Table.expire_tags", _expire_tags),
    FollowUp("expiring partitions", "Table.expire_partitions", _expire_partitions),
    FollowUp(
        "publishing it",
        "Table.publish",
        lambda made: (
            publish_after(made.table, made.view, made.newest_id)
            if made.view.options.publish
            else None
        ),
        is_upkeep=False,
    ),
    FollowUp(
        "expiring snapshots",
        "Table.expire_snapshots",
        lambda made: expire_due(made.table, made.view, made.newest_id),
    ),
]
"""In order: expiry comes last, so that new snapshots are published before old ones expire."""


@contextmanager
def as_warning(table: StoredTable, done: str, what: str, instead: str) -> Iterator[None]:
    """A block after something is `done`. If `what` fails there, the warning suggests `instead`.

    The warning points at the line that called Keytide.
    """
    try:
        yield
    except Exception as error:
        warn_caller(
            f"table {table.name}: {done}, but {what} failed. A later write or {instead} will do "
            f"it: {error}"
        )


# -- background compactions ------------------------------------------------------------------------


# How often due work is searched again, in competition with other compactions. Each of these runs at
# most one compaction that does not know about the last writes.
_ROUNDS_MAX = 100
# Longer than the pause between the writes of a loop, and shorter than a reader would notice.
_REST_S = 0.2


@dataclass(frozen=True)
class CompactionRequest:
    """Buckets of a table that have enough runs to be checked, and what compacts them."""

    table: StoredTable
    planner: Planner
    buckets: frozenset[BucketId]
    runner: TaskRunner

    def compact(self) -> None:
        """Compact what is due in the buckets until none has too many runs."""
        runner = (
            Threads(max(1, self.runner.count // 2))
            if isinstance(self.runner, Threads)
            else self.runner
        )
        for _ in range(_ROUNDS_MAX):
            done, live = compact_due(self.table, self.buckets, runner)
            if done.snapshot_id is not None:
                self._follow(done.snapshot_id)
            is_idle = done.snapshot_id is None and not done.overtaken
            has_more = not is_idle and self.planner.are_too_many(live, self.buckets)
            if not has_more:
                break

    def _follow(self, snapshot_id: int) -> None:
        view, what = self.planner.view, "the table is compacted"
        run_follow_ups(TableChange(self.table, view, snapshot_id, what))


@dataclass
class _Table:
    """One table: its thread, what waits for it and from when on, and the warning to issue."""

    thread: threading.Thread | None = None
    request: CompactionRequest | None = None
    begin_at: float = 0
    is_under_way: bool = False
    """Whether a compaction is running."""
    compactions: int = 0
    """The number of compactions that have ended."""
    failure: str | None = None

    def take(self) -> CompactionRequest | None:
        """Remove and return what waits."""
        due, self.request, self.begin_at = self.request, None, 0
        return due


class BackgroundCompactions:
    """What is compacted, and what waits to be, by the address of the table.

    Safe to share between threads. A failure becomes a warning at the next call on the table.
    """

    _lock: threading.Condition
    _tables: dict[str, _Table]

    def __init__(self) -> None:
        self.forget()

    def compact(self, due: CompactionRequest, *, rests: bool = False) -> None:
        """Compact due work in the background, after the running compaction of the table has ended.

        If it `rests`, only once no write comes for a while, or when more of the table is compacted.
        """
        begin_at = time.monotonic() + _REST_S if rests else 0
        uri = due.table.uri
        self._issue_warning(uri)
        with self._lock:
            table = self._table(uri)
            # Together with the buckets that wait already, at the earlier of the two times.
            is_begun = table.request is not None and not table.begin_at
            if table.request is not None:
                due = replace(due, buckets=due.buckets | table.request.buckets)
            table.request, table.begin_at = due, 0 if is_begun else begin_at
            if table.thread is not None:
                self._lock.notify_all()
                return
            # A fast process stop does not wait for it.
            name = f"keytide-compaction-{due.table.name}"
            thread = threading.Thread(target=self._run, args=[table], name=name, daemon=True)
            thread.start()  # it waits for the lock; if it cannot start, nobody must wait for it
            table.thread = thread

    def wait(self, uri: str) -> None:
        """Wait until nothing of a table is left to compact in the background.

        Returns immediately in the thread that compacts it.
        """
        with self._lock:
            self._table(uri).begin_at = 0
            self._lock.notify_all()
        self._join(uri)

    def wait_for_one(self, uri: str) -> None:
        """Wait until a compaction of a table has ended, or none is left."""
        with self._lock:
            table = self._table(uri)
            seen, nobody = table.compactions, (None, threading.current_thread())
            self._lock.wait_for(lambda: table.thread in nobody or table.compactions > seen)
        self._issue_warning(uri)

    def cancel(self, uri: str) -> None:
        """Wait for the running compaction of a table, and discard what waits.

        For callers that create other files of the table anyway, or that leave the work to a later
        write.
        """
        with self._lock:
            self._table(uri).take()
            self._lock.notify_all()
        self._join(uri)

    def cancel_with_branches(self, uri: str) -> None:
        """The same for a table and its branches, which are in its folder."""
        for each in self._with_branches(uri):
            self.cancel(each)

    def wait_for_running(self, uri: str) -> None:
        """Wait only for the running compactions of a table and its branches.

        For callers that use the age of files: the files of later compactions are younger.
        """
        for each in self._with_branches(uri):
            with self._lock:
                table = self._table(each)
                seen, is_own = table.compactions, table.thread is threading.current_thread()
                while table.is_under_way and table.compactions <= seen and not is_own:
                    self._lock.wait()
            self._issue_warning(each)

    def _with_branches(self, uri: str) -> list[str]:
        branches = f"{uri.rstrip('/')}{BRANCH_MARK}"
        return [each for each in self._known() if each == uri or each.startswith(branches)]

    def wait_for_all(self) -> None:
        """Wait for all tables, one after the other."""
        for uri in self._known():
            self.wait(uri)

    def wait_below(self, folder: str) -> None:
        """Wait for all tables in a folder. An empty string means all tables of this process."""
        for uri in self._known():
            if not folder or uri.startswith(f"{folder.rstrip('/')}/"):
                self.wait(uri)

    def is_busy(self, uri: str) -> bool:
        """Whether something of a table is being compacted, or waits to be."""
        with self._lock:
            return uri in self._tables and self._tables[uri].thread is not None

    def forget(self) -> None:
        """Start again with an empty queue, because a fork does not copy threads."""
        self._lock = threading.Condition()
        self._tables = {}

    def _known(self) -> list[str]:
        with self._lock:
            return list(self._tables)

    def _table(self, uri: str) -> _Table:
        return self._tables.setdefault(uri, _Table())

    def _join(self, uri: str) -> None:
        with self._lock:
            thread = self._table(uri).thread
        if thread is threading.current_thread():
            return
        if thread is not None:
            thread.join()
        self._issue_warning(uri)

    def _run(self, table: _Table) -> None:
        while True:
            with self._lock:
                while table.request is not None and (left := table.begin_at - time.monotonic()) > 0:
                    self._lock.wait(left)
                due = table.take()
                table.is_under_way = due is not None
                if due is None:
                    table.thread = None
                    self._lock.notify_all()
                    return
            try:
                due.compact()
            except BaseException as error:  # a panic in a Rust library is not an Exception
                table.failure = _warning(due.table, error)
            with self._lock:
                table.is_under_way, table.compactions = False, table.compactions + 1
                self._lock.notify_all()

    def _issue_warning(self, uri: str) -> None:
        """Issue the warning of a failure, and forget a table for which nothing is left."""
        with self._lock:
            table = self._tables.get(uri)
            if table is None:
                return
            failure, table.failure = table.failure, None
            if table.thread is None:
                del self._tables[uri]
        if failure is not None:
            warn_caller(failure)


def _warning(table: StoredTable, error: BaseException) -> str | None:
    """The warning of a failure. None if somebody has deleted the table, so nothing can be done."""
    with suppress(KeytideError):
        try:
            table.metadata.newest_schema()
        except NotFoundError:
            return None
    return (
        f"table {table.name}: the rows are written, but the background compaction failed. A later "
        f"write or Table.compact will do it: {error}"
    )


BACKGROUND = BackgroundCompactions()
"""The queue of this process."""

os.register_at_fork(after_in_child=BACKGROUND.forget)


# Wait at the end of the interpreter, as long as threads can be started. `atexit` would be too late:
# by then, the interpreter has shut down all executors. The hook that executors use themselves runs
# before that, because the last registered function is called first.
if hasattr(threading, "_register_atexit"):
    threading._register_atexit(BACKGROUND.wait_for_all)
