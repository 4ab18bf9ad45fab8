"""Keys that move between partitions, in tables whose primary key has no partition column.

Such a table has dynamic buckets. The stored versions of a key say where it is. No index is stored,
so none can be wrong, and each write looks up its keys. If a key arrives in another partition than
its current one, the merge engine decides what happens, see `Elsewhere`. A key goes into one bucket
of its partition. If two writers write the same keys at the same time, the second commit fails, and
the write is made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.row_kind import RowKind
from keytide.base.scratch import scratch
from keytide.base.value_text import held_by_python
from keytide.format.arrow import polars_schema, to_arrow
from keytide.format.bucket import bucket_ids
from keytide.format.data_file import VALUE_KIND
from keytide.format.hash_index import Hashes
from keytide.format.index_manifest import IndexFile
from keytide.format.manifest import ManifestEntry
from keytide.merge.engine import Elsewhere
from keytide.merge.engines import engine_class
from keytide.merge.joined import joined
from keytide.merge.order import IS_ADD
from keytide.read.lookup import key_range, newest_versions
from keytide.read.plan import plan_files
from keytide.read.statistics import decoded
from keytide.read.task import ReadTask
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.view import TableView
from keytide.types import arrow_schema
from keytide.write.cut import Cut, Numbers, partitions_of
from keytide.write.layout import DynamicLayout, Layout, Placing, rooms

__all__ = ["MovingLayout"]

_BUCKET = scratch("bucket")
_PART = scratch("part")
_ROW = scratch("row")
_NO_BUCKETS = pl.lit(None, pl.Int64).alias(_BUCKET)


@dataclass(frozen=True)
class MovingLayout(Layout):
    """Buckets of keys that may arrive in any partition.

    Keys are looked up in the files of `entries`. Some of their rows are dead, according to
    `vector_files`.
    """

    view: TableView
    entries: tuple[ManifestEntry, ...]
    shares: DynamicLayout
    vector_files: tuple[IndexFile, ...] = ()

    @property
    def spread(self) -> int:
        """See `Layout`. The keys of all partitions are split together."""
        return self.shares.spread

    def begin(self) -> Placing:
        """See `Layout`."""
        return _Moving(self)

    def for_tasks(self, count: int) -> Layout:
        """See `Layout`."""
        return replace(self, shares=self.shares.for_tasks(count))


class _Moving(Placing):
    """Assigns the rows of one task. `_homes` has a row for each place of the keys seen so far."""

    def __init__(self, layout: MovingLayout) -> None:
        self._layout, self._view = layout, layout.view
        self._key = list(layout.view.order.key)
        self._partition = list(layout.view.schema.partition_keys)
        fields = layout.view.schema.select([*self._key, *self._partition])
        self._homes = pl.DataFrame(schema={**polars_schema(fields), _BUCKET: pl.Int64})
        self._seen = self._homes.select(self._key)
        self._counts = _row_counts(layout.entries, layout.view)

    def total_buckets(self, partition: bytes) -> int:
        return self._view.options.bucket

    @property
    def placed(self) -> Mapping[BucketId, Hashes]:
        return {}  # the places of keys are not stored

    def cut(
        self, frame: pl.DataFrame, table: pa.Table, view: TableView
    ) -> tuple[pl.DataFrame, Cut]:
        """See `Placing`. Each key ends in one partition, whichever its rows name."""
        routed = self._routed(frame) if frame.height else frame.with_columns(_NO_BUCKETS)
        fields = view.schema.partition_fields()
        exact = to_arrow(routed.select(self._partition), arrow_schema(fields))
        partitions, places = partitions_of(routed, exact, fields)
        cut = Cut.of(partitions, places, routed[_BUCKET].to_numpy())
        return routed.select(frame.columns), cut

    def _routed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows as they must be written, each with the number of its bucket."""
        self._look_up(frame.select(self._key).unique())
        elsewhere = engine_class(self._view.options).elsewhere
        routes = {
            Elsewhere.MOVES: self._moved, Elsewhere.STAYS: self._kept,
            Elsewhere.IS_DROPPED: self._first,
        }  # fmt: skip
        return routes[elsewhere](frame)

    # -- where keys are -------------------------------------------------------------------------

    def _look_up(self, keys: pl.DataFrame) -> None:
        """Look up the places of keys that were not seen before."""
        unseen = keys.join(self._seen, on=self._key, how="anti")
        if not unseen.height:
            return
        self._seen = pl.concat([self._seen, unseen])
        self._homes = pl.concat([self._homes, *self._stored(unseen)])

    def _stored(self, keys: pl.DataFrame) -> Iterator[pl.DataFrame]:
        columns = (*self._key, *self._partition)
        only_rows = engine_class(self._view.options).elsewhere is Elsewhere.MOVES
        layout = self._layout
        plan = plan_files(self._view, layout.entries, key_range(keys), layout.vector_files)
        for bucket in plan.buckets:
            task = ReadTask(self._view, bucket, columns)
            for found in newest_versions(task, keys, columns):
                # A delete that a key left in a partition does not count as its place.
                kept = found.filter(IS_ADD) if only_rows else found
                number = pl.lit(bucket.bucket, pl.Int64).alias(_BUCKET)
                yield kept.select(*columns, number)

    # -- keys that are in another partition -----------------------------------------------------

    def _moved(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The last row of each key, and a delete in every other partition of the key."""
        last = frame.unique(self._key, keep="last", maintain_order=True)
        adds = last.filter(IS_ADD)
        # NULL is a partition too.
        stays = self._homes.join(
            adds, on=[*self._key, *self._partition], how="semi", nulls_equal=True
        )
        left = self._homes.join(last, on=self._key, how="semi").join(
            stays, on=[*self._key, *self._partition], how="anti", nulls_equal=True
        )
        deletes = joined(last.drop(self._partition), left, self._key)
        deletes = deletes.with_columns(pl.lit(int(RowKind.DELETE), pl.Int8).alias(VALUE_KIND))
        come = self._settled(
            adds.select(*self._key, *self._partition).join(
                stays, on=[*self._key, *self._partition], how="anti", nulls_equal=True
            )
        )
        self._homes = pl.concat([self._homes.join(last, on=self._key, how="anti"), stays, come])
        placed = joined(adds, self._homes, [*self._key, *self._partition])
        return pl.concat([deletes.select(placed.columns), placed])

    def _kept(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows, each in the current partition of its key."""
        self._settle_unknown(frame)
        home = self._homes.unique(self._key, keep="first", maintain_order=True)
        return joined(frame.drop(self._partition), home, self._key, keeps_order=True)

    def _first(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The first row of each key that does not exist yet."""
        first = frame.unique(self._key, keep="first", maintain_order=True)
        new = first.join(self._homes, on=self._key, how="anti")
        self._settle_unknown(new)
        return joined(new, self._homes, [*self._key, *self._partition], keeps_order=True)

    # -- buckets of keys that are new in a partition --------------------------------------------

    def _settle_unknown(self, frame: pl.DataFrame) -> None:
        first = frame.select(*self._key, *self._partition)
        first = first.unique(self._key, keep="first", maintain_order=True)
        new = first.join(self._homes, on=self._key, how="anti")
        self._homes = pl.concat([self._homes, self._settled(new)])

    def _settled(self, new: pl.DataFrame) -> pl.DataFrame:
        """Keys with the partitions that they are new in, and a bucket for each."""
        fields = self._view.bucket_fields
        table = to_arrow(new.select(self._key), arrow_schema(self._view.schema.select(self._key)))
        columns = [table.column(f.name).combine_chunks() for f in fields]
        types = [f.type for f in fields]
        parts = bucket_ids(columns, types, self._layout.spread, self._view.bucket_function)
        numbered = new.with_columns(pl.Series(_PART, parts)).with_row_index(_ROW)
        buckets = np.empty(new.height, np.int64)
        for (*partition, part), group in numbered.group_by(*self._partition, _PART):
            taken = self._fill(tuple(partition), part, group.height)
            buckets[group[_ROW].to_numpy()] = taken
        return new.with_columns(pl.Series(_BUCKET, buckets, pl.Int64))

    def _fill(self, partition: tuple[Any, ...], part: int, count: int) -> Numbers:
        """A bucket for each of `count` keys of one partition."""
        held, shares = self._counts.setdefault(partition, {}), self._layout.shares
        target = shares.options.dynamic_bucket_target_row_num
        own = range(part, shares.limit, shares.spread)
        taken = rooms(own, count, lambda bucket: target - held.get(bucket, 0))
        for bucket, number in taken.items():
            held[bucket] = held.get(bucket, 0) + number
        numbers = np.fromiter(taken.values(), np.int64, len(taken))
        return np.repeat(np.fromiter(taken, np.int64, len(taken)), numbers)


def _row_counts(
    entries: Sequence[ManifestEntry], view: TableView
) -> dict[tuple[Any, ...], dict[int, int]]:
    """The number of versions in each bucket, which is at least the number of its keys."""
    partitions = list(dict.fromkeys(entry.partition for entry in entries))
    values = held_by_python(decoded(partitions, view.schema.partition_fields())).rows()
    counts: dict[tuple[Any, ...], dict[int, int]] = {each: {} for each in values}
    by_row = dict(zip(partitions, values, strict=True))
    for entry in entries:
        held = counts[by_row[entry.partition]]
        held[entry.bucket] = held.get(entry.bucket, 0) + entry.file.row_count
    return counts
