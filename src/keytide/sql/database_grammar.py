"""The grammar of CREATE DATABASE and DROP DATABASE. SCHEMA is a synonym."""

from __future__ import annotations

from keytide.sql.cursor import Cursor
from keytide.sql.statements import CreateDatabase, DropDatabase

__all__ = ["create_database", "drop_database"]


def create_database(cursor: Cursor) -> CreateDatabase:
    """Parse what follows CREATE."""
    cursor.accept(cursor.peek())
    exists_ok = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("the name of a database")
    comment = None
    if cursor.accept("COMMENT"):
        cursor.accept("=")
        comment = cursor.string()
    return CreateDatabase(name, comment, exists_ok)


def drop_database(cursor: Cursor) -> DropDatabase:
    """Parse what follows DROP."""
    cursor.accept(cursor.peek())
    missing_ok = cursor.accept("IF", "EXISTS")
    name = cursor.name("the name of a database")
    cascade = cursor.accept("CASCADE")
    if not cascade:
        cursor.accept("RESTRICT")
    return DropDatabase(name, missing_ok, cascade)
