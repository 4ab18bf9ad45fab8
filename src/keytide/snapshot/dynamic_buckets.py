"""Which dynamic bucket each key is in, as recorded in the hash index files of a snapshot.

In a table with dynamic buckets, a known key goes to the bucket in the index. An unknown key may go
to any bucket, and the index must then record it. All keys with the same hash share a bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from keytide.base.dataclass import dataclass
from keytide.errors import DataError
from keytide.format import paths
from keytide.format.index_files import (
    HASH,
    NO_HASHES,
    Hashes,
    IndexFile,
    decode_hashes,
    encode_hashes,
    with_hashes,
)
from keytide.snapshot.live_files import EncodedIndex
from keytide.store import Store

UNKNOWN = -1
"""The bucket of a hash that is in no index file."""

HashFiles: TypeAlias = "Mapping[bytes, Mapping[int, IndexFile]]"
"""The hash index files of a snapshot, by partition and bucket."""


def hash_files(files: Iterable[IndexFile]) -> HashFiles:
    """Those index files that map keys to buckets."""
    found: dict[bytes, dict[int, IndexFile]] = {}
    for file in files:
        if file.index_type == HASH:
            found.setdefault(file.partition, {})[file.bucket] = file
    return found


@dataclass(frozen=True)
class KeyPlaces:
    """The keys of one partition of a table: for each bucket, the sorted hashes in it."""

    hashes: Mapping[int, Hashes]
    table: str

    def buckets_of(self, wanted: Hashes) -> npt.NDArray[np.int64]:
        """The bucket of each hash, `UNKNOWN` for hashes without a bucket.

        Raises `DataError` for a hash that is in two buckets.
        """
        found = np.full(len(wanted), UNKNOWN, np.int64)
        for bucket, hashes in self.hashes.items():
            if not len(hashes):
                continue
            at = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
            here = hashes[at] == wanted
            twice = np.flatnonzero(here & (found != UNKNOWN))
            if len(twice):
                raise DataError(
                    f"table {self.table}: the dynamic bucket index has the hash "
                    f"{wanted[twice[0]]} in the buckets {found[twice[0]]} and {bucket}, so a key "
                    "can be in both: engines that require a single writer wrote at the same time. "
                    "Overwrite the partition with its correct rows"
                )
            found[here] = bucket
        return found

    def count(self, bucket: int) -> int:
        """The number of hashes in a bucket."""
        return len(self.hashes.get(bucket, NO_HASHES))

    def with_more(self, placed: Mapping[int, Hashes]) -> KeyPlaces:
        """The same with additional hashes in some buckets."""
        more = {
            bucket: with_hashes(self.hashes.get(bucket, NO_HASHES), hashes)
            for bucket, hashes in placed.items()
        }
        return KeyPlaces({**self.hashes, **more}, self.table)


@dataclass(frozen=True)
class PlacedKeys:
    """The hashes of keys that this work was the first to put into a bucket. Picklable."""

    index_type: ClassVar[str] = HASH
    based_on: ClassVar[None] = None
    has_changed: ClassVar[bool] = True

    hashes: Hashes

    def joined(self, later: Sequence[PlacedKeys]) -> PlacedKeys:
        """See `BucketIndex`."""
        return PlacedKeys(np.concatenate([each.hashes for each in (self, *later)]))

    def encoded(self, store: Store, before: Sequence[IndexFile], table: str) -> EncodedIndex:
        """See `BucketIndex`: the newly placed keys are added to the existing ones."""
        known = load_places(store, before, table).hashes.values()
        hashes = with_hashes(next(iter(known), NO_HASHES), self.hashes)
        return EncodedIndex(encode_hashes(hashes), len(hashes))


def load_places(store: Store, files: Iterable[IndexFile], table: str) -> KeyPlaces:
    """Read the index files of one partition.

    Raises `DataError` for a file that is missing or damaged.
    """
    known = list(files)
    at = [paths.index_path(file.file_name) for file in known]
    hashes = {
        file.bucket: decode_hashes(data, store.uri_of(path), file.row_count)
        for file, path, data in zip(known, at, store.read_all(at), strict=True)
    }
    return KeyPlaces(hashes, table)
