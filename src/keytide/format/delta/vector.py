"""Where Delta Lake stores deletion vectors: in a file with several vectors, or in the log."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from keytide.format.portable_vector import PortableVector

__all__ = [
    "VECTOR_DIR",
    "in_file",
    "inline",
    "vector_file",
    "vector_file_name",
]

VECTOR_DIR = "_delta_vectors"
"""The folder for files with vectors, inside the folder of the table."""

_FILE_VERSION = b"\x01"
# Two alphabets for 85 digits: Python's and Delta Lake's.
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)
_TEXT_OF_UUID = 20


def inline(vector: PortableVector) -> dict[str, Any]:
    """The descriptor of a vector that is stored in the log itself."""
    padded = vector.data + b"\0" * (-len(vector.data) % 4)
    return {
        "storageType": "i",
        "pathOrInlineDv": _z85(padded),
        "sizeInBytes": len(vector.data),
        "cardinality": vector.cardinality,
    }


def vector_file(vectors: Iterable[PortableVector]) -> tuple[bytes, list[int]]:
    """A file with some vectors, and the byte at which each begins."""
    chunks, offsets, end = [_FILE_VERSION], [], len(_FILE_VERSION)
    for vector in vectors:
        offsets.append(end)
        chunks.append(vector.framed())
        end += len(chunks[-1])
    return b"".join(chunks), offsets


def in_file(vector: PortableVector, uuid: UUID, offset: int) -> dict[str, Any]:
    """The descriptor of a vector in the file with that id."""
    return {
        "storageType": "u",
        "pathOrInlineDv": VECTOR_DIR + _z85(uuid.bytes),
        "offset": offset,
        "sizeInBytes": len(vector.data),
        "cardinality": vector.cardinality,
    }


def vector_file_name(descriptor: dict[str, Any]) -> str | None:
    """The name of the file in `VECTOR_DIR` for a descriptor. None for any other location."""
    text = str(descriptor["pathOrInlineDv"])
    folder, encoded = text[:-_TEXT_OF_UUID], text[-_TEXT_OF_UUID:]
    if descriptor["storageType"] != "u" or folder != VECTOR_DIR:
        return None
    uuid = UUID(bytes=base64.b85decode(encoded.encode().translate(_FROM_Z85)))
    return f"deletion_vector_{uuid}.bin"


def _z85(data: bytes) -> str:
    # Both encode four bytes as the same five digits.
    return base64.b85encode(data).translate(_TO_Z85).decode()
