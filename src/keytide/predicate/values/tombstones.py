"""Which rows their columns mark as deletes."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.row_kind import RowKind
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.types import AtomicType, Field

__all__ = ["marking_column", "with_tombstones"]


def marking_column(options: TableOptions) -> str | None:
    """The column that marks rows as deletes, if there is one."""
    return options.tombstone_key[0] if options.tombstone_key else options.delete_record_column


def with_tombstones(
    kinds: pa.ChunkedArray,
    columns: Mapping[str, pa.ChunkedArray],
    schema: TableSchema,
    options: TableOptions,
) -> pa.ChunkedArray:
    """The kinds of rows (`RowKind` as int8), with -D for each row that matches the tombstone
    condition.

    The given kind of these rows is ignored (rules R6 to R8 of docs/semantics.md). REQUIRES: the
    tombstone column is among `columns`, in the type of the schema.
    """
    if options.tombstone_key:
        (name,) = options.tombstone_key
        dead = _is_tombstone(columns[name], schema.field(name), options.tombstone_string_key_value)
    elif options.delete_record_column is not None:
        dead = _is_delete_record(columns[options.delete_record_column])
    else:
        return kinds
    return pc.if_else(dead, pa.scalar(int(RowKind.DELETE), pa.int8()), kinds)


def _is_tombstone(column: pa.ChunkedArray, field: Field, marker: str | None) -> pa.ChunkedArray:
    assert isinstance(field.type, AtomicType)
    if field.type.root == "BOOLEAN":
        return pc.fill_null(column, False)
    if marker is None:
        return pc.is_valid(column)
    if field.type.root == "CHAR":
        column, marker = pc.utf8_rtrim(column, " "), marker.rstrip(" ")
    return pc.fill_null(pc.equal(column, pa.scalar(marker, column.type)), False)


def _is_delete_record(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which rows a column of `upsert.delete-record-column` marks as deletes.

    NULL deletes nothing.
    """
    if pa.types.is_string(column.type):
        text = pc.ascii_lower(pc.utf8_rtrim(column, " "))  # CHAR is padded
        dead = pc.or_(pc.equal(text, "true"), pc.equal(text, "1"))
    elif pa.types.is_boolean(column.type):
        dead = column
    else:
        dead = pc.and_(pc.greater_equal(column, 1), pc.less(column, 2))
    return pc.fill_null(dead, False)
