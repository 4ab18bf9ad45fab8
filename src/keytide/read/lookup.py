"""Lookups of keys in a bucket, and the files that make them fast.

Looks up the versions of keys in a bucket.

Creates lookup files for data files, in particular for those that this process has just written.

If a table compacts by lookup, the next compaction looks up what this process writes. The rows are
still in memory, so creating the lookup file immediately takes a fraction of the time of decoding
the data file later.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from keytide.base.process import cached_property
from keytide.base.text import held_by_python
from keytide.errors import DataError
from keytide.format.arrow import from_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.format.manifest import ManifestEntry
from keytide.merge.engines import compacts_by_lookup
from keytide.predicate.predicate import Comparison, Predicate, conjunction
from keytide.read.lookup_files import LOOKUP_FILES, LookupFile
from keytide.read.runs import SYSTEM_COLUMNS, StoredVersions, bounds_of
from keytide.read.scan import ReadTask
from keytide.read.sections import PlannedFile
from keytide.snapshot.state import TableView

# -- looks up the versions of keys in a bucket -----------------------------------------------------


# Less than 'read.memory', because a write, which already holds its rows, uses this.
_MEMORY_BYTES = 256 << 20


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


# -- creates lookup files for data files -----------------------------------------------------------


# Creating a lookup file of this many rows is fast, and compaction results are soon looked up again.
_AT_ONCE_ROWS = 1 << 18
# Larger files are not small repeated writes but loads, which would take long to fill the disk.
_WRITTEN_ROWS_MAX = 1 << 20


@dataclass(frozen=True)
class LaidOut:
    """The lookup files of the data files of one partition. They contain `columns`."""

    view: TableView
    partition: bytes
    columns: tuple[str, ...]

    @classmethod
    def whole(cls, view: TableView, partition: bytes) -> LaidOut:
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

    def at_hand(self, file: PlannedFile) -> LookupFile | None:
        """The lookup file of a data file, if it exists or the file is small. Raises like `find`."""
        rows = file.meta.row_count
        return self.find(file, rows) if rows <= _AT_ONCE_ROWS else self.known(file)

    def known(self, file: PlannedFile) -> LookupFile | None:
        """The lookup file of a data file, if it exists. Raises like `find`."""
        return LOOKUP_FILES.known(self._key(file), bounds_of(self.view.options))

    def keep(self, file: PlannedFile, rows: pl.DataFrame) -> None:
        """Create a lookup file from the rows of a data file that was just written."""
        wanted = rows.select(self.columns)
        LOOKUP_FILES.keep(self._key(file), [wanted], bounds_of(self.view.options))

    def forget(self, file: PlannedFile) -> None:
        """Drop the lookup file of a data file that is no longer looked up."""
        LOOKUP_FILES.forget(self._key(file))

    def _key(self, file: PlannedFile) -> Hashable:
        return self._stored.lookup_key(file.as_stored())

    @cached_property
    def _stored(self) -> StoredVersions:
        return StoredVersions(self.view, self.partition, self.columns)


def are_laid_out(view: TableView) -> bool:
    """Whether lookup files are created for written files: compactions look up by keys alone."""
    # With deletion vectors, compactions also need the positions of rows, which are unknown in
    # memory.
    options = view.options
    is_looked_up = view.kind.keeps_versions and compacts_by_lookup(options)
    return is_looked_up and not options.deletion_vectors_enabled and not options.write_only


def lay_out(view: TableView, entry: ManifestEntry, rows: pa.Table) -> None:
    """Create a lookup file from the sorted rows of a data file that this process has written.

    Very large files are skipped. Never raises an error. REQUIRES: `are_laid_out`.
    """
    if rows.num_rows <= _WRITTEN_ROWS_MAX:
        with suppress(DataError):  # a file that does not exist yet is read later
            LaidOut.whole(view, entry.partition).keep(PlannedFile(entry), from_arrow(rows))


def forget(view: TableView, entries: Iterable[ManifestEntry]) -> None:
    """Drop the lookup files of data files whose rows were compacted into other files."""
    if not are_laid_out(view):
        return
    for entry in entries:
        with suppress(DataError):
            LaidOut.whole(view, entry.partition).forget(PlannedFile(entry))
