"""Finds the database for an address."""

from __future__ import annotations

import os

from keytide.dml.attach import check_postgres, is_plain_path
from keytide.dml.databases import Database
from keytide.dml.postgres import PostgresDatabase
from keytide.dml.sqlite import SqliteDatabase
from keytide.errors import InvalidError, NotFoundError

__all__ = ["database_at"]


def database_at(place: str) -> Database:
    """The database at an address, without connecting to it.

    `postgresql://user@host/database`, `sqlite:///path` (with a fourth slash for an absolute path)
    or the path of an SQLite file. Raises `InvalidError`, without showing the address, for any other
    one, and `NotFoundError` when the file does not exist.
    """
    scheme, separator, rest = place.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        check_postgres(place)
        return PostgresDatabase(place)
    if separator and scheme != "sqlite":
        raise InvalidError(
            "unknown kind of database URI; expected "
            "postgresql://user:password@host:port/database, sqlite:///path, or the path of a "
            "SQLite file"
        )
    path = os.path.abspath(rest.removeprefix("/") if separator else os.path.expanduser(place))
    if not os.path.isfile(path):
        shown = path if is_plain_path(place.removeprefix("sqlite://")) else "of that name"
        raise NotFoundError(
            f"the file {shown} does not exist; create the database and its tables first"
        )
    return SqliteDatabase(path)
