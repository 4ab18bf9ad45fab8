"""The metadata files of an Apache Iceberg table: one for each version, and their names.

A version has one snapshot, whose id is the number of the version. Its properties contain the files
that it no longer references, but the previous version did, so that they can be deleted when nobody
reads them any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keytide.base.lazily import cached_property
from keytide.errors import DataError
from keytide.format.iceberg.columns import column_ids
from keytide.format.iceberg.manifest import DATA, DELETES, Manifest
from keytide.format.schema import KEY_FIELD_ID_START

__all__ = [
    "FIRST_WITH_ROW_IDS",
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
"""The file that says which version is the latest."""
FIRST_WITH_ROW_IDS = 3
"""The first format version with row ids and deletion vectors."""

_NAME = re.compile(r"v([0-9]{1,18})\.metadata\.json")
_SNAPSHOT, _COMMIT = "keytide.snapshot-id", "keytide.commit"
_SCHEMA, _DROPPED = "keytide.schema-id", "keytide.dropped"
_LAST_PARTITION_ID = 999


def metadata_path(version: int) -> str:
    """The file of a version. Creating it creates the version."""
    return f"{METADATA_DIR}/v{version}.metadata.json"


def parse_metadata_name(name: str) -> int | None:
    """The version in the name of a metadata file."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


@dataclass(frozen=True)
class IcebergState:
    """One version: the table that it belongs to, its columns, and its files.

    `row_ids` are the ids that it assigns first, starting where the previous version ended. Format
    versions before 3 have none.
    """

    version: int
    format_version: int
    table_id: str
    schema: Mapping[str, Any]
    location: str
    manifest_list: str
    row_ids: range
    manifests: tuple[Manifest, ...] = field(repr=False)
    snapshot_id: int | None = None
    """The snapshot that it shows. None if Keytide did not record it."""
    commit: int | None = None
    """The number of its commit, which no other snapshot with this id has."""
    options_id: int = 0
    """The table schema whose options it was created with.

    Its columns may be those of an older one.
    """

    def paths(self, content: int) -> frozenset[str]:
        """The paths of data files, or of delete files."""
        manifests = (each for each in self.manifests if each.content == content)
        return frozenset(path for manifest in manifests for path in manifest.paths)

    @cached_property
    def by_name(self) -> Mapping[str, str]:
        """The paths of data files by their names."""
        return {path.rpartition("/")[2]: path for path in self.paths(DATA)}

    @cached_property
    def deletes(self) -> frozenset[str]:
        """The paths of the files that mark rows as dead."""
        return self.paths(DELETES)


def metadata_document(state: IcebergState, now_ms: int, dropped: Sequence[str]) -> bytes:
    """The metadata file of a version that `dropped` these files."""
    number = state.version
    snapshot: dict[str, Any] = {
        "snapshot-id": number,
        "sequence-number": number,
        "timestamp-ms": now_ms,
        "manifest-list": state.manifest_list,
        "schema-id": state.schema["schema-id"],
        "summary": {"operation": "overwrite", _SNAPSHOT: str(state.snapshot_id)},
    }
    document = {
        "format-version": state.format_version,
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
        "properties": {
            _SNAPSHOT: str(state.snapshot_id),
            _COMMIT: str(state.commit),
            _SCHEMA: str(state.options_id),
            _DROPPED: ",".join(dropped),
        },
        "current-snapshot-id": number,
        "refs": {"main": {"snapshot-id": number, "type": "branch"}},
        "snapshots": [snapshot],
        "snapshot-log": [{"snapshot-id": number, "timestamp-ms": now_ms}],
        "metadata-log": [],
    }
    if state.format_version >= FIRST_WITH_ROW_IDS:
        snapshot |= {"first-row-id": state.row_ids.start, "added-rows": len(state.row_ids)}
        document["next-row-id"] = state.row_ids.stop
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _highest_id_in_files(schema: Mapping[str, Any]) -> int:
    """At least the highest id of a column in files. Some readers refuse a file with a higher id.

    In addition to the table's own columns, these are copies of its key. Their ids are above all
    others except those of the format's own columns, which Iceberg also reserves.
    """
    own = [field["id"] for field in schema["fields"]]
    return int(max(*column_ids(dict(schema)), KEY_FIELD_ID_START + max(own)))


def decode_metadata(data: bytes, version: int, path: str) -> tuple[IcebergState, dict[str, Any]]:
    """A version without its manifests, and its document. Raises `DataError`, which names `path`."""
    try:
        document = json.loads(data)
        snapshots = {each["snapshot-id"]: each for each in document["snapshots"]}
        shown = snapshots[document["current-snapshot-id"]]
        next_row_id = int(document.get("next-row-id", 0))
        schemas = {each["schema-id"]: each for each in document["schemas"]}
        told, commit = map(document["properties"].get, (_SNAPSHOT, _COMMIT))
        state = IcebergState(
            version,
            int(document["format-version"]),
            document["table-uuid"],
            schemas[document["current-schema-id"]],
            document["location"],
            shown["manifest-list"],
            range(int(shown.get("first-row-id", next_row_id)), next_row_id),
            (),
            None if told is None else int(told),
            None if commit is None else int(commit),
            int(document["properties"].get(_SCHEMA, 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: not a complete Iceberg metadata file ({error!r})") from error
    return state, document


def dropped_names(document: Mapping[str, Any]) -> list[str]:
    """The names of files in `METADATA_DIR` that a version dropped."""
    text = str(document.get("properties", {}).get(_DROPPED, ""))
    return [name for name in text.split(",") if name]
