"""Compaction on request, and what follows it.

A compaction of a write-only table also does the maintenance that its writers leave to others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from keytide.commit.change import Conflict, made_files
from keytide.commit.publish import Committed
from keytide.commit.transaction import Transaction
from keytide.compaction.append_tables import (
    Clustering,
    ClusterTask,
    PackTask,
    cluster_tasks,
    pack_tasks,
)
from keytide.compaction.compact import (
    FULL_COMPACTION,
    CompactionResult,
    begin_compaction,
    carried_out,
    local_runner,
    memory_of,
    planner_of,
    result_of,
    why_not_compacted,
)
from keytide.compaction.indexed import IndexedPackTask, indexed_tasks, picks_of
from keytide.compaction.postponed import place_postponed, postponed_files
from keytide.compaction.rewriting import Compacted
from keytide.errors import UnsupportedError
from keytide.format.data_file import local_wall_clock_ms
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.maintenance.upkeep.afterwards import Made, follow
from keytide.maintenance.upkeep.behind import BEHIND
from keytide.snapshot.live_files import BucketId, LiveFiles
from keytide.snapshot.pinned import StoredTable
from keytide.snapshot.state import TableView
from keytide.tasks.runner import TaskRunner
from keytide.write.partition_spec import Place, fitting
from keytide.write.refusals import writable_view

__all__ = ["compact"]


def compact(
    table: StoredTable, *, full: bool = False, order_by: Sequence[str] = (),
    order_strategy: str | None = None, partitions: Sequence[Place] = (), dry_run: bool = False,
    runner: TaskRunner | None = None,
) -> CompactionResult:  # fmt: skip
    """Compact a table, or some partitions of it, see `Table.compact`."""
    BEHIND.settle(table.uri)
    if order_by or order_strategy is not None:
        strategy = order_strategy or "order"
        return _cluster(table, strategy, order_by, partitions, dry_run=dry_run, runner=runner)
    view, runner = writable_view(table), runner or local_runner()
    fits = _fitting(view, partitions)
    if not view.kind.keeps_versions:
        return _packed(
            begin_compaction(table), table, fits, full=full, dry_run=dry_run, runner=runner
        )
    reason = why_not_compacted(view)
    if reason is not None:
        raise UnsupportedError(f"table {table.name}: this release cannot compact it: {reason}")
    placed = None
    if view.postpones_buckets and not dry_run:
        placed = place_postponed(table, view, runner)
    transaction = begin_compaction(table, FULL_COMPACTION if full and not partitions else "")
    planner, live = planner_of(transaction), transaction.state.live
    buckets = _buckets_in(live, fits) if partitions else None
    units = planner.whole(live, buckets) if full else planner.due(live, buckets, waits=False)
    if dry_run:
        return _dry([unit.files for unit in units], postponed_files(live))
    done = _and_placed(carried_out(transaction, units, runner), placed)
    _follow(table, transaction.view, done)
    return done


def _fitting(view: TableView, partitions: Sequence[Place]) -> Callable[[bytes], bool]:
    return fitting(partitions, view.schema, view.name, view.options.partition_default_name)


def _buckets_in(live: LiveFiles, fits: Callable[[bytes], bool]) -> set[BucketId]:
    partitions = {partition for partition, _ in live.buckets}
    wanted = set(filter(fits, partitions))
    return {bucket for bucket in live.buckets if bucket[0] in wanted}


def _and_placed(done: CompactionResult, placed: Committed | Conflict | None) -> CompactionResult:
    """The result, including the files whose rows were assigned to buckets before."""
    if not isinstance(placed, Committed):
        return done
    entries = placed.change.entries
    old = [entry.file for entry in entries if entry.kind is FileKind.DELETE]
    made = made_files(entries)
    return replace(
        done,
        snapshot_id=done.snapshot_id or placed.snapshot.id,
        files_before=done.files_before + len(old),
        bytes_before=done.bytes_before + sum(file.file_size for file in old),
        files_after=(done.files_after or 0) + len(made),
        files_written=(done.files_written or 0) + len(made),
        bytes_written=(done.bytes_written or 0) + sum(entry.file.file_size for entry in made),
    )


def _cluster(
    table: StoredTable, strategy: str, columns: Sequence[str], partitions: Sequence[Place], *,
    dry_run: bool, runner: TaskRunner | None,
) -> CompactionResult:  # fmt: skip
    """Sort the rows of an append table."""
    transaction = begin_compaction(table)
    view = transaction.view
    if view.kind.has_key:
        raise UnsupportedError(
            f"table {table.name}: order_by is only for tables without a primary key; this table "
            "is sorted by its key, or its rows must keep their order"
        )
    clustering = Clustering.parse(strategy, columns, view.schema, table.name)
    memory = memory_of(view, len(transaction.state.live.buckets))
    fits = _fitting(view, partitions)
    tasks = cluster_tasks(transaction.state, clustering, fits, memory_bytes=memory)
    return _rewritten(table, transaction, tasks, dry_run=dry_run, runner=runner)


def _packed(
    transaction: Transaction, table: StoredTable, fits: Callable[[bytes], bool], *, full: bool,
    dry_run: bool, runner: TaskRunner,
) -> CompactionResult:  # fmt: skip
    """Combine the small files of an append table."""
    memory = memory_of(transaction.view, len(transaction.state.live.buckets))
    state = transaction.state
    if transaction.view.kind.has_key_index:
        picks = picks_of(state, local_wall_clock_ms(), full=full)
        packs = pack_tasks(state, fits, full=full, memory_bytes=memory, picks=picks)
        indexed = indexed_tasks(state, packs)
        return _rewritten(table, transaction, indexed, dry_run=dry_run, runner=runner)
    tasks = pack_tasks(state, fits, full=full, memory_bytes=memory)
    return _rewritten(table, transaction, tasks, dry_run=dry_run, runner=runner)


def _rewritten(
    table: StoredTable, transaction: Transaction,
    tasks: Sequence[PackTask] | Sequence[ClusterTask] | Sequence[IndexedPackTask], *,
    dry_run: bool, runner: TaskRunner | None,
) -> CompactionResult:  # fmt: skip
    """Run tasks that each rewrite files of a bucket of an append table."""
    if dry_run:
        return _dry([task.files for task in tasks])

    def take(compacted: Compacted) -> None:
        assert compacted.written is not None, "nothing is merged, so no older files are needed"
        transaction.take(compacted.written)

    with transaction:
        if tasks:
            (runner or local_runner()).each(tasks, take)
        outcome = transaction.compact()
    done = result_of(outcome, [entry for made in transaction.taken for entry in made.entries])
    _follow(table, transaction.view, done)
    return done


def _dry(
    buckets: Sequence[Sequence[ManifestEntry]], postponed: Sequence[ManifestEntry] = ()
) -> CompactionResult:
    files = [entry.file for entries in (*buckets, postponed) for entry in entries]
    return CompactionResult(None, len(buckets), len(files), sum(file.file_size for file in files))


def _follow(table: StoredTable, view: TableView, done: CompactionResult) -> None:
    if done.snapshot_id is not None:
        follow(Made(table, view, done.snapshot_id, "the table is compacted"))
