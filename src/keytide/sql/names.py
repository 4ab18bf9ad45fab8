"""Names as SQL means them: exactly as they are written, or else without regard to case."""

from __future__ import annotations

from collections.abc import Iterable

from keytide.errors import InvalidError, NotFoundError
from keytide.table.catalog import Catalog
from keytide.table.state.stored import PinnedTable, StoredTable

__all__ = ["column_of", "entry_of", "table_of"]


def table_of(catalog: Catalog, name: str) -> StoredTable:
    """Open the table of a name. Raises as `entry_of`, `UnsupportedError` for an external table."""
    return catalog.managed(entry_of(catalog, name))


def entry_of(catalog: Catalog, name: str) -> PinnedTable:
    """What has a name: a table, or the definition of an external one.

    Raises `NotFoundError` when there is none, `InvalidError` when several differ in case only and
    none is spelled like this.
    """
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
        raise NotFoundError(f"table {table} has no column {name!r}; it has {', '.join(known)}")
    if len(found) > 1:
        raise InvalidError(f"table {table}: {name!r} may mean {' or '.join(map(repr, found))}")
    return found[0]
