"""What data files have for some keys.

Where the keys are few, files that are looked up again, and small ones at once, have lookup files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from keytide.format.data_file import IS_DEAD, POSITION, VALUE_KIND
from keytide.format.deletion_vector import dead_positions
from keytide.lazily import cached_property
from keytide.row_kind import RETRACTS
from keytide.table.read.key_conditions import key_range
from keytide.table.read.laid_out import LaidOut
from keytide.table.read.lookup_files import LookupFile, searched
from keytide.table.read.runs import StoredVersions
from keytide.table.read.sections import PlannedFile
from keytide.table.state.view import TableView

__all__ = ["VersionsOfKeys"]


@dataclass(frozen=True)
class VersionsOfKeys:
    """Reads the versions of some keys in files of one partition.

    They have `columns`. About `rows_max` rows are decoded at a time.
    """

    view: TableView
    partition: bytes
    columns: tuple[str, ...]
    rows_max: int

    def of(self, file: PlannedFile, keys: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """The versions of keys, given once each and in order, by key, in frames that have rows.

        Raises `DataError` naming a file that cannot be read.
        """
        known = self._lookup_file(file)
        if known is not None:
            frames = (self._without_dead(rows, file) for rows in known.with_keys(keys))
        else:
            about = key_range(keys)
            stored = StoredVersions(self.view, self.partition, self.columns, about, roughly=True)
            batches = stored.of_run((file,), self.rows_max)
            frames = (searched(batch.rows, keys) for batch in batches)
        yield from (rows for rows in frames if rows.height)

    def _lookup_file(self, file: PlannedFile) -> LookupFile | None:
        if file.dead_rows is not None and not {POSITION, VALUE_KIND} <= set(self.columns):
            return None
        return self._laid_out.find(file, self.rows_max)

    @cached_property
    def _laid_out(self) -> LaidOut:
        return LaidOut(self.view, self.partition, self.columns)

    def _without_dead(self, rows: pl.DataFrame, file: PlannedFile) -> pl.DataFrame:
        """Rows of a lookup file without those that are dead by now, told as `FileReader` does."""
        if file.dead_rows is None:
            return rows
        dead = pl.Series(dead_positions(self.view.store, file.dead_rows)).cast(
            rows.schema[POSITION]
        )
        is_dead = pl.col(POSITION).is_in(dead.implode())
        is_read = ~is_dead
        if file.keeps_retracts:
            is_read |= pl.col(VALUE_KIND).is_in(list(RETRACTS))
        told = [is_dead.alias(IS_DEAD)] if IS_DEAD in rows.columns else []
        return rows.filter(is_read).with_columns(*told)
