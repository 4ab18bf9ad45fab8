"""The versions of some keys in files, found once for several merges and held in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from keytide.format.manifest import Identity
from keytide.read.sections import PlannedFile, Section

__all__ = ["Found", "has_all_rows", "together"]


@dataclass(frozen=True)
class Found:
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
