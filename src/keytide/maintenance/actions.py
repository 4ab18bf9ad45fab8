"""Actions on request: rollback, fast-forward, expiry, compaction and purge, and what follows them.

After a rollback or fast-forward, the state that a user goes back to must stay unchanged: no commit
follows, and no older state is deleted. The next write does the maintenance.

Branches are deleted and renamed after their background compactions have ended. Otherwise, a
compaction could commit to a branch that is gone, and leave a part of it.

A compaction of a write-only table also does the maintenance that its writers leave to others.

A purge deletes all rows and the history of a table, as if it had just been created. The rows are
deleted first, in a normal commit. From then on the table is empty, wherever this stops, and a
repeated call continues. Then everything that keeps older snapshots (branches, tags and consumers)
is deleted, and last these snapshots themselves, with the files that only they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from keytide.base.dataclass import dataclass, replace
from keytide.base.record import Record
from keytide.base.text import Moment, epoch_ms
from keytide.commit.change import Conflict, new_data_files
from keytide.commit.committer import Committed
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
    compact_units,
    local_runner,
    memory_of,
    place_postponed,
    planner_of,
    postponed_files,
    result_of,
    why_not_compacted,
)
from keytide.compaction.rewrite import CompactedBucket
from keytide.compaction.unmerged_rows import IndexedPackTask, indexed_tasks, picks_of
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.data_file import local_wall_clock_ms
from keytide.format.manifest_entry import FileKind, ManifestEntry
from keytide.format.paths import BranchStore, main_store
from keytide.maintenance import branches, partition_expiry, rollback
from keytide.maintenance.background import BACKGROUND, TableChange, follow_up_newest, run_follow_ups
from keytide.maintenance.branches import refuse_named
from keytide.maintenance.expiry import expire_changelogs, expire_snapshots
from keytide.maintenance.history import clear_consumers, consumers_of
from keytide.maintenance.partition_expiry import ExpiredPartitions, PartitionAge
from keytide.maintenance.references import is_guard
from keytide.maintenance.rollback import FastForwardResult, RollbackResult
from keytide.maintenance.tags import delete_tag
from keytide.maintenance.writes import writing
from keytide.snapshot.branch_tables import branch_names, table_name
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.tasks import TaskRunner
from keytide.write.partition_spec import Place, every_partition, fitting
from keytide.write.refusals import writable_view

# -- rollback and fast-forward ---------------------------------------------------------------------


def rollback_to(
    table: StoredTable,
    to: int | str | None = None,
    *,
    as_of: Moment | None = None,
    watermark: int | None = None,
    dry_run: bool = False,
) -> RollbackResult:
    """Return the table to its state at a snapshot, and delete what came later.

    `to` is the id of a snapshot or the name of a tag, and `as_of` a time as in `scan`. `watermark`
    means the latest snapshot with that watermark of a stream, or an earlier one. Later snapshots,
    changelogs and tags are deleted, including what others commit in the meantime. The columns and
    options do not change, and data files are left for orphan removal. A write that began before and
    ends later counts as written after the rollback. If it depends on rows that are gone, it is made
    again, or raises a `ConflictError`. Other engines should not write in the meantime, because they
    do not check this. The maintenance that follows other changes (compactions, tags, expiry) is
    left to the next write. `dry_run` reports what would be done.

    Until it is done, readers see older and older snapshots. After an interruption, the table is in
    one of these states, and a repeated call continues. Raises:

    - `NotFoundError` for an unknown tag, and for a snapshot that does not exist, with the oldest
      existing one.
    - `InvalidError` unless exactly one target is given.
    - `ConflictError` if other writers do not stop committing.
    - `DataError` if the store fails.
    """
    BACKGROUND.cancel(table.uri)
    moment = None if as_of is None else epoch_ms(as_of, table.name)
    done = rollback.roll_back(table.metadata, to, moment, watermark, dry_run=dry_run)
    if not dry_run:
        follow_up_newest(table, "the table is rolled back", leaves_upkeep=True)
    return done


def fast_forward(
    table: StoredTable, name: str, *, discard: bool = False, dry_run: bool = False
) -> FastForwardResult:
    """Replace the state of this table with that of a branch: its schemas, snapshots and tags.

    Compactions, tags and schemas that the table has after the last common snapshot are deleted, see
    `rollback_to`. If rows were committed to the table since then, this is refused, because they
    would be lost: only `discard` deletes them. The branch does not change. If the table is itself a
    branch, that branch is replaced. `dry_run` reports what `discard` would do.

    After an interruption, the table is in a state that it or the branch had, and a repeated call
    continues. Raises:

    - `NotFoundError` for an unknown branch.
    - `InvalidError` for a branch without snapshots, or for the table itself.
    - `UnsupportedError` if columns or options differed before the first different snapshot.
    - `ConflictError` if other writers interfere, if the branch begins after the end of the table,
      and without `discard`, if the table has commits of rows that the branch does not have.
    - `DataError` if the store fails.
    """
    BACKGROUND.cancel(table.uri)
    done = rollback.fast_forward(table, name, discard=discard, dry_run=dry_run)
    if not dry_run:
        follow_up_newest(table, "the table is fast-forwarded", leaves_upkeep=True)
    return done


# -- expiry of partitions --------------------------------------------------------------------------


def expire_partitions(
    table: StoredTable,
    expiration_time: str | timedelta | None = None,
    *,
    strategy: str | None = None,
    timestamp_pattern: str | None = None,
    timestamp_formatter: str | None = None,
    max_expires: int | None = None,
    dry_run: bool = False,
) -> ExpiredPartitions:
    """Drop partitions that are older than a time such as '7 d', in one atomic commit.

    The time is a string or a timedelta, not negative and at most 292 years. The defaults of the
    arguments are the options 'partition.expiration-time', 'partition.expiration-strategy',
    'partition.timestamp-pattern', 'partition.timestamp-formatter' and
    'partition.expiration-max-num', with which writes do the same. With the strategy 'values-time',
    the values determine the age of a partition, and what others write there in the meantime is
    dropped too. A partition whose values are not a time stays. With 'update-time', the age counts
    from the last write, and nothing is dropped if others write in the meantime. Times are compared
    with the wall clock of this machine. `dry_run` reports what would be dropped.

    Raises `InvalidError` for a table without partitions and for invalid arguments, and the errors
    of `write`.
    """
    age = PartitionAge(
        expiration_time, strategy, timestamp_pattern, timestamp_formatter, max_expires
    )
    done = partition_expiry.expire_partitions(table, age, dry_run=dry_run)
    if done.snapshot_id is not None:
        follow_up_newest(table, "the partitions are expired")
    return done


# -- deletion and renaming of branches -------------------------------------------------------------


def delete_branch(table: StoredTable, name: str) -> None:
    """Delete a branch. Its own files are left for orphan removal.

    Raises `NotFoundError`, which lists the existing branches, `InvalidError` for one that an option
    of the table names, and `DataError` if the store fails. After that, it may be half deleted, and
    a repeated call continues.
    """
    BACKGROUND.cancel(BranchStore(main_store(table.store), name).uri_of(""))
    branches.delete_branch(table, name)


def rename_branch(table: StoredTable, name: str, new_name: str) -> StoredTable:
    """Rename a branch. No data is copied, and no commit is lost.

    Until the new branch exists, the old one is unchanged. For a moment both exist, and commits to
    the old one are then moved too. After an interruption in between, a repeated call continues. A
    process that has the branch open under its old name no longer finds it.

    Raises `NotFoundError`, which lists the existing branches. Raises `AlreadyExistsError` or
    `InvalidError` for a new name that is taken or invalid. Raises `InvalidError` for 'main', and
    for a branch that an option of the table names. Raises `ConflictError`, and both branches exist,
    if one writer writes to the new name and another one to the old name in the meantime. Raises
    `DataError` if the store fails.
    """
    BACKGROUND.cancel(BranchStore(main_store(table.store), name).uri_of(""))
    return branches.rename_branch(table, name, new_name)


# -- compaction ------------------------------------------------------------------------------------


def compact(
    table: StoredTable, *, full: bool = False, order_by: Sequence[str] = (),
    order_strategy: str | None = None, partitions: Sequence[Place] = (), dry_run: bool = False,
    runner: TaskRunner | None = None,
) -> CompactionResult:  # fmt: skip
    """Compact a table, or some partitions of it, see `Table.compact`."""
    BACKGROUND.cancel(table.uri)
    if order_by or order_strategy is not None:
        strategy = order_strategy or "order"
        return _cluster(table, strategy, order_by, partitions, dry_run=dry_run, runner=runner)
    view, runner = writable_view(table), runner or local_runner()
    fits = fitting(partitions, view.schema, view.name, view.options.partition_default_name)
    if not view.kind.keeps_versions:
        # Combine the small files of an append table.
        transaction = begin_compaction(table)
        state = transaction.state
        memory = memory_of(transaction.view, len(state.live.buckets))
        if transaction.view.kind.has_key_index:
            picks = picks_of(state, local_wall_clock_ms(), full=full)
            packs = pack_tasks(state, fits, full=full, memory_bytes=memory, picks=picks)
            indexed = indexed_tasks(state, packs)
            return _rewritten(table, transaction, indexed, dry_run=dry_run, runner=runner)
        tasks = pack_tasks(state, fits, full=full, memory_bytes=memory)
        return _rewritten(table, transaction, tasks, dry_run=dry_run, runner=runner)

    reason = why_not_compacted(view)
    if reason is not None:
        raise UnsupportedError(f"table {table.name}: this release cannot compact it: {reason}")
    placed = None
    if view.postpones_buckets and not dry_run:
        placed = place_postponed(table, view, runner)
    transaction = begin_compaction(table, FULL_COMPACTION if full and not partitions else "")
    planner, live = planner_of(transaction), transaction.state.live
    buckets = None
    if partitions:
        wanted = set(filter(fits, {partition for partition, _ in live.buckets}))
        buckets = {bucket for bucket in live.buckets if bucket[0] in wanted}
    if full:
        units = planner.whole_units(live, buckets)
    else:
        units = planner.due_units(live, buckets, waits=False)
    if dry_run:
        return _dry([unit.files for unit in units], postponed_files(live))
    done = _with_placed_rows(compact_units(transaction, units, runner), placed)
    _follow(table, transaction.view, done)
    return done


def _with_placed_rows(
    done: CompactionResult, placed: Committed | Conflict | None
) -> CompactionResult:
    """The result, including the files whose rows were assigned to buckets before."""
    if not isinstance(placed, Committed):
        return done
    entries = placed.change.entries
    old = [entry.file for entry in entries if entry.kind is FileKind.DELETE]
    made = new_data_files(entries)
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
    fits = fitting(partitions, view.schema, view.name, view.options.partition_default_name)
    tasks = cluster_tasks(transaction.state, clustering, fits, memory_bytes=memory)
    return _rewritten(table, transaction, tasks, dry_run=dry_run, runner=runner)


def _rewritten(
    table: StoredTable, transaction: Transaction,
    tasks: Sequence[PackTask] | Sequence[ClusterTask] | Sequence[IndexedPackTask], *,
    dry_run: bool, runner: TaskRunner | None,
) -> CompactionResult:  # fmt: skip
    """Run tasks that each rewrite files of a bucket of an append table."""
    if dry_run:
        return _dry([task.files for task in tasks])

    def take(compacted: CompactedBucket) -> None:
        assert compacted.result is not None, "nothing is merged, so no older files are needed"
        transaction.collect(compacted.result)

    with transaction:
        if tasks:
            (runner or local_runner()).each(tasks, take)
        outcome = transaction.compact()
    done = result_of(outcome, [entry for made in transaction.results for entry in made.entries])
    _follow(table, transaction.view, done)
    return done


def _dry(
    buckets: Sequence[Sequence[ManifestEntry]], postponed: Sequence[ManifestEntry] = ()
) -> CompactionResult:
    files = [entry.file for entries in (*buckets, postponed) for entry in entries]
    return CompactionResult(None, len(buckets), len(files), sum(file.file_size for file in files))


def _follow(table: StoredTable, view: TableView, done: CompactionResult) -> None:
    if done.snapshot_id is not None:
        run_follow_ups(TableChange(table, view, done.snapshot_id, "the table is compacted"))


# -- purging ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PurgeResult(Record):
    """What a purge did or, in a dry run, what it would do.

    `rows` is the number of rows that were stored. `snapshots`, `changelogs`, `tags`, `branches` and
    `consumers` are the numbers of those that were removed. `files` is the number of files deleted
    with the snapshots, which is None in a dry run.
    """

    rows: int
    snapshots: int
    changelogs: int
    tags: int
    branches: int
    consumers: int
    files: int | None


def purge_files(table: StoredTable, *, dry_run: bool = False) -> PurgeResult:
    """Delete all rows and all history: only the definition and one empty snapshot stay.

    The rows are deleted first, in one atomic commit. From then on the table is empty, and after an
    interruption a repeated call continues. Then branches, tags, consumers, changelogs and snapshots
    are deleted, with their files. Other processes can write at the same time, and what they commit
    stays. The files of writers that died, and files of restored snapshots, are left for orphan
    removal. `dry_run` reports what would be deleted.

    Raises `InvalidError` for a branch, and if an option names one. Raises `UnsupportedError`,
    `ConflictError` and `DataError` like `truncate` and `expire_snapshots`.
    """
    BACKGROUND.cancel_with_branches(table.uri)
    if isinstance(table.store, BranchStore):
        raise InvalidError(
            f"table {table.name}: only a whole table can be purged; purge {table_name(table)}, "
            "or delete this branch"
        )
    metadata, names = table.metadata, branch_names(table.store)
    for name in names:
        refuse_named(table, name, "deleted")
    newest = metadata.latest_snapshot()
    found = PurgeResult(
        0 if newest is None else newest.total_record_count,
        len(metadata.snapshot_ids()),
        len(metadata.changelog_ids()),
        len(metadata.tag_names()),
        len(names),
        len(consumers_of(metadata)),
        None,
    )
    if dry_run:
        return found

    with writing(table, writable_view(table)) as transaction:
        transaction.replace(every_partition)
    for name in names:
        branches.delete_branch(table, name)
    clear_consumers(table)
    # Tags that protect restored files must outlive the snapshots from before the restore.
    guards = [name for name in metadata.tag_names() if is_guard(name)]
    for tag in metadata.tag_names():
        if tag not in guards:
            delete_tag(table, tag)
    # Both count back from the latest snapshot, which always exists.
    gone = [expire_snapshots(table, 1, 1), expire_changelogs(table, 1, 1)]
    for tag in guards:
        if tag in metadata.tag_names():
            delete_tag(table, tag)
    return replace(
        found,
        snapshots=sum(each.snapshots for each in gone),
        changelogs=sum(each.changelogs for each in gone),
        files=sum(each.files for each in gone),
    )
