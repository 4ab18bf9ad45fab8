"""Debezium JSON: ``{"op", "before", "after", "source", "ts_ms"}``, with or without its schema.

A message with a schema envelope (``{"schema", "payload"}``) states the encoding of each column, and
each message is decoded accordingly. Without it, the connector's settings apply, which
:func:`debezium_encoding` takes under their own names.

A truncate (``t``) is rejected, because the feed does not list the removed rows. Logical messages
(``m``) are control messages.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from keytide.arguments import checked
from keytide.cdc.feed import BIGINT, Envelope, SequenceSource
from keytide.cdc.values import Encoding
from keytide.errors import InvalidError
from keytide.types import (
    BYTES,
    STRING,
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    RowType,
)

__all__ = ["DEBEZIUM", "debezium_encoding"]


@checked
def debezium_encoding(
    *,
    decimal_handling_mode: str = "string",
    time_precision_mode: str = "adaptive",
    binary_handling_mode: str = "bytes",
) -> Encoding:
    """The encoding of values in messages without a schema, for a connector with these settings.

    The default for decimals is not the connector's own: ``precise`` writes base64, which cannot be
    distinguished from digits without a schema, so you must request it. It uses the column's scale.
    Raises InvalidError for an unknown mode.
    """
    time_units = {
        "adaptive": (None, None),
        "adaptive_time_microseconds": ("us", None),
        "connect": ("ms", "ms"),
        "isostring": (None, None),
        "microseconds": ("us", "us"),
        "nanoseconds": ("ns", "ns"),
    }
    scales = {"precise": "column", "string": None, "double": None}
    codings = {
        "bytes": "base64",
        "base64": "base64",
        "base64-url-safe": "base64-url-safe",
        "hex": "hex",
    }
    time_unit, timestamp_unit = _mode("time_precision_mode", time_precision_mode, time_units)
    return Encoding(
        decimal_scale=_mode("decimal_handling_mode", decimal_handling_mode, scales),
        binary=_mode("binary_handling_mode", binary_handling_mode, codings),
        time_unit=time_unit,
        timestamp_unit=timestamp_unit,
    )


def placeholder_texts(value: str) -> list[str]:
    """All forms of the unavailable value: as a string, bytes, arrays of them, and hstore."""
    raw = value.encode()
    coded = base64.b64encode(raw).decode()
    # Arrays of uuid contain the version 3 uuid that Java derives from the bytes.
    named = str(uuid.UUID(bytes=hashlib.md5(raw, usedforsecurity=False).digest(), version=3))
    # The connector's placeholder in columns of arrays, bytes and hstore.
    wrapped = [[value], [coded], [named], list(raw), {value: value}]
    return [value, coded, *(json.dumps(each, separators=(",", ":")) for each in wrapped)]


def read_types(schema: Any) -> Mapping[str, DataType]:
    """The type of each column in a message's schema, including nullability.

    Empty if the schema is not a Debezium envelope. TIME with microseconds becomes TIME(3), because
    tables store milliseconds. Finer values are rejected. Numbers of variable scale become
    DECIMAL(38, 18).
    """
    return {member["field"]: _type_of(member) for member in _row_members(schema)}


def read_layout(schema: Any, default: Encoding) -> Mapping[str, Encoding]:
    """The encoding of each column in a message's schema."""
    return {member["field"]: _encoding_of(member, default) for member in _row_members(schema)}


def _mode(name: str, value: str, known: Mapping[str, Any]) -> Any:
    if value not in known:
        raise InvalidError(f"{name}: found {value!r}, expected one of {', '.join(known)}")
    return known[value]


def _row_members(schema: Any) -> Sequence[dict[str, Any]]:
    """The fields of the ``after`` image. The schema can be any JSON value."""
    if not isinstance(schema, dict):
        return ()
    images = {
        member.get("field"): member.get("fields") or ()
        for member in schema.get("fields") or ()
        if isinstance(member, dict)
    }
    members: Sequence[dict[str, Any]] = images.get("after") or images.get("before") or ()
    return members


# The unit of each semantic type's number, and the column type that holds all its values.
_TEMPORAL_OF: Mapping[str, tuple[str, DataType]] = {
    "io.debezium.time.Date": ("d", AtomicType("DATE")),
    "io.debezium.time.Time": ("ms", AtomicType("TIME", precision=3)),
    "io.debezium.time.MicroTime": ("us", AtomicType("TIME", precision=3)),
    "io.debezium.time.NanoTime": ("ns", AtomicType("TIME", precision=3)),
    "io.debezium.time.Timestamp": ("ms", AtomicType("TIMESTAMP", precision=3)),
    "io.debezium.time.MicroTimestamp": ("us", AtomicType("TIMESTAMP", precision=6)),
    "io.debezium.time.NanoTimestamp": ("ns", AtomicType("TIMESTAMP", precision=9)),
    "org.apache.kafka.connect.data.Date": ("d", AtomicType("DATE")),
    "org.apache.kafka.connect.data.Time": ("ms", AtomicType("TIME", precision=3)),
    "org.apache.kafka.connect.data.Timestamp": ("ms", AtomicType("TIMESTAMP", precision=3)),
}

_DECIMAL = "org.apache.kafka.connect.data.Decimal"

_TYPE_OF_NAME: Mapping[str, DataType] = {
    "io.debezium.data.VariableScaleDecimal": AtomicType("DECIMAL", precision=38, scale=18),
    "io.debezium.time.ZonedTimestamp": AtomicType("TIMESTAMP_LTZ", precision=6),
    **{name: type for name, (_, type) in _TEMPORAL_OF.items()},
}

_TYPE_OF_PRIMITIVE: Mapping[str, DataType] = {
    "boolean": AtomicType("BOOLEAN"),
    "int8": AtomicType("TINYINT"),
    "int16": AtomicType("SMALLINT"),
    "int32": AtomicType("INT"),
    "int64": BIGINT,
    "float": AtomicType("FLOAT"),
    "float32": AtomicType("FLOAT"),
    "double": AtomicType("DOUBLE"),
    "float64": AtomicType("DOUBLE"),
    "string": STRING,
    "bytes": BYTES,
}


def _encoding_of(member: Mapping[str, Any], default: Encoding) -> Encoding:
    if member.get("type") == "array":
        return _encoding_of(member.get("items") or {}, default)
    name = str(member.get("name"))
    if name == _DECIMAL:
        return replace(default, decimal_scale=_scale(member))
    if name in _TEMPORAL_OF:
        unit, _ = _TEMPORAL_OF[name]
        return replace(default, date_unit=unit, time_unit=unit, timestamp_unit=unit)
    return replace(default, decimal_scale=None)


def _type_of(member: Mapping[str, Any]) -> DataType:
    made = _nullable_type_of(member)
    return made.with_nullable(bool(member.get("optional", False)))


def _nullable_type_of(member: Mapping[str, Any]) -> DataType:
    name, type_ = str(member.get("name")), str(member.get("type"))
    if name == _DECIMAL:
        precision = int((member.get("parameters") or {}).get("connect.decimal.precision", 38))
        return AtomicType("DECIMAL", precision=precision, scale=_scale(member))
    if name in _TYPE_OF_NAME:
        return _TYPE_OF_NAME[name]
    if type_ == "array":
        return ArrayType(_type_of(member["items"]))
    if type_ == "map":
        return MapType(_type_of(member["keys"]), _type_of(member["values"]))
    if type_ == "struct":
        return RowType(tuple(Field(-1, m["field"], _type_of(m)) for m in member["fields"]))
    return _TYPE_OF_PRIMITIVE.get(type_, STRING)


def _scale(member: Mapping[str, Any]) -> int:
    return int((member.get("parameters") or {}).get("scale", 0))


DEBEZIUM = Envelope(
    wrapper=("/payload", "/schema"),
    members={"op": "/op", "before": "/before", "after": "/after"},
    action="""CASE
        WHEN is_empty THEN 'tombstone'
        WHEN op IN ('"c"', '"r"') THEN 'insert'
        WHEN op = '"u"' THEN 'update'
        WHEN op = '"d"' THEN 'delete'
        WHEN op = '"m"' THEN 'control' END""",
    problem="""CASE
        WHEN op = '"t"' THEN 'op "t": a truncate removes rows that the feed does not name'
        ELSE 'op: found ' || coalesce(op, 'nothing') || ', expected one of "c", "r", "u", "d"'
        END""",
    changes="[{'before': before, 'after': after}]",
    orderings=(
        (SequenceSource("source.lsn", "_lsn", BIGINT),),
        (
            SequenceSource("source.file", "_file", STRING),
            SequenceSource("source.pos", "_pos", BIGINT),
            SequenceSource("source.row", "_row", BIGINT),
        ),
        (
            SequenceSource("source.commit_lsn", "_commit_lsn", STRING),
            SequenceSource("source.change_lsn", "_change_lsn", STRING),
            SequenceSource("source.event_serial_no", "_event_serial_no", BIGINT),
        ),
        (SequenceSource("source.scn", "_scn", AtomicType("DECIMAL", precision=38, scale=0)),),
        (
            SequenceSource("source.ts_ms", "_source_ts_ms", BIGINT),
            SequenceSource("ts_ms", "_ts_ms", BIGINT),
        ),
    ),
    placeholders=placeholder_texts,
    read_layout=read_layout,
    types_pointer="/schema",
    read_types=read_types,
)
