"""The tables of a lake, a page at a time: names are listed, and those on the page are opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from keytide.base.moments import utc
from keytide.definition.external import is_external
from keytide.dml.attached import attached_tables
from keytide.errors import KeytideError, NotFoundError
from keytide.lake.lake import Lake
from keytide.tasks.runner import Threads

__all__ = ["PAGE_LINES", "Line", "Listing", "listing_of"]

PAGE_LINES = 25
"""How many tables a page shows."""

# Tables of a page opened in parallel: in an object store each waits for a few requests.
_OPENED = 8


@dataclass(frozen=True)
class Line:
    """A table or a view, with a few facts about it.

    `stored` counts stored rows, including old versions and deletes. `problem` says why the table
    could not be opened.
    """

    name: str
    kind: str
    primary_key: tuple[str, ...] = ()
    columns: int | None = None
    stored: int | None = None
    snapshot_id: int | None = None
    time: datetime | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Listing:
    """A page of the names in a lake or in one of its databases.

    `databases` include the names of what is attached.
    """

    databases: tuple[str, ...]
    database: str | None
    search: str
    lines: tuple[Line, ...]
    page: int
    pages: int
    found: int
    exists: bool = True


_KEYED, _APPENDED, _EXTERNAL, _ATTACHED, _VIEW = (
    "primary key", "append", "external", "attached", "view",
)  # fmt: skip


def listing_of(lake: Lake, database: str | None, search: str, page: int) -> Listing:
    """The page with that number, from 1, of the names that contain `search`, ignoring case.

    A number after the last page gives the last page. Names are found by one listing per database,
    so one whose table was deleted and left files behind may be among those counted; it is missing
    on its page. Raises `NotFoundError` for an unknown database, `DataError` when the store fails.
    """
    if not lake.exists:
        return Listing((), None, search, (), 1, 1, 0, exists=False)
    own, attached = lake.databases(), lake.attached
    databases = (*own, *attached)
    if database is not None and database not in databases:
        there = ", ".join(databases[:5]) or "none"
        raise NotFoundError(f"no database {database} in {lake.uri}; there is: {there}")
    chosen = databases if database is None else (database,)
    inside = [each for each in chosen if each in own]
    views, elsewhere = set(_views(lake, inside)), set(_elsewhere(lake, chosen))
    names = _fitting({*lake.catalog.likely_tables(inside), *views, *elsewhere}, search)
    pages = max(1, -(-len(names) // PAGE_LINES))
    page = min(max(1, page), pages)
    kinds = dict.fromkeys(views, _VIEW) | dict.fromkeys(elsewhere, _ATTACHED)
    shown = names[(page - 1) * PAGE_LINES : page * PAGE_LINES]
    opening = [partial(_line, lake, name, kinds.get(name)) for name in shown]
    lines = tuple(line for line in Threads(_OPENED).map(opening) if line is not None)
    return Listing(databases, database, search, lines, page, pages, len(names))


def _views(lake: Lake, databases: Sequence[str]) -> Iterator[str]:
    listings = [partial(lake.catalog.warehouse.views, each) for each in databases]
    for database, views in zip(databases, Threads(_OPENED).map(listings), strict=True):
        yield from (f"{database}.{view}" for view in views)


def _elsewhere(lake: Lake, chosen: Sequence[str]) -> Iterator[str]:
    for name in lake.attached:
        if name in chosen:
            yield from attached_tables(lake.catalog, name)


def _fitting(names: Iterable[str], search: str) -> list[str]:
    wanted = search.casefold()
    return sorted(name for name in names if wanted in name.casefold())


def _line(lake: Lake, name: str, kind: str | None) -> Line | None:
    """The line of a name; None where it has no table any more."""
    if kind is not None:
        return Line(name, kind)
    try:
        seen = lake.catalog.entry(name)
        schema = seen.schema
        if is_external(schema):
            return Line(name, _EXTERNAL, tuple(schema.primary_keys), len(schema.fields))
        snapshot = seen.metadata.latest_snapshot()
    except KeytideError as error:
        is_gone = isinstance(error, NotFoundError) and not _is_held(lake, name)
        return None if is_gone else Line(name, _KEYED, problem=str(error))
    return Line(
        name,
        _KEYED if schema.primary_keys else _APPENDED,
        tuple(schema.primary_keys),
        len(schema.fields),
        0 if snapshot is None else snapshot.total_record_count,
        None if snapshot is None else snapshot.id,
        None if snapshot is None else utc(snapshot.time_millis),
    )


def _is_held(lake: Lake, name: str) -> bool:
    database, _, table = name.partition(".")
    return lake.catalog.warehouse.holds(database, table)
