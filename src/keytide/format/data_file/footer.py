"""Checks footers of Parquet files before anything relies on them.

Arrow crashes the process if Python requests a column chunk or its statistics from a footer that
contradicts itself. A footer with an intact seal is unchanged. In files of other writers, which have
no seal, the members that Arrow compares are compared first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from thrift.protocol.TProtocol import TType

from keytide.format.checksum import FOOTER_SEAL, check_footer
from keytide.format.parquet_footer import Member, has, read_struct

__all__ = ["read_footer"]

# The minimum number of bytes in a bound, by the type of its column.
_VALUE_BYTES = {
    "BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8,
}  # fmt: skip
# The types, in the order of their numbers in Parquet's Thrift definition.
_TYPES = (*_VALUE_BYTES, "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
# The lowest and the highest value, in the old and in the present form.
_BOUNDS = (1, 2, 5, 6)


def read_footer(file: pa.NativeFile) -> pq.FileMetaData:
    """The footer of a file. All of its members are safe to request.

    Raises OSError if it has changed since it was written or contradicts itself, and the errors of
    Arrow.
    """
    stored = check_footer(file)
    footer = pq.read_metadata(file)
    if not FOOTER_SEAL.is_set(stored):
        try:
            _refuse_contradictions(footer.schema, read_struct(stored[:-8]))
        except OSError:
            raise
        # Thrift raises any kind of error for bytes that it does not understand.
        except Exception as error:
            raise OSError(f"its footer is not readable: {error!r}") from error
    return footer


def _refuse_contradictions(schema: pq.ParquetSchema, footer: Sequence[Member]) -> None:
    # FileMetaData: 4 row_groups. RowGroup: 1 columns. ColumnChunk: 3 meta_data.
    leaves = [schema.column(i) for i in range(len(schema))]
    for group in _items(footer, 4):
        chunks = _items(group, 1)
        if len(chunks) != len(leaves):
            raise OSError(f"its footer lists {len(chunks)} column chunks, expected {len(leaves)}")
        for leaf, chunk in zip(leaves, chunks, strict=True):
            _refuse_chunk(leaf, _value(chunk, 3, TType.STRUCT, ()))


def _refuse_chunk(leaf: pq.ColumnSchema, chunk: Sequence[Member]) -> None:
    # ColumnMetaData: 1 type, 12 statistics, 16 size_statistics. SizeStatistics: 1
    # unencoded_byte_array_data_bytes, 2 and 3 how many values there are on each level.
    stored = _TYPES[_value(chunk, 1, TType.I32, 0)]
    if stored != leaf.physical_type:
        raise OSError(f"its footer has type {stored} for a column of type {leaf.physical_type}")
    sizes = _value(chunk, 16, TType.STRUCT, ())
    lists, nulls = len(_items(sizes, 2)), len(_items(sizes, 3))
    is_counted = lists in (0, leaf.max_repetition_level + 1)
    is_counted &= nulls in (0, leaf.max_definition_level + 1)
    if not is_counted or (has(sizes, 1) and stored != "BYTE_ARRAY"):
        raise OSError("its footer has value counts that do not fit its columns")
    bounds = _value(chunk, 12, TType.STRUCT, ())
    width = _VALUE_BYTES.get(stored, 0)
    if any(len(_value(bounds, n, TType.STRING, b"0" * width)) < width for n in _BOUNDS):
        raise OSError("its footer has bounds that do not fit the type of their column")


def _items(members: Sequence[Member], number: int) -> Sequence[Any]:
    found = _value(members, number, TType.LIST, None)
    return () if found is None else found.items


def _value(members: Sequence[Member], number: int, type_: int, default: Any) -> Any:
    """The value of a member that all readers read in the same way: it occurs once, with its
    type.
    """
    found = [member for member in members if member.id == number]
    if not found:
        return default
    if len(found) > 1 or found[0].type != type_:
        raise OSError(f"member {number} of its footer is repeated or has another type")
    return found[0].value
