"""The tables of a lake, a page at a time: names are listed, and those on the page are opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from keytide.errors import KeytideError, NotFoundError
from keytide.lake.lake import Lake
from keytide.moments import utc
from keytide.table.definition.external import is_external

__all__ = ["PAGE_LINES", "Line", "Listing", "listing_of"]

PAGE_LINES = 25
"""How many tables a page shows."""


@dataclass(frozen=True)
class Line:
    """A table or a view, and what is worth knowing of it at a glance.

    `stored` counts rows as they are stored: versions and deletes too. `problem` says why there is
    no more to tell.
    """

    name: str
    kind: str
    primary_key: tuple[str, ...] = ()
    columns: int | None = None
    stored: int | None = None
    snapshot_id: int | None = None
    time: datetime | None = None
    problem: str | None = None

    @property
    def has_page(self) -> bool:
        """Whether there is a page about it."""
        return self.kind in (_KEYED, _APPENDED)


@dataclass(frozen=True)
class Listing:
    """A page of what is found in a lake or in one of its databases."""

    databases: tuple[str, ...]
    database: str | None
    search: str
    lines: tuple[Line, ...]
    page: int
    pages: int
    found: int
    exists: bool = True


_KEYED, _APPENDED, _EXTERNAL, _VIEW = "primary key", "append", "external", "view"


def listing_of(lake: Lake, database: str | None, search: str, page: int) -> Listing:
    """The page of that number, from 1, of the names that contain a text, whatever its case.

    A number beyond the last page means that one. Raises `NotFoundError` for a database that is not
    there, `DataError` when the store fails.
    """
    if not lake.exists:
        return Listing((), None, search, (), 1, 1, 0, exists=False)
    databases = tuple(lake.databases())
    if database is not None and database not in databases:
        there = ", ".join(databases[:5]) or "none"
        raise NotFoundError(f"no database {database} in {lake.uri}; there is: {there}")
    views = set(lake.views(database))
    names = _fitting([*lake.tables(database), *views], search)
    pages = max(1, -(-len(names) // PAGE_LINES))
    page = min(max(1, page), pages)
    shown = names[(page - 1) * PAGE_LINES : page * PAGE_LINES]
    lines = tuple(Line(name, _VIEW) if name in views else _line(lake, name) for name in shown)
    return Listing(databases, database, search, lines, page, pages, len(names))


def _fitting(names: Sequence[str], search: str) -> list[str]:
    wanted = search.casefold()
    return sorted(name for name in names if wanted in name.casefold())


def _line(lake: Lake, name: str) -> Line:
    try:
        seen = lake.catalog.entry(name)
        schema = seen.schema
        if is_external(schema):
            return Line(name, _EXTERNAL, tuple(schema.primary_keys), len(schema.fields))
        snapshot = seen.metadata.latest_snapshot()
    except KeytideError as error:
        return Line(name, _KEYED, problem=str(error))
    return Line(
        name,
        _KEYED if schema.primary_keys else _APPENDED,
        tuple(schema.primary_keys),
        len(schema.fields),
        0 if snapshot is None else snapshot.total_record_count,
        None if snapshot is None else snapshot.id,
        None if snapshot is None else utc(snapshot.time_millis),
    )
