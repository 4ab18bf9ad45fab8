"""Delta tables for tests: written by the library, and by hand what it cannot write."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyroaring import BitMap64

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = str.maketrans(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~", _Z85
)


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def actions(table: Path, version: int) -> list[dict[str, Any]]:
    text = (table / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def field(name: str, type_: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": True, "metadata": metadata}


def metadata(*fields: dict[str, Any], **configuration: str) -> dict[str, Any]:
    schema = json.dumps({"type": "struct", "fields": fields})
    told = {"id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": schema,
            "partitionColumns": [], "configuration": configuration, "createdTime": 1}  # fmt: skip
    return {"metaData": told}


def protocol(reader: int, writer: int, *features: str) -> dict[str, Any]:
    told: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    if features:
        told |= {"readerFeatures": features, "writerFeatures": features}
    return {"protocol": told}


def add(path: Path, rows: int, **more: Any) -> dict[str, Any]:
    return {
        "add": {
            "path": path.name, "partitionValues": {}, "size": path.stat().st_size,
            "modificationTime": 1, "dataChange": True, "stats": json.dumps({"numRecords": rows}),
            **more,
        }
    }  # fmt: skip


def delete_by_vector(table: Path, path: str, positions: Iterable[int], *, inline: bool) -> None:
    """Let rows of a file be dead, in a version of its own; a vector has all rows that are dead."""
    last = max(int(p.stem) for p in (table / "_delta_log").glob("*.json") if p.stem.isdecimal())
    told = [a for v in range(last + 1) for a in actions(table, v)]
    found = [a["add"] for a in told if "add" in a and a["add"]["path"] == path][-1]
    kept = {name: value for name, value in found.items() if value is not None}
    removed = {"path": path, "deletionTimestamp": 1, "dataChange": True}
    if "deletionVector" in kept:
        removed["deletionVector"] = kept["deletionVector"]
    dead = sorted(positions)
    blob = struct.pack("<I", 1681511377) + BitMap64(dead).serialize()
    kept["deletionVector"] = (_inline if inline else _beside)(table, blob, len(dead))
    commit(
        table,
        last + 1,
        {"commitInfo": {"operation": "UPDATE"}},
        protocol(3, 7, "deletionVectors"),
        {"remove": removed},
        {"add": kept},
    )


def data_file(table: Path, path: str) -> Path:
    return table / unquote(path)


def _inline(table: Path, blob: bytes, rows: int) -> dict[str, Any]:
    padded = blob + b"\0" * (-len(blob) % 4)
    return {"storageType": "i", "pathOrInlineDv": _z85(padded), "sizeInBytes": len(blob),
            "cardinality": rows}  # fmt: skip


def _beside(table: Path, blob: bytes, rows: int) -> dict[str, Any]:
    name = uuid.uuid4()
    framed = b"\x01" + struct.pack(">I", len(blob)) + blob + struct.pack(">I", zlib.crc32(blob))
    (table / f"deletion_vector_{name}.bin").write_bytes(framed)
    return {"storageType": "u", "pathOrInlineDv": _z85(name.bytes), "offset": 1,
            "sizeInBytes": len(blob), "cardinality": rows}  # fmt: skip


def _z85(data: bytes) -> str:
    import base64

    return base64.b85encode(data).decode().translate(_DIGITS)
