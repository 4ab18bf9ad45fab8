"""A child that is forked after its parent has worked on tables says so, and never waits."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from keytide.store import open_store

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS = [{"k": k, "v": k} for k in range(100)]
CALLS: dict[str, Callable[[kt.Lake, kt.Table, kt.Scan], Any]] = {
    "get": lambda lake, table, scan: table.get(1),
    "why": lambda lake, table, scan: table.why(1),
    "write": lambda lake, table, scan: table.write(ROWS),
    "overwrite": lambda lake, table, scan: table.overwrite(ROWS),
    "scan": lambda lake, table, scan: table.scan(where="v > 1").to_arrow(),
    "scan of the parent": lambda lake, table, scan: scan.to_arrow(),
    "count": lambda lake, table, scan: scan.count(),
    "explain": lambda lake, table, scan: scan.explain(),
    "tables": lambda lake, table, scan: lake.tables(),
    "create": lambda lake, table, scan: lake.create_table("u", SCHEMA, ["k"]),
    "sql": lambda lake, table, scan: lake.sql("SELECT * FROM t"),
    "function": lambda lake, table, scan: kt.register_merge_function(
        "forked", pl.Expr.max, types=["INT"]
    ),
}


def send_refusal(call: Callable[[], Any], answer: Connection) -> None:
    try:
        call()
        answer.send("")
    except kt.SetupError as error:
        answer.send(str(error))


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", ["local", "object store"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_every_call_in_a_forked_child_says_what_to_do(kind: str, name: str, warehouse: str) -> None:
    store = open_store(warehouse if kind == "local" else f"memory://{warehouse}")
    lake = kt.connect("", store=store)
    table = lake.create_table("t", SCHEMA, ["k"])
    for _ in range(2):
        table.write(ROWS)
    scan = table.scan()
    assert scan.count() == len(ROWS)
    receiver, answer = multiprocessing.Pipe(duplex=False)
    call = CALLS[name]
    child = multiprocessing.get_context("fork").Process(
        target=send_refusal, args=(lambda: call(lake, table, scan), answer)
    )
    child.start()
    try:
        assert receiver.poll(60)
        assert "spawn" in receiver.recv()
    finally:
        child.kill()
        child.join()


@pytest.mark.takes_turns
def test_child_that_is_spawned_works(lake: kt.Lake) -> None:
    table = lake.create_table("t", SCHEMA, ["k"])
    table.write(ROWS)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(kt.Table.get, (table, 1)) == {"k": 1, "v": 1}
