"""Requests and answers: parameters, addresses, lists, and the site.

The parameters of a request as values: numbers and strings of its address, and forms.

Addresses of pages, for links.

>>> table_address("shop.orders$branch_x", "timeline", before=12)
'/table/shop.orders%24branch_x/timeline?before=12'

What one server shows, and how its pages are rendered.

The tables of a lake, a page at a time: names are listed, and those on the page are opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from keytide.base.text import counted, utc
from keytide.definition.external import is_external
from keytide.dml.attach import attached_tables
from keytide.errors import InvalidError, KeytideError, NotFoundError
from keytide.format.branch import branched_name, split_branch
from keytide.lake.lake import Lake
from keytide.show.text import ago_text, harmless, size_text
from keytide.tasks.runner import Threads
from keytide.types import quoted
from keytide.ui.access import Access
from keytide.ui.running import QUERY_SECONDS_MAX, Runs

# -- the parameters of a request as values ---------------------------------------------------------


_FORM_BYTES_MAX = 1 << 20
_NUMBER_MAX = (1 << 63) - 1

Form = Mapping[str, str]
"""The fields of a form. If a field occurs several times, the last one counts."""


@dataclass(frozen=True)
class Asked:
    """The query parameters of an address."""

    request: Request

    @property
    def table(self) -> str:
        """The table that the address names."""
        return str(self.request.path_params["table"])

    def text(self, name: str) -> str | None:
        """A string; None if it is missing or empty."""
        return self.request.query_params.get(name) or None

    def texts(self, name: str) -> list[str]:
        """All strings of a name, including empty ones."""
        return self.request.query_params.getlist(name)

    def number(self, name: str) -> int | None:
        """An integer, 0 or more; None if it is missing. Raises `InvalidError`."""
        given = self.text(name)
        return None if given is None else whole_number(given, name)


def whole_number(given: str, name: str) -> int:
    """An integer, 0 or more. Raises `InvalidError` for any other string."""
    if not (given.isascii() and given.isdecimal()) or len(given) > 19 or int(given) > _NUMBER_MAX:
        raise InvalidError(f"{name} is {given!r}; expected an integer, 0 or more")
    return int(given)


async def form_of(request: Request) -> Form:
    """The fields of a posted form. Raises `InvalidError` if it is too large."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _FORM_BYTES_MAX:
            raise InvalidError(f"the form has more than {_FORM_BYTES_MAX >> 20} MiB; send less")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=1000)
    except ValueError as error:
        raise InvalidError(f"the request has no valid form: {error}") from error
    return {name: values[-1] for name, values in fields.items()}


# -- addresses of pages, for links -----------------------------------------------------------------


def page_address(*parts: str, **asked: object) -> str:
    """The address of a page with its query parameters, without those that are None."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    given = {name: str(value) for name, value in asked.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def table_address(name: str, *parts: str, **asked: object) -> str:
    """The address of a page about a table."""
    return page_address("table", name, *parts, **asked)


# -- what one server shows, and how its pages are rendered -----------------------------------------


TABLE_TABS = (
    ("overview", "Overview"), ("timeline", "Timeline"), ("layout", "Layout"),
    ("changes", "Changes"), ("why", "Why"), ("streams", "Streams"),
)  # fmt: skip
"""The pages about a table of the lake, with their titles."""

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Site:
    """A lake, the access to its pages, and whether they can change it."""

    lake: Lake
    access: Access
    allows_changes: bool = False
    runs: Runs = field(default_factory=lambda: Runs(QUERY_SECONDS_MAX))
    """The queries that run now."""

    def page(
        self,
        template: str,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **shown: Any,
    ) -> HTMLResponse:
        """A page. Values of the view model are escaped, including control characters."""
        text = _TEMPLATES.get_template(template).render(
            lake_uri=self.lake.uri,
            allows_changes=self.allows_changes,
            form_token=self.access.form_token,
            now=datetime.now(timezone.utc),
            **{"view": "", "tabs": TABLE_TABS, **shown},
        )
        return HTMLResponse(text, status, headers)


def _shown(value: object) -> object:
    """A template value for the page; strings without characters that affect later text."""
    return harmless(value) if type(value) is str else value


def _select_text(table: str) -> str:
    """A query of a table, as a first text."""
    return f"SELECT * FROM {'.'.join(map(quoted, table.split('.')))} LIMIT 100"


def _time(time: datetime | None) -> Markup:
    if time is None:
        return Markup("")
    return Markup('<time datetime="{}">{}</time>').format(
        time.isoformat(), f"{time:%Y-%m-%d %H:%M:%S}Z"
    )


def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "ago": ago_text,
        "count": lambda number: f"{number:,}",
        "counted": counted,
        "exact": lambda text: Markup(escape(text)),  # the value of a field goes back as it came
        "size": size_text,
        "time": _time,
    }
    made.globals |= {
        "branch_name": lambda table, branch: branched_name(split_branch(table)[0], branch),
        "page_address": page_address,
        "select_text": _select_text,
        "table_address": table_address,
    }
    return made


_TEMPLATES = _templates()


# -- the tables of a lake, a page at a time --------------------------------------------------------


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
