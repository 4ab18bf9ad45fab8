"""Which bucket each row of a write goes to.

A layout is a picklable value that every task of a write gets; `begin` makes of it what places the
rows of one task. With a fixed number of buckets the hash of the key says it all. With dynamic
buckets an index does, and keys that it does not know are placed where there is room: then the task
tells where it put them, and the commit makes it part of the index.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.errors import ConflictError
from keytide.format.bucket import bucket_ids, row_hashes
from keytide.format.hash_index import Hashes
from keytide.options import TableOptions, keys
from keytide.table.state.dynamic_buckets import UNKNOWN, HashFiles, KeyPlaces, load_places
from keytide.table.state.live_files import BucketId
from keytide.table.state.view import TableView
from keytide.table.write.cut import Cut, Numbers, partitions_of
from keytide.types import Field

__all__ = ["DynamicLayout", "FixedLayout", "Layout", "Placing", "PostponedLayout", "rooms"]

BUCKETS_MAX = 1 << 15
"""The format keeps numbers of dynamic buckets in 15 bits."""


class Placing(ABC):
    """Places the rows of one task."""

    @abstractmethod
    def total_buckets(self, partition: bytes) -> int:
        """How many buckets a partition has, as its files say: -1 where an index knows."""

    @property
    @abstractmethod
    def placed(self) -> Mapping[BucketId, Hashes]:
        """Hashes that were in no bucket before, by the bucket in which they are now."""

    @abstractmethod
    def cut(
        self, frame: pl.DataFrame, table: pa.Table, view: TableView
    ) -> tuple[pl.DataFrame, Cut]:
        """The rows as they have to be written, cut by partition and bucket.

        They are those of `frame`, unless keys move between partitions. `table` has the same rows
        with the key and partition columns in their exact types. Partitions come in the order in
        which the rows bring them. Raises `ConflictError` when a partition is laid out in another
        way.
        """


class Layout(ABC):
    """How the rows of a table are spread over buckets, as of the state that a write begins with."""

    @property
    @abstractmethod
    def spread(self) -> int:
        """Into how many parts, by `bucket_ids` of their keys, rows of a partition may be cut.

        Tasks that each place whole parts put no key in two buckets.
        """

    @abstractmethod
    def begin(self) -> Placing:
        """What places the rows of one task."""

    @abstractmethod
    def for_tasks(self, count: int) -> Layout:
        """The layout for a write by so many tasks side by side."""


def _refuse_other_layout(
    partitions: Iterable[bytes], partition_buckets: Mapping[bytes, int], view: TableView
) -> None:
    wanted = view.options.bucket
    for partition in partitions:
        found = partition_buckets.get(partition, wanted)
        if found != wanted:
            raise ConflictError(
                f"table {view.name}: Try to write partition/table with a new bucket num {wanted}, "
                f"but the previous bucket num is {found}. Set '{keys.BUCKET}' back to {found}, or "
                "lay the partition out anew with table.rescale() or an overwrite"
            )


# -- a fixed number of buckets ---------------------------------------------------------------------


@dataclass(frozen=True)
class FixedLayout(Layout):
    """Buckets by the hash of the bucket key; one where there are none.

    `partition_buckets` has the number of buckets that existing partitions have.
    """

    options: TableOptions
    partition_buckets: Mapping[bytes, int] = field(default_factory=dict)

    @property
    def spread(self) -> int:
        """See `Layout`."""
        return max(1, self.options.bucket)

    def begin(self) -> Placing:
        """See `Layout`."""
        return _ByHash(self)

    def for_tasks(self, count: int) -> Layout:
        """See `Layout`: any number of tasks agree."""
        return self


class _ByHash(Placing):
    def __init__(self, layout: FixedLayout) -> None:
        self._layout = layout

    def total_buckets(self, partition: bytes) -> int:
        return self._layout.options.bucket

    @property
    def placed(self) -> Mapping[BucketId, Hashes]:
        return {}  # the hash says it, so nothing has to be remembered

    def cut(
        self, frame: pl.DataFrame, table: pa.Table, view: TableView
    ) -> tuple[pl.DataFrame, Cut]:
        numbers = self._numbers(table, view)
        partitions, places = partitions_of(frame, table, view.schema.partition_fields())
        _refuse_other_layout(partitions, self._layout.partition_buckets, view)
        return frame, Cut.of(partitions, places, numbers)

    def _numbers(self, table: pa.Table, view: TableView) -> Numbers:
        if self._layout.spread == 1:
            return np.zeros(table.num_rows, np.int64)
        columns, types = _columns(table, view.bucket_fields), [f.type for f in view.bucket_fields]
        ids = bucket_ids(columns, types, view.options.bucket, view.bucket_function)
        return ids.astype(np.int64)


def _columns(table: pa.Table, fields: Sequence[Field]) -> list[pa.Array]:
    chunked = (table.column(f.name) for f in fields)
    return [c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for c in chunked]


# -- postponed buckets -----------------------------------------------------------------------------


@dataclass(frozen=True)
class PostponedLayout(Layout):
    """Buckets by the hash of the bucket key, of a number that each partition has for itself.

    `partition_buckets` has the numbers of those with files; the others get
    'postpone.default-bucket-num'.
    """

    options: TableOptions
    partition_buckets: Mapping[bytes, int]

    @property
    def spread(self) -> int:
        """See `Layout`: the parts are the same in partitions of different numbers."""
        numbers = self.partition_buckets.values()
        return math.gcd(self.options.postpone_default_bucket_num, *numbers)

    def begin(self) -> Placing:
        """See `Layout`."""
        return _ByPartition(self)

    def for_tasks(self, count: int) -> Layout:
        """See `Layout`: any number of tasks agree."""
        return self


class _ByPartition(Placing):
    def __init__(self, layout: PostponedLayout) -> None:
        self._layout = layout

    def total_buckets(self, partition: bytes) -> int:
        default = self._layout.options.postpone_default_bucket_num
        return self._layout.partition_buckets.get(partition, default)

    @property
    def placed(self) -> Mapping[BucketId, Hashes]:
        return {}  # the hash says it, so nothing has to be remembered

    def cut(
        self, frame: pl.DataFrame, table: pa.Table, view: TableView
    ) -> tuple[pl.DataFrame, Cut]:
        partitions, places = partitions_of(frame, table, view.schema.partition_fields())
        totals = np.array([self.total_buckets(p) for p in partitions], np.int64)[places]
        fields = view.bucket_fields
        columns, types = _columns(table, fields), [f.type for f in fields]
        numbers = np.zeros(len(totals), np.int64)
        for total in np.unique(totals).tolist():
            ids = bucket_ids(columns, types, total, view.bucket_function)
            numbers = np.where(totals == total, ids, numbers)
        return frame, Cut.of(partitions, places, numbers)


# -- dynamic buckets -------------------------------------------------------------------------------


@dataclass(frozen=True)
class DynamicLayout(Layout):
    """Buckets by an index of keys, which grow in number as they fill.

    Known keys go where they are. Of the others, those of part `n` of `spread` go into the buckets
    `n`, `n + spread`, `n + 2 * spread` and so on: the first with fewer than
    'dynamic-bucket.target-row-num' keys. So tasks that get whole parts never meet.
    """

    options: TableOptions
    partition_buckets: Mapping[bytes, int]
    files: HashFiles
    writers: int = 1

    @property
    def spread(self) -> int:
        """See `Layout`."""
        return min(self.options.dynamic_bucket_initial_buckets or self.writers, self.limit)

    @property
    def limit(self) -> int:
        """How many buckets a partition may have."""
        given = self.options.dynamic_bucket_max_buckets
        return BUCKETS_MAX if given < 1 else min(given, BUCKETS_MAX)

    def begin(self) -> Placing:
        """See `Layout`."""
        return _ByIndex(self)

    def for_tasks(self, count: int) -> DynamicLayout:
        """See `Layout`."""
        return replace(self, writers=self.options.dynamic_bucket_assigner_parallelism or count)


class _ByIndex(Placing):
    def __init__(self, layout: DynamicLayout) -> None:
        self._layout = layout
        self._known: dict[bytes, KeyPlaces] = {}
        self._new: dict[BucketId, list[Hashes]] = {}

    def total_buckets(self, partition: bytes) -> int:
        return self._layout.options.bucket

    @property
    def placed(self) -> Mapping[BucketId, Hashes]:
        return {bucket: np.concatenate(parts) for bucket, parts in self._new.items()}

    def cut(
        self, frame: pl.DataFrame, table: pa.Table, view: TableView
    ) -> tuple[pl.DataFrame, Cut]:
        partitions, places = partitions_of(frame, table, view.schema.partition_fields())
        _refuse_other_layout(partitions, self._layout.partition_buckets, view)
        fields = view.bucket_fields
        hashes = row_hashes(_columns(table, fields), [f.type for f in fields])
        found = np.empty(len(hashes), np.int64)
        for partition, rows in zip(partitions, _rows_by(places, len(partitions)), strict=True):
            found[rows] = self._place_in(partition, hashes[rows], view)
        return frame, Cut.of(partitions, places, found)

    def _place_in(self, partition: bytes, hashes: Hashes, view: TableView) -> Numbers:
        """The bucket of each key of one partition; the new ones are remembered."""
        known = self._places(partition, view)
        found = known.buckets_of(hashes)
        new = hashes[found == UNKNOWN]
        if not len(new):
            return found
        placed = _placed(_in_order(new), known, self._layout)
        self._known[partition] = known.with_more(placed)
        for bucket, each in placed.items():
            self._new.setdefault((partition, bucket), []).append(each)
        return self._known[partition].buckets_of(hashes)

    def _places(self, partition: bytes, view: TableView) -> KeyPlaces:
        if partition not in self._known:
            files = self._layout.files.get(partition, {})
            self._known[partition] = load_places(view.store, files.values(), view.name)
        return self._known[partition]


def _rows_by(places: Numbers, count: int) -> Iterator[Numbers]:
    """The rows of each place, from 0 to `count`."""
    order = np.argsort(places, kind="stable")
    ends = np.cumsum(np.bincount(places, minlength=count))
    return iter(np.split(order, ends)[:count])  # behind the last end there is nothing


def _in_order(hashes: Hashes) -> Hashes:
    """Each hash once, as they come first."""
    _, first = np.unique(hashes, return_index=True)
    return hashes[np.sort(first)]


def _placed(new: Hashes, known: KeyPlaces, layout: DynamicLayout) -> dict[int, Hashes]:
    """New hashes by the bucket that each goes to."""
    spread, target = layout.spread, layout.options.dynamic_bucket_target_row_num
    # The remainder that `bucket_ids` takes, by which the rows were shared out among tasks.
    parts = np.abs(new.astype(np.int64)) % spread
    placed: dict[int, Hashes] = {}
    for part in np.unique(parts).tolist():
        hashes = new[parts == part]
        own = range(part, layout.limit, spread)
        taken = rooms(own, len(hashes), lambda bucket: target - known.count(bucket))
        ends = np.cumsum(np.fromiter(taken.values(), np.int64, len(taken)))
        parted = np.split(hashes, ends[:-1])
        placed |= {bucket: some for bucket, some in zip(taken, parted, strict=True) if len(some)}
    return placed


def rooms(buckets: Iterable[int], wanted: int, free: Callable[[int], int]) -> dict[int, int]:
    """How many of the keys each bucket takes, those first in which keys are `free` to go.

    Where the number of buckets has come to its limit, they share the rest.
    """
    taken: dict[int, int] = {}
    for bucket in buckets:
        taken[bucket] = min(max(0, free(bucket)), wanted)
        wanted -= taken[bucket]
        if not wanted:
            return taken
    share, more = divmod(wanted, len(taken))
    return {b: some + share + (place < more) for place, (b, some) in enumerate(taken.items())}
