"""Rescaling: rewrites partitions after the number of buckets of the table has changed.

The stored versions move, each with its number and kind, and none is merged. Their meaning depends
on nothing else, so deletes stay deleted and late rows find their place. They go to level 0, where
the key ranges of files may overlap. All of this is one commit, which fails if another writer has
committed to one of the partitions.

If compactions create a changelog, a level says that its rows were emitted. So these rows are merged
again in each new bucket, and go to the highest level. Rows that were not emitted yet are above
them, and the next compaction emits them.

In a table with a key index, the rows move that the index names, see `moved_keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from keytide.base.record import Record
from keytide.compaction.changelog import lowest_told
from keytide.compaction.compact import local_runner
from keytide.compaction.raising import raise_quietly, raise_replacement
from keytide.errors import UnsupportedError
from keytide.format import paths
from keytide.format.arrow import to_arrow
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.maintenance.upkeep.behind import BEHIND
from keytide.maintenance.upkeep.moved_keys import MoveKeysTask, move_keys_tasks
from keytide.maintenance.upkeep.writing import writing
from keytide.merge.engines import compacts_by_lookup, engine_class
from keytide.options import keys
from keytide.read.plan import to_merge, vector_places
from keytide.read.runs import SYSTEM_COLUMNS, StoredVersions
from keytide.read.sections import PlannedFile
from keytide.snapshot.live_files import BucketId, LiveFiles
from keytide.snapshot.state import TableState
from keytide.snapshot.stored import StoredTable
from keytide.snapshot.view import TableView
from keytide.tasks.runner import TaskRunner
from keytide.write.bucket_writer import run_writer, stored_schema
from keytide.write.layout import FixedLayout
from keytide.write.partition_spec import Place, TouchedPartitions, fitting
from keytide.write.stored_rows import task_of_stored
from keytide.write.task import Written
from keytide.write.writable import writable_view

__all__ = ["RescaleResult", "rescale"]

# Read, split by bucket and converted: about three times as much is in memory.
_BATCH_ROWS = 1 << 20


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
    BEHIND.settle(table.uri)
    view = writable_view(table)
    _refuse_unmovable(view)
    spec = fitting(partitions, view.schema, table.name, view.options.partition_default_name)
    with writing(table, view, runner=runner) as transaction:
        state = transaction.state
        outdated = _outdated(state.live, view.options.bucket, spec)
        told, others = _tasks(state, outdated)
        files = sum(len(task.files) for task in (*told, *others))
        if dry_run or not files:
            transaction.abort()
            return RescaleResult(None, len(outdated), files, None if dry_run else 0)
        runner = runner or local_runner()
        runner.each(others, transaction.take)
        if not view.options.compactions_tell:
            raise_replacement(transaction, runner)
        if told:
            moved: list[ManifestEntry] = []
            try:
                runner.each(told, lambda written: moved.extend(written.entries))
            finally:
                raise_quietly(transaction.view, moved, runner, transaction.take)
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


def _outdated(live: LiveFiles, buckets: int, spec: Callable[[bytes], bool]) -> frozenset[bytes]:
    """The partitions of a spec that have another number of buckets."""
    found = live.partition_buckets.items()
    return frozenset(p for p, total in found if total != buckets and spec(p))


def _tasks(
    state: TableState, partitions: frozenset[bytes]
) -> tuple[Sequence[MoveTask], Sequence[MoveTask | MoveKeysTask]]:
    if state.view.kind.has_key_index:
        return (), move_keys_tasks(state, task_of_stored(state), partitions.__contains__)
    return _move_tasks(state, partitions)


def _move_tasks(
    state: TableState, partitions: frozenset[bytes]
) -> tuple[list[MoveTask], list[MoveTask]]:
    """Tasks that move the versions that a changelog has emitted, and tasks that move all others."""
    places = vector_places(state.vector_files, state.view)
    files: dict[BucketId, list[ManifestEntry]] = {}
    for entry in state.live.entries:
        if entry.partition in partitions:
            files.setdefault((entry.partition, entry.bucket), []).append(entry)
    found: tuple[list[MoveTask], list[MoveTask]] = ([], [])
    for bucket, entries in files.items():
        for tasks, moved in zip(found, _told_and_others(state.view, entries), strict=True):
            if moved:
                planned = tuple(to_merge(moved, places))
                tasks.append(MoveTask(state.view, bucket, planned))
    return found


def _told_and_others(
    view: TableView, entries: list[ManifestEntry]
) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    """The files of a bucket with rows that a changelog has emitted, and the others."""
    if not view.options.compactions_tell or view.engine.why_kept_apart is not None:
        return [], entries
    lowest = lowest_told(view.options, max(entry.file.level for entry in entries))
    told = [entry for entry in entries if entry.file.level >= lowest]
    return told, [entry for entry in entries if entry.file.level < lowest]


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

    def __call__(self) -> Written:
        """Write the versions again. Nothing is left behind after an error.

        Raises `DataError` if the store fails.
        """
        made: list[ManifestEntry] = []
        try:
            for frame in self._frames():
                self._write(frame, made)
        except BaseException:
            files = [path for entry in made for path in self.view.stored_paths(entry)]
            self.view.store.discard(files)
            raise
        return Written(tuple(made))

    def _frames(self) -> Iterator[pl.DataFrame]:
        """The versions in parts of one file each, in which each key occurs once."""
        columns = (*self.view.schema.names, *SYSTEM_COLUMNS)
        stored = StoredVersions(self.view, self.bucket[0], columns)
        for file in self.files:
            for batch in stored.of_run((file,), _BATCH_ROWS):
                yield batch.rows.select(columns)

    def _write(self, frame: pl.DataFrame, made: list[ManifestEntry]) -> None:
        view, schema, names = self.view, stored_schema(self.view), self.view.new_names()
        placing, writer = FixedLayout(view.options).begin(), run_writer(view)
        frame, cut = placing.cut(frame, to_arrow(frame, schema), view)
        for bucket, rows in cut.parts(frame):
            name = names.data_file(writer.file_format, view.options.data_file_prefix)
            path = paths.join(view.bucket_directory(*bucket), name)
            meta = writer.write_file(to_arrow(rows, schema), path)
            made.append(ManifestEntry(FileKind.ADD, *bucket, view.options.bucket, meta))
