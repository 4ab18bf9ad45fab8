"""Moved keys: their earlier row is in another partition, or under a key index.

Keys move between partitions in tables whose primary key has no partition column. Such a table has
dynamic buckets. The stored versions of a key say where it is. No index is stored, so none can be
wrong, and each write looks up its keys. If a key arrives in another partition than its current one,
the merge engine decides what happens, see `PartitionChangePolicy`. A key goes into one bucket of
its partition. If two writers write the same keys at the same time, the second commit fails, and the
write is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.arguments import warn_caller
from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import scratch
from keytide.base.row_kind import RowKind
from keytide.base.text import held_by_python
from keytide.errors import DataError
from keytide.format.arrow import polars_schema, to_arrow
from keytide.format.bucket import bucket_ids
from keytide.format.data_file import VALUE_KIND
from keytide.format.index_files import IndexFile
from keytide.format.manifest_entry import ManifestEntry
from keytide.key_index.indexed_keys import NOTHING, Entries, Numbers, reduced
from keytide.key_index.sorted_runs import Head, IndexedFile
from keytide.merge.engine import PartitionChangePolicy
from keytide.merge.engines import engine_class
from keytide.merge.order import IS_ADD, joined
from keytide.read.current_rows import Flags, by_name, exact, hashes_of, place_numbers, split_places
from keytide.read.key_index_rebuild import bare_head, settled_bucket
from keytide.read.lookup import key_range, newest_versions
from keytide.read.merged_versions import rows_in
from keytide.read.plan import plan_files
from keytide.read.runs import StoredVersions
from keytide.read.scan import ReadTask
from keytide.read.sections import PlannedFile, decoded
from keytide.snapshot.bucket_key_index import KeyIndex, load_key_index, why_not_covered
from keytide.snapshot.live_files import BucketId, DeadRows, load_dead_rows
from keytide.snapshot.state import TableView
from keytide.types import arrow_schema
from keytide.write.arrivals import Arrivals, Current
from keytide.write.layout import (
    BucketSplit,
    DynamicLayout,
    Layout,
    Placing,
    partitions_of,
    rooms,
)

# -- keys that move between partitions -------------------------------------------------------------


_BUCKET = scratch("bucket")
_PART = scratch("part")
_ROW = scratch("row")
_NO_BUCKETS = pl.lit(None, pl.Int64).alias(_BUCKET)


class _Moving(Placing):
    """Assigns the rows of one task. `_homes` has a row for each place of the keys seen so far."""

    def __init__(self, layout: MovingLayout) -> None:
        self._layout, self._view = layout, layout.view
        self._key = list(layout.view.order.key)
        self._partition = list(layout.view.schema.partition_keys)
        fields = layout.view.schema.select([*self._key, *self._partition])
        self._homes = pl.DataFrame(schema={**polars_schema(fields), _BUCKET: pl.Int64})
        self._seen = self._homes.select(self._key)

        # The number of versions in each bucket, which is at least the number of its keys.
        entries = layout.entries
        partitions = list(dict.fromkeys(entry.partition for entry in entries))
        values = held_by_python(decoded(partitions, layout.view.schema.partition_fields())).rows()
        counts: dict[tuple[Any, ...], dict[int, int]] = {each: {} for each in values}
        by_row = dict(zip(partitions, values, strict=True))
        for entry in entries:
            held = counts[by_row[entry.partition]]
            held[entry.bucket] = held.get(entry.bucket, 0) + entry.file.row_count
        self._counts = counts

    def total_buckets(self, partition: bytes) -> int:
        return self._view.options.bucket

    def cut(
        self, frame: pl.DataFrame, table: pa.Table, view: TableView
    ) -> tuple[pl.DataFrame, BucketSplit]:
        """See `Placing`. Each key ends in one partition, whichever its rows name."""
        if not frame.height:
            routed = frame.with_columns(_NO_BUCKETS)
        else:
            self._look_up(frame.select(self._key).unique())
            routes = {
                PartitionChangePolicy.MOVES: self._moved, PartitionChangePolicy.STAYS: self._kept,
                PartitionChangePolicy.IS_DROPPED: self._first,
            }  # fmt: skip
            routed = routes[engine_class(self._view.options).on_partition_change](frame)
        fields = view.schema.partition_fields()
        exact = to_arrow(routed.select(self._partition), arrow_schema(fields))
        partitions, places = partitions_of(routed, exact, fields)
        cut = BucketSplit.of(partitions, places, routed[_BUCKET].to_numpy())
        return routed.select(frame.columns), cut

    # -- where keys are -------------------------------------------------------------------------

    def _look_up(self, keys: pl.DataFrame) -> None:
        """Look up the places of keys that were not seen before."""
        unseen = keys.join(self._seen, on=self._key, how="anti")
        if not unseen.height:
            return
        self._seen = pl.concat([self._seen, unseen])
        view, layout, columns = self._view, self._layout, (*self._key, *self._partition)
        policy, homes = engine_class(view.options).on_partition_change, [self._homes]
        plan = plan_files(view, layout.entries, key_range(unseen), layout.vector_files)
        for bucket in plan.buckets:
            number = pl.lit(bucket.bucket, pl.Int64).alias(_BUCKET)
            for found in newest_versions(ReadTask(view, bucket, columns), unseen, columns):
                # A delete that a key left in a partition does not count as its place.
                only_rows = policy is PartitionChangePolicy.MOVES
                kept = found.filter(IS_ADD) if only_rows else found
                homes.append(kept.select(*columns, number))
        self._homes = pl.concat(homes)

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


# -- the state of a bucket with a key index --------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """The state that a write in a bucket is based on: its key index, its dead rows, and its
    files.
    """

    index: KeyIndex
    dead: DeadRows
    stored: tuple[IndexFile, ...] = ()
    """The head of the index in the snapshot."""
    entries: Mapping[str, ManifestEntry] = field(default_factory=dict)
    """The data files by name."""

    def anew(
        self, view: TableView, bucket: BucketId, reason: str, *, has_read_head: bool = True
    ) -> Bucket:
        """The same with an index that is rebuilt from the bucket's rows, of which each key keeps
        one. Warns with the reason.

        Without the head of the index, it is unknown which files other engines added.
        """
        warn_caller(
            f"table {view.name}: the key index of bucket {bucket[1]} is rebuilt from its rows: "
            f"{reason}"
        )
        before = self.index if has_read_head else None
        found = settled_bucket(view, self.entries.values(), self.dead, before)
        return replace(self, index=found.index, dead=found.dead)

    def current(
        self, view: TableView, partition: bytes, known: tuple[Flags, Entries], names: Iterable[str]
    ) -> Current:
        """The current rows of some keys, with some columns.

        `known` are the results of the index.
        """
        is_known, entries = known[0] & self.index.head.with_row(known[1]), known[1]
        columns = tuple(names)
        if not columns:
            at = np.where(is_known, np.arange(len(entries)), -1)
            return Current(pl.DataFrame(), at, np.ones(len(entries), np.bool_))
        places = place_numbers(entries.files, entries.positions)
        different, at_known = np.unique(places[is_known], return_inverse=True)
        at = np.full(len(entries), -1)
        at[is_known] = at_known
        files, positions = split_places(different)
        wanted = by_name(files, positions, self.index.names())  # this keeps their order
        reads = [
            (PlannedFile(self.entries[name], has_kinds=False), own) for name, own in wanted.items()
        ]
        planned, fields = [file for file, _ in reads], view.schema.select(columns)
        rows_max = max(1, rows_in(view.options.read_memory_bytes, planned, fields))
        rows = StoredVersions(view, partition, columns).at(reads, rows_max)
        lives = [~np.isin(places, self.dead.of(name)) for name, places in wanted.items()]
        return Current(rows, at, np.concatenate([np.empty(0, np.bool_), *lives]))

    def lives(self, known: tuple[Flags, Entries]) -> Flags:
        """Which keys have a row. `known` are the results of the index."""
        is_known, entries = known
        lives: Flags = is_known & self.index.head.with_row(entries)
        for number, name in self.index.names().items():
            own = np.flatnonzero(is_known & (entries.files == number))
            lives[own] = ~np.isin(entries.positions[own], self.dead.of(name))
        return lives


def arrivals_of(
    view: TableView, bucket: BucketId, rows: pl.DataFrame, on: Bucket, wanted: Iterable[str] = ()
) -> Arrivals:
    """Rows that arrive in a bucket, with the `wanted` columns of the current rows of their keys.

    If the index does not contain the comparison values, they are also read from these rows.
    """
    comparison = view.comparison
    hashes = hashes_of(rows, view)
    is_known, entries = on.index.find(hashes)
    names = (*wanted, *(() if comparison.is_in_index else comparison.names))
    current = on.current(view, bucket[0], (is_known, entries), dict.fromkeys(names))
    own, floor = exact(rows, comparison.fields), np.full(rows.height, NOTHING)
    if comparison.is_in_index:
        fresh = comparison.numbers(own)
        stored = np.where(is_known, entries.comparisons, NOTHING)[np.newaxis]
        if view.lateness_max is not None:
            # A row is too old at a fixed distance behind the largest earlier value, or the mark of
            # the index. A delete is never too old, because it brings nothing back.
            before = np.concatenate([[on.index.head.mark], fresh[0][:-1]])[: rows.height]
            lowest = reduced(np.maximum.accumulate(before), view.lateness_max)
            adds = rows.select(IS_ADD.alias("add"))["add"].to_numpy()
            floor = np.where(adds, lowest, NOTHING)
        says = comparison.compared_columns(fresh)
        return Arrivals(rows, hashes, entries, current, fresh, stored, says, floor)
    both = pa.concat_tables([own, exact(current.rows, comparison.fields)])
    fresh, of_current = np.split(comparison.numbers(both), [rows.height], axis=1)
    stored = np.full_like(fresh, NOTHING)
    stored[:, current.is_known] = of_current[:, current.at[current.is_known]]
    return Arrivals(
        rows, hashes, entries, current, fresh, stored, comparison.compared_columns(fresh), floor
    )


def no_confirmation() -> None:
    """Confirm a snapshot that is known to be the latest: does nothing."""


def load_bucket(
    view: TableView,
    bucket: BucketId,
    entries: Sequence[ManifestEntry],
    head: IndexFile | None,
    vectors: tuple[IndexFile, ...],
    confirm: Callable[[], None] = no_confirmation,
) -> Bucket:
    """The bucket in a snapshot, from its data files, the head of its index, and its vectors.

    If the index does not match the rows, it is rebuilt, with a warning. Before that, `confirm` is
    called, which raises an error if this is no longer the latest snapshot. Raises `DataError` for
    vectors that cannot be read, and `UnsupportedError` for an index of a newer release.
    """
    reading = view.store.begin(partial(load_dead_rows, view.store, vectors, view.name))
    index, reason = None, "there is no index"
    if head is not None:
        try:
            index = load_key_index(view.store, head, view.options.lookup_cache_bytes_max)
        except DataError as error:
            reason = str(error)
    dead = reading.result()
    if head is None and not entries:
        return Bucket(KeyIndex(bare_head(view)), dead)
    stored = () if head is None else (head,)
    files = {entry.file.file_name: entry for entry in entries}
    if index is not None:
        # Why the index does not match a bucket with these files.
        rows = {name: entry.file.row_count for name, entry in files.items()}
        dead_rows = {name: len(vector) for name, vector in dead.vectors.items()}
        why, compared = why_not_covered(index.head, rows, dead_rows), index.head.compared
        if why is None and compared != view.comparison.unit:
            why = f"rows are now compared by {view.comparison.unit}, but the index has {compared}"
        if why is None:
            return Bucket(index, dead, stored, files)
        reason = why
    confirm()
    found = Bucket(index or KeyIndex(bare_head(view)), dead, stored, files)
    has_read_head = head is None or index is not None
    return found.anew(view, bucket, reason, has_read_head=has_read_head)


def places_of(
    entries: Iterable[ManifestEntry], head: Head
) -> tuple[Numbers, Numbers, tuple[IndexedFile, ...]]:
    """The file and position of each row of new files, and the files."""
    first = head.next_number
    files = tuple(
        IndexedFile(first + n, e.file.file_name, e.file.row_count, 0, 0)
        for n, e in enumerate(entries)
    )
    counts = [file.rows for file in files]
    numbers = np.repeat([file.number for file in files], counts).astype(np.int64)
    positions = [np.empty(0, np.int64), *(np.arange(count) for count in counts)]
    return numbers, np.concatenate(positions), files


# -- the layout of a table -------------------------------------------------------------------------


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
