"""Logical types and fields, with their stored, SQL and Arrow forms.

A type can be written as stored text (the exact text in a Paimon schema file), as SQL, and as an
Arrow type. Stored text and SQL differ only for nested types: a schema file contains them as JSON
objects and does not accept ``ARRAY<INT>``.

Several logical types share an Arrow type, so ``type_from_arrow(t.to_arrow())`` returns the widest
of them: CHAR and VARCHAR become STRING, BINARY, VARBINARY and BLOB become BYTES, MULTISET becomes
MAP, VECTOR becomes ARRAY, and VARIANT becomes ROW. The other direction is lossless: every Arrow
type from :meth:`DataType.to_arrow` is the same after a conversion to a logical type and back.
"""

from keytide.types.logical import (
    BYTES,
    LENGTH_MAX,
    STRING,
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    MultisetType,
    RowType,
    VectorType,
    arrow_schema,
    has_variant,
    quoted,
)
from keytide.types.spelling import parse_field, parse_sql_type, parse_type, type_from_arrow

__all__ = [
    "BYTES",
    "LENGTH_MAX",
    "STRING",
    "ArrayType",
    "AtomicType",
    "DataType",
    "Field",
    "MapType",
    "MultisetType",
    "RowType",
    "VectorType",
    "arrow_schema",
    "has_variant",
    "parse_field",
    "parse_sql_type",
    "parse_type",
    "quoted",
    "type_from_arrow",
]
