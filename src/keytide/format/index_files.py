"""Index files: hashes of dynamic buckets, dead rows of data files, and the manifest of both.

Unlike a manifest, an index manifest is the full list and not a change. A commit that changes an
index rewrites the whole list. Any other commit keeps the old name. A bucketed table has at most one
file for each (type, partition, bucket).

A hash index file has the hashes of the keys in one dynamic bucket: 4 bytes each, one after the
other, in big-endian order, without a header. They are a set, and other writers use any order. A
hash is that of the binary row of the primary key without its partition columns, the same hash as
for fixed buckets.

Deletion vectors are bitmaps of the dead rows of data files, stored back to back in an index file,
after a version byte. The index manifest records which data file each vector belongs to and where it
is. There are two forms, distinguished by their magic number::

    32 bit   size BE | 5e43f2d0 BE | RoaringBitmap                          | CRC32 BE
    64 bit   size BE | 64393dd1 LE | count LE, count x (high LE, Roaring..) | CRC32 BE

`size` and the checksum cover magic and body. The class of a bitmap determines its form: `BitMap`
is written as 32 bit, `BitMap64` as 64 bit.

Delta Lake and Apache Iceberg share another form, with 64-bit bitmaps.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from keytide.base.dataclass import dataclass
from keytide.errors import DataError, InvalidError, UnsupportedError
from keytide.format.avro import Record, RecordType, array, optional, record, required
from keytide.format.cache import METADATA, version_of
from keytide.options import keys
from keytide.store.interface import Store, disk_errors

# -- hash indexes ----------------------------------------------------------------------------------


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


# -- deletion vectors ------------------------------------------------------------------------------


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

    `content` is the part of the index file in this range, if no store has the file.
    """

    path: str
    range: VectorRange
    content: bytes | None = None


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
    vector: Any = _stored_vector(store, place)
    if other is not None:
        known: Any = _stored_vector(store, other)
        if not (isinstance(vector, BitMap) and isinstance(known, BitMap)):
            # Different forms have no difference operation.
            vector, known = BitMap64(vector), BitMap64(known)
        vector = vector - known
    return np.asarray(vector.to_array()).astype(np.int64)


def _stored_vector(store: Store, place: VectorPlace) -> Vector:
    """A cached vector, which must not be changed."""
    uri, found = store.uri_of(place.path), place.range
    if place.content is not None:
        return _read_vector(place.content, found, uri, start=found.offset)

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
    vectors: Mapping[str, Vector], ranges: Sequence[VectorRange], store: Store, path: str, _: int
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
    is_64_bit = isinstance(vector, BitMap64)
    if not is_64_bit and vector and vector.max() > MAX_POSITION_32:
        raise InvalidError(
            f"row position {vector.max()} does not fit a 32-bit deletion vector (at most "
            f"{MAX_POSITION_32}); set '{keys.DELETION_VECTORS_BITMAP64}' to true"
        )
    compact = vector.copy()
    compact.run_optimize()
    content = (_MAGIC_64 if is_64_bit else _MAGIC_32) + compact.serialize()
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

    # Content and checksum of the vector whose size field is at `offset` of the file.
    offset = place.offset
    first = offset - start
    begin = first + 4
    size = int.from_bytes(data[first:begin], "big") if offset > 0 and begin <= len(data) else -1
    end = begin + size
    if size < 4 or end + 4 > len(data):
        raise DataError(f"{where} is damaged: the vector is incomplete")
    content, checksum = data[begin:end], int.from_bytes(data[end : end + 4], "big")
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


# -- index manifests -------------------------------------------------------------------------------


ENTRY_VERSION = 1

KEY_INDEX = "KEYTIDE_KEYS"
"""The type of Keytide's own index: where the current row of each key is.

Its `ranges` name the files with the entries, in the same folder. Other engines preserve it without
reading it.
"""
DELETION_VECTORS = "DELETION_VECTORS"
HASH = "HASH"

IndexKey = tuple[str, bytes, int]


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One index file of a bucket.

    `partition` is the binary row of the partition columns. `row_count` is the number of vectors or
    hashes. `ranges` are the positions of the vectors, None for other types. Types that this release
    does not know are preserved unchanged. `global_index` is a member of such types.
    `content` is the content of a file that no store has, because only a reader uses it.
    """

    index_type: str
    partition: bytes
    bucket: int
    file_name: str
    file_size: int
    row_count: int
    ranges: tuple[VectorRange, ...] | None = None
    external_path: str | None = None
    global_index: Mapping[str, Any] | None = None
    content: bytes | None = None

    def content_of(self, place: VectorRange) -> bytes | None:
        """The held content of a range of vectors. None if a store has the file."""
        if self.content is None:
            return None
        return self.content[place.offset : place.offset + place.length + _FRAME_LENGTH]

    @property
    def run_files(self) -> dict[str, int]:
        """The names of the files that belong to it, with their sizes in bytes."""
        if self.index_type != KEY_INDEX:
            return {}
        return {place.data_file_name: place.length for place in self.ranges or ()}

    @property
    def key(self) -> IndexKey:
        """The key for which a bucketed table has at most one file."""
        return (self.index_type, self.partition, self.bucket)


def replace_index_files(
    files: Iterable[IndexFile], replacements: Iterable[IndexFile]
) -> list[IndexFile]:
    """The list, after `replacements` replaced the files with the same keys."""
    new = list(replacements)
    replaced = {file.key for file in new}
    return [*(file for file in files if file.key not in replaced), *new]


def encode_index_manifest(files: Iterable[IndexFile]) -> bytes:
    """The bytes of an index manifest with these files, in their order.

    Raises InvalidError for a member that no reader could read.
    """
    return _RECORDS.write(files, _index_record)


def decode_index_manifest(data: bytes, path: str) -> list[IndexFile]:
    """The index files in an index manifest of any writer and release, in the file's order.

    Raises DataError, which names `path`, if the file is damaged or lacks a required member, and
    UnsupportedError if it has another version.
    """
    records = _RECORDS.read(data, path)
    for found in records:
        if found.get("_KIND") != _ADD:
            raise DataError(f"{path}: an index manifest must not have entries that delete files")
    try:
        return [_index_file(found) for found in records]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: missing or invalid member ({error!r})") from error


_ADD = 0

_RANGE_TYPE = record(
    "record__DELETIONS_VECTORS_RANGES",
    required("f0", "string"),
    required("f1", "int"),
    required("f2", "int"),
    optional("_CARDINALITY", "long"),
)

_GLOBAL_INDEX_TYPE = record(
    "record__GLOBAL_INDEX",
    required("_ROW_RANGE_START", "long"),
    required("_ROW_RANGE_END", "long"),
    required("_INDEX_FIELD_ID", "int"),
    optional("_EXTRA_FIELD_IDS", array("int")),
    optional("_INDEX_META", "bytes"),
    optional("_SOURCE_META", "bytes"),
)
_GLOBAL_INDEX_MEMBERS = frozenset(member["name"] for member in _GLOBAL_INDEX_TYPE["fields"])

_RECORDS = RecordType.of(
    ENTRY_VERSION,
    required("_KIND", "int"),
    required("_PARTITION", "bytes"),
    required("_BUCKET", "int"),
    required("_INDEX_TYPE", "string"),
    required("_FILE_NAME", "string"),
    required("_FILE_SIZE", "long"),
    required("_ROW_COUNT", "long"),
    optional("_DELETIONS_VECTORS_RANGES", array(["null", _RANGE_TYPE])),
    optional("_EXTERNAL_PATH", "string"),
    optional("_GLOBAL_INDEX", _GLOBAL_INDEX_TYPE),
)


def _index_file(found: Record) -> IndexFile:
    ranges = found.get("_DELETIONS_VECTORS_RANGES")
    return IndexFile(
        index_type=found["_INDEX_TYPE"],
        partition=found["_PARTITION"],
        bucket=found["_BUCKET"],
        file_name=found["_FILE_NAME"],
        file_size=found["_FILE_SIZE"],
        row_count=found["_ROW_COUNT"],
        ranges=None
        if ranges is None
        else tuple(
            VectorRange(item["f0"], item["f1"], item["f2"], item.get("_CARDINALITY"))
            for item in ranges
            if item
        ),
        external_path=found.get("_EXTERNAL_PATH"),
        global_index=found.get("_GLOBAL_INDEX"),
    )


def _index_record(file: IndexFile) -> Record:
    if file.content is not None:
        raise InvalidError(
            f"index file {file.file_name}: its content is in memory; expected a file in a store"
        )

    unknown = set(file.global_index or ()) - _GLOBAL_INDEX_MEMBERS
    if unknown:
        raise UnsupportedError(
            f"index file {file.file_name} of type {file.index_type} has members that this release "
            f"would lose: {', '.join(sorted(map(str, unknown)))}; change the table with a newer "
            f"release"
        )
    return {
        "_KIND": _ADD,
        "_PARTITION": file.partition,
        "_BUCKET": file.bucket,
        "_INDEX_TYPE": file.index_type,
        "_FILE_NAME": file.file_name,
        "_FILE_SIZE": file.file_size,
        "_ROW_COUNT": file.row_count,
        "_DELETIONS_VECTORS_RANGES": (
            [
                {
                    "f0": place.data_file_name,
                    "f1": place.offset,
                    "f2": place.length,
                    "_CARDINALITY": place.cardinality,
                }
                for place in file.ranges
            ]
            if isinstance(file.ranges, tuple)
            else file.ranges
        ),
        "_EXTERNAL_PATH": file.external_path,
        "_GLOBAL_INDEX": file.global_index,
    }


# -- deletion vectors of Delta Lake and Apache Iceberg ---------------------------------------------


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
        length, checksum = struct.pack(">i", len(self.data)), zlib.crc32(self.data)
        return length + self.data + struct.pack(">I", checksum)
