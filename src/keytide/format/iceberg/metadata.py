"""The metadata files of an Apache Iceberg table: one for each version, and their names.

A version has one snapshot, whose id is the version's number. What it dropped, of what the version
before it named, is among its properties, so that it can be deleted when nobody reads it any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keytide.errors import DataError
from keytide.format.iceberg.columns import column_ids
from keytide.format.iceberg.manifest import DATA, DELETES, Entry, Manifest
from keytide.format.schema import KEY_FIELD_ID_START
from keytide.lazily import cached_property

__all__ = [
    "METADATA_DIR",
    "VERSION_HINT",
    "IcebergState",
    "decode_metadata",
    "dropped_names",
    "metadata_document",
    "metadata_path",
    "parse_metadata_name",
]

METADATA_DIR = "metadata"
VERSION_HINT = f"{METADATA_DIR}/version-hint.text"
"""The file that says which version is the newest."""

_NAME = re.compile(r"v([0-9]{1,18})\.metadata\.json")
_SNAPSHOT, _DROPPED = "keytide.snapshot-id", "keytide.dropped"
_LAST_PARTITION_ID = 999


def metadata_path(version: int) -> str:
    """The file of a version; creating it makes the version."""
    return f"{METADATA_DIR}/v{version}.metadata.json"


def parse_metadata_name(name: str) -> int | None:
    """The version of a metadata file's name."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


@dataclass(frozen=True)
class IcebergState:
    """One version: what it is of, its columns, and its files."""

    version: int
    table_id: str
    schema: Mapping[str, Any]
    location: str
    manifest_list: str
    manifests: tuple[Manifest, ...] = field(repr=False)
    snapshot_id: int | None = None
    """The snapshot that it shows, None where Keytide did not say so."""

    def files(self, content: int) -> dict[str, Entry]:
        """The entries of data files, or of files with deletes, by their paths."""
        return {
            path: entry
            for manifest in self.manifests
            if manifest.content == content
            for path, entry in manifest.entries.items()
        }

    @cached_property
    def by_name(self) -> Mapping[str, str]:
        """The paths of data files by their names."""
        return {path.rpartition("/")[2]: path for path in self.files(DATA)}

    @cached_property
    def deletes(self) -> dict[str, Entry]:
        """The files that say which of their rows are dead."""
        return self.files(DELETES)


def metadata_document(state: IcebergState, now_ms: int, dropped: Sequence[str]) -> bytes:
    """The metadata file of a version that `dropped` these files."""
    number = state.version
    snapshot = {
        "snapshot-id": number,
        "sequence-number": number,
        "timestamp-ms": now_ms,
        "manifest-list": state.manifest_list,
        "schema-id": state.schema["schema-id"],
        "summary": {"operation": "overwrite", _SNAPSHOT: str(state.snapshot_id)},
    }
    document = {
        "format-version": 2,
        "table-uuid": state.table_id,
        "location": state.location,
        "last-sequence-number": number,
        "last-updated-ms": now_ms,
        "last-column-id": _highest_id_in_files(state.schema),
        "current-schema-id": state.schema["schema-id"],
        "schemas": [state.schema],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": _LAST_PARTITION_ID,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {_SNAPSHOT: str(state.snapshot_id), _DROPPED: ",".join(dropped)},
        "current-snapshot-id": number,
        "refs": {"main": {"snapshot-id": number, "type": "branch"}},
        "snapshots": [snapshot],
        "snapshot-log": [{"snapshot-id": number, "timestamp-ms": now_ms}],
        "metadata-log": [],
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _highest_id_in_files(schema: Mapping[str, Any]) -> int:
    """At least that of every column that files have; some readers refuse a file with a higher one.

    Beside the table's own these are copies of its key, which have ids above all others but those
    of the format's own columns, which Iceberg sets apart too.
    """
    own = [field["id"] for field in schema["fields"]]
    return int(max(*column_ids(dict(schema)), KEY_FIELD_ID_START + max(own)))


def decode_metadata(data: bytes, version: int, path: str) -> tuple[IcebergState, dict[str, Any]]:
    """A version without its manifests, and its document. Raises `DataError`, naming `path`."""
    try:
        document = json.loads(data)
        snapshots = {each["snapshot-id"]: each for each in document["snapshots"]}
        schemas = {each["schema-id"]: each for each in document["schemas"]}
        told = document["properties"].get(_SNAPSHOT)
        state = IcebergState(
            version,
            document["table-uuid"],
            schemas[document["current-schema-id"]],
            document["location"],
            snapshots[document["current-snapshot-id"]]["manifest-list"],
            (),
            None if told is None else int(told),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: not a whole metadata file of Iceberg ({error!r})") from error
    return state, document


def dropped_names(document: Mapping[str, Any]) -> list[str]:
    """The names of files in `METADATA_DIR` that a version dropped."""
    text = str(document.get("properties", {}).get(_DROPPED, ""))
    return [name for name in text.split(",") if name]
