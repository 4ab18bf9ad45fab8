"""Deletion vectors: bitmaps of the dead rows of data files, stored back to back in index files.

An index file consists of a version byte and vectors. The index manifest records which data file
each vector belongs to and where it is. There are two forms, distinguished by their magic number::

    32 bit   size BE | 5e43f2d0 BE | RoaringBitmap                          | CRC32 BE
    64 bit   size BE | 64393dd1 LE | count LE, count x (high LE, Roaring..) | CRC32 BE

`size` and the checksum cover magic and body. The class of a bitmap determines its form: `BitMap`
is written as 32 bit, `BitMap64` as 64 bit.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from keytide.errors import DataError, InvalidError, UnsupportedError
from keytide.format.cache import METADATA, version_of
from keytide.options import keys
from keytide.store.base import Store, disk_errors

__all__ = [
    "Vector",
    "VectorPlace",
    "VectorRange",
    "dead_in_one",
    "dead_positions",
    "encode_vector",
    "keep_vectors",
    "live_rows",
    "living_among",
    "read_vectors",
    "stored_vectors",
    "vector_in",
    "write_vectors",
]

Vector = BitMap | BitMap64

FILE_VERSION = 1
MAX_POSITION_32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class VectorRange:
    """Where the vector of a data file is in its index file.

    `offset` is the position of the size field. `length` is the recorded length, which counts
    different bytes in each form: the 32-bit form excludes size field and checksum. `cardinality` is
    the number of dead rows, None if the writer did not record it.
    """

    data_file_name: str
    offset: int
    length: int
    cardinality: int | None = None


@dataclass(frozen=True, slots=True)
class VectorPlace:
    """Where the vector of a data file is: the path of its index file in the store, and the range
    there.

    `held` is the part of the index file in this range, if no store has the file.
    """

    path: str
    range: VectorRange
    held: bytes | None = None


def vector_in(data: bytes, place: VectorRange) -> bytes:
    """The bytes of one vector in an index file."""
    return data[place.offset : place.offset + place.length + _FRAME_LENGTH]


def dead_positions(store: Store, place: VectorPlace) -> npt.NDArray[np.int64]:
    """The positions of the dead rows of a data file, ascending. Reads no other file's vector.

    Raises `DataError` if the index file is missing, and the errors of `read_vectors`.
    """
    return np.asarray(_stored_vector(store, place).to_array()).astype(np.int64)


def living_among(
    store: Store, place: VectorPlace, positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Those of the ascending positions in a data file that are live. Raises as above."""
    vector = _stored_vector(store, place)
    asked = positions.tolist()
    living = BitMap64(asked) - vector if isinstance(vector, BitMap64) else BitMap(asked) - vector
    return np.asarray(living.to_array()).astype(np.int64)


def dead_in_one(
    store: Store, place: VectorPlace, other: VectorPlace | None
) -> npt.NDArray[np.int64]:
    """The positions, ascending, that are dead in one vector of a data file and not in another one.

    Raises as above.
    """
    vector = _stored_vector(store, place)
    if other is not None:
        vector = _without(vector, _stored_vector(store, other))
    return np.asarray(vector.to_array()).astype(np.int64)


def _without(one: Vector, other: Vector) -> Vector:
    if isinstance(one, BitMap) and isinstance(other, BitMap):
        return one - other
    return BitMap64(one) - BitMap64(other)  # different forms have no difference operation


def _stored_vector(store: Store, place: VectorPlace) -> Vector:
    """A cached vector, which must not be changed."""
    uri, found = store.uri_of(place.path), place.range
    if place.held is not None:
        return _read_vector(place.held, found, uri, start=found.offset)

    def load() -> tuple[Vector, int]:
        with disk_errors("read", uri), store.open_input(place.path) as file:
            _check_version(file.read(1), uri)
            file.seek(max(0, found.offset))
            framed = file.read(found.length + _FRAME_LENGTH)
        return _read_vector(framed, found, uri, start=found.offset), _sized(found)

    with disk_errors("read", uri):
        key = (*version_of(store, place.path), found)
    return METADATA.load(key, load)


def stored_vectors(store: Store, path: str, ranges: Sequence[VectorRange]) -> dict[str, Vector]:
    """The vectors of an index file in a store. The caller may change them. Raises as above."""
    uri = store.uri_of(path)

    def load() -> tuple[dict[str, Vector], int]:
        found = read_vectors(store.read(path), ranges, uri)
        return found, sum(map(_sized, ranges))

    with disk_errors("read", uri):
        key = _vectors_key(store, path, ranges)
    return {name: vector.copy() for name, vector in METADATA.load(key, load).items()}


def keep_vectors(
    store: Store, path: str, ranges: Sequence[VectorRange], vectors: Mapping[str, Vector]
) -> None:
    """Cache the vectors of an index file that was just stored. They must not be changed."""
    METADATA.keep(_vectors_key(store, path, ranges), vectors, sum(map(_sized, ranges)))


def _vectors_key(store: Store, path: str, ranges: Sequence[VectorRange]) -> Hashable:
    return (*version_of(store, path), tuple(ranges))


def read_vectors(data: bytes, ranges: Iterable[VectorRange], path: str) -> dict[str, Vector]:
    """The vectors of an index file by the data file that they belong to.

    Raises DataError, which names `path`, if a vector is damaged or its checksum is wrong, and
    UnsupportedError if the file has another version.
    """
    _check_version(data, path)
    return {place.data_file_name: _read_vector(data, place, path) for place in ranges}


def write_vectors(vectors: Mapping[str, Vector]) -> tuple[bytes, tuple[VectorRange, ...]]:
    """An index file with the vectors of data files, in the mapping's order, and their ranges.

    Raises InvalidError if a 32-bit vector contains a position above 2147483647.
    """
    chunks = [bytes([FILE_VERSION])]
    ranges = []
    offset = 1
    for data_file_name, vector in vectors.items():
        chunk = encode_vector(vector)
        # The recorded length means something else in each form, see `VectorRange`.
        length = len(chunk) if isinstance(vector, BitMap64) else len(chunk) - _FRAME_LENGTH
        ranges.append(VectorRange(data_file_name, offset, length, len(vector)))
        chunks.append(chunk)
        offset += len(chunk)
    return b"".join(chunks), tuple(ranges)


def encode_vector(vector: Vector) -> bytes:
    """One vector with its size field and checksum. Raises InvalidError like `write_vectors`."""
    if isinstance(vector, BitMap64):
        magic = _MAGIC_64
    else:
        magic = _MAGIC_32
        _check_32_bit(vector)
    compact = vector.copy()
    compact.run_optimize()
    content = magic + compact.serialize()
    return struct.pack(">i", len(content)) + content + struct.pack(">I", zlib.crc32(content))


def live_rows(vector: Vector, row_count: int) -> npt.NDArray[np.bool_]:
    """A mask over the `row_count` rows of a data file that is false for dead rows."""
    mask = np.ones(row_count, dtype=np.bool_)
    mask[np.asarray(vector.to_array())] = False
    return mask


_MAGIC_32 = struct.pack(">i", 1581511376)
_MAGIC_64 = struct.pack("<i", 1681511377)
# The size field before and the checksum after a vector.
_FRAME_LENGTH = 8


def _sized(place: VectorRange) -> int:
    """The approximate memory of a vector in bytes."""
    return _VECTOR_BYTES + place.length


_VECTOR_BYTES = 500


def _check_version(data: bytes, path: str) -> None:
    if not data:
        raise DataError(f"{path}: empty file, expected deletion vectors")
    if data[0] != FILE_VERSION:
        raise UnsupportedError(
            f"{path}: deletion vector file version {data[0]}, but this release reads only "
            f"{FILE_VERSION}"
        )


def _read_vector(data: bytes, place: VectorRange, path: str, *, start: int = 0) -> Vector:
    """A vector from the bytes of an index file that begin at `start`."""
    where = f"{path}: deletion vector of {place.data_file_name} at byte {place.offset}"
    content, checksum = _framed(data, place.offset, start, where)
    if zlib.crc32(content) != checksum:
        raise DataError(f"{where}: the checksum does not match")
    magic, body = content[:4], content[4:]
    if magic not in (_MAGIC_32, _MAGIC_64):
        raise UnsupportedError(
            f"{where} has the unknown magic number {magic.hex()}; this release reads 32-bit "
            f"and 64-bit vectors"
        )
    is_64_bit = magic == _MAGIC_64
    expected = len(content) + _FRAME_LENGTH if is_64_bit else len(content)
    if place.length != expected:
        raise DataError(f"{where} has length {expected}, expected {place.length}")
    try:
        return (BitMap64 if is_64_bit else BitMap).deserialize(body)
    except Exception as error:
        raise DataError(f"{where} is not a bitmap ({error})") from error


def _framed(data: bytes, offset: int, start: int, where: str) -> tuple[bytes, int]:
    """Content and checksum of the vector whose size field is at `offset` of the file."""
    first = offset - start
    begin = first + 4
    size = int.from_bytes(data[first:begin], "big") if offset > 0 and begin <= len(data) else -1
    end = begin + size
    if size < 4 or end + 4 > len(data):
        raise DataError(f"{where} is damaged: the vector is incomplete")
    return data[begin:end], int.from_bytes(data[end : end + 4], "big")


def _check_32_bit(vector: BitMap) -> None:
    if vector and vector.max() > MAX_POSITION_32:
        raise InvalidError(
            f"row position {vector.max()} does not fit a 32-bit deletion vector (at most "
            f"{MAX_POSITION_32}); set '{keys.DELETION_VECTORS_BITMAP64}' to true"
        )
