"""From an address to a database."""

from __future__ import annotations

import os

from keytide.dml.addresses import check_postgres, is_plain_path
from keytide.dml.database import Database
from keytide.dml.postgres import PostgresDatabase
from keytide.dml.sqlite import SqliteDatabase
from keytide.errors import InvalidError, NotFoundError

__all__ = ["database_at"]


def database_at(place: str) -> Database:
    """The database at an address, to which nothing is connected yet.

    `postgresql://user@host/database`, `sqlite:///path` (with a fourth slash where the path begins
    with one) or a path, which is that of a file of SQLite. Raises `InvalidError` for other
    addresses, which is not shown, and `NotFoundError` where there is no file.
    """
    scheme, separator, rest = place.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        check_postgres(place)
        return PostgresDatabase(place)
    if separator and scheme != "sqlite":
        raise InvalidError(
            "no database can be reached by an address of this kind; expected "
            "postgresql://user:password@host:port/database, sqlite:///path, or the path of a file "
            "of SQLite"
        )
    path = os.path.abspath(rest.removeprefix("/") if separator else os.path.expanduser(place))
    if not os.path.isfile(path):
        shown = path if is_plain_path(place.removeprefix("sqlite://")) else "of that name"
        raise NotFoundError(f"there is no file {shown}; make the database first, with its tables")
    return SqliteDatabase(path)
