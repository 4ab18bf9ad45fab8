"""Runs of versions in key order: the input of a merge.

A merge does not depend on files. A merge does not depend on files. It takes runs, each of which
returns versions sorted by key, and splits them into key-range windows. The files of a bucket are
one kind of run. A folder of another writer or a database query can be others.

Runs over a bucket's files return the stored versions in batches. Nothing is merged here. Only the
rows that a deletion vector marks as dead, and those that a condition excludes, are left out.

The versions of some keys can be found once for several merges and held in memory. The next batch is
computed in the background, so that all cores are used.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.base.dataclass import dataclass
from keytide.base.process import begin, cached_property
from keytide.base.row_kind import RowKind
from keytide.errors import DataError
from keytide.format import paths
from keytide.format.arrow import polars_schema
from keytide.format.binary_row import decode_rows
from keytide.format.data_file import (
    IS_DEAD,
    POSITION,
    SEQUENCE_NUMBER,
    VALUE_KIND,
    WHOLE_FILE,
    FileReader,
    Key,
    Span,
    key_spans,
    read_few,
    read_places,
    read_side_by_side,
    read_together,
    spans_of,
    version_in,
)
from keytide.format.manifest_entry import Identity
from keytide.merge.layers import with_keys
from keytide.merge.windows import SIDE_BY_SIDE, Batch, Together, key_windows
from keytide.options import TableOptions
from keytide.predicate.predicate import Predicate, columns_of, may_match, row_filter
from keytide.read.lookup_files import Bounds
from keytide.read.plan import pinned_keys
from keytide.read.sections import PlannedFile, Run, Section, is_out_of_order, with_unknowns
from keytide.snapshot.state import TableView
from keytide.types import Field

# -- background computation ------------------------------------------------------------------------


T = TypeVar("T")


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """The same items. A thread computes the next one while the caller works on the current one.

    One additional item is in memory. An error is raised at the position of its item. A caller that
    stops early does not wait for the item that is being computed.
    """
    end = object()
    make = partial(next, items, end)
    coming = begin(make)
    while (item := coming.result()) is not end:
        coming = begin(make)
        yield item


# -- runs over files -------------------------------------------------------------------------------


SYSTEM_COLUMNS = (SEQUENCE_NUMBER, VALUE_KIND)

PLACE_COLUMNS = (POSITION, IS_DEAD)
"""What is known about a version from its position in its file."""

Positions = npt.NDArray[np.int64]

# Small files are read together up to this many rows and files.
_TOGETHER_ROWS = 8 << 10
_TOGETHER_FILES = 100
# More rows than any row group has.
_FAR_ROWS = 1 << 62

_INSERT = pl.Series([RowKind.INSERT], dtype=pl.Int8)


def table_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """Those columns that are the table's own."""
    return tuple(name for name in columns if name not in (*SYSTEM_COLUMNS, *PLACE_COLUMNS))


@dataclass(frozen=True)
class StoredVersions:
    """Reads versions as they are stored in the files of one partition.

    - `columns` are columns of the table, `_SEQUENCE_NUMBER` and `_VALUE_KIND`, and `PLACE_COLUMNS`
      if needed.
    - The `condition` uses only these columns.
    - `keys`, each once, apply only to runs: versions of all other keys are left out.
    - Without `tells_kinds`, all adds may be reported as +I. For a file that has only adds, no kinds
      are read.
    - With `always`, the condition also keeps versions of these keys, and maybe of others. Then no
      file may have dead rows.
    - With `roughly`, all versions are returned from the row groups that may contain a match. This
      is for callers that check each version anyway.
    """

    view: TableView
    partition: bytes
    columns: tuple[str, ...]
    condition: Predicate | None = None
    keys: pl.DataFrame | None = None
    tells_kinds: bool = True
    always: pl.DataFrame | None = None
    roughly: bool = False

    def of_file(self, file: PlannedFile) -> pl.DataFrame:
        """All versions in a file, in stored order."""
        return self.reader(file).read(where=self._where)

    def at(self, places: Sequence[tuple[PlannedFile, Positions]], rows_max: int) -> pl.DataFrame:
        """The versions at some positions of files, file by file. The positions in each file ascend.

        In addition to the result, about `rows_max` rows are in memory.
        """
        found, reads, rows = [], list[tuple[FileReader, Span, Positions]](), 0
        for file, positions in places:
            reader = self.reader(file)
            whole = (0, file.meta.row_count)
            spans = [whole] if file.meta.row_count <= rows_max else reader.spans(rows_max)
            for start, count in spans:
                end = len(positions) if count is None else np.searchsorted(positions, start + count)
                wanted = positions[np.searchsorted(positions, start) : end]
                if not len(wanted):
                    continue
                # The part of the span that contains the positions, which are relative to its start.
                first = int(wanted[0])
                part = (first, int(wanted[-1]) - first + 1)
                if reads and rows + part[1] > rows_max:
                    found.append(_picked(reads))
                    reads, rows = [], 0
                reads.append((reader, part, wanted - first))
                rows += part[1]
        return (
            pl.concat([*found, _picked(reads)])
            if reads
            else pl.DataFrame(schema=polars_schema(self._fields))
        )

    def lookup_key(self, file: PlannedFile) -> Hashable:
        """Identifies all versions in a file, as they are read here.

        Raises `DataError` if the file is missing.
        """
        version = version_in(*self.view.data_file(file.entry))
        return (*version, self.view.schema.id, self.columns, self._has_one_kind(file))

    def of_lone_files(self, files: Iterable[PlannedFile], rows_max: int) -> Iterator[pl.DataFrame]:
        """The versions of files without common keys, file by file. Small files are combined."""
        files = list(files)
        placed = [(self.reader(f), f.places) for f in files if f.places is not None]
        if placed:
            yield from read_places(placed, self._where, rows_max)
            files = [file for file in files if file.places is None]
        found = zip(files, self._all_key_spans(files), strict=True)
        reads = [(file, spans) for file, spans in found if spans is not None]
        if reads:
            yield from (rows for rows in self._at_once(reads) if rows.height)
            read = {id(file) for file, _ in reads}
            files = [file for file in files if id(file) not in read]
        for some in _small_together(files):
            if len(some) > 1:
                yield read_together([self.reader(file) for file in some], self._where)
            else:
                yield from (batch.rows for batch in self._parts(some[0], rows_max))

    def of_run(self, run: Run, rows_max: int) -> Iterator[Batch]:
        """The versions of a run in key order, at most `rows_max` at a time.

        REQUIRES: the key is among the columns.
        """
        key = self.view.schema.trimmed_primary_key_fields()
        for file in run:
            if is_out_of_order(file.entry, key):
                # The whole file at once, because it must be sorted. Such files come from writers
                # that sort NaN first, and are rare.
                batches = iter([Batch(self._in_order(file, self.of_file(file)), is_last=True)])
            else:
                batches = self._parts(file, rows_max)
            for batch in batches:
                rows = batch.rows if self.keys is None else with_keys(batch.rows, self.keys)
                yield Batch(rows, is_last=batch.is_last and file is run[-1])

    def of_runs(self, runs: Sequence[Run]) -> list[pl.DataFrame]:
        """The versions of each run in key order, all together: for a condition that few rows match.

        A run without versions may have no columns. REQUIRES: the key is among the columns.
        """
        files = [file for run in runs for file in run]
        spans = self._all_key_spans(files)
        reads = [
            (file, [WHOLE_FILE] if some is None else some)
            for file, some in zip(files, spans, strict=True)
        ]
        frames = iter(self._at_once(reads))
        return [together([self._in_order(file, next(frames)) for file in run]) for run in runs]

    def _at_once(
        self, reads: Sequence[tuple[PlannedFile, Sequence[Span]]]
    ) -> Iterator[pl.DataFrame]:
        """The versions in some spans of files, file by file."""
        single = [
            (reader, span)
            for file, spans in reads
            for reader in ([self.reader(file)] if spans else ())
            for span in spans
        ]
        frames = iter(read_few(single, self._where))
        for _, spans in reads:
            yield together([next(frames) for _ in spans])

    def _all_key_spans(self, files: Sequence[PlannedFile]) -> list[list[Span] | None]:
        if self._pinned is None:
            return [None] * len(files)
        return self.view.store.together([partial(self._key_spans, file) for file in files])

    def _key_spans(self, file: PlannedFile) -> list[Span] | None:
        """Where in a file the only keys are that match the condition, if that is known."""
        if self._pinned is None:
            return None
        store, path = self.view.data_file(file.entry)
        if store.local_path(path) is None:
            # From a remote file, whole column chunks are fetched. Searching for the positions of
            # keys first would add another round of requests.
            return self._matching_spans(self.reader(file), _FAR_ROWS)
        return key_spans(self.reader(file), self.view.order.key, self._pinned)

    @cached_property
    def _pinned(self) -> list[Key] | None:
        return pinned_keys(self.condition, self.view.schema.select(self.view.order.key))

    def _in_order(self, file: PlannedFile, rows: pl.DataFrame) -> pl.DataFrame:
        if not rows.height or not is_out_of_order(
            file.entry, self.view.schema.trimmed_primary_key_fields()
        ):
            return rows
        # A changelog may have several rows of a key, which keep their order.
        return rows.sort(self.view.order.key, nulls_last=False, maintain_order=True)

    def _parts(self, file: PlannedFile, rows_max: int) -> Iterator[Batch]:
        reader, where = self.reader(file), self._where
        is_small = file.meta.row_count <= rows_max
        has_places = any(name in PLACE_COLUMNS for name in self.columns)
        leaves_out_dead = file.dead_rows is not None and not file.keeps_retracts and not has_places
        if where is not None and leaves_out_dead and is_small:
            matching = partial(self._matching_spans, reader, rows_max)
            yield Batch(reader.read_where(where, matching), is_last=True)
            return
        if self.condition is not None and (self.roughly or file.dead_rows is not None):
            # If the positions of rows are requested, some releases of Polars do not skip row
            # groups.
            spans = self._matching_spans(reader, rows_max)
        else:
            spans = [WHOLE_FILE] if is_small else reader.spans(rows_max)
        for span in spans:
            yield Batch(reader.read(*span, where), is_last=span is spans[-1])

    def _matching_spans(self, reader: FileReader, rows_max: int) -> list[Span]:
        """The parts of a file in which rows may match the condition."""
        assert self.condition is not None
        names = columns_of(self.condition)
        groups = reader.groups(names)
        fields = [field for field in self._fields if field.name in names]
        bounds = with_unknowns(groups.drop("offset", "rows"), fields, groups["rows"].to_list())
        possible = bounds.select(may_match(self.condition, fields)).to_series()
        return spans_of(groups.filter(possible), rows_max)

    @cached_property
    def _fields(self) -> tuple[Field, ...]:
        return self.view.schema.select(table_columns(self.columns))

    @cached_property
    def _where(self) -> pl.Expr | None:
        if self.condition is None or self.roughly:
            return None
        meets = row_filter(self.condition, self._fields)
        if self.always is None:
            return meets
        # Each column separately. This is much cheaper than comparing whole keys, and few more rows
        # pass.
        return meets | pl.all_horizontal(
            pl.col(key.name).is_in(key.unique().implode(), nulls_equal=True) for key in self.always
        )

    def reader(self, file: PlannedFile) -> FileReader:
        """Reads a file with these columns.

        Raises `DataError` if the file was written without a column of the key.
        """
        store, path = self.view.data_file(file.entry)
        # The schema that the file was written with. It has every key column.
        schema = self.view.schemas[file.meta.schema_id]
        known = {f.id for f in schema.fields}
        lacking = [f.name for f in self.view.schema.select(self.view.schema.primary_keys)
                   if f.id not in known]  # fmt: skip
        if lacking:
            raise DataError(
                f"table {self.view.name}: data file {file.meta.file_name} was written with "
                f"schema {schema.id}, which lacks the key column {lacking[0]!r}; restore "
                f"{paths.schema_path(schema.id)} from a backup"
            )
        constants = [*self._partition_values]
        lowest, highest = file.meta.min_sequence_number, file.meta.max_sequence_number
        if lowest == highest:
            constants.append((SEQUENCE_NUMBER, pl.Series([lowest], dtype=pl.Int64)))
        if self._has_one_kind(file):
            constants.append((VALUE_KIND, _INSERT))
        return self.view.files.reader(
            store=store,
            path=path,
            file_schema=schema,
            fields=self._fields,
            system_columns=tuple(
                name for name in (*SYSTEM_COLUMNS, *PLACE_COLUMNS) if name in self.columns
            ),
            constants=tuple(constants),
            dead_rows=file.dead_rows,
            keeps_retracts=file.keeps_retracts,
            table=self.view.store,
            size=file.meta.file_size,
            kept_bytes_max=self.view.options.lookup_cache_bytes_max,
        )

    def _has_one_kind(self, file: PlannedFile) -> bool:
        """Whether all rows are read as +I, because no kinds are stored or requested."""
        has_adds_only = not file.may_retract and not file.keeps_retracts
        return not file.has_kinds or (has_adds_only and not self.tells_kinds)

    @cached_property
    def _partition_values(self) -> tuple[tuple[str, pl.Series], ...]:
        fields = self.view.schema.partition_fields()
        if not fields:
            return ()
        arrays = decode_rows([self.partition], [f.type for f in fields])
        types = polars_schema(fields)
        return tuple(
            (f.name, pl.Series(f.name, array).cast(types[f.name]))
            for f, array in zip(fields, arrays, strict=True)
        )


def bounds_of(options: TableOptions) -> Bounds:
    """The limits of a table's lookup files."""
    return Bounds(options.lookup_files_bytes_max, options.lookup_file_retention_ms / 1000)


def _picked(reads: Sequence[tuple[FileReader, Span, Positions]]) -> pl.DataFrame:
    frames = read_side_by_side([(reader, span) for reader, span, _ in reads])
    picked = (frame[pl.Series(wanted)] for frame, (*_, wanted) in zip(frames, reads, strict=True))
    return pl.concat(picked)


def _small_together(files: Iterable[PlannedFile]) -> Iterator[Sequence[PlannedFile]]:
    """The files in groups: small files that are read together are in one group."""
    batch: list[PlannedFile] = []
    rows = 0
    for file in files:
        if batch and (rows + file.meta.row_count > _TOGETHER_ROWS or len(batch) == _TOGETHER_FILES):
            yield batch
            batch, rows = [], 0
        batch.append(file)
        rows += file.meta.row_count
    if batch:
        yield batch


# -- runs of any origin ----------------------------------------------------------------------------


class VersionRun(Protocol):
    """Versions sorted by key, at most one per key."""

    @property
    def rows(self) -> int:
        """About how many versions there are.

        This determines how many are held in memory at a time.
        """

    def batches(self, rows_max: int) -> Iterator[Batch]:
        """The versions in key order, about `rows_max` at a time.

        All batches have the columns that the merge needs: the key, `_SEQUENCE_NUMBER` unless the
        order of the runs decides, `_VALUE_KIND`, and values. This method is called once. The
        batches are requested one after the other, in any thread.
        """


@dataclass(frozen=True)
class FileRun:
    """The versions in files of a bucket that have no key in common."""

    stored: StoredVersions
    files: Run

    @cached_property
    def rows(self) -> int:
        """See `VersionRun`."""
        return sum(file.meta.row_count for file in self.files)

    def batches(self, rows_max: int) -> Iterator[Batch]:
        """See `VersionRun`. Raises `DataError`, which names the file, if it cannot be read."""
        return self.stored.of_run(self.files, rows_max)


@dataclass(frozen=True)
class MemoryRun:
    """Versions that are already in memory."""

    versions: Sequence[Batch]

    @cached_property
    def rows(self) -> int:
        """See `VersionRun`."""
        return sum(batch.rows.height for batch in self.versions)

    def batches(self, rows_max: int) -> Iterator[Batch]:
        """See `VersionRun`. Returns all versions, however many are requested."""
        return iter(self.versions)


def windows_of(
    runs: Sequence[VersionRun],
    held: Sequence[int],
    key: tuple[str, ...],
    together: Together = SIDE_BY_SIDE,
) -> Iterator[list[pl.DataFrame]]:
    """The windows of the runs, as in `key_windows`.

    `held` is the number of rows in memory for each run.
    """
    # The next batches are read while the current ones are merged.
    yield from key_windows(
        [
            prefetched(run.batches(rows)) if run.rows > rows else run.batches(rows)
            for run, rows in zip(runs, held, strict=True)
        ],
        key,
        together,
    )


# -- versions of some keys -------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundVersions:
    """The complete versions that files have for the same keys, in key order.

    For a file without versions, the frame has no columns.
    """

    versions: Mapping[Identity, pl.DataFrame]

    def has(self, section: Section) -> bool:
        """Whether it contains all files of a section, as they are read there."""
        return all(
            has_all_rows(file) and file.entry.identity in self.versions for file in section.files
        )

    def of(self, section: Section) -> list[pl.DataFrame]:
        """The versions in each run of a section."""
        return [together([self.versions[file.entry.identity] for file in run])
                for run in section.runs]  # fmt: skip


def has_all_rows(file: PlannedFile) -> bool:
    """Whether all rows of a file count, and therefore count in every snapshot with this file."""
    return file.dead_rows is None and not file.keeps_retracts


def together(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows of several frames. If there are none, the result has no columns."""
    filled = [rows for rows in frames if rows.height]
    if len(filled) == 1:
        return filled[0]
    return pl.concat(filled) if filled else pl.DataFrame()
