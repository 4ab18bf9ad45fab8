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
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from keytide.base.arguments import checked
from keytide.errors import InvalidError
from keytide.feeds.conversion import BY_PRECISION, Encoding
from keytide.feeds.epochs import (
    BIGINT,
    EPOCH_SOURCE,
    LOG,
    NUMBER,
    POSITION,
    SERVER,
    TIME,
    Derived,
    Ordering,
    SequenceSource,
)
from keytide.feeds.feed import Envelope
from keytide.types import BYTES, STRING, ArrayType, AtomicType, DataType, Field, MapType, RowType


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
        "adaptive": (BY_PRECISION, BY_PRECISION),
        "adaptive_time_microseconds": ("us", BY_PRECISION),
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


def read_types(schema: Any, connector: str | None) -> Mapping[str, DataType]:
    """The type of each column in a message's schema, including nullability.

    Empty if the schema is not a Debezium envelope. A column whose values no type holds is STRING:
    numbers of more than 38 digits, times with microseconds or of more than a day, and times with an
    offset that have more than microseconds. Numbers of variable scale become DECIMAL(38, 18).
    """
    finer = connector in _FINE_CONNECTORS
    return {
        member["field"]: STRING.with_nullable(member.get("optional") is True)
        if finer and member.get("name") == _ZONED
        else _type_of(member)
        for member in _row_members(schema)
    }


def read_layout(schema: Any, default: Encoding) -> Mapping[str, Encoding]:
    """The encoding of each column in a message's schema."""
    found = {}
    for column in _row_members(schema):
        member: Mapping[str, Any] = column
        while member.get("type") == "array":
            member = _as_member(member.get("items"))
        name = str(member.get("name"))
        encoding = replace(default, decimal_scale=None)
        if name == _DECIMAL:
            scale = _parameter(member, "scale", 0)
            encoding = replace(default, decimal_scale=scale, meaning="decimal")
        elif name == _VARIABLE:
            encoding = replace(encoding, meaning="decimal")
        elif name in _TEMPORAL_OF:
            unit, _ = _TEMPORAL_OF[name]
            meaning = "time" if name.endswith("Time") else None
            encoding = replace(
                default, date_unit=unit, time_unit=unit, timestamp_unit=unit, meaning=meaning
            )
        found[column["field"]] = encoding
    return found


def _mode(name: str, value: str, known: Mapping[str, Any]) -> Any:
    if value not in known:
        raise InvalidError(f"{name}: found {value!r}, expected one of {', '.join(known)}")
    return known[value]


def _row_members(schema: Any) -> Sequence[dict[str, Any]]:
    """The fields of the ``after`` image. The schema can be any JSON value."""
    if not isinstance(schema, dict):
        return ()
    images = {
        name: member.get("fields")
        for member in _members(schema.get("fields"))
        if isinstance(name := member.get("field"), str)
    }
    return _members(images.get("after")) or _members(images.get("before"))


def _members(given: Any) -> Sequence[dict[str, Any]]:
    """The fields of a struct that have names."""
    found = given if isinstance(given, list) else ()
    return [m for m in found if isinstance(m, dict) and isinstance(m.get("field"), str)]


# The unit of each semantic type's number, and the column type that holds all its values.
_TEMPORAL_OF: Mapping[str, tuple[str, DataType]] = {
    "io.debezium.time.Date": ("d", AtomicType("DATE")),
    "io.debezium.time.Time": ("ms", AtomicType("TIME", precision=3)),
    # Tables store milliseconds of a day. These times have more digits, in MySQL also more hours.
    "io.debezium.time.MicroTime": ("us", STRING),
    "io.debezium.time.NanoTime": ("ns", STRING),
    "io.debezium.time.Timestamp": ("ms", AtomicType("TIMESTAMP", precision=3)),
    "io.debezium.time.MicroTimestamp": ("us", AtomicType("TIMESTAMP", precision=6)),
    "io.debezium.time.NanoTimestamp": ("ns", AtomicType("TIMESTAMP", precision=9)),
    "org.apache.kafka.connect.data.Date": ("d", AtomicType("DATE")),
    "org.apache.kafka.connect.data.Time": ("ms", AtomicType("TIME", precision=3)),
    "org.apache.kafka.connect.data.Timestamp": ("ms", AtomicType("TIMESTAMP", precision=3)),
}

_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE = "io.debezium.data.VariableScaleDecimal"
_ZONED = "io.debezium.time.ZonedTimestamp"
# Their times with an offset can have more than microseconds.
_FINE_CONNECTORS = ("sqlserver", "oracle", "db2")

_TYPE_OF_NAME: Mapping[str, DataType] = {
    _VARIABLE: AtomicType("DECIMAL", precision=38, scale=18),
    _ZONED: AtomicType("TIMESTAMP_LTZ", precision=6),
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


def _as_member(given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, dict) else {}


def _type_of(member: Mapping[str, Any], depth: int = 0) -> DataType:
    name, type_, inner = str(member.get("name")), str(member.get("type")), depth + 1
    found: DataType
    if depth > _DEPTH_MAX:
        found = STRING
    elif name == _DECIMAL:
        precision = _parameter(member, "connect.decimal.precision", _DIGITS_MAX)
        scale = _parameter(member, "scale", 0)
        # STRING for decimals that no table can store.
        fits = 0 < precision <= _DIGITS_MAX and 0 <= scale <= precision
        found = AtomicType("DECIMAL", precision=precision, scale=scale) if fits else STRING
    elif name in _TYPE_OF_NAME:
        found = _TYPE_OF_NAME[name]
    elif type_ == "array":
        found = ArrayType(_type_of(_as_member(member.get("items")), inner))
    elif type_ == "map":
        key, value = (_type_of(_as_member(member.get(part)), inner) for part in ("keys", "values"))
        found = MapType(key, value)
    elif type_ == "struct":
        fields = _members(member.get("fields"))
        found = RowType(tuple(Field(-1, m["field"], _type_of(m, inner)) for m in fields))
    else:
        found = _TYPE_OF_PRIMITIVE.get(type_, STRING)
    return found.with_nullable(member.get("optional") is True)


_DEPTH_MAX = 50
"""Values that are nested deeper are stored as JSON text."""


_DIGITS_MAX = 38


def _parameter(member: Mapping[str, Any], name: str, default: int) -> int:
    """An integer among the parameters of a type. The default if it is not one."""
    text = str(_as_member(member.get("parameters")).get(name, default))
    return int(text) if _WHOLE.fullmatch(text) else default


_WHOLE = re.compile(r"-?[0-9]{1,6}")


def _source(name: str) -> str:
    return f"/source/{name}"


# Rows of a snapshot precede the changes that the stream has at the same place. Those of an
# incremental snapshot are a part of the stream. No component is NULL, because a history stores it
# in its key.
_IS_SNAPSHOT = """(op = '"r"' AND coalesce(snapshot, '') <> '"incremental"')"""
_SNAPSHOT = {"op": "/op", "snapshot": _source("snapshot")}
# An LSN of SQL Server or Db2: parts of hexadecimal digits. With equal widths, text has their order.
_LSN = """coalesce(CASE WHEN {0} <> '"NULL"' THEN '"' || array_to_string(
        [lpad(lower(part), greatest(length(part), 8)::INT, '0')
            FOR part IN string_split(trim({0}, '"'), ':')], ':') || '"' END, '""')"""
_FILE = {"file": _source("file")}
_SCN = AtomicType("DECIMAL", precision=38, scale=0)

_METADATA = {
    # The position after which the transaction was committed: the commit before it.
    "sequence.commit_lsn": Derived(
        r"""coalesce(nullif(regexp_extract(sequence, '^"\[(?:\\")?([0-9]+)', 1), ''), '0')""",
        {"sequence": _source("sequence")},
    ),
    "streamed.lsn": Derived(
        f"CASE WHEN {_IS_SNAPSHOT} THEN '0' ELSE lsn END", {**_SNAPSHOT, "lsn": _source("lsn")}
    ),
    "binlog.file": Derived(
        r"""nullif(ltrim(regexp_extract(file, '\.([0-9]+)"$', 1), '0'), '')""", _FILE
    ),
    "streamed.row": Derived(
        f"CASE WHEN {_IS_SNAPSHOT} THEN '-1' ELSE row END", {**_SNAPSHOT, "row": _source("row")}
    ),
    "padded.commit_lsn": Derived(_LSN.format("commit_lsn"), {"commit_lsn": _source("commit_lsn")}),
    "padded.change_lsn": Derived(_LSN.format("change_lsn"), {"change_lsn": _source("change_lsn")}),
    "commit.scn": Derived(
        "coalesce(nullif(commit_scn, '\"\"'), scn)",
        {"commit_scn": _source("commit_scn"), "scn": _source("scn")},
    ),
    "streamed.scn": Derived(
        f"CASE WHEN {_IS_SNAPSHOT} THEN '0' ELSE scn END", {**_SNAPSHOT, "scn": _source("scn")}
    ),
    "serial.number": Derived(
        "coalesce(serial_number, '0')", {"serial_number": _source("event_serial_no")}
    ),
    "record.rs_id": Derived("coalesce(rs_id, '\"\"')", {"rs_id": _source("rs_id")}),
    "record.ssn": Derived("coalesce(ssn, '0')", {"ssn": _source("ssn")}),
    LOG: Derived(
        r"""CASE WHEN file <> '""' THEN coalesce(
            nullif(regexp_extract(file, '^"(.*)\.[0-9]+"$', 1), ''), trim(file, '"')) END""",
        _FILE,
    ),
    # The number of the server is 0 in rows of a snapshot.
    SERVER: Derived("nullif(server, '0')", {"server": _source("server_id")}),
    TIME: Derived("source_time", {"source_time": _source("ts_ms")}),
    # LSNs of changes are not in the order of commits, so they are no number here.
    NUMBER: Derived(
        r"""CASE WHEN file <> '""' THEN nullif(regexp_extract(file, '\.([0-9]+)"$', 1), '')
            WHEN commit_scn IS NOT NULL THEN trim(commit_scn, '"')
            WHEN commit_lsn IS NOT NULL THEN TRY_CAST('0x' || array_to_string(
                string_split(trim(commit_lsn, '"'), ':')[:2], '') AS BIGINT)::VARCHAR
            ELSE nullif(regexp_extract(sequence, '^"\[(?:\\")?([0-9]+)', 1), '') END""",
        {
            **_FILE,
            "commit_scn": _source("commit_scn"),
            "commit_lsn": _source("commit_lsn"),
            "sequence": _source("sequence"),
        },
    ),
    POSITION: Derived("pos", {"pos": _source("pos")}),
}

_TIMES = (
    SequenceSource("source.ts_ms", "_source_ts_ms", BIGINT),
    SequenceSource("ts_ms", "_ts_ms", BIGINT),
)

_ORDERINGS = (
    Ordering(
        ("source.lsn",),
        (
            EPOCH_SOURCE,
            SequenceSource("sequence.commit_lsn", "_commit_lsn", BIGINT),
            SequenceSource("streamed.lsn", "_lsn", BIGINT),
        ),
    ),
    Ordering(
        ("source.file",),
        (
            EPOCH_SOURCE,
            SequenceSource("binlog.file", "_file", BIGINT),
            SequenceSource("source.pos", "_pos", BIGINT),
            SequenceSource("streamed.row", "_row", BIGINT),
        ),
    ),
    Ordering(
        ("source.commit_lsn",),
        (
            EPOCH_SOURCE,
            SequenceSource("padded.commit_lsn", "_commit_lsn", STRING),
            SequenceSource("padded.change_lsn", "_change_lsn", STRING),
            SequenceSource("serial.number", "_event_serial_no", BIGINT),
        ),
    ),
    Ordering(
        ("source.scn",),
        (
            EPOCH_SOURCE,
            SequenceSource("commit.scn", "_commit_scn", _SCN),
            SequenceSource("streamed.scn", "_scn", _SCN),
            SequenceSource("record.rs_id", "_rs_id", STRING),
            SequenceSource("record.ssn", "_ssn", BIGINT),
        ),
    ),
    Ordering(("source.ts_ms",), _TIMES),
)

_FORMER = (
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
    (SequenceSource("source.scn", "_scn", _SCN),),
)

DEBEZIUM = Envelope(
    wrapper=("/payload", "/schema"),
    members={
        "op": "/op",
        "before": "/before",
        "after": "/after",
        "connector": _source("connector"),
    },
    action="""CASE
        WHEN is_empty THEN 'tombstone'
        WHEN connector = '"mongodb"' THEN NULL
        WHEN op IN ('"c"', '"r"') THEN 'insert'
        WHEN op = '"u"' THEN 'update'
        WHEN op = '"d"' THEN 'delete'
        WHEN op = '"m"' THEN 'control' END""",
    problem="""CASE
        WHEN connector = '"mongodb"' THEN 'connector mongodb is not supported, because its images '
            || 'are documents and not rows of columns'
        WHEN op = '"t"' THEN 'op "t": a truncate removes rows that the feed does not name'
        ELSE 'op: found ' || coalesce(op, 'nothing') || ', expected one of "c", "r", "u", "d"'
        END""",
    changes="[{'before': before, 'after': after}]",
    metadata=_METADATA,
    orderings=_ORDERINGS,
    former=_FORMER,
    origin=("source.db", "source.schema", "source.table"),
    placeholders=placeholder_texts,
    read_layout=read_layout,
    types_pointer="/schema",
    connector_pointer="/payload/source/connector",
    read_types=read_types,
)
