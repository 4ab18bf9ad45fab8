"""The server of the pages: addresses, checks of requests, changes after a confirmation, and errors.

Every request is checked before any page sees it, and all answers get security headers. Pages that
change a table first show what would be done, and do it after a confirmation. The server runs until
Ctrl-C.
"""

from __future__ import annotations

import socket
import sys
import webbrowser
from collections.abc import Awaitable, Callable
from functools import partial
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from threading import Timer
from types import FrameType
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass
from keytide.base.text import counted
from keytide.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    KeytideError,
    NotFoundError,
)
from keytide.lake.lake import Lake
from keytide.lake.table import Table
from keytide.show.elements import page_style, size_text
from keytide.ui.http import (
    QUERY_SECONDS_MAX,
    Access,
    Form,
    RequestParameters,
    Run,
    Runs,
    Site,
    form_of,
    table_address,
    version_of,
    whole_number,
    without_brackets,
)
from keytide.ui.sql_pages import RUN, cancel, export, run, show
from keytide.ui.table_pages import PAGES, PageView, table_of

# -- pages that change a table ---------------------------------------------------------------------


ChangeHandler = Callable[[Site, RequestParameters, Form], Response]


@dataclass(frozen=True)
class Proposal:
    """What would be done, in sentences, and the form fields that confirm it.

    `newest` is the latest snapshot at the time of the proposal, 0 if there is none.
    """

    title: str
    button: str
    sentences: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    newest: int
    is_worth_it: bool = True


def _actions(site: Site, parameters: RequestParameters) -> Response:
    table = table_of(site, parameters)
    return site.page(
        "actions.html", table=table.name, view="actions", to=parameters.text("to") or ""
    )


def _propose(site: Site, parameters: RequestParameters, form: Form) -> Response:
    """Show what would be done, without doing it."""
    table = table_of(site, parameters)
    return _confirm(site, table, _proposal(table, form))


def _confirm(site: Site, table: Table, proposal: Proposal, changed: str = "") -> Response:
    return site.page(
        "confirm.html", 409 if changed else 200, table=table.name, view="actions",
        proposal=proposal, changed=changed,
    )  # fmt: skip


def _carry_out(site: Site, parameters: RequestParameters, form: Form) -> Response:
    """Do it, if the table has not changed since the proposal was shown."""
    table = table_of(site, parameters)
    proposal = _proposal(table, form)
    if form.get("newest") != str(proposal.newest):
        message = f"Snapshot {proposal.newest} was committed since. This is what would be done now."
        return _confirm(site, table, proposal, message)
    _ACTIONS[form["what"]].carry_out(table, form)
    return RedirectResponse(table_address(table.name, "timeline"), 303)


def _proposal(table: Table, form: Form) -> Proposal:
    newest, what = table.metadata.latest_snapshot_id() or 0, form.get("what", "")
    if what not in _ACTIONS:
        raise InvalidError(f"what is {what!r}; expected one of {', '.join(_ACTIONS)}")
    return _ACTIONS[what].propose(table, form, newest)


@dataclass(frozen=True)
class _Action:
    """An action: how it is proposed, and how it is done."""

    propose: Callable[[Table, Form, int], Proposal]
    carry_out: Callable[[Table, Form], object]


def _propose_compaction(table: Table, form: Form, newest: int) -> Proposal:
    full = form.get("full") == "yes"
    planned = table.compact(full=full, dry_run=True)
    message = (
        f"{counted(planned.files_before, 'file')} with {size_text(planned.bytes_before)} in "
        f"{counted(planned.buckets, 'bucket')} would be merged into fewer and larger files with "
        f"the same rows, in one commit."
        if planned.buckets
        else "There is nothing to compact: no bucket would change."
    )
    return Proposal(
        f"Compact {table.name}{' in full' if full else ''}", "Compact", (message,),
        (("what", "compact"), ("full", "yes" if full else "")), newest, planned.buckets > 0,
    )  # fmt: skip


def _propose_tag(table: Table, form: Form, newest: int) -> Proposal:
    name, snapshot = form.get("name", ""), _snapshot(form)
    message = f"Snapshot {newest if snapshot is None else snapshot} would be named {name!r}."
    kept = "A tag keeps its snapshot readable, with its files, until the tag is deleted."
    fields = (("what", "tag"), ("name", name), ("snapshot", form.get("snapshot", "")))
    return Proposal(f"Tag {table.name}", "Create the tag", (message, kept), fields, newest)


def _snapshot(form: Form) -> int | None:
    given = form.get("snapshot", "")
    return whole_number(given, "snapshot") if given else None


def _propose_rollback(table: Table, form: Form, newest: int) -> Proposal:
    planned = table.rollback_to(version_of(form.get("to", "")), dry_run=True)
    message = [
        f"The table would be reset to snapshot {planned.current_snapshot_id}.",
        f"{counted(planned.snapshots, 'later snapshot')} would be deleted, up to "
        f"{planned.previous_snapshot_id}. This cannot be undone.",
    ]
    if planned.tags:
        message.append(f"These tags would be deleted with them: {', '.join(planned.tags)}.")
    if planned.consumers:
        message.append(f"These consumers have already read them: {', '.join(planned.consumers)}.")
    return Proposal(
        f"Roll {table.name} back", "Roll back", tuple(message),
        (("what", "rollback"), ("to", form.get("to", ""))), newest, planned.snapshots > 0,
    )  # fmt: skip


_ACTIONS = {
    "compact": _Action(
        _propose_compaction, lambda table, form: table.compact(full=form.get("full") == "yes")
    ),
    "tag": _Action(
        _propose_tag, lambda table, form: table.create_tag(form.get("name", ""), _snapshot(form))
    ),
    "rollback": _Action(
        _propose_rollback, lambda table, form: table.rollback_to(version_of(form.get("to", "")))
    ),
}

_CHANGES: dict[str, tuple[PageView, ChangeHandler]] = {
    "/table/{table}/actions": (_actions, _propose),
    "/table/{table}/actions/confirmed": (_actions, _carry_out),
}
"""The pages by address: what each shows, and what it does with a form."""


# -- the guard -------------------------------------------------------------------------------------


TOKEN = "token"
"""The name of the secret in an address, and of the token in a form."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_DOCUMENT = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Keytide</title>'
    '<link rel="icon" href="data:,">{head}</head>'
    "<body><main><h1>Keytide</h1><p>{text}</p></main></body></html>"
)
_REFUSED = _DOCUMENT.format(
    head="",
    text="Open this page with the address that <code>keytide ui</code> printed when it started: "
    "that address contains a token.",
)
_WRONG_HOST = _DOCUMENT.format(head="", text="This server does not answer to that host name.")
# After a link from another site, a redirect would not send the cookie; a new request does.
_ENTERED = _DOCUMENT.format(
    head='<meta http-equiv="refresh" content="0;url=/">', text='<a href="/">Continue</a>'
)


class Guard:
    """An application whose requests are all checked first."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the application."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":

            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(_HEADERS)
                await send(message)

            refusal = self._refusal(scope)
            await (refusal or self._app)(scope, receive, send_with_headers)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """The answer to a request that is not allowed; None for one that is."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._access.is_called(hosts[0]):
            return HTMLResponse(_WRONG_HOST, 403)
        given, name = QueryParams(scope["query_string"]).get(TOKEN), self._access.cookie
        if given is not None:
            if not self._access.is_secret(given):
                return HTMLResponse(_REFUSED, 403)
            # Store the secret in a cookie, and redirect to the address without it.
            response = HTMLResponse(_ENTERED)
            response.set_cookie(name, self._access.secret, httponly=True, samesite="strict")
            return response
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(name)
        except CookieError:
            cookie = None
        is_known = cookie is not None and self._access.is_secret(cookie.value)
        return None if is_known else HTMLResponse(_REFUSED, 403)


# -- the application -------------------------------------------------------------------------------


_STATUS = {NotFoundError: 404, InvalidError: 400, AlreadyExistsError: 409, ConflictError: 409}
_OTHER_ERROR = 422


def application(
    lake: Lake, access: Access, *, allows_changes: bool = False, runs: Runs | None = None
) -> Guard:
    """The pages of a lake, for requests that `access` allows; `runs` limits its queries."""
    site = Site(lake, access, allows_changes, runs or Runs(QUERY_SECONDS_MAX))
    routes: list[Any] = [Route(path, _view_endpoint(site, look)) for path, look in PAGES.items()]
    routes += [
        Route("/sql", _view_endpoint(site, show)),
        Route("/sql", _query_endpoint(site, run), methods=["POST"]),
        Route("/sql/export", _query_endpoint(site, export), methods=["POST"]),
        Route("/sql/cancel", _change_endpoint(site, cancel), methods=["POST"]),
    ]
    if allows_changes:
        for path, (look, change) in _CHANGES.items():
            routes += [
                Route(path, _view_endpoint(site, look)),
                Route(path, _change_endpoint(site, change), methods=["POST"]),
            ]
    routes.append(Route("/static/pictures.css", _style))
    routes.append(Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")))
    app = Starlette(routes=routes, exception_handlers={HTTPException: partial(_no_page, site)})
    return Guard(app, access)


async def _style(request: Request) -> Response:
    """The style of the pictures, which notebooks have too."""
    return Response(page_style(), media_type="text/css")


Endpoint = Callable[[Request], Awaitable[Response]]
QueryHandler = Callable[[Site, Form, Run], Response]

_WATCH_SECONDS = 0.5
"""How often the server checks whether the browser of a running query is still connected."""


def _view_endpoint(site: Site, look: PageView) -> Endpoint:
    async def answer(request: Request) -> Response:
        return await run_in_threadpool(
            _answer_or_error, site, lambda: look(site, RequestParameters(request))
        )

    return answer


def _change_endpoint(site: Site, change: ChangeHandler) -> Endpoint:
    """The answer to a form, which must be one of this server's own."""

    async def answer(request: Request) -> Response:
        form = await _own_form(site, request)
        if isinstance(form, Response):
            return form
        return await run_in_threadpool(
            _answer_or_error, site, lambda: change(site, RequestParameters(request), form)
        )

    return answer


def _query_endpoint(site: Site, query: QueryHandler) -> Endpoint:
    """The same for a query, which is cancelled when the browser closes the connection."""

    async def answer(request: Request) -> Response:
        form = await _own_form(site, request)
        if isinstance(form, Response):
            return form
        run = Run(form.get(RUN, ""))
        async with anyio.create_task_group() as group:
            group.start_soon(_watch, request, run)
            response = await run_in_threadpool(
                _answer_or_error, site, lambda: query(site, form, run)
            )
            group.cancel_scope.cancel()
        return response

    return answer


async def _watch(request: Request, run: Run) -> None:
    while not await request.is_disconnected():
        await anyio.sleep(_WATCH_SECONDS)
    run.cancel()


async def _own_form(site: Site, request: Request) -> Form | Response:
    """The form of a request, or the answer to one that is not this server's own."""
    try:
        form = await form_of(request)
    except KeytideError as error:
        return _error_page(site, error)
    if site.access.is_form_token(form.get(TOKEN)):
        return form
    return site.page(
        "error.html", 403, title="Refused", message="This form is not one of this server's pages, "
        "or the server was restarted since; reload the page.",
    )  # fmt: skip


def _answer_or_error(site: Site, answer: Callable[[], Response]) -> Response:
    """The answer, or a page with the error."""
    try:
        return answer()
    except KeytideError as error:
        return _error_page(site, error)
    except Exception as error:
        # As on the command line: a sentence, without a traceback.
        message = f"unexpected {type(error).__name__}: {error}"
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
        return site.page("error.html", 500, title="Something went wrong", message=message)


def _error_page(site: Site, error: KeytideError) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), _OTHER_ERROR)
    title = "Not found" if status == 404 else "This cannot be shown"
    return site.page("error.html", status, title=title, message=str(error))


def _no_page(site: Site, request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = "There is no such page."
    if status == 405:
        message = "This page does not support that request method."
    return site.page("error.html", status, title="Not found", message=message)


# -- the server ------------------------------------------------------------------------------------


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# How long open requests can delay the end of the server.
_END_SECONDS = 3
_OPEN_AFTER_SECONDS = 0.3


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    return without_brackets(host) in _LOOPBACK


def serve(
    lake: Lake, host: str, port: int, *, allows_changes: bool, opens: bool,
    query_seconds_max: float | None, tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Serve a lake until Ctrl-C, which raises `KeyboardInterrupt` after the server has ended.

    `tell` is called with the address to open, which contains the secret. With `opens`, a browser
    opens it. Port 0 uses a free port. A query can run for `query_seconds_max`, None for no limit.
    Raises `InvalidError` for an address on which the server cannot listen.
    """
    bare = without_brackets(host)
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    try:
        listening = socket.create_server((bare, port), family=family)
    except (OSError, OverflowError, TypeError, ValueError) as error:
        raise InvalidError(
            f"cannot listen on {shown(bare)}, port {port}: {error}; --port 0 uses a free port"
        ) from error
    with listening:
        bound = listening.getsockname()[1]
        access = Access.at(host, bound, socket.gethostname())
        # A server that listens on all addresses is reached on this machine.
        here = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}
        place = here.get(bare, f"[{bare}]" if ":" in bare else bare)
        address = f"http://{place}:{bound}/?{TOKEN}={access.secret}"
        tell(address)
        if opens:
            opener = Timer(_OPEN_AFTER_SECONDS, webbrowser.open, [address])
            opener.daemon = True
            opener.start()
        runs = Runs(query_seconds_max)
        config = uvicorn.Config(
            application(lake, access, allows_changes=allows_changes, runs=runs),
            log_config=None, log_level="warning", access_log=False, server_header=False,
            ws="none", timeout_graceful_shutdown=_END_SECONDS,
        )  # fmt: skip
        try:
            _Server(config, runs).run(sockets=[listening])
        finally:
            runs.cancel()


class _Server(uvicorn.Server):
    """Cancels queries when it is asked to end, so that their requests do not hold it up."""

    def __init__(self, config: uvicorn.Config, runs: Runs) -> None:
        super().__init__(config)
        self._runs = runs

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._runs.cancel()
        super().handle_exit(sig, frame)
