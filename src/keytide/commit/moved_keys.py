"""Keys that may be in another bucket by the time of a commit, in tables with dynamic buckets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from keytide.errors import DataError
from keytide.format.index_files import Hashes, IndexFile
from keytide.snapshot.dynamic_buckets import UNKNOWN, HashFiles, KeyPlaces, load_places
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableView
from keytide.write.task import Written

__all__ = ["MovedKeys", "moved_keys"]


@dataclass(frozen=True)
class MovedKeys:
    """One partition whose index changed while rows of it were written.

    `before` has the keys of the buckets that got rows, as the write found them, or None if that is
    no longer known. `placed` are those that the write placed. `now` is the present index.
    """

    before: KeyPlaces | None
    placed: Mapping[int, Hashes]
    now: KeyPlaces

    def stands_against(self) -> bool:
        """Whether a key is not in the bucket that the write assumed."""
        if self.before is None:
            return True
        # Known keys must still be in the index. Otherwise nobody would find their rows.
        stays = all(
            bool(np.all(self.now.buckets_of(hashes) == bucket))
            for bucket, hashes in self.before.hashes.items()
        )
        return not stays or any(
            not np.all(np.isin(self.now.buckets_of(hashes), (UNKNOWN, bucket)))
            for bucket, hashes in self.placed.items()
        )


def moved_keys(
    view: TableView, made: Written, before: HashFiles, now: HashFiles
) -> list[MovedKeys]:
    """The partitions of a write whose index has changed.

    Raises `DataError` for an index that cannot be read.
    """
    buckets: dict[bytes, set[int]] = {}
    for entry in made.entries:
        buckets.setdefault(entry.partition, set()).add(entry.bucket)
    return [
        _moved(view, partition, touched, made.placed, before, now)
        for partition, touched in buckets.items()
        if before.get(partition, {}) != now.get(partition, {})
    ]


def _moved(
    view: TableView,
    partition: bytes,
    touched: Collection[int],
    placed: Mapping[BucketId, Hashes],
    before: HashFiles,
    now: HashFiles,
) -> MovedKeys:
    known = [f for b, f in before.get(partition, {}).items() if b in touched]
    return MovedKeys(
        _as_it_was(view, known),
        {bucket: hashes for (where, bucket), hashes in placed.items() if where == partition},
        load_places(view.store, now.get(partition, {}).values(), view.name),
    )


def _as_it_was(view: TableView, files: Iterable[IndexFile]) -> KeyPlaces | None:
    try:
        return load_places(view.store, files, view.name)
    except DataError:  # expired with the snapshots that named them
        return None
