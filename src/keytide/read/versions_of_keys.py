"""Reads the versions of some keys in data files.

If there are few keys, lookup files are used for small files and for files that are looked up
repeatedly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import polars as pl

from keytide.base.process import cached_property
from keytide.base.row_kind import RETRACTS
from keytide.format.data_file import IS_DEAD, POSITION, VALUE_KIND
from keytide.format.index_files import dead_positions
from keytide.read.lookup import LaidOut, key_range
from keytide.read.lookup_files import LookupFile, searched
from keytide.read.runs import SYSTEM_COLUMNS, Found, StoredVersions, has_all_rows, together
from keytide.read.sections import PlannedFile
from keytide.snapshot.state import TableView

__all__ = ["VersionsOfKeys", "find", "keys_in"]


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
        told = [is_dead.alias(IS_DEAD)] if IS_DEAD in rows.columns else []
        return rows.filter(is_read).with_columns(*told)


def find(view: TableView, files: Iterable[PlannedFile], keys: pl.DataFrame, rows_max: int) -> Found:
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
    return Found(dict(zip(wanted, found, strict=True)))


def keys_in(view: TableView, file: PlannedFile) -> pl.DataFrame:
    """The keys in a file. Raises `DataError` if it cannot be read."""
    key = list(view.order.key)
    known = LaidOut.whole(view, file.entry.partition).at_hand(file) if has_all_rows(file) else None
    if known is not None:
        return pl.concat([rows.select(key) for rows in known.frames])
    return StoredVersions(view, file.entry.partition, view.order.key).of_file(file.as_stored())
