"""Writes, and what a table needs after each of them.

The write is made by then, so nothing that goes wrong here makes it fail: it is a warning, and a
later write tries again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from keytide.format.manifest import ManifestEntry
from keytide.format.snapshot import BATCH_COMMIT_IDENTIFIER, Snapshot
from keytide.table.commit.author import Author
from keytide.table.commit.transaction import Transaction
from keytide.table.runner import TaskRunner
from keytide.table.state.live_files import LiveFiles
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView
from keytide.table.upkeep.afterwards import MAKE_TAGS, as_warning
from keytide.table.upkeep.automatic_tags import tags_after_commit
from keytide.table.upkeep.compaction import compact_due, local_runner
from keytide.table.upkeep.expiry import expire_due
from keytide.table.upkeep.planning import Planner, why_not_compacted
from keytide.table.upkeep.postponed import place_postponed

__all__ = ["writing"]

# How often a write tries to get below the stop trigger, or to have its rows shown, beside other
# compactions: each of them has one under way at most that does not know of the write.
_ROUNDS_MAX = 100
_WRITTEN = "the rows are written"


@contextmanager
def writing(
    table: StoredTable, view: TableView, author: Author | None = None,
    runner: TaskRunner | None = None,
) -> Iterator[Transaction]:  # fmt: skip
    """A transaction that writes, as `Transaction.begin` gives it; whoever writes rows has one.

    After its commit the buckets that it touched are compacted where enough runs have come together,
    or where its rows would not be shown otherwise, tags are made and snapshots expire that are
    due, unless the table says `write-only`. Without a primary key there are no runs, and reads do
    not slow down with the number of files so soon: their compaction is left to `Table.compact`.
    """
    if view.postpones_buckets:
        # What others left to be placed came before, so it has to lie below.
        place_postponed(table, view, runner or local_runner())
    with Transaction.begin(table, view, author) as transaction:
        yield transaction
    written = None if view.options.write_only else _written(table, transaction)
    if written is None:
        return
    newest = written.snapshot.id
    with as_warning(table, _WRITTEN, "the compaction after that", "Table.compact"):
        if view.kind.has_key and why_not_compacted(view) is None:
            newest = _keep_up(table, Planner(view), written, runner or local_runner())
    is_batch = transaction.author.identifier == BATCH_COMMIT_IDENTIFIER
    with as_warning(table, _WRITTEN, "the making of tags", MAKE_TAGS):
        tags_after_commit(table.metadata, view.options, is_batch=is_batch)
    with as_warning(table, _WRITTEN, "the expiry of snapshots", "Table.expire_snapshots"):
        expire_due(table, view, newest)


@dataclass(frozen=True)
class _Write:
    """A commit: its snapshot, the files that it changed, and those that were live then or later."""

    snapshot: Snapshot
    entries: Iterable[ManifestEntry]
    live: LiveFiles


def _written(table: StoredTable, transaction: Transaction) -> _Write | None:
    """What a transaction has committed, now or, as far as that may still be hidden, before."""
    committed = transaction.committed
    if committed is not None and committed.is_new:
        return _Write(committed.snapshot, committed.change.entries, committed.live)
    before = transaction.done if committed is None else committed.snapshot
    if before is None or not transaction.view.options.deletion_vectors_enabled:
        return None
    entries = table.metadata.entries(table.metadata.delta_manifests(before))
    return _Write(before, entries, table.newest_files())


def _keep_up(table: StoredTable, planner: Planner, write: _Write, runner: TaskRunner) -> int:
    """Compact what a write has touched, until no bucket has more runs than it may have.

    Where another compaction comes first, it is left to do the work unless there are too many, or
    rows of the write would stay hidden. Gives the id of the newest snapshot that was seen.
    """
    touched = {(entry.partition, entry.bucket) for entry in write.entries}
    live = write.live
    for _ in range(_ROUNDS_MAX):
        crowded = planner.may_be_due(live, touched)
        if not crowded:
            break
        result = compact_due(table, crowded, runner)
        live = table.newest_files()
        is_idle = result.snapshot_id is None and not result.overtaken
        has_more = planner.are_too_many(live, touched) or planner.hides(live, write.entries)
        if is_idle or not has_more:
            break
    return write.snapshot.id if live.snapshot is None else live.snapshot.id
