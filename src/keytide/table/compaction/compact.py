"""Compaction: fewer and larger files with the same rows.

Planned on the files of one snapshot, carried out as one task for each bucket, committed once for
all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace

import pyarrow as pa

from keytide import html
from keytide.errors import UnsupportedError
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.merge.engines import compacts_by_lookup
from keytide.table.commit.author import Author
from keytide.table.commit.change import Conflict, made_files
from keytide.table.commit.publish import Committed
from keytide.table.commit.snapshot_files import wall_clock_ms
from keytide.table.commit.transaction import Transaction
from keytide.table.compaction.appends import ClusterTask, PackTask, cluster_tasks, pack_tasks
from keytide.table.compaction.clustering import Clustering
from keytide.table.compaction.picking import Unit
from keytide.table.compaction.planning import Planner, why_not_compacted
from keytide.table.compaction.postponed import place_postponed, postponed_files
from keytide.table.compaction.rewriting import Compacted, CompactTask
from keytide.table.compaction.thinning import ThinTask
from keytide.table.expiry.afterwards import look_after
from keytide.table.runner import TaskRunner, Threads
from keytide.table.state.dead_rows import vector_files_by_bucket
from keytide.table.state.live_files import BucketId, LiveFiles
from keytide.table.state.state import TableState
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView
from keytide.table.write.partition_spec import Place, fitting
from keytide.table.write.writable import writable_view

__all__ = [
    "COMPACTION_ROW",
    "FULL_COMPACTION",
    "CompactionResult",
    "cluster",
    "compact",
    "compact_due",
    "compact_in_full",
    "local_runner",
    "memory_of",
]

FULL_COMPACTION = "full-compaction-"
"""How the users begin whose commits are compactions of the whole table in full."""

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
    table: StoredTable, *, full: bool = False, partitions: Sequence[Place] = (),
    dry_run: bool = False, runner: TaskRunner | None = None,
) -> CompactionResult:  # fmt: skip
    """Compact a table, or some partitions of it, as `Table.compact` says."""
    view, runner = writable_view(table), runner or local_runner()
    fits = _fitting(view, partitions)
    if not view.kind.has_key:
        return _packed(_begin(table), table, fits, full=full, dry_run=dry_run, runner=runner)
    reason = why_not_compacted(view)
    if reason is not None:
        raise UnsupportedError(f"table {table.name}: this release cannot compact it: {reason}")
    placed = None
    if view.postpones_buckets and not dry_run:
        placed = place_postponed(table, view, runner)
    transaction = _begin(table, FULL_COMPACTION if full and not partitions else "")
    planner, live = _planner(transaction), transaction.state.live
    buckets = _buckets_in(live, fits) if partitions else None
    units = planner.whole(live, buckets) if full else planner.due(live, buckets, waits=False)
    if dry_run:
        return _dry([unit.files for unit in units], postponed_files(live))
    done = _and_placed(_carried_out(transaction, units, runner), placed)
    _look_after(table, transaction.view, done)
    return done


def _fitting(view: TableView, partitions: Sequence[Place]) -> Callable[[bytes], bool]:
    return fitting(partitions, view.schema, view.name, view.options.partition_default_name)


def _buckets_in(live: LiveFiles, fits: Callable[[bytes], bool]) -> set[BucketId]:
    partitions = {partition for partition, _ in live.buckets}
    wanted = set(filter(fits, partitions))
    return {bucket for bucket in live.buckets if bucket[0] in wanted}


def _and_placed(done: CompactionResult, placed: Committed | Conflict | None) -> CompactionResult:
    """The result with the files whose rows were put into buckets before."""
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


def _look_after(table: StoredTable, view: TableView, done: CompactionResult) -> None:
    """Whoever compacts a table that is write-only does what its writers leave to others."""
    if done.snapshot_id is not None:
        look_after(table, view, done.snapshot_id, _COMPACTED, is_batch=False)


def cluster(
    table: StoredTable, strategy: str, columns: Sequence[str], *,
    partitions: Sequence[Place] = (), dry_run: bool = False, runner: TaskRunner | None = None,
) -> CompactionResult:  # fmt: skip
    """Put the rows of an append table in order, as `Table.compact` says."""
    transaction = _begin(table)
    view = transaction.view
    if view.kind.has_key:
        raise UnsupportedError(
            f"table {table.name}: its rows lie in the order of the primary key, by which they are "
            f"merged; order_by is for tables without one"
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
    """What becomes of an append table whose small files are put together."""
    memory = memory_of(transaction.view, len(transaction.state.live.buckets))
    tasks = pack_tasks(transaction.state, fits, full=full, memory_bytes=memory)
    return _rewritten(table, transaction, tasks, dry_run=dry_run, runner=runner)


def _rewritten(
    table: StoredTable, transaction: Transaction,
    tasks: Sequence[PackTask] | Sequence[ClusterTask], *, dry_run: bool, runner: TaskRunner | None,
) -> CompactionResult:  # fmt: skip
    """What becomes of an append table by tasks that each write a bucket's files again."""
    if dry_run:
        return _dry([task.files for task in tasks])

    def take(compacted: Compacted) -> None:
        assert compacted.written is not None, "nothing is merged, so nothing older is needed"
        transaction.take(compacted.written)

    with transaction:
        if tasks:
            (runner or local_runner()).each(tasks, take)
        outcome = transaction.compact()
    done = _result(outcome, [entry for made in transaction.taken for entry in made.entries])
    _look_after(table, transaction.view, done)
    return done


def compact_due(
    table: StoredTable, buckets: Collection[BucketId], runner: TaskRunner
) -> CompactionResult:
    """Compact what is due of some buckets, as `compact` does."""
    transaction = _begin(table)
    units = _planner(transaction).due(transaction.state.live, buckets)
    return _carried_out(transaction, units, runner)


def compact_in_full(table: StoredTable, runner: TaskRunner) -> CompactionResult:
    """Compact in full what was written since that was done last, as `compact` does."""
    transaction = _begin(table, FULL_COMPACTION)
    return _carried_out(transaction, _planner(transaction).in_full(transaction.state.live), runner)


def _begin(table: StoredTable, user_prefix: str = "") -> Transaction:
    table = table.pinned()
    live, view = table.newest_files(), writable_view(table)
    return Transaction(table, table.state_on(live, view), Author.fresh(user_prefix), None)


def _planner(transaction: Transaction) -> Planner:
    marked = vector_files_by_bucket(transaction.state.vector_files)
    return Planner(transaction.view, marked)


def _carried_out(
    transaction: Transaction, units: list[Unit], runner: TaskRunner
) -> CompactionResult:
    with transaction:
        left = _run_tasks(transaction, units, runner)
        if left:
            again = _planner(transaction).whole(transaction.state.live, left)
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
    """The files above level 0 that stay in the buckets to compact."""
    beside: dict[BucketId, list[ManifestEntry]] = {unit.bucket: [] for unit in units}
    compacted = {entry.identity for unit in units for entry in unit.files}
    for entry in state.live.files_in(beside):
        if entry.file.level > 0 and entry.identity not in compacted:
            beside[entry.partition, entry.bucket].append(entry)
    return {bucket: tuple(files) for bucket, files in beside.items()}


def memory_of(view: TableView, tasks: int) -> int:
    """What each of some tasks may hold, of which as many run at once as there are cores."""
    at_once = max(1, min(os.cpu_count() or 1, tasks))
    return min(view.options.read_memory_bytes // at_once, _MEMORY_BYTES_MAX)


def _dry(
    buckets: Sequence[Sequence[ManifestEntry]], postponed: Sequence[ManifestEntry] = ()
) -> CompactionResult:
    files = [entry.file for entries in (*buckets, postponed) for entry in entries]
    return CompactionResult(None, len(buckets), len(files), sum(file.file_size for file in files))


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
