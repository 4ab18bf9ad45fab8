"""Schema changes in the format of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keytide.definition.schema_evolution import (
    AddColumn,
    After,
    ChangeColumnNullability,
    ChangeColumnType,
    ChangeComment,
    DropColumn,
    MoveColumn,
    Position,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
)
from keytide.errors import UnsupportedError
from keytide.format.schema import assign_field_ids
from keytide.types import DataType, Field

__all__ = ["schema_changes"]

Told = dict[str, Any]


def schema_changes(changes: Sequence[SchemaChange]) -> list[Told]:
    """The changes as a request body, in order. Raises `UnsupportedError`."""
    return [told for change in changes for told in _TOLD[type(change)](change)]


def _set_option(change: SetOption) -> Iterator[Told]:
    yield {"action": "setOption", "key": change.key, "value": change.value}


def _remove_option(change: RemoveOption) -> Iterator[Told]:
    yield {"action": "removeOption", "key": change.key}


def _comment(change: ChangeComment) -> Iterator[Told]:
    if change.path:
        yield _column("updateColumnComment", change.path, newComment=change.comment)
    else:
        yield {"action": "updateComment", "comment": change.comment}


def _add(change: AddColumn) -> Iterator[Told]:
    move = None if change.position is None else _move(change.path[-1], change.position)
    type_ = _stored(change.type)
    yield _column("addColumn", change.path, dataType=type_, comment=change.comment, move=move)
    if change.default is not None:
        value = change.default
        yield _column("updateColumnDefaultValue", change.path, newDefaultValue=value)


def _rename(change: RenameColumn) -> Iterator[Told]:
    yield _column("renameColumn", change.path, newName=change.new_name)


def _drop(change: DropColumn) -> Iterator[Told]:
    yield _column("dropColumn", change.path)


def _type(change: ChangeColumnType) -> Iterator[Told]:
    type_ = _stored(change.type)
    yield _column("updateColumnType", change.path, newDataType=type_, keepNullability=True)


def _nullability(change: ChangeColumnNullability) -> Iterator[Told]:
    yield _column("updateColumnNullability", change.path, newNullability=change.nullable)


def _position(change: MoveColumn) -> Iterator[Told]:
    if len(change.path) > 1:
        raise UnsupportedError(
            f"column {'.'.join(change.path)} cannot be moved: a REST catalog moves only "
            "top-level columns, not fields of a ROW"
        )
    yield {"action": "updateColumnPosition", "move": _move(change.path[0], change.position)}


def _column(action: str, path: Sequence[str], **members: Any) -> Told:
    return {"action": action, "fieldNames": [*path], **members}


def _move(name: str, position: Position) -> Told:
    if isinstance(position, After):
        return {"fieldName": name, "referenceFieldName": position.name, "type": "AFTER"}
    return {"fieldName": name, "referenceFieldName": None, "type": "FIRST"}


def _stored(type_: DataType) -> str | Told:
    """A type in schema format. The catalog assigns new ids to its parts, but requires some."""
    (numbered,) = assign_field_ids([Field(-1, "any", type_)], 0)
    return numbered.type.to_json()


_TOLD: dict[type[SchemaChange], Callable[[Any], Iterator[Told]]] = {
    SetOption: _set_option,
    RemoveOption: _remove_option,
    ChangeComment: _comment,
    AddColumn: _add,
    RenameColumn: _rename,
    DropColumn: _drop,
    ChangeColumnType: _type,
    ChangeColumnNullability: _nullability,
    MoveColumn: _position,
}
