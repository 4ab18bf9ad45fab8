"""The rewrite of a bucket's picked runs, as a task, and the age of its tombstones.

Files that share no key with other files and are large enough move to their new level by a change in
the manifest only. The others are read as merged versions, in key-range windows, and rewritten with
their numbers and kinds, in files of the target size. So memory depends on the windows, not on the
bucket.

A tombstone is rewritten like a row. Only a compaction of all runs can forget one: when it is older
than the table's retention, or when no later row could belong before it.

Compactions record the age of a bucket's tombstones in the files that they write. A row has a
sequence number and no time. So a compaction records in its files which numbers existed when it ran.
A tombstone is at least as old as the first compaction that saw its number. It may be older, and is
then kept longer than necessary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.base.row_kind import RETRACTS, RowKind
from keytide.compaction.changelog import ChangelogWriter, Lookup
from keytide.compaction.deletion_vectors import Marker, Marks, retracts_of
from keytide.compaction.row_buffer import FileSize, each_pile
from keytide.compaction.strategy import Unit
from keytide.format.arrow import to_arrow
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND, read_note
from keytide.format.index_files import IndexFile, VectorPlace, dead_positions
from keytide.format.manifest_entry import DataFileMeta, FileKind, FileSource, ManifestEntry
from keytide.merge.engines import compacts_by_lookup
from keytide.merge.layers import OlderVersionsNeededError, without_keys
from keytide.merge.order import sorted_by_key
from keytide.read.lookup import (
    PartitionLookupFiles,
    create_lookup_file,
    forget,
)
from keytide.read.merged_versions import Lifetime, MergedVersions, drops_expired
from keytide.read.plan import to_merge, vector_places
from keytide.read.runs import PLACE_COLUMNS, SYSTEM_COLUMNS, StoredVersions
from keytide.read.sections import (
    BucketPlan,
    PlannedFile,
    Section,
    is_out_of_order,
    overlapping,
    sections_of,
)
from keytide.snapshot.live_files import BucketId, by_index_key, load_dead_rows
from keytide.snapshot.state import TableView
from keytide.store import Store
from keytide.tasks import rows_done
from keytide.write.bucket_writer import (
    NewFiles,
    added_file,
    format_of_level,
    run_writer,
    stored_schema,
)
from keytide.write.task import TaskResult

# -- the age of a bucket's tombstones --------------------------------------------------------------


_KEY = "keytide.ages"
# How many times are distinguished within a retention. More would be more precise.
_STEPS = 16


@dataclass(frozen=True)
class Ages:
    """Marks, each a sequence number and a time in epoch milliseconds.

    Versions with this or a lower number existed at that time.
    """

    marks: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def read(cls, store: Store, path: str) -> Ages:
        """The record of a data file. Raises `DataError` if it cannot be read."""
        note = read_note(store, path, _KEY) or ""
        pairs = (mark.split("@") for mark in note.split())
        return cls(frozenset((int(number), int(time_ms)) for number, time_ms in pairs))

    @classmethod
    def together(cls, several: Iterable[Ages]) -> Ages:
        """The combined records of several files."""
        return cls(frozenset(mark for ages in several for mark in ages.marks))

    def horizon(self, now_ms: int, retention_ms: int | None) -> int | None:
        """The highest number that is known to be older than the retention. None if there is none.

        A retention of None means forever, so nothing is older.
        """
        if retention_ms is None:
            return None
        old = (number for number, time_ms in self.marks if time_ms <= now_ms - retention_ms)
        return max(old, default=None)

    def for_new_file(self, highest: int, now_ms: int, retention_ms: int) -> Ages:
        """The marks for a file with numbers up to `highest` that is written now.

        No mark exceeds the numbers of its file, because higher numbers may be reused once their
        versions are gone. Of the marks within one time step, only the last is kept. This can make
        versions seem younger than they are, never older.
        """
        step_ms = max(1, retention_ms // _STEPS)
        kept: dict[int, tuple[int, int]] = {}
        for number, time_ms in sorted((*self.marks, (highest, now_ms)), key=lambda mark: mark[1]):
            is_old = time_ms <= now_ms - retention_ms
            step = -1 if is_old else time_ms // step_ms
            before = kept.get(step, (number, time_ms))
            kept[step] = (min(highest, max(number, before[0])), time_ms)
        return Ages(frozenset(kept.values()))

    @property
    def notes(self) -> dict[str, str]:
        """The marks as a file's own metadata."""
        return {_KEY: " ".join(f"{number}@{time_ms}" for number, time_ms in sorted(self.marks))}


# -- the rewrite task ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompactedBucket:
    """The result for a bucket: the files to delete and to add instead. Empty if nothing changes.

    `result` is None if versions cannot be merged without older ones that were not picked.
    """

    bucket: BucketId
    result: TaskResult | None


class _Output(NamedTuple):
    """The output of a compaction: files, marks on rows of other files, and its changelog."""

    files: NewFiles
    marks: Marks
    changelog: ChangelogWriter
    is_last: bool = False
    """Whether no changes follow those of the section that is being compacted."""


_Reading: TypeAlias = "Callable[[Iterable[Section], _Output], Iterator[Sequence[pl.DataFrame]]]"


@dataclass(frozen=True)
class CompactTask:
    """Compacts the picked runs of one bucket. Picklable.

    `now_ms` is the time, in epoch milliseconds, from which the age of tombstones is computed.
    """

    view: TableView
    unit: Unit
    now_ms: int
    memory_bytes: int
    staying_files: tuple[ManifestEntry, ...] = ()
    """The files above level 0 that stay in place, in a table that compacts by lookup."""
    vector_files: tuple[IndexFile, ...] = ()
    """The index files with the deletion vectors of the bucket. Empty if no row is dead yet."""

    def __call__(self) -> CompactedBucket:
        """Compact the runs. Nothing is left behind after an error.

        Raises `DataError` if the store fails, and `InvalidError` for versions that cannot be
        merged.
        """
        files, marks = NewFiles(self.view), Marks()
        output = _Output(files, marks, ChangelogWriter(self.view, self.unit, files))
        try:
            # The dead rows before the compaction. None without deletion vectors.
            if not self._marks_rows:
                dead = None
            else:
                dead = load_dead_rows(self.view.store, self.vector_files, self.view.name)
            *others, last = self._pieces()
            entries = [entry for piece in others for entry in self._done(piece, output)]
            entries += self._done(last, output._replace(is_last=True))
            written = TaskResult(tuple(entries), changelog=output.changelog.finish())
        except OlderVersionsNeededError:
            self._tidy_up(output)
            return CompactedBucket(self.bucket, None)
        except BaseException:
            self._tidy_up(output)
            raise

        # The files that are deleted, and not only moved to another level.
        names: dict[FileKind, set[str]] = {FileKind.ADD: set(), FileKind.DELETE: set()}
        for entry in entries:
            names[entry.kind].add(entry.file.file_name)
        gone = names[FileKind.DELETE] - names[FileKind.ADD]
        if self.view.creates_lookup_files:
            forget(self.view, (entry for entry in self.unit.files if entry.file.file_name in gone))
        if dead is None:
            return CompactedBucket(self.bucket, written)
        dead = dead.without(gone).marking(
            marks.by_file, wide=self.view.options.deletion_vectors_bitmap64
        )
        indexes = by_index_key({self.bucket: dead})
        return CompactedBucket(self.bucket, replace(written, indexes=indexes))

    def _tidy_up(self, output: _Output) -> None:
        """Delete the written files, after no more are being written."""
        output.changelog.give_up()
        self.view.store.discard(output.files.names)

    @property
    def bucket(self) -> BucketId:
        """The bucket that is compacted."""
        return self.unit.bucket

    @property
    def stored_bytes(self) -> int:
        """The size of the files that it reads."""
        return sum(entry.file.file_size for entry in self.unit.files)

    # -- each section ---------------------------------------------------------------------------

    def _pieces(self) -> Iterator[tuple[Section, ...]]:
        """The sections: separately if a file may stay as it is, otherwise together."""
        (plan,) = sections_of({self.bucket: self._planned(self.unit.files)}, self.view)
        for is_kept, sections in itertools.groupby(plan.sections, self._is_kept):
            if is_kept:
                yield from ((section,) for section in sections)
            else:
                yield tuple(sections)

    def _is_kept(self, section: Section) -> bool:
        """Whether a section is one file for which only the level changes."""
        is_full = self._file_size.is_full(section.files[0].meta)
        return (is_full or self.unit.moves) and self._may_stay(section)

    def _may_stay(self, section: Section) -> bool:
        """Whether a section is one file that reads the same at the new level."""
        if len(section.files) > 1 or not self._is_sorted(section):
            return False
        (file,), level, engine = section.files, self.unit.output_level, self.view.engine
        must_fit = self.view.options.file_formats_by_level and file.meta.level != level
        if must_fit and not file.meta.file_name.endswith(f".{format_of_level(self.view, level)}"):
            return False
        if not self._marks_rows:
            if self._looks_up(section) and not engine.newest_decides:
                return False
        elif file.meta.level == 0:
            # A row that is merged from several versions must be written.
            if not engine.picks_a_version and self._overlapping_files(section):
                return False
        elif self.unit.is_whole and file.dead_rows is not None:
            dead = dead_positions(self.view.store, file.dead_rows)
            if len(dead) != self._count_of_retracts(file):
                return False
        # Tombstones that this compaction forgets.
        forgotten = self._is_forgotten if self.unit.is_whole else None
        may_have = file.may_retract or file.dead_rows is not None
        if forgotten is not None and may_have and self._kinds(file).select(forgotten.any()).item():
            return False
        return not (self._lacks_notes(file) or self._has_expired(file))

    def _done(self, sections: Sequence[Section], output: _Output) -> list[ManifestEntry]:
        """The entries that put the sections on the new level."""
        if len(sections) == 1 and self._may_stay(sections[0]):
            # The entries that put a section of one file on the new level without a rewrite.
            section = sections[0]
            (file,) = section.files
            if file.meta.level == self.unit.output_level:
                return []
            if self._marks_rows:
                # The entries that put a file on the new level, with marks instead of a rewrite.
                meta = file.meta
                if meta.level == 0:
                    self._mark(file, output)
                    meta = replace(meta, delete_row_count=0)  # none is ever shown
                raised = replace(file.entry, file=replace(meta, level=self.unit.output_level))
                return [replace(file.entry, kind=FileKind.DELETE), raised]
            if output.changelog.has_unemitted_rows(section):
                for _ in self._windows((section,), output):
                    pass  # it is read for the changelog, and not rewritten
            level, deletes = self.unit.output_level, self._count_of_retracts(file)
            meta = replace(file.meta, level=level, delete_row_count=deletes)
            return [replace(file.entry, kind=FileKind.DELETE), replace(file.entry, file=meta)]
        old = [file.entry for section in sections for file in section.files]
        total = old[0].total_buckets

        prefix = self.view.options.data_file_prefix
        file_format = format_of_level(self.view, self.unit.output_level)
        names = output.files.of(self.view.new_names(), prefix, file_format)(self.bucket)
        schema = stored_schema(self.view)
        frames = self._frames(sections, output)
        rows = (to_arrow(frame, schema) for frame in frames if frame.height)
        metas = each_pile(rows, self._file_size.piled_bytes, partial(self._written, names, output))
        made = [added_file(self.bucket, total, meta) for meta in metas]
        return [*(replace(entry, kind=FileKind.DELETE) for entry in old), *made]

    # -- deletion vectors -----------------------------------------------------------------------

    def _mark(self, file: PlannedFile, output: _Output) -> None:
        """Mark the rows of a level-0 file that stays, and of others, that lost or are
        superseded.
        """
        section = Section(((file,),))
        if not self._overlapping_files(section) and output.changelog.is_silent:
            stored = StoredVersions(self.view, self.bucket[0], (VALUE_KIND,))
            rows = stored.of_file(file.as_stored())
            output.marks.add(file.meta.file_name, retracts_of(rows[VALUE_KIND]))
            return
        for _ in self._marker(section, output, staying=file.meta.file_name).windows():
            pass  # nothing must be written

    def _marker(self, section: Section, output: _Output, staying: str | None = None) -> Marker:
        """Merges the level 0 of a section with the versions in other files."""
        lookup = self._lookup(section, (*self._versions.columns, *PLACE_COLUMNS), staying)
        return Marker(lookup, output.marks, output.changelog)

    # -- lookups --------------------------------------------------------------------------------

    def _looks_up(self, section: Section) -> bool:
        """Whether keys of a section may have versions in files that are not compacted."""
        has_new = any(file.meta.level == 0 for file in section.files)
        return has_new and bool(self._overlapping_files(section))

    def _lookup(
        self, section: Section, columns: tuple[str, ...], staying: str | None = None
    ) -> Lookup:
        """A section with the versions in other files that match its level 0."""
        beside = self._overlapping_files(section)
        planned = {self.bucket: [*beside, *section.files]}
        ((whole,),) = (plan.sections for plan in sections_of(planned, self.view))
        stays = frozenset([*(f.meta.file_name for f in beside), *([staying] if staying else [])])
        return Lookup(self.view, self.bucket[0], whole, stays, columns, self.memory_bytes)

    def _overlapping_files(self, section: Section) -> list[PlannedFile]:
        """The files that are not compacted and may contain keys of the section."""
        if not self.staying_files:
            return []
        return overlapping(section.files, self._planned(self.staying_files), self.view)

    def _planned(self, entries: Iterable[ManifestEntry]) -> list[PlannedFile]:
        return (
            to_merge(entries, self._places)
            if self._marks_rows
            else [PlannedFile(entry) for entry in entries]
        )

    @cached_property
    def _places(self) -> dict[str, VectorPlace]:
        return vector_places(self.vector_files, self.view)

    @property
    def _marks_rows(self) -> bool:
        return self.view.options.deletion_vectors_enabled

    # -- rewriting ------------------------------------------------------------------------------

    def _written(self, names: Iterator[str], output: _Output, rows: pa.Table) -> DataFileMeta:
        # A write waits for it, and below the highest level it is soon rewritten.
        awaited = self.view.options.changelog_producer == "lookup" and not self.unit.is_whole
        writer = run_writer(self.view, self.unit.output_level)
        # The record of a new file about the age of its versions.
        notes, retention_ms = dict[str, str](), self.view.options.tombstone_retention_ms
        if retention_ms is not None:
            highest = pc.max(rows.column(SEQUENCE_NUMBER)).as_py()
            notes = self._ages.for_new_file(highest, self.now_ms, retention_ms).notes
        writer = replace(writer, notes=notes, awaited=awaited)
        path = f"{self.view.bucket_directory(*self.bucket)}/{next(names)}"
        meta = writer.write_file(
            rows, path, level=self.unit.output_level, source=FileSource.COMPACT
        )
        rows_done(rows.num_rows)
        if self.view.creates_lookup_files:
            total = self.unit.files[0].total_buckets
            create_lookup_file(self.view, added_file(self.bucket, total, meta), rows)
        if not self._marks_rows:
            return meta
        output.marks.add(meta.file_name, retracts_of(pl.Series(rows.column(VALUE_KIND))))
        return replace(meta, delete_row_count=0)  # all are marked dead, so none is ever shown

    def _frames(self, sections: Sequence[Section], output: _Output) -> Iterator[pl.DataFrame]:
        """The merged versions of some sections, in key order, without what is forgotten."""
        for window in self._windows(sections, output):
            frames = [frame[[*self._versions.columns]] for frame in window if frame.height]
            if not frames:
                continue
            if len(frames) == 1 and all(map(self._is_sorted, sections)):
                versions = frames[0]
            else:
                versions = sorted_by_key(pl.concat(frames, rechunk=True), self.view.order.key)
            if self._lifetime is not None:
                # Deletes in place of expired versions.
                kind = pl.col(VALUE_KIND)
                is_over = self._lifetime.has_expired & ~kind.is_in(list(RETRACTS))
                deleted = pl.lit(int(RowKind.DELETE), versions.schema[VALUE_KIND])
                versions = versions.with_columns(
                    pl.when(is_over).then(deleted).otherwise(kind).alias(VALUE_KIND)
                )
            forgotten = self._is_forgotten
            yield versions if forgotten is None else versions.filter(~forgotten)

    def _windows(
        self, sections: Sequence[Section], output: _Output
    ) -> Iterator[Sequence[pl.DataFrame]]:
        """The same as windows of frames that have no key in common. Emits their changes."""
        for read, group in itertools.groupby(sections, self._reading):
            yield from read(group, output)
        if output.is_last:
            output.changelog.end()  # the changelog is written while the last file is

    def _reading(self, section: Section) -> _Reading:
        """The reader of a section as windows."""
        if self._marks_rows:
            if any(file.meta.level == 0 for file in section.files):
                return self._marked
        elif self._looks_up(section):
            return self._looked_up
        return self._merged if section.needs_merge else self._lone

    def _merged(
        self, sections: Iterable[Section], output: _Output
    ) -> Iterator[Sequence[pl.DataFrame]]:
        partition, _ = self.bucket
        for section in sections:
            for window in self._versions.windows(partition, section, self.memory_bytes):
                output.changelog.emit_window(section, window)
                yield window.merged

    def _marked(
        self, sections: Iterable[Section], output: _Output
    ) -> Iterator[Sequence[pl.DataFrame]]:
        for section in sections:
            yield from self._marker(section, output).windows()

    def _looked_up(
        self, sections: Iterable[Section], output: _Output
    ) -> Iterator[Sequence[pl.DataFrame]]:
        for section in sections:
            lookup = self._lookup(section, self._versions.columns)
            for window in lookup.merged():
                output.changelog.emit_window(lookup.section, window, lookup.narrow)
                if not self.view.engine.keeps_rows:
                    yield window.merged
                    continue
                # Rows that never change exist already.
                runs = lookup.section.runs
                there = [window.runs[p] for p in lookup.section.upper if lookup.stays(runs[p][0])]
                key = self.view.order.key
                yield [without_keys(rows, there, key) for rows in window.merged]

    def _lone(
        self, sections: Iterable[Section], output: _Output
    ) -> Iterator[Sequence[pl.DataFrame]]:
        for is_told_of, group in itertools.groupby(sections, output.changelog.has_unemitted_rows):
            plan = BucketPlan(*self.bucket, tuple(group))
            windows = self._versions.of(plan, self.memory_bytes)
            if not all(map(self._is_sorted, plan.sections)):
                windows = iter([list(itertools.chain.from_iterable(windows))])
            for window in windows:
                if is_told_of:
                    output.changelog.emit((), window)  # nothing was emitted for them before
                yield window

    @cached_property
    def _versions(self) -> MergedVersions:
        columns = (*self.view.schema.names, *SYSTEM_COLUMNS)
        # A lookup finds everything that is below.
        looks_up = compacts_by_lookup(self.view.options) and not self._marks_rows
        has_older = not self.unit.is_whole and not looks_up
        # Writers may continue in parallel.
        together = self.view.store.together
        return MergedVersions(self.view, columns, has_older=has_older, together=together)

    def _is_sorted(self, section: Section) -> bool:
        """Whether frames of the section come in key order. Merged ones do."""
        key = self.view.schema.trimmed_primary_key_fields()
        return section.needs_merge or not is_out_of_order(section.files[0].entry, key)

    @cached_property
    def _file_size(self) -> FileSize:
        return FileSize.of(self.view)

    # -- expired rows ---------------------------------------------------------------------------

    def _has_expired(self, file: PlannedFile) -> bool:
        """Whether a file has expired rows to drop. Only a compaction of all runs checks this."""
        if self._lifetime is None or not self.unit.is_whole:
            return False
        columns = (self._lifetime.field.name,)
        rows = StoredVersions(self.view, file.entry.partition, columns).of_file(file)
        return bool(rows.select(self._lifetime.has_expired.any()).item())

    @cached_property
    def _lifetime(self) -> Lifetime | None:
        return Lifetime.of(self.view, self.now_ms) if drops_expired(self.view) else None

    # -- tombstones -----------------------------------------------------------------------------

    def _count_of_retracts(self, file: PlannedFile) -> int:
        count = file.meta.delete_row_count
        if file.meta.level > 0 and count is not None and file.dead_rows is None:
            return count
        # On level 0, some writers do not record deletes although there are some.
        return len(retracts_of(self._kinds(file)[VALUE_KIND]))

    def _kinds(self, file: PlannedFile) -> pl.DataFrame:
        """Numbers and kinds of all versions in a file."""
        if file.dead_rows is None:
            columns = self._versions.columns
            known = PartitionLookupFiles(self.view, file.entry.partition, columns).existing(file)
            if known is not None:
                return pl.concat([rows[[*SYSTEM_COLUMNS]] for rows in known.frames])
        return StoredVersions(self.view, file.entry.partition, SYSTEM_COLUMNS).of_file(file)

    @cached_property
    def _is_forgotten(self) -> pl.Expr | None:
        """Which versions are tombstones that are no longer needed. None to keep all."""
        engine = self.view.engine
        # With deletion vectors, all versions of a key are available, wherever they are.
        is_whole = self.unit.is_whole or self._marks_rows
        if not is_whole or not engine.tombstones:
            return None
        is_tombstone = pl.col(VALUE_KIND).is_in(list(engine.tombstones))
        if not self.view.needs_tombstones:
            return is_tombstone
        horizon = self._ages.horizon(self.now_ms, self.view.options.tombstone_retention_ms)
        return None if horizon is None else is_tombstone & (pl.col(SEQUENCE_NUMBER) <= horizon)

    def _lacks_notes(self, file: PlannedFile) -> bool:
        """Whether a file has retractions but lacks the required record of their age."""
        if (
            self.view.options.tombstone_retention_ms is None
            or self._recorded_ages[file.meta.file_name].marks
        ):
            return False
        return self._count_of_retracts(file) > 0

    @cached_property
    def _recorded_ages(self) -> dict[str, Ages]:
        """The records of earlier compactions about the age of versions, by file."""
        return {
            entry.file.file_name: Ages.read(*self.view.data_file(entry))
            for entry in self.unit.files
        }

    @property
    def _ages(self) -> Ages:
        if self.view.options.tombstone_retention_ms is None:
            return Ages()
        return Ages.together(self._recorded_ages.values())
