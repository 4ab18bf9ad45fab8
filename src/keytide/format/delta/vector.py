"""Deletion vectors as Delta Lake stores them: bitmaps of 64 bits, in a file or in the log."""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pyroaring import BitMap

from keytide.format.deletion_vector import Vector

__all__ = [
    "VECTOR_DIR",
    "DeltaVector",
    "in_file",
    "inline",
    "vector_file",
    "vector_file_name",
]

VECTOR_DIR = "_delta_vectors"
"""The folder, in that of the table, of files with vectors."""

_FILE_VERSION = b"\x01"
_MAGIC = struct.pack("<i", 1681511377)
# Two ways to write 85 digits: Python's and that of Delta Lake.
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)
_TEXT_OF_UUID = 20


@dataclass(frozen=True)
class DeltaVector:
    """One vector, encoded. `digest` tells it from any other one."""

    data: bytes
    cardinality: int
    digest: str

    @classmethod
    def of(cls, vector: Vector) -> DeltaVector:
        """The encoded form of a vector."""
        compact = vector.copy()
        compact.run_optimize()
        body = compact.serialize()
        if isinstance(vector, BitMap):
            # One bitmap, of the positions whose upper half is 0.
            body = struct.pack("<qI", 1, 0) + body
        data = _MAGIC + body
        # Of equal bitmaps the bytes are equal, whatever form they have had here.
        return cls(data, len(vector), hashlib.blake2b(data, digest_size=12).hexdigest())


def inline(vector: DeltaVector) -> dict[str, Any]:
    """The descriptor of a vector that lies in the log itself."""
    padded = vector.data + b"\0" * (-len(vector.data) % 4)
    return {
        "storageType": "i",
        "pathOrInlineDv": _z85(padded),
        "sizeInBytes": len(vector.data),
        "cardinality": vector.cardinality,
    }


def vector_file(vectors: Iterable[DeltaVector]) -> tuple[bytes, list[int]]:
    """A file with some vectors, and at which byte of it each begins."""
    chunks, offsets, end = [_FILE_VERSION], [], len(_FILE_VERSION)
    for vector in vectors:
        offsets.append(end)
        crc = struct.pack(">I", zlib.crc32(vector.data))
        chunks += [struct.pack(">i", len(vector.data)), vector.data, crc]
        end += len(vector.data) + 8
    return b"".join(chunks), offsets


def in_file(vector: DeltaVector, uuid: UUID, offset: int) -> dict[str, Any]:
    """The descriptor of a vector in the file of that id."""
    return {
        "storageType": "u",
        "pathOrInlineDv": VECTOR_DIR + _z85(uuid.bytes),
        "offset": offset,
        "sizeInBytes": len(vector.data),
        "cardinality": vector.cardinality,
    }


def vector_file_name(descriptor: dict[str, Any]) -> str | None:
    """The name of the file in `VECTOR_DIR` that a descriptor is of; None for any other place."""
    text = str(descriptor["pathOrInlineDv"])
    folder, encoded = text[:-_TEXT_OF_UUID], text[-_TEXT_OF_UUID:]
    if descriptor["storageType"] != "u" or folder != VECTOR_DIR:
        return None
    uuid = UUID(bytes=base64.b85decode(encoded.encode().translate(_FROM_Z85)))
    return f"deletion_vector_{uuid}.bin"


def _z85(data: bytes) -> str:
    # Both write four bytes as the same five digits.
    return base64.b85encode(data).translate(_TO_Z85).decode()
