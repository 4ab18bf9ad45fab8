"""Hive type names of columns, as in Apache Paimon's catalog."""

from __future__ import annotations

from keytide.types import (
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    MultisetType,
    RowType,
    VectorType,
)

__all__ = ["hive_type"]

_CHAR_LENGTH_MAX = 255
_VARCHAR_LENGTH_MAX = 65_535


def hive_type(type_: DataType) -> str:
    """The Hive type name. Hive has no lengths of bytes, and a time of day is a string."""
    match type_:
        case ArrayType():
            return f"array<{hive_type(type_.element)}>"
        case VectorType():
            return f"array<{hive_type(type_.element)}>"
        case MultisetType():
            return f"map<{hive_type(type_.element)},int>"
        case MapType():
            return f"map<{hive_type(type_.key)},{hive_type(type_.value)}>"
        case RowType():
            members = (f"{each.name}:{hive_type(each.type)}" for each in type_.fields)
            return f"struct<{','.join(members)}>"
        case AtomicType():
            return _atomic(type_)
    return "binary"


def _atomic(type_: AtomicType) -> str:
    length = type_.length or 0
    match type_.root:
        case "DECIMAL":
            return f"decimal({type_.precision},{type_.scale})"
        case "CHAR" if length <= _CHAR_LENGTH_MAX:
            return f"char({length})"
        case "VARCHAR" if length <= _VARCHAR_LENGTH_MAX:
            return f"varchar({length})"
    return _PLAIN.get(type_.root, "binary")


_PLAIN = {
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INT": "int",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "CHAR": "string",
    "VARCHAR": "string",
    "DATE": "date",
    "TIME": "string",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_LTZ": "timestamp with local time zone",
    "VARIANT": "struct<value:binary,metadata:binary>",
}
