"""Rebuilds the key index of a bucket from its rows, and settles which row of each key lives.

Keys are processed in the order of their hashes, a part of them at a time, as many as 'read.memory'
has room for. The files are read once for each part. The result goes into a temporary file of the
process.

Other engines append rows to a table with a key index and replace none, so a key can have several
live rows until the next write into its bucket. Readers see the row that this write will keep.

Other engines also compact the table, and remove the rows of deleted keys. What the earlier index
knows of these keys is kept, so that they stay deleted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import RowKind
from keytide.errors import DataError, UnsupportedError
from keytide.format import paths
from keytide.format.arrow import polars_schema
from keytide.format.cache import METADATA
from keytide.format.index_files import IndexFile
from keytide.format.manifest_entry import FileSource, ManifestEntry
from keytide.key_index.indexed_keys import NOTHING, Entries, KeyHashes, Numbers, newest_of_each
from keytide.key_index.sorted_runs import DamagedRunError, Head, IndexedFile, Run, write_run
from keytide.predicate.row_expression import with_tombstones
from keytide.read.current_rows import Flags, by_name, exact, hashes_of, place_numbers, split_places
from keytide.read.merged_versions import rows_in
from keytide.read.runs import StoredVersions
from keytide.read.sections import PlannedFile
from keytide.snapshot.bucket_key_index import (
    KeyIndex,
    key_files_by_bucket,
    load_head,
    load_key_index,
)
from keytide.snapshot.live_files import (
    BucketId,
    DeadRows,
    load_dead_rows,
    memory_vectors,
    vector_files_by_bucket,
)
from keytide.snapshot.state import TableState, TableView
from keytide.store.interface import disk_errors

# -- rebuild ---------------------------------------------------------------------------------------


# Measured: the memory for a row until it is known which row of its key is current.
_ROW_BYTES = 256
# Fewer rows save hardly any memory and take more time.
_ROWS_MIN = 8 << 10


def bare_head(view: TableView) -> Head:
    """The head of an index without rows."""
    return Head(view.options.upsert_hash_function, compared=view.comparison.unit)


@dataclass(frozen=True)
class SettledBucket:
    """The index of a bucket, and the dead rows with which each key has at most one live row."""

    index: KeyIndex
    dead: DeadRows


def settled_bucket(
    view: TableView,
    entries: Iterable[ManifestEntry],
    dead: DeadRows,
    before: KeyIndex | None = None,
) -> SettledBucket:
    """The index of a bucket, built from its rows. The next commit stores its run.

    `before` is the earlier index. In the files that it describes, all if it is None, the current
    row of a key is its live row. If there is none, it is the dead row with the largest comparison
    value, and the last one on a tie. If several producers have their own columns, a row that was
    current is in no column behind earlier rows of its key. So the last of these rows has the
    largest value in each column, and late rows have smaller values in their columns.

    Other engines wrote the other files, and replaced no rows. Their rows count as if they had
    arrived in a write, in the order of the files: they replace the current row of their key, delete
    it, or are late. If the row that was current is in no file any more, a key without a row stays
    deleted, if entries contain the comparison values.
    """
    oldest_first = sorted(entries, key=lambda e: (e.file.min_sequence_number, e.file.file_name))
    removed = _RemovedRows.of(view, before, oldest_first, dead)
    known = None if before is None else frozenset(before.names().values())
    rows = _Rows(view, tuple(oldest_first), dead, known)
    rows_max = max(_ROWS_MIN, view.options.read_memory_bytes // _ROW_BYTES)
    parts = -(-(len(removed) + sum(e.file.row_count for e in oldest_first)) // rows_max)
    marks, dies = [removed.mark], [np.empty(0, np.int64)]

    def current() -> Iterator[Entries]:
        # A part of the keys at a time, in the order of the hashes.
        for part in range(parts):
            found = [*rows.of_keys(part, parts)]
            gone = removed.of_keys(part, parts)
            if found or len(gone):
                piece = _piece(view, gone, _RowEntries.together([rows.none, *found]))
                marks.append(piece.greatest)
                dies.append(piece.dies)
                yield piece.current

    # A run in a file that is deleted when the run is no longer used.
    with (
        disk_errors("write", tempfile.gettempdir()),
        tempfile.TemporaryFile(prefix="keytide-index-") as file,
    ):
        write_run(current(), file)
        file.flush()
        data = np.memmap(file, np.uint8, "r")
    run = Run.of(np.asarray(data), "the rebuilt index")
    names = dict(enumerate(entry.file.file_name for entry in oldest_first))
    marked = by_name(*split_places(np.concatenate(dies)), names)
    after = dead.marking(marked, wide=view.options.deletion_vectors_bitmap64)
    files = tuple(
        IndexedFile(n, file.file_name, file.row_count, after.count(file.file_name), 0)
        for n, file in enumerate(entry.file for entry in oldest_first)
    )
    head = replace(
        bare_head(view),
        files=files,
        mark=max(marks),
        next_number=removed.rowless + 1,
        rowless=removed.rowless if len(removed) else None,
    )
    return SettledBucket(KeyIndex(head, (run,) if len(run) else ()).with_counts(), after)


@dataclass(frozen=True)
class _Piece:
    """The current row of each of some keys, in the order of the hashes.

    `greatest` is the largest comparison value. `dies` are the places of live rows that are to die.
    """

    current: Entries
    greatest: int
    dies: Numbers


@dataclass(frozen=True)
class _RowEntries:
    """Some rows, in the order of writing: their entries, which of them are live, which are in known
    files, which delete, and their comparison values.
    """

    entries: Entries
    lives: Flags
    is_known: Flags
    deletes: Flags
    compared: pa.Table

    @classmethod
    def together(cls, parts: Sequence[_RowEntries]) -> _RowEntries:
        """The rows of all parts."""
        return cls(
            Entries.together([part.entries for part in parts]),
            np.concatenate([part.lives for part in parts]),
            np.concatenate([part.is_known for part in parts]),
            np.concatenate([part.deletes for part in parts]),
            pa.concat_tables([part.compared for part in parts]),
        )


def _piece(view: TableView, gone: Entries, rows: _RowEntries) -> _Piece:
    """`gone` are entries of removed rows, which came before all others, and no longer live."""
    every, none = Entries.together([gone, rows.entries]), np.zeros(len(gone), np.bool_)
    lives = np.concatenate([none, rows.lives])
    is_known = np.concatenate([~none, rows.is_known])
    deletes = np.concatenate([none, rows.deletes])
    numbers = view.comparison.numbers(rows.compared)
    freshness = np.hstack([np.tile(gone.comparisons, (len(numbers), 1)), numbers])
    order = np.lexsort((np.arange(len(every)), *freshness[::-1], lives))
    current = newest_of_each(every.take(order[is_known[order]]))
    places = place_numbers(every.files, every.positions)
    if not is_known.all():
        is_of_known = np.isin(places, place_numbers(current.files, current.positions))
        comes = np.flatnonzero(is_of_known | ~is_known)
        fresh = freshness[:, comes]
        before = largest_before(every.hashes.take(comes), fresh)
        is_late = np.any((fresh < before) & view.comparison.compared_columns(fresh), axis=0)
        current = newest_of_each(every.take(comes[~is_late]))
    stays = np.isin(places, place_numbers(current.files, current.positions))
    dies = lives & (~stays | (deletes & ~is_known))
    return _Piece(current, int(every.comparisons.max(initial=NOTHING)), places[dies])


@dataclass(frozen=True)
class _RemovedRows:
    """What an earlier index knows of the keys whose current rows are in no file any more.

    `removed` are the file numbers in their entries. In the new index, they get the number
    `rowless`. `mark` is the largest comparison value that the bucket had received.
    """

    rowless: int
    before: KeyIndex | None = None
    removed: frozenset[int] = frozenset()
    mark: int = NOTHING

    @classmethod
    def of(
        cls,
        view: TableView,
        before: KeyIndex | None,
        entries: Sequence[ManifestEntry],
        dead: DeadRows,
    ) -> _RemovedRows:
        """The rows that are not in the files of `entries`.

        There are none if the earlier index does not contain comparable values, and none if the
        files were not compacted but overwritten, because what was there before is not compared.
        """
        none, is_comparable = cls(len(entries)), view.comparison.is_in_index
        if before is None or not view.comparison.fields or not is_comparable:
            return none
        head, expected = before.head, bare_head(view)
        if (head.function, head.compared) != (expected.function, expected.compared):
            return none
        files, known = {e.file.file_name for e in entries}, {file.name for file in head.files}
        removed = [file for file in head.files if file.name not in files]

        # Engines that compact record it in the new file, which is missing if no row was left, and
        # remove the vectors of the old files. One that overwrites either removes the index or
        # leaves these vectors behind.
        is_compacted = any(file.dead for file in removed) or any(
            e.file.file_source == FileSource.COMPACT
            for e in entries
            if e.file.file_name not in known
        )
        if removed and (not is_compacted or any(file.name in dead.vectors for file in removed)):
            return none
        numbers = {file.number for file in removed}
        numbers |= set() if head.rowless is None else {head.rowless}
        return cls(len(entries), before, frozenset(numbers), head.mark)

    def __len__(self) -> int:
        """At least their number."""
        if self.before is None or not self.removed:
            return 0
        return sum(map(len, (*self.before.runs, self.before.pending)))

    def of_keys(self, part: int, parts: int) -> Entries:
        """The entries of the keys whose hashes are in one part of all hashes, in their order."""
        if self.before is None or not self.removed:
            return Entries.none()
        low, high = (-(-(n << 32) // parts) << 32 for n in (part, part + 1))
        try:
            every = self.before.between(low, high if part + 1 < parts else None)
        except DamagedRunError:
            return Entries.none()  # the rows have to do, as if there had been no index
        own = every.take(np.flatnonzero(np.isin(every.files, [*self.removed])))
        return replace(own, files=np.full(len(own), self.rowless), positions=np.arange(len(own)))


@dataclass(frozen=True)
class _Rows:
    """The rows of the files of a bucket, oldest file first."""

    view: TableView
    files: tuple[ManifestEntry, ...]
    dead: DeadRows
    known: Collection[str] | None = None

    def of_keys(self, part: int, parts: int) -> Iterator[_RowEntries]:
        """The rows of the keys whose hashes are in one part of all hashes, in the order of
        writing.
        """
        fields = self.view.comparison.fields
        for number, entry in enumerate(self.files):
            lives = np.ones(entry.file.row_count, np.bool_)
            lives[self.dead.of(entry.file.file_name)] = False
            is_known = self.known is None or entry.file.file_name in self.known
            start = 0
            for rows in self._batches(entry):
                hashes = hashes_of(rows, self.view)

                # The part of each hash if all hashes are split into equal parts. The lowest hashes
                # are in the first.
                high = hashes.heads >> np.uint64(32)
                found: Numbers = (high * np.uint64(parts) >> np.uint64(32)).astype(np.int64)
                own = np.flatnonzero(found == part)
                compared = exact(rows[pl.Series(own)], fields)
                numbers = self.view.comparison.in_index(compared)
                places = (np.full(len(own), number), start + own, numbers)

                # Which rows their columns mark as deletes.
                adds = pa.chunked_array([np.full(rows.height, int(RowKind.INSERT), np.int8)])
                marks = exact(rows, self.view.schema.select(self._marks))
                columns = dict(zip(marks.column_names, marks.columns, strict=True))
                kinds = with_tombstones(adds, columns, self.view.schema, self.view.options)
                deletes: Flags = np.asarray(kinds) == int(RowKind.DELETE)
                yield _RowEntries(
                    Entries(hashes.take(own), *places),
                    lives[start + own],
                    np.full(len(own), is_known),
                    deletes[own],
                    compared,
                )
                start += rows.height

    @property
    def none(self) -> _RowEntries:
        """No rows."""
        nothing = np.empty(0, np.bool_)
        fields = self.view.comparison.fields
        compared = exact(pl.DataFrame(schema=polars_schema(fields)), fields)
        return _RowEntries(Entries.none(), nothing, nothing, nothing, compared)

    @property
    def _marks(self) -> tuple[str, ...]:
        options = self.view.options
        name = options.tombstone_key[0] if options.tombstone_key else options.delete_record_column
        return () if name is None else (name,)

    def _batches(self, entry: ManifestEntry) -> Iterator[pl.DataFrame]:
        """The rows of a file with the columns that tell which row of a key is current."""
        names = (*self.view.schema.primary_keys, *self.view.comparison.names, *self._marks)
        stored = StoredVersions(self.view, entry.partition, tuple(dict.fromkeys(names)))
        file = PlannedFile(entry, has_kinds=False)
        fields = self.view.schema.select(stored.columns)
        rows_max = rows_in(self.view.options.read_memory_bytes, [file], fields)
        return stored.of_lone_files([file], max(_ROWS_MIN, rows_max))


def largest_before(hashes: KeyHashes, fresh: Numbers) -> Numbers:
    """The largest comparison values of earlier rows of each row's key. `NOTHING` for the first."""
    names = [f"column_{n}" for n in range(len(fresh))]
    columns = dict(zip(names, fresh, strict=True))
    frame = pl.DataFrame({"head": hashes.heads, "check": hashes.checks, **columns})
    earlier = frame.select(
        pl.col(name).shift(1, fill_value=NOTHING).cum_max().over("head", "check") for name in names
    )
    before: Numbers = earlier.to_numpy().T
    return before


# -- live rows after writes of other engines -------------------------------------------------------


_HELD_BYTES = 1 << 10


def settled_state(state: TableState) -> TableState:
    """The state for readers: each key has at most one live row, whoever wrote the files.

    Only the vectors of buckets with files that their index does not cover differ. To find them, the
    rows of these buckets are read, once in a process. Raises `DataError` for damaged files.
    """
    found = [*unsettled_buckets(state)]
    if not found:
        return state
    vectors = vector_files_by_bucket(state.vector_files)
    heads, buckets = key_files_by_bucket(state.key_files), {bucket for bucket, _ in found}
    kept = [file for file in state.vector_files if (file.partition, file.bucket) not in buckets]
    new = [
        _settled(state.view, bucket, entries, heads.get(bucket), vectors.get(bucket, ()))
        for bucket, entries in found
    ]
    return replace(state, vector_files=(*kept, *new))


def unsettled_buckets(state: TableState) -> Iterator[tuple[BucketId, Sequence[ManifestEntry]]]:
    """The buckets with files that their index does not cover, and all their files."""
    if not state.view.kind.has_key_index:
        return
    by_bucket: dict[BucketId, list[ManifestEntry]] = {}
    for entry in state.live.entries:
        by_bucket.setdefault((entry.partition, entry.bucket), []).append(entry)
    heads = key_files_by_bucket(state.key_files)
    needed = [heads[bucket] for bucket in by_bucket if bucket in heads]
    calls = [partial(_covered_by, state.view, head) for head in needed]
    names = [head.file_name for head in needed]
    covered = dict(zip(names, state.view.store.together(calls), strict=True))
    for bucket, entries in by_bucket.items():
        known = covered[heads[bucket].file_name] if bucket in heads else frozenset()
        if any(e.file.file_name not in known for e in entries):
            yield bucket, entries


def _covered_by(view: TableView, head: IndexFile) -> frozenset[str]:
    """The files that an index covers: none if it is damaged or of a newer release."""
    try:
        files = load_head(view.store, paths.index_path(head.file_name)).files
    except (DataError, UnsupportedError):
        return frozenset()
    return frozenset(file.name for file in files)


def _settled(
    view: TableView,
    bucket: BucketId,
    entries: Sequence[ManifestEntry],
    head: IndexFile | None,
    vectors: tuple[IndexFile, ...],
) -> IndexFile:
    def load() -> tuple[IndexFile, int]:
        dead = load_dead_rows(view.store, vectors, view.name)
        before = KeyIndex(bare_head(view))
        if head is not None:
            with suppress(DataError, UnsupportedError):
                found = load_head(view.store, paths.index_path(head.file_name))
                is_complete = {f.name for f in found.files} <= {e.file.file_name for e in entries}
                before = KeyIndex(found)
                if not is_complete or found.rowless is not None:  # there are keys without a row
                    before = load_key_index(view.store, head, view.options.lookup_cache_bytes_max)
        held = memory_vectors(bucket, settled_bucket(view, entries, dead, before).dead)
        return held, _HELD_BYTES + held.file_size

    files = (*(e.file.file_name for e in entries), *(file.file_name for file in vectors))
    of_index = None if head is None else head.file_name
    return METADATA.load((view.store.uri_of(""), view.schema.id, bucket, of_index, files), load)
