"""Current rows of keys, found with the key index.

The index prunes as statistics do: the rows that it names are only candidates, and are checked
against the condition when they are read. If an index does not match the existing files, it is not
used, and the whole bucket is read.

A key index stores the hashes of keys, comparison values, and the place of each row: one number, in
the order of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.process import cached_property, scratch
from keytide.errors import DataError, UnsupportedError
from keytide.format import paths
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.bucket import bucket_ids
from keytide.format.data_file import begin_footers
from keytide.format.index_files import IndexFile
from keytide.format.manifest_entry import Entries, Mask
from keytide.key_index.indexed_keys import KeyHashes, Numbers, hash_keys
from keytide.predicate.literals import has_one_spelling
from keytide.predicate.predicate import Predicate
from keytide.read.pruning import pinned_columns
from keytide.read.sections import decoded
from keytide.snapshot.bucket_key_index import (
    StoredKeys,
    key_files_by_bucket,
    open_keys,
    why_not_covered,
)
from keytide.snapshot.live_files import BucketId, load_dead_rows, vector_files_by_bucket
from keytide.snapshot.state import TableView
from keytide.types import Field, arrow_schema

# -- current rows ----------------------------------------------------------------------------------


Positions: TypeAlias = "npt.NDArray[np.int64]"

_PLACE, _PARTITION = map(scratch, ("place", "partition"))


@dataclass(frozen=True)
class Indexes:
    """The indexes of a snapshot: which rows are dead, and which are current."""

    vector_files: tuple[IndexFile, ...] = ()
    key_files: tuple[IndexFile, ...] = ()


@dataclass(frozen=True)
class CurrentRows:
    """The positions of the requested keys' rows, in the buckets that have a usable index.

    `places` has the positions, ascending, for each data file that has some. They may include rows
    of other keys, and dead rows.
    """

    buckets: frozenset[BucketId]
    places: Mapping[str, Positions]

    def holds(self, files: Entries) -> Mask:
        """Which files may contain requested rows."""
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
    """Find the rows that match the terms, or that have one of the keys.

    `files` are all live files of their buckets. `keys` has the key columns in their exact types.
    None if neither limits the keys, or if no index can be used.
    """
    if not indexes.key_files or not files:
        return None
    fields = view.schema.select(view.schema.primary_keys)
    # The only keys whose rows can match the terms, if these leave no column open.
    pinned = pinned_columns(fields, terms) if keys is None else None
    if pinned is not None:
        keys = pa.table(pinned, [f.name for f in fields]).drop_null()  # no key contains NULL
    if keys is None:
        return None
    hashes = hash_keys(keys, fields, view.options.upsert_hash_function)
    heads = key_files_by_bucket(indexes.key_files)

    vectors = vector_files_by_bucket(indexes.vector_files)
    rows: dict[tuple[bytes, int, int], dict[str, int]] = {}
    for entry in files:
        place = (entry.partition, entry.bucket, entry.total_buckets)
        rows.setdefault(place, {})[entry.file.file_name] = entry.file.row_count
    buckets = [
        IndexedBucket(
            view,
            (partition, bucket),
            total,
            counts,
            vectors.get((partition, bucket), ()),
            heads.get((partition, bucket)),
        )
        for (partition, bucket, total), counts in rows.items()
    ]
    if keys.num_rows > sum(sum(bucket.rows.values()) for bucket in buckets):
        return None  # reading every row takes no longer
    asked = _keys_by_bucket(view, buckets, keys)
    known = [bucket for bucket in buckets if bucket.head is not None]
    if known and view.store.local_path(paths.INDEX_DIR) is None:
        sized = ((*view.data_file(entry), entry.file.file_size) for entry in files)
        begin_footers(sized, view.options.lookup_cache_bytes_max)
    calls = [partial(bucket.look_up, hashes, asked[bucket.id]) for bucket in known]
    found = zip(known, view.store.together(calls), strict=True)
    indexed = {bucket.id: places for bucket, places in found if places is not None}
    if not indexed:
        return None
    every = {name: at for places in indexed.values() for name, at in places.items()}
    return CurrentRows(frozenset(indexed), every)


@dataclass(frozen=True)
class IndexedBucket:
    """A bucket with all of its live files, its deletion vectors, and the head of its index."""

    view: TableView
    id: BucketId
    total: int
    rows: Mapping[str, int]
    vector_files: tuple[IndexFile, ...]
    head: IndexFile | None

    def look_up(self, hashes: KeyHashes, asked: slice | Positions) -> dict[str, Positions] | None:
        """The positions of the keys' rows. None if the index cannot be used."""
        try:
            index = self._index
            if index is None:
                return None
            is_known, entries = index.find(hashes.take(asked))
        except (DataError, UnsupportedError):
            return None
        names = {file.number: file.name for file in index.head.files}
        entries = entries.take(np.flatnonzero(is_known & index.head.with_row(entries)))
        if not names.keys() >= {*np.unique(entries.files).tolist()}:
            return None
        places = by_name(entries.files, entries.positions, names)
        # An index that refers to rows that do not exist is damaged.
        is_sound = all(at[-1] < self.rows.get(name, 0) for name, at in places.items())
        return places if is_sound else None

    @cached_property
    def _index(self) -> StoredKeys | None:
        """The index, if it belongs to the files. Raises the errors of `open_keys`."""
        options = self.view.options
        if self.head is None:
            return None
        index = open_keys(self.view.store, self.head, options.lookup_cache_bytes_max)
        is_usable = index.head.function == options.upsert_hash_function
        is_usable = is_usable and why_not_covered(index.head, self.rows, self._dead) is None
        return index if is_usable else None

    @cached_property
    def _dead(self) -> dict[str, int]:
        """The number of dead rows in each file that has some."""
        ranges = [place for file in self.vector_files for place in file.ranges or ()]
        dead = {p.data_file_name: p.cardinality for p in ranges if p.cardinality is not None}
        if len(dead) < len(ranges):
            # Some writers do not record the numbers.
            known = load_dead_rows(self.view.store, self.vector_files, self.view.name)
            dead = {name: len(vector) for name, vector in known.vectors.items()}
        return dead


def _keys_by_bucket(
    view: TableView, buckets: Sequence[IndexedBucket], keys: pa.Table
) -> dict[BucketId, slice | Positions]:
    """Which of the keys can be in each bucket."""
    if len(buckets) == 1:
        return {buckets[0].id: slice(None)}
    # Which of the keys can be in each partition, as positions.
    fields = view.schema.partition_fields()
    distinct = list(dict.fromkeys(bucket.id[0] for bucket in buckets))
    partitions = dict.fromkeys(distinct, np.arange(keys.num_rows))
    if fields and all(has_one_spelling(f.type) for f in fields):
        values = decoded(distinct, fields).with_row_index(_PARTITION)
        names = [f.name for f in fields]
        given = from_arrow(keys.select(names)).with_row_index(_PLACE)
        found = given.join(values, on=names).sort(_PARTITION)
        bounds = found[_PARTITION].search_sorted(np.arange(len(distinct) + 1)).to_list()
        at = found[_PLACE].to_numpy().astype(np.int64)
        spans = pairwise(bounds)
        partitions = {p: at[slice(*span)] for p, span in zip(distinct, spans, strict=True)}

    # The bucket of each key, for each number of buckets.
    columns = [keys.column(f.name) for f in view.bucket_fields]
    types = [f.type for f in view.bucket_fields]
    numbers = {
        total: np.asarray(bucket_ids(columns, types, total, view.bucket_function)).astype(np.int64)
        for total in {bucket.total for bucket in buckets}
    }
    asked: dict[BucketId, slice | Positions] = {}
    for bucket in buckets:
        places = partitions[bucket.id[0]]
        asked[bucket.id] = places[numbers[bucket.total][places] == bucket.id[1]]
    return asked


# -- entries of rows -------------------------------------------------------------------------------


Flags = npt.NDArray[np.bool_]


def exact(rows: pl.DataFrame, fields: tuple[Field, ...]) -> pa.Table:
    """Some columns of rows, in the table's types."""
    if not fields:
        return pa.table({"": pa.nulls(rows.height)})
    return to_arrow(rows.select(f.name for f in fields), arrow_schema(fields))


def keys_of(rows: pl.DataFrame, view: TableView) -> tuple[KeyHashes, Numbers]:
    """The key hashes of rows, and the comparison values for their entries."""
    comparison = view.comparison
    return hashes_of(rows, view), comparison.in_index(exact(rows, comparison.fields))


def hashes_of(rows: pl.DataFrame, view: TableView) -> KeyHashes:
    """The key hashes of rows."""
    fields = view.schema.select(view.schema.primary_keys)
    return hash_keys(exact(rows, fields), fields, view.options.upsert_hash_function)


# -- places of rows --------------------------------------------------------------------------------


_POSITION_BITS = 40


def place_numbers(files: Numbers, positions: Numbers) -> Numbers:
    """The number of each place. It sorts by file, and in a file by position."""
    return files << _POSITION_BITS | positions


def split_places(places: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers of the files, and the positions in them."""
    return places >> _POSITION_BITS, places & ((1 << _POSITION_BITS) - 1)


def by_name(files: Numbers, positions: Numbers, names: Mapping[int, str]) -> dict[str, Numbers]:
    """The positions in each file, ascending. Files are in the order of their numbers."""
    files, positions = split_places(np.sort(place_numbers(files, positions)))
    starts = np.flatnonzero(np.diff(files, prepend=-1))
    spans = pairwise([*starts.tolist(), len(files)])
    return {names[int(files[start])]: positions[start:end] for start, end in spans}
