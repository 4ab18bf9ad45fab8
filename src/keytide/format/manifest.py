"""Manifests: which data files were added to the table and which were deleted.

A manifest contains `ManifestEntry` records, one for each added or deleted file. A manifest list
contains one `ManifestFileMeta` for each manifest. A snapshot names two lists. Its live files are
the added files of both lists whose identity was never deleted.

In the lists of a snapshot, no identity is added again after its deletion. So the order of manifests
and entries does not matter to any reader. The level is part of the identity: moving a file to
another level deletes one identity and adds another. Code that brings files back ensures that no
delete entry for them is left (`keytide.maintenance.restore`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, TypeVar

import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.errors import DataError
from keytide.format.avro import (
    MILLISECONDS,
    EncodedRecords,
    Record,
    RecordType,
    StoredFile,
    array,
    optional,
    record,
    required,
)
from keytide.format.binary_row import decode_rows
from keytide.format.manifest_entry import DataFileMeta, Entries, FileKind, Identity, ManifestEntry
from keytide.format.stats import (
    EMPTY_STATS,
    SimpleStats,
    StatsMode,
    column_stats,
    row_stats,
    unknown_stats,
)
from keytide.types import DataType

ENTRY_VERSION = 2


@dataclass(frozen=True, slots=True)
class ManifestFileMeta:
    """One manifest in a manifest list. Readers skip it by these counts and bounds.

    The counts are exact. The bounds may be None, which means unknown.
    """

    file_name: str
    file_size: int
    num_added_files: int
    num_deleted_files: int
    partition_stats: SimpleStats
    schema_id: int
    min_bucket: int | None = None
    max_bucket: int | None = None
    min_level: int | None = None
    max_level: int | None = None
    min_row_id: int | None = None
    max_row_id: int | None = None


def live_entries(entries: Iterable[ManifestEntry]) -> dict[Identity, ManifestEntry]:
    """The files of a snapshot by identity, given all its entries in any order.

    The result keeps the order in which files were added.
    """
    added: dict[Identity, ManifestEntry] = {}
    deleted: set[Identity] = set()
    for entry in entries:
        # In any order: an identity is never added again after its deletion.
        if entry.kind is FileKind.ADD:
            added[entry.identity] = entry
        else:
            deleted.add(entry.identity)
    return {identity: entry for identity, entry in added.items() if identity not in deleted}


def summarize(
    entries: Sequence[ManifestEntry],
    name: str,
    size: int,
    schema_id: int,
    partition_types: Sequence[DataType],
) -> ManifestFileMeta:
    """The manifest list's record of a manifest with these entries and a size of `size` bytes."""
    added = sum(entry.kind is FileKind.ADD for entry in entries)
    buckets = [entry.bucket for entry in entries]
    levels = [entry.file.level for entry in entries]
    # Each partition is decoded once, however many entries it has.
    partitions = Counter(entry.partition for entry in entries)
    return ManifestFileMeta(
        file_name=name,
        file_size=size,
        num_added_files=added,
        num_deleted_files=len(entries) - added,
        partition_stats=_partition_stats(partitions, partition_types),
        schema_id=schema_id,
        min_bucket=min(buckets, default=None),
        max_bucket=max(buckets, default=None),
        min_level=min(levels, default=None),
        max_level=max(levels, default=None),
    )


def summarize_encoded(
    entries: EncodedRecords,
    name: str,
    size: int,
    schema_id: int,
    partition_types: Sequence[DataType],
) -> ManifestFileMeta:
    """The same for entries in encoded form."""
    members = entries.columns
    levels = members["_FILE"].struct.field("_LEVEL")
    added = int((members["_KIND"] == FileKind.ADD).sum())
    partitions = dict(members["_PARTITION"].value_counts().iter_rows())
    return ManifestFileMeta(
        file_name=name,
        file_size=size,
        num_added_files=added,
        num_deleted_files=len(entries) - added,
        partition_stats=_partition_stats(partitions, partition_types),
        schema_id=schema_id,
        min_bucket=_integer(members["_BUCKET"].min()),
        max_bucket=_integer(members["_BUCKET"].max()),
        min_level=_integer(levels.min()),
        max_level=_integer(levels.max()),
    )


def encode_manifest(entries: Iterable[ManifestEntry]) -> bytes:
    """The bytes of a manifest with these entries, in their order.

    Raises InvalidError for a member that no reader could read.
    """
    return _ENTRIES.write(entries, _entry_record)


def decode_manifest(data: bytes, path: str, size: int | None = None) -> Entries:
    """The entries of a manifest of any writer and release, in the file's order.

    `size` is the length recorded in the manifest list. Raises DataError, which names `path`, if the
    file is damaged or lacks a required member, and UnsupportedError if it has another version.
    """
    [records] = _ENTRIES.read_encoded([(data, path, size)])
    if records is not None:
        return Entries.stored(records.columns)
    return Entries.of(_decode(_ENTRIES.read(data, path, size), path, _entry))


def open_manifests(files: Sequence[StoredFile]) -> list[EncodedRecords]:
    """The entries of manifests as they would be encoded here. Raises as `decode_manifest`."""
    opened: list[EncodedRecords] = []
    for (data, path, size), records in zip(files, _ENTRIES.read_encoded(files), strict=True):
        if records is None:
            own = encode_manifest(_decode(_ENTRIES.read(data, path, size), path, _entry))
            [records] = _ENTRIES.read_encoded([(own, path, None)])
            assert records is not None, "what was just encoded is of this release"
        opened.append(records)
    return opened


def copy_manifest(entries: EncodedRecords) -> bytes:
    """The bytes of a manifest with entries that others were opened for."""
    return _ENTRIES.write_encoded(entries)


def encode_manifest_list(manifests: Iterable[ManifestFileMeta]) -> bytes:
    """The bytes of a manifest list, which may be empty. Raises like `encode_manifest`."""
    return _MANIFESTS.write_pieces(_encoded_in_list(_ManifestIdentity(each)) for each in manifests)


@dataclass(frozen=True, eq=False, slots=True)
class _ManifestIdentity:
    """A manifest that equals only itself, because its members may not be hashable."""

    manifest: ManifestFileMeta

    def __hash__(self) -> int:
        return id(self.manifest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ManifestIdentity) and other.manifest is self.manifest


@lru_cache(maxsize=1 << 12)  # most of a list stand in the one before too
def _encoded_in_list(one: _ManifestIdentity) -> bytes:
    return _MANIFESTS.encoded(one.manifest, _list_record)


def decode_manifest_list(data: bytes, path: str, size: int | None = None) -> list[ManifestFileMeta]:
    """The manifests of a manifest list, in order. Raises like `decode_manifest`.

    `size` is the length recorded in the snapshot. None if its writer did not record it.
    """
    return _decode(_MANIFESTS.read(data, path, size), path, _manifest)


_Decoded = TypeVar("_Decoded")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _partition_stats(counts: Mapping[bytes, int], types: Sequence[DataType]) -> SimpleStats:
    """Statistics of partitions, each counted as often as it occurs."""
    if not types:
        return EMPTY_STATS
    if not counts:
        [[unknown]] = row_stats([[unknown_stats(type_) for type_ in types]])
        return unknown
    entry_counts = pa.array(counts.values(), pa.int64())
    stats = []
    for column, type_ in zip(decode_rows(list(counts), types), types, strict=True):
        bounds = column_stats(column, type_, StatsMode("full"))
        null_count = sum(entry_counts.filter(column.is_null()).to_pylist())
        stats.append(replace(bounds, null_counts=(null_count,)))
    [[stored]] = row_stats([stats])
    return stored


# Records to values


def _decode(
    records: Sequence[Record], path: str, convert: Callable[[Record], _Decoded]
) -> list[_Decoded]:
    try:
        return [convert(found) for found in records]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: missing or invalid member ({error!r})") from error


def _entry(entry: Record) -> ManifestEntry:
    found: Record = entry["_FILE"]
    get = found.get
    created = get("_CREATION_TIME")
    if isinstance(created, datetime):  # a writer that omitted the logical type wrote a number
        created = (created - _EPOCH) // _MILLISECOND
    file = DataFileMeta(
        found["_FILE_NAME"],
        found["_FILE_SIZE"],
        found["_ROW_COUNT"],
        found["_MIN_KEY"],
        found["_MAX_KEY"],
        _stats(found["_KEY_STATS"]),
        _stats(found["_VALUE_STATS"]),
        found["_MIN_SEQUENCE_NUMBER"],
        found["_MAX_SEQUENCE_NUMBER"],
        found["_SCHEMA_ID"],
        found["_LEVEL"],
        tuple(get("_EXTRA_FILES") or ()),
        created,
        get("_DELETE_ROW_COUNT"),
        get("_EMBEDDED_FILE_INDEX"),
        get("_FILE_SOURCE"),
        _optional_tuple(get("_VALUE_STATS_COLS")),
        get("_EXTERNAL_PATH"),
        get("_FIRST_ROW_ID"),
        _optional_tuple(get("_WRITE_COLS")),
    )
    kind, partition = FileKind(entry["_KIND"]), entry["_PARTITION"]
    return ManifestEntry(kind, partition, entry["_BUCKET"], entry["_TOTAL_BUCKETS"], file)


def _manifest(found: Record) -> ManifestFileMeta:
    return ManifestFileMeta(
        file_name=found["_FILE_NAME"],
        file_size=found["_FILE_SIZE"],
        num_added_files=found["_NUM_ADDED_FILES"],
        num_deleted_files=found["_NUM_DELETED_FILES"],
        partition_stats=_stats(found["_PARTITION_STATS"]),
        schema_id=found["_SCHEMA_ID"],
        **{name: found.get(member) for name, member in _LIST_BOUNDS},
    )


def _stats(found: Record) -> SimpleStats:
    return SimpleStats(
        found["_MIN_VALUES"], found["_MAX_VALUES"], _optional_tuple(found.get("_NULL_COUNTS"))
    )


def _optional_tuple(found: list[Any] | None) -> tuple[Any, ...] | None:
    return None if found is None else tuple(found)


# Values to records


def _entry_record(entry: ManifestEntry) -> Record:
    file = entry.file
    stored_file = {
        "_FILE_NAME": file.file_name,
        "_FILE_SIZE": file.file_size,
        "_ROW_COUNT": file.row_count,
        "_MIN_KEY": file.min_key,
        "_MAX_KEY": file.max_key,
        "_KEY_STATS": _stats_record(file.key_stats),
        "_VALUE_STATS": _stats_record(file.value_stats),
        "_MIN_SEQUENCE_NUMBER": file.min_sequence_number,
        "_MAX_SEQUENCE_NUMBER": file.max_sequence_number,
        "_SCHEMA_ID": file.schema_id,
        "_LEVEL": file.level,
        "_EXTRA_FILES": file.extra_files,
        "_CREATION_TIME": file.creation_time,
        "_DELETE_ROW_COUNT": file.delete_row_count,
        "_EMBEDDED_FILE_INDEX": file.embedded_file_index,
        "_FILE_SOURCE": file.file_source,
        "_VALUE_STATS_COLS": _optional_list(file.value_stats_cols),
        "_EXTERNAL_PATH": file.external_path,
        "_FIRST_ROW_ID": file.first_row_id,
        "_WRITE_COLS": _optional_list(file.write_cols),
    }
    return {
        "_KIND": FileKind(entry.kind),
        "_PARTITION": entry.partition,
        "_BUCKET": entry.bucket,
        "_TOTAL_BUCKETS": entry.total_buckets,
        "_FILE": stored_file,
    }


def _list_record(manifest: ManifestFileMeta) -> Record:
    return {
        "_FILE_NAME": manifest.file_name,
        "_FILE_SIZE": manifest.file_size,
        "_NUM_ADDED_FILES": manifest.num_added_files,
        "_NUM_DELETED_FILES": manifest.num_deleted_files,
        "_PARTITION_STATS": _stats_record(manifest.partition_stats),
        "_SCHEMA_ID": manifest.schema_id,
        **{member: getattr(manifest, name) for name, member in _LIST_BOUNDS},
    }


def _stats_record(stats: SimpleStats) -> Record:
    return {
        "_MIN_VALUES": stats.min_values,
        "_MAX_VALUES": stats.max_values,
        "_NULL_COUNTS": _optional_list(stats.null_counts),
    }


def _optional_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# Schemas, as Java writes them


def _stats_type(name: str) -> Record:
    return record(
        name,
        required("_MIN_VALUES", "bytes"),
        required("_MAX_VALUES", "bytes"),
        optional("_NULL_COUNTS", array(["null", "long"])),
    )


_LIST_BOUNDS = (
    ("min_bucket", "_MIN_BUCKET"),
    ("max_bucket", "_MAX_BUCKET"),
    ("min_level", "_MIN_LEVEL"),
    ("max_level", "_MAX_LEVEL"),
    ("min_row_id", "_MIN_ROW_ID"),
    ("max_row_id", "_MAX_ROW_ID"),
)

_MANIFESTS = RecordType.of(
    ENTRY_VERSION,
    required("_FILE_NAME", "string"),
    required("_FILE_SIZE", "long"),
    required("_NUM_ADDED_FILES", "long"),
    required("_NUM_DELETED_FILES", "long"),
    required("_PARTITION_STATS", _stats_type("record__PARTITION_STATS")),
    required("_SCHEMA_ID", "long"),
    optional("_MIN_BUCKET", "int"),
    optional("_MAX_BUCKET", "int"),
    optional("_MIN_LEVEL", "int"),
    optional("_MAX_LEVEL", "int"),
    optional("_MIN_ROW_ID", "long"),
    optional("_MAX_ROW_ID", "long"),
)

_FILE_TYPE = record(
    "record__FILE",
    required("_FILE_NAME", "string"),
    required("_FILE_SIZE", "long"),
    required("_ROW_COUNT", "long"),
    required("_MIN_KEY", "bytes"),
    required("_MAX_KEY", "bytes"),
    required("_KEY_STATS", _stats_type("record__FILE__KEY_STATS")),
    required("_VALUE_STATS", _stats_type("record__FILE__VALUE_STATS")),
    required("_MIN_SEQUENCE_NUMBER", "long"),
    required("_MAX_SEQUENCE_NUMBER", "long"),
    required("_SCHEMA_ID", "long"),
    required("_LEVEL", "int"),
    required("_EXTRA_FILES", array("string")),
    optional("_CREATION_TIME", MILLISECONDS),
    optional("_DELETE_ROW_COUNT", "long"),
    optional("_EMBEDDED_FILE_INDEX", "bytes"),
    optional("_FILE_SOURCE", "int"),
    optional("_VALUE_STATS_COLS", array("string")),
    optional("_EXTERNAL_PATH", "string"),
    optional("_FIRST_ROW_ID", "long"),
    optional("_WRITE_COLS", array("string")),
)

# Some readers expect exactly these members in this order, and no unions.
_ENTRIES = RecordType.of(
    ENTRY_VERSION,
    required("_KIND", "int"),
    required("_PARTITION", "bytes"),
    required("_BUCKET", "int"),
    required("_TOTAL_BUCKETS", "int"),
    required("_FILE", _FILE_TYPE),
)
