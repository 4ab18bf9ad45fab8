"""A large run below small ones: what they replace is left out where it is read."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any
from unittest import mock

import polars as pl
import pytest

import keytide as kt
from keytide.table.read.runs import StoredVersions

KEYS: dict[str, Any] = {
    "BIGINT NOT NULL": lambda n: n - 10_000,
    "DATE NOT NULL": lambda n: date(1970, 1, 1) + timedelta(days=n - 10_000),
    "TIMESTAMP(6) NOT NULL": lambda n: datetime(1960, 1, 1) + timedelta(microseconds=n),
    "STRING NOT NULL": str,
}
SIZE = 20_000
# Rows of the oldest run are read in parts, in one, and merged in windows.
MEMORIES = {"2 mb": True, "1 gb": True, "1 b": False}


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("key", KEYS)
def test_newer_runs_replace_rows_of_a_large_one(warehouse: str, key: str, memory: str) -> None:
    table, rows = overlaid(warehouse, key, memory)
    reads_without = StoredVersions.of_run_without
    with mock.patch.object(StoredVersions, "of_run_without", autospec=True) as spy:
        spy.side_effect = reads_without
        assert by_key(table.scan()) == rows
    assert spy.called == (MEMORIES[memory] and "STRING" not in key)


@pytest.mark.parametrize("memory", MEMORIES)
def test_conditions_do_not_bring_replaced_rows_back(warehouse: str, memory: str) -> None:
    table, rows = overlaid(warehouse, "BIGINT NOT NULL", memory)
    for where, is_wanted in {
        "v < 1000": lambda k, v, s: v < 1000,
        "v >= 100000": lambda k, v, s: v >= 100_000,
        "k > 5 AND v < 15000": lambda k, v, s: k > 5 and v < 15_000,
        "k = -9995": lambda k, v, s: k == -9995,
        "k < -10000": lambda k, v, s: False,
    }.items():
        wanted = {k: (v, s) for k, (v, s) in rows.items() if is_wanted(k, v, s)}
        assert by_key(table.scan(where=where)) == wanted


def overlaid(warehouse: str, key: str, memory: str) -> tuple[kt.Table, dict[Any, tuple[Any, ...]]]:
    """A table of one large run and three small ones, which add, update and delete, and its rows."""
    options = {"write-only": "true", "read.memory": memory}
    columns = {"k": key, "v": "BIGINT", "s": "STRING"}
    fields = [kt.Field(-1, name, kt.parse_sql_type(type_)) for name, type_ in columns.items()]
    table = kt.connect(warehouse).create_table("t", fields, ["k"], options=options)
    rows = {KEYS[key](n): (n, f"text {n * 7919 % SIZE}") for n in range(SIZE) if n % 10}
    table.write([{"k": k, "v": v, "s": s} for k, (v, s) in rows.items()])
    for turn in range(3):
        changed = {KEYS[key](n): (100_000 + n, None) for n in range(turn, SIZE, 501)}
        rows |= changed
        table.write([{"k": k, "v": v, "s": s} for k, (v, s) in changed.items()])
    gone = [KEYS[key](n) for n in range(0, SIZE, 777)]
    table.write([{"k": k, "v": 0, "s": None, "_row_kind": "-D"} for k in gone])
    return table, {k: row for k, row in rows.items() if k not in gone}


def by_key(scan: kt.Scan) -> dict[Any, tuple[Any, ...]]:
    frame: pl.DataFrame = scan.to_polars()
    found = {k: (v, s) for k, v, s in frame.select("k", "v", "s").iter_rows()}
    assert len(found) == frame.height
    return found
