"""The application: which address is which page, and what becomes of errors."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

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
from keytide.ui.access import Access
from keytide.ui.asked import Asked, Form, form_of
from keytide.ui.changing import change_routes
from keytide.ui.guard import TOKEN, Guard
from keytide.ui.looking import Look, looks
from keytide.ui.site import Site
from keytide.ui.sql_pages import export, run, show

__all__ = ["application"]

_STATUS = {
    NotFoundError: 404,
    InvalidError: 400,
    AlreadyExistsError: 409,
    ConflictError: 409,
}
_OTHER_ERROR = 422


def application(lake: Lake, access: Access, *, allows_changes: bool = False) -> Guard:
    """The pages of a lake, for whoever `access` lets in."""
    site = Site(lake, access, allows_changes)
    routes: list[Any] = [Route(path, _looking(site, look)) for path, look in looks().items()]
    routes += [
        Route("/sql", _looking(site, show)),
        Route("/sql", _posted(site, run), methods=["POST"]),
        Route("/sql/export", _posted(site, export), methods=["POST"]),
    ]
    if allows_changes:
        for path, (look, change) in change_routes().items():
            routes += [
                Route(path, _looking(site, look)),
                Route(path, _posted(site, change), methods=["POST"]),
            ]
    routes.append(Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")))
    app = Starlette(routes=routes, exception_handlers={HTTPException: partial(_no_page, site)})
    return Guard(app, access)


Answering = Callable[[Request], Awaitable[Response]]
Change = Callable[[Site, Asked, Form], Response]


def _looking(site: Site, look: Look) -> Answering:
    async def answer(request: Request) -> Response:
        return await run_in_threadpool(_caught, site, lambda: look(site, Asked(request)))

    return answer


def _posted(site: Site, change: Change) -> Answering:
    """What a form asks for, which has to be one of this server's own."""

    async def answer(request: Request) -> Response:
        try:
            form = await form_of(request)
        except KeytideError as error:
            return _told(site, error)
        if not site.access.knows_form(form.get(TOKEN)):
            return site.page(
                "error.html", 403, title="Refused", message="This form is not one of this page's "
                "own, or was made by a server that has ended; load the page anew.",
            )  # fmt: skip
        return await run_in_threadpool(_caught, site, lambda: change(site, Asked(request), form))

    return answer


def _caught(site: Site, answer: Callable[[], Response]) -> Response:
    """The answer, or what went wrong as a page."""
    try:
        return answer()
    except KeytideError as error:
        return _told(site, error)
    except Exception as error:
        # As at the command line: a sentence, and nothing of what the code looks like.
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
        message = "This page cannot be asked for in that way."
    return site.page("error.html", status, title="Not found", message=message)
