"""Who may ask, and what every answer says of itself."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from ui_requests import ACCESS, form, stranger

import keytide as kt
from keytide.ui.http import Access

PAGES = [
    "/",
    "/table/shop.orders",
    "/table/shop.orders/health",
    "/table/shop.orders/timeline",
    "/table/shop.orders/layout",
    "/table/shop.orders/changes?start=0",
    "/table/shop.orders/why?key=2",
    "/table/shop.orders/streams",
    "/sql",
    "/static/style.css",
]


@pytest.mark.parametrize("path", [*PAGES, "/no/page"])
def test_without_the_token_nothing_is_shown(shown: kt.Lake, path: str) -> None:
    answer = stranger(shown).get(path)
    assert answer.status_code == 403
    assert "orders" not in answer.text


@pytest.mark.parametrize(
    "token",
    ["", "x", "ä", "\u202e", ACCESS.secret[:-1], ACCESS.form_token],
    ids=["none", "short", "not ASCII", "mark of direction", "cut off", "that of forms"],
)
def test_wrong_token_opens_nothing(shown: kt.Lake, token: str) -> None:
    answer = stranger(shown).get("/", params={"token": token})
    assert (answer.status_code, answer.headers.get("set-cookie")) == (403, None)


def test_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(shown: kt.Lake) -> None:
    client = stranger(shown)
    answer = client.get("/", params={"token": ACCESS.secret})
    cookie = answer.headers["set-cookie"]
    assert answer.status_code == 200
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert ACCESS.secret not in answer.text
    assert client.get("/").status_code == 200


def test_wrong_cookie_opens_nothing(shown: kt.Lake) -> None:
    client = stranger(shown)
    client.cookies.set(ACCESS.cookie, "x")
    assert client.get("/").status_code == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:7411", 200),
        ("localhost", 200),
        ("LOCALHOST.:9000", 200),
        ("[::1]:7411", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:7411", 403),
        ("localhost.evil.example", 403),
        ("10.0.0.1", 403),
        ("", 403),
    ],
)
def test_server_answers_to_its_own_names_alone(page: TestClient, host: str, status: int) -> None:
    assert page.get("/", headers={"host": host}).status_code == status


def test_server_of_a_whole_machine_answers_to_addresses_and_its_name() -> None:
    wide = Access.at("0.0.0.0", 1, "Box")
    asked = [
        "10.1.2.3:1",
        "[fe80::1]:1",
        "box",
        "localhost",
        "evil.example",
        "10.1.2.3.evil.example",
    ]
    assert [wide.is_called(host) for host in asked] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("path", [*PAGES, "/no/page", "/table/none.such", "/?page=x"])
def test_every_answer_forbids_what_pages_do_not_need(page: TestClient, path: str) -> None:
    headers = page.get(path).headers
    assert headers["content-security-policy"] == (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


def test_form_of_another_page_is_refused(page: TestClient) -> None:
    for token in ("", "x", ACCESS.secret):
        answer = page.post("/sql", data=form(text="SELECT 1") | {"token": token})
        assert answer.status_code == 403
    assert page.post("/sql", data={"text": "SELECT 1"}).status_code == 403
    assert page.post("/sql", data=form(text="SELECT 1")).status_code == 200


def test_form_beyond_a_mebibyte_is_refused_without_being_read(page: TestClient) -> None:
    assert page.post("/sql", data=form(text="x" * (1 << 20))).status_code == 400


def test_pages_that_are_not_there_say_so_without_a_trace(page: TestClient) -> None:
    asked = {
        "/no/page": 404,
        "/table/none.such": 404,
        "/table/%2e%2e": 400,
        "/table/shop.orders%24branch_none": 404,
        "/?page=x": 400,
        "/?page=-1": 400,
        "/?database=none": 404,
        "/table/shop.open/timeline": 422,
        "/table/shop.orders/source": 404,
        "/table/shop.orders/timeline?before=99999999999999999999": 400,
        "/table/shop.orders/layout?bucket=7": 404,
        "/table/shop.orders/changes?start=77": 404,
        "/table/shop.orders/changes?start=none": 404,
        "/table/shop.orders/changes?start=0&mode=x": 400,
        "/table/shop.orders/why?key=x": 400,
        "/table/shop.orders/why?key=1&key=2": 400,
        "/table/shop.log/why?key=1": 422,
        "/static/../app.py": 404,
        "/static/%2e%2e/app.py": 404,
    }
    found = {path: page.get(path) for path in asked}
    assert {path: answer.status_code for path, answer in found.items()} == asked
    assert not [path for path, answer in found.items() if "Traceback" in answer.text]


def test_what_may_change_is_not_there_unless_it_is_allowed(page: TestClient) -> None:
    assert page.get("/table/shop.orders/actions").status_code == 404
    posted = form(what="compact", newest="3")
    assert page.post("/table/shop.orders/actions/confirmed", data=posted).status_code == 404
