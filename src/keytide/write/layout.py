"""The layout of a write: how each row gets its bucket, and how rows are split.

A layout is a picklable value that every task of a write gets. Its method `begin` returns the object
that assigns the rows of one task. With a fixed number of buckets, the hash of the key determines
the bucket. With dynamic buckets, an index does, and keys that it does not know are assigned to a
bucket with room. The task then reports these assignments, and the commit adds them to the index.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import scratch
from keytide.errors import InvalidError
from keytide.format.binary_row import encode_rows
from keytide.format.bucket import bucket_ids, row_hashes
from keytide.format.index_files import Hashes
from keytide.options import TableOptions, keys
from keytide.snapshot.dynamic_buckets import UNKNOWN, HashFiles, KeyPlaces, load_places
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableView
from keytide.types import Field

# -- splitting by partition and bucket -------------------------------------------------------------


Numbers = npt.NDArray[np.int64]

BUCKET_NUMBER = scratch("bucket")
"""The index of a row's bucket in a batch. No column of a table has this prefix."""

# The binary row without fields.
_EMPTY_PARTITION = bytes(12)


@dataclass(frozen=True)
class BucketBatch:
    """The rows of some buckets: first those of the first bucket, then those of the next.

    Within a bucket, they are in order of arrival. `lengths` are the numbers of rows in each bucket.
    """

    buckets: tuple[BucketId, ...]
    lengths: Numbers
    rows: pl.DataFrame


@dataclass(frozen=True)
class BucketSplit:
    """The bucket of each row: `numbers` are indexes into `buckets`."""

    buckets: tuple[BucketId, ...]
    numbers: Numbers

    @classmethod
    def of(cls, partitions: Sequence[bytes], places: Numbers, ids: Numbers) -> BucketSplit:
        """Split rows by partition and bucket.

        `places` says which of `partitions` each row is in, and `ids` is the number of its bucket
        there. Buckets are ordered by partition, in the order of `partitions`, then by number.
        """
        if not len(ids):
            return cls((), np.empty(0, np.int64))
        count = int(ids.max()) + 1
        # Partition and bucket in one number, which sorts like the pair.
        pairs = places * count + ids
        found, numbers = _numbered(pairs)
        buckets = (divmod(number, count) for number in found.tolist())
        return cls(tuple((partitions[place], bucket) for place, bucket in buckets), numbers)

    def parts(self, frame: pl.DataFrame) -> Iterator[tuple[BucketId, pl.DataFrame]]:
        """The rows of `frame` by bucket, in order of arrival within each bucket."""
        for batch in self.batches(frame, rows_min=1):
            yield batch.buckets[0], batch.rows

    def batches(self, frame: pl.DataFrame, rows_min: int) -> Iterator[BucketBatch]:
        """The same in batches of whole buckets, with at least `rows_min` rows except for the last
        batch.
        """
        if not self.buckets:
            return
        rows = frame
        if len(self.buckets) > 1:
            # numpy sorts 16-bit numbers by radix, several times faster than others.
            is_short = len(self.buckets) <= 1 << 16
            numbers = self.numbers.astype(np.uint16) if is_short else self.numbers
            rows = frame[pl.Series(np.argsort(numbers, kind="stable"))]
        lengths = np.bincount(self.numbers, minlength=len(self.buckets))
        first, start = 0, 0
        for last, end in enumerate(np.cumsum(lengths).tolist()):
            if end - start >= rows_min or last == len(lengths) - 1:
                some, part = slice(first, last + 1), rows.slice(start, end - start)
                yield BucketBatch(self.buckets[some], lengths[some], part)
                first, start = last + 1, end


def _numbered(values: Numbers) -> tuple[Numbers, Numbers]:
    """The distinct values in ascending order, and the index of each value among them.

    `values` are not negative. They are counted if they are not spread widely, since a sort takes
    much longer.
    """
    if values.max() > len(values):
        return np.unique(values, return_inverse=True)
    found = np.flatnonzero(np.bincount(values))
    index = np.empty(found[-1] + 1, np.int64)
    index[found] = np.arange(len(found))
    return found, index[values]


def partitions_of(
    frame: pl.DataFrame, table: pa.Table, fields: Sequence[Field]
) -> tuple[list[bytes], Numbers]:
    """The partitions of the rows in order of first occurrence, and the index of each row's
    partition.

    `table` has the rows of `frame` with the partition columns `fields` in their exact types.
    """
    if not fields:
        return [_EMPTY_PARTITION], np.zeros(frame.height, np.int64)
    names = [f.name for f in fields]
    rows = frame.select(names).with_row_index(BUCKET_NUMBER)
    # Only the first row of each partition is encoded. The others are matched with it.
    first = rows.select(pl.col(BUCKET_NUMBER).first().over(names)).to_series()
    firsts, places = np.unique(first.to_numpy(), return_inverse=True)
    values = table.select(names).take(pa.array(firsts)).combine_chunks()
    columns = [column.chunk(0) for column in values.columns]
    return encode_rows(columns, [f.type for f in fields]), places


# -- layouts ---------------------------------------------------------------------------------------


BUCKETS_MAX = 1 << 15
"""The format stores numbers of dynamic buckets in 15 bits."""


class Placing(ABC):
    """Assigns buckets to the rows of one task."""

    @abstractmethod
    def total_buckets(self, partition: bytes) -> int:
        """The number of buckets of a partition, as in its files: -1 if an index decides."""

    @property
    def placed(self) -> Mapping[BucketId, Hashes]:
        """The hashes that had no bucket before, by the bucket that they are now in.

        By default none, for layouts that store no places.
        """
        return {}

    @abstractmethod
    def cut(
        self, frame: pl.DataFrame, table: pa.Table, view: TableView
    ) -> tuple[pl.DataFrame, BucketSplit]:
        """The rows as they must be written, split by partition and bucket.

        These are the rows of `frame`, unless keys move between partitions. `table` has the same
        rows with the key and partition columns in their exact types. Partitions are in order of
        first occurrence. Raises `InvalidError` if a partition has a different number of buckets.
        """


class Layout(ABC):
    """How the rows of a table are assigned to buckets, as of the state at the start of a write."""

    @property
    @abstractmethod
    def spread(self) -> int:
        """Into how many parts, by `bucket_ids` of their keys, the rows of a partition may be split.

        If each task gets whole parts, tasks never put the same key in two buckets.
        """

    @abstractmethod
    def begin(self) -> Placing:
        """The object that assigns the rows of one task."""

    def for_tasks(self, count: int) -> Layout:
        """The layout for a write with this number of parallel tasks. By default, this one."""
        del count
        return self


def _refuse_other_layout(
    partitions: Iterable[bytes], partition_buckets: Mapping[bytes, int], view: TableView
) -> None:
    wanted = view.options.bucket
    for partition in partitions:
        found = partition_buckets.get(partition, wanted)
        if found != wanted:
            raise InvalidError(
                f"table {view.name}: Try to write partition/table with a new bucket num "
                f"{wanted}, but the previous bucket num is {found}. Set '{keys.BUCKET}' back to "
                f"{found}, or rewrite the partition with table.rescale() or an overwrite"
            )


# -- fixed buckets ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedLayout(Layout, Placing):
    """Buckets by the hash of the bucket key. One bucket if there are no keys.

    The hash determines the bucket, so no places are stored, and it assigns the rows of any task
    itself.

    `partition_buckets` are the numbers of buckets of existing partitions.
    """

    options: TableOptions
    partition_buckets: Mapping[bytes, int] = field(default_factory=dict)

    @property
    def spread(self) -> int:
        """See `Layout`."""
        return max(1, self.options.bucket)

    def begin(self) -> Placing:
        """See `Layout`."""
        return self

    def total_buckets(self, partition: bytes) -> int:
        """See `Placing`."""
        return self.options.bucket

    def cut(
        self, frame: pl.DataFrame, table: pa.Table, view: TableView
    ) -> tuple[pl.DataFrame, BucketSplit]:
        """See `Placing`."""
        fields, numbers = view.bucket_fields, np.zeros(table.num_rows, np.int64)
        if self.spread > 1:
            columns, types = _columns(table, fields), [f.type for f in fields]
            ids = bucket_ids(columns, types, view.options.bucket, view.bucket_function)
            numbers = ids.astype(np.int64)
        partitions, places = partitions_of(frame, table, view.schema.partition_fields())
        _refuse_other_layout(partitions, self.partition_buckets, view)
        return frame, BucketSplit.of(partitions, places, numbers)


def _columns(table: pa.Table, fields: Sequence[Field]) -> list[pa.Array]:
    chunked = (table.column(f.name) for f in fields)
    return [c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for c in chunked]


# -- postponed buckets -----------------------------------------------------------------------------


@dataclass(frozen=True)
class PostponedLayout(Layout, Placing):
    """Buckets by the hash of the bucket key. Each partition has its own number of buckets.

    `partition_buckets` has the numbers of partitions with files. Others get
    'postpone.default-bucket-num'.
    """

    options: TableOptions
    partition_buckets: Mapping[bytes, int]

    @property
    def spread(self) -> int:
        """See `Layout`: the parts are the same in partitions with different numbers of buckets."""
        numbers = self.partition_buckets.values()
        return math.gcd(self.options.postpone_default_bucket_num, *numbers)

    def begin(self) -> Placing:
        """See `Layout`."""
        return self

    def total_buckets(self, partition: bytes) -> int:
        """See `Placing`."""
        default = self.options.postpone_default_bucket_num
        return self.partition_buckets.get(partition, default)

    def cut(
        self, frame: pl.DataFrame, table: pa.Table, view: TableView
    ) -> tuple[pl.DataFrame, BucketSplit]:
        """See `Placing`."""
        partitions, places = partitions_of(frame, table, view.schema.partition_fields())
        totals = np.array([self.total_buckets(p) for p in partitions], np.int64)[places]
        fields = view.bucket_fields
        columns, types = _columns(table, fields), [f.type for f in fields]
        numbers = np.zeros(len(totals), np.int64)
        for total in np.unique(totals).tolist():
            ids = bucket_ids(columns, types, total, view.bucket_function)
            numbers = np.where(totals == total, ids, numbers)
        return frame, BucketSplit.of(partitions, places, numbers)


# -- dynamic buckets -------------------------------------------------------------------------------


@dataclass(frozen=True)
class DynamicLayout(Layout):
    """Buckets by a key index. New buckets are added as the existing ones fill.

    Known keys stay in their bucket. Unknown keys of part `n` of `spread` go to the buckets `n`,
    `n + spread`, `n + 2 * spread` and so on: to the first one with fewer than
    'dynamic-bucket.target-row-num' keys. So tasks that get whole parts never use the same bucket
    for new keys.
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
        """The maximum number of buckets of a partition."""
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
    ) -> tuple[pl.DataFrame, BucketSplit]:
        partitions, places = partitions_of(frame, table, view.schema.partition_fields())
        _refuse_other_layout(partitions, self._layout.partition_buckets, view)
        fields = view.bucket_fields
        hashes = row_hashes(_columns(table, fields), [f.type for f in fields])
        found = np.empty(len(hashes), np.int64)

        # The rows of each place, from 0 to `count`.
        count = len(partitions)
        order = np.argsort(places, kind="stable")
        ends = np.cumsum(np.bincount(places, minlength=count))
        rows_by = iter(np.split(order, ends)[:count])  # there is nothing after the last end
        for partition, rows in zip(partitions, rows_by, strict=True):
            found[rows] = self._place_in(partition, hashes[rows], view)
        return frame, BucketSplit.of(partitions, places, found)

    def _place_in(self, partition: bytes, hashes: Hashes, view: TableView) -> Numbers:
        """The bucket of each key of one partition. New keys are recorded."""
        layout = self._layout
        if partition not in self._known:
            files = layout.files.get(partition, {})
            self._known[partition] = load_places(view.store, files.values(), view.name)
        known = self._known[partition]
        found = known.buckets_of(hashes)
        unknown = hashes[found == UNKNOWN]
        if not len(unknown):
            return found

        # Each hash once, in order of first occurrence, by the bucket that it is assigned to.
        _, first = np.unique(unknown, return_index=True)
        new = unknown[np.sort(first)]
        spread, target = layout.spread, layout.options.dynamic_bucket_target_row_num
        # The same remainder as in `bucket_ids`, by which rows were distributed among tasks.
        parts = np.abs(new.astype(np.int64)) % spread
        placed: dict[int, Hashes] = {}
        for part in np.unique(parts).tolist():
            own = new[parts == part]
            buckets = range(part, layout.limit, spread)
            taken = rooms(buckets, len(own), lambda bucket: target - known.count(bucket))
            ends = np.cumsum(np.fromiter(taken.values(), np.int64, len(taken)))
            parted = zip(taken, np.split(own, ends[:-1]), strict=True)
            placed |= {bucket: some for bucket, some in parted if len(some)}
        self._known[partition] = known.with_more(placed)
        for bucket, each in placed.items():
            self._new.setdefault((partition, bucket), []).append(each)
        return self._known[partition].buckets_of(hashes)


def rooms(buckets: Iterable[int], wanted: int, free: Callable[[int], int]) -> dict[int, int]:
    """How many keys each bucket receives. Buckets with `free` room are filled first.

    If the maximum number of buckets is reached, the buckets share the remaining keys.
    """
    taken: dict[int, int] = {}
    for bucket in buckets:
        taken[bucket] = min(max(0, free(bucket)), wanted)
        wanted -= taken[bucket]
        if not wanted:
            return taken
    share, more = divmod(wanted, len(taken))
    return {b: some + share + (place < more) for place, (b, some) in enumerate(taken.items())}
