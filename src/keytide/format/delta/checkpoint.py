"""Checkpoints of a Delta log: all actions that lead to a version, as Parquet."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from keytide.errors import DataError
from keytide.format.delta.state import NOTHING, Action, DeltaState

__all__ = ["decode_checkpoint", "encode_checkpoint"]

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
