"""Splits rows by partition and bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.lazily import cached_property
from keytide.base.scratch import scratch
from keytide.format.binary_row import encode_rows
from keytide.snapshot.live_files import BucketId
from keytide.types import Field

__all__ = ["BUCKET_NUMBER", "BucketBatch", "Cut", "Numbers", "partitions_of"]

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
class Cut:
    """The bucket of each row: `numbers` are indexes into `buckets`."""

    buckets: tuple[BucketId, ...]
    numbers: Numbers

    @classmethod
    def of(cls, partitions: Sequence[bytes], places: Numbers, ids: Numbers) -> Cut:
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
        rows = frame if len(self.buckets) == 1 else frame[pl.Series(self._positions)]
        lengths = np.bincount(self.numbers, minlength=len(self.buckets))
        first, start = 0, 0
        for last, end in enumerate(np.cumsum(lengths).tolist()):
            if end - start >= rows_min or last == len(lengths) - 1:
                some, part = slice(first, last + 1), rows.slice(start, end - start)
                yield BucketBatch(self.buckets[some], lengths[some], part)
                first, start = last + 1, end

    @cached_property
    def _positions(self) -> Numbers:
        # numpy sorts 16-bit numbers by radix, several times faster than others.
        is_short = len(self.buckets) <= 1 << 16
        numbers = self.numbers.astype(np.uint16) if is_short else self.numbers
        return np.argsort(numbers, kind="stable")


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
