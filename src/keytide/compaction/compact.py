"""Compacts a table: fewer and larger files with the same rows.

A compaction is planned on the files of one snapshot, runs as one task for each bucket, and is
committed once for all of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from keytide.base.record import Record
from keytide.commit.author import Author
from keytide.commit.change import Conflict, made_files
from keytide.commit.publish import Committed
from keytide.commit.snapshot_files import wall_clock_ms
from keytide.commit.transaction import Transaction
from keytide.compaction.picking import Unit
from keytide.compaction.planning import Planner
from keytide.compaction.rewriting import Compacted, CompactTask
from keytide.compaction.thinning import ThinTask
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.merge.engines import compacts_by_lookup
from keytide.snapshot.dead_rows import vector_files_by_bucket
from keytide.snapshot.expected import as_expected
from keytide.snapshot.live_files import BucketId, LiveFiles
from keytide.snapshot.state import TableState
from keytide.snapshot.stored import StoredTable
from keytide.snapshot.view import TableView
from keytide.tasks.runner import TaskRunner, Threads
from keytide.telemetry import span
from keytide.write.writable import writable_view

__all__ = [
    "FULL_COMPACTION",
    "CompactionResult",
    "begin_compaction",
    "carried_out",
    "compact_due",
    "compact_in_full",
    "local_runner",
    "memory_of",
    "planner_of",
    "result_of",
]

_LOG = logging.getLogger("keytide.compaction")

FULL_COMPACTION = "full-compaction-"
"""The prefix of the commit users whose commits are full compactions of the whole table."""

# A window needs no more, and other buckets are compacted in parallel.
_MEMORY_BYTES_MAX = 256 << 20


@dataclass(frozen=True)
class CompactionResult(Record):
    """What a compaction did or, in a dry run, what it would compact.

    - `snapshot_id` is None when there was nothing to do, or when another compaction committed
      first. In the latter case `overtaken` is true.
    - `buckets` is the number of compacted buckets, with `files_before` files of `bytes_before`
      bytes.
    - `files_after` is the number of files after it. `files_written` of these are new, with
      `bytes_written` bytes. The others were moved to another level unchanged. In a dry run, these
      three are None.
    """

    snapshot_id: int | None
    buckets: int
    files_before: int
    bytes_before: int
    files_after: int | None = None
    files_written: int | None = None
    bytes_written: int | None = None
    overtaken: bool = False


def local_runner() -> Threads:
    """Threads of this process, one for each core."""
    return Threads(os.cpu_count() or 1)


def compact_due(
    table: StoredTable, buckets: Collection[BucketId], runner: TaskRunner
) -> tuple[CompactionResult, LiveFiles]:
    """Compact what is due in some buckets, like `compact`.

    Also returns the live files after it. If another compaction came first, these are the earlier
    ones.
    """

    def on(table: StoredTable) -> tuple[CompactionResult, LiveFiles]:
        transaction = begin_compaction(table)
        units = planner_of(transaction).due(transaction.state.live, buckets)
        result = carried_out(transaction, units, runner)
        seen = transaction.state if transaction.committed is None else transaction.committed
        return result, seen.live

    # Tasks on a Spark session are expensive, so none should be in vain.
    return as_expected(table, on) if isinstance(runner, Threads) else on(table)


def compact_in_full(table: StoredTable, runner: TaskRunner) -> CompactionResult:
    """Fully compact what was written since the last full compaction, like `compact`."""
    transaction = begin_compaction(table, FULL_COMPACTION)
    return carried_out(transaction, planner_of(transaction).in_full(transaction.state.live), runner)


def begin_compaction(table: StoredTable, user_prefix: str = "") -> Transaction:
    """A transaction on the present latest snapshot, for `carried_out`."""
    table = table.pinned()
    live, view = table.newest_files(), writable_view(table)
    return Transaction(table, table.state_on(live, view), Author.fresh(user_prefix), None)


def planner_of(transaction: Transaction) -> Planner:
    """Finds the units to compact in the files of a transaction."""
    marked = vector_files_by_bucket(transaction.state.vector_files)
    return Planner(transaction.view, marked)


def carried_out(
    transaction: Transaction, units: list[Unit], runner: TaskRunner
) -> CompactionResult:
    """Compact units and commit. Losing against another compaction is a result too."""
    with span("compaction", transaction.view.name) as step:
        result = _carried_out(transaction, units, runner)
        step.numbers(
            files_before=result.files_before or 0, files_after=result.files_after or 0,
            bytes=result.bytes_written or 0,
        )  # fmt: skip
    if result.snapshot_id is not None:
        _LOG.info(
            "table %s: snapshot %d: %d files of %d buckets became %d",
            transaction.view.name, result.snapshot_id, result.files_before, result.buckets,
            result.files_after,
        )  # fmt: skip
    elif result.overtaken:
        _LOG.info("table %s: another compaction came first", transaction.view.name)
    return result


def _carried_out(
    transaction: Transaction, units: list[Unit], runner: TaskRunner
) -> CompactionResult:
    with transaction:
        left = _run_tasks(transaction, units, runner)
        if left:
            again = planner_of(transaction).whole(transaction.state.live, left)
            _run_tasks(transaction, again, runner)
        outcome = transaction.compact()
    return result_of(outcome, [entry for made in transaction.taken for entry in made.entries])


def _run_tasks(transaction: Transaction, units: list[Unit], runner: TaskRunner) -> set[BucketId]:
    """Run a task for each unit. Returns the buckets that must be compacted as a whole instead."""
    left: set[BucketId] = set()

    def take(compacted: Compacted) -> None:
        if compacted.written is None:
            left.add(compacted.bucket)
        else:
            transaction.take(compacted.written)

    if units:
        runner.each(_tasks(transaction.state, units), take)
    return left


def _tasks(state: TableState, units: list[Unit]) -> Sequence[CompactTask] | Sequence[ThinTask]:
    view = state.view
    memory, now_ms = memory_of(view, len(units)), wall_clock_ms()
    if view.engine.why_kept_apart is not None:
        return [ThinTask(view, unit, now_ms, memory) for unit in units]
    if not compacts_by_lookup(view.options):
        return [CompactTask(view, unit, now_ms, memory) for unit in units]
    beside, vectors = _beside(state, units), vector_files_by_bucket(state.vector_files)
    return [
        CompactTask(view, unit, now_ms, memory, beside[unit.bucket], vectors.get(unit.bucket, ()))
        for unit in units
    ]


def _beside(state: TableState, units: list[Unit]) -> dict[BucketId, tuple[ManifestEntry, ...]]:
    """The files above level 0 that stay in place in the buckets to compact."""
    beside: dict[BucketId, list[ManifestEntry]] = {unit.bucket: [] for unit in units}
    compacted = {entry.identity for unit in units for entry in unit.files}
    for entry in state.live.files_in(beside):
        if entry.file.level > 0 and entry.identity not in compacted:
            beside[entry.partition, entry.bucket].append(entry)
    return {bucket: tuple(files) for bucket, files in beside.items()}


def memory_of(view: TableView, tasks: int) -> int:
    """The memory for each task, if as many run in parallel as there are cores."""
    at_once = max(1, min(os.cpu_count() or 1, tasks))
    return min(view.options.read_memory_bytes // at_once, _MEMORY_BYTES_MAX)


def result_of(
    outcome: Committed | Conflict | None, entries: list[ManifestEntry]
) -> CompactionResult:
    """The result of committing the entries of compactions. None: there was nothing to do."""
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
