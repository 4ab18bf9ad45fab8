"""Runs of versions from any origin: the input of a merge.

A merge does not depend on files. It takes runs, each of which returns versions sorted by key, and
splits them into key-range windows. The files of a bucket are one kind of run. A folder of another
writer or a database query can be others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from keytide.base.lazily import cached_property
from keytide.merge.windows import SIDE_BY_SIDE, Batch, Together, key_windows
from keytide.read.prefetch import prefetched
from keytide.read.runs import StoredVersions
from keytide.read.sections import Run

__all__ = ["FileRun", "HeldRun", "VersionRun", "windows_of"]


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
class HeldRun:
    """Versions that are already in memory."""

    held: Sequence[Batch]

    @cached_property
    def rows(self) -> int:
        """See `VersionRun`."""
        return sum(batch.rows.height for batch in self.held)

    def batches(self, rows_max: int) -> Iterator[Batch]:
        """See `VersionRun`. Returns all versions, however many are requested."""
        return iter(self.held)


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
