"""Manifests of Apache Iceberg and lists of them, as Avro."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro

from keytide.errors import DataError

__all__ = [
    "ADDED",
    "DATA",
    "DELETES",
    "EXISTING",
    "POSITION_DELETES",
    "Entry",
    "Manifest",
    "decode_entries",
    "decode_list",
    "encode_entries",
    "encode_list",
]

DATA, DELETES = 0, 1
"""What the files of a manifest hold."""
POSITION_DELETES = 1
EXISTING, ADDED = 0, 1
_DELETED = 2

Entry = dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """A manifest: where it lies, what a list says of it, and its files by their paths.

    An entry is what the format has: `sequence_number`, `snapshot_id` and `data_file` among others.
    """

    path: str
    length: int
    content: int
    sequence_number: int
    snapshot_id: int
    entries: Mapping[str, Entry] = field(repr=False)

    @property
    def least_sequence_number(self) -> int:
        """The lowest number of its files."""
        return min((e["sequence_number"] for e in self.entries.values()), default=0)


def encode_entries(entries: Iterable[Entry], content: int, schema: Mapping[str, Any]) -> bytes:
    """A manifest with these entries. `schema` is that of the table."""
    told = {
        "schema": json.dumps(schema),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": "2",
        "content": "deletes" if content == DELETES else "data",
    }
    return _encoded(_ENTRY, entries, told)


def decode_entries(data: bytes, number: int, path: str) -> dict[str, Entry]:
    """The files of a manifest; `number` is its sequence number. Raises `DataError`."""
    found = {}
    for entry in _decoded(data, path):
        if entry["status"] == _DELETED:
            continue
        inherited = {"sequence_number": number, "file_sequence_number": number}
        entry |= {name: value for name, value in inherited.items() if entry.get(name) is None}
        found[entry["data_file"]["file_path"]] = entry
    return found


def encode_list(manifests: Iterable[Manifest], snapshot_id: int) -> bytes:
    """A list of manifests, as a snapshot has it."""
    told = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null",
        "sequence-number": str(snapshot_id),
        "format-version": "2",
    }
    return _encoded(_LISTED, map(_listed, manifests), told)


def decode_list(data: bytes, path: str) -> list[Entry]:
    """What a list says of its manifests. Raises `DataError`."""
    return _decoded(data, path)


def _listed(manifest: Manifest) -> Entry:
    added, existing = (
        [e for e in manifest.entries.values() if (e["status"] == ADDED) is is_added]
        for is_added in (True, False)
    )
    return {
        "manifest_path": manifest.path,
        "manifest_length": manifest.length,
        "partition_spec_id": 0,
        "content": manifest.content,
        "sequence_number": manifest.sequence_number,
        "min_sequence_number": manifest.least_sequence_number,
        "added_snapshot_id": manifest.snapshot_id,
        "added_files_count": len(added),
        "existing_files_count": len(existing),
        "deleted_files_count": 0,
        "added_rows_count": sum(e["data_file"]["record_count"] for e in added),
        "existing_rows_count": sum(e["data_file"]["record_count"] for e in existing),
        "deleted_rows_count": 0,
        "partitions": [],
    }


def _encoded(schema: Any, records: Iterable[Entry], told: Mapping[str, str]) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, schema, records, codec="deflate", metadata=told)
    return sink.getvalue()


def _decoded(data: bytes, path: str) -> list[Entry]:
    try:
        return [dict(each) for each in fastavro.reader(io.BytesIO(data))]
    except Exception as error:  # fastavro raises whatever comes up
        raise DataError(f"{path}: not a whole file of Iceberg's metadata ({error})") from error


# -- the records of the format ---------------------------------------------------------------------


def _member(name: str, field_id: int, type_: Any) -> Entry:
    return {"name": name, "type": type_, "field-id": field_id}


def _optional(name: str, field_id: int, type_: Any) -> Entry:
    return {**_member(name, field_id, ["null", type_]), "default": None}


def _by_column(name: str, field_id: int, key_id: int, value_id: int, type_: str) -> Entry:
    """A map by ids of columns, which Avro has as an array of pairs."""
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_member("key", key_id, "int"), _member("value", value_id, type_)],
    }
    return _optional(name, field_id, {"type": "array", "items": pair, "logicalType": "map"})


_DATA_FILE = {
    "type": "record",
    "name": "r2",
    "fields": [
        _member("content", 134, "int"),
        _member("file_path", 100, "string"),
        _member("file_format", 101, "string"),
        _member("partition", 102, {"type": "record", "name": "r102", "fields": []}),
        _member("record_count", 103, "long"),
        _member("file_size_in_bytes", 104, "long"),
        _by_column("null_value_counts", 110, 121, 122, "long"),
        _by_column("lower_bounds", 125, 126, 127, "bytes"),
        _by_column("upper_bounds", 128, 129, 130, "bytes"),
    ],
}
_ENTRY = fastavro.parse_schema(
    {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _member("status", 0, "int"),
            _optional("snapshot_id", 1, "long"),
            _optional("sequence_number", 3, "long"),
            _optional("file_sequence_number", 4, "long"),
            _member("data_file", 2, _DATA_FILE),
        ],
    }
)
_PARTITIONS = {
    "type": "array",
    "element-id": 508,
    "items": {
        "type": "record",
        "name": "r508",
        "fields": [
            _member("contains_null", 509, "boolean"),
            _optional("contains_nan", 518, "boolean"),
            _optional("lower_bound", 510, "bytes"),
            _optional("upper_bound", 511, "bytes"),
        ],
    },
}
_LISTED = fastavro.parse_schema(
    {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            _member("manifest_path", 500, "string"),
            _member("manifest_length", 501, "long"),
            _member("partition_spec_id", 502, "int"),
            _member("content", 517, "int"),
            _member("sequence_number", 515, "long"),
            _member("min_sequence_number", 516, "long"),
            _member("added_snapshot_id", 503, "long"),
            _member("added_files_count", 504, "int"),
            _member("existing_files_count", 505, "int"),
            _member("deleted_files_count", 506, "int"),
            _member("added_rows_count", 512, "long"),
            _member("existing_rows_count", 513, "long"),
            _member("deleted_rows_count", 514, "long"),
            _optional("partitions", 507, _PARTITIONS),
        ],
    }
)
