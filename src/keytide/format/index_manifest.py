"""Index manifests: all index files of a snapshot.

Unlike a manifest, an index manifest is the full list and not a change. A commit that changes an
index rewrites the whole list. Any other commit keeps the old name. A bucketed table has at most one
file for each (type, partition, bucket).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from keytide.errors import DataError, InvalidError, UnsupportedError
from keytide.format.avro import Record, RecordType, array, optional, record, required
from keytide.format.deletion_vector import VectorRange, vector_in

__all__ = [
    "DELETION_VECTORS",
    "HASH",
    "KEY_INDEX",
    "IndexFile",
    "IndexKey",
    "decode_index_manifest",
    "encode_index_manifest",
    "replace_index_files",
]

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
    `held` is the content of a file that no store has, because only a reader uses it.
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
    held: bytes | None = None

    def held_in(self, place: VectorRange) -> bytes | None:
        """The held content of a range of vectors. None if a store has the file."""
        return None if self.held is None else vector_in(self.held, place)

    @property
    def beside(self) -> dict[str, int]:
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
        ranges=None if ranges is None else tuple(_range(item) for item in ranges if item),
        external_path=found.get("_EXTERNAL_PATH"),
        global_index=found.get("_GLOBAL_INDEX"),
    )


def _range(found: Record) -> VectorRange:
    return VectorRange(found["f0"], found["f1"], found["f2"], found.get("_CARDINALITY"))


def _index_record(file: IndexFile) -> Record:
    if file.held is not None:
        raise InvalidError(
            f"index file {file.file_name}: its content is in memory; expected a file in a store"
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
            list(map(_range_record, file.ranges)) if isinstance(file.ranges, tuple) else file.ranges
        ),
        "_EXTERNAL_PATH": file.external_path,
        "_GLOBAL_INDEX": _global_index_record(file),
    }


def _range_record(place: VectorRange) -> Record:
    return {
        "f0": place.data_file_name,
        "f1": place.offset,
        "f2": place.length,
        "_CARDINALITY": place.cardinality,
    }


def _global_index_record(file: IndexFile) -> Mapping[str, Any] | None:
    unknown = set(file.global_index or ()) - _GLOBAL_INDEX_MEMBERS
    if unknown:
        raise UnsupportedError(
            f"index file {file.file_name} of type {file.index_type} has members that this release "
            f"would lose: {', '.join(sorted(map(str, unknown)))}; change the table with a newer "
            f"release"
        )
    return file.global_index
