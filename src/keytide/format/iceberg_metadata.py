"""Metadata of Apache Iceberg tables: versions, columns and bounds.

There is one metadata file for each version. A version has one snapshot, whose id is the number of
the version. Its properties contain the files that it no longer references, but the previous version
did, so that they can be deleted when nobody reads them any more.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from keytide.base.dataclass import dataclass, field
from keytide.base.process import cached_property
from keytide.errors import DataError
from keytide.format.iceberg_manifest import DATA, DELETES, Manifest
from keytide.format.schema import KEY_FIELD_ID_START
from keytide.types import ArrayType, AtomicType, DataType, Field, MapType, MultisetType, RowType

# -- columns ---------------------------------------------------------------------------------------


_NAMES = {
    "BOOLEAN": "boolean", "TINYINT": "int", "SMALLINT": "int", "INT": "int", "BIGINT": "long",
    "FLOAT": "float", "DOUBLE": "double", "CHAR": "string", "VARCHAR": "string",
    "BINARY": "binary", "VARBINARY": "binary", "DATE": "date", "TIMESTAMP": "timestamp",
    "TIMESTAMP_LTZ": "timestamptz",
}  # fmt: skip
# Finer timestamps are stored as INT96.
_TIME_PRECISION_MAX = 6
_NESTED_ID = 536_870_911


def why_no_column(field: Field) -> str | None:
    """Why Apache Iceberg does not support the column. None if it does."""
    return _why_no_type(field.type)


def _why_no_type(type_: DataType) -> str | None:
    if isinstance(type_, RowType):
        return next((why for member in type_.fields if (why := _why_no_type(member.type))), None)
    if isinstance(type_, MapType):
        return _why_no_type(type_.key) or _why_no_type(type_.value)
    if isinstance(type_, ArrayType | MultisetType):
        return _why_no_type(type_.element)
    if isinstance(type_, AtomicType):
        if type_.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
            is_fine = (type_.precision or 0) > _TIME_PRECISION_MAX
            ends = "its times have at most microseconds"
            return f"Apache Iceberg does not support {type_.sql()}: {ends}" if is_fine else None
        if type_.root in _NAMES or type_.root == "DECIMAL":
            return None
    # Iceberg has TIME in microseconds, but the files have it in milliseconds.
    return f"Apache Iceberg does not support {type_.sql()} as it is stored"


def is_promoted(old: DataType, new: DataType) -> bool:
    """Whether readers accept values of the old type as values of the new one."""
    if not isinstance(old, AtomicType) or not isinstance(new, AtomicType):
        return old.with_nullable(True) == new.with_nullable(True)
    if "DECIMAL" in (old.root, new.root):
        grows = (old.precision or 0) <= (new.precision or 0)
        return old.root == new.root and old.scale == new.scale and grows
    one, other = _NAMES.get(old.root), _NAMES.get(new.root)
    return one == other or (one, other) in (("int", "long"), ("float", "double"))


def schema_json(fields: Iterable[Field], schema_id: int) -> dict[str, Any]:
    """The columns in the form of metadata. REQUIRES: Apache Iceberg supports the columns."""
    return {"schema-id": schema_id, **_struct(fields)}


def column_ids(schema: dict[str, Any]) -> Iterator[int]:
    """All ids in a schema, or in a type."""
    for name, value in schema.items():
        if name == "id" or (name.endswith("-id") and name != "schema-id"):
            yield value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from column_ids(each)


def _struct(fields: Iterable[Field]) -> dict[str, Any]:
    # Older files may lack a column that is NOT NULL now, so no column is required.
    return {
        "type": "struct",
        "fields": [
            {
                "id": field.id,
                "name": field.name,
                "required": False,
                "type": _type(field.type, field.id, 1),
                **({} if field.description is None else {"doc": field.description}),
            }
            for field in fields
        ],
    }


def _type(type_: DataType, field_id: int, depth: int) -> Any:
    node = 1024 * field_id + depth
    if isinstance(type_, ArrayType):
        return {
            "type": "list",
            "element-id": _NESTED_ID + node,
            "element-required": False,
            "element": _type(type_.element, field_id, depth + 1),
        }
    if isinstance(type_, MapType | MultisetType):
        key = type_.key if isinstance(type_, MapType) else type_.element
        value = type_.value if isinstance(type_, MapType) else None
        return {
            "type": "map",
            "key-id": _NESTED_ID - node,
            "key": _type(key, field_id, depth + 1),
            "value-id": _NESTED_ID + node,
            "value-required": False,
            "value": "int" if value is None else _type(value, field_id, depth + 1),
        }
    if isinstance(type_, RowType):
        return _struct(type_.fields)
    assert isinstance(type_, AtomicType)
    if type_.root == "DECIMAL":
        return f"decimal({type_.precision}, {type_.scale})"
    return _NAMES[type_.root]


# -- metadata files --------------------------------------------------------------------------------


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
    # Some readers refuse a file with a column id above the "last-column-id". Files also have copies
    # of the key, whose ids are above all others except those of the format's own columns, which
    # Iceberg reserves too.
    copies = KEY_FIELD_ID_START + max(field["id"] for field in state.schema["fields"])
    document = {
        "format-version": state.format_version,
        "table-uuid": state.table_id,
        "location": state.location,
        "last-sequence-number": number,
        "last-updated-ms": now_ms,
        "last-column-id": int(max(*column_ids(dict(state.schema)), copies)),
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


def decode_metadata(data: bytes, version: int, path: str) -> tuple[IcebergState, dict[str, Any]]:
    """A version without its manifests, and its document. Raises `DataError`, which names `path`."""
    try:
        document = json.loads(data)
        snapshots = {each["snapshot-id"]: each for each in document["snapshots"]}
        shown = snapshots[document["current-snapshot-id"]]
        next_row_id = int(document.get("next-row-id", 0))
        schemas = {each["schema-id"]: each for each in document["schemas"]}
        snapshot_text, commit = map(document["properties"].get, (_SNAPSHOT, _COMMIT))
        state = IcebergState(
            version,
            int(document["format-version"]),
            document["table-uuid"],
            schemas[document["current-schema-id"]],
            document["location"],
            shown["manifest-list"],
            range(int(shown.get("first-row-id", next_row_id)), next_row_id),
            (),
            None if snapshot_text is None else int(snapshot_text),
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


# -- bounds of columns -----------------------------------------------------------------------------


_INTEGERS = {"TINYINT": "<i", "SMALLINT": "<i", "INT": "<i", "BIGINT": "<q"}
_EPOCH = date(1970, 1, 1)


def has_bounds(type_: DataType) -> bool:
    """Whether bounds of such columns are stored."""
    texts_and_days = ("CHAR", "VARCHAR", "DATE")
    return isinstance(type_, AtomicType) and (
        type_.root in _INTEGERS or type_.root in texts_and_days
    )


def bound(value: Any, type_: DataType) -> bytes:
    """The encoded value of a column of such a type."""
    if type_.root in _INTEGERS:
        return struct.pack(_INTEGERS[type_.root], value)
    if isinstance(value, date):
        return struct.pack("<i", (value - _EPOCH).days)
    return str(value).encode()
