"""ALTER TABLE: options and columns, in the spellings of Flink and Spark."""

from __future__ import annotations

from collections.abc import Iterator

from keytide.sql.cursor import Cursor
from keytide.sql.definition_grammar import column, column_type, options
from keytide.sql.statements import AlterTable
from keytide.table.definition.evolution import (
    AddColumn,
    After,
    ChangeColumnNullability,
    ChangeColumnType,
    ChangeComment,
    DropColumn,
    First,
    MoveColumn,
    Position,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
)

__all__ = ["alter_table"]

Path = tuple[str, ...]


def alter_table(cursor: Cursor, table: str) -> AlterTable:
    """Parse what stands behind ALTER TABLE and the name of the table."""
    return AlterTable(table, tuple(_changes(cursor)))


def _changes(cursor: Cursor) -> Iterator[SchemaChange]:
    if cursor.accept("SET"):
        cursor.accept("TBLPROPERTIES")
        yield from (SetOption(key, value) for key, value in options(cursor).items())
    elif cursor.accept("RESET") or cursor.accept("UNSET", "TBLPROPERTIES"):
        cursor.accept("IF", "EXISTS")
        yield from (RemoveOption(key) for key in cursor.listed(lambda: _key(cursor)))
    elif cursor.accept("ADD"):
        _column_word(cursor)
        many = cursor.peek() == "("
        yield from cursor.listed(lambda: _added(cursor)) if many else [_added(cursor)]
    elif cursor.accept("DROP"):
        _column_word(cursor)
        many = cursor.peek() == "("
        paths = cursor.listed(cursor.path) if many else [cursor.path("a column")]
        yield from (DropColumn(path) for path in paths)
    elif cursor.accept("RENAME"):
        yield _renamed(cursor)
    elif cursor.accept("CHANGE"):
        _column_word(cursor)
        path, new_name = cursor.path("a column"), cursor.name("a column")
        yield from _redefined(cursor, path)
        if new_name != path[-1]:
            yield RenameColumn(path, new_name)
    elif cursor.accept("MODIFY"):
        yield from _modified(cursor)
    elif cursor.accept("ALTER"):
        _column_word(cursor)
        yield from _altered(cursor, cursor.path("a column"))
    else:
        raise cursor.error("expected SET, RESET, ADD, DROP, RENAME, MODIFY or ALTER")


def _column_word(cursor: Cursor) -> None:
    if not cursor.accept("COLUMNS"):
        cursor.accept("COLUMN")


def _key(cursor: Cursor) -> str:
    return cursor.string() if cursor.is_string() else cursor.until().strip()


def _added(cursor: Cursor) -> AddColumn:
    outer = cursor.path_before_last()
    field, _ = column(cursor)
    return AddColumn(
        (*outer, field.name), field.type, field.description, _position(cursor), field.default_value
    )


def _renamed(cursor: Cursor) -> RenameColumn:
    if cursor.peek() == "TO":
        raise cursor.error("a table cannot be renamed; make a new one with CREATE TABLE ... AS")
    _column_word(cursor)
    path = cursor.path("a column")
    cursor.expect("TO")
    return RenameColumn(path, cursor.name("a column"))


def _modified(cursor: Cursor) -> list[SchemaChange]:
    _column_word(cursor)
    if cursor.peek() != "(":
        return _redefined(cursor, cursor.path("a column"))
    definitions = cursor.listed(lambda: _redefined(cursor, cursor.path("a column")))
    return [change for changes in definitions for change in changes]


def _redefined(cursor: Cursor, path: Path) -> list[SchemaChange]:
    """The rest of a column that is defined anew."""
    return [ChangeColumnType(path, column_type(cursor)), *_described(cursor, path)]


def _altered(cursor: Cursor, path: Path) -> list[SchemaChange]:
    if cursor.accept("TYPE") or cursor.accept("SET", "DATA", "TYPE"):
        return [ChangeColumnType(path, column_type(cursor))]
    if cursor.accept("DROP", "NOT", "NULL"):
        return [ChangeColumnNullability(path, nullable=True)]
    if cursor.accept("SET", "NOT", "NULL"):
        return [ChangeColumnNullability(path, nullable=False)]
    changes = _described(cursor, path)
    if not changes:
        raise cursor.error("expected TYPE, COMMENT, FIRST, AFTER, SET NOT NULL or DROP NOT NULL")
    return changes


def _described(cursor: Cursor, path: Path) -> list[SchemaChange]:
    """COMMENT and a place, if they come next."""
    changes: list[SchemaChange] = []
    if cursor.accept("COMMENT"):
        changes.append(ChangeComment(cursor.string(), path))
    position = _position(cursor)
    return changes if position is None else [*changes, MoveColumn(path, position)]


def _position(cursor: Cursor) -> Position | None:
    if cursor.accept("FIRST"):
        return First()
    return After(cursor.name("a column")) if cursor.accept("AFTER") else None
