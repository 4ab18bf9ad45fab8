"""Writes into a table with a key index: appends rows, and marks replaced rows as dead.

All rows of a write are stored as they arrived, or one per key if rows are merged. The index says
where the current row of each key is. So the previous row of each key is marked as dead, and so are
rows that arrive late or delete. The files without their dead rows contain one row per key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.format.index_files import DELETION_VECTORS, KEY_INDEX, IndexFile, IndexKey
from keytide.format.manifest import ManifestEntry
from keytide.key_index.keys import NOTHING, Entries, Numbers, newest_of_each
from keytide.key_index.runs import DamagedRunError
from keytide.merge.order import IS_ADD
from keytide.read.places import by_name
from keytide.read.row_keys import exact
from keytide.snapshot.key_index import NewKeys, key_files_by_bucket
from keytide.snapshot.live_files import BucketId, BucketIndex, DeadRows, vector_files_by_bucket
from keytide.snapshot.state import TableState, TableView
from keytide.write.arrivals import Arrivals, Kept, judge
from keytide.write.bucket_writer import BucketWriter, SequenceBase
from keytide.write.input_rows import Rows, complete_rows, typed_rows
from keytide.write.keeping import as_they_came, refuse_too_old
from keytide.write.layout import BucketBatch, Placing
from keytide.write.layouts import layout_of
from keytide.write.moving_keys import Bucket, arrived, found_bucket, places_of
from keytide.write.partition_spec import PartitionSpec
from keytide.write.refusals import refuse_unmergeable, without_errors
from keytide.write.row_merging import merged_rows
from keytide.write.task import WriteTask, Written
from keytide.write.ties import Order, tie_columns

__all__ = ["UpsertTask"]


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
        self, run: pa.Table, base: SequenceBase, placing: Placing, before: Iterable[Written]
    ) -> Written:
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
        self, rows: Rows, base: SequenceBase, placing: Placing, before: Iterable[Written]
    ) -> Written:
        """Write rows in the table's types into their buckets."""
        frame, cut = placing.cut(rows.frame, rows.table, self.view)
        made = Written.together(before)
        parts = [
            self._upserted(bucket, part, base, placing, self._bucket(bucket, made))
            for bucket, part in cut.parts(frame)
        ]
        return Written.together(parts)

    def _upserted(
        self, bucket: BucketId, rows: pl.DataFrame, base: SequenceBase, placing: Placing, on: Bucket
    ) -> Written:
        merges = self.view.options.merges_rows and not self.states_rows
        wanted = self.view.schema.names if merges else ()
        try:
            found = arrived(self.view, bucket, rows, on, wanted)
        except DamagedRunError as error:
            self.confirm()
            on = on.anew(self.view, bucket, str(error))
            found = arrived(self.view, bucket, rows, on, wanted)
        arrivals = self._unbound(found, on)
        judged = judge(arrivals)
        late = int(judged.is_late.sum())
        kept = (merged_rows if merges else as_they_came)(arrivals, judged, self.view)
        if not kept.rows.height:
            return Written((), rows.height, late)
        batch = BucketBatch((bucket,), np.array([kept.rows.height]), kept.rows)
        written = BucketWriter(self.view, placing.total_buckets).write([batch], base).data
        keys, dead = _indexed(self.view, on, arrivals, kept, written)
        indexes: dict[IndexKey, BucketIndex] = {
            (KEY_INDEX, *bucket): keys,
            (DELETION_VECTORS, *bucket): dead,
        }
        return Written(written, rows.height, late, indexes=indexes)

    def _unbound(self, arrivals: Arrivals, on: Bucket) -> Arrivals:
        """The rows, of which some are never too old: rows that replace everything, and rows of a
        statement that are the new state of an existing row.

        Raises `InvalidError` for rows of a statement that would be new and are too old.
        """
        if not arrivals.is_too_old.any() or not (self.states_rows or self.replaces_rows):
            return arrivals
        is_free = np.ones(len(arrivals), np.bool_)
        if not self.replaces_rows:
            is_free = on.lives((arrivals.current.is_known, arrivals.entries))
        arrivals = replace(arrivals, floor=np.where(is_free, NOTHING, arrivals.floor))
        refuse_too_old(arrivals, self.view)
        return arrivals

    def bucket(self, bucket: BucketId) -> Bucket:
        """A bucket as it was found. Raises the same errors as `found_bucket`."""
        head, vectors = self.key_files.get(bucket), self.vector_files.get(bucket, ())
        entries = self.entries.get(bucket, ())
        return found_bucket(self.view, bucket, entries, head, vectors, self.confirm)

    def _bucket(self, bucket: BucketId, made: Written) -> Bucket:
        """A bucket as this task has left it, if it has written to it."""
        keys, dead = made.indexes.get((KEY_INDEX, *bucket)), made.dead.get(bucket)
        if not isinstance(keys, NewKeys) or dead is None:
            return self.bucket(bucket)
        own = [e for e in made.entries if (e.partition, e.bucket) == bucket]
        files = {e.file.file_name: e for e in (*self.entries.get(bucket, ()), *own)}
        return Bucket(keys.index, dead, keys.based_on, files)


def _indexed(
    view: TableView, on: Bucket, arrivals: Arrivals, kept: Kept, written: tuple[ManifestEntry, ...]
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
    new = Entries(hashes, files, positions, comparisons).take(_current_in_order(arrivals, kept))
    later = newest_of_each(Entries.together([on.index.later, newest_of_each(new)]))
    gone = before.take(replaced)
    about = head.about([*head.files, *covered], new, gone, comparisons)
    return NewKeys(replace(on.index, head=about, later=later), dead, on.stored), dead


def _current_in_order(arrivals: Arrivals, kept: Kept) -> Numbers:
    """The stored rows that are current, in the order of their hashes."""
    stored_as = np.full(len(arrivals), -1)
    stored_as[kept.source[kept.is_current]] = np.flatnonzero(kept.is_current)
    in_order: Numbers = stored_as[arrivals.hashes.order]
    return in_order[in_order >= 0]
