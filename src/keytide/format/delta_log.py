"""The log of a Delta table: its state, actions, checkpoints and file names.

Actions are kept as documents. Members that this release does not know are preserved, and unknown
actions are skipped, as readers of the log must do.

A checkpoint has all actions that lead to a version, as Parquet.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.errors import DataError
from keytide.format.index_files import PortableVector
from keytide.types import ArrayType, AtomicType, DataType, Field, MapType, MultisetType, RowType

# -- Delta type names of columns -------------------------------------------------------------------


_NAMES = {
    "BOOLEAN": "boolean", "TINYINT": "byte", "SMALLINT": "short", "INT": "integer",
    "BIGINT": "long", "FLOAT": "float", "DOUBLE": "double", "CHAR": "string", "VARCHAR": "string",
    "BINARY": "binary", "VARBINARY": "binary", "DATE": "date",
}  # fmt: skip
_TIMES = {"TIMESTAMP": "timestamp_ntz", "TIMESTAMP_LTZ": "timestamp"}
# Finer timestamps are stored as INT96, which readers treat as instants.
_TIME_PRECISION_MAX = 6
_NO_NAME = frozenset(" ,;{}()\n\t=")


def why_no_column(field: Field) -> str | None:
    """Why Delta Lake does not support the column. None if it does."""
    found = sorted(_NO_NAME.intersection(field.name))
    if found:
        return f"its name has {found[0]!r}, which Delta Lake does not allow in column names"
    return _why_no_type(field.type)


def _why_no_type(type_: DataType) -> str | None:
    if isinstance(type_, RowType):
        return next((why for f in type_.fields if (why := why_no_column(f))), None)
    if isinstance(type_, AtomicType) and type_.root in _TIMES:
        if (type_.precision or 0) > _TIME_PRECISION_MAX:
            return f"Delta Lake does not support {type_.sql()}: its times have at most microseconds"
        return None
    if isinstance(type_, MapType):
        return _why_no_type(type_.key) or _why_no_type(type_.value)
    if isinstance(type_, ArrayType | MultisetType):
        return _why_no_type(type_.element)
    is_known = isinstance(type_, AtomicType) and (type_.root in _NAMES or type_.root == "DECIMAL")
    return None if is_known else f"Delta Lake does not support {type_.sql()}"


def schema_string(fields: Iterable[Field]) -> str:
    """The columns in the form of the log. REQUIRES: Delta Lake supports the columns."""
    return json.dumps(_struct(fields), separators=(",", ":"), ensure_ascii=False)


def _struct(fields: Iterable[Field]) -> dict[str, Any]:
    # Older files may lack a column that is NOT NULL now, so no column is required. Delta Lake would
    # also require the log to name a feature for that.
    columns = [
        {
            "name": field.name,
            "type": _type(field.type),
            "nullable": True,
            "metadata": {} if field.description is None else {"comment": field.description},
        }
        for field in fields
    ]
    return {"type": "struct", "fields": columns}


def _type(type_: DataType) -> Any:
    # All parts inside a column are stored as optional.
    if isinstance(type_, ArrayType):
        return {"type": "array", "elementType": _type(type_.element), "containsNull": True}
    if isinstance(type_, MapType | MultisetType):
        key, value = (
            (_type(type_.key), _type(type_.value))
            if isinstance(type_, MapType)
            else (_type(type_.element), "integer")
        )
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if isinstance(type_, RowType):
        return _struct(type_.fields)
    assert isinstance(type_, AtomicType)
    if type_.root == "DECIMAL":
        return f"decimal({type_.precision},{type_.scale})"
    return _TIMES.get(type_.root) or _NAMES[type_.root]


# -- file names ------------------------------------------------------------------------------------


LOG_DIR = "_delta_log"
LAST_CHECKPOINT = f"{LOG_DIR}/_last_checkpoint"
"""A hint that says where readers begin."""

_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
_VERSION = re.compile(r"([0-9]{20})\..+")


def commit_path(version: int) -> str:
    """The file of a version. Creating it creates the version."""
    return f"{LOG_DIR}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """The checkpoint file with all versions up to this one."""
    return f"{LOG_DIR}/{version:020d}.checkpoint.parquet"


def parse_commit_name(name: str) -> int | None:
    """The version in the name of a commit file."""
    return _number(_COMMIT, name)


def parse_checkpoint_name(name: str) -> int | None:
    """The version in the name of a checkpoint file."""
    return _number(_CHECKPOINT, name)


def parse_version(name: str) -> int | None:
    """The version of a file in the log."""
    return _number(_VERSION, name)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.fullmatch(name)
    return None if found is None else int(found[1])


# -- the state of a version, and actions to the next one -------------------------------------------


Action: TypeAlias = "dict[str, Any]"

APP_ID = "keytide"
"""The application whose `txn` action says which snapshot a version shows."""
COMMIT_APP_ID = "keytide.commit"
"""The application whose `txn` action has the number of that snapshot's commit."""
VECTOR_TAG = "keytide.vector"
"""The tag of a file that identifies its deletion vector."""


@dataclass(frozen=True)
class DeltaState:
    """One version: the files by their path in the log, and removed files that may still be read.

    `snapshot_id` is the snapshot that it shows, and `commit` the number of its commit, which no
    other snapshot with this id has. None if Keytide did not record it.
    """

    version: int
    protocol: Action
    metadata: Action
    files: Mapping[str, Action] = field(repr=False)
    removed: tuple[Action, ...] = field(default=(), repr=False)
    snapshot_id: int | None = None
    commit: int | None = None

    @property
    def table_id(self) -> str:
        """Identifies the table, also among different tables at the same location."""
        return str(self.metadata.get("id"))

    @cached_property
    def by_name(self) -> Mapping[str, Action]:
        """The files by their own names."""
        return {unquote(path.rpartition("/")[2]): action for path, action in self.files.items()}

    def after(self, version: int, actions: Iterable[Action]) -> DeltaState:
        """The next version, after the actions of its commit. They come in any order."""
        every = list(actions)
        files, removed = dict(self.files), list(self.removed)
        for action in _of(every, "remove"):
            files.pop(action["path"], None)
            removed.append(action)
        for action in _of(every, "add"):
            files[action["path"]] = action
        versions = {a.get("appId"): a.get("version") for a in _of(every, "txn")}
        return DeltaState(
            version,
            _last(every, "protocol", self.protocol),
            _last(every, "metaData", self.metadata),
            files,
            tuple(removed),
            versions.get(APP_ID, self.snapshot_id),
            versions.get(COMMIT_APP_ID, None if APP_ID in versions else self.commit),
        )

    def without_removed(self, before_ms: int) -> DeltaState:
        """The same without files that were removed before a time."""
        left = (a for a in self.removed if a.get("deletionTimestamp", 0) >= before_ms)
        return replace(self, removed=tuple(left))

    def actions(self) -> list[Action]:
        """All actions that lead to it in one step, for a checkpoint."""
        versions = {APP_ID: self.snapshot_id, COMMIT_APP_ID: self.commit}
        return [
            {"protocol": self.protocol},
            {"metaData": self.metadata},
            *(_transaction(app, number) for app, number in versions.items() if number is not None),
            *({"add": action} for action in self.files.values()),
            *({"remove": action} for action in self.removed),
        ]


NOTHING = DeltaState(-1, {}, {}, {})
"""The state before the first version."""


def snapshot_actions(snapshot_id: int, commit: int) -> list[Action]:
    """The actions that say which snapshot a version shows."""
    return [_transaction(APP_ID, snapshot_id), _transaction(COMMIT_APP_ID, commit)]


def _transaction(app: str, number: int) -> Action:
    return {"txn": {"appId": app, "version": number}}


def vector_id(add: Action) -> str | None:
    """Identifies the deletion vector of a file. None without one.

    A vector of another writer is unknown, so it equals none of Keytide's.
    """
    if add.get("deletionVector") is None:
        return None
    return str((add.get("tags") or {}).get(VECTOR_TAG, ""))


def encode_actions(actions: Sequence[Action]) -> bytes:
    """A commit of the log: one line for each action."""
    lines = (json.dumps(each, separators=(",", ":"), ensure_ascii=False) for each in actions)
    return "\n".join(lines).encode() + b"\n"


def decode_actions(data: bytes, path: str) -> list[Action]:
    """The actions of a commit. Raises `DataError`, which names `path`, if it is damaged."""
    try:
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a complete commit of a Delta log ({error})") from error
    if not all(isinstance(each, dict) for each in actions):
        raise DataError(f"{path}: not a commit of a Delta log: a line is not a JSON object")
    return actions


def _of(actions: Iterable[Action], kind: str) -> list[Action]:
    return [found for each in actions if isinstance(found := each.get(kind), dict)]


def _last(actions: Iterable[Action], kind: str, before: Action) -> Action:
    return ([before, *_of(actions, kind)])[-1]


# -- checkpoints -----------------------------------------------------------------------------------


_TEXTS = pa.map_(pa.string(), pa.string())
_LIST = pa.list_(pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()), ("cardinality", pa.int64()),
    ]
)  # fmt: skip
_SCHEMA = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64())])),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()), ("partitionValues", _TEXTS), ("size", pa.int64()),
                    ("modificationTime", pa.int64()), ("dataChange", pa.bool_()),
                    ("tags", _TEXTS), ("deletionVector", _VECTOR), ("stats", pa.string()),
                ]
            ),
        ),
        (
            "remove",
            pa.struct(
                [
                    ("path", pa.string()), ("deletionTimestamp", pa.int64()),
                    ("dataChange", pa.bool_()), ("extendedFileMetadata", pa.bool_()),
                    ("partitionValues", _TEXTS), ("size", pa.int64()),
                    ("deletionVector", _VECTOR),
                ]
            ),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()), ("name", pa.string()), ("description", pa.string()),
                    (
                        "format",
                        pa.struct([("provider", pa.string()), ("options", _TEXTS)]),
                    ),
                    ("schemaString", pa.string()), ("partitionColumns", _LIST),
                    ("createdTime", pa.int64()), ("configuration", _TEXTS),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32()),
                    ("readerFeatures", _LIST), ("writerFeatures", _LIST),
                ]
            ),
        ),
    ]
)  # fmt: skip


def encode_checkpoint(state: DeltaState) -> tuple[bytes, int]:
    """A checkpoint of a version, and its number of actions."""
    actions = state.actions()
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(actions, _SCHEMA), sink, compression="snappy")
    return sink.getvalue(), len(actions)


def decode_checkpoint(data: bytes, version: int, path: str) -> DeltaState:
    """The version of a checkpoint. Raises `DataError`, which names `path`, if it is damaged."""
    try:
        names = [name for name in _SCHEMA.names if name in pq.read_schema(pa.BufferReader(data))
                 .names]  # fmt: skip
        table = pq.read_table(pa.BufferReader(data), columns=names)
        actions = [_without_nulls(row) for row in table.to_pylist(maps_as_pydicts="strict")]
    except (pa.ArrowException, ValueError, OSError) as error:
        raise DataError(f"{path}: not a complete checkpoint of a Delta log ({error})") from error
    return NOTHING.after(version, actions)


def _without_nulls(value: Any) -> Action:
    """A document in the form of commits, which leave out absent members."""
    return {
        name: _without_nulls(each) if isinstance(each, dict) and name not in _MAPS else each
        for name, each in value.items()
        if each is not None
    }


_MAPS = ("partitionValues", "tags", "options", "configuration")


# -- places of deletion vectors --------------------------------------------------------------------


VECTOR_DIR = "_delta_vectors"
"""The folder for files with vectors, inside the folder of the table."""

_FILE_VERSION = b"\x01"
# Two alphabets for 85 digits: Python's and Delta Lake's.
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)
_TEXT_OF_UUID = 20


def inline(vector: PortableVector) -> dict[str, Any]:
    """The descriptor of a vector that is stored in the log itself."""
    padded = vector.data + b"\0" * (-len(vector.data) % 4)
    return {
        "storageType": "i",
        "pathOrInlineDv": _z85(padded),
        "sizeInBytes": len(vector.data),
        "cardinality": vector.cardinality,
    }


def vector_file(vectors: Iterable[PortableVector]) -> tuple[bytes, list[int]]:
    """A file with some vectors, and the byte at which each begins."""
    chunks, offsets, end = [_FILE_VERSION], [], len(_FILE_VERSION)
    for vector in vectors:
        offsets.append(end)
        chunks.append(vector.framed())
        end += len(chunks[-1])
    return b"".join(chunks), offsets


def in_file(vector: PortableVector, uuid: UUID, offset: int) -> dict[str, Any]:
    """The descriptor of a vector in the file with that id."""
    return {
        "storageType": "u",
        "pathOrInlineDv": VECTOR_DIR + _z85(uuid.bytes),
        "offset": offset,
        "sizeInBytes": len(vector.data),
        "cardinality": vector.cardinality,
    }


def vector_file_name(descriptor: dict[str, Any]) -> str | None:
    """The name of the file in `VECTOR_DIR` for a descriptor. None for any other location."""
    text = str(descriptor["pathOrInlineDv"])
    folder, encoded = text[:-_TEXT_OF_UUID], text[-_TEXT_OF_UUID:]
    if descriptor["storageType"] != "u" or folder != VECTOR_DIR:
        return None
    uuid = UUID(bytes=base64.b85decode(encoded.encode().translate(_FROM_Z85)))
    return f"deletion_vector_{uuid}.bin"


def _z85(data: bytes) -> str:
    # Both encode four bytes as the same five digits.
    return base64.b85encode(data).translate(_TO_Z85).decode()
