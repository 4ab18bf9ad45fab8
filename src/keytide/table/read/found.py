"""What files have for some keys, found once for all who merge it, and held in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from keytide.format.manifest import Identity
from keytide.table.read.sections import PlannedFile, Section

__all__ = ["Found", "has_all_rows", "together"]


@dataclass(frozen=True)
class Found:
    """The whole versions that some files have for the same keys, in key order.

    Of a file that has none there are no columns either.
    """

    versions: Mapping[Identity, pl.DataFrame]

    def has(self, section: Section) -> bool:
        """Whether it has all files of a section, as they are read there."""
        return all(
            has_all_rows(file) and file.entry.identity in self.versions for file in section.files
        )

    def of(self, section: Section) -> list[pl.DataFrame]:
        """The versions in each run of a section."""
        return [together([self.versions[file.entry.identity] for file in run])
                for run in section.runs]  # fmt: skip


def has_all_rows(file: PlannedFile) -> bool:
    """Whether all rows of a file count, and so in each snapshot that has it."""
    return file.dead_rows is None and not file.keeps_retracts


def together(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows of some frames; where there are none, without columns."""
    filled = [rows for rows in frames if rows.height]
    if len(filled) == 1:
        return filled[0]
    return pl.concat(filled) if filled else pl.DataFrame()
