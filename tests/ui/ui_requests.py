"""Requests for pages as somebody makes them who has opened the address, or has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.testclient import TestClient

import keytide as kt
from keytide.ui.http import Access
from keytide.ui.server import TOKEN, application

ORIGIN = "http://127.0.0.1:7411"
ACCESS = Access.at("127.0.0.1", 7411, "this-machine")

Browse = Callable[..., TestClient]


def stranger(lake: kt.Lake, **given: Any) -> TestClient:
    """Who has no cookie yet."""
    app = application(lake, ACCESS, **given)
    return TestClient(app, base_url=ORIGIN, follow_redirects=False)


def form(**fields: str) -> dict[str, str]:
    """A form of the server's own."""
    return {TOKEN: ACCESS.form_token, **fields}
