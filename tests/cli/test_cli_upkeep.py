"""The commands that keep a table in shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import keytide as kt

Run = Callable[..., Any]


def test_compact_tells_first_what_it_would_do_and_then_does_it(run: Run, orders: kt.Table) -> None:
    before = sorted(orders.scan().to_pylist(), key=str)
    told = run("compact", orders.uri, "--full", "--dry-run", "-f", "json")
    would = json.loads(told.out)
    assert (told.code, told.err) == (0, "")
    assert (would["snapshot_id"], would["files_after"]) == (None, None)
    assert would["files_before"] == len(orders.scan().live.entries)
    assert len(orders.snapshots()) == 2
    done = json.loads(run("compact", orders.uri, "--full", "-f", "json").out)
    assert (done["snapshot_id"], done["files_before"]) == (3, would["files_before"])
    assert sorted(orders.scan().to_pylist(), key=str) == before


def test_compact_says_when_nothing_is_due(run: Run, orders: kt.Table, warehouse: str) -> None:
    done = run("compact", "-w", warehouse, "shop.orders")
    assert (done.code, done.err) == (0, "nothing to compact\n")
    assert len(orders.snapshots()) == 2


def test_compact_of_a_table_that_must_stay_is_one_line_and_exit_code_1(
    run: Run, warehouse: str
) -> None:
    lake = kt.connect(warehouse)
    lake.sql("CREATE TABLE logs (n INT)")
    done = run("compact", "-w", warehouse, "default.logs")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: table default.logs: this release cannot compact it: ")
    assert done.err.count("\n") == 1
