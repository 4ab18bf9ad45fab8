"""Names as SQL means them: exactly as they are written, or else without regard to case."""

from __future__ import annotations

from collections.abc import Iterable

from keytide.errors import InvalidError, NotFoundError
from keytide.table.catalog import Catalog
from keytide.table.state.stored import StoredTable

__all__ = ["column_of", "table_of"]


def table_of(catalog: Catalog, name: str) -> StoredTable:
    """Open the table of a name.

    Raises `NotFoundError` when there is none, `InvalidError` when several differ in case only and
    none is spelled like this.
    """
    try:
        return catalog.table(name)
    except NotFoundError:
        known = catalog.find(name)
        if known is None:
            raise
        found = catalog.table(known)
        return found if catalog.pins is None else catalog.pins.named(name, found.pinned)


def column_of(name: str, columns: Iterable[str], table: str) -> str:
    """The column of a name. Raises as `table_of`."""
    known = list(columns)
    if name in known:
        return name
    found = [column for column in known if column.lower() == name.lower()]
    if not found:
        raise NotFoundError(f"table {table} has no column {name!r}; it has {', '.join(known)}")
    if len(found) > 1:
        raise InvalidError(f"table {table}: {name!r} may mean {' or '.join(map(repr, found))}")
    return found[0]
