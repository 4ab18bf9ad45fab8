"""Schema evolution: changes as values, the pure function that applies them, and wider definitions.

A schema is never edited: `evolve` creates the next one. Columns keep their field ids through
renames and moves, a new column gets ids that were never used, and files keep the schema that they
were written with. So a change is allowed only if every stored file can still be read under the new
schema without losing a value, and if no stored row changes. Keys and partitions can never change.
The options for the layout and merging of files cannot change while there are rows.

A path names a column, or a part of it: members of a ROW by name, 'element' of an ARRAY, 'value' of
a MAP.

>>> evolve(schema, [AddColumn(("address", "zip"), STRING)])                  # doctest: +SKIP

A definition can be extended so that rows with more columns or wider types fit. Types are determined
by the columns of the rows, not by their values, so the same columns always lead to the same table.
Nothing is removed: a column that the rows lack stays.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from keytide.base.arguments import checked, checked_members
from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import ROW_KIND
from keytide.definition import option_changes
from keytide.definition.checks import refuse_same_names, validate_definition
from keytide.definition.column_rules import generations_in
from keytide.errors import AlreadyExistsError, InvalidError, NotFoundError
from keytide.format.schema import (
    TableSchema,
    assign_field_ids,
    check_fields,
    highest_field_id,
    validate_schema,
)
from keytide.options import TableOptions, stored_name, stored_names
from keytide.types import ArrayType, AtomicType, DataType, Field, MapType, RowType, type_from_arrow
from keytide.types.logical import common_type, path_text, widened

__all__ = [
    "AddColumn",
    "After",
    "ChangeColumnNullability",
    "ChangeColumnType",
    "ChangeComment",
    "DropColumn",
    "First",
    "MoveColumn",
    "Position",
    "RemoveOption",
    "RenameColumn",
    "SchemaChange",
    "SetOption",
    "evolve",
]

# -- changes and their application -----------------------------------------------------------------


Path: TypeAlias = "tuple[str, ...]"


@checked_members
@dataclass(frozen=True)
class First:
    """Before all other columns, or members of the same ROW."""


@checked_members
@dataclass(frozen=True)
class After:
    """Directly after the column, or member of the same ROW, with that name."""

    name: str


Position: TypeAlias = First | After


@checked_members
@dataclass(frozen=True)
class SetOption:
    """Set a table option."""

    key: str
    value: str


@checked_members
@dataclass(frozen=True)
class RemoveOption:
    """Remove a table option, so that its default applies again.

    An option that this release does not know can be removed too, under its exact name.
    """

    key: str


@checked_members
@dataclass(frozen=True)
class AddColumn:
    """Add a column, or a member of a ROW. It is NULL in all existing rows.

    `type` must be nullable. Without a `position`, the column becomes the last one. `default` is the
    text of the value that later writes store instead of NULL.
    """

    path: Path
    type: DataType
    comment: str | None = None
    position: Position | None = None
    default: str | None = None


@checked_members
@dataclass(frozen=True)
class DropColumn:
    """Drop a column, or a member of a ROW. A later one with the same name is a different one."""

    path: Path


@checked_members
@dataclass(frozen=True)
class RenameColumn:
    """Rename a column, or a member of a ROW. Options that name a column are updated."""

    path: Path
    new_name: str


@checked_members
@dataclass(frozen=True)
class ChangeColumnType:
    """Widen a type: to one that can represent every value of the old one exactly.

    Nullability does not change, here and in all parts of the type.
    """

    path: Path
    type: DataType


@checked_members
@dataclass(frozen=True)
class ChangeColumnNullability:
    """Allow NULL. Forbidding NULL is refused, because stored rows may contain it."""

    path: Path
    nullable: bool


@checked_members
@dataclass(frozen=True)
class MoveColumn:
    """Move a column among its neighbors."""

    path: Path
    position: Position


@checked_members
@dataclass(frozen=True)
class ChangeComment:
    """Set the comment of a column or, with an empty path, of the table.

    None removes the comment.
    """

    comment: str | None
    path: Path = ()


SchemaChange: TypeAlias = (
    SetOption | RemoveOption | AddColumn | DropColumn | RenameColumn | ChangeColumnType
    | ChangeColumnNullability | MoveColumn | ChangeComment
)  # fmt: skip


@checked
def evolve(
    schema: TableSchema, changes: Sequence[SchemaChange], *, has_rows: bool = True
) -> TableSchema:
    """The schema after `changes` are applied to `schema` one after the other.

    `has_rows` is false for a table to which nothing was ever written. Options that affect stored
    files may then still change. Raises `InvalidError`, `NotFoundError` or `AlreadyExistsError`,
    which say what was found and what is possible, and `UnsupportedError` if this release cannot
    keep its guarantees for the new table.
    """
    evolved = schema
    for change in changes:
        # With the format's own spelling of an option's name. An option that another engine has set
        # is removed under its name, known or not.
        stored = change
        if isinstance(change, AddColumn | ChangeColumnType):
            check_fields([Field(-1, str(change.path), change.type)])
        elif isinstance(change, SetOption):
            ((key, value),) = stored_names({change.key: change.value}).items()
            stored = SetOption(key, value)
        elif isinstance(change, RemoveOption) and change.key not in evolved.options:
            stored = RemoveOption(stored_name(change.key))
        evolved = _apply(evolved, stored)
    option_changes.refuse_losing_read(schema, evolved, generations_in(schema))
    options = option_changes.completed_options(evolved)
    evolved = replace(evolved, id=schema.id + 1, options=options)
    validate_schema(evolved)
    if has_rows:
        option_changes.refuse_bucket_change(schema, evolved)
    validate_definition(evolved, TableOptions.parse(evolved.options))
    # Last: a definition that cannot work is reported as such, not as a forbidden change.
    option_changes.refuse_changes(schema, evolved, has_rows=has_rows)
    return evolved


def _apply(schema: TableSchema, change: SchemaChange) -> TableSchema:
    if isinstance(change, SetOption):
        options = option_changes.with_option(schema.options, change.key, change.value)
        return replace(schema, options=options)
    if isinstance(change, RemoveOption):
        options = option_changes.with_option(schema.options, change.key, None)
        if options == schema.options:
            there = ", ".join(sorted(schema.options)) or "none"
            raise NotFoundError(f"option {change.key!r} is not set; options that are set: {there}")
        return replace(schema, options=options)
    if isinstance(change, ChangeComment) and change.path == ():
        return replace(schema, comment=change.comment)
    if not change.path or not all(change.path):
        raise InvalidError(f"{change!r} has no path to a column; give a tuple of names")
    return _COLUMN_CHANGES[type(change)](schema, change)


# -- columns ---------------------------------------------------------------------------------------


def _add(schema: TableSchema, change: AddColumn) -> TableSchema:
    if not change.type.nullable:
        raise InvalidError(
            f"column {path_text(change.path)} to add is {change.type.sql()}, but existing rows "
            "have no value for it; add it as nullable"
        )
    new = Field(-1, change.path[-1], change.type, change.comment, change.default)
    # Above all ids that were ever used: an old file may contain a dropped column under its id.
    (numbered,) = assign_field_ids([new], schema.highest_field_id + 1)
    refuse_same_names([numbered])

    siblings = _siblings(schema.fields, change.path)
    _refuse_taken(siblings, change.path, numbered.name)
    siblings = _inserted(siblings, numbered, change.position, change.path)
    fields = _with_siblings(schema.fields, change.path, siblings)
    return replace(schema, fields=fields, highest_field_id=highest_field_id([numbered]))


def _drop(schema: TableSchema, change: DropColumn) -> TableSchema:
    _refuse_key(schema, change.path, "dropped", schema.primary_keys)
    if len(change.path) == 1:
        option_changes.refuse_dropping_named(schema.options, change.path[0])

    siblings = _siblings(schema.fields, change.path)
    index = _index(siblings, change.path)
    if len(siblings) == 1:
        raise InvalidError(
            f"Cannot drop all fields: {path_text(change.path)} is the only one; add another one "
            "first"
        )
    rest = (*siblings[:index], *siblings[index + 1 :])
    return replace(schema, fields=_with_siblings(schema.fields, change.path, rest))


def _rename(schema: TableSchema, change: RenameColumn) -> TableSchema:
    _refuse_key(schema, change.path, "renamed")
    old, new = change.path[-1], change.new_name
    if not new.strip():
        raise InvalidError(
            f"column {path_text(change.path)} cannot be renamed to {new!r}; give a name"
        )

    siblings = _siblings(schema.fields, change.path)
    index = _index(siblings, change.path)
    before, after = siblings[:index], siblings[index + 1 :]
    _refuse_taken((*before, *after), change.path, new)  # the case of the column itself may change
    renamed = (*before, replace(siblings[index], name=new), *after)
    fields = _with_siblings(schema.fields, change.path, renamed)
    if len(change.path) > 1:
        return replace(schema, fields=fields)
    return replace(
        schema,
        fields=fields,
        primary_keys=tuple(new if name == old else name for name in schema.primary_keys),
        options=option_changes.renamed_options(schema.options, old, new),
    )


def _retype(schema: TableSchema, change: ChangeColumnType) -> TableSchema:
    _refuse_key(schema, change.path, "retyped", schema.primary_keys)

    path, new, old = change.path, change.type, _type_at(schema.fields, change.path)
    # Refuse CHAR to VARCHAR: trailing blanks count there, so the order of versions would change.
    is_freed = (old.root, new.root) == ("CHAR", "VARCHAR")
    if len(path) == 1 and is_freed and option_changes.orders_versions(schema, path[0]):
        raise InvalidError(
            f"column {path[0]!r} is {old.sql()} and orders versions, so it cannot become "
            f"{new.sql()}, in which trailing blanks are significant; use a longer CHAR"
        )
    return replace(schema, fields=_with_type(schema.fields, path, widened(old, new, path)))


def _set_nullability(schema: TableSchema, change: ChangeColumnNullability) -> TableSchema:
    _refuse_key(schema, change.path, "made nullable or not", schema.primary_keys)

    old = _type_at(schema.fields, change.path)
    if old.nullable and not change.nullable:
        raise InvalidError(
            f"column {path_text(change.path)} is {old.sql()} and cannot become NOT NULL, because "
            "existing rows can contain NULL. Write the rows to a new table with a NOT NULL column"
        )
    new = old.with_nullable(change.nullable)
    return replace(schema, fields=_with_type(schema.fields, change.path, new))


def _move(schema: TableSchema, change: MoveColumn) -> TableSchema:
    siblings = _siblings(schema.fields, change.path)
    index = _index(siblings, change.path)
    rest = (*siblings[:index], *siblings[index + 1 :])
    moved = _inserted(rest, siblings[index], change.position, change.path)
    return replace(schema, fields=_with_siblings(schema.fields, change.path, moved))


def _comment(schema: TableSchema, change: ChangeComment) -> TableSchema:
    siblings = _siblings(schema.fields, change.path)
    index = _index(siblings, change.path)
    commented = replace(siblings[index], description=change.comment)
    siblings = (*siblings[:index], commented, *siblings[index + 1 :])
    return replace(schema, fields=_with_siblings(schema.fields, change.path, siblings))


_COLUMN_CHANGES: Mapping[type, Callable[[TableSchema, Any], TableSchema]] = {
    AddColumn: _add,
    DropColumn: _drop,
    RenameColumn: _rename,
    ChangeColumnType: _retype,
    ChangeColumnNullability: _set_nullability,
    MoveColumn: _move,
    ChangeComment: _comment,
}


def _refuse_key(
    schema: TableSchema, path: Path, done: str, primary_keys: Sequence[str] = ()
) -> None:
    """Refuse to change a partition column, or one of the given key columns."""
    name = path[0]
    role = "partition" if name in schema.partition_keys else "primary key"
    if name in (*schema.partition_keys, *primary_keys):
        raise InvalidError(
            f"{role} column {name!r} cannot be {done}: Cannot drop, rename or retype partition "
            "columns, nor drop or retype primary key columns, because stored files are placed "
            "and sorted by them. Write the rows to a new table"
        )


def _refuse_taken(siblings: Sequence[Field], path: Path, name: str) -> None:
    for field in siblings:
        if field.name.lower() == name.lower():
            raise AlreadyExistsError(
                f"column {path_text((*path[:-1], field.name))} already exists; choose another "
                f"name than {name!r}, because SQL names are case-insensitive"
            )


# -- positions in nested types ---------------------------------------------------------------------


def _siblings(fields: tuple[Field, ...], path: Path) -> tuple[Field, ...]:
    """The fields next to the last name of `path`, and that one itself."""
    if len(path) == 1:
        return fields
    owner = _type_at(fields, path[:-1])
    if not isinstance(owner, RowType):
        raise _no_part(owner, path[-1], path)
    return owner.fields


def _with_siblings(
    fields: tuple[Field, ...], path: Path, siblings: tuple[Field, ...]
) -> tuple[Field, ...]:
    """The fields with others in place of those that `_siblings` gives."""
    if len(path) == 1:
        return siblings
    owner = _type_at(fields, path[:-1])
    assert isinstance(owner, RowType)
    return _with_type(fields, path[:-1], replace(owner, fields=siblings))


def _type_at(fields: tuple[Field, ...], path: Path) -> DataType:
    """The type of a column, or of a part of it."""
    type_ = fields[_index(fields, path[:1])].type
    for depth in range(1, len(path)):
        if isinstance(type_, RowType):
            type_ = type_.fields[_index(type_.fields, path[: depth + 1])].type
        elif isinstance(type_, ArrayType) and path[depth] == "element":
            type_ = type_.element
        elif isinstance(type_, MapType) and path[depth] == "value":
            type_ = type_.value
        else:
            raise _no_part(type_, path[depth], path)
    return type_


def _with_type(fields: tuple[Field, ...], path: Path, new: DataType) -> tuple[Field, ...]:
    """The fields with another type at `path`, which exists."""
    index = _index(fields, path[:1])
    type_ = _with_part(fields[index].type, path[1:], new)
    return (*fields[:index], replace(fields[index], type=type_), *fields[index + 1 :])


def _with_part(type_: DataType, path: Path, new: DataType) -> DataType:
    if not path:
        return new
    if isinstance(type_, RowType):
        return replace(type_, fields=_with_type(type_.fields, path, new))
    if isinstance(type_, ArrayType):
        return replace(type_, element=_with_part(type_.element, path[1:], new))
    assert isinstance(type_, MapType)
    return replace(type_, value=_with_part(type_.value, path[1:], new))


def _no_part(type_: DataType, name: str, path: Path) -> NotFoundError:
    return NotFoundError(
        f"{type_.sql()} has no part {name!r}, which the path {path_text(path)} names; use the "
        "field name in a ROW, 'element' in an ARRAY, and 'value' in a MAP"
    )


def _index(siblings: Sequence[Field], path: Path) -> int:
    names = [field.name for field in siblings]
    if path[-1] not in names:
        near = difflib.get_close_matches(path[-1], names) or names
        raise NotFoundError(
            f"there is no column {path_text(path)}; did you mean {', '.join(near)}?"
        )
    return names.index(path[-1])


def _inserted(
    siblings: tuple[Field, ...], new: Field, position: Position | None, path: Path
) -> tuple[Field, ...]:
    if position is None:
        return (*siblings, new)
    index = 0 if isinstance(position, First) else 1 + _index(siblings, (*path[:-1], position.name))
    return (*siblings[:index], new, *siblings[index:])


# -- extension for more columns or wider types -----------------------------------------------------


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
    elif isinstance(type_, AtomicType) and type_.length is None:
        # Arrow has no length limits for strings, so a type is never widened to a longer one.
        try:
            new = type_from_arrow(found)
        except InvalidError:
            return  # the write may still accept values that fit
        wider = common_type(type_, new) if isinstance(new, AtomicType) else None
        if wider is not None and wider.with_nullable(True) != type_.with_nullable(True):
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
