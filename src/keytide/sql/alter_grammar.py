"""ALTER TABLE: options and columns, in the spellings of Flink and Spark."""

from __future__ import annotations

from keytide.sql.cursor import Cursor
from keytide.sql.definition_grammar import column_type, options
from keytide.sql.statements import (
    AddColumns,
    Alteration,
    AlterTable,
    ChangeColumn,
    DropColumns,
    NewColumn,
    Place,
    RenameColumn,
    ResetOptions,
    SetOptions,
)
from keytide.types import Field

__all__ = ["alter_table"]


def alter_table(cursor: Cursor) -> AlterTable:
    """Parse ALTER TABLE."""
    cursor.expect("ALTER", "TABLE")
    table = ".".join(cursor.path("a table name"))
    return AlterTable(table, _alteration(cursor))


def _alteration(cursor: Cursor) -> Alteration:
    if cursor.accept("SET"):
        cursor.accept("TBLPROPERTIES")
        return SetOptions(options(cursor))
    if cursor.accept("RESET") or cursor.accept("UNSET", "TBLPROPERTIES"):
        cursor.accept("IF", "EXISTS")
        return ResetOptions(tuple(cursor.listed(lambda: _key(cursor))))
    if cursor.accept("ADD"):
        return _add(cursor)
    if cursor.accept("DROP"):
        return _drop(cursor)
    if cursor.accept("RENAME"):
        if cursor.peek() == "TO":
            raise cursor.error("a table cannot be renamed; make a new one with CREATE TABLE ... AS")
        cursor.accept("COLUMN")
        path = cursor.path("a column")
        cursor.expect("TO")
        return RenameColumn(path, cursor.name("a column"))
    if cursor.accept("CHANGE"):
        cursor.accept("COLUMN")
        path, new_name = cursor.path("a column"), cursor.name("a column")
        return _definition(cursor, path, new_name)
    if cursor.accept("MODIFY"):
        cursor.accept("COLUMN")
        if cursor.peek() == "(":
            return cursor.listed(lambda: _definition(cursor, cursor.path("a column"), None))[0]
        return _definition(cursor, cursor.path("a column"), None)
    if cursor.accept("ALTER"):
        cursor.accept("COLUMN")
        return _alter_column(cursor, cursor.path("a column"))
    raise cursor.error("expected SET, RESET, ADD, DROP, RENAME, MODIFY or ALTER")


def _key(cursor: Cursor) -> str:
    return cursor.string() if cursor.is_string() else ".".join(cursor.path("an option"))


def _add(cursor: Cursor) -> AddColumns:
    if not cursor.accept("COLUMNS"):
        cursor.accept("COLUMN")
    if cursor.peek() == "(":
        return AddColumns(tuple(cursor.listed(lambda: _new_column(cursor))))
    return AddColumns((_new_column(cursor),))


def _new_column(cursor: Cursor) -> NewColumn:
    path = cursor.path("a column")
    kind, comment = column_type(cursor), _comment(cursor)
    return NewColumn(path, Field(-1, path[-1], kind, comment), _place(cursor) or Place())


def _drop(cursor: Cursor) -> DropColumns:
    if not cursor.accept("COLUMNS"):
        cursor.accept("COLUMN")
    if cursor.peek() == "(":
        return DropColumns(tuple(cursor.listed(lambda: cursor.path("a column"))))
    return DropColumns((cursor.path("a column"),))


def _definition(cursor: Cursor, path: tuple[str, ...], new_name: str | None) -> ChangeColumn:
    """The rest of a column that is defined anew."""
    kind, comment = column_type(cursor), _comment(cursor)
    return ChangeColumn(path, new_name, kind, None, comment, _place(cursor))


def _alter_column(cursor: Cursor, path: tuple[str, ...]) -> ChangeColumn:
    if cursor.accept("TYPE") or cursor.accept("SET", "DATA", "TYPE"):
        return ChangeColumn(path, type=column_type(cursor))
    if cursor.accept("DROP", "NOT", "NULL"):
        return ChangeColumn(path, nullable=True)
    if cursor.accept("SET", "NOT", "NULL"):
        return ChangeColumn(path, nullable=False)
    comment, place = _comment(cursor), _place(cursor)
    if comment is None and place is None:
        raise cursor.error("expected TYPE, COMMENT, FIRST, AFTER, SET NOT NULL or DROP NOT NULL")
    return ChangeColumn(path, comment=comment, place=place)


def _comment(cursor: Cursor) -> str | None:
    return cursor.string() if cursor.accept("COMMENT") else None


def _place(cursor: Cursor) -> Place | None:
    if cursor.accept("FIRST"):
        return Place(first=True)
    if cursor.accept("AFTER"):
        return Place(after=cursor.name("a column"))
    return None
