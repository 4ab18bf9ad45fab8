"""What files have for some keys, found once for all who merge it, and held in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from keytide.format.manifest import Identity
from keytide.table.read.laid_out import LaidOut
from keytide.table.read.runs import SYSTEM_COLUMNS, StoredVersions
from keytide.table.read.sections import PlannedFile, Section
from keytide.table.read.versions_of_keys import VersionsOfKeys
from keytide.table.state.view import TableView

__all__ = ["Found", "find", "keys_in"]


@dataclass(frozen=True)
class Found:
    """The whole versions that some files have for the same keys, in key order.

    Of a file that has none there are no columns either.
    """

    versions: Mapping[Identity, pl.DataFrame]

    def has(self, section: Section) -> bool:
        """Whether it has all files of a section, as they are read there."""
        return all(
            _is_whole(file) and file.entry.identity in self.versions for file in section.files
        )

    def of(self, section: Section) -> list[pl.DataFrame]:
        """The versions in each run of a section."""
        return [_together([self.versions[file.entry.identity] for file in run])
                for run in section.runs]  # fmt: skip


def find(view: TableView, files: Iterable[PlannedFile], keys: pl.DataFrame, rows_max: int) -> Found:
    """What some files have for keys, given once each and in order; others than these are left out.

    Those in which no row is dead. About `rows_max` rows of each are decoded at a time. Raises
    `DataError` naming a file that cannot be read.
    """
    wanted = {file.entry.identity: file for file in files if _is_whole(file)}
    columns = (*view.schema.names, *SYSTEM_COLUMNS)
    stored = {
        partition: VersionsOfKeys(view, partition, columns, rows_max)
        for partition in {file.entry.partition for file in wanted.values()}
    }

    def versions(file: PlannedFile) -> pl.DataFrame:
        return _together([*stored[file.entry.partition].of(file, keys)])

    found = view.store.together([partial(versions, file) for file in wanted.values()])
    return Found(dict(zip(wanted, found, strict=True)))


def keys_in(view: TableView, file: PlannedFile) -> pl.DataFrame:
    """The keys in a file. Raises `DataError` where it cannot be read."""
    key = list(view.order.key)
    known = LaidOut.whole(view, file.entry.partition).at_hand(file) if _is_whole(file) else None
    if known is not None:
        return pl.concat([rows.select(key) for rows in known.frames])
    return StoredVersions(view, file.entry.partition, view.order.key).of_file(file.as_stored())


def _is_whole(file: PlannedFile) -> bool:
    """Whether all rows of a file count, and so in each snapshot that has it."""
    return file.dead_rows is None and not file.keeps_retracts


def _together(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    filled = [rows for rows in frames if rows.height]
    if len(filled) == 1:
        return filled[0]
    return pl.concat(filled) if filled else pl.DataFrame()
