"""Files that mark rows of data files as dead, by position.

Up to version 2 of the format, such a file is a Parquet file with one row for each dead row. From
version 3 on, it is a Puffin file with one deletion vector for each data file.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keytide.format.deletion_vector import Vector
from keytide.format.iceberg.manifest import POSITION_DELETES, Entry
from keytide.format.portable_vector import PortableVector

__all__ = ["DeleteFile", "position_deletes", "vectors_of_deletes"]

_FILE_PATH_ID, _POS_ID = 2147483546, 2147483545
_PUFFIN = b"PFA1"
_IS_PLAIN = bytes(4)


@dataclass(frozen=True)
class DeleteFile:
    """One file: its bytes, and the `data_file` of each manifest entry for it."""

    data: bytes
    told: list[Entry]


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
    return DeleteFile(data, [_told(uri, "PARQUET", len(data), rows.num_rows, paths[0], paths[-1])])


def vectors_of_deletes(uri: str, vectors: Mapping[str, Vector]) -> DeleteFile:
    """The version-3 file at `uri` with the vectors of data files, by their full paths."""
    paths, blobs, end = sorted(vectors), [], len(_PUFFIN)
    chunks, offsets, encoded = [_PUFFIN], [], []
    for path in paths:
        encoded.append(PortableVector.of(vectors[path]))
        chunks.append(encoded[-1].framed())
        offsets.append(end)
        end += len(chunks[-1])
        blobs.append(_blob(path, encoded[-1].cardinality, offsets[-1], len(chunks[-1])))
    data = b"".join([*chunks, _footer(blobs)])
    told = [
        {
            **_told(uri, "PUFFIN", len(data), vector.cardinality, path, path),
            "referenced_data_file": path,
            "content_offset": blob["offset"],
            "content_size_in_bytes": blob["length"],
        }
        for path, vector, blob in zip(paths, encoded, blobs, strict=True)
    ]
    return DeleteFile(data, told)


def _told(uri: str, form: str, size: int, rows: int, first: str, last: str) -> Entry:
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


def _blob(path: str, cardinality: int, offset: int, length: int) -> dict[str, Any]:
    return {
        "type": "deletion-vector-v1",
        "fields": [_POS_ID],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": offset,
        "length": length,
        "properties": {"referenced-data-file": path, "cardinality": str(cardinality)},
    }


def _footer(blobs: list[dict[str, Any]]) -> bytes:
    told = {"blobs": blobs, "properties": {"created-by": "Keytide"}}
    payload = json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()
    return _PUFFIN + payload + struct.pack("<i", len(payload)) + _IS_PLAIN + _PUFFIN


def _field(name: str, type_: pa.DataType, field_id: int) -> pa.Field:
    told = {b"PARQUET:field_id": str(field_id).encode()}
    return pa.field(name, type_, nullable=False, metadata=told)


_ROWS = pa.schema(
    [_field("file_path", pa.string(), _FILE_PATH_ID), _field("pos", pa.int64(), _POS_ID)]
)
