"""ALTER TABLE as changes of a schema."""

from __future__ import annotations

from collections.abc import Iterator

from keytide.sql.statements import (
    AddColumns,
    Alteration,
    ChangeColumn,
    DropColumns,
    Place,
    RenameColumn,
    ResetOptions,
    SetOptions,
)
from keytide.table import evolution
from keytide.table.evolution import SchemaChange

__all__ = ["schema_changes"]


def schema_changes(change: Alteration) -> tuple[SchemaChange, ...]:
    """The changes, in the order in which they apply."""
    return tuple(_changes(change))


def _changes(change: Alteration) -> Iterator[SchemaChange]:
    if isinstance(change, SetOptions):
        yield from (evolution.SetOption(key, value) for key, value in change.options.items())
    elif isinstance(change, ResetOptions):
        yield from (evolution.RemoveOption(key) for key in change.keys)
    elif isinstance(change, AddColumns):
        for new in change.columns:
            yield evolution.AddColumn(
                new.path, new.field.type, new.field.description, _position(new.place)
            )
    elif isinstance(change, DropColumns):
        yield from (evolution.DropColumn(path) for path in change.paths)
    elif isinstance(change, RenameColumn):
        yield evolution.RenameColumn(change.path, change.new_name)
    else:
        yield from _column_changes(change)


def _column_changes(change: ChangeColumn) -> Iterator[SchemaChange]:
    if change.type is not None:
        yield evolution.ChangeColumnType(change.path, change.type)
    if change.nullable is not None:
        yield evolution.ChangeColumnNullability(change.path, change.nullable)
    if change.comment is not None:
        yield evolution.ChangeComment(change.comment, change.path)
    if change.place is not None and (position := _position(change.place)) is not None:
        yield evolution.MoveColumn(change.path, position)
    if change.new_name is not None and change.new_name != change.path[-1]:
        yield evolution.RenameColumn(change.path, change.new_name)


def _position(place: Place) -> evolution.Position | None:
    if place.first:
        return evolution.First()
    return None if place.after is None else evolution.After(place.after)
