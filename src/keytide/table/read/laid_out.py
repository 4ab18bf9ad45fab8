"""Data files of a table as lookup files, those among them that this process has just written.

What it writes into a table that compacts by lookup is looked up by the next compaction. Its rows
are in memory, so they are laid out then, which takes a fraction of decoding them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from keytide.errors import DataError
from keytide.format.arrow import from_arrow
from keytide.format.manifest import ManifestEntry
from keytide.lazily import cached_property
from keytide.merge.engines import compacts_by_lookup
from keytide.table.read.lookup_files import LOOKUP_FILES, LookupFile
from keytide.table.read.runs import SYSTEM_COLUMNS, StoredVersions, bounds_of
from keytide.table.read.sections import PlannedFile
from keytide.table.state.view import TableView

__all__ = ["LaidOut", "are_laid_out", "forget", "lay_out"]

# To lay out so many rows takes little, and what compactions have just made is soon looked up again.
_AT_ONCE_ROWS = 1 << 18
# Of what is written, as much as is written again and again; a load takes longer to fill the disk.
_WRITTEN_ROWS_MAX = 1 << 20


@dataclass(frozen=True)
class LaidOut:
    """The lookup files of what is stored in data files of one partition, `columns` of it."""

    view: TableView
    partition: bytes
    columns: tuple[str, ...]

    @classmethod
    def whole(cls, view: TableView, partition: bytes) -> LaidOut:
        """Those with all that is stored."""
        return cls(view, partition, (*view.schema.names, *SYSTEM_COLUMNS))

    def find(self, file: PlannedFile, rows_max: int) -> LookupFile | None:
        """The lookup file of a data file, made where it is due of about `rows_max` rows at a time.

        None where the data file has to be read. Raises `DataError` where it is missing.
        """
        stored = file.as_stored()

        def versions() -> Iterator[pl.DataFrame]:
            return (batch.rows for batch in self._stored.of_run((stored,), rows_max))

        at_once = file.meta.row_count <= _AT_ONCE_ROWS
        bounds = bounds_of(self.view.options)
        return LOOKUP_FILES.find(self._key(file), versions, bounds, at_once=at_once)

    def at_hand(self, file: PlannedFile) -> LookupFile | None:
        """The lookup file of a data file, if there is one or it is small. Raises as `find`."""
        rows = file.meta.row_count
        return self.find(file, rows) if rows <= _AT_ONCE_ROWS else self.known(file)

    def known(self, file: PlannedFile) -> LookupFile | None:
        """The lookup file of a data file, if there is one. Raises as `find`."""
        return LOOKUP_FILES.known(self._key(file), bounds_of(self.view.options))

    def keep(self, file: PlannedFile, rows: pl.DataFrame) -> None:
        """Lay out the rows of a data file that has just been written."""
        wanted = rows.select(self.columns)
        LOOKUP_FILES.keep(self._key(file), [wanted], bounds_of(self.view.options))

    def forget(self, file: PlannedFile) -> None:
        """Give up the lookup file of a data file that is no more looked up."""
        LOOKUP_FILES.forget(self._key(file))

    def _key(self, file: PlannedFile) -> Hashable:
        return self._stored.lookup_key(file.as_stored())

    @cached_property
    def _stored(self) -> StoredVersions:
        return StoredVersions(self.view, self.partition, self.columns)


def are_laid_out(view: TableView) -> bool:
    """Whether what is written into a table is laid out: compactions look it up by keys alone."""
    # With deletion vectors they look for the places of rows too, which nobody knows in memory.
    options = view.options
    is_looked_up = view.kind.keeps_versions and compacts_by_lookup(options)
    return is_looked_up and not options.deletion_vectors_enabled and not options.write_only


def lay_out(view: TableView, entry: ManifestEntry, rows: pa.Table) -> None:
    """Lay out the rows, in key order, of a data file that this process has written.

    Not those of a very large one. Nothing of this can fail. REQUIRES: `are_laid_out`.
    """
    if rows.num_rows <= _WRITTEN_ROWS_MAX:
        with suppress(DataError):  # a file that is not there yet is read when it is
            LaidOut.whole(view, entry.partition).keep(PlannedFile(entry), from_arrow(rows))


def forget(view: TableView, entries: Iterable[ManifestEntry]) -> None:
    """Give up what is laid out of data files that a compaction took the rows of."""
    if not are_laid_out(view):
        return
    for entry in entries:
        with suppress(DataError):
            LaidOut.whole(view, entry.partition).forget(PlannedFile(entry))
