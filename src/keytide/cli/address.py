"""Where the table lies that an argument names.

One rule for every command: an argument with a slash, or one that starts with `.` or `~`, is a
path or address; anything else is a name within the warehouse.
"""

from __future__ import annotations

import os

import typer

from keytide.errors import InvalidError
from keytide.table.lake import connect, open_table
from keytide.table.table import Table

__all__ = ["is_path", "open_named_table", "required_warehouse", "split_table_path"]

_DATABASE_SUFFIX = ".db"


def is_path(argument: str) -> bool:
    """Whether an argument is a path or address, and not a name."""
    return "/" in argument or argument.startswith((".", "~"))


def open_named_table(table: str, warehouse: str | None) -> Table:
    """The table at a path, or of that name in the warehouse; a path wins over a warehouse.

    Raises `NotFoundError` when there is no such table, a usage error when a name comes without a
    warehouse.
    """
    if is_path(table):
        return open_table(_full_path(table))
    return connect(required_warehouse(warehouse)).table(table)


def split_table_path(table: str, warehouse: str | None) -> tuple[str, str]:
    """The warehouse and the name `database.table`, of a table that need not exist.

    Raises `InvalidError` for a path that is not `warehouse/database.db/table`.
    """
    if not is_path(table):
        return required_warehouse(warehouse), table
    root, _, folders = _full_path(table).rpartition(f"{_DATABASE_SUFFIX}/")
    parent, _, database = root.rpartition("/")
    if not parent or not database or not folders or "/" in folders:
        raise InvalidError(
            f"{table!r} is no table of a warehouse; expected warehouse/database.db/table, or "
            f"--warehouse and a name such as shop.orders"
        )
    return parent, f"{database}.{folders}"


def required_warehouse(warehouse: str | None) -> str:
    """The warehouse, or a usage error that says how to give one."""
    if not warehouse:
        raise typer.BadParameter(
            "a table's name needs a warehouse: give --warehouse, set KEYTIDE_WAREHOUSE, or write "
            "the table's path (./table when it lies here)"
        )
    return warehouse


def _full_path(path: str) -> str:
    if "://" in path or path.startswith("file:"):
        return path.rstrip("/")
    return os.path.abspath(os.path.expanduser(path))
