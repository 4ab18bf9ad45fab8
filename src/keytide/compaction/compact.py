"""Compactions of a table: what is due, and the rewrite into fewer and larger files.

A compaction is planned on the files of one snapshot, runs as one task for each bucket, and is
committed once for all of them.

In a table with postponed buckets (`bucket = -2`), a partition gets its number of buckets when it is
first written. Keytide assigns buckets to rows immediately. Other engines may leave them in a
separate folder, which no reader uses, until a compaction assigns their buckets. They are then the
latest rows of their keys, in the order of the commits that wrote them.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.base.record import Record
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.commit.change import Author, Conflict, new_data_files
from keytide.commit.committer import Committed
from keytide.commit.snapshot_files import wall_clock_ms
from keytide.commit.transaction import Transaction
from keytide.compaction.changelog import emits_changes
from keytide.compaction.rewrite import CompactedBucket, CompactTask
from keytide.compaction.strategy import (
    Rules,
    Unit,
    pick,
    pick_all,
    pick_all_apart,
    pick_apart,
    pick_new,
    sorted_runs,
)
from keytide.compaction.unmerged_rows import ThinTask
from keytide.format import paths
from keytide.format.arrow import to_arrow
from keytide.format.data_file import VALUE_KIND, local_wall_clock_ms
from keytide.format.manifest_entry import FileKind, ManifestEntry
from keytide.merge.engines import compacts_by_lookup
from keytide.options import keys
from keytide.read.merged_versions import Lifetime, drops_expired
from keytide.read.runs import StoredVersions
from keytide.read.sections import PlannedFile
from keytide.snapshot.live_files import BucketId, BucketState, LiveFiles, vector_files_by_bucket
from keytide.snapshot.state import TableState, TableView
from keytide.snapshot.stored_table import StoredTable, as_expected
from keytide.tasks import TaskRunner, Threads
from keytide.telemetry import span
from keytide.write.refusals import writable_view
from keytide.write.task import TaskResult, WriteTask

# -- selection of what is compacted ----------------------------------------------------------------


def why_not_compacted(view: TableView) -> str | None:
    """Why the files of a table are not compacted. None if they can be."""
    if not view.kind.keeps_versions:
        return None
    engine, options = view.engine, view.options
    kept, all_stay = engine.why_kept_apart, engine.why_all_stay
    if kept is None:
        return None
    if compacts_by_lookup(options):
        return f"{kept}; compactions with lookup would merge them. Do not rewrite its files"
    if all_stay is None or options.version_retention_ms is not None:
        return None
    return (
        f"{kept}; and {all_stay}. Set '{keys.VERSION_RETENTION}' to the maximum lateness of "
        "rows, or do not rewrite its files"
    )


@dataclass(frozen=True)
class Planner:
    """Finds what to compact in a table. `buckets_with_dead_rows` have rows that are dead."""

    view: TableView
    buckets_with_dead_rows: Collection[BucketId] = ()

    def due_units(
        self, live: LiveFiles, buckets: Collection[BucketId] | None = None, *, waits: bool = True
    ) -> list[Unit]:
        """What is due, in some buckets or in all.

        With `waits` false, includes compactions that create a changelog and could be postponed.
        """
        now_ms, found = local_wall_clock_ms(), list[Unit]()
        is_told_of = self.view.options.changelog_producer == "lookup" and not waits
        for files in _by_bucket(live, buckets):
            runs = sorted_runs(files)
            if self._stays_apart:
                units = [pick_apart(runs, self._rules, now_ms)]
            else:
                units = [*pick(runs, self._rules, now_ms)]
                least = 1 if is_told_of else self._new_runs
                if not units and sum(run.level == 0 for run in runs) >= least:
                    units = [pick_new(runs, self._rules)]
            found += [unit for unit in units if unit is not None]
        return self._with_all_told(found, live)

    def whole_units(
        self, live: LiveFiles, buckets: Collection[BucketId] | None = None
    ) -> list[Unit]:
        """All runs of each bucket for which a compaction would help."""
        picked = pick_all_apart if self._stays_apart else pick_all
        found = (
            picked(sorted_runs(files), self._rules, again=self._may_shrink(files))
            for files in _by_bucket(live, buckets)
        )
        return self._with_all_told([unit for unit in found if unit is not None], live)

    def full_units(self, live: LiveFiles) -> list[Unit]:
        """All runs of each bucket that has more than what its last full compaction left."""
        picked = pick_all_apart if self._stays_apart else pick_all
        found = (picked(sorted_runs(files), self._rules) for files in _by_bucket(live, None))
        return [unit for unit in found if unit is not None]

    def may_be_due(self, live: LiveFiles, buckets: Iterable[BucketId]) -> set[BucketId]:
        """The buckets that have enough runs. Their files are not examined."""
        least = 2 if self._rules.has_early_rules else self._rules.trigger_runs
        states = {bucket: live.bucket(bucket) for bucket in buckets}
        return {
            bucket
            for bucket, state in states.items()
            if self._runs(state) >= least or state.level_files.get(0, 0) >= self._new_runs
        }

    def bytes_due(self, live: LiveFiles, buckets: Collection[BucketId]) -> int | None:
        """The size of those buckets in which something is due. None if nothing is due."""
        due = {unit.bucket for unit in self.due_units(live, buckets)} if buckets else set()
        return int(live.files_in(due).column("_FILE_SIZE").sum()) if due else None

    def are_worth_a_beginning(self, live: LiveFiles, buckets: Iterable[BucketId]) -> bool:
        """Whether a bucket has enough runs to start a background compaction."""
        least = self.view.options.background_compaction_runs
        return any(self._runs(live.bucket(bucket)) >= least for bucket in buckets)

    def are_too_many(self, live: LiveFiles, buckets: Iterable[BucketId]) -> bool:
        """Whether a bucket has more runs than a write may leave there."""
        stop = self.view.options.stop_trigger_runs
        return any(self._runs(live.bucket(bucket)) > stop for bucket in buckets)

    def _runs(self, state: BucketState) -> int:
        """The number of runs of a bucket that a compaction could reduce."""
        return state.level_files.get(0, 0) if self._stays_apart else state.runs

    @cached_property
    def _stays_apart(self) -> bool:
        return self.view.kind.keeps_versions and self.view.engine.why_kept_apart is not None

    def hides(self, live: LiveFiles, entries: Iterable[ManifestEntry]) -> bool:
        """Whether rows of files must become visible, or be emitted, and no compaction has done so
        yet.
        """
        if not self.raises_new:
            return False
        return bool(live.present({e.identity for e in entries if e.file.level == 0}))

    @property
    def raises_new(self) -> bool:
        """Whether all of level 0 is due after each write.

        Most readers of deletion vectors do not read level 0, and a changelog with `lookup` is
        derived from it.
        """
        return self._new_runs == 1

    @cached_property
    def _new_runs(self) -> float:
        """The number of runs on level 0 that makes all of them due."""
        options = self.view.options
        if options.deletion_vectors_enabled:
            return 1
        if options.changelog_producer != "lookup" or not options.lookup_wait:
            return math.inf
        return options.lookup_runs_max

    def _with_all_told(self, units: list[Unit], live: LiveFiles) -> list[Unit]:
        """The units.

        If keys move and one unit creates a changelog, includes all units that would create it. The
        delete of a key in its old bucket must be emitted no later than its row in the new one.
        """
        options = self.view.options
        telling = {unit.bucket: unit for unit in units if emits_changes(options, unit)}
        if not telling or not self.view.moves_keys:
            return units
        pick_untold = pick_new if options.changelog_producer == "lookup" else pick_all
        for files in _by_bucket(live, None):
            unit = pick_untold(sorted_runs(files), self._rules)
            if unit is not None and emits_changes(options, unit):
                telling.setdefault(unit.bucket, unit)
        return list(({unit.bucket: unit for unit in units} | telling).values())

    def _may_shrink(self, files: Sequence[ManifestEntry]) -> bool:
        """Whether something may be left out of a bucket that is already one run."""
        if (files[0].partition, files[0].bucket) in self.buckets_with_dead_rows:
            return True
        view, retention_ms = self.view, self.view.options.tombstone_retention_ms
        if Lifetime.of(view) is not None and drops_expired(view):
            return True
        if self._stays_apart and view.options.version_retention_ms is not None:
            return any(entry.file.level >= self._rules.num_levels for entry in files)
        if not view.engine.tombstones or (view.needs_tombstones and retention_ms is None):
            return False
        return any(entry.file.delete_row_count != 0 for entry in files)

    @cached_property
    def _rules(self) -> Rules:
        options = self.view.options
        # If compactions look up keys, the older version of a key is found wherever it is.
        looks_up = compacts_by_lookup(options)
        only_whole = self.view.engine.needs_oldest and not looks_up
        # Files that move without a rewrite would not be looked up, and no changelog would contain
        # them.
        is_told_of = options.changelog_producer in ("lookup", "full-compaction")
        return Rules.of(options, only_whole=only_whole, moves=not looks_up and not is_told_of)


def _by_bucket(
    live: LiveFiles, buckets: Collection[BucketId] | None
) -> Iterable[list[ManifestEntry]]:
    """The files of each bucket. Postponed rows, which are in no bucket, are left out."""
    files: dict[BucketId, list[ManifestEntry]] = {}
    for entry in live.files if buckets is None else live.files_in(set(buckets)):
        if entry.bucket >= 0:
            files.setdefault((entry.partition, entry.bucket), []).append(entry)
    return files.values()


# -- compaction ------------------------------------------------------------------------------------


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
        units = planner_of(transaction).due_units(transaction.state.live, buckets)
        result = compact_units(transaction, units, runner)
        seen = transaction.state if transaction.committed is None else transaction.committed
        return result, seen.live

    # Tasks on a Spark session are expensive, so none should be in vain.
    return as_expected(table, on) if isinstance(runner, Threads) else on(table)


def compact_in_full(table: StoredTable, runner: TaskRunner) -> CompactionResult:
    """Fully compact what was written since the last full compaction, like `compact`."""
    transaction = begin_compaction(table, FULL_COMPACTION)
    return compact_units(
        transaction, planner_of(transaction).full_units(transaction.state.live), runner
    )


def begin_compaction(table: StoredTable, user_prefix: str = "") -> Transaction:
    """A transaction on the present latest snapshot, for `compact_units`."""
    table = table.pinned()
    live, view = table.newest_files(), writable_view(table)
    return Transaction(table, table.state_on(live, view), Author.fresh(user_prefix), None)


def planner_of(transaction: Transaction) -> Planner:
    """Finds the units to compact in the files of a transaction."""
    marked = vector_files_by_bucket(transaction.state.vector_files)
    return Planner(transaction.view, marked)


def compact_units(
    transaction: Transaction, units: list[Unit], runner: TaskRunner
) -> CompactionResult:
    """Compact units and commit. Losing against another compaction is a result too."""
    with span("compaction", transaction.view.name) as step:
        with transaction:
            left = _run_tasks(transaction, units, runner)
            if left:
                again = planner_of(transaction).whole_units(transaction.state.live, left)
                _run_tasks(transaction, again, runner)
            outcome = transaction.compact()
        result = result_of(
            outcome, [entry for made in transaction.results for entry in made.entries]
        )
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


def _run_tasks(transaction: Transaction, units: list[Unit], runner: TaskRunner) -> set[BucketId]:
    """Run a task for each unit. Returns the buckets that must be compacted as a whole instead."""
    left: set[BucketId] = set()

    def take(compacted: CompactedBucket) -> None:
        if compacted.result is None:
            left.add(compacted.bucket)
        else:
            transaction.collect(compacted.result)

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
    # The files above level 0 that stay in place in the buckets to compact.
    beside: dict[BucketId, list[ManifestEntry]] = {unit.bucket: [] for unit in units}
    compacted = {entry.identity for unit in units for entry in unit.files}
    for entry in state.live.files_in(beside):
        if entry.file.level > 0 and entry.identity not in compacted:
            beside[entry.partition, entry.bucket].append(entry)
    vectors = vector_files_by_bucket(state.vector_files)
    tasks = []
    for unit in units:
        staying, dead = tuple(beside[unit.bucket]), vectors.get(unit.bucket, ())
        tasks.append(CompactTask(view, unit, now_ms, memory, staying, dead))
    return tasks


def memory_of(view: TableView, tasks: int) -> int:
    """The memory for each task, if as many run in parallel as there are cores."""
    at_once = max(1, min(os.cpu_count() or 1, tasks))
    return min(view.options.read_memory_bytes // at_once, _MEMORY_BYTES_MAX)


def result_of(
    outcome: Committed | Conflict | None, entries: list[ManifestEntry]
) -> CompactionResult:
    """The result of committing the entries of compactions. None: there was nothing to do."""
    old = [entry.file for entry in entries if entry.kind is FileKind.DELETE]
    made = new_data_files(entries)
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


# -- assignment of postponed buckets ---------------------------------------------------------------


# How many rows are read, assigned to buckets and written at a time.
_BATCH_ROWS = 1 << 20


def postponed_files(live: LiveFiles) -> list[ManifestEntry]:
    """The files whose rows are in no bucket yet, in the order of their commits."""
    files = live.files
    return list(files.filter(files.column("_BUCKET") == paths.POSTPONE_BUCKET))


def place_postponed(
    table: StoredTable, view: TableView, runner: TaskRunner
) -> Committed | Conflict | None:
    """Assign buckets to all such rows, in one commit. None if there are none.

    `view` is the result of `writable_view`. A conflict says that another writer did it first.
    Raises `InvalidError` for rows that the table does not accept, and `DataError` if the store
    fails. Nothing is changed then.
    """
    with Transaction.begin(table, view) as transaction:
        files = postponed_files(transaction.state.live)
        if not files:
            transaction.abort()
            return None
        task = replace(transaction.task(), stored=None)
        partitions = dict.fromkeys(entry.partition for entry in files)
        tasks = [
            PlaceTask(task, number, tuple(e for e in files if e.partition == partition))
            for number, partition in enumerate(partitions)
        ]
        runner.each(tasks, transaction.collect)
        return transaction.commit_placed_rows()


@dataclass(frozen=True)
class PlaceTask:
    """Writes the rows of one partition's postponed files into buckets. Picklable."""

    task: WriteTask
    number: int
    files: tuple[ManifestEntry, ...]

    @property
    def view(self) -> TableView:
        """The table."""
        return self.task.view

    @property
    def stored_bytes(self) -> int:
        """The size of the files that it reads."""
        return sum(entry.file.file_size for entry in self.files)

    def __call__(self) -> TaskResult:
        """Write the rows. Nothing is left behind after an error. Raises like `WriteTask.feed`."""
        written = self.task.feed(self._rows(), self.number)
        gone = tuple(replace(entry, kind=FileKind.DELETE) for entry in self.files)
        return replace(written, entries=(*gone, *written.entries))

    def _rows(self) -> Iterator[pa.Table]:
        view = self.task.view
        stored = StoredVersions(view, self.files[0].partition, (*view.schema.names, VALUE_KIND))
        for entry in self.files:
            for batch in stored.of_run((PlannedFile(entry),), _BATCH_ROWS):
                # In the form that a writer receives, with kinds if these are in no column.
                table = to_arrow(batch.rows, view.schema.arrow_schema())
                if not view.options.rowkind_field:
                    kinds = batch.rows[VALUE_KIND].replace_strict(_SHORT, return_dtype=pl.String)
                    level = pl.CompatLevel.oldest()
                    table = table.append_column(ROW_KIND, kinds.to_arrow(compat_level=level))
                yield table


_SHORT: dict[int, str] = {int(kind): kind.short for kind in RowKind}
