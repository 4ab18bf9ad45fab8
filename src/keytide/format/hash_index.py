"""Hash index files of dynamic-bucket tables: the key hashes that live in one bucket.

A file is its hashes, 4-byte big-endian integers, and nothing else. They are a set: the order
means nothing, and a change rewrites the whole file.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from keytide.errors import DataError

__all__ = [
    "read_hashes",
    "write_hashes",
]


def read_hashes(data: bytes, path: str) -> npt.NDArray[np.int32]:
    """The hashes of an index file, in its order; DataError, naming `path`, when it is torn."""
    if len(data) % 4:
        raise DataError(f"{path}: {len(data)} bytes are no whole number of 4-byte hashes")
    return np.frombuffer(data, dtype=">i4").astype(np.int32)


def write_hashes(hashes: npt.NDArray[np.int32]) -> bytes:
    """The bytes of an index file with these hashes."""
    return hashes.astype(">i4").tobytes()
