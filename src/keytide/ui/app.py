"""The application: which address leads to which page, and how errors are shown."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from keytide.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    KeytideError,
    NotFoundError,
)
from keytide.lake.lake import Lake
from keytide.show.style import page_style
from keytide.ui.access import Access
from keytide.ui.asked import Asked, Form, form_of
from keytide.ui.changing import change_routes
from keytide.ui.guard import TOKEN, Guard
from keytide.ui.looking import Look, looks
from keytide.ui.running import QUERY_SECONDS_MAX, Run, Runs
from keytide.ui.site import Site
from keytide.ui.sql_pages import RUN, cancel, export, run, show

__all__ = ["application"]

_STATUS = {
    NotFoundError: 404,
    InvalidError: 400,
    AlreadyExistsError: 409,
    ConflictError: 409,
}
_OTHER_ERROR = 422


def application(
    lake: Lake, access: Access, *, allows_changes: bool = False, runs: Runs | None = None
) -> Guard:
    """The pages of a lake, for requests that `access` allows; `runs` limits its queries."""
    site = Site(lake, access, allows_changes, runs or Runs(QUERY_SECONDS_MAX))
    routes: list[Any] = [Route(path, _looking(site, look)) for path, look in looks().items()]
    routes += [
        Route("/sql", _looking(site, show)),
        Route("/sql", _queried(site, run), methods=["POST"]),
        Route("/sql/export", _queried(site, export), methods=["POST"]),
        Route("/sql/cancel", _posted(site, cancel), methods=["POST"]),
    ]
    if allows_changes:
        for path, (look, change) in change_routes().items():
            routes += [
                Route(path, _looking(site, look)),
                Route(path, _posted(site, change), methods=["POST"]),
            ]
    routes.append(Route("/static/pictures.css", _style))
    routes.append(Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")))
    app = Starlette(routes=routes, exception_handlers={HTTPException: partial(_no_page, site)})
    return Guard(app, access)


async def _style(request: Request) -> Response:
    """The style of the pictures, which notebooks have too."""
    return Response(page_style(), media_type="text/css")


Answering = Callable[[Request], Awaitable[Response]]
Change = Callable[[Site, Asked, Form], Response]
Querying = Callable[[Site, Form, Run], Response]

_WATCH_SECONDS = 0.5
"""How often the server checks whether the browser of a running query is still connected."""


def _looking(site: Site, look: Look) -> Answering:
    async def answer(request: Request) -> Response:
        return await run_in_threadpool(_caught, site, lambda: look(site, Asked(request)))

    return answer


def _posted(site: Site, change: Change) -> Answering:
    """The answer to a form, which must be one of this server's own."""

    async def answer(request: Request) -> Response:
        form = await _own_form(site, request)
        if isinstance(form, Response):
            return form
        return await run_in_threadpool(_caught, site, lambda: change(site, Asked(request), form))

    return answer


def _queried(site: Site, query: Querying) -> Answering:
    """The same for a query, which is cancelled when the browser closes the connection."""

    async def answer(request: Request) -> Response:
        form = await _own_form(site, request)
        if isinstance(form, Response):
            return form
        run = Run(form.get(RUN, ""))
        async with anyio.create_task_group() as group:
            group.start_soon(_watch, request, run)
            response = await run_in_threadpool(_caught, site, lambda: query(site, form, run))
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
        return _told(site, error)
    if site.access.knows_form(form.get(TOKEN)):
        return form
    return site.page(
        "error.html", 403, title="Refused", message="This form is not one of this server's pages, "
        "or the server was restarted since; reload the page.",
    )  # fmt: skip


def _caught(site: Site, answer: Callable[[], Response]) -> Response:
    """The answer, or a page with the error."""
    try:
        return answer()
    except KeytideError as error:
        return _told(site, error)
    except Exception as error:
        # As on the command line: a sentence, without a traceback.
        message = f"unexpected {type(error).__name__}: {error}"
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
        return site.page("error.html", 500, title="Something went wrong", message=message)


def _told(site: Site, error: KeytideError) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), _OTHER_ERROR)
    title = "Not found" if status == 404 else "This cannot be shown"
    return site.page("error.html", status, title=title, message=str(error))


def _no_page(site: Site, request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = "There is no such page."
    if status == 405:
        message = "This page does not support that request method."
    return site.page("error.html", status, title="Not found", message=message)
