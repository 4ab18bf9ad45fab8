"""Queries of a page: their time limit, and how they are cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from starlette.testclient import TestClient
from ui_requests import Browse, form

import keytide as kt
from keytide.sql.grammar import parse_statements
from keytide.sql.local_engine import LocalEngine
from keytide.sql.local_query import Stop, StoppedError
from keytide.sql.relations import bind
from keytide.sql.statements import Query
from keytide.ui import http
from keytide.ui.http import Run, Runs

LONG = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE (a.range * b.range) % 7 = 3"
STEPS_SECONDS = 0.05


@pytest.fixture
def runs() -> Iterator[Runs]:
    made = Runs(None)
    yield made
    made.cancel()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(STEPS_SECONDS)


def sql_threads() -> list[str]:
    return [
        each.name for each in threading.enumerate() if each.name in ("keytide-sql", "keytide-ui")
    ]


@pytest.mark.parametrize("what", ["run", "analyze"])
def test_query_beyond_the_limit_ends_with_its_work(
    browse: Browse, shown: kt.Lake, what: str
) -> None:
    page = browse(shown, runs=Runs(0.2))
    answer = page.post("/sql", data=form(text=LONG, what=what))
    assert answer.status_code == 400
    assert "The query ran longer than 0.2 s. It was stopped." in answer.text
    until(lambda: sql_threads() == [])


def test_export_beyond_the_limit_ends(browse: Browse, shown: kt.Lake) -> None:
    page = browse(shown, runs=Runs(0.2))
    answer = page.post("/sql/export", data=form(text=LONG, format="csv"))
    assert answer.status_code == 400
    assert "ran longer than 0.2 s" in answer.text


def test_query_within_the_limit_is_as_without_one(browse: Browse, shown: kt.Lake) -> None:
    page = browse(shown, runs=Runs(60))
    assert "5 rows" in page.post("/sql", data=form(text="SELECT * FROM shop.orders")).text
    failed = page.post("/sql", data=form(text="SELECT none FROM shop.orders"))
    assert (failed.status_code, "none" in failed.text) == (400, True)


def test_cancel_ends_the_query_of_its_page_alone(
    browse: Browse, shown: kt.Lake, runs: Runs
) -> None:
    page = browse(shown, runs=runs)
    answers: list[str] = []
    waiting = threading.Thread(
        target=lambda: answers.append(page.post("/sql", data=form(text=LONG, run="mine")).text)
    )
    waiting.start()
    until(lambda: len(runs._runs) == 1)
    other = page.post("/sql/cancel", data=form(run="another", text="SELECT 1"))
    assert "No query of this page is running." in other.text
    assert waiting.is_alive()
    assert "The query was cancelled." in page.post("/sql/cancel", data=form(run="mine")).text
    waiting.join(20)
    assert "The query was cancelled. It was stopped." in answers[0]


def test_cancel_needs_a_form_of_the_page(page: TestClient) -> None:
    assert page.post("/sql/cancel", data={"run": "mine"}).status_code == 403


def test_query_that_cannot_be_stopped_is_left_behind(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_GRACE_SECONDS", 0.05)
    leave = threading.Event()
    bounded = Runs(0.05)
    with pytest.raises(kt.InvalidError, match="its result is dropped"):
        bounded.result(Run("x"), lambda stop: leave.wait(20))
    leave.set()
    assert bounded.cancel("x") == 0


def test_statement_that_changes_something_has_no_limit(browse: Browse, lake: kt.Lake) -> None:
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    page = browse(lake, allows_changes=True, runs=Runs(1e-9))
    assert (
        "2 rows changed" in page.post("/sql", data=form(text="INSERT INTO t VALUES (1), (2)")).text
    )
    assert page.post("/sql", data=form(text="SELECT * FROM t")).status_code == 400
    assert table.scan().count() == 2


def test_scan_ends_after_the_batch_that_it_reads(shown: kt.Lake) -> None:
    (query,) = parse_statements("SELECT * FROM shop.orders")
    assert isinstance(query, Query)
    stop = Stop()
    stop.send()
    with pytest.raises(StoppedError):
        LocalEngine(stop=stop).query(bind(query, shown.catalog))
