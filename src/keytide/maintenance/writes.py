"""Writes, and the maintenance that a table needs after each of them.

At that point the write is committed, so errors do not make it fail: they become warnings, and a
later write tries again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from keytide.base.dataclass import dataclass
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction
from keytide.compaction.compact import (
    FULL_COMPACTION,
    Planner,
    compact_due,
    compact_in_full,
    local_runner,
    place_postponed,
    why_not_compacted,
)
from keytide.errors import NotFoundError, UnsupportedError
from keytide.format.manifest_entry import ManifestEntry
from keytide.format.snapshot import BATCH_COMMIT_IDENTIFIER, CommitKind, Snapshot
from keytide.maintenance.background import (
    BACKGROUND,
    CompactionRequest,
    TableChange,
    run_follow_ups,
)
from keytide.maintenance.expiry import prefetch_oldest
from keytide.options import keys
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import Statement, TableView
from keytide.snapshot.stored_table import PinnedTable, StoredTable
from keytide.tasks import TaskRunner
from keytide.write.refusals import writable_view

# -- writes and maintenance ------------------------------------------------------------------------


# How often a write tries to get below the stop trigger, or to make its rows visible, in competition
# with other compactions. Each of these runs at most one compaction that does not know about the
# write.
_ROUNDS_MAX = 100
_WRITTEN = "the rows are written"


@contextmanager
def writing(
    table: StoredTable, view: TableView, author: Author | None = None,
    runner: TaskRunner | None = None, statement: Statement | None = None,
) -> Iterator[Transaction]:  # fmt: skip
    """A transaction that writes, as in `Transaction.begin`. All code that writes rows uses one.

    After its commit, the touched buckets are compacted if they have enough runs, or if the rows
    would not be visible otherwise. The table is fully compacted if its options require it by now.
    Due tags are created, and due snapshots expire, unless the table is `write-only`. Longer work is
    compacted in the background, as the table's options say, see `BackgroundCompactions`. Tables
    without a primary key have no runs, and their reads do not slow down as quickly with the number
    of files, so their compaction is left to `Table.compact`.
    """
    if view.postpones_buckets:
        table.confirm()
        if place_postponed(table, view, runner or local_runner()):
            # Rows that others left without a bucket came before, so they are below.
            table = table.live
    begun = Transaction.begin(table, view, author, statement)
    with with_follow_ups(table, begun, runner) as transaction:
        prefetch_oldest(table.live, view, transaction.state.snapshot)
        yield transaction


@contextmanager
def with_follow_ups(
    table: StoredTable, transaction: Transaction, runner: TaskRunner | None = None,
    done: str = _WRITTEN,
) -> Iterator[Transaction]:  # fmt: skip
    """A transaction, and the work that it made due once it is committed.

    `done` says what it did.
    """
    with transaction:
        yield transaction
    live, view, committed = table.live, transaction.view, transaction.committed
    planner = Planner(view)
    if committed is not None and committed.is_new:
        change = committed.change
        came = (*change.entries, *change.restored.files)
        written = _CommittedWrite(committed.snapshot, came, committed.live)
    else:
        # What it has committed before may still be hidden.
        before = transaction.own_commit if committed is None else committed.snapshot
        if before is None or not planner.raises_new:
            return
        entries = live.metadata.entries(live.metadata.delta_manifests(before))
        written = _CommittedWrite(before, entries, live.newest_files())
    run_follow_ups(
        TableChange(
            live,
            view,
            written.snapshot.id,
            done,
            is_batch=transaction.author.identifier == BATCH_COMMIT_IDENTIFIER,
            leaves_upkeep=view.options.write_only,
            compact_due=partial(_compact_due, live, planner, written, runner or local_runner()),
        )
    )


def show_rows(table: PinnedTable, runner: TaskRunner | None = None) -> PinnedTable:
    """A table of which readers see all rows, for callers that derive new rows from them.

    Returns the table as it was read or, if something must be compacted first, as it is after that.
    Raises `UnsupportedError` if the table leaves compactions to others, and the errors of a
    compaction.
    """
    for _ in range(_ROUNDS_MAX):
        view = writable_view(table)
        if view.options.merges_on_read or not view.kind.keeps_versions:
            break
        live = table.newest_files()
        files = live.buckets.items()
        hidden = {bucket for bucket, state in files if bucket[1] >= 0 and state.level_files.get(0)}
        if not hidden:
            break
        table.confirm()
        if view.options.write_only:
            raise UnsupportedError(
                f"table {table.name} has rows that are not compacted and therefore not visible, "
                "and a change based on the visible rows could undo them. Compact the table "
                "first, with Table.compact or CALL sys.compact, or set "
                f"'{keys.DELETION_VECTORS_MERGE_ON_READ}' = 'true'"
            )
        due = Planner(view).may_be_due(live, hidden)
        done, _ = compact_due(table.live, due, runner or local_runner())
        if done.snapshot_id is not None:
            run_follow_ups(
                TableChange(table.live, view, done.snapshot_id, "the table is compacted")
            )
        table = table.live.pinned()
    return table


@dataclass(frozen=True)
class _CommittedWrite:
    """A commit: its snapshot, the files that it changed, and the files that were live then or
    later.
    """

    snapshot: Snapshot
    entries: Iterable[ManifestEntry]
    live: LiveFiles


def _compact_due(
    table: StoredTable, planner: Planner, write: _CommittedWrite, runner: TaskRunner
) -> int:
    """Compact what is due after a write. Returns the id of the latest known snapshot."""
    view = planner.view
    if not view.kind.keeps_versions or why_not_compacted(view) is not None:
        return write.snapshot.id
    if _is_full_compaction_due(table.metadata, view, write.snapshot):
        # Everything that was written, in competition with other compactions.
        for _ in range(_ROUNDS_MAX):
            result = compact_in_full(table, runner)
            live = table.newest_files()
            if not result.overtaken:
                break
    else:
        live = _compact_touched(table, planner, write, runner)
    return write.snapshot.id if live.snapshot is None else live.snapshot.id


def _compact_touched(
    table: StoredTable, planner: Planner, write: _CommittedWrite, runner: TaskRunner
) -> LiveFiles:
    """Compact the buckets that a write has touched, until none has too many runs.

    If another compaction comes first, the work is left to it, unless there are too many runs or
    rows of the write would stay hidden. Returns the latest known files.
    """
    touched = {(entry.partition, entry.bucket) for entry in write.entries}
    live = write.live
    for _ in range(_ROUNDS_MAX):
        crowded = planner.may_be_due(live, touched)
        bytes_due = planner.bytes_due(live, crowded)
        if bytes_due is None:
            break
        if _runs_in_background(table, planner, bytes_due):
            due = CompactionRequest(table, planner, frozenset(crowded), runner)
            if not planner.are_worth_a_beginning(live, crowded):
                BACKGROUND.compact(due, rests=True)
                break
            BACKGROUND.compact(due)
            if planner.are_too_many(live, crowded):
                BACKGROUND.wait_for_one(table.uri)
            break
        result, live = compact_due(table, crowded, runner)
        if result.overtaken:
            live = table.newest_files()
        is_idle = result.snapshot_id is None and not result.overtaken
        has_more = planner.are_too_many(live, touched) or planner.hides(live, write.entries)
        if is_idle or not has_more:
            break
    return live


def _runs_in_background(table: StoredTable, planner: Planner, bytes_due: int) -> bool:
    """Whether a write does not wait for compactions in buckets of this size."""
    options = planner.view.options
    if not options.background_compaction or planner.raises_new:
        return False
    return bytes_due >= options.background_compaction_bytes_min or BACKGROUND.is_busy(table.uri)


def _is_full_compaction_due(metadata: TableMetadata, view: TableView, newest: Snapshot) -> bool:
    """Whether the number of commits since the last full compaction has reached the table's
    limit.
    """
    commits = view.options.full_compaction_commits
    if commits is None:
        return False
    for snapshot_id in range(newest.id, 0, -1):
        try:
            snapshot = newest if snapshot_id == newest.id else metadata.cached_snapshot(snapshot_id)
        except NotFoundError:
            return True  # the number is unknown: too often is better than too rarely
        if snapshot.commit_user.startswith(FULL_COMPACTION):
            return False
        commits -= snapshot.commit_kind is not CommitKind.COMPACT
        if not commits:
            return True
    return False
