"""What the page may do where that is allowed: shown first, done when it is confirmed."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from starlette.testclient import TestClient
from ui_requests import Browse, form

import keytide as kt

ACTIONS = "/table/default.t/actions"


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    made = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"], options={"bucket": "1"})
    for number in range(3):
        made.write([{"k": number}])
    return made


@pytest.fixture
def page(browse: Browse, table: kt.Table, lake: kt.Lake) -> TestClient:
    return browse(lake, allows_changes=True)


def fields(page: str) -> dict[str, str]:
    """What the form of a page brings along."""
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"what": "compact", "full": "yes"}, "3 files"),
        ({"what": "tag", "name": "x"}, "Snapshot 3 would be named"),
        ({"what": "rollback", "to": "1"}, "2 later snapshots would be deleted"),
    ],
)
def test_nothing_is_done_before_it_is_confirmed(
    page: TestClient, table: kt.Table, asked: dict[str, str], told: str
) -> None:
    proposed = page.post(ACTIONS, data=form(**asked))
    assert told in proposed.text
    assert (table.metadata.latest_snapshot_id(), table.tags()) == (3, [])


def test_compaction_that_is_confirmed_is_done(page: TestClient, table: kt.Table) -> None:
    proposed = page.post(ACTIONS, data=form(what="compact", full="yes"))
    done = page.post(f"{ACTIONS}/confirmed", data=fields(proposed.text))
    assert (done.status_code, done.headers["location"]) == (303, "/table/default.t/timeline")
    assert table.history(1)[0].operation == "compaction"
    assert table.scan().count() == 3


def test_tag_and_rollback_that_are_confirmed_are_done(page: TestClient, table: kt.Table) -> None:
    tag = page.post(ACTIONS, data=form(what="tag", name="one", snapshot="1"))
    page.post(f"{ACTIONS}/confirmed", data=fields(tag.text))
    back = page.post(ACTIONS, data=form(what="rollback", to="one"))
    page.post(f"{ACTIONS}/confirmed", data=fields(back.text))
    assert [tag.name for tag in table.tags()] == ["one"]
    assert table.metadata.latest_snapshot_id() == 1


def test_what_was_confirmed_of_an_older_table_is_shown_anew(
    page: TestClient, table: kt.Table
) -> None:
    back = page.post(ACTIONS, data=form(what="rollback", to="1"))
    table.write([{"k": 9}])
    refused = page.post(f"{ACTIONS}/confirmed", data=fields(back.text))
    assert refused.status_code == 409
    assert "3 later snapshots would be deleted" in refused.text
    assert table.metadata.latest_snapshot_id() == 4


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"what": "drop"}, 400),
        ({}, 400),
        ({"what": "rollback", "to": "77"}, 404),
        ({"what": "rollback", "to": "none"}, 404),
        ({"what": "tag", "name": "x", "snapshot": "-1"}, 400),
    ],
)
def test_what_cannot_be_done_is_told(page: TestClient, asked: dict[str, str], status: int) -> None:
    assert page.post(ACTIONS, data=form(**asked)).status_code == status


def test_confirmation_needs_a_form_of_the_page(page: TestClient, table: kt.Table) -> None:
    asked = {"what": "rollback", "to": "1", "newest": "3"}
    assert page.post(f"{ACTIONS}/confirmed", data=asked).status_code == 403
    assert page.get(f"{ACTIONS}/confirmed?what=rollback&to=1&newest=3").status_code == 200
    assert table.metadata.latest_snapshot_id() == 3
