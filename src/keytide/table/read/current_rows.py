"""Where the current rows of some keys lie, told by the index of keys.

It prunes as statistics do: what it names may be what is asked for, and is held against the
condition when it is read. An index that is not about the files that are there says nothing, and all
of its bucket is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.errors import DataError, UnsupportedError
from keytide.format import paths
from keytide.format.arrow import from_arrow
from keytide.format.bucket import bucket_ids
from keytide.format.data_file import begin_footers
from keytide.format.entry_columns import Entries, Mask
from keytide.format.index_manifest import IndexFile
from keytide.index.hashes import KeyHashes, hash_keys
from keytide.index.head import Head
from keytide.scratch import scratch
from keytide.table.conditions.predicate import Predicate
from keytide.table.read.pruning import pinned_columns
from keytide.table.read.statistics import decoded
from keytide.table.state.dead_rows import load_dead_rows, vector_files_by_bucket
from keytide.table.state.key_index import key_files_by_bucket, why_not_covered
from keytide.table.state.key_runs import open_keys
from keytide.table.state.live_files import BucketId
from keytide.table.state.view import TableView
from keytide.table.values.spellings import has_one_spelling

__all__ = ["CurrentRows", "Indexes", "Positions", "current_rows"]

Positions: TypeAlias = "npt.NDArray[np.int64]"

_PLACE, _PARTITION = map(scratch, ("place", "partition"))


@dataclass(frozen=True)
class Indexes:
    """What a snapshot says beside its data files: which rows are dead, and which are current."""

    vector_files: tuple[IndexFile, ...] = ()
    key_files: tuple[IndexFile, ...] = ()


@dataclass(frozen=True)
class CurrentRows:
    """Where the rows of the keys that are asked for lie, in the buckets whose index tells.

    `places` has their positions, ascending, in each data file that has some. Rows of other keys
    may be among them, and dead ones.
    """

    buckets: frozenset[BucketId]
    places: Mapping[str, Positions]

    def holds(self, files: Entries) -> Mask:
        """Which files may hold rows that are asked for."""
        kept = (
            entry.file.file_name in self.places
            or (entry.partition, entry.bucket) not in self.buckets
            for entry in files
        )
        return np.fromiter(kept, np.bool_, len(files))


def current_rows(
    view: TableView,
    files: Entries,
    indexes: Indexes,
    terms: Sequence[Predicate],
    keys: pa.Table | None = None,
) -> CurrentRows | None:
    """Where the rows lie that fulfil the terms, or have one of some keys.

    `files` are all live ones of their buckets; `keys` have the columns of the key in their exact
    types. None where neither says of which keys there can be some, and where no index can tell.
    """
    if not indexes.key_files or not files:
        return None
    wanted = _wanted(view, terms) if keys is None else keys
    if wanted is None:
        return None
    fields = view.schema.select(view.schema.primary_keys)
    hashes = hash_keys(wanted, fields, view.options.upsert_hash_function)
    heads = key_files_by_bucket(indexes.key_files)
    buckets = _buckets(files, indexes, view)
    if wanted.num_rows > sum(sum(bucket.rows.values()) for bucket in buckets):
        return None  # to read every row takes no longer
    asked = _asked(view, buckets, wanted)
    known = [bucket for bucket in buckets if bucket.id in heads]
    if known and view.store.local_path(paths.INDEX_DIR) is None:
        sized = ((*view.data_file(entry), entry.file.file_size) for entry in files)
        begin_footers(sized, view.options.lookup_cache_bytes_max)
    calls = [
        partial(bucket.look_up, heads[bucket.id], hashes, asked[bucket.id]) for bucket in known
    ]
    found = zip(known, view.store.together(calls), strict=True)
    told = {bucket.id: places for bucket, places in found if places is not None}
    if not told:
        return None
    every = {name: at for places in told.values() for name, at in places.items()}
    return CurrentRows(frozenset(told), every)


def _wanted(view: TableView, terms: Sequence[Predicate]) -> pa.Table | None:
    """The only keys whose rows can fulfil the terms; None where these leave a column open."""
    fields = view.schema.select(view.schema.primary_keys)
    columns = pinned_columns(fields, terms)
    if columns is None:
        return None
    return pa.table(columns, [f.name for f in fields]).drop_null()  # no key has NULL


@dataclass(frozen=True)
class _Bucket:
    """A bucket with all of its live files, and what marks their rows as dead."""

    view: TableView
    id: BucketId
    total: int
    rows: Mapping[str, int]
    vector_files: tuple[IndexFile, ...]

    def look_up(
        self, head: IndexFile, hashes: KeyHashes, asked: slice | Positions
    ) -> dict[str, Positions] | None:
        """The places of the rows of some keys; None where the index cannot say."""
        options = self.view.options
        try:
            index = open_keys(self.view.store, head, options.lookup_cache_bytes_max)
            if index.head.function != options.upsert_hash_function:
                return None
            if why_not_covered(index.head, self.rows, self._dead()) is not None:
                return None
            is_known, entries = index.find(hashes.take(asked))
            return self._places(index.head, entries.files[is_known], entries.positions[is_known])
        except (DataError, UnsupportedError):
            return None

    def _dead(self) -> Mapping[str, int]:
        """How many rows of each file are dead."""
        ranges = [place for file in self.vector_files for place in file.ranges or ()]
        counts = {p.data_file_name: p.cardinality for p in ranges if p.cardinality is not None}
        if len(counts) == len(ranges):
            return counts
        # Some writers do not record them.
        dead = load_dead_rows(self.view.store, self.vector_files, self.view.name)
        return {name: len(vector) for name, vector in dead.vectors.items()}

    def _places(self, head: Head, numbers: Positions, positions: Positions) -> dict[str, Positions]:
        order = np.argsort(numbers << 40 | positions)
        numbers, positions = numbers[order], positions[order]
        found, starts = np.unique(numbers, return_index=True)
        names = {file.number: file.name for file in head.files}
        spans = pairwise([*starts.tolist(), len(positions)])
        places = {
            names.get(number, ""): positions[slice(*span)]
            for number, span in zip(found.tolist(), spans, strict=True)
        }
        if any(at[-1] >= self.rows.get(name, 0) for name, at in places.items()):
            raise DataError(f"table {self.view.name}: an index names rows that there are not")
        return places


def _buckets(files: Entries, indexes: Indexes, view: TableView) -> list[_Bucket]:
    vectors = vector_files_by_bucket(indexes.vector_files)
    rows: dict[tuple[bytes, int, int], dict[str, int]] = {}
    for entry in files:
        place = (entry.partition, entry.bucket, entry.total_buckets)
        rows.setdefault(place, {})[entry.file.file_name] = entry.file.row_count
    return [
        _Bucket(view, (partition, bucket), total, counts, vectors.get((partition, bucket), ()))
        for (partition, bucket, total), counts in rows.items()
    ]


def _asked(
    view: TableView, buckets: Sequence[_Bucket], keys: pa.Table
) -> dict[BucketId, slice | Positions]:
    """Which of the keys can be in each bucket."""
    if len(buckets) == 1:
        return {buckets[0].id: slice(None)}
    partitions = _partitions(view, [bucket.id[0] for bucket in buckets], keys)
    numbers = _numbers(view, {bucket.total for bucket in buckets}, keys)
    asked: dict[BucketId, slice | Positions] = {}
    for bucket in buckets:
        places = partitions[bucket.id[0]]
        asked[bucket.id] = places[numbers[bucket.total][places] == bucket.id[1]]
    return asked


def _numbers(view: TableView, totals: set[int], keys: pa.Table) -> dict[int, Positions]:
    """The bucket of each key, by how many there are."""
    columns = [keys.column(f.name) for f in view.bucket_fields]
    types = [f.type for f in view.bucket_fields]
    return {
        total: np.asarray(bucket_ids(columns, types, total, view.bucket_function)).astype(np.int64)
        for total in totals
    }


def _partitions(view: TableView, stored: Sequence[bytes], keys: pa.Table) -> dict[bytes, Positions]:
    """The places of the keys that each partition may have."""
    fields = view.schema.partition_fields()
    distinct = list(dict.fromkeys(stored))
    if not fields or not all(has_one_spelling(f.type) for f in fields):
        return dict.fromkeys(distinct, np.arange(keys.num_rows))
    names = [f.name for f in fields]
    values = decoded(distinct, fields).with_row_index(_PARTITION)
    given = from_arrow(keys.select(names)).with_row_index(_PLACE)
    found = given.join(values, on=names).sort(_PARTITION)
    bounds = found[_PARTITION].search_sorted(np.arange(len(distinct) + 1)).to_list()
    places = found[_PLACE].to_numpy().astype(np.int64)
    return {p: places[slice(*ends)] for p, ends in zip(distinct, pairwise(bounds), strict=True)}
