"""Lookup of SQL names: an exact match, otherwise a case-insensitive match."""

from __future__ import annotations

from collections.abc import Iterable

from keytide.catalogs.catalog import Catalog
from keytide.catalogs.system_tables import SYSTEM_TABLES
from keytide.errors import InvalidError, NotFoundError
from keytide.format.branch import BRANCH_MARK
from keytide.snapshot.pinned import PinnedTable, StoredTable

__all__ = ["column_of", "entry_of", "in_own_spelling", "table_of"]


def in_own_spelling(catalog: Catalog, name: str) -> str:
    """Write `db.t.branch_b` as `db.t$branch_b` and `db.t.files` as `db.t$files`.

    Iceberg uses dots.
    """
    table, _, last = name.rpartition(".")
    is_system = last.lower() in SYSTEM_TABLES
    is_about_table = is_system or last.startswith(BRANCH_MARK[1:])
    if table.count(".") != 1 or not is_about_table or catalog.find_attached(name) is not None:
        return name
    return f"{table}${last.lower() if is_system else last}"


def table_of(catalog: Catalog, name: str) -> StoredTable:
    """Open the table of a name. Raises as `entry_of`, `UnsupportedError` for an external table."""
    return catalog.managed(entry_of(catalog, name))


def entry_of(catalog: Catalog, name: str) -> PinnedTable:
    """The table or external table of a name.

    Raises `NotFoundError` if there is none, and `InvalidError` if several differ only in case and
    none matches exactly.
    """
    name = in_own_spelling(catalog, name)
    try:
        return catalog.entry(name)
    except NotFoundError:
        known = catalog.find(name)
        if known is None:
            raise
        found = catalog.entry(known)
        return found if catalog.pins is None else catalog.pins.named(name, lambda: found)


def column_of(name: str, columns: Iterable[str], table: str) -> str:
    """The column of a name. Raises as `entry_of`."""
    known = list(columns)
    if name in known:
        return name
    found = [column for column in known if column.lower() == name.lower()]
    if not found:
        raise NotFoundError(f"table {table} has no column {name!r}; columns: {', '.join(known)}")
    if len(found) > 1:
        raise InvalidError(f"table {table}: {name!r} is ambiguous: {' or '.join(map(repr, found))}")
    return found[0]
