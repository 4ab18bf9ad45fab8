"""Adds missing columns to rows, so that they fit the table.

For writers that declare that the columns of their rows vary. Otherwise, a row is a complete row.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from keytide.base.row_kind import ROW_KIND
from keytide.definition.growth import element_of
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.types import ArrayType, AtomicType, DataType, Field, MapType, RowType, type_from_arrow
from keytide.types.widening import holds_all

__all__ = ["padded", "padded_schema"]


def padded(rows: pa.Table, schema: TableSchema, options: TableOptions) -> pa.Table:
    """The rows with NULL in missing columns and in missing members of a ROW.

    Integers are converted to the floating-point type of a column that can represent all of them.
    Columns that the table lacks must be NULL in all rows and are left out. Other rows are not
    changed.
    """
    target = padded_schema(rows.schema, schema, options)
    if target.equals(rows.schema):
        return rows
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in target
    ]
    return pa.Table.from_arrays(columns, schema=target)


def padded_schema(found: pa.Schema, schema: TableSchema, options: TableOptions) -> pa.Schema:
    """The schema of rows after they are padded."""
    own = [
        _as_wide(column, schema.field(column.name).type)
        if column.name in schema.by_name
        else column
        for column in found
        if column.name in schema.by_name or not pa.types.is_null(column.type)
    ]
    names = {ROW_KIND, *found.names}
    lacking = [f for f in _may_lack(schema, options) if f.name not in names]
    return pa.schema([*own, *(pa.field(f.name, f.type.to_arrow()) for f in lacking)])


def _may_lack(schema: TableSchema, options: TableOptions) -> Iterable[Field]:
    # Columns that order rows, or that determine their kind, are never left out.
    named = {*options.sequence_field, options.rowkind_field, options.out_of_order_column}
    return (f for f in schema.fields if f.type.nullable and f.name not in named)


def _as_wide(column: pa.Field, type_: DataType) -> pa.Field:
    return column.with_type(_wide_type(column.type, type_))


def _wide_type(found: pa.DataType, type_: DataType) -> pa.DataType:
    element = element_of(found)
    if isinstance(type_, RowType) and pa.types.is_struct(found):
        return pa.struct(_wide_members(found, type_))
    if isinstance(type_, ArrayType) and element is not None:
        wide = _as_wide(element, type_.element)
        return found if wide.equals(element) else pa.list_(wide)
    if isinstance(type_, MapType) and pa.types.is_map(found):
        return pa.map_(found.key_field, _as_wide(found.item_field, type_.value))
    if isinstance(type_, AtomicType) and pa.types.is_integer(found):
        return type_.to_arrow() if _is_exact_float(found, type_) else found
    return found


def _wide_members(found: pa.StructType, type_: RowType) -> list[pa.Field]:
    known = {member.name: member for member in type_.fields}
    own = [
        _as_wide(member, known[member.name].type) if member.name in known else member
        for member in found
        if member.name in known or not pa.types.is_null(member.type)
    ]
    names = {member.name for member in found}
    lacking = [m for m in type_.fields if m.type.nullable and m.name not in names]
    return [*own, *(pa.field(m.name, m.type.to_arrow()) for m in lacking)]


def _is_exact_float(found: pa.DataType, type_: AtomicType) -> bool:
    try:
        whole = type_from_arrow(found)
    except InvalidError:
        return False
    is_float = type_.root in ("FLOAT", "DOUBLE")
    return is_float and isinstance(whole, AtomicType) and holds_all(whole, type_)
