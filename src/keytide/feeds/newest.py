"""Lookup of the latest stored version of the keys in a batch of changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from keytide.base.row_kind import RowKind
from keytide.format.data_file import VALUE_KIND
from keytide.read.lookup import newest_versions
from keytide.read.row_keys import hashes_of
from keytide.read.scan import Scan
from keytide.read.task import ReadTask
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableState
from keytide.write.task import WriteTask
from keytide.write.upsert import UpsertTask

__all__ = ["NewestVersions", "newest_of"]


class NewestVersions(Protocol):
    """Looks up keys of a bucket. Can be pickled."""

    def of(
        self, bucket: BucketId, keys: pl.DataFrame, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """The latest version of each key that was ever written, including deletes.

        `keys` has the primary key without duplicates. The frames have `columns` and `_VALUE_KIND`.
        """
        ...


def newest_of(state: TableState, task: WriteTask) -> NewestVersions:
    """The lookup for a state of a table on top of which a task writes."""
    if isinstance(task, UpsertTask):
        return _Indexed(task)
    scan = Scan(state.merging, state.view.order.columns)
    plans = zip(scan.plan.buckets, scan.tasks(), strict=True)
    return _Merged({(plan.partition, plan.bucket): task for plan, task in plans})


@dataclass(frozen=True)
class _Merged:
    """Merges the stored versions of the keys in a bucket."""

    tasks: Mapping[BucketId, ReadTask]

    def of(
        self, bucket: BucketId, keys: pl.DataFrame, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """See `NewestVersions`."""
        task = self.tasks.get(bucket)
        if task is not None:
            yield from newest_versions(task, keys, columns)


@dataclass(frozen=True)
class _Indexed:
    """Uses the index of the keys of a bucket, which contains the locations of their rows."""

    task: UpsertTask

    def of(
        self, bucket: BucketId, keys: pl.DataFrame, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """See `NewestVersions`."""
        view, on = self.task.view, self.task.bucket(bucket)
        found = on.index.find(hashes_of(keys, view))
        names = dict.fromkeys((*columns, *keys.columns))
        current = on.current(view, bucket[0], found, names)
        kinds = pl.Series(VALUE_KIND, current.lives).replace_strict(
            {True: int(RowKind.INSERT), False: int(RowKind.DELETE)}, return_dtype=pl.Int8
        )
        rows = current.rows.with_columns(kinds)
        yield rows.join(keys, on=keys.columns, how="semi").select(*columns, VALUE_KIND)
