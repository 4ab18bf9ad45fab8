"""Runs of versions, wherever they come from: what a merge reads.

A merge knows nothing of files. It takes runs, each of which gives versions sorted by key, and cuts
them into windows by key. Files of a bucket make one kind of run; a folder of another writer or a
query of a database can make others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from keytide.lazily import cached_property
from keytide.merge.windows import SIDE_BY_SIDE, Batch, Together, key_windows
from keytide.table.read.prefetch import prefetched
from keytide.table.read.runs import StoredVersions
from keytide.table.read.sections import Run

__all__ = ["FileRun", "HeldRun", "VersionRun", "windows_of"]


class VersionRun(Protocol):
    """Versions sorted by key, one of a key at most."""

    @property
    def rows(self) -> int:
        """About how many versions there are; by that it is decided how many to hold at once."""

    def batches(self, rows_max: int) -> Iterator[Batch]:
        """The versions in key order, about `rows_max` at a time.

        All batches have the columns that the merge needs: the key, `_SEQUENCE_NUMBER` unless the
        order of the runs decides, `_VALUE_KIND`, and values. Called once; the batches are asked for
        one after the other, in any thread.
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
        """See `VersionRun`. Raises `DataError` naming a file that cannot be read."""
        return self.stored.of_run(self.files, rows_max)


@dataclass(frozen=True)
class HeldRun:
    """Versions that are here already."""

    held: Sequence[Batch]

    @cached_property
    def rows(self) -> int:
        """See `VersionRun`."""
        return sum(batch.rows.height for batch in self.held)

    def batches(self, rows_max: int) -> Iterator[Batch]:
        """See `VersionRun`; as they are held, however many are asked for."""
        return iter(self.held)


def windows_of(
    runs: Sequence[VersionRun],
    held: Sequence[int],
    key: tuple[str, ...],
    together: Together = SIDE_BY_SIDE,
) -> Iterator[list[pl.DataFrame]]:
    """Windows of runs as `key_windows` gives them; of each run so many rows are held at a time."""
    # The next batches are read while those at hand are merged.
    yield from key_windows(
        [
            prefetched(run.batches(rows)) if run.rows > rows else run.batches(rows)
            for run, rows in zip(runs, held, strict=True)
        ],
        key,
        together,
    )
