"""Compaction: fewer and larger files with the same rows.

Planned on the files of one snapshot, carried out as one task for each bucket, committed once for
all of them.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, fields

import pyarrow as pa

from keytide import html
from keytide.errors import UnsupportedError
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.table.commit.author import Author
from keytide.table.commit.change import Conflict, made_files
from keytide.table.commit.publish import Committed
from keytide.table.commit.snapshot_files import wall_clock_ms
from keytide.table.commit.transaction import Transaction
from keytide.table.runner import TaskRunner, Threads
from keytide.table.state.live_files import BucketId
from keytide.table.state.state import TableState
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView
from keytide.table.upkeep.afterwards import as_warning
from keytide.table.upkeep.expiry import expire_due
from keytide.table.upkeep.picking import Unit
from keytide.table.upkeep.planning import Planner, why_not_compacted
from keytide.table.upkeep.rewriting import Compacted, CompactTask
from keytide.table.write.writable import writable_view

__all__ = ["COMPACTION_ROW", "CompactionResult", "compact", "compact_due", "local_runner"]

# A window needs no more, and other buckets are compacted at the same time.
_MEMORY_BYTES_MAX = 256 << 20
_COMPACTED = "the table is compacted"


@dataclass(frozen=True)
class CompactionResult:
    """What a compaction did, or, of a dry run, what it would take up.

    `snapshot_id` is None where there was nothing to do, or where another compaction came first,
    which `overtaken` tells. `buckets` were compacted; `files_before` of them became `files_after`,
    of which `files_written` are new, with `bytes_written`; the others moved to another level as
    they are. A dry run knows nothing of what comes out: there it is None.
    """

    snapshot_id: int | None
    buckets: int
    files_before: int
    bytes_before: int
    files_after: int | None = None
    files_written: int | None = None
    bytes_written: int | None = None
    overtaken: bool = False

    def _repr_html_(self) -> str:
        names = [member.name for member in fields(self)]
        return html.table(names, [[getattr(self, name) for name in names]])


COMPACTION_ROW = pa.schema(
    [
        pa.field(member.name, pa.bool_() if member.name == "overtaken" else pa.int64())
        for member in fields(CompactionResult)
    ]
)
"""The result as a row."""


def local_runner() -> Threads:
    """Threads of this process, as many as it has cores."""
    return Threads(os.cpu_count() or 1)


def compact(
    table: StoredTable, *, full: bool = False, dry_run: bool = False,
    runner: TaskRunner | None = None,
) -> CompactionResult:  # fmt: skip
    """Compact a table, as `Table.compact` says."""
    transaction = _begin(table)
    reason = why_not_compacted(transaction.view)
    if reason is not None:
        raise UnsupportedError(f"table {table.name}: this release cannot compact it: {reason}")
    planner, live = Planner(transaction.view), transaction.state.live
    units = planner.whole(live) if full else planner.due(live)
    if dry_run:
        return _dry(units)
    done = _carried_out(transaction, units, runner or local_runner())
    if done.snapshot_id is not None:
        # Whoever compacts a table that is write-only does what its writers leave to others.
        with as_warning(table, _COMPACTED, "the expiry of snapshots", "Table.expire_snapshots"):
            expire_due(table, transaction.view, done.snapshot_id)
    return done


def compact_due(
    table: StoredTable, buckets: Collection[BucketId], runner: TaskRunner
) -> CompactionResult:
    """Compact what is due of some buckets, as `compact` does."""
    transaction = _begin(table)
    units = Planner(transaction.view).due(transaction.state.live, buckets)
    return _carried_out(transaction, units, runner)


def _begin(table: StoredTable) -> Transaction:
    """A look at the table: its files first, so that none is newer than the definition."""
    live = table.newest_files()
    return Transaction(table, TableState(writable_view(table), live), Author.fresh(), None)


def _carried_out(
    transaction: Transaction, units: list[Unit], runner: TaskRunner
) -> CompactionResult:
    with transaction:
        left = _run_tasks(transaction, units, runner)
        if left:
            again = Planner(transaction.view).whole(transaction.state.live, left)
            _run_tasks(transaction, again, runner)
        outcome = transaction.compact()
    return _result(outcome, [entry for made in transaction.taken for entry in made.entries])


def _run_tasks(transaction: Transaction, units: list[Unit], runner: TaskRunner) -> set[BucketId]:
    """Run a task for each unit; the buckets that have to be compacted whole instead."""
    left: set[BucketId] = set()

    def take(compacted: Compacted) -> None:
        if compacted.written is None:
            left.add(compacted.bucket)
        else:
            transaction.take(compacted.written)

    if units:
        runner.each(_tasks(transaction.view, units), take)
    return left


def _tasks(view: TableView, units: list[Unit]) -> list[CompactTask]:
    at_once = min(os.cpu_count() or 1, len(units))
    memory = min(view.options.read_memory_bytes // at_once, _MEMORY_BYTES_MAX)
    now_ms = wall_clock_ms()
    return [CompactTask(view, unit, now_ms, memory) for unit in units]


def _dry(units: list[Unit]) -> CompactionResult:
    files = [entry.file for unit in units for entry in unit.files]
    return CompactionResult(None, len(units), len(files), sum(file.file_size for file in files))


def _result(outcome: Committed | Conflict | None, entries: list[ManifestEntry]) -> CompactionResult:
    """What became of the entries that compactions made."""
    old = [entry.file for entry in entries if entry.kind is FileKind.DELETE]
    made = made_files(entries)
    is_committed = isinstance(outcome, Committed)
    return CompactionResult(
        outcome.snapshot.id if isinstance(outcome, Committed) else None,
        len({(entry.partition, entry.bucket) for entry in entries}),
        len(old),
        sum(file.file_size for file in old),
        len(entries) - len(old) if is_committed else len(old),
        len(made) if is_committed else 0,
        sum(entry.file.file_size for entry in made) if is_committed else 0,
        overtaken=isinstance(outcome, Conflict),
    )
