"""Creates lookup files for data files, in particular for those that this process has just written.

If a table compacts by lookup, the next compaction looks up what this process writes. The rows are
still in memory, so creating the lookup file immediately takes a fraction of the time of decoding
the data file later.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from keytide.base.lazily import cached_property
from keytide.errors import DataError
from keytide.format.arrow import from_arrow
from keytide.format.manifest import ManifestEntry
from keytide.merge.engines import compacts_by_lookup
from keytide.read.lookup_files import LOOKUP_FILES, LookupFile
from keytide.read.runs import SYSTEM_COLUMNS, StoredVersions, bounds_of
from keytide.read.sections import PlannedFile
from keytide.snapshot.view import TableView

__all__ = ["LaidOut", "are_laid_out", "forget", "lay_out"]

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
