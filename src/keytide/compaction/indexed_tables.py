"""Compaction of tables with a key index: fewer files, with only the current row of each key.

A row that deletes is the current row of its key. It stays, marked as dead, so that late rows find
it. All other dead rows are dropped. The index is updated with the new positions.

If the table limits how long deletes are kept, older ones are dropped too, and the index forgets
their keys. A row that would come late for them is then late for every key. A delete stays as long
as files outside the compaction have stale rows, because one of them may have its key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.compaction.append_tables import BucketRewrite, PackTask, Picks
from keytide.compaction.rewrite import CompactedBucket
from keytide.format.data_file import POSITION
from keytide.format.index_files import DELETION_VECTORS, KEY_INDEX, IndexFile, IndexKey
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.key_index.indexed_keys import (
    NOTHING,
    Entries,
    KeyHashes,
    Numbers,
    newest_of_each,
    reduced,
)
from keytide.key_index.sorted_runs import IndexedFile
from keytide.options import TableOptions
from keytide.read.current_rows import keys_of
from keytide.read.merged_versions import rows_in
from keytide.read.runs import StoredVersions
from keytide.read.sections import PlannedFile
from keytide.snapshot.bucket_key_index import NewKeys, key_files_by_bucket, load_heads
from keytide.snapshot.live_files import BucketId, BucketIndex, DeadRows, vector_files_by_bucket
from keytide.snapshot.state import TableState, TableView
from keytide.write.moved_keys import Bucket, load_bucket, places_of

# -- compaction ------------------------------------------------------------------------------------


def picks_of(state: TableState, now_ms: int, *, full: bool) -> Picks:
    """Which files of a table with a key index are compacted or left out, whatever their size.

    `now_ms` is a wall-clock time, as in the creation times of files. The heads of the indexes say
    how many rows of each file are stale. Raises `DataError` and `UnsupportedError` like
    `load_bucket`.
    """
    options = state.view.options
    taken, every = set(), key_files_by_bucket(state.key_files)
    heads = [every[b] for b in vector_files_by_bucket(state.vector_files) if b in every]
    for head in load_heads(state.view.store, heads):
        for file in head.files:
            if file.current == 0 or (not full and _is_due(file, options)):
                taken.add(file.name)
    buffer_ms = options.compaction_buffer_ms
    if full or buffer_ms is None:
        return Picks(frozenset(taken))
    left = frozenset(
        entry.file.file_name
        for entry in state.live.entries
        if (entry.file.creation_time or 0) > now_ms - buffer_ms
    )
    return Picks(frozenset(taken) - left, left)


def _is_due(file: IndexedFile, options: TableOptions) -> bool:
    """Whether enough rows of a file are stale to make it worth a compaction."""
    percent, count = options.stale_percent_min, options.stale_count_min
    if percent is None and count is None:
        return False
    return file.stale >= (count or 1) and file.stale * 100 >= (percent or 0) * file.rows


def indexed_tasks(state: TableState, packs: Sequence[PackTask]) -> list[IndexedPackTask]:
    """The same work in a table with a key index."""
    heads, vectors = (
        key_files_by_bucket(state.key_files),
        vector_files_by_bucket(state.vector_files),
    )
    by_bucket: dict[BucketId, list[ManifestEntry]] = {}
    for entry in state.live.entries:
        by_bucket.setdefault((entry.partition, entry.bucket), []).append(entry)
    return [
        IndexedPackTask(
            pack.view,
            pack.bucket,
            pack.groups,
            pack.memory_bytes,
            tuple(by_bucket[pack.bucket]),
            heads.get(pack.bucket),
            vectors.get(pack.bucket, ()),
        )
        for pack in packs
    ]


@dataclass(frozen=True)
class IndexedPackTask:
    """Writes each group of files of a bucket as one file, and updates the index. Picklable.

    `entries` are all data files of the bucket.
    """

    view: TableView
    bucket: BucketId
    groups: tuple[tuple[PlannedFile, ...], ...]
    memory_bytes: int
    entries: tuple[ManifestEntry, ...]
    head: IndexFile | None
    vectors: tuple[IndexFile, ...]

    @property
    def files(self) -> list[ManifestEntry]:
        """The files that are compacted."""
        return [file.entry for group in self.groups for file in group]

    @property
    def stored_bytes(self) -> int:
        """The size of the files that it reads."""
        return sum(entry.file.file_size for entry in self.files)

    def __call__(self) -> CompactedBucket:
        """Write the files. Nothing is left behind after an error. Raises like `PackTask`."""
        on = load_bucket(self.view, self.bucket, self.entries, self.head, self.vectors)
        rewriting = BucketRewrite(self.view, self.bucket, self.memory_bytes)
        taken = {entry.file.file_name for entry in self.files}
        forgotten = _forgetting_limit(on, taken, self.view)
        kept = _CurrentRows(self.view, self.bucket, on, self.memory_bytes, forgotten)
        parts = [(group, kept.rows(group)) for group in self.groups]
        made = rewriting.write(parts, on.dead)
        assert made.result is not None
        written = made.result
        added = [entry for entry in written.entries if entry.kind is FileKind.ADD]
        gone = {e.file.file_name for e in written.entries if e.kind is FileKind.DELETE}
        indexes = kept.indexes(added, gone, written.dead[self.bucket])
        return replace(made, result=replace(written, indexes=indexes))


def _forgetting_limit(on: Bucket, taken: Collection[str], view: TableView) -> int:
    """The value below which deletes in some files are forgotten. `NOTHING` if all of them stay."""
    head, kept = on.index.head, view.deletes_kept
    if kept is None or any(file.stale for file in head.files if file.name not in taken):
        return NOTHING
    return int(reduced(np.array([head.mark]), kept)[0])


class _CurrentRows:
    """The current rows of some files, and their positions after the rewrite."""

    def __init__(
        self, view: TableView, bucket: BucketId, on: Bucket, memory_bytes: int, forgotten_below: int
    ) -> None:
        self._view, self._bucket, self._on = view, bucket, on
        self._forgotten_below = forgotten_below
        self._memory_bytes = memory_bytes
        self._numbers = {file.name: file.number for file in on.index.head.files}
        self._has_current = {file.name: file.current > 0 for file in on.index.head.files}
        self._hashes: list[KeyHashes] = []
        self._comparisons: list[Numbers] = []
        self._lives: list[npt.NDArray[np.bool_]] = []

    def rows(self, files: Sequence[PlannedFile]) -> Iterator[pl.DataFrame]:
        """The current rows of some files, in order, in parts that fit in memory."""
        columns = (*self._view.schema.names, POSITION)
        stored = StoredVersions(self._view, self._bucket[0], columns)
        rows_max = max(1, rows_in(self._memory_bytes, list(files), self._view.schema.fields))
        # Files without a current row need not be read.
        for file in (f for f in files if self._has_current[f.meta.file_name]):
            for frame in stored.of_lone_files([replace(file, dead_rows=None)], rows_max):
                yield self._current(file.meta.file_name, frame)

    def _current(self, name: str, frame: pl.DataFrame) -> pl.DataFrame:
        hashes, comparisons = keys_of(frame, self._view)
        is_known, entries = self._on.index.find(hashes)
        positions = frame[POSITION].to_numpy()
        is_current = is_known & (entries.files == self._numbers[name])
        is_current &= entries.positions == positions
        lives = ~np.isin(positions, self._on.dead.of(name))
        is_kept = is_current & (lives | (comparisons >= self._forgotten_below))
        kept = np.flatnonzero(is_kept)
        self._hashes.append(hashes.take(kept))
        self._comparisons.append(comparisons[kept])
        self._lives.append(lives[kept])
        return frame.filter(pl.Series(is_kept)).drop(POSITION)

    def indexes(
        self, added: Sequence[ManifestEntry], gone: set[str], dead: DeadRows
    ) -> dict[IndexKey, BucketIndex]:
        """The bucket's indexes, updated with the new files."""
        head = self._on.index.head
        files, positions, covered = places_of(added, head)
        lives = np.concatenate([np.empty(0, np.bool_), *self._lives])
        moved = Entries.together(
            [
                Entries(hashes, files[start:end], positions[start:end], comparisons)
                for hashes, comparisons, start, end in self._spans()
            ]
        )
        own = {file.name: positions[(files == file.number) & ~lives] for file in covered}
        wide = self._view.options.deletion_vectors_bitmap64
        # New files are among those that it depends on, so no other change of the vectors fits next
        # to it.
        marked = replace(dead, observed=None).marking(own, wide=wide)
        every = [*(file for file in head.files if file.name not in gone), *covered]
        about = head.about(every, moved, Entries.none(), moved.comparisons)
        later = newest_of_each(Entries.together([self._on.index.pending, moved]))
        index = replace(self._on.index, head=about, pending=later)
        return {
            (DELETION_VECTORS, *self._bucket): marked,
            (KEY_INDEX, *self._bucket): NewKeys(index, marked, self._on.stored),
        }

    def _spans(self) -> Iterator[tuple[KeyHashes, Numbers, int, int]]:
        start = 0
        for hashes, comparisons in zip(self._hashes, self._comparisons, strict=True):
            yield hashes, comparisons, start, start + len(hashes)
            start += len(hashes)
