"""The formats of change feeds by name, with plain JSON rows, Canal, AWS DMS and Maxwell.

- Plain JSON rows: ``{"id": 1, "name": "a"}`` is the new state of a row. Key columns can be in the
  message key, and a message without a value is a delete. The caller that has the keys adds them,
  and marks deletes with the field :data:`DELETED`.
- Canal JSON: ``{"type", "data": [rows], "old": [rows], "isDdl", "es", "ts", "id"}``. One message
  contains every row of a statement. Values are strings. ``old`` contains only the columns that an
  update changed. DDL is a control message, except a truncate, which is rejected because the feed
  does not list the removed rows. Bytes are written as ISO-8859-1 characters.
- AWS DMS: ``{"data", "metadata"}`` as on Kinesis and Kafka, or flat rows with an ``Op`` column. A
  flat row is a line of a JSON file, or of a CSV file converted to JSON, with the column ``Op`` (I,
  U, D) in addition to the table's columns. A row without ``Op`` is from a full load, where DMS
  writes it only on request: an insert that precedes every change. A truncated or dropped table is
  rejected, because the feed does not list the rows.
- Maxwell JSON: ``{"type", "data", "old", "ts", "xid", "xoffset", "commit", "position"}``. ``old``
  contains only the columns that an update changed. Bootstrap start and completion records and DDL
  records are control messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from keytide.base.process import scratch
from keytide.errors import InvalidError
from keytide.feeds.conversion import Encoding
from keytide.feeds.debezium import DEBEZIUM
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
from keytide.feeds.json_columns import literal, pointer
from keytide.types import BYTES, STRING, AtomicType, DataType

# -- plain JSON rows -------------------------------------------------------------------------------


DELETED = scratch("deleted")
"""The field that marks a deleted row: true, or ``"unordered"`` if its place is unknown."""

JSON_ROWS = Envelope(
    members={"row": "$", "deleted": pointer(DELETED)},
    action="""CASE
        WHEN deleted IS NULL THEN 'insert'
        WHEN deleted = 'true' THEN 'delete' END""",
    problem=literal(
        "a message without a value is a delete without a time, but the table has a sequence field"
    ),
    changes="""[{
        'before': CASE WHEN action = 'delete' THEN row END,
        'after': CASE WHEN action <> 'delete' THEN row END}]""",
    housekeeping=frozenset({DELETED}),
    has_keys=True,
)


# -- Canal JSON ------------------------------------------------------------------------------------


_ID = SequenceSource("id", "_id", BIGINT)

CANAL = Envelope(
    members={"type": "/type", "ddl": "/isDdl", "data": "/data", "old": "/old"},
    action="""CASE
        WHEN type = '"TRUNCATE"' THEN NULL
        WHEN ddl = 'true' OR type IN ('"QUERY"', '"CREATE"', '"ALTER"', '"ERASE"', '"RENAME"',
            '"CINDEX"', '"DINDEX"', '"GTID"', '"XACOMMIT"', '"XAROLLBACK"') THEN 'control'
        WHEN type IN ('"INSERT"', '"INIT"') THEN 'insert'
        WHEN type = '"UPDATE"' THEN 'update'
        WHEN type = '"DELETE"' THEN 'delete' END""",
    problem="""CASE
        WHEN type = '"TRUNCATE"' THEN 'a truncate removes rows that the feed does not name'
        ELSE 'type: found ' || coalesce(type, 'nothing')
            || ', expected one of "INSERT", "UPDATE", "DELETE"' END""",
    changes="""[{
        'before': CASE WHEN action = 'delete' THEN pair[1] ELSE pair[2] END,
        'after': CASE WHEN action <> 'delete' THEN pair[1] END}
        FOR pair IN list_zip(json_extract(data, '$[*]')::VARCHAR[],
            CASE WHEN action = 'update' THEN json_extract(old, '$[*]')::VARCHAR[] END)]""",
    # `es` is when a statement started. Canal reads the binlog in the order of commits, and `ts` is
    # when it made the message.
    orderings=(Ordering(("ts",), (SequenceSource("ts", "_ts", BIGINT), _ID)),),
    former=((SequenceSource("es", "_es", BIGINT), _ID),),
    origin=("database", "table"),
    encoding=Encoding(binary="latin-1"),
    types_pointer="/mysqlType",
    read_types=lambda stated, _: {
        name: type_of_mysql(text)
        for name, text in (stated.items() if isinstance(stated, dict) else ())
        if isinstance(text, str)
    },
    key_pointer="/pkNames",
)


def type_of_mysql(text: str) -> DataType:
    """The column type for a ``mysqlType`` such as ``decimal(12,2) unsigned``.

    Unsigned integers get the next wider type. A type without a counterpart becomes STRING.
    """
    match = _MYSQL_TYPE.match(text.strip().lower())
    if match is None:
        return STRING
    name, numbers = match["name"], [int(n) for n in re.findall(r"\d+", match["numbers"] or "")]
    if name in _INTEGER_WIDTHS:
        width = _INTEGER_WIDTHS[name]
        unsigned = "unsigned" in text.lower()
        if unsigned and width == len(_INTEGER_ROOTS) - 1:
            return AtomicType("DECIMAL", precision=20, scale=0)
        return AtomicType(_INTEGER_ROOTS[width + unsigned])
    if name in ("decimal", "numeric"):
        precision, scale = ([*numbers, 10, 0] if not numbers else [*numbers, 0])[:2]
        # MySQL supports 65 digits. Values that a DECIMAL cannot hold need another type.
        fits = 0 < precision <= 38 and scale <= precision
        return AtomicType("DECIMAL", precision=precision, scale=scale) if fits else STRING
    if name in ("datetime", "timestamp", "time"):
        precision = numbers[0] if numbers else 0
        # A TIME of MySQL has up to 838 hours, and can be negative.
        fits = name != "time" and precision <= 6
        return AtomicType("TIMESTAMP", precision=precision) if fits else STRING
    if name in ("char", "varchar", "binary", "varbinary") and numbers and numbers[0] > 0:
        return AtomicType(name.upper(), length=numbers[0])
    return _TYPE_OF_NAME.get(name, STRING)


_MYSQL_TYPE = re.compile(r"(?P<name>[a-z]+)\s*(\((?P<numbers>[^)]*)\))?")
_INTEGER_WIDTHS = {"tinyint": 0, "smallint": 1, "mediumint": 2, "int": 2, "integer": 2, "bigint": 3}
_INTEGER_ROOTS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_TYPE_OF_NAME: Mapping[str, DataType] = {
    "float": AtomicType("FLOAT"),
    "double": AtomicType("DOUBLE"),
    "real": AtomicType("DOUBLE"),
    "date": AtomicType("DATE"),
    "year": AtomicType("INT"),
    "tinyblob": BYTES,
    "blob": BYTES,
    "mediumblob": BYTES,
    "longblob": BYTES,
}


# -- AWS DMS ---------------------------------------------------------------------------------------


_TIME = AtomicType("TIMESTAMP_LTZ", precision=6)

_METADATA = {
    # A change that is committed while its table is loaded is applied after the load, but a loaded
    # row has the time when it was loaded.
    "commit.timestamp": Derived(
        """CASE WHEN operation = '"load"' THEN '"1970-01-01T00:00:00Z"' ELSE timestamp END""",
        {"operation": "/metadata/operation", "timestamp": "/metadata/timestamp"},
    ),
    "transaction.id": Derived(
        "coalesce(transaction_id, '0')", {"transaction_id": "/metadata/transaction-id"}
    ),
    "record.id": Derived(
        "coalesce(record_id, '0')", {"record_id": "/metadata/transaction-record-id"}
    ),
    "change_seq": Derived(
        """coalesce(nullif(coalesce(flat_seq, data_seq), '""'), '0')""",
        {"flat_seq": "/AR_H_CHANGE_SEQ", "data_seq": "/data/AR_H_CHANGE_SEQ"},
    ),
}

_ORDERINGS = (
    Ordering(
        ("AR_H_CHANGE_SEQ", "data.AR_H_CHANGE_SEQ"),
        (
            SequenceSource(
                "change_seq", "_change_seq", AtomicType("DECIMAL", precision=38, scale=0)
            ),
        ),
    ),
    Ordering(
        ("metadata.timestamp",),
        (
            SequenceSource("commit.timestamp", "_timestamp", _TIME),
            SequenceSource("transaction.id", "_transaction_id", BIGINT),
            SequenceSource("record.id", "_record_id", BIGINT),
        ),
    ),
)

_FORMER = (
    (
        SequenceSource("metadata.timestamp", "_timestamp", _TIME),
        SequenceSource("metadata.transaction-record-id", "_record_id", BIGINT),
    ),
    (SequenceSource("AR_H_CHANGE_SEQ", "_change_seq", STRING),),
)

DMS = Envelope(
    members={
        "row": "$",
        "op": "/Op",
        "data": "/data",
        "image": "/before-image",
        "record": "/metadata/record-type",
        "operation": "/metadata/operation",
    },
    action="""CASE
        WHEN record = '"control"'
            AND operation NOT IN ('"truncate-table"', '"drop-table"') THEN 'control'
        WHEN record = '"control"' THEN NULL
        WHEN operation IN ('"load"', '"insert"') THEN 'insert'
        WHEN operation = '"update"' THEN 'update'
        WHEN operation = '"delete"' THEN 'delete'
        WHEN operation IS NOT NULL THEN NULL
        WHEN op = '"I"' THEN 'insert'
        WHEN op = '"U"' THEN 'update'
        WHEN op = '"D"' THEN 'delete'
        WHEN op IS NULL AND data IS NULL AND record IS NULL THEN 'insert' END""",
    problem="""CASE
        WHEN record = '"control"' THEN operation || ' removes rows that the feed does not name'
        WHEN operation IS NOT NULL THEN 'metadata.operation: found ' || operation
            || ', expected one of "load", "insert", "update", "delete"'
        ELSE 'Op: found ' || coalesce(op, 'nothing') || ', expected one of "I", "U", "D"' END""",
    changes="""[{
        'before': CASE WHEN action = 'delete' THEN CASE WHEN operation IS NULL
            THEN row ELSE coalesce(data, image) END ELSE image END,
        'after': CASE WHEN action <> 'delete' THEN CASE WHEN operation IS NULL
            THEN row ELSE data END END}]""",
    metadata=_METADATA,
    orderings=_ORDERINGS,
    former=_FORMER,
    origin=("metadata.schema-name", "metadata.table-name"),
    housekeeping=frozenset({"Op"}),
)


# -- Maxwell JSON ----------------------------------------------------------------------------------


_POSITION = {"position": "/position"}
_FILE = "split_part(position, ':', 1)"

_MAXWELL_METADATA = {
    # The last row of a transaction has no offset, only the commit flag.
    "xoffset": Derived(
        "CASE WHEN commit = 'true' THEN '9223372036854775807' ELSE coalesce(xoffset, '-1') END",
        {"commit": "/commit", "xoffset": "/xoffset"},
    ),
    # Bootstrapped rows have no position. They precede the changes of the stream.
    "binlog.file": Derived(
        rf"coalesce(nullif(ltrim(regexp_extract({_FILE}, '\.([0-9]+)$', 1), '0'), ''), '0')",
        _POSITION,
    ),
    "binlog.position": Derived(
        """coalesce(rtrim(split_part(position, ':', -1), '"'), '0')""", _POSITION
    ),
    LOG: Derived(
        rf"""coalesce(nullif(regexp_extract({_FILE}, '^"(.*)\.[0-9]+$', 1), ''),
            ltrim({_FILE}, '"'))""",
        _POSITION,
    ),
    SERVER: Derived("server", {"server": "/server_id"}),
    TIME: Derived("CASE WHEN ts IS NOT NULL THEN ts || '000' END", {"ts": "/ts"}),
    NUMBER: Derived(rf"nullif(regexp_extract({_FILE}, '\.([0-9]+)$', 1), '')", _POSITION),
    POSITION: Derived("""rtrim(split_part(position, ':', -1), '"')""", _POSITION),
}

_XOFFSET = SequenceSource("xoffset", "_xoffset", BIGINT)
_STARTS = (SequenceSource("ts", "_ts", BIGINT), SequenceSource("xid", "_xid", BIGINT), _XOFFSET)

# Both ts and xid are set when a statement starts. Only the binlog position follows the order of
# commits.
_MAXWELL_ORDERINGS = (
    Ordering(
        ("position",),
        (
            EPOCH_SOURCE,
            SequenceSource("binlog.file", "_file", BIGINT),
            SequenceSource("binlog.position", "_position", BIGINT),
            _XOFFSET,
        ),
    ),
    Ordering(
        ("ts",),
        _STARTS,
        refusal="Maxwell's messages have no binlog position, and 'ts' and 'xid' are those of the "
        "start of a statement, not of its commit. Set output_binlog_position=true in Maxwell, or "
        "give sequence_by ts,xid,xoffset if no statement waits for another one",
    ),
)

_MAXWELL_FORMER = (
    (
        SequenceSource("position", "_file", STRING),
        SequenceSource("binlog.position", "_position", BIGINT),
        _XOFFSET,
    ),
    _STARTS,
)

MAXWELL = Envelope(
    members={"type": "/type", "data": "/data", "old": "/old"},
    action="""CASE
        WHEN type IN ('"insert"', '"bootstrap-insert"') THEN 'insert'
        WHEN type = '"update"' THEN 'update'
        WHEN type = '"delete"' THEN 'delete'
        WHEN type IN ('"bootstrap-start"', '"bootstrap-complete"', '"heartbeat"')
            OR starts_with(type, '"database-') OR starts_with(type, '"table-') THEN 'control'
        END""",
    problem="""'type: found ' || coalesce(type, 'nothing')
        || ', expected one of "insert", "update", "delete", "bootstrap-insert"'""",
    changes="""[{
        'before': CASE action WHEN 'delete' THEN data WHEN 'update' THEN old END,
        'after': CASE WHEN action <> 'delete' THEN data END}]""",
    metadata=_MAXWELL_METADATA,
    orderings=_MAXWELL_ORDERINGS,
    former=_MAXWELL_FORMER,
    origin=("database", "table"),
    key_pointer="/primary_key_columns",
)


# -- formats by name -------------------------------------------------------------------------------


FORMATS: Mapping[str, Envelope] = {
    "debezium-json": DEBEZIUM,
    "maxwell-json": MAXWELL,
    "canal-json": CANAL,
    "dms-json": DMS,
    "json": JSON_ROWS,
}


def envelope_of(format: str) -> Envelope:
    """The envelope of a format. Raises `InvalidError`, listing the known formats."""
    if format not in FORMATS:
        raise InvalidError(f"format: found {format!r}, expected one of {', '.join(FORMATS)}")
    return FORMATS[format]
