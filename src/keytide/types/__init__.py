"""The vocabulary of values: logical types, fields, and their three spellings.

A type is written as stored text (the exact text of a Paimon schema file), as SQL, and as an
Arrow type. Stored text and SQL differ for nested types only: a schema file holds them as JSON
objects and rejects ``ARRAY<INT>``.

Several logical types share one Arrow type, so ``type_from_arrow(t.to_arrow())`` gives the widest
of them: CHAR and VARCHAR come back as STRING, BINARY, VARBINARY and BLOB as BYTES, MULTISET as
MAP, VECTOR as ARRAY, VARIANT as ROW. The other direction loses nothing: every Arrow type made
by :meth:`DataType.to_arrow` survives the way through a logical type and back.
"""

from keytide.types.arrow import type_from_arrow
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
    quoted,
)
from keytide.types.stored import parse_field, parse_type
from keytide.types.text import parse_sql_type

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
    "parse_field",
    "parse_sql_type",
    "parse_type",
    "quoted",
    "type_from_arrow",
]
