"""Requests and answers: access, running queries, parameters, addresses, lists, and the site.

- A request is allowed with the secret that was printed when the server started. This module only
  decides. The guard in `server` acts on the decisions.
- Queries that run for a page have a time limit each, and can be cancelled by the page's number.
- The parameters of a request are values: numbers and strings of its address, and forms.
- The tables of a lake are listed a page at a time: names are listed, and those on the page are
  opened.

>>> table_address("shop.orders$branch_x", "timeline", before=12)
'/table/shop.orders%24branch_x/timeline?before=12'
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from keytide.base.dataclass import dataclass, field
from keytide.base.text import counted, utc
from keytide.definition.kind import is_external
from keytide.dml.attachments import attached_tables
from keytide.errors import InvalidError, KeytideError, NotFoundError
from keytide.format.paths import branched_name, split_branch
from keytide.lake.lake import Lake
from keytide.show.elements import ago_text, harmless, size_text
from keytide.sql.local_query import Stop, settle
from keytide.tasks import Threads
from keytide.types import quoted

# -- access ----------------------------------------------------------------------------------------


_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_SECRET_BYTES = 32


@dataclass(frozen=True)
class Access:
    """The secret of one server, and the host names that it answers to.

    With `any_address` it answers to every IP address, because it listens on all addresses of its
    machine. An IP address cannot be redirected to another machine, as a domain name can.
    """

    cookie: str
    """The name of the cookie. Other servers on this machine have other names."""
    names: Collection[str] = _LOOPBACK
    any_address: bool = False
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES), repr=False)

    @classmethod
    def at(cls, host: str, port: int, own_name: str) -> Access:
        """Access to a server that listens on `host`, on a machine with the name `own_name`."""
        bare = without_brackets(host).lower()
        is_wide = bare in ("0.0.0.0", "::", "")
        names = _LOOPBACK | {bare, own_name.lower()} if is_wide else _LOOPBACK | {bare}
        return cls(f"keytide-{port}", names, any_address=is_wide)

    @property
    def form_token(self) -> str:
        """The token that every form of this server contains. It does not reveal the secret."""
        return hmac.new(self.secret.encode(), b"form", hashlib.sha256).hexdigest()

    def is_secret(self, value: str | None) -> bool:
        """Whether `value` is the secret. Takes the same time for every other string."""
        return value is not None and hmac.compare_digest(value.encode(), self.secret.encode())

    def is_form_token(self, value: str | None) -> bool:
        """Whether `value` is the token of this server's forms."""
        return value is not None and hmac.compare_digest(value.encode(), self.form_token.encode())

    def is_called(self, host: str | None) -> bool:
        """Whether a Host header names this server.

        Any port is accepted, because it can be forwarded. Another name means that a page of another
        site redirected its domain to this machine, so that its scripts could read the answers.
        """
        if not host:
            return False
        bare = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        name = bare.rstrip(".").lower()
        if name in self.names or not self.any_address:
            return name in self.names
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def without_brackets(host: str) -> str:
    """An IPv6 address without the brackets around it; any other host unchanged."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


# -- running queries -------------------------------------------------------------------------------


T = TypeVar("T")

QUERY_SECONDS_MAX = 60.0
"""How long a query runs at most, if nothing else is chosen."""

_GRACE_SECONDS = 2.0
"""How long a request waits for a stopped query to end, before it answers without that."""


@dataclass
class Run:
    """A query that a request waits for; `number` is that of the page that asked for it."""

    number: str
    stop: Stop = field(default_factory=Stop)
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when there is a result or an error, or when the query was cancelled."""

    def cancel(self) -> None:
        """Stop it. The request that waits for it answers soon."""
        self.stop.send()
        self.ended.set()


class Runs:
    """The queries that run now. Safe for threads.

    `limit_seconds` bounds each of them; None is no limit.
    """

    def __init__(self, limit_seconds: float | None) -> None:
        self.limit_seconds = limit_seconds
        self._lock = threading.Lock()
        self._runs: list[Run] = []

    def cancel(self, number: str | None = None) -> int:
        """Cancel the queries of a number, or all queries; returns how many of them were running."""
        with self._lock:
            runs = [run for run in self._runs if number is None or run.number == number]
        for run in runs:
            run.cancel()
        return len(runs)

    def result(self, run: Run, query: Callable[[Stop], T]) -> T:
        """Run a query in its own thread, with what stops it.

        When it is cancelled or exceeds the limit, it is stopped, and this raises `InvalidError`. A
        query that does not end within two seconds continues in its thread to the next point where
        it can be stopped, and its result is dropped. Raises what the query raises.
        """
        with self._lock:
            self._runs.append(run)
        try:
            running: Future[T] = Future()
            running.add_done_callback(lambda _: run.ended.set())
            work = threading.Thread(
                target=settle,
                args=(running, partial(query, run.stop)),
                name="keytide-ui",
                daemon=True,
            )
            work.start()
            in_time = run.ended.wait(self.limit_seconds)
            if running.done() and not run.stop.is_sent:
                return running.result()
            run.stop.send()
            wait([running], timeout=_GRACE_SECONDS)

            what, advice = "was cancelled", ""
            if not in_time:
                what = f"ran longer than {self.limit_seconds:g} s"
                advice = " Read less, or start keytide ui with a longer --query-timeout."
            after = "It was stopped."
            if not running.done():
                after = "Its current step still runs to its end, and its result is dropped."
            raise InvalidError(f"The query {what}. {after}{advice}")
        finally:
            with self._lock:
                self._runs.remove(run)


# -- parameters ------------------------------------------------------------------------------------


_FORM_BYTES_MAX = 1 << 20
_NUMBER_MAX = (1 << 63) - 1

Form = Mapping[str, str]
"""The fields of a form. If a field occurs several times, the last one counts."""


@dataclass(frozen=True)
class RequestParameters:
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


def version_of(given: str) -> int | str:
    """The snapshot id or, if the string is no number, the name of a tag."""
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 20 else given


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


# -- addresses -------------------------------------------------------------------------------------


def page_address(*parts: str, **parameters: object) -> str:
    """The address of a page with its query parameters, without those that are None."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def table_address(name: str, *parts: str, **parameters: object) -> str:
    """The address of a page about a table."""
    return page_address("table", name, *parts, **parameters)


# -- the site --------------------------------------------------------------------------------------


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


def _time(time: datetime | None) -> Markup:
    if time is None:
        return Markup("")
    return Markup('<time datetime="{}">{}</time>').format(
        time.isoformat(), f"{time:%Y-%m-%d %H:%M:%S}Z"
    )


_TEMPLATES = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    # Without characters that affect later text.
    finalize=lambda value: harmless(value) if type(value) is str else value,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_TEMPLATES.filters |= {
    "ago": ago_text,
    "count": lambda number: f"{number:,}",
    "counted": counted,
    "exact": lambda text: Markup(escape(text)),  # the value of a field goes back as it came
    "size": size_text,
    "time": _time,
}
_TEMPLATES.globals |= {
    "branch_name": lambda table, branch: branched_name(split_branch(table)[0], branch),
    "page_address": page_address,
    "select_text": lambda table: (
        f"SELECT * FROM {'.'.join(map(quoted, table.split('.')))} LIMIT 100"
    ),
    "table_address": table_address,
}


# -- lists of tables -------------------------------------------------------------------------------


PAGE_LINES = 25
"""How many tables a page shows."""

# Tables of a page opened in parallel: in an object store each waits for a few requests.
_OPENED = 8


@dataclass(frozen=True)
class TableLine:
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
    lines: tuple[TableLine, ...]
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
    listings = [partial(lake.catalog.warehouse.views, each) for each in inside]
    views = {
        f"{each}.{view}"
        for each, found in zip(inside, Threads(_OPENED).map(listings), strict=True)
        for view in found
    }
    outside = [attached_tables(lake.catalog, name) for name in attached if name in chosen]
    elsewhere = {name for tables in outside for name in tables}
    known, wanted = {*lake.catalog.likely_tables(inside), *views, *elsewhere}, search.casefold()
    names = sorted(name for name in known if wanted in name.casefold())
    pages = max(1, -(-len(names) // PAGE_LINES))
    page = min(max(1, page), pages)
    kinds = dict.fromkeys(views, _VIEW) | dict.fromkeys(elsewhere, _ATTACHED)
    shown = names[(page - 1) * PAGE_LINES : page * PAGE_LINES]
    opening = [partial(_line, lake, name, kinds.get(name)) for name in shown]
    lines = tuple(line for line in Threads(_OPENED).map(opening) if line is not None)
    return Listing(databases, database, search, lines, page, pages, len(names))


def _line(lake: Lake, name: str, kind: str | None) -> TableLine | None:
    """The line of a name; None where it has no table any more."""
    if kind is not None:
        return TableLine(name, kind)
    try:
        seen = lake.catalog.entry(name)
        schema = seen.schema
        if is_external(schema):
            return TableLine(name, _EXTERNAL, tuple(schema.primary_keys), len(schema.fields))
        snapshot = seen.metadata.latest_snapshot()
    except KeytideError as error:
        database, _, table = name.partition(".")
        warehouse = lake.catalog.warehouse
        is_gone = isinstance(error, NotFoundError) and not warehouse.holds(database, table)
        return None if is_gone else TableLine(name, _KEYED, problem=str(error))
    return TableLine(
        name,
        _KEYED if schema.primary_keys else _APPENDED,
        tuple(schema.primary_keys),
        len(schema.fields),
        0 if snapshot is None else snapshot.total_record_count,
        None if snapshot is None else snapshot.id,
        None if snapshot is None else utc(snapshot.time_millis),
    )
