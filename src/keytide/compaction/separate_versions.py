"""Compacts a bucket whose versions must stay separate, as a task.

A late row may belong between existing versions, and a merged version has only one place in the
order. So versions are not merged. A version is dropped if no possible later row could need it, and
the remaining versions of a key are in separate sorted runs. A key with one version is on the
highest configured level, as in any compacted bucket. Of other keys, the newest version is on the
next higher level, and older versions are on still higher ones. So the highest configured level
contains only rows that can be read without a merge.

With 'version.retention', versions are merged up to the last one that is older: later rows belong
after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.process import cached_property
from keytide.compaction.rewrite import Ages, CompactedBucket
from keytide.compaction.row_buffer import FileSize, Pile
from keytide.compaction.strategy import Unit
from keytide.format import paths
from keytide.format.arrow import to_arrow
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND
from keytide.format.manifest import FileKind, FileSource, ManifestEntry
from keytide.merge.windows import KeySlices
from keytide.read.merged_versions import MergedVersions
from keytide.read.runs import SYSTEM_COLUMNS
from keytide.read.sections import PlannedFile, Section, sections_of
from keytide.snapshot.state import TableView
from keytide.write.bucket_writer import NewFiles, added_file, run_writer, stored_schema
from keytide.write.task import TaskResult

# -- compaction of separate versions ---------------------------------------------------------------


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
        sections = [section for section in self._sections() if not self._may_stay(section)]
        try:
            for versions in self._windows(sections):
                layers.add(
                    self._without_forgotten(self._thinned(self._with_settled_merged(versions)))
                )
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

    def _sections(self) -> Sequence[Section]:
        planned = [PlannedFile(entry) for entry in self.unit.files]
        (plan,) = sections_of({self.unit.bucket: planned}, self.view)
        return plan.sections

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

    def _with_settled_merged(self, versions: pl.DataFrame) -> pl.DataFrame:
        """The versions, with one in place of all those before which no row can come any more."""
        horizon = self._ages.horizon(self.now_ms, self.view.options.version_retention_ms)
        if horizon is None:
            return versions
        slices = KeySlices.of(versions, self.view.order.key)
        is_old = (versions[SEQUENCE_NUMBER] <= horizon).to_numpy()
        settled = pl.Series(slices.rows <= slices.last_where(is_old)[slices.keys])
        with self.view.reading():
            merged = self.view.engine.merge(versions.filter(settled))
        return self.view.order.sort(pl.concat([merged, versions.filter(~settled)]))

    def _thinned(self, versions: pl.DataFrame) -> pl.DataFrame:
        few, whole = self.view.engine.thinned(versions)
        return self.view.order.sort(pl.concat([few, whole])) if whole.height else few

    def _without_forgotten(self, versions: pl.DataFrame) -> pl.DataFrame:
        """The versions without the tombstones that are forgotten."""
        engine, options = self.view.engine, self.view.options
        horizon = self._ages.horizon(self.now_ms, options.tombstone_retention_ms)
        if horizon is None or not engine.tombstones:
            return versions
        is_tombstone = pl.col(VALUE_KIND).is_in(list(engine.tombstones))
        return versions.filter(~(is_tombstone & (pl.col(SEQUENCE_NUMBER) <= horizon)))

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
        levels = self.task.unit.output_level + np.where(is_lone, 0, 1 + newer)
        for level in np.unique(levels).tolist():
            rows = to_arrow(versions.filter(pl.Series(levels == level)), self._schema)
            self._write(level, self._pile(level).add(rows))

    def finish(self) -> list[ManifestEntry]:
        """Write the remaining rows, and return the entries of all files."""
        for level, pile in self._piles.items():
            self._write(level, pile.remaining())
        return self._entries

    def _pile(self, level: int) -> Pile:
        task = self.task
        target = FileSize.of(task.view).piled_bytes
        size = target if level == task.unit.output_level else task.memory_bytes // _PILES
        return self._piles.setdefault(level, Pile(min(target, max(1, size))))

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

    @cached_property
    def _schema(self) -> pa.Schema:
        return stored_schema(self.task.view)
