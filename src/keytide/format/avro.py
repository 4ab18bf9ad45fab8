"""Avro object container files, the form of every manifest.

Records are plain dicts keyed by member name. Reading uses the schema inside the file, so members
that a writer did not know are simply absent and newer ones are present; the modules that give
records a meaning decide what absence means.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import fastavro

from keytide.errors import DataError

__all__ = [
    "NAMESPACE",
    "Record",
    "array",
    "optional",
    "parsed",
    "read_records",
    "record",
    "required",
    "write_records",
]

Record = dict[str, Any]

NAMESPACE = "org.apache.paimon.avro.generated"


def read_records(data: bytes, path: str, size: int | None = None) -> list[Record]:
    """All records of a container file, in order; any codec of the Avro specification.

    `size` is the length that metadata recorded for the file, when it did: a file torn between two
    blocks would otherwise look complete. DataError, naming `path`, when the file is torn.
    """
    if size is not None and len(data) != size:
        raise DataError(f"{path}: torn file, {len(data)} bytes found where {size} were recorded")
    try:
        return list(fastavro.reader(io.BytesIO(data)))
    except Exception as error:  # codecs and the decoder fail in ways of their own
        raise DataError(f"{path}: not a complete Avro file ({error})") from error


def write_records(schema: Mapping[str, Any], records: Iterable[Record]) -> bytes:
    """The bytes of a container file, compressed with zstandard level 1; possibly no records.

    `schema` comes from `parsed`. Values of nullable arrays are lists: Avro's writer takes a tuple
    there for a choice between types.
    """
    buffer = io.BytesIO()
    fastavro.writer(buffer, schema, records, codec="zstandard", codec_compression_level=1)
    return buffer.getvalue()


def parsed(type_: Mapping[str, Any]) -> Record:
    """A record type made ready for writing, once for all files."""
    schema: Record = fastavro.parse_schema(type_)
    return schema


def record(name: str, *members: Mapping[str, Any]) -> Record:
    """A record type with Java's naming: `name` is the path of members that leads to it."""
    return {"type": "record", "name": name, "namespace": NAMESPACE, "fields": list(members)}


def required(name: str, type_: Any) -> dict[str, Any]:
    """A member that is never null: a bare type, for readers reject a union here."""
    return {"name": name, "type": type_}


def optional(name: str, type_: Any) -> dict[str, Any]:
    """A member that may be null: null comes first, for readers reject the other order."""
    return {"name": name, "type": ["null", type_], "default": None}


def array(items: Any) -> dict[str, Any]:
    """An array type."""
    return {"type": "array", "items": items}
