"""Manifests of Apache Iceberg tables, and the files that mark rows as dead.

Manifests and manifest lists are Avro files.

Up to version 2 of the format, a file that marks rows of data files as dead, by position, is a
Parquet file with one row for each dead row. From version 3 on, it is a Puffin file with one
deletion vector for each data file.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.errors import DataError
from keytide.format.index_files import PortableVector, Vector

# -- manifests and manifest lists ------------------------------------------------------------------


DATA, DELETES = 0, 1
"""The content of the files in a manifest."""
POSITION_DELETES = 1
EXISTING, ADDED = 0, 1
_DELETED = 2

Entry = dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """A manifest: its path, its metadata in a list, and its entries.

    Entries have the members of the format, such as `sequence_number`, `snapshot_id` and
    `data_file`. `first_row_id` is the id of the first row of the data files that had none when the
    manifest was first listed. None for deletes, and before version 3 of the format.
    """

    path: str
    length: int
    content: int
    sequence_number: int
    snapshot_id: int
    entries: tuple[Entry, ...] = field(repr=False)
    first_row_id: int | None = None

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of its files. Some may have several entries."""
        return frozenset(entry["data_file"]["file_path"] for entry in self.entries)


def with_row_ids(manifest: Manifest, first: int) -> tuple[Manifest, int]:
    """A manifest whose data files have row ids. Those without get ids starting at `first`.

    Also returns the next free id. A manifest that was listed with ids before keeps them.
    """
    if manifest.content != DATA or manifest.first_row_id is not None:
        return manifest, first
    entries, free = _inherited(manifest.entries, first)
    return replace(manifest, entries=entries, first_row_id=first), free


def _inherited(entries: Iterable[Entry], first: int) -> tuple[tuple[Entry, ...], int]:
    """The entries with ids for those that had none, in order, and the next id."""
    found = []
    for entry in entries:
        file = entry["data_file"]
        if file.get("first_row_id") is None:
            entry = {**entry, "data_file": {**file, "first_row_id": first}}
            first += file["record_count"]
        found.append(entry)
    return tuple(found), first


def encode_entries(
    entries: Iterable[Entry], content: int, schema: Mapping[str, Any], format_version: int
) -> bytes:
    """A manifest with these entries. `schema` is that of the table."""
    metadata = {
        "schema": json.dumps(schema),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": str(format_version),
        "content": "deletes" if content == DELETES else "data",
    }
    return _encoded(_ENTRIES[format_version], entries, metadata)


def decode_entries(
    data: bytes, number: int, first_row_id: int | None, path: str
) -> tuple[Entry, ...]:
    """The entries of a manifest, with the values that they inherit from the manifest list.

    These are the sequence `number` and the first row id. Raises `DataError`.
    """
    found = []
    for entry in decode_list(data, path):
        if entry["status"] == _DELETED:
            continue
        inherited = {"sequence_number": number, "file_sequence_number": number}
        entry |= {name: value for name, value in inherited.items() if entry.get(name) is None}
        found.append(entry)
    return tuple(found) if first_row_id is None else _inherited(found, first_row_id)[0]


def encode_list(manifests: Iterable[Manifest], snapshot_id: int, format_version: int) -> bytes:
    """The manifest list of a snapshot."""
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null",
        "sequence-number": str(snapshot_id),
        "format-version": str(format_version),
    }
    return _encoded(_LISTS[format_version], map(_listed, manifests), metadata)


def decode_list(data: bytes, path: str) -> list[Entry]:
    """The metadata of the manifests in a list, or of the files in a manifest.

    Raises `DataError`.
    """
    try:
        return [dict(each) for each in fastavro.reader(io.BytesIO(data))]
    except Exception as error:  # fastavro may raise anything
        raise DataError(f"{path}: not a complete Iceberg metadata file ({error})") from error


def _listed(manifest: Manifest) -> Entry:
    added, existing = (
        [e for e in manifest.entries if (e["status"] == ADDED) is is_added]
        for is_added in (True, False)
    )
    return {
        "manifest_path": manifest.path,
        "manifest_length": manifest.length,
        "partition_spec_id": 0,
        "content": manifest.content,
        "sequence_number": manifest.sequence_number,
        "min_sequence_number": min((e["sequence_number"] for e in manifest.entries), default=0),
        "added_snapshot_id": manifest.snapshot_id,
        "added_files_count": len(added),
        "existing_files_count": len(existing),
        "deleted_files_count": 0,
        "added_rows_count": sum(e["data_file"]["record_count"] for e in added),
        "existing_rows_count": sum(e["data_file"]["record_count"] for e in existing),
        "deleted_rows_count": 0,
        "partitions": [],
        "first_row_id": manifest.first_row_id,
    }


def _encoded(schema: Any, records: Iterable[Entry], metadata: Mapping[str, str]) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, schema, records, codec="deflate", metadata=metadata)
    return sink.getvalue()


# -- records of the format -------------------------------------------------------------------------


def _member(name: str, field_id: int, type_: Any) -> Entry:
    return {"name": name, "type": type_, "field-id": field_id}


def _optional(name: str, field_id: int, type_: Any) -> Entry:
    return {**_member(name, field_id, ["null", type_]), "default": None}


def _by_column(name: str, field_id: int, key_id: int, value_id: int, type_: str) -> Entry:
    """A map by column ids, which Avro stores as an array of pairs."""
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_member("key", key_id, "int"), _member("value", value_id, type_)],
    }
    return _optional(name, field_id, {"type": "array", "items": pair, "logicalType": "map"})


_DATA_FILE_FIELDS = [
    _member("content", 134, "int"),
    _member("file_path", 100, "string"),
    _member("file_format", 101, "string"),
    _member("partition", 102, {"type": "record", "name": "r102", "fields": []}),
    _member("record_count", 103, "long"),
    _member("file_size_in_bytes", 104, "long"),
    _by_column("null_value_counts", 110, 121, 122, "long"),
    _by_column("lower_bounds", 125, 126, 127, "bytes"),
    _by_column("upper_bounds", 128, 129, 130, "bytes"),
]
_DATA_FILE_FIELDS_OF_3 = [
    _optional("first_row_id", 142, "long"),
    _optional("referenced_data_file", 143, "string"),
    _optional("content_offset", 144, "long"),
    _optional("content_size_in_bytes", 145, "long"),
]


def _entry(data_file: list[Entry]) -> Any:
    return fastavro.parse_schema(
        {
            "type": "record",
            "name": "manifest_entry",
            "fields": [
                _member("status", 0, "int"),
                _optional("snapshot_id", 1, "long"),
                _optional("sequence_number", 3, "long"),
                _optional("file_sequence_number", 4, "long"),
                _member("data_file", 2, {"type": "record", "name": "r2", "fields": data_file}),
            ],
        }
    )


_ENTRIES = {2: _entry(_DATA_FILE_FIELDS), 3: _entry([*_DATA_FILE_FIELDS, *_DATA_FILE_FIELDS_OF_3])}
"""The entry type of a manifest, by format version."""
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
_LISTED_FIELDS = [
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
]


def _list(fields: list[Entry]) -> Any:
    return fastavro.parse_schema({"type": "record", "name": "manifest_file", "fields": fields})


_LISTS = {
    2: _list(_LISTED_FIELDS),
    3: _list([*_LISTED_FIELDS, _optional("first_row_id", 520, "long")]),
}
"""The entry type of a manifest list, by format version."""


# -- files that mark dead rows ---------------------------------------------------------------------


_FILE_PATH_ID, _POS_ID = 2147483546, 2147483545
_PUFFIN = b"PFA1"
_IS_PLAIN = bytes(4)


@dataclass(frozen=True)
class DeleteFile:
    """One file: its bytes, and the `data_file` of each manifest entry for it."""

    data: bytes
    entries: list[Entry]


def position_deletes(uri: str, vectors: Mapping[str, Vector]) -> DeleteFile:
    """The version-2 file at `uri` with the dead rows of data files, by their full paths.

    Rows are ordered by path, then by position.
    """
    paths = sorted(vectors)
    counts = [len(vectors[path]) for path in paths]
    places = [np.asarray(vectors[path].to_array()).astype(np.int64) for path in paths]
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(len(paths), dtype=np.int32), counts)), pa.array(paths)
    )
    rows = pa.Table.from_arrays(
        [names.cast(pa.string()), pa.array(np.concatenate(places))], schema=_ROWS
    )
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd", column_encoding={"pos": "DELTA_BINARY_PACKED"},
                   use_dictionary=["file_path"])  # fmt: skip
    data = sink.getvalue()
    return DeleteFile(
        data, [_delete_entry(uri, "PARQUET", len(data), rows.num_rows, paths[0], paths[-1])]
    )


def vectors_of_deletes(uri: str, vectors: Mapping[str, Vector]) -> DeleteFile:
    """The version-3 file at `uri` with the vectors of data files, by their full paths."""
    chunks, blobs, cardinalities, end = [_PUFFIN], [], [], len(_PUFFIN)
    for path in sorted(vectors):
        vector = PortableVector.of(vectors[path])
        chunk = vector.framed()
        blob = {
            "type": "deletion-vector-v1",
            "fields": [_POS_ID],
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": end,
            "length": len(chunk),
            "properties": {"referenced-data-file": path, "cardinality": str(vector.cardinality)},
        }
        chunks.append(chunk)
        blobs.append(blob)
        cardinalities.append(vector.cardinality)
        end += len(chunk)
    description = {"blobs": blobs, "properties": {"created-by": "Keytide"}}
    footer = json.dumps(description, separators=(",", ":"), ensure_ascii=False).encode()
    chunks += [_PUFFIN, footer, struct.pack("<i", len(footer)), _IS_PLAIN, _PUFFIN]
    data = b"".join(chunks)
    entries = [
        {
            **_delete_entry(uri, "PUFFIN", len(data), cardinality, path, path),
            "referenced_data_file": path,
            "content_offset": blob["offset"],
            "content_size_in_bytes": blob["length"],
        }
        for path, cardinality, blob in zip(sorted(vectors), cardinalities, blobs, strict=True)
    ]
    return DeleteFile(data, entries)


def _delete_entry(uri: str, form: str, size: int, rows: int, first: str, last: str) -> Entry:
    """The metadata of a file. Some readers skip files by the bounds of the paths in them."""
    return {
        "content": POSITION_DELETES,
        "file_path": uri,
        "file_format": form,
        "partition": {},
        "record_count": rows,
        "file_size_in_bytes": size,
        "lower_bounds": [{"key": _FILE_PATH_ID, "value": first.encode()}],
        "upper_bounds": [{"key": _FILE_PATH_ID, "value": last.encode()}],
    }


def _field(name: str, type_: pa.DataType, field_id: int) -> pa.Field:
    metadata = {b"PARQUET:field_id": str(field_id).encode()}
    return pa.field(name, type_, nullable=False, metadata=metadata)


_ROWS = pa.schema(
    [_field("file_path", pa.string(), _FILE_PATH_ID), _field("pos", pa.int64(), _POS_ID)]
)
