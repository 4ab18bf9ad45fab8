"""Canal JSON: ``{"type", "data": [rows], "old": [rows], "isDdl", "es", "ts", "id"}``.

One message contains every row of a statement. Values are strings. ``old`` contains only the columns
that an update changed. DDL is a control message, except a truncate, which is rejected because the
feed does not list the removed rows. Bytes are written as ISO-8859-1 characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from keytide.feeds.feed import Envelope
from keytide.feeds.order import BIGINT, Ordering, SequenceSource
from keytide.feeds.values import Encoding
from keytide.types import BYTES, STRING, AtomicType, DataType

__all__ = ["CANAL", "type_of_mysql"]

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
    read_types=lambda stated, _: _types_of_columns(stated),
    key_pointer="/pkNames",
)


def _types_of_columns(stated: Any) -> dict[str, DataType]:
    found = stated.items() if isinstance(stated, dict) else ()
    return {name: type_of_mysql(text) for name, text in found if isinstance(text, str)}


def type_of_mysql(text: str) -> DataType:
    """The column type for a ``mysqlType`` such as ``decimal(12,2) unsigned``.

    Unsigned integers get the next wider type. A type without a counterpart becomes STRING.
    """
    match = _MYSQL_TYPE.match(text.strip().lower())
    if match is None:
        return STRING
    name, numbers = match["name"], [int(n) for n in re.findall(r"\d+", match["numbers"] or "")]
    if name in _INTEGER_WIDTHS:
        return _integer(_INTEGER_WIDTHS[name], "unsigned" in text.lower())
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


def _integer(width: int, unsigned: bool) -> DataType:
    if unsigned and width == len(_INTEGER_ROOTS) - 1:
        return AtomicType("DECIMAL", precision=20, scale=0)
    return AtomicType(_INTEGER_ROOTS[width + unsigned])
