"""Read-only pages: each builds a view model and shows it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeAlias

from starlette.responses import RedirectResponse, Response

from keytide.changes.changed_rows import changed_rows, first_changes
from keytide.errors import NotFoundError, UnsupportedError
from keytide.lake.foreign_table import ForeignTable
from keytide.lake.table import Table
from keytide.maintenance.upkeep.layout import layout_of
from keytide.maintenance.upkeep.timeline import timeline_of
from keytide.show.layout_picture import bucket_picture, levels_bar
from keytide.show.timeline_picture import timeline_picture
from keytide.snapshot.stored import PinnedTable
from keytide.ui.address import page_address, table_address
from keytide.ui.asked import Asked
from keytide.ui.listing import listing_of
from keytide.ui.outside import Outside, outside_of, source_of
from keytide.ui.overview import figures_of, overview_of
from keytide.ui.site import TABLE_TABS, Site
from keytide.ui.story import key_columns, story_of_texts
from keytide.ui.streams import streams_of

__all__ = ["Look", "looks", "redirected", "table_of"]

Look: TypeAlias = Callable[[Site, Asked], Response]

_MODES = ("diff", "delta", "changelog")

_FOREIGN_TABS = (("overview", "Overview"), ("changes", "Changes"), ("why", "Why"))


def looks() -> dict[str, Look]:
    """The pages by address."""
    return {
        "/": _tables,
        "/table/{table}": _overview,
        "/table/{table}/figures": _figures,
        "/table/{table}/health": _health,
        "/table/{table}/source": _source,
        "/table/{table}/timeline": _timeline,
        "/table/{table}/timeline/now": _timeline_now,
        "/table/{table}/layout": _layout,
        "/table/{table}/changes": _changes,
        "/table/{table}/why": _why,
        "/table/{table}/streams": _streams,
    }


def table_of(site: Site, asked: Asked) -> Table:
    """The table that a page is about.

    Raises as `Lake.table`, and `UnsupportedError` for one whose rows another engine writes.
    """
    found = site.lake.table(asked.table)
    if not isinstance(found, Table):
        raise UnsupportedError(
            f"table {asked.table}: another engine writes its rows, so the lake has no snapshots "
            f"and files of it; its page is {table_address(asked.table)}"
        )
    return found


def _foreign(site: Site, asked: Asked) -> ForeignTable:
    found = site.lake.table(asked.table)
    if isinstance(found, ForeignTable):
        return found
    raise NotFoundError(f"table {asked.table} is one of the lake's own, without a source elsewhere")


def _tables(site: Site, asked: Asked) -> Response:
    listing = listing_of(
        site.lake, asked.text("database"), asked.text("search") or "", asked.number("page") or 1
    )

    def address(page: int) -> str:
        return page_address(database=listing.database, search=listing.search or None, page=page)

    return site.page("tables.html", view="tables", listing=listing, address=address)


def _overview(site: Site, asked: Asked) -> Response:
    try:
        table = table_of(site, asked)
    except UnsupportedError:  # a view, or a table whose rows another engine writes
        return _outside(site, outside_of(site.lake, asked.table))
    overview = overview_of(table)
    recent = timeline_of(table.stored)
    return site.page(
        "overview.html", table=table.name, view="overview", overview=overview,
        figures=overview.figures, picture=timeline_picture(recent.moments),
    )  # fmt: skip


def _outside(site: Site, outside: Outside) -> Response:
    tabs = _FOREIGN_TABS if outside.has_source else _FOREIGN_TABS[:1]
    return site.page(
        "outside.html", table=outside.name, view="overview", tabs=tabs, outside=outside
    )


def _source(site: Site, asked: Asked) -> Response:
    """What an external or federated table's source has now, which may take a while."""
    table = _foreign(site, asked)
    template = "_source.html" if asked.text("part") else "source.html"
    return site.page(
        template, table=table.name, view="overview", tabs=_FOREIGN_TABS, source=source_of(table)
    )


def _figures(site: Site, asked: Asked) -> Response:
    """Only the numbers of the overview, for a page that updates itself."""
    table = table_of(site, asked)
    seen = table.stored.pinned()
    state = _state(seen)
    if (same := _unchanged(asked, state)) is not None:
        return same
    figures, picture = figures_of(seen), timeline_picture(timeline_of(table.stored).moments)
    return site.page(
        "_figures.html", headers={"ETag": state}, table=table.name, figures=figures, picture=picture
    )


def _health(site: Site, asked: Asked) -> Response:
    table = table_of(site, asked)
    template = "_health.html" if asked.text("part") else "health.html"
    return site.page(template, table=table.name, view="overview", diagnosis=table.doctor())


def _timeline(site: Site, asked: Asked) -> Response:
    table = table_of(site, asked)
    timeline = timeline_of(table.stored, asked.number("before"))
    return site.page(
        "timeline.html", table=table.name, view="timeline", timeline=timeline,
        picture=timeline_picture(timeline.moments), modes=_MODES,
    )  # fmt: skip


def _timeline_now(site: Site, asked: Asked) -> Response:
    """Only the latest page of the timeline."""
    table = table_of(site, asked)
    state = _state(table.stored.pinned())
    if (same := _unchanged(asked, state)) is not None:
        return same
    timeline = timeline_of(table.stored)
    return site.page(
        "_timeline.html", headers={"ETag": state}, table=table.name, timeline=timeline,
        picture=timeline_picture(timeline.moments),
    )  # fmt: skip


def _layout(site: Site, asked: Asked) -> Response:
    table = table_of(site, asked)
    layout = layout_of(table.stored, asked.number("page") or 1, asked.number("bucket"))
    bars = {line.number: levels_bar(line.levels, layout.largest) for line in layout.lines}
    picture = None if layout.bucket is None else bucket_picture(layout.bucket)
    return site.page(
        "layout.html", table=table.name, view="layout", layout=layout, bars=bars, picture=picture,
        address=lambda page: table_address(table.name, "layout", page=page),
    )  # fmt: skip


def _changes(site: Site, asked: Asked) -> Response:
    table = site.lake.table(asked.table)
    if not isinstance(table, Table):
        return _changes_elsewhere(site, asked, table)
    start, end = asked.text("start"), asked.text("end")
    mode = asked.text("mode") or _MODES[0]
    newest = table.metadata.latest_snapshot_id() or 0
    found = None
    if start is not None or end is not None:
        begins: int | str = 0 if start is None else _version(start)
        last = None if end is None else _version(end)
        found = changed_rows(table.changes(begins, last, mode), begins)
    return site.page(
        "changes.html", table=table.name, view="changes", changes=found, start=start or "",
        end=end or "", mode=mode, modes=_MODES, newest=newest,
    )  # fmt: skip


def _changes_elsewhere(site: Site, asked: Asked, table: ForeignTable) -> Response:
    start, end = asked.text("start"), asked.text("end")
    found = None
    if start is not None:
        changes = table.changes(start, end)
        before, after = changes.versions
        found = first_changes(changes, str(before), str(after), "diff", _COMPARED)
    return site.page(
        "changes.html", table=table.name, view="changes", tabs=_FOREIGN_TABS, changes=found,
        start=start or "", end=end or "", mode="diff", modes=("diff",), newest=None,
    )  # fmt: skip


_COMPARED = "The rows of both versions were compared by key."


def _version(given: str) -> int | str:
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 20 else given


def _why(site: Site, asked: Asked) -> Response:
    table = site.lake.table(asked.table)
    texts, snapshot = asked.texts("key"), asked.text("snapshot")
    story = story_of_texts(table, texts, snapshot) if texts else None
    columns = key_columns(table)
    given = texts if len(texts) == len(columns) else [""] * len(columns)
    return site.page(
        "why.html", table=table.name, view="why", story=story, snapshot=snapshot or "",
        columns=list(zip(columns, given, strict=True)),
        tabs=TABLE_TABS if isinstance(table, Table) else _FOREIGN_TABS,
    )  # fmt: skip


def _streams(site: Site, asked: Asked) -> Response:
    table = table_of(site, asked)
    return site.page("streams.html", table=table.name, view="streams", streams=streams_of(table))


def _state(seen: PinnedTable) -> str:
    """A hash that changes with what is shown: the latest snapshot and schema, and the tags."""
    metadata = seen.metadata
    snapshot = metadata.latest_snapshot()
    time = None if snapshot is None else (snapshot.id, snapshot.time_millis)
    told = repr((time, metadata.newest_schema().id, metadata.tag_names()))
    return f'"{hashlib.sha256(told.encode()).hexdigest()[:24]}"'


def _unchanged(asked: Asked, state: str) -> Response | None:
    if asked.request.headers.get("if-none-match") == state:
        return Response(status_code=304, headers={"ETag": state})
    return None


def redirected(table: str, *parts: str) -> Response:
    """Redirect to a page about a table, after an action."""
    return RedirectResponse(table_address(table, *parts), 303)
