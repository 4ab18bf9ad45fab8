"""Indexes of a bucket as values, from which a commit creates index files of any type.

A snapshot names at most one index file for each type, partition and bucket. Tasks return their
results as values that can encode themselves. A commit stores every value that it receives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

from keytide.format.deletion_vector import VectorRange
from keytide.format.index_manifest import IndexFile, IndexKey
from keytide.snapshot.live_files import BucketId
from keytide.store import Store

__all__ = ["BucketIndex", "EncodedIndex", "by_index_key"]

_I = TypeVar("_I", bound="BucketIndex")

Remember: TypeAlias = "Callable[[Store, str, int], None]"
"""Called with the store, the path of the index file, and the maximum bytes of cached files."""


class EncodedIndex(NamedTuple):
    """The bytes of an index file, and its entry in the index manifest."""

    data: bytes
    row_count: int
    ranges: tuple[VectorRange, ...] | None = None
    beside: Mapping[str, bytes] = MappingProxyType({})
    """More files to store, by name. `ranges` refer to them."""
    remember: Remember | None = None
    """Adds the stored content to the cache of this process."""


class BucketIndex(Protocol):
    """The change that a commit makes to one index of a bucket. Picklable."""

    index_type: ClassVar[str]
    """The type of the index in the index manifest."""

    @property
    def has_changed(self) -> bool:
        """Whether there is anything to store. If not, the bucket keeps its current index."""
        ...

    @property
    def based_on(self) -> tuple[IndexFile, ...] | None:
        """The index files that this change adds to. The commit conflicts if it finds other files.

        None if the change applies to any existing index.
        """
        ...

    def joined(self: _I, later: Sequence[_I]) -> _I:
        """This change combined with the changes of later tasks of the same work to the same
        index.
        """
        ...

    def encoded(self, store: Store, before: Sequence[IndexFile], table: str) -> EncodedIndex | None:
        """The new index, which replaces the files `before` and includes their content.

        None if the bucket no longer has such an index. Called again at each commit attempt. Raises
        `DataError` for a file that cannot be read.
        """
        ...


def by_index_key(by_bucket: Mapping[BucketId, BucketIndex]) -> dict[IndexKey, BucketIndex]:
    """Indexes by the key for which a snapshot has at most one file."""
    return {(index.index_type, *bucket): index for bucket, index in by_bucket.items()}
