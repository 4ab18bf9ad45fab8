"""Writes into a table with an index of keys: rows are appended, and what they replace dies.

All rows of a write are stored as they came. The index says where the current row of each key lies,
so that each key's row before is marked as dead, and so is a row that comes late or deletes. Whoever
reads the files without the dead rows reads one row of a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pyroaring import BitMap64

from keytide.callers import warn_caller
from keytide.errors import DataError
from keytide.format.arrow import to_arrow
from keytide.format.index_manifest import DELETION_VECTORS, KEY_INDEX, IndexFile, IndexKey
from keytide.format.manifest import ManifestEntry
from keytide.index.comparison import comparison_numbers
from keytide.index.entries import Entries, Numbers, newest_of_each
from keytide.index.hashes import KeyHashes, hash_keys
from keytide.index.head import Head, IndexedFile
from keytide.merge.order import IS_ADD
from keytide.table.read.runs import StoredVersions
from keytide.table.read.sections import PlannedFile
from keytide.table.state.bucket_index import BucketIndex
from keytide.table.state.dead_rows import DeadRows, load_dead_rows, vector_files_by_bucket
from keytide.table.state.key_index import (
    KeyIndex,
    NewKeys,
    key_files_by_bucket,
    load_key_index,
    why_not_covered,
)
from keytide.table.state.live_files import BucketId
from keytide.table.state.state import TableState
from keytide.table.state.view import TableView
from keytide.table.write.bucket_writer import BucketWriter, SequenceBase
from keytide.table.write.cut import BucketBatch
from keytide.table.write.input_rows import incoming_rows
from keytide.table.write.layout import Placing
from keytide.table.write.layouts import layout_of
from keytide.table.write.refusals import refuse_unmergeable
from keytide.table.write.task import WriteTask, Written

__all__ = [
    "Bucket",
    "UpsertTask",
    "found_bucket",
    "joined_upserts",
    "keys_of",
    "places_of",
    "rebuilt",
]

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Bucket:
    """What a write goes by in a bucket: the index of its keys, and its dead rows."""

    index: KeyIndex
    dead: DeadRows
    stored: tuple[IndexFile, ...] = ()
    """The head of the index that a snapshot has."""


@dataclass(frozen=True)
class UpsertTask(WriteTask):
    """A `WriteTask` that keeps the index of keys.

    `entries` are the data files of each bucket, `key_files` the heads of the indexes, and
    `vector_files` what marks rows as dead. No two tasks of a write may have rows of one bucket.
    """

    entries: Mapping[BucketId, tuple[ManifestEntry, ...]] = field(default_factory=dict)
    key_files: Mapping[BucketId, IndexFile] = field(default_factory=dict)
    vector_files: Mapping[BucketId, tuple[IndexFile, ...]] = field(default_factory=dict)

    @classmethod
    def on(cls, state: TableState) -> UpsertTask:
        """A task that writes on top of a snapshot. Raises what `layout_of` raises."""
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

    @property
    def _counts_late(self) -> bool:
        return True  # the index tells anyway

    def _write(
        self, run: pa.Table, base: SequenceBase, placing: Placing, before: Iterable[Written]
    ) -> Written:
        """Write rows bucket by bucket; `before` tells what was written of the part so far."""
        view = self.view
        rows = incoming_rows(run, view.schema, view.options, view.name)
        if self.partition is not None:
            self.partition.check(rows.table)
        frame = rows.frame
        refuse_unmergeable(frame, view)
        frame, cut = placing.cut(frame, rows.table, view)
        made = Written.together(before).indexes
        parts = [
            self._upserted(bucket, part, base, placing, self._bucket(bucket, made))
            for bucket, part in cut.parts(frame)
        ]
        return replace(Written.together(parts), rows=run.num_rows)

    def _upserted(
        self, bucket: BucketId, rows: pl.DataFrame, base: SequenceBase, placing: Placing, on: Bucket
    ) -> Written:
        view = self.view
        hashes, comparisons = keys_of(rows, view)
        is_known, stored = on.index.find(hashes)
        is_late, is_current = _judged(hashes, comparisons, is_known, stored)
        is_delete = ~rows.select(IS_ADD.alias("add"))["add"].to_numpy()
        batch = BucketBatch((bucket,), np.array([rows.height]), rows)
        written = BucketWriter(view, placing.total_buckets).write([batch], base)
        files, positions, covered = places_of(written.data, on.index.head)
        names = {f.number: f.name for f in covered}
        replaced = is_current & is_known
        dies = ~is_current | is_delete
        old = _by_name(stored.files[replaced], stored.positions[replaced], on.index.names())
        own = _by_name(files[dies], positions[dies], names)
        dead = on.dead.marking({**old, **own}, wide=view.options.deletion_vectors_bitmap64)
        new = Entries(hashes, files, positions, comparisons).take(np.flatnonzero(is_current))
        later = newest_of_each(Entries.together([on.index.later, new]))
        every = (*on.index.head.files, *covered)
        index = replace(on.index, head=replace(on.index.head, files=every), later=later)
        return Written(
            written.data,
            rows.height,
            int(is_late.sum()),
            indexes={
                (DELETION_VECTORS, *bucket): dead,
                (KEY_INDEX, *bucket): NewKeys(index, every, dead, on.stored),
            },
        )

    # -- what there is ----------------------------------------------------------------------------

    def _bucket(self, bucket: BucketId, made: Mapping[IndexKey, BucketIndex]) -> Bucket:
        """A bucket as it was found, or as this task has left it."""
        keys, dead = made.get((KEY_INDEX, *bucket)), made.get((DELETION_VECTORS, *bucket))
        if isinstance(keys, NewKeys) and isinstance(dead, DeadRows):
            return Bucket(keys.index, dead, keys.based_on)
        head, vectors = self.key_files.get(bucket), self.vector_files.get(bucket, ())
        return found_bucket(self.view, bucket, self.entries.get(bucket, ()), head, vectors)


def found_bucket(
    view: TableView,
    bucket: BucketId,
    entries: Sequence[ManifestEntry],
    head: IndexFile | None,
    vectors: tuple[IndexFile, ...],
) -> Bucket:
    """A bucket as a snapshot has it: with these data files, head of the index, and vectors.

    Where the index is not that of its rows it is built anew, and a warning says why. Raises
    `DataError` for vectors that cannot be read, and `UnsupportedError` for an index of a newer
    release.
    """
    dead = load_dead_rows(view.store, vectors, view.name)
    if head is None and not entries:
        return Bucket(KeyIndex(Head(view.options.upsert_hash_function)), dead)
    stored, reason = () if head is None else (head,), "there is none"
    if head is not None:
        try:
            index = load_key_index(view.store, head)
        except DataError as error:
            reason = str(error)
        else:
            rows = {entry.file.file_name: entry.file.row_count for entry in entries}
            counts = {name: len(vector) for name, vector in dead.vectors.items()}
            why = why_not_covered(index.head, rows, counts)
            if why is None:
                return Bucket(index, dead, stored)
            reason = why
    warn_caller(
        f"table {view.name}: the index of the keys of bucket {bucket[1]} is built anew from its "
        f"rows: {reason}"
    )
    return Bucket(rebuilt(view, entries, dead), dead, stored)


def keys_of(rows: pl.DataFrame, view: TableView) -> tuple[KeyHashes, Numbers]:
    """What stands for the keys of some rows, and what the rows are compared by."""
    fields = view.schema.select(view.schema.primary_keys)
    key = to_arrow(rows, pa.schema([pa.field(f.name, f.type.to_arrow()) for f in fields]))
    hashes = hash_keys(key, fields, view.options.upsert_hash_function)
    if not view.options.sequence_field:
        return hashes, np.zeros(rows.height, np.int64)
    (compared,) = view.schema.select(view.options.sequence_field)
    schema = pa.schema([pa.field(compared.name, compared.type.to_arrow())])
    values = to_arrow(rows, schema).column(0)
    is_descending = view.options.sequence_sort_order == "descending"
    return hashes, comparison_numbers(values, descending=is_descending)


def _judged(
    hashes: KeyHashes, comparisons: Numbers, is_known: Flags, stored: Entries
) -> tuple[Flags, Flags]:
    """Which rows come late, and which are the current ones of their keys.

    A row is late where an earlier one of its key, in the table or of the write, is fresher; of
    those that are as fresh the later one counts.
    """
    late = is_known & (comparisons < stored.comparisons)
    again = np.flatnonzero(_come_again(hashes))
    if not len(again):
        return late, ~late
    late[again] = _late_among(
        hashes.take(again),
        comparisons[again],
        np.where(is_known, stored.comparisons, _LOWEST)[again],
    )
    is_current = ~late
    kept = again[~late[again]]
    some = hashes.take(kept)
    rows = pl.DataFrame({"head": some.heads, "check": some.checks, "row": kept})
    last = rows.group_by("head", "check").agg(pl.col("row").last())["row"].to_numpy()
    is_current[kept] = False
    is_current[last] = True
    return late, is_current


_LOWEST = np.iinfo(np.int64).min


def _come_again(hashes: KeyHashes) -> Flags:
    """Which rows have a head that another row has too, as those of one key do."""
    order = np.argsort(hashes.heads, kind="stable")
    heads = hashes.heads[order]
    is_same = np.concatenate([[False], heads[1:] == heads[:-1], [False]])
    again = np.empty(len(hashes), np.bool_)
    again[order] = is_same[1:] | is_same[:-1]
    return again


def _late_among(hashes: KeyHashes, comparisons: Numbers, stored: Numbers) -> Flags:
    """Which rows come after a fresher one of their key, or than which a stored one is fresher."""
    key = ["head", "check"]
    frame = pl.DataFrame(
        {"head": hashes.heads, "check": hashes.checks, "fresh": comparisons, "stored": stored}
    )
    before = pl.col("fresh").shift(1, fill_value=_LOWEST).over(key)
    frame = frame.with_columns(before=before).with_columns(pl.col("before").cum_max().over(key))
    late = frame.select(pl.col("fresh") < pl.max_horizontal("before", "stored")).to_series()
    return late.to_numpy()


def places_of(
    entries: Iterable[ManifestEntry], head: Head
) -> tuple[Numbers, Numbers, tuple[IndexedFile, ...]]:
    """The file and position of each row of new files, and the files."""
    first = head.next_number
    files = tuple(
        IndexedFile(first + n, e.file.file_name, e.file.row_count, 0) for n, e in enumerate(entries)
    )
    counts = [file.rows for file in files]
    numbers = np.repeat([file.number for file in files], counts).astype(np.int64)
    positions = [np.empty(0, np.int64), *(np.arange(count) for count in counts)]
    return numbers, np.concatenate(positions), files


def _by_name(files: Numbers, positions: Numbers, names: Mapping[int, str]) -> dict[str, Numbers]:
    return {names[int(number)]: positions[files == number] for number in np.unique(files)}


# -- parts of one write ----------------------------------------------------------------------------


def joined_upserts(parts: Sequence[Written]) -> Written:
    """What tasks side by side made of one state of a table, as `Written.together`.

    Where several have rows of one key, the freshest is the current one, and of those that are as
    fresh that of the later task.
    """
    joined = Written.together([replace(part, indexes={}) for part in parts])
    indexes: dict[IndexKey, list[BucketIndex]] = {}
    for part in parts:
        for key, index in part.indexes.items():
            indexes.setdefault(key, []).append(index)
    made = {key: found[0].joined(found[1:]) for key, found in indexes.items() if len(found) == 1}
    for key, found in indexes.items():
        if key[0] == KEY_INDEX and len(found) > 1:
            vectors = (DELETION_VECTORS, *key[1:])
            keys = [each for each in found if isinstance(each, NewKeys)]
            made[key], made[vectors] = _joined(keys)
    return replace(joined, indexes=made)


def _joined(parts: Sequence[NewKeys]) -> tuple[NewKeys, DeadRows]:
    """The index of a bucket, and its dead rows, after several tasks that knew of none other."""
    first = parts[0]
    known = [file for file in first.files if all(file in part.files for part in parts[1:])]
    own_from = max((file.number for file in known), default=-1) + 1
    files, entries, number = (
        list(known),
        [first.index.later.take(_below(first, own_from))],
        own_from,
    )
    for part in parts:
        own = [file for file in part.files if file.number >= own_from]
        shift = number - own_from
        files += [replace(file, number=file.number + shift) for file in own]
        new = part.index.later.take(np.flatnonzero(part.index.later.files >= own_from))
        entries.append(replace(new, files=new.files + shift))
        number += len(own)
    every = Entries.together(entries)
    order = np.lexsort((np.arange(len(every)), every.comparisons))
    later = newest_of_each(every.take(order))
    dead = _without_replaced(parts, every, later, {file.number: file.name for file in files})
    head = replace(first.index.head, files=tuple(files))
    index = replace(first.index, head=head, later=later)
    return NewKeys(index, tuple(files), dead, first.based_on), dead


def _below(part: NewKeys, number: int) -> Numbers:
    return np.flatnonzero(part.index.later.files < number)


def _without_replaced(
    parts: Sequence[NewKeys], every: Entries, left: Entries, names: Mapping[int, str]
) -> DeadRows:
    """The dead rows of all parts, and the rows of which one has a fresher one in another."""
    places = every.files << 40 | every.positions
    is_left = np.isin(places, left.files << 40 | left.positions)
    dead = parts[0].dead
    wide = any(isinstance(v, BitMap64) for part in parts for v in part.dead.vectors.values())
    for part in parts[1:]:
        dead = dead.marking({name: part.dead.of(name) for name in part.dead.vectors}, wide=wide)
    gone = _by_name(every.files[~is_left], every.positions[~is_left], names)
    return dead.marking(gone, wide=wide)


# -- an index of what is stored --------------------------------------------------------------------


def rebuilt(view: TableView, entries: Iterable[ManifestEntry], dead: DeadRows) -> KeyIndex:
    """The index of a bucket, made of its rows alone.

    A key's row that lives is its current one. Of a key without, the freshest of its dead rows is,
    and of those that are as fresh the last one.
    """
    head, parts = Head(view.options.upsert_hash_function), []
    for entry in sorted(entries, key=lambda e: (e.file.min_sequence_number, e.file.file_name)):
        names = (*view.schema.primary_keys, *view.options.sequence_field)
        stored = StoredVersions(view, entry.partition, tuple(dict.fromkeys(names)))
        rows = stored.of_file(PlannedFile(entry, has_kinds=False))
        hashes, comparisons = keys_of(rows, view)
        files, positions, covered = places_of([entry], head)
        lives = np.ones(rows.height, np.bool_)
        lives[dead.of(entry.file.file_name)] = False
        parts.append((Entries(hashes, files, positions, comparisons), lives))
        known = tuple(replace(f, dead=int((~lives).sum())) for f in covered)
        head = replace(head, files=(*head.files, *known))
    every = Entries.together([entries for entries, _ in parts])
    lives = np.concatenate([np.ones(0, np.bool_), *(lives for _, lives in parts)])
    order = np.lexsort((np.arange(len(every)), every.comparisons, lives))
    return KeyIndex(head, later=newest_of_each(every.take(order)))
