"""Extends a definition so that rows with more columns or wider types fit.

Types are determined by the columns of the rows, not by their values, so the same columns always
lead to the same table. Nothing is removed: a column that the rows lack stays.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from keytide.base.row_kind import ROW_KIND
from keytide.definition.evolution import AddColumn, ChangeColumnType, SchemaChange
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.types import ArrayType, AtomicType, DataType, MapType, RowType, type_from_arrow
from keytide.types.widening import common_type, path_text

__all__ = ["element_of", "growth"]


def growth(schema: TableSchema, columns: pa.Schema, table: str) -> list[SchemaChange]:
    """The changes needed so that rows with these columns fit. Usually none.

    Missing columns and members of a ROW are added at the end, nullable. Types are widened to the
    narrowest type that holds every value of both. If there is none, and for columns of the primary
    key and the partition, the type stays, and the write checks the values. A column of Arrow's null
    type adds nothing. Raises `InvalidError` for a new column with an unsupported type.
    """
    fixed = {*schema.primary_keys, *schema.partition_keys}
    changes: list[SchemaChange] = []
    for column in columns:
        if column.name == ROW_KIND or column.name in fixed:
            continue
        if column.name in schema.by_name:
            type_ = schema.field(column.name).type
            changes += _in_column((column.name,), type_, column.type, table)
        else:
            changes += _added((column.name,), column.type, table)
    return changes


def element_of(found: pa.DataType) -> pa.Field | None:
    """The element of a list of any layout. None if it is not a list."""
    is_list = (
        pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list,
        pa.types.is_list_view, pa.types.is_large_list_view,
    )  # fmt: skip
    return found.value_field if any(check(found) for check in is_list) else None


def _in_column(
    path: tuple[str, ...], type_: DataType, found: pa.DataType, table: str
) -> Iterator[SchemaChange]:
    element = element_of(found)
    if isinstance(type_, RowType) and pa.types.is_struct(found):
        known = {field.name: field.type for field in type_.fields}
        for member in found:
            place = (*path, member.name)
            if member.name in known:
                yield from _in_column(place, known[member.name], member.type, table)
            else:
                yield from _added(place, member.type, table)
    elif isinstance(type_, ArrayType) and element is not None:
        yield from _in_column((*path, "element"), type_.element, element.type, table)
    elif isinstance(type_, MapType) and pa.types.is_map(found):
        yield from _in_column((*path, "value"), type_.value, found.item_type, table)
    elif isinstance(type_, AtomicType):
        yield from _widened(path, type_, found)


def _widened(path: tuple[str, ...], old: AtomicType, found: pa.DataType) -> Iterator[SchemaChange]:
    # Arrow has no length limits for strings, so the type is never widened to a longer one.
    if old.length is not None:
        return
    try:
        new = type_from_arrow(found)
    except InvalidError:
        return  # the write may still accept values that fit
    if isinstance(new, AtomicType):
        wider = common_type(old, new)
        if wider is not None and wider.with_nullable(True) != old.with_nullable(True):
            yield ChangeColumnType(path, wider)


def _added(path: tuple[str, ...], found: pa.DataType, table: str) -> Iterator[SchemaChange]:
    if pa.types.is_null(found):
        return
    try:
        yield AddColumn(path, type_from_arrow(found))
    except InvalidError as error:
        raise InvalidError(
            f"table {table}: column {path_text(path)} of the rows cannot be added: {error}"
        ) from error
