"""The changelog that a compaction of a bucket creates.

The rows that were emitted before are on some level and all higher ones: with `lookup`, on all
levels above 0, with `full-compaction`, where full compactions leave their rows. A compaction that
includes lower levels emits the changes of the keys there: the rows before and after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial

import polars as pl
import pyarrow as pa

from keytide.base.lazily import cached_property
from keytide.base.row_kind import RowKind
from keytide.base.threads import begin
from keytide.compaction.picking import Unit
from keytide.compaction.pile import Pile
from keytide.format.arrow import to_arrow
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND
from keytide.format.manifest import DataFileMeta, FileSource, ManifestEntry
from keytide.merge.difference import difference
from keytide.merge.order import IS_ADD
from keytide.merge.touched import with_keys
from keytide.options import TableOptions
from keytide.read.merged_versions import Window
from keytide.read.sections import Run, Section
from keytide.snapshot.view import TableView
from keytide.write.bucket_writer import (
    NewFiles,
    added_file,
    changelog_writer,
    stored_schema,
)

__all__ = ["ChangelogWriter", "lowest_told", "tells"]


class ChangelogWriter:
    """Writes the changes of one compaction of a bucket, in key order, as changelog files.

    The files are about as large as data files. Each is written in a separate thread, one at a time,
    while the compaction continues.
    """

    def __init__(self, view: TableView, unit: Unit, files: NewFiles) -> None:
        first = unit.files[0]
        self._view = view
        self._bucket = (first.partition, first.bucket)
        self._buckets = first.total_buckets
        self._lowest_told = _lowest_told(view.options, unit)
        self._looks_up = view.options.changelog_producer == "lookup"
        self._level = unit.output_level
        self._writer = changelog_writer(view)
        prefix, file_format = view.options.changelog_file_prefix, self._writer.file_format
        self._names = files.of(view.new_names(), prefix, file_format)(self._bucket)
        self._pile = Pile(view.options.target_file_size_bytes, _between_pairs)
        self._entries: list[ManifestEntry] = []
        self._under_way: Future[DataFileMeta] | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the compaction emits nothing."""
        return not self._lowest_told

    def tells_of(self, section: Section) -> bool:
        """Whether a section has rows that were not emitted before."""
        return not all(map(self._is_told, section.runs))

    def tell(self, section: Section, window: Window, narrow: Collection[int] = ()) -> None:
        """Emit the changes of those keys in a window that are below the already emitted levels.

        `narrow` are the positions of runs that contain only these keys.
        """
        told = {place for place, run in enumerate(section.runs) if self._is_told(run)}
        new = [rows for place, rows in enumerate(window.runs) if place not in told]
        images = window.counted if self._looks_up else window.runs
        if told <= set(narrow):
            self._add([images[place] for place in told], window.merged)
            return
        wide = [images[place] for place in told if place not in narrow]
        self.tell_of(new, wide, window.merged, [images[place] for place in told & set(narrow)])

    def tell_of(
        self,
        new: Sequence[pl.DataFrame],
        before: Sequence[pl.DataFrame],
        after: Sequence[pl.DataFrame],
        narrow: Sequence[pl.DataFrame] = (),
    ) -> None:
        """Emit the changes of the keys of new versions, given the merged versions before and after.

        Each of these has a key at most once. Those in `narrow` also come before, and have no other
        keys.
        """
        filled = _filled(new)
        if not filled:
            return
        key = self._view.order.key
        keys = pl.concat([rows.select(key) for rows in filled])
        own = [[with_keys(rows, keys) for rows in _filled(side)] for side in (before, after)]
        self._add([*own[0], *narrow], own[1])

    def tell_new(self, rows: Sequence[pl.DataFrame]) -> None:
        """Emit new keys: nothing was emitted for them before, nor for any later keys."""
        self._add((), rows)

    def end(self) -> None:
        """Start to write what is left, when no more changes follow."""
        self._write(self._pile.rest())

    def finish(self) -> tuple[ManifestEntry, ...]:
        """The files as entries to commit."""
        self.end()
        self._take_written()
        return tuple(self._entries)

    def give_up(self) -> None:
        """After an error, wait until no file is being written any more."""
        if self._under_way is not None:
            wait([self._under_way])

    def _is_told(self, run: Run) -> bool:
        return run[0].meta.level >= self._lowest_told

    def _add(self, before: Sequence[pl.DataFrame], after: Sequence[pl.DataFrame]) -> None:
        options = self._view.options
        filled = [*_filled(before), *_filled(after)]
        if not filled:
            return
        none = filled[0].clear()
        told = difference(
            self._rows([none, *_filled(before)]),
            self._rows([none, *_filled(after)]),
            self._view.order.key,
            self._compared,
            keeps_equal=not (options.row_deduplicate or self._view.engine.keeps_rows),
        )
        if told.height:
            self._write(self._pile.add(to_arrow(told, stored_schema(self._view))))

    def _rows(self, versions: Iterable[pl.DataFrame]) -> pl.DataFrame:
        """What readers see of some versions, with NULL as it is stored, and their numbers."""
        names = (*self._view.schema.names, SEQUENCE_NUMBER)
        return pl.concat([each.filter(IS_ADD).select(names) for each in versions])

    def _write(self, tables: Iterable[pa.Table]) -> None:
        directory = self._view.bucket_directory(*self._bucket)
        for table in tables:
            path = f"{directory}/{next(self._names)}"
            self._take_written()
            write = partial(self._writer.write_file, level=self._level, source=FileSource.COMPACT)
            self._under_way = begin(partial(write, table, path))

    def _take_written(self) -> None:
        """Collect the entry of the file that is being written, when it is finished."""
        if self._under_way is not None:
            meta = self._under_way.result()
            self._under_way = None
            self._entries.append(added_file(self._bucket, self._buckets, meta))

    @cached_property
    def _compared(self) -> frozenset[str]:
        ignored = self._view.options.row_deduplicate_ignore_fields
        return frozenset(self._view.schema.names) - set(ignored)


def _filled(frames: Iterable[pl.DataFrame]) -> list[pl.DataFrame]:
    return [frame for frame in frames if frame.height]


def _between_pairs(told: pa.Table, count: int) -> int:
    """A cut that does not separate a -U from the +U in the next row."""
    is_before = told.column(VALUE_KIND)[count - 1].as_py() == RowKind.UPDATE_BEFORE
    return count + 1 if is_before else count


def tells(options: TableOptions, unit: Unit) -> bool:
    """Whether a compaction emits the keys that were written since the last emission."""
    return unit.runs[0].level < _lowest_told(options, unit)


def _lowest_told(options: TableOptions, unit: Unit) -> int:
    """The lowest level with emitted rows. 0 if a compaction emits nothing."""
    if not options.compactions_tell or not (
        options.changelog_producer == "lookup" or unit.is_whole
    ):
        return 0
    return lowest_told(options, unit.runs[-1].level)


def lowest_told(options: TableOptions, oldest: int) -> int:
    """The lowest level with rows that compactions have emitted.

    `oldest` is the level of the oldest run. REQUIRES: a table whose changelog is created by
    compactions.
    """
    # Only full compactions reach the oldest run. So this is the run that was emitted, even if the
    # table got more levels since then.
    return 1 if options.changelog_producer == "lookup" else max(1, oldest)
