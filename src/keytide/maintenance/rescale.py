"""Changes of where rows are stored: other buckets, or another kind of table.

A rescaling rewrites partitions after the number of buckets of the table has changed. The stored
versions move, each with its number and kind, and none is merged. Their meaning depends on nothing
else, so deletes stay deleted and late rows find their place. They go to level 0, where the key
ranges of files may overlap. All of this is one commit, which fails if another writer has committed
to one of the partitions.

If compactions create a changelog, a level says that its rows were emitted. So these rows are merged
again in each new bucket, and go to the highest level. Rows that were not emitted yet are above
them, and the next compaction emits them.

In a table with a key index, the rows move that the index names, see `moved_keys`.

A conversion turns a table that merges on read into one with a key index, or back. The row by which
each key is judged (a row or a delete) is rewritten, and replaces everything that is stored, in one
commit. Two files record this: first the schema of the new kind, then the snapshot that names it.
Until the snapshot exists, the table is unchanged, see `SchemasInForce`. If any other commit comes
first, the work is done again on top of it. A conversion that is interrupted between the two leaves
a schema. The next conversion finishes it, or takes it back with one more schema of the table's
present kind.

From a table with a key index, the rows move by which each key is judged. That is the current row of
a key, or the row that deletes it. Late rows are compared with it. All other stored rows are dead,
and stay behind. A rescaling moves such rows to other buckets, a conversion to the files of a table
that merges.

From a table that merges, the winning version of each key moves. It is a row or a delete. Late rows
are compared with it. All other versions have no meaning any more, and stay behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from pyroaring import BitMap64

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass, replace
from keytide.base.record import Record
from keytide.base.row_kind import RowKind
from keytide.base.text import counted
from keytide.commit.committer import Committed
from keytide.commit.transaction import Transaction
from keytide.compaction.bulk_load import raise_files, raise_replacement
from keytide.compaction.changelog import lowest_emitted_level
from keytide.compaction.compact import local_runner, memory_of
from keytide.compaction.row_buffer import piled
from keytide.definition.option_changes import ConvertedDefinition, as_kind_of, converted
from keytide.errors import ConflictError, InvalidError, KeytideError, UnsupportedError
from keytide.format import paths
from keytide.format.arrow import to_arrow
from keytide.format.manifest_entry import FileKind, ManifestEntry
from keytide.format.schema import NO_UPSERTS, TableSchema
from keytide.maintenance.background import BACKGROUND
from keytide.maintenance.repair import commit_unchanged
from keytide.maintenance.writes import show_rows, with_follow_ups, writing
from keytide.merge.engines import compacts_by_lookup, engine_class
from keytide.merge.functions.registry import registered_functions
from keytide.merge.order import IS_ADD, VALUE_KIND
from keytide.options import TableOptions, keys
from keytide.read.merged_versions import MergedVersions, rows_in
from keytide.read.plan import to_merge, vector_places
from keytide.read.runs import SYSTEM_COLUMNS, StoredVersions
from keytide.read.sections import BucketPlan, PlannedFile, sections_of
from keytide.snapshot.lineage import SchemasInForce
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import Schemas, TableState, TableView
from keytide.snapshot.stored_table import PinnedTable, StoredTable
from keytide.store import created
from keytide.tasks import TaskRunner
from keytide.write.bucket_writer import run_writer, stored_schema
from keytide.write.layout import FixedLayout
from keytide.write.moved_keys import Bucket
from keytide.write.partition_spec import Place, TouchedPartitions, every_partition, fitting
from keytide.write.refusals import writable_view
from keytide.write.task import TaskResult, WriteTask, try_definition
from keytide.write.upsert import UpsertTask, task_of_stored

# -- winning versions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class MoveWinnersTask:
    """Moves the winners of one bucket. Picklable.

    `number` distinguishes the tasks of one conversion. Merging uses about `memory_bytes`, and
    writing uses 'write-buffer-size'.
    """

    view: TableView
    write_task: WriteTask
    plan: BucketPlan
    number: int
    memory_bytes: int

    def __call__(self) -> TaskResult:
        """Write the winners. Nothing is left behind after an error.

        Raises `DataError` if the store fails, and `InvalidError` for versions that cannot be
        merged.
        """
        size_bytes = self.write_task.view.options.write_buffer_bytes
        return self.write_task.feed(piled(self._rows(), size_bytes), self.number)

    def _rows(self) -> Iterator[pa.Table]:
        columns = (*self.view.schema.names, VALUE_KIND)
        schema = self.view.schema.arrow_schema().append(pa.field(VALUE_KIND, pa.int8()))
        versions = MergedVersions(self.view, columns)
        for window in versions.of(self.plan, self.memory_bytes):
            for frame in window:
                # If no row can be late, a delete has no effect.
                kept = frame if self.view.needs_tombstones else frame.filter(IS_ADD)
                if kept.height:
                    yield to_arrow(kept.select(columns), schema)


# -- rows by which keys are judged -----------------------------------------------------------------


_BATCH_ROWS = 1 << 20


def move_keys_tasks(
    state: TableState, anew: WriteTask, wanted: Callable[[bytes], bool]
) -> list[MoveKeysTask]:
    """Tasks that move the keys of some partitions to where `anew`, a task for stored rows, puts
    them.
    """
    there = UpsertTask.on(state)
    moved = sorted(bucket for bucket in there.entries if wanted(bucket[0]))
    return [MoveKeysTask(there, anew, bucket, number) for number, bucket in enumerate(moved)]


@dataclass(frozen=True)
class MoveKeysTask:
    """Moves the keys of one bucket. Picklable. `number` distinguishes the tasks of one change."""

    target_task: UpsertTask
    write_task: WriteTask
    bucket: BucketId
    number: int

    @property
    def files(self) -> tuple[ManifestEntry, ...]:
        """The files that it reads."""
        return self.target_task.entries[self.bucket]

    def __call__(self) -> TaskResult:
        """Write the rows again. Nothing is left behind after an error.

        Raises the errors of `load_bucket`, and `DataError` if the store fails.
        """
        rows = self._rows(self.target_task.bucket(self.bucket))
        size_bytes = self.write_task.view.options.write_buffer_bytes
        return self.write_task.feed(piled(rows, size_bytes), self.number)

    def _rows(self, on: Bucket) -> Iterator[pa.Table]:
        view = self.target_task.view
        stored = StoredVersions(view, self.bucket[0], tuple(view.schema.names))
        size_bytes, files = view.options.write_buffer_bytes, [*map(PlannedFile, self.files)]
        rows_max = max(1, min(_BATCH_ROWS, rows_in(size_bytes, files, view.schema.fields)))
        for name, rows in on.index.rows().items():
            dead = BitMap64(on.dead.vectors.get(name, ()))
            for kind, places in ((RowKind.INSERT, rows - dead), (RowKind.DELETE, rows & dead)):
                at = np.asarray(places.to_array()).astype(np.int64)
                file = PlannedFile(on.entries[name], has_kinds=False, places=at)
                for frame in stored.of_lone_files([file], rows_max) if len(at) else ():
                    moved = to_arrow(frame, view.schema.arrow_schema())
                    kinds = pa.array(np.full(frame.height, int(kind), np.int8))
                    yield moved.append_column(VALUE_KIND, kinds)


# -- rescaling -------------------------------------------------------------------------------------


# Read, split by bucket and converted: about three times as much is in memory.


@dataclass(frozen=True)
class RescaleResult(Record):
    """What a rescaling did or, in a dry run, what it would do.

    `partitions` is the number of partitions that had a different number of buckets than the table.
    Their `files_before` files became `files_after` files, which is None in a dry run. `snapshot_id`
    is None when nothing was changed.
    """

    snapshot_id: int | None
    partitions: int
    files_before: int
    files_after: int | None


def rescale(
    table: StoredTable, partitions: Sequence[Place] = (), *, dry_run: bool = False,
    runner: TaskRunner | None = None,
) -> RescaleResult:  # fmt: skip
    """Rescale partitions, see `Table.rescale`."""
    BACKGROUND.cancel(table.uri)
    view = writable_view(table)
    _refuse_unmovable(view)
    spec = fitting(partitions, view.schema, table.name, view.options.partition_default_name)
    with writing(table, view, runner=runner) as transaction:
        state = transaction.state
        totals = state.live.partition_buckets.items()
        outdated = frozenset(p for p, total in totals if total != view.options.bucket and spec(p))
        emitted, others = _tasks(state, outdated)
        files = sum(len(task.files) for task in (*emitted, *others))
        if dry_run or not files:
            transaction.abort()
            return RescaleResult(None, len(outdated), files, None if dry_run else 0)
        runner = runner or local_runner()
        runner.each(others, transaction.collect)
        if not view.options.compactions_tell:
            raise_replacement(transaction, runner)
        if emitted:
            moved: list[ManifestEntry] = []
            try:
                runner.each(emitted, lambda written: moved.extend(written.entries))
            finally:
                # The changelog does not emit the rows.
                options = replace(transaction.view.options, changelog_producer="none")
                silent = replace(transaction.view, options=options)
                raise_files(silent, moved, runner, transaction.collect)
        done = transaction.relayout(TouchedPartitions(outdated))
        return RescaleResult(done.snapshot_id, len(outdated), files, done.files)


def _refuse_unmovable(view: TableView) -> None:
    """Raise `UnsupportedError` for a table whose versions cannot be moved unchanged."""
    options, kind = view.options, view.kind
    if not (kind.keeps_versions or kind.has_key_index) or options.bucket < 1:
        raise UnsupportedError(
            f"table {view.name} cannot be rescaled: this requires a primary key and a fixed "
            f"number of buckets, and '{keys.BUCKET}' is '{options.bucket}'. Overwrite the table "
            "with its own rows instead"
        )
    if options.deleted_keys_ttl is not None:
        raise UnsupportedError(
            f"table {view.name} cannot be rescaled: each bucket removes deletes by its own "
            f"newest row ('{keys.UPSERT_DELETED_KEYS_TTL}' = '{options.deleted_keys_ttl}'), so "
            "deleted rows could come back in another bucket. Write the rows to a new table"
        )
    if kind.has_key_index:
        return
    if compacts_by_lookup(options) and not engine_class(options).picks_a_version:
        raise UnsupportedError(
            f"table {view.name} cannot be rescaled: its compacted values include those of higher "
            "levels, so they cannot be moved to another level. Overwrite the table with its own "
            "rows"
        )


def _tasks(
    state: TableState, partitions: frozenset[bytes]
) -> tuple[Sequence[MoveTask], Sequence[MoveTask | MoveKeysTask]]:
    if state.view.kind.has_key_index:
        return (), move_keys_tasks(state, task_of_stored(state), partitions.__contains__)

    # Tasks that move the versions that a changelog has emitted, and tasks that move all others.
    view, places = state.view, vector_places(state.vector_files, state.view)
    tells = view.options.compactions_tell and view.engine.why_kept_apart is None
    files: dict[BucketId, list[ManifestEntry]] = {}
    for entry in state.live.entries:
        if entry.partition in partitions:
            files.setdefault((entry.partition, entry.bucket), []).append(entry)
    emitted_tasks: list[MoveTask] = []
    others: list[MoveTask] = []
    for bucket, entries in files.items():
        highest = max(entry.file.level for entry in entries)
        lowest = lowest_emitted_level(view.options, highest) if tells else highest + 1
        emitted = [entry for entry in entries if entry.file.level >= lowest]
        new = [entry for entry in entries if entry.file.level < lowest]
        for tasks, moved in ((emitted_tasks, emitted), (others, new)):
            if moved:
                tasks.append(MoveTask(view, bucket, tuple(to_merge(moved, places))))
    return emitted_tasks, others


@dataclass(frozen=True)
class MoveTask:
    """Moves the stored versions of one bucket to their new buckets. Picklable."""

    view: TableView
    bucket: BucketId
    files: tuple[PlannedFile, ...]

    @property
    def stored_bytes(self) -> int:
        """The size of the files that it reads."""
        return sum(file.meta.file_size for file in self.files)

    def __call__(self) -> TaskResult:
        """Write the versions again. Nothing is left behind after an error.

        Raises `DataError` if the store fails.
        """
        view, schema, made = self.view, stored_schema(self.view), list[ManifestEntry]()
        try:
            for stored in self._frames():
                names, writer = view.new_names(), run_writer(view)
                layout = FixedLayout(view.options).begin()
                frame, cut = layout.cut(stored, to_arrow(stored, schema), view)
                for bucket, rows in cut.parts(frame):
                    name = names.data_file(writer.file_format, view.options.data_file_prefix)
                    path = paths.join(view.bucket_directory(*bucket), name)
                    meta = writer.write_file(to_arrow(rows, schema), path)
                    made.append(ManifestEntry(FileKind.ADD, *bucket, view.options.bucket, meta))
        except BaseException:
            view.store.discard([path for entry in made for path in view.stored_paths(entry)])
            raise
        return TaskResult(tuple(made))

    def _frames(self) -> Iterator[pl.DataFrame]:
        """The versions in parts of one file each, in which each key occurs once."""
        columns = (*self.view.schema.names, *SYSTEM_COLUMNS)
        stored = StoredVersions(self.view, self.bucket[0], columns)
        for file in self.files:
            for batch in stored.of_run((file,), _BATCH_ROWS):
                yield batch.rows.select(columns)


# -- conversion ------------------------------------------------------------------------------------


_MODES = (NO_UPSERTS, "full")


@dataclass(frozen=True)
class ConversionResult(Record):
    """What a conversion did or, in a dry run, what it would do.

    - `upsert_mode` is the table's new mode.
    - `files_before` files became `files_after` files, which is None in a dry run.
    - `dropped` lists the options that no longer apply and were removed.
    - `snapshot_id` is None when nothing was committed.
    """

    snapshot_id: int | None
    upsert_mode: str
    files_before: int
    files_after: int | None
    dropped: tuple[str, ...]


def convert(table: StoredTable, upsert_mode: str, *, dry_run: bool = False) -> ConversionResult:
    """Convert a table that merges on read to one with a key index, or back, in one atomic commit.

    With `upsert_mode` 'full', a table with the merge engine 'deduplicate' gets a key index. With
    'none' it merges again, see 'upsert.mode'. The rows are the same before and after, and late rows
    find the same: deletes stay deleted. Every row is rewritten into the bucket that the options
    determine. Older snapshots and tags are read as they were written. Options with the same meaning
    stay. Those without a meaning are dropped, and named in the result.

    Threads of this process do the work. Each uses its part of 'read.memory' and about four times
    'write-buffer-size'. Other processes can read and write at the same time. If a commit comes
    first, the work is done again on top of it, up to 'commit.max-retries' times. Writers that began
    before the conversion and commit later get a `ConflictError`. After an interruption, the table
    is in the old or in the new state. Until the same call has finished, or the present mode was
    requested, which takes the conversion back, the table cannot be altered. `dry_run` reports what
    would be done.

    Raises `InvalidError` for another mode. Raises `UnsupportedError`, before anything is written,
    for a table without an equivalent of the other kind, with the reason. Raises `ConflictError` if
    too many races were lost, and `DataError` if the store fails.
    """
    BACKGROUND.cancel(table.uri)

    if upsert_mode.lower() not in _MODES:
        expected = " or ".join(map(repr, _MODES))
        raise InvalidError(
            f"table {table.name}: upsert_mode is {shown(upsert_mode)}; expected {expected}"
        )
    wanted, seen = upsert_mode.lower(), table.pinned()
    tries = writable_view(seen).options.commit_retries_max + 1
    for _ in range(tries):
        found = seen.metadata.schemas_in_force()

        # Raise `UnsupportedError` for a table that is neither kind.
        schema = found.schema
        if not schema.primary_keys:
            raise UnsupportedError(
                f"table {seen.name} cannot be converted, because it has no primary key; write its "
                "rows to a new table with a primary key"
            )
        if schema.is_indexed and wanted not in (NO_UPSERTS, schema.upsert_mode):
            raise UnsupportedError(
                f"table {seen.name} cannot be converted from '{keys.UPSERT_MODE}' = "
                f"'{schema.upsert_mode}' to '{wanted}'; write its rows to a new table"
            )
        if found.schema.upsert_mode == wanted:
            done = _withdrawn(seen.live, found, dry_run=dry_run)
        else:
            done = _converted_table(seen, found, wanted, dry_run=dry_run)
        if done is not None:
            return done
        seen = seen.live.pinned()
    raise ConflictError(
        f"table {table.name}: the conversion failed after {counted(tries, 'attempt')}, because "
        "other writers committed first; try again when there are fewer writers, or increase "
        f"'{keys.COMMIT_MAX_RETRIES}'. Until then the table cannot be altered, unless you "
        f"convert it back to its current '{keys.UPSERT_MODE}'"
    )


# -- withdrawal of a conversion --------------------------------------------------------------------


def _withdrawn(
    table: StoredTable, found: SchemasInForce, *, dry_run: bool
) -> ConversionResult | None:
    """The result if the table already has the mode. None if another change came first.

    The commit decides: a conversion that is still running notices it, and starts again.
    """
    result = ConversionResult(None, found.schema.upsert_mode, 0, None if dry_run else 0, ())
    if dry_run or found.is_settled:
        return result
    if found.newest.upsert_mode != found.schema.upsert_mode:
        again = _numbered(found.schema, found.newest)
        if not created(table.store, paths.schema_path(again.id), again.to_json()):
            return None
    snapshot = commit_unchanged(table, "the conversion is undone")
    return replace(result, snapshot_id=snapshot.id)


def _numbered(schema: TableSchema, newest: TableSchema) -> TableSchema:
    """A schema with the number after the latest. Ids of columns are never reused."""
    highest, now_ms = newest.highest_field_id, time.time_ns() // 1_000_000
    return replace(schema, id=newest.id + 1, highest_field_id=highest, time_millis=now_ms)


# -- the steps of a conversion ---------------------------------------------------------------------


def _converted_table(
    pinned: PinnedTable, found: SchemasInForce, wanted: str, *, dry_run: bool
) -> ConversionResult | None:
    """The result if the table has another mode. None if another change came first."""
    # The definition that the table gets: one left by an earlier conversion, or a new one.
    if found.newest.upsert_mode == wanted:
        target = ConvertedDefinition.of(found.schema, found.newest)
    else:
        try:
            made = converted(_numbered(found.schema, found.newest), wanted)
            try_definition(pinned.metadata, made.schema)
        except KeytideError as error:
            raise type(error)(f"table {pinned.name} cannot be converted: {error}") from error
        target = made
    if not dry_run and show_rows(pinned) is not pinned:
        return None  # rows were hidden, and are no longer
    # The table as it is, with its future columns. They differ if it was rolled back to before a
    # conversion, after which columns were altered.
    view = writable_view(pinned)
    if target.schema.fields != view.schema.fields:
        view = pinned.view(as_kind_of(target.schema, view.schema))
    state = pinned.state_to_write(view)
    result = ConversionResult(None, wanted, len(state.live.files), None, target.dropped_options)
    if dry_run:
        return result
    is_stored = target.schema.id == found.newest.id
    options = TableOptions.parse(target.schema.options)
    schemas = Schemas(state.view.name, {**state.view.schemas, target.schema.id: target.schema})
    functions = registered_functions(options)
    converted_view = replace(
        state.view, schema=target.schema, schemas=schemas, options=options, functions=functions
    )
    begun = Transaction.on(pinned.live, TableState(converted_view, state.live))
    with with_follow_ups(pinned.live, begun, done="the table is converted") as transaction:
        local_runner().each(_conversion_tasks(state, transaction.state), transaction.collect)
        if not is_stored and not created(
            pinned.store, paths.schema_path(target.schema.id), target.schema.to_json()
        ):
            transaction.abort()
            return None
        outcome = transaction.convert()
    if not isinstance(outcome, Committed):
        return None
    files = len(outcome.live.files)
    return replace(result, snapshot_id=outcome.snapshot.id, files_after=files)


def _conversion_tasks(
    state: TableState, target: TableState
) -> Sequence[MoveKeysTask | MoveWinnersTask]:
    anew = task_of_stored(target)
    if state.view.kind.has_key_index:
        return move_keys_tasks(state, anew, every_partition)

    # Tasks that move the winners of all keys to where `anew`, a task for stored rows, puts them.
    places = vector_places(state.vector_files, state.view)
    files: dict[BucketId, list[ManifestEntry]] = {}
    for entry in state.live.entries:
        files.setdefault((entry.partition, entry.bucket), []).append(entry)
    planned = {
        bucket: to_merge(entries, places) if places else [PlannedFile(e) for e in entries]
        for bucket, entries in files.items()
    }
    memory_bytes = memory_of(state.view, len(files))
    return [
        MoveWinnersTask(state.view, anew, plan, number, memory_bytes)
        for number, plan in enumerate(sections_of(planned, state.view))
    ]
