"""Finds the table that an argument names.

All commands follow one rule. An argument with a slash, or one that starts with `.` or `~`, is a
path or address. Any other argument is a name in the warehouse. Without a warehouse, it is the name
of a folder in the current directory.
"""

from __future__ import annotations

import os

import typer

from keytide.cli.near import cache_arguments
from keytide.errors import InvalidError, NotFoundError
from keytide.lake.external_table import ExternalTable
from keytide.lake.federated_table import FederatedTable
from keytide.lake.opening import connect, open_table
from keytide.lake.table import Table

__all__ = [
    "full_path",
    "is_path",
    "open_named_table",
    "open_readable_table",
    "required_warehouse",
    "split_table_path",
    "way_into",
]

_DATABASE_SUFFIX = ".db"
_NO_WAREHOUSE = "table names need a warehouse: use --warehouse or set KEYTIDE_WAREHOUSE"


def is_path(argument: str) -> bool:
    """Whether an argument is a path or address, and not a name."""
    return "/" in argument or argument.startswith((".", "~"))


def open_named_table(table: str, warehouse: str | None) -> Table:
    """The table at a path, or with that name in the warehouse. A path ignores the warehouse.

    Raises `NotFoundError`, which says what was found instead, if there is no such table. A name
    without a warehouse is a usage error.
    """
    if is_path(table) or (not warehouse and os.path.isdir(table)):
        return _table_at(table, warehouse)
    if not warehouse:
        raise typer.BadParameter(
            f"{_NO_WAREHOUSE}, or write the table's path (./{table} in the current directory)"
        )
    lake = connect(warehouse, **cache_arguments())
    return Table.of(lake.catalog.table(table), lake.spark, lake.catalog)


def open_readable_table(table: str, warehouse: str | None) -> Table | ExternalTable:
    """Like `open_named_table`, but a name can also be that of an external table."""
    if is_path(table) or not warehouse:
        return open_named_table(table, warehouse)
    found = connect(warehouse, **cache_arguments()).table(table)
    assert not isinstance(found, FederatedTable)  # nothing is attached
    return found


def split_table_path(table: str, warehouse: str | None) -> tuple[str, str]:
    """The warehouse and the name `database.table` of a table that may not exist.

    Raises `InvalidError` for a path that is not `warehouse/database.db/table`.
    """
    if not is_path(table):
        return required_warehouse(warehouse), table
    root, _, folders = full_path(table).rpartition(f"{_DATABASE_SUFFIX}/")
    parent, _, database = root.rpartition("/")
    if not parent or not database or not folders or "/" in folders:
        raise InvalidError(
            f"{table!r} is not a table of a warehouse; expected warehouse/database.db/table, or "
            "--warehouse and a name such as shop.orders"
        )
    return parent, f"{database}.{folders}"


def required_warehouse(warehouse: str | None) -> str:
    """The warehouse. If it is missing, a usage error says how to set it."""
    if not warehouse:
        raise typer.BadParameter(_NO_WAREHOUSE)
    return warehouse


def way_into(place: str) -> str:
    """The command that shows the table, database or warehouse at a path. Empty if there is none."""
    parent, _, name = full_path(place).rpartition("/")
    warehouse, _, above = parent.rpartition("/")
    if above.endswith(_DATABASE_SUFFIX):
        table = f"{above.removesuffix(_DATABASE_SUFFIX)}.{name}"
        if table in connect(warehouse).catalog.tables():
            return f"this is a table: keytide describe {place}"
    if name.endswith(_DATABASE_SUFFIX):
        return f"this is a database: keytide ls {parent} {name.removesuffix(_DATABASE_SUFFIX)}"
    if tables := connect(full_path(place)).catalog.tables():
        return f"this is a warehouse: keytide describe -w {place} {tables[0]}"
    return ""


def full_path(path: str) -> str:
    """The address, or the absolute path."""
    if "://" in path or path.startswith("file:"):
        return path.rstrip("/")
    return os.path.abspath(os.path.expanduser(path))


def _table_at(path: str, warehouse: str | None) -> Table:
    try:
        return open_table(full_path(path), **cache_arguments())
    except NotFoundError as error:
        way = way_into(path)
        if not way and warehouse and not os.path.isabs(path):
            way = (
                f"this is a path, not a table of {warehouse}, where a table is named database.table"
            )
        raise NotFoundError(f"{error}; {way}" if way else str(error)) from error
