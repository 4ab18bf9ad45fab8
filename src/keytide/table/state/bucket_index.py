"""Indexes of a bucket as values: what a commit is to make of them, of whichever type they are.

A snapshot names one index file, at most, for each type, partition and bucket. What tasks found out
is handed over as values that know how to be stored; a commit stores whatever it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

from keytide.format.deletion_vector import VectorRange
from keytide.format.index_manifest import IndexFile, IndexKey
from keytide.store import Store
from keytide.table.state.live_files import BucketId

__all__ = ["BucketIndex", "EncodedIndex", "by_index_key"]

_I = TypeVar("_I", bound="BucketIndex")

Remember: TypeAlias = "Callable[[Store, str, int], None]"
"""Called with the store, the path of the index file, and how many bytes of files may be kept."""


class EncodedIndex(NamedTuple):
    """The bytes of an index file, and what its index manifest says of it."""

    data: bytes
    row_count: int
    ranges: tuple[VectorRange, ...] | None = None
    beside: Mapping[str, bytes] = MappingProxyType({})
    """More files to store, by their names, which `ranges` tell of."""
    remember: Remember | None = None
    """Has this process remember what is stored here."""


class BucketIndex(Protocol):
    """What becomes of one index of a bucket with a commit. Pickles."""

    index_type: ClassVar[str]
    """The type that the index manifest knows it by."""

    @property
    def has_changed(self) -> bool:
        """Whether there is anything to store; if not, the bucket keeps the index that it has."""
        ...

    @property
    def based_on(self) -> tuple[IndexFile, ...] | None:
        """The index files that it adds to, of which the commit must find no others.

        None where it goes on top of whatever is there.
        """
        ...

    def joined(self: _I, later: Sequence[_I]) -> _I:
        """The same and what later tasks of the same work made of the same index."""
        ...

    def encoded(self, store: Store, before: Sequence[IndexFile], table: str) -> EncodedIndex | None:
        """The index on top of what the files `before` say, whose place it takes.

        None where the bucket has no such index any more. Called anew at each try to commit. Raises
        `DataError` for a file that cannot be read.
        """
        ...


def by_index_key(by_bucket: Mapping[BucketId, BucketIndex]) -> dict[IndexKey, BucketIndex]:
    """Indexes of buckets by what a snapshot has at most one file of."""
    return {(index.index_type, *bucket): index for bucket, index in by_bucket.items()}
