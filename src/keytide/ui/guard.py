"""Checks every request before any page sees it, and sets the security headers of all answers."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keytide.ui.access import Access

__all__ = ["TOKEN", "Guard"]

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
            with_headers = _adding_headers(send)
            refusal = self._refusal(scope)
            await (refusal or self._app)(scope, receive, with_headers)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """The answer to a request that is not allowed; None for one that is."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._access.is_called(hosts[0]):
            return HTMLResponse(_WRONG_HOST, 403)
        given = QueryParams(scope["query_string"]).get(TOKEN)
        if given is not None:
            return self._entered() if self._access.knows(given) else HTMLResponse(_REFUSED, 403)
        if not self._access.knows(_cookie(headers, self._access.cookie)):
            return HTMLResponse(_REFUSED, 403)
        return None

    def _entered(self) -> ASGIApp:
        """Store the secret in a cookie, and redirect to the address without it."""
        response = HTMLResponse(_ENTERED)
        response.set_cookie(
            self._access.cookie, self._access.secret, httponly=True, samesite="strict"
        )
        return response


def _cookie(headers: Headers, name: str) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return None if found is None else found.value


def _adding_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_HEADERS)
        await send(message)

    return sending
