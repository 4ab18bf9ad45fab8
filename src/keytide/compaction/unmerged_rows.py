"""Compactions that merge no versions: of tables with a key index, and of separate versions.

**Tables with a key index** get fewer files, with only the current row of each key. A row that
deletes is the current row of its key. It stays, marked as dead, so that late rows find it. All
other dead rows are dropped. The index is updated with the new positions. If the table limits how
long deletes are kept, older ones are dropped too, and the index forgets their keys. A row that
would come late for them is then late for every key. A delete stays as long as files outside the
compaction have stale rows, because one of them may have its key.

**Separate versions**: a late row may belong between existing versions, and a merged version has
only one place in the order. So versions are not merged. A version is dropped if no possible later
row could need it, and the remaining versions of a key are in separate sorted runs. A key with one
version is on the highest configured level, as in any compacted bucket. Of other keys, the newest
version is on the next higher level, and older versions are on still higher ones. So the highest
configured level contains only rows that can be read without a merge. With 'version.retention',
versions are merged up to the last one that is older: later rows belong after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.compaction.append_tables import BucketRewrite, PackTask, Picks
from keytide.compaction.rewrite import Ages, CompactedBucket
from keytide.compaction.row_buffer import FileSize, Pile
from keytide.compaction.strategy import Unit
from keytide.format import paths
from keytide.format.arrow import to_arrow
from keytide.format.data_file import POSITION, SEQUENCE_NUMBER, VALUE_KIND
from keytide.format.index_files import DELETION_VECTORS, KEY_INDEX, IndexFile, IndexKey
from keytide.format.manifest_entry import FileKind, FileSource, ManifestEntry
from keytide.key_index.indexed_keys import (
    NOTHING,
    Entries,
    KeyHashes,
    Numbers,
    newest_of_each,
    reduced,
)
from keytide.merge.windows import KeySlices
from keytide.read.current_rows import keys_of
from keytide.read.merged_versions import MergedVersions, rows_in
from keytide.read.runs import SYSTEM_COLUMNS, StoredVersions
from keytide.read.sections import PlannedFile, Section, sections_of
from keytide.snapshot.bucket_key_index import NewKeys, key_files_by_bucket, load_heads
from keytide.snapshot.live_files import BucketId, BucketIndex, DeadRows, vector_files_by_bucket
from keytide.snapshot.state import TableState, TableView
from keytide.write.bucket_writer import NewFiles, added_file, run_writer, stored_schema
from keytide.write.moved_keys import Bucket, load_bucket, places_of
from keytide.write.task import TaskResult

# -- tables with a key index -----------------------------------------------------------------------


def picks_of(state: TableState, now_ms: int, *, full: bool) -> Picks:
    """Which files of a table with a key index are compacted or left out, whatever their size.

    `now_ms` is a wall-clock time, as in the creation times of files. The heads of the indexes say
    how many rows of each file are stale. Raises `DataError` and `UnsupportedError` like
    `load_bucket`.
    """
    options = state.view.options
    taken, every = set(), key_files_by_bucket(state.key_files)
    heads = [every[b] for b in vector_files_by_bucket(state.vector_files) if b in every]
    percent, count = options.stale_percent_min, options.stale_count_min
    has_limit = not full and (percent is not None or count is not None)
    for head in load_heads(state.view.store, heads):
        for file in head.files:
            # Whether enough rows are stale to make it worth a compaction.
            is_stale = file.stale >= (count or 1) and file.stale * 100 >= (percent or 0) * file.rows
            if file.current == 0 or (has_limit and is_stale):
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
        # Deletes whose value is below this are forgotten.
        head, forgotten, deletes_kept = on.index.head, NOTHING, self.view.deletes_kept
        is_stale = any(file.stale for file in head.files if file.name not in taken)
        if deletes_kept is not None and not is_stale:
            forgotten = int(reduced(np.array([head.mark]), deletes_kept)[0])
        kept = _CurrentRows(self.view, self.bucket, on, self.memory_bytes, forgotten)
        parts = [(group, kept.rows(group)) for group in self.groups]
        made = rewriting.write(parts, on.dead)
        assert made.result is not None
        written = made.result
        added = [entry for entry in written.entries if entry.kind is FileKind.ADD]
        gone = {e.file.file_name for e in written.entries if e.kind is FileKind.DELETE}
        indexes = kept.indexes(added, gone, written.dead[self.bucket])
        return replace(made, result=replace(written, indexes=indexes))


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
            name = file.meta.file_name
            for frame in stored.of_lone_files([replace(file, dead_rows=None)], rows_max):
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
                yield frame.filter(pl.Series(is_kept)).drop(POSITION)

    def indexes(
        self, added: Sequence[ManifestEntry], gone: set[str], dead: DeadRows
    ) -> dict[IndexKey, BucketIndex]:
        """The bucket's indexes, updated with the new files."""
        head = self._on.index.head
        files, positions, covered = places_of(added, head)
        lives = np.concatenate([np.empty(0, np.bool_), *self._lives])
        spans, start = list[Entries](), 0
        for hashes, comparisons in zip(self._hashes, self._comparisons, strict=True):
            end = start + len(hashes)
            spans.append(Entries(hashes, files[start:end], positions[start:end], comparisons))
            start = end
        moved = Entries.together(spans)
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


# -- separate versions -----------------------------------------------------------------------------


# While this many levels are written, the rows collected for their files share the memory of a task.
_PILES = 8


@dataclass(frozen=True)
class ThinTask:
    """Drops the versions of a whole bucket that are no longer needed. Picklable.

    `now_ms` is the time, in epoch milliseconds, from which the age of versions is computed.
    """

    view: TableView
    unit: Unit
    now_ms: int
    memory_bytes: int

    def __call__(self) -> CompactedBucket:
        """Write the remaining versions. Nothing is left behind after an error.

        Raises `DataError` if the store fails, and `InvalidError` for versions that cannot be
        merged.
        """
        layers = _Layers(self, NewFiles(self.view))
        planned = [PlannedFile(entry) for entry in self.unit.files]
        (plan,) = sections_of({self.unit.bucket: planned}, self.view)
        sections = [section for section in plan.sections if not self._may_stay(section)]
        try:
            for versions in self._windows(sections):
                layers.add(self._remaining(versions))
            made = layers.finish()
        except BaseException:
            self.view.store.discard(layers.files.names)
            raise
        old = (file.entry for section in sections for file in section.files)
        gone = [replace(entry, kind=FileKind.DELETE) for entry in old]
        return CompactedBucket(self.unit.bucket, TaskResult((*gone, *made)))

    @property
    def stored_bytes(self) -> int:
        """The size of the files that it reads."""
        return sum(entry.file.file_size for entry in self.unit.files)

    def notes(self, rows: pa.Table) -> dict[str, str]:
        """The record of a new file about the age of its versions."""
        if self._retention_ms is None:
            return {}
        highest = pc.max(rows.column(SEQUENCE_NUMBER)).as_py()
        return self._ages.for_new_file(highest, self.now_ms, self._retention_ms).notes

    # -- remaining versions ---------------------------------------------------------------------

    def _may_stay(self, section: Section) -> bool:
        """Whether a section is one large file, on its level, with one version per key."""
        (file, *others) = section.files
        is_there = not others and file.meta.level == self.unit.output_level
        return (
            is_there
            and FileSize.of(self.view).is_full(file.meta)
            and file.meta.delete_row_count == 0
        )

    def _windows(self, sections: Sequence[Section]) -> Iterator[pl.DataFrame]:
        """All versions in key-range windows, in merge order."""
        partition, _ = self.unit.bucket
        stored = MergedVersions(self.view, self._columns, together=self.view.store.together)
        for section in sections:
            for runs in stored.stored_windows(partition, section, self.memory_bytes):
                filled = [run.select(self._columns) for run in runs if run.height]
                if filled:
                    yield self.view.order.sort(pl.concat(filled))

    def _remaining(self, versions: pl.DataFrame) -> pl.DataFrame:
        """The versions that a later row could need, without the tombstones that are forgotten."""
        engine, options, order = self.view.engine, self.view.options, self.view.order
        # One version in place of all those before which no row can come any more.
        horizon = self._ages.horizon(self.now_ms, options.version_retention_ms)
        if horizon is not None:
            slices = KeySlices.of(versions, order.key)
            is_old = (versions[SEQUENCE_NUMBER] <= horizon).to_numpy()
            settled = pl.Series(slices.rows <= slices.last_where(is_old)[slices.keys])
            with self.view.reading():
                merged = engine.merge(versions.filter(settled))
            versions = order.sort(pl.concat([merged, versions.filter(~settled)]))
        few, whole = engine.thinned(versions)
        thinned = order.sort(pl.concat([few, whole])) if whole.height else few
        horizon = self._ages.horizon(self.now_ms, options.tombstone_retention_ms)
        if horizon is None or not engine.tombstones:
            return thinned
        is_tombstone = pl.col(VALUE_KIND).is_in(list(engine.tombstones))
        return thinned.filter(~(is_tombstone & (pl.col(SEQUENCE_NUMBER) <= horizon)))

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        return (*self.view.schema.names, *SYSTEM_COLUMNS)

    # -- age of versions ------------------------------------------------------------------------

    @cached_property
    def _ages(self) -> Ages:
        if self._retention_ms is None:
            return Ages()
        files = (self.view.data_file(entry) for entry in self.unit.files)
        return Ages.together(itertools.starmap(Ages.read, files))

    @property
    def _retention_ms(self) -> int | None:
        """How long ages are distinguished. None if everything is kept forever."""
        options = self.view.options
        given = (options.tombstone_retention_ms, options.version_retention_ms)
        return max((retention for retention in given if retention is not None), default=None)


@dataclass(frozen=True)
class _Layers:
    """Writes versions to their levels, in files of about the target size."""

    task: ThinTask
    files: NewFiles
    _piles: dict[int, Pile] = field(default_factory=dict)
    _entries: list[ManifestEntry] = field(default_factory=list)

    def add(self, versions: pl.DataFrame) -> None:
        """Add versions in merge order, of keys after all those before."""
        slices = KeySlices.of(versions, self.task.view.order.key)
        newer = slices.ends[slices.keys] - 1 - slices.rows
        is_lone = (slices.lengths == 1)[slices.keys]
        lowest, target = self.task.unit.output_level, FileSize.of(self.task.view).piled_bytes
        levels = lowest + np.where(is_lone, 0, 1 + newer)
        schema = stored_schema(self.task.view)
        for level in np.unique(levels).tolist():
            rows = to_arrow(versions.filter(pl.Series(levels == level)), schema)
            size = target if level == lowest else self.task.memory_bytes // _PILES
            pile = self._piles.setdefault(level, Pile(min(target, max(1, size))))
            self._write(level, pile.add(rows))

    def finish(self) -> list[ManifestEntry]:
        """Write the remaining rows, and return the entries of all files."""
        for level, pile in self._piles.items():
            self._write(level, pile.remaining())
        return self._entries

    def _write(self, level: int, tables: Iterator[pa.Table]) -> None:
        view, unit = self.task.view, self.task.unit
        for table in tables:
            writer = replace(run_writer(view, level), notes=self.task.notes(table))
            prefix, names = self.task.view.options.data_file_prefix, self._names
            names_in = self.files.of(names, prefix, writer.file_format)(self.task.unit.bucket)
            name = next(names_in)
            path = f"{view.bucket_directory(*unit.bucket)}/{name}"
            meta = writer.write_file(table, path, level=level, source=FileSource.COMPACT)
            self._entries.append(added_file(unit.bucket, unit.files[0].total_buckets, meta))

    @cached_property
    def _names(self) -> paths.FileNames:
        return self.task.view.new_names()
