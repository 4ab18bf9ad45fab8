"""Deletion vectors in the form that Delta Lake and Apache Iceberg share: 64-bit bitmaps."""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass

from pyroaring import BitMap

from keytide.format.deletion_vector import Vector

__all__ = ["PortableVector"]

_MAGIC = struct.pack("<i", 1681511377)


@dataclass(frozen=True)
class PortableVector:
    """One encoded vector. `digest` identifies it."""

    data: bytes
    cardinality: int
    digest: str

    @classmethod
    def of(cls, vector: Vector) -> PortableVector:
        """The encoded form of a vector."""
        compact = vector.copy()
        compact.run_optimize()
        body = compact.serialize()
        if isinstance(vector, BitMap):
            # One bitmap, of the positions whose upper half is 0.
            body = struct.pack("<qI", 1, 0) + body
        data = _MAGIC + body
        # Equal bitmaps have equal bytes, whatever their form was in Keytide.
        return cls(data, len(vector), hashlib.blake2b(data, digest_size=12).hexdigest())

    def framed(self) -> bytes:
        """The vector as it is stored in files: between its length and its checksum."""
        length, checksum = (
            struct.pack(">i", len(self.data)),
            struct.pack(">I", zlib.crc32(self.data)),
        )
        return length + self.data + checksum
