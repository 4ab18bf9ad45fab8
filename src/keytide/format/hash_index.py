"""Hash index files: the hashes of the keys in one dynamic bucket.

A file contains the 4-byte hashes one after the other, in big-endian order, without a header. They
are a set, and other writers use any order. A hash is that of the binary row of the primary key
without its partition columns, the same hash as for fixed buckets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from keytide.errors import DataError

__all__ = ["NO_HASHES", "Hashes", "decode_hashes", "encode_hashes", "with_hashes"]

Hashes = npt.NDArray[np.int32]

NO_HASHES: Hashes = np.empty(0, np.int32)

_STORED = np.dtype(">i4")


def encode_hashes(hashes: Hashes) -> bytes:
    """The bytes of an index file with these hashes, in their order."""
    return hashes.astype(_STORED).tobytes()


def decode_hashes(data: bytes, path: str, row_count: int) -> Hashes:
    """The hashes of an index file, sorted. `row_count` is their recorded number.

    Raises `DataError`, which names `path`, if the file is damaged.
    """
    if len(data) != row_count * _STORED.itemsize:
        raise DataError(
            f"{path}: expected {row_count * _STORED.itemsize} bytes for an index of {row_count} "
            f"keys, found {len(data)}; the file is damaged"
        )
    hashes = np.frombuffer(data, _STORED).astype(np.int32)
    is_sorted = bool(np.all(hashes[1:] > hashes[:-1]))  # as Keytide writes them
    return hashes if is_sorted else _sorted_set(hashes)


def with_hashes(known: Hashes, new: Hashes) -> Hashes:
    """The union of both sets, sorted. REQUIRES: `known` is sorted."""
    added = _sorted_set(new)
    if not len(known):
        return added
    at = np.searchsorted(known, added)
    is_new = np.ones(len(added), np.bool_)
    inside = at < len(known)
    is_new[inside] = known[at[inside]] != added[inside]
    # The insert positions are known: sorting millions again for each write would cost more than the
    # write.
    return np.insert(known, at[is_new], added[is_new])


def _sorted_set(hashes: Hashes) -> Hashes:
    # `np.unique` hashes integers, which takes seconds for millions that are already sorted.
    ordered = np.sort(hashes)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]
