"""Lookups of keys in a bucket, and the files that make them fast.

If there are few keys, lookup files are used for small files and for files that are looked up
repeatedly. They are created for data files, in particular for those that this process has just
written.

If a table compacts by lookup, the next compaction looks up what this process writes. The rows are
still in memory, so creating the lookup file immediately takes a fraction of the time of decoding
the data file later.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.base.row_kind import RETRACTS
from keytide.base.text import held_by_python
from keytide.errors import DataError
from keytide.format.arrow import from_arrow
from keytide.format.data_file import IS_DEAD, POSITION, VALUE_KIND
from keytide.format.index_files import dead_positions
from keytide.format.manifest_entry import ManifestEntry
from keytide.predicate.predicate import Comparison, Predicate, conjunction
from keytide.read.lookup_files import LOOKUP_FILES, LookupFile, searched
from keytide.read.runs import (
    SYSTEM_COLUMNS,
    FoundVersions,
    StoredVersions,
    bounds_of,
    has_all_rows,
    together,
)
from keytide.read.scan import ReadTask, Scan, reading
from keytide.read.sections import PlannedFile
from keytide.snapshot.state import TableView

# -- lookups ---------------------------------------------------------------------------------------


# Less than 'read.memory', because a write, which already holds its rows, uses this.
_MEMORY_BYTES = 256 << 20
# So many rows of a file are decoded at a time to look for keys.
_STEP_ROWS = 1 << 20


def newest_versions(
    task: ReadTask, keys: pl.DataFrame, columns: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """The merged version of each existing key, including deletes.

    `keys` has only the key columns, each key once. The frames contain `columns` and `_VALUE_KIND`,
    in bounded memory.
    """
    names = keys.columns
    # The range prunes files. The join finds the keys that really exist.
    task = replace(task, columns=tuple(columns), predicate=key_range(keys))
    for frame in task.outcomes(_MEMORY_BYTES):
        found = frame.join(keys, on=names, how="semi", nulls_equal=True)
        yield found.select(*columns, VALUE_KIND)


def key_range(keys: pl.DataFrame) -> Predicate | None:
    """The range of the first key column.

    None if a key has NULL there, or a date that Python does not have, as no condition can name it.
    """
    first = keys.to_series(0)
    if not len(first) or first.null_count():
        return None
    ends = first.sort()[[0, -1]]  # in the order of keys, NaN last
    if ends.dtype == pl.Datetime:
        ends = ends.to_physical()  # Python's datetime has no nanoseconds
    if held_by_python(ends.to_frame()).dtypes != [ends.dtype]:
        return None
    low, high = ends
    name = first.name
    return conjunction([Comparison(name, ">=", low), Comparison(name, "<=", high)])


# -- creation of lookup files ----------------------------------------------------------------------


# Creating a lookup file of this many rows is fast, and compaction results are soon looked up again.
_AT_ONCE_ROWS = 1 << 18
# Larger files are not small repeated writes but loads, which would take long to fill the disk.
_WRITTEN_ROWS_MAX = 1 << 20


@dataclass(frozen=True)
class PartitionLookupFiles:
    """The lookup files of the data files of one partition. They contain `columns`."""

    view: TableView
    partition: bytes
    columns: tuple[str, ...]

    @classmethod
    def whole(cls, view: TableView, partition: bytes) -> PartitionLookupFiles:
        """The lookup files with all stored columns."""
        return cls(view, partition, (*view.schema.names, *SYSTEM_COLUMNS))

    def find(self, file: PlannedFile, rows_max: int) -> LookupFile | None:
        """The lookup file of a data file. Created if it is due, in steps of about `rows_max` rows.

        None if the data file must be read instead. Raises `DataError` if it is missing.
        """
        stored = file.as_stored()

        def versions() -> Iterator[pl.DataFrame]:
            return (batch.rows for batch in self._stored.of_run((stored,), rows_max))

        at_once = file.meta.row_count <= _AT_ONCE_ROWS
        bounds = bounds_of(self.view.options)
        return LOOKUP_FILES.find(self._key(file), versions, bounds, at_once=at_once)

    def existing(self, file: PlannedFile) -> LookupFile | None:
        """The lookup file of a data file, if it exists. Raises like `find`."""
        return LOOKUP_FILES.existing(self._key(file), bounds_of(self.view.options))

    def keep(self, file: PlannedFile, rows: pl.DataFrame) -> None:
        """Create a lookup file from the rows of a data file that was just written."""
        LOOKUP_FILES.keep(self._key(file), [rows[[*self.columns]]], bounds_of(self.view.options))

    def create(self, file: PlannedFile) -> None:
        """Create a lookup file from a stored data file."""
        versions = (batch.rows for batch in self._stored.of_run((file.as_stored(),), _STEP_ROWS))
        LOOKUP_FILES.keep(self._key(file), versions, bounds_of(self.view.options))

    def forget(self, file: PlannedFile) -> None:
        """Drop the lookup file of a data file that is no longer looked up."""
        LOOKUP_FILES.forget(self._key(file))

    def _key(self, file: PlannedFile) -> Hashable:
        return self._stored.lookup_key(file.as_stored())

    @cached_property
    def _stored(self) -> StoredVersions:
        return StoredVersions(self.view, self.partition, self.columns)


def create_lookup_file(view: TableView, entry: ManifestEntry, rows: pa.Table) -> None:
    """Create a lookup file from the sorted rows of a data file that this process has written.

    Very large files are skipped. Never raises an error. REQUIRES: the view `creates_lookup_files`.
    """
    if rows.num_rows <= _WRITTEN_ROWS_MAX:
        with suppress(DataError):  # a file that does not exist yet is read later
            PartitionLookupFiles.whole(view, entry.partition).keep(
                PlannedFile(entry), from_arrow(rows)
            )


def forget(view: TableView, entries: Iterable[ManifestEntry]) -> None:
    """Drop the lookup files of data files whose rows were compacted into other files."""
    for entry in entries:
        with suppress(DataError):
            PartitionLookupFiles.whole(view, entry.partition).forget(PlannedFile(entry))


# -- versions of keys in data files ----------------------------------------------------------------


@dataclass(frozen=True)
class VersionsOfKeys:
    """Reads the versions of some keys in files of one partition.

    The versions have `columns`. About `rows_max` rows are decoded at a time.
    """

    view: TableView
    partition: bytes
    columns: tuple[str, ...]
    rows_max: int

    def of(self, file: PlannedFile, keys: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """The versions of the keys, in key order, in non-empty frames.

        The keys are unique and sorted. Raises `DataError`, which names the file, if it cannot be
        read.
        """
        if file.dead_rows is not None and not {POSITION, VALUE_KIND} <= set(self.columns):
            known = None
        else:
            known = self._lookup_files.find(file, self.rows_max)
        if known is not None:
            frames = (self._without_dead(rows, file) for rows in known.with_keys(keys))
        else:
            about = key_range(keys)
            stored = StoredVersions(self.view, self.partition, self.columns, about, roughly=True)
            batches = stored.of_run((file,), self.rows_max)
            frames = (searched(batch.rows, keys) for batch in batches)
        yield from (rows for rows in frames if rows.height)

    @cached_property
    def _lookup_files(self) -> PartitionLookupFiles:
        return PartitionLookupFiles(self.view, self.partition, self.columns)

    def _without_dead(self, rows: pl.DataFrame, file: PlannedFile) -> pl.DataFrame:
        """The rows of a lookup file without those that are dead by now, as `FileReader` returns
        them.
        """
        if file.dead_rows is None:
            return rows
        dead = pl.Series(dead_positions(self.view.store, file.dead_rows)).cast(
            rows.schema[POSITION]
        )
        is_dead = pl.col(POSITION).is_in(dead.implode())
        is_read = ~is_dead
        if file.keeps_retracts:
            is_read |= pl.col(VALUE_KIND).is_in(list(RETRACTS))
        marks = [is_dead.alias(IS_DEAD)] if IS_DEAD in rows.columns else []
        return rows.filter(is_read).with_columns(*marks)


def find(
    view: TableView, files: Iterable[PlannedFile], keys: pl.DataFrame, rows_max: int
) -> FoundVersions:
    """The versions of keys in those files that have no dead rows. The keys are unique and sorted.

    About `rows_max` rows of each file are decoded at a time. Raises `DataError`, which names the
    file, if it cannot be read.
    """
    wanted = {file.entry.identity: file for file in files if has_all_rows(file)}
    columns = (*view.schema.names, *SYSTEM_COLUMNS)
    stored = {
        partition: VersionsOfKeys(view, partition, columns, rows_max)
        for partition in {file.entry.partition for file in wanted.values()}
    }

    def versions(file: PlannedFile) -> pl.DataFrame:
        return together([*stored[file.entry.partition].of(file, keys)])

    found = view.store.together([partial(versions, file) for file in wanted.values()])
    return FoundVersions(dict(zip(wanted, found, strict=True)))


def rows_of_keys(scan: Scan, keys: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The rows of some keys, in frames with the columns of the scan, and maybe rows of other keys.

    `keys` has the columns of the primary key. Raises like `Scan.to_batches`. REQUIRES: the rows
    depend on no more than their keys, as in tables with `point_lookups`.
    """
    view = scan.view
    names = list(view.order.key)
    wanted = keys.select(names).unique().sort(names)
    with reading(view, scan.snapshot_ids) as step:
        for task in scan.tasks():
            found = find(view, task.bucket.files, wanted, _STEP_ROWS)
            merging = replace(task.rows.versions(), found_versions=found)
            for frame in merging.in_order(task.bucket, _MEMORY_BYTES):
                shown = task.rows.shown(frame)
                step.numbers(rows=shown.height)
                yield shown


def keys_in(view: TableView, file: PlannedFile) -> pl.DataFrame:
    """The keys in a file. Raises `DataError` if it cannot be read."""
    key = list(view.order.key)
    known = None
    if has_all_rows(file):
        files, rows = PartitionLookupFiles.whole(view, file.entry.partition), file.meta.row_count
        known = files.find(file, rows) if rows <= _AT_ONCE_ROWS else files.existing(file)
    if known is not None:
        return pl.concat([rows.select(key) for rows in known.frames])
    return StoredVersions(view, file.entry.partition, view.order.key).of_file(file.as_stored())
