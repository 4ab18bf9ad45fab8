"""`keytide verify` and `keytide doctor`: what people and scripts get of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keytide as kt

Run = Callable[..., Any]


def test_sound_table_exits_with_zero(run: Run, orders: kt.Table) -> None:
    done = run("verify", orders.uri.removeprefix("file://"))
    assert (done.code, done.out) == (0, "")
    assert "2 snapshots, 3 data files, 6 rows checked, no problems found" in done.err


def test_damage_exits_with_one_and_is_a_line_of_json(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    lost = next(Path(warehouse).glob("**/*.parquet"))
    lost.unlink()
    done = run("verify", "shop.orders", "-w", warehouse, "--format", "json")
    (line,) = done.out.splitlines()
    found = json.loads(line)
    assert done.code == 1
    assert set(found) == {"table", "path", "what", "expected", "way_out"}
    assert (found["table"], found["what"]) == ("shop.orders", "missing")
    assert found["path"].endswith(lost.name)
    assert "1 finding" in done.err


def test_quick_look_finds_what_is_missing_and_reads_no_rows(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    assert "0 rows" in run("verify", "shop.orders", "-w", warehouse, "--quick").err
    next(Path(warehouse).glob("**/*.parquet")).unlink()
    assert run("verify", "shop.orders", "-w", warehouse, "--quick").code == 1


def test_doctor_lists_every_sign(run: Run, orders: kt.Table, warehouse: str) -> None:
    done = run("doctor", "shop.orders", "-w", warehouse, "--format", "json")
    signs = [json.loads(line)["subject"] for line in done.out.splitlines()]
    assert (done.code, len(signs)) == (0, len(orders.doctor().signs))
    assert signs == [sign.subject for sign in orders.doctor().signs]
