"""Upserts into a table with a key index: rows are appended, and replaced rows are marked as dead.

All rows of a write are stored as they arrived, or one per key if rows are merged. The index says
where the current row of each key is. So the previous row of each key is marked as dead, and so are
rows that arrive late or delete. The files without their dead rows contain one row per key.

The results of parallel tasks on one state of a table are combined, because each task looked up keys
independently, as the tasks of a MERGE do.

Rows that were stored before can be written unchanged, each with its `_VALUE_KIND`. Nothing is
filled in, counted or checked, and no two rows have the same key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from pyroaring import BitMap64

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.row_kind import RowKind
from keytide.errors import UnsupportedError
from keytide.format.index_files import DELETION_VECTORS, KEY_INDEX, IndexFile, IndexKey
from keytide.format.manifest_entry import ManifestEntry
from keytide.key_index.indexed_keys import NOTHING, Entries, Numbers, newest_of_each
from keytide.key_index.sorted_runs import DamagedRunError
from keytide.merge.order import IS_ADD, VALUE_KIND
from keytide.options import keys
from keytide.read.current_rows import by_name, exact, hashes_of
from keytide.snapshot.bucket_key_index import NewKeys, key_files_by_bucket
from keytide.snapshot.live_files import BucketId, BucketIndex, DeadRows, vector_files_by_bucket
from keytide.snapshot.state import TableState, TableView
from keytide.write.arrivals import (
    Arrivals,
    RowsToStore,
    judge,
    merged_rows,
    refuse_too_old,
    unmerged_rows,
)
from keytide.write.bucket_writer import BucketWriter, SequenceBase
from keytide.write.input_rows import Rows, complete_rows, typed_rows
from keytide.write.layout import BucketBatch, Placing
from keytide.write.moved_keys import Bucket, arrivals_of, load_bucket, places_of
from keytide.write.partition_spec import PartitionSpec
from keytide.write.refusals import refuse_unmergeable, without_errors
from keytide.write.task import Order, TaskResult, WriteTask, layout_of, tie_columns

# -- upserts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UpsertTask(WriteTask):
    """A `WriteTask` that maintains the key index.

    `entries` are the data files of each bucket, `key_files` the heads of the indexes, and
    `vector_files` mark rows as dead. Two tasks of a write must not have rows of the same bucket.
    """

    entries: Mapping[BucketId, tuple[ManifestEntry, ...]] = field(default_factory=dict)
    key_files: Mapping[BucketId, IndexFile] = field(default_factory=dict)
    vector_files: Mapping[BucketId, tuple[IndexFile, ...]] = field(default_factory=dict)
    states_rows: bool = False
    """Whether the rows are the new state of existing rows, like those of an UPDATE."""
    replaces_rows: bool = False
    """Whether all existing rows are removed."""

    @classmethod
    def on(cls, state: TableState) -> UpsertTask:
        """A task that writes on top of a snapshot. Raises the same errors as `layout_of`."""
        by_bucket: dict[BucketId, list[ManifestEntry]] = {}
        for entry in state.live.entries:
            by_bucket.setdefault((entry.partition, entry.bucket), []).append(entry)
        return cls(
            state.view,
            layout_of(state),
            SequenceBase.after(state.live),
            entries={bucket: tuple(entries) for bucket, entries in by_bucket.items()},
            key_files=key_files_by_bucket(state.key_files),
            vector_files=vector_files_by_bucket(state.vector_files),
        )

    @classmethod
    def anew(cls, state: TableState, partition: PartitionSpec | None = None) -> UpsertTask:
        """See `WriteTask`."""
        task = super().anew(state, partition)
        assert isinstance(task, UpsertTask)
        return replace(task, replaces_rows=True)

    def of_statement(self) -> UpsertTask:
        """See `WriteTask`."""
        return replace(self, states_rows=True)

    @property
    def _counts_late(self) -> bool:
        return True  # the index finds them without extra work

    def _write(
        self, run: pa.Table, base: SequenceBase, placing: Placing, before: Iterable[TaskResult]
    ) -> TaskResult:
        """Write rows bucket by bucket. `before` is what was already written of the part."""
        view = self.view
        given = typed_rows(run, view.schema, view.options, view.name)
        errors: Mapping[str, int] = {}
        if view.options.counts_row_errors and not self.states_rows:
            given, errors = without_errors(given, view)
        rows = complete_rows(given, view.schema, view.options, view.name)
        if self.partition is not None:
            self.partition.check(rows.table)
        refuse_unmergeable(rows.frame, view, rows.refusals, states_rows=self.states_rows)
        written = self._placed(rows, base, placing, before)
        places = () if self.order is Order.KNOWN else tie_columns(rows.frame, view)
        return replace(written, rows=run.num_rows, errors=errors, places=places)

    def _placed(
        self, rows: Rows, base: SequenceBase, placing: Placing, before: Iterable[TaskResult]
    ) -> TaskResult:
        """Write rows in the table's types into their buckets."""
        frame, cut = placing.cut(rows.frame, rows.table, self.view)
        made = TaskResult.together(before)
        parts = [
            self._upserted(bucket, part, base, placing, self._bucket(bucket, made))
            for bucket, part in cut.parts(frame)
        ]
        return TaskResult.together(parts)

    def _upserted(
        self, bucket: BucketId, rows: pl.DataFrame, base: SequenceBase, placing: Placing, on: Bucket
    ) -> TaskResult:
        merges = self.view.options.merges_rows and not self.states_rows
        wanted = self.view.schema.names if merges else ()
        try:
            found = arrivals_of(self.view, bucket, rows, on, wanted)
        except DamagedRunError as error:
            self.confirm()
            on = on.anew(self.view, bucket, str(error))
            found = arrivals_of(self.view, bucket, rows, on, wanted)
        arrivals = found
        if found.is_too_old.any() and (self.states_rows or self.replaces_rows):
            # Never too old are rows that replace everything, and rows of a statement that are the
            # new state of an existing row.
            is_free = np.ones(len(found), np.bool_)
            if not self.replaces_rows:
                is_free = on.lives((found.current.is_known, found.entries))
            arrivals = replace(found, floor=np.where(is_free, NOTHING, found.floor))
            refuse_too_old(arrivals, self.view)
        judged = judge(arrivals)
        late = int(judged.is_late.sum())
        kept = (merged_rows if merges else unmerged_rows)(arrivals, judged, self.view)
        if not kept.rows.height:
            return TaskResult((), rows.height, late)
        batch = BucketBatch((bucket,), np.array([kept.rows.height]), kept.rows)
        written = BucketWriter(self.view, placing.total_buckets).write([batch], base).data
        keys, dead = _indexed(self.view, on, arrivals, kept, written)
        indexes: dict[IndexKey, BucketIndex] = {
            (KEY_INDEX, *bucket): keys,
            (DELETION_VECTORS, *bucket): dead,
        }
        return TaskResult(written, rows.height, late, indexes=indexes)

    def bucket(self, bucket: BucketId) -> Bucket:
        """A bucket as it was found. Raises the same errors as `load_bucket`."""
        head, vectors = self.key_files.get(bucket), self.vector_files.get(bucket, ())
        entries = self.entries.get(bucket, ())
        return load_bucket(self.view, bucket, entries, head, vectors, self.confirm)

    def newest_versions(
        self, bucket: BucketId, keys: pl.DataFrame, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """The same as `newest_versions` of `read.lookup`, found by the index of a bucket."""
        on = self.bucket(bucket)
        found = on.index.find(hashes_of(keys, self.view))
        names = dict.fromkeys((*columns, *keys.columns))
        current = on.current(self.view, bucket[0], found, names)
        kinds = pl.Series(VALUE_KIND, current.lives).replace_strict(
            {True: int(RowKind.INSERT), False: int(RowKind.DELETE)}, return_dtype=pl.Int8
        )
        rows = current.rows.with_columns(kinds)
        yield rows.join(keys, on=keys.columns, how="semi").select(*columns, VALUE_KIND)

    def _bucket(self, bucket: BucketId, made: TaskResult) -> Bucket:
        """A bucket as this task has left it, if it has written to it."""
        keys, dead = made.indexes.get((KEY_INDEX, *bucket)), made.dead.get(bucket)
        if not isinstance(keys, NewKeys) or dead is None:
            return self.bucket(bucket)
        own = [e for e in made.entries if (e.partition, e.bucket) == bucket]
        files = {e.file.file_name: e for e in (*self.entries.get(bucket, ()), *own)}
        return Bucket(keys.index, dead, keys.based_on, files)


def _indexed(
    view: TableView,
    on: Bucket,
    arrivals: Arrivals,
    kept: RowsToStore,
    written: tuple[ManifestEntry, ...],
) -> tuple[NewKeys, DeadRows]:
    """The new index of a bucket and its dead rows, after files were written."""
    head = on.index.head
    files, positions, covered = places_of(written, head)
    comparisons = view.comparison.in_index(exact(kept.rows, view.comparison.fields))
    hashes = arrivals.hashes.take(kept.source)
    replaced = kept.source[kept.is_current & arrivals.current.is_known[kept.source]]
    before = arrivals.entries
    dies = ~kept.is_current | ~kept.rows.select(IS_ADD.alias("add"))["add"].to_numpy()
    old = by_name(before.files[replaced], before.positions[replaced], on.index.names())
    own = by_name(files[dies], positions[dies], {file.number: file.name for file in covered})
    dead = on.dead.marking({**old, **own}, wide=view.options.deletion_vectors_bitmap64)

    # The stored rows that are current, in the order of their hashes.
    stored_as = np.full(len(arrivals), -1)
    stored_as[kept.source[kept.is_current]] = np.flatnonzero(kept.is_current)
    in_order: Numbers = stored_as[arrivals.hashes.order]
    new = Entries(hashes, files, positions, comparisons).take(in_order[in_order >= 0])
    later = newest_of_each(Entries.together([on.index.pending, newest_of_each(new)]))
    gone = before.take(replaced)
    about = head.about([*head.files, *covered], new, gone, comparisons)
    return NewKeys(replace(on.index, head=about, pending=later), dead, on.stored), dead


# -- combined results of parallel tasks ------------------------------------------------------------


def joined_upserts(view: TableView, parts: Sequence[TaskResult]) -> TaskResult:
    """The combined results of parallel tasks on one state of a table, as `TaskResult.together`.

    If several tasks have rows of one key, the row with the largest comparison value is current, on
    a tie that of the later task. Raises `UnsupportedError` for such rows if the index cannot
    compare them, and if rows are merged.
    """
    joined = TaskResult.together([replace(part, indexes={}) for part in parts])
    indexes: dict[IndexKey, list[BucketIndex]] = {}
    for part in parts:
        for key, index in part.indexes.items():
            indexes.setdefault(key, []).append(index)
    made = {key: found[0].joined(found[1:]) for key, found in indexes.items() if len(found) == 1}
    for key, found in indexes.items():
        if key[0] == KEY_INDEX and len(found) > 1:
            vectors = (DELETION_VECTORS, *key[1:])
            made[key], made[vectors] = _joined(view, [e for e in found if isinstance(e, NewKeys)])
    return replace(joined, indexes=made)


def _joined(view: TableView, parts: Sequence[NewKeys]) -> tuple[NewKeys, DeadRows]:
    """The index of a bucket, and its dead rows, after several independent tasks."""
    first, heads = parts[0], [part.index.head for part in parts]
    common = {*first.names}.intersection(*(part.names for part in parts[1:]))
    known = [file for file in heads[0].files if file.name in common]
    own_from = min(f.number for head in heads for f in head.files if f.name not in common)
    files, number = list(known), own_from
    entries = [first.index.pending.take(np.flatnonzero(first.index.pending.files < own_from))]
    for part in parts:
        own = [file for file in part.index.head.files if file.number >= own_from]
        shift = number - own_from
        files += [replace(file, number=file.number + shift) for file in own]
        new = part.index.pending.take(np.flatnonzero(part.index.pending.files >= own_from))
        entries.append(replace(new, files=new.files + shift))
        number += len(own)
    _refuse_undecided(view, Entries.together(entries[1:]))
    every = Entries.together(entries)
    order = np.lexsort((np.arange(len(every)), every.comparisons))
    later = newest_of_each(every.take(order))

    # The dead rows of all parts, plus the rows that are superseded by a row of another part.
    is_left = np.isin(every.files << 40 | every.positions, later.files << 40 | later.positions)
    dead = first.dead
    wide = any(isinstance(v, BitMap64) for part in parts for v in part.dead.vectors.values())
    for part in parts[1:]:
        dead = dead.marking({name: part.dead.of(name) for name in part.dead.vectors}, wide=wide)
    names = {file.number: file.name for file in files}
    gone = by_name(every.files[~is_left], every.positions[~is_left], names)
    dead = dead.marking(gone, wide=wide)
    head = replace(heads[0], mark=max(head.mark for head in heads), next_number=number)
    known_runs = first.index.on(view.store)
    index = replace(known_runs, head=replace(head, files=tuple(files)), pending=later)
    return NewKeys(index.with_counts(), dead, first.based_on), dead


def _refuse_undecided(view: TableView, new: Entries) -> None:
    """Raise `UnsupportedError` for rows of one key in several tasks that cannot be compared."""
    comparison = view.comparison
    if comparison.is_in_index and not view.options.merges_rows:
        return
    repeated = len(new) - len(newest_of_each(new))
    if repeated:
        why = (
            "merges the rows of a key"
            if view.options.merges_rows
            else f"compares them by {', '.join(comparison.names)}"
        )
        raise UnsupportedError(
            f"table {view.name}: tasks side by side wrote rows of {repeated} keys more than once, "
            f"and the table {why} ('{keys.UPSERT_MODE}' = '{view.options.upsert_mode}'), for which "
            f"each task had to know of the others; write them by one task, or in several statements"
        )


# -- the write task of a table ---------------------------------------------------------------------


def task_on(state: TableState) -> WriteTask:
    """A task that writes on top of a snapshot. Raises the same errors as `layout_of`."""
    return _class_of(state).on(state)


def task_anew(state: TableState, partition: PartitionSpec | None = None) -> WriteTask:
    """A task whose rows replace others, see `WriteTask.anew`."""
    return _class_of(state).anew(state, partition)


def _class_of(state: TableState) -> type[WriteTask]:
    return UpsertTask if state.view.kind.has_key_index else WriteTask


# -- stored rows, unchanged ------------------------------------------------------------------------


def task_of_stored(state: TableState) -> WriteTask:
    """A task whose rows replace stored rows, and are assigned to buckets as the table says now.

    Each table of rows has a column `_VALUE_KIND`. Raises the same errors as `layout_of`.
    """
    if state.view.kind.has_key_index:
        return _StoredRowsIndexed.anew(state).of_statement()
    return _StoredRows.anew(state)


@dataclass(frozen=True)
class _StoredRows(WriteTask):
    """Accepts rows in stored form."""

    def _write(
        self, run: pa.Table, base: SequenceBase, placing: Placing, before: Iterable[TaskResult]
    ) -> TaskResult:
        rows = Rows(run.drop_columns([VALUE_KIND]), run.column(VALUE_KIND))
        return self._placed(rows, base, placing, before)


@dataclass(frozen=True)
class _StoredRowsIndexed(_StoredRows, UpsertTask):
    """The same for tables with a key index."""
