"""The changelog that a compaction of a bucket creates.

The rows that were emitted before are on some level and all higher ones: with `lookup`, on all
levels above 0, with `full-compaction`, where full compactions leave their rows. A compaction that
includes lower levels emits the changes of the keys there: the rows before and after it.

Level 0 of a section is read together with the matching versions in files that are not rewritten. Of
these files, only keys that are new on level 0 are read. If all new versions fit in a window, they
are read once and kept, together with the versions found for them. Otherwise files are read in
windows like everything else, so memory depends on the windows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.process import begin, cached_property
from keytide.base.row_kind import RowKind
from keytide.compaction.row_buffer import Pile
from keytide.compaction.strategy import Unit
from keytide.format.arrow import to_arrow
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND
from keytide.format.manifest_entry import DataFileMeta, FileSource, ManifestEntry
from keytide.merge.layers import merge_runs, with_keys, without_contained, without_keys
from keytide.merge.order import IS_ADD, difference
from keytide.merge.windows import Batch, key_windows
from keytide.options import TableOptions
from keytide.read.lookup import PartitionLookupFiles, VersionsOfKeys
from keytide.read.lookup_files import LookupFile
from keytide.read.merged_versions import Window, batch_rows, rows_in
from keytide.read.runs import StoredVersions, table_columns
from keytide.read.sections import PlannedFile, Run, Section
from keytide.snapshot.state import TableView
from keytide.write.bucket_writer import NewFiles, added_file, changelog_writer, stored_schema

# -- the changelog ---------------------------------------------------------------------------------


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
        self._lowest_told = _lowest_emitted_level_of(view.options, unit)
        self.is_silent = not self._lowest_told  # the compaction emits nothing
        ignored = view.options.row_deduplicate_ignore_fields
        self._compared = frozenset(view.schema.names) - set(ignored)
        self._looks_up = view.options.changelog_producer == "lookup"
        self._level = unit.output_level
        self._writer = changelog_writer(view)
        prefix, file_format = view.options.changelog_file_prefix, self._writer.file_format
        self._names = files.of(view.new_names(), prefix, file_format)(self._bucket)
        self._pile = Pile(view.options.target_file_size_bytes, _between_pairs)
        self._entries: list[ManifestEntry] = []
        self._under_way: Future[DataFileMeta] | None = None

    def has_unemitted_rows(self, section: Section) -> bool:
        """Whether a section has rows that were not emitted before."""
        return any(run[0].meta.level < self._lowest_told for run in section.runs)

    def emit_window(self, section: Section, window: Window, narrow: Collection[int] = ()) -> None:
        """Emit the changes of those keys in a window that are below the already emitted levels.

        `narrow` are the positions of runs that contain only these keys.
        """
        levels = enumerate(run[0].meta.level for run in section.runs)
        emitted = {place for place, level in levels if level >= self._lowest_told}
        new = [rows for place, rows in enumerate(window.runs) if place not in emitted]
        images = window.counted if self._looks_up else window.runs
        if emitted <= set(narrow):
            self.emit([images[place] for place in emitted], window.merged)
            return
        wide = [images[place] for place in emitted if place not in narrow]
        self.emit_versions(
            new, wide, window.merged, [images[place] for place in emitted & set(narrow)]
        )

    def emit_versions(
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
        filled = _non_empty(new)
        if not filled:
            return
        key = [*self._view.order.key]
        keys = pl.concat([rows[key] for rows in filled])
        own = [
            [with_keys(self._rows(side), keys)] if side else []
            for side in map(_non_empty, (before, after))
        ]
        self.emit([*own[0], *narrow], own[1])

    def end(self) -> None:
        """Start to write what is left, when no more changes follow."""
        self._write(self._pile.remaining())

    def finish(self) -> tuple[ManifestEntry, ...]:
        """The files as entries to commit."""
        self.end()
        self._take_written()
        return tuple(self._entries)

    def give_up(self) -> None:
        """After an error, wait until no file is being written any more."""
        if self._under_way is not None:
            wait([self._under_way])

    def emit(self, before: Sequence[pl.DataFrame], after: Sequence[pl.DataFrame]) -> None:
        """Emit the changes of keys after all those before, given all their versions."""
        options = self._view.options
        sides = [_non_empty(before), _non_empty(after)]
        filled = [*sides[0], *sides[1]]
        if not filled:
            return
        none, shown = filled[0].clear(), [*self._view.schema.names, SEQUENCE_NUMBER]
        old, new = (self._rows([none, *side]).filter(IS_ADD)[shown] for side in sides)
        changes = difference(
            old,
            new,
            self._view.order.key,
            self._compared,
            keeps_equal=not (options.row_deduplicate or self._view.engine.keeps_rows),
        )
        if changes.height:
            self._write(self._pile.add(to_arrow(changes, stored_schema(self._view))))

    def _rows(self, versions: Iterable[pl.DataFrame]) -> pl.DataFrame:
        """What readers see of some versions, with NULL as it is stored, their numbers and kinds."""
        names = [*self._view.schema.names, SEQUENCE_NUMBER, VALUE_KIND]
        return pl.concat([each[names] for each in versions])

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


def _non_empty(frames: Iterable[pl.DataFrame]) -> list[pl.DataFrame]:
    return [frame for frame in frames if frame.height]


def _between_pairs(changes: pa.Table, count: int) -> int:
    """A cut that does not separate a -U from the +U in the next row."""
    is_before = changes.column(VALUE_KIND)[count - 1].as_py() == RowKind.UPDATE_BEFORE
    return count + 1 if is_before else count


def emits_changes(options: TableOptions, unit: Unit) -> bool:
    """Whether a compaction emits the keys that were written since the last emission."""
    return unit.runs[0].level < _lowest_emitted_level_of(options, unit)


def _lowest_emitted_level_of(options: TableOptions, unit: Unit) -> int:
    """The lowest level with emitted rows. 0 if a compaction emits nothing."""
    if not options.compactions_tell or not (
        options.changelog_producer == "lookup" or unit.is_whole
    ):
        return 0
    return lowest_emitted_level(options, unit.runs[-1].level)


def lowest_emitted_level(options: TableOptions, oldest: int) -> int:
    """The lowest level with rows that compactions have emitted.

    `oldest` is the level of the oldest run. REQUIRES: a table whose changelog is created by
    compactions.
    """
    # Only full compactions reach the oldest run. So this is the run that was emitted, even if the
    # table got more levels since then.
    return 1 if options.changelog_producer == "lookup" else max(1, oldest)


# -- versions on level 0 with the versions that they replace ---------------------------------------


# The keys of level 0 are kept while the levels above are read, if they fit in this part of the
# memory.
_KEYS_SHARE = 8
_KEY_BYTES = 64

_Shaping: TypeAlias = "Callable[[PlannedFile, pl.DataFrame], pl.DataFrame]"


@dataclass(frozen=True)
class Lookup:
    """Reads one section of a bucket.

    `section` has all files that contain its keys, including those that stay in place. The names of
    these are in `staying_files`. The rows have `columns`, or fewer in files that stay.
    """

    view: TableView
    partition: bytes
    section: Section
    staying_files: frozenset[str]
    columns: tuple[str, ...]
    memory_bytes: int

    def windows(
        self,
        staying_columns: tuple[str, ...] | None = None,
        shaped: _Shaping = lambda _, rows: rows,
    ) -> Iterator[list[pl.DataFrame]]:
        """The versions in key-range windows, with one frame for each run, transformed by `shaped`.

        Files above level 0 that stay contribute only keys that are on level 0. A run without any
        may have no columns. Raises `DataError`, which names the file, if one cannot be read.
        """
        yield from self._windows(self._reading(staying_columns or self.columns, shaped))

    def merged(self) -> Iterator[Window]:
        """The windows with the merged versions. Raises like `MergedVersions.windows`."""
        reading = self._reading(self.columns)
        for runs in self._windows(reading):
            counted = without_contained(runs, reading.containing, self.view.order.key)
            order, engine, section = self.view.order, self.view.engine, self.section
            merging = counted
            if section.arrival_decides and engine.newest_decides:
                # Keys that are looked up have a newer version.
                merging = [rows for p, rows in enumerate(counted) if p not in self.narrow]
            with self.view.reading():
                merged = merge_runs(merging, order, engine, arrival_decides=section.arrival_decides)
            yield Window(runs, counted, merged)

    @cached_property
    def narrow(self) -> frozenset[int]:
        """The positions of the runs that contribute only keys that are on level 0."""
        runs = enumerate(self.section.runs)
        return frozenset(place for place, run in runs if self.is_looked_up(run))

    def stays(self, file: PlannedFile) -> bool:
        """Whether a file stays in place."""
        return file.meta.file_name in self.staying_files

    def is_looked_up(self, run: Run) -> bool:
        """Whether only the new keys of a run are needed."""
        return self.stays(run[0]) and run[0].meta.level > 0

    def _reading(
        self, staying_columns: tuple[str, ...], shaped: _Shaping = lambda _, rows: rows
    ) -> _LookupReading:
        fields = self.view.schema.select(table_columns(self.columns))
        rows = rows_in(self.memory_bytes, self.section.files, fields)
        return _LookupReading(self, staying_columns, shaped, rows)

    def _windows(self, reading: _LookupReading) -> Iterator[list[pl.DataFrame]]:
        together, key = self.view.store.together, self.view.order.key
        for window in key_windows(reading.runs(), key, together):
            if reading.keys is None:
                # Files that stay above level 0 contribute only the keys that are on level 0.
                upper = [place for place in self.section.upper if window[place].width]
                new = [
                    rows.select(key)
                    for place, rows in enumerate(window)
                    if rows.height and place not in upper
                ]
                for place in upper:
                    if self.is_looked_up(self.section.runs[place]):
                        rows = window[place]
                        window[place] = with_keys(rows, pl.concat(new)) if new else rows.clear()
            yield window


@dataclass(frozen=True)
class _LookupReading:
    """Reads the runs for a lookup. Windows have about `rows` rows."""

    lookup: Lookup
    staying_columns: tuple[str, ...]
    shaped: _Shaping
    rows: int

    def runs(self) -> list[Iterator[Batch]]:
        """The versions of each run. Runs that are looked up contribute only the new keys."""
        places = range(len(self._runs))
        sizes = [sum(file.meta.row_count for file in run) for run in self._runs]
        if not self._holds_new:
            held = batch_rows(sizes, self.rows)
            return [self._run(place, held[place]) for place in places]
        own = [0 if place in self._looked_up else size for place, size in enumerate(sizes)]
        held = batch_rows(own, self.rows)
        found = self._versions_of_new_keys()
        return [found.get(place) or self._run(place, held[place]) for place in places]

    @property
    def _runs(self) -> tuple[Run, ...]:
        return self.lookup.section.runs

    @cached_property
    def _looked_up(self) -> list[int]:
        """The positions of the runs that are looked up. Those that contain others come first."""
        first = self.lookup.section.containing
        others = (place for place in range(len(self._runs)) if place not in first)
        return [place for place in (*first, *others) if self.lookup.is_looked_up(self._runs[place])]

    @property
    def containing(self) -> tuple[int, ...]:
        """The positions of the runs that may have keys in common, as in `Section.containing`."""
        others = self.lookup.section.containing
        if not (self._holds_new and self._finds_each_once):
            return others
        # The runs that are looked up contribute no keys that those above have, if all are known.
        are_all = len(self._above) + len(self._looked_up) == len(others)
        is_known = are_all and all(known is not None for known in self._known_above)
        return self._above if is_known else others

    # -- new versions ---------------------------------------------------------------------------

    @cached_property
    def _new(self) -> list[PlannedFile]:
        return [file for file in self.lookup.section.files if file.meta.level == 0]

    @cached_property
    def _holds_new(self) -> bool:
        """Whether the new versions, and what the other runs have for them, are kept in memory."""
        rows = sum(file.meta.row_count for file in self._new)
        return rows * max(1, len(self._looked_up)) <= self.rows

    @cached_property
    def _new_versions(self) -> dict[str, pl.DataFrame]:
        """The versions in each file on level 0."""

        def of(file: PlannedFile) -> pl.DataFrame:
            return pl.concat([batch.rows for batch in self._versions(file, self.rows)])

        found = self.lookup.view.store.together([partial(of, file) for file in self._new])
        return {file.meta.file_name: rows for file, rows in zip(self._new, found, strict=True)}

    @cached_property
    def keys(self) -> pl.DataFrame | None:
        """The keys on level 0, each once and sorted, if they fit in memory."""
        key = self.lookup.view.order.key
        if self._holds_new:
            found = [rows[[*key]] for rows in self._new_versions.values()]
        else:
            rows = sum(file.meta.row_count for file in self._new)
            if rows * _KEY_BYTES * len(key) > self.lookup.memory_bytes // _KEYS_SHARE:
                return None
            stored = StoredVersions(self.lookup.view, self.lookup.partition, key)
            found = [stored.of_file(file) for file in self._new]
        keys = pl.concat(found).unique() if len(found) > 1 else found[0]
        return keys.sort(key, nulls_last=False)

    # -- versions found for them ----------------------------------------------------------------

    @property
    def _finds_each_once(self) -> bool:
        """Whether only the version in the first run that has the key is needed."""
        # Versions that deletion vectors mark as dead may come before a live one.
        has_vectors = self.lookup.view.options.deletion_vectors_enabled
        return bool(self.lookup.section.containing) and not has_vectors

    @cached_property
    def _above(self) -> tuple[int, ...]:
        """The positions of the runs above level 0 that are rewritten, if they come before all
        others.
        """
        upper, looked_up = self.lookup.section.containing, set(self._looked_up)
        return tuple(itertools.takewhile(lambda place: place not in looked_up, upper))

    @cached_property
    def _known_above(self) -> list[LookupFile | None]:
        """The lookup files of these runs, as far as they exist."""
        files = itertools.chain.from_iterable(self._runs[place] for place in self._above)
        return [self._laid_out(file) for file in files]

    def _versions_of_new_keys(self) -> dict[int, Iterator[Batch]]:
        """The versions of the new keys in the runs that are looked up, by the positions of the
        runs.
        """
        key, wanted, asked = self.lookup.view.order.key, self.keys, 0
        assert wanted is not None
        # Without the keys in a run that is rewritten, as far as it is known: the version in such a
        # run contains everything below it.
        for known in self._known_above if self._finds_each_once else ():
            if known is not None:
                wanted = without_keys(wanted, known.frames, key)
        missing = wanted

        def of(number: int, file: PlannedFile) -> list[pl.DataFrame]:
            nonlocal missing, asked
            # If they run in parallel on a remote store, the results of earlier runs are not known
            # yet.
            is_next = asked == number
            keys = missing if is_next else wanted
            rows = [*self._of_keys(file, keys)]
            if is_next:
                if rows and self._finds_each_once:
                    missing = without_keys(keys, rows, key)
                asked += 1
            return rows

        files = [file for place in self._looked_up for file in self._runs[place]]
        calls = [partial(of, number, file) for number, file in enumerate(files)]
        rows_of = self.lookup.view.store.together(calls)
        if self._finds_each_once and asked < len(files):
            rows_of = self._each_once(rows_of)
        found = iter(rows_of)
        batches = dict[int, Iterator[Batch]]()
        for place in self._looked_up:
            rows = [frame for _ in self._runs[place] for frame in next(found)]
            batches[place] = iter([Batch(pl.concat(rows), is_last=True)] if rows else [])
        return batches

    def _each_once(self, found: Iterable[list[pl.DataFrame]]) -> list[list[pl.DataFrame]]:
        """The rows of each file without the keys that an earlier file has."""
        key = self.lookup.view.order.key
        before: list[pl.DataFrame] = []
        left: list[list[pl.DataFrame]] = []
        for rows in found:
            own = [without_keys(frame, before, key) for frame in rows]
            left.append([frame for frame in own if frame.height])
            before += [frame[[*key]] for frame in left[-1]]
        return left

    def _of_keys(
        self, file: PlannedFile, keys: pl.DataFrame, rows_max: int | None = None
    ) -> Iterator[pl.DataFrame]:
        view, partition = self.lookup.view, self.lookup.partition
        old = VersionsOfKeys(view, partition, self.staying_columns, rows_max or self.rows)
        yield from map(partial(self.shaped, file), old.of(file, keys) if keys.height else ())

    # -- reading runs ---------------------------------------------------------------------------

    def _run(self, place: int, rows_max: int) -> Iterator[Batch]:
        run = self._runs[place]
        for file in run:
            for batch in self._batches(file, place, rows_max):
                yield Batch(batch.rows, is_last=batch.is_last and file is run[-1])

    def _batches(self, file: PlannedFile, place: int, rows_max: int) -> Iterator[Batch]:
        if place in self._looked_up and self.keys is not None:
            # Small frames combined: fewer frames make fewer windows.
            frames = self._of_keys(file, self.keys, rows_max)
            pile: list[pl.DataFrame] = []
            for rows in frames:
                if pile and sum(map(len, pile)) + rows.height > rows_max:
                    yield Batch(pl.concat(pile))
                    pile = []
                pile.append(rows)
            if pile:
                yield Batch(pl.concat(pile), is_last=True)
        elif self._holds_new and file.meta.level == 0:
            yield Batch(self.shaped(file, self._new_versions[file.meta.file_name]), is_last=True)
        else:
            for batch in self._versions(file, rows_max):
                yield Batch(self.shaped(file, batch.rows), is_last=batch.is_last)

    def _versions(self, file: PlannedFile, rows_max: int) -> Iterator[Batch]:
        known = self._laid_out(file)
        if known is None:
            is_staying = self.lookup.stays(file)
            columns = self.staying_columns if is_staying else self.lookup.columns
            stored = StoredVersions(self.lookup.view, self.lookup.partition, columns)
            yield from stored.of_run((file,), rows_max)
            return
        *frames, last = (rows for frame in known.frames for rows in frame.iter_slices(rows_max))
        yield from (Batch(rows) for rows in frames)
        yield Batch(last, is_last=True)

    def _laid_out(self, file: PlannedFile) -> LookupFile | None:
        """The lookup file for what is read of a data file, if it exists."""
        if file.dead_rows is not None:
            return None
        columns = self.staying_columns if self.lookup.stays(file) else self.lookup.columns
        return PartitionLookupFiles(self.lookup.view, self.lookup.partition, columns).existing(file)
