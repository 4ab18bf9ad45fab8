"""Rows that are made from stored rows undo nothing that another writer did meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from new_tables import empty_table
from overtaking import overtaken

SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("ts", pa.int64()), ("v", pa.string())])

ORDERS: dict[str, dict[str, str]] = {
    "by arrival": {},
    "by a sequence field": {"sequence.field": "ts"},
    "by padded numbers": {"sequence.field": "ts", "sequence.auto-padding": "row-kind-flag"},
}
OTHERS: dict[str, Callable[[kt.Table], object]] = {
    "write": lambda table: table.write(new_rows("a1=other")),
    "delete": lambda table: table.write([{**row, "_row_kind": "-D"} for row in new_rows("a1=")]),
    "truncate": lambda table: table.truncate(),
    "overwrite": lambda table: table.overwrite(new_rows("a2=other"), {"p": "a"}),
    "overwrite by no rows": lambda table: table.overwrite(new_rows(""), {"p": "a"}),
    "write elsewhere": lambda table: table.write(new_rows("c1=other")),
}


def new_rows(text: str) -> list[dict[str, Any]]:
    """`a1=x`: in partition a the key 1 has the value x."""
    pairs = (word.split("=") for word in text.split())
    return [{"p": place[0], "k": int(place[1:]), "ts": 5, "v": value} for place, value in pairs]


def words_of(table: kt.Table) -> str:
    return " ".join(sorted(f"{r['p']}{r['k']}={r['v']}" for r in table.scan().to_pylist()))


def new_table(options: dict[str, str]) -> kt.Table:
    table = empty_table(SCHEMA, ["p", "k"], ["p"], options)
    table.write(new_rows("a1=x a2=x b1=x"))
    return table


def shout(table: kt.Table) -> kt.Changed:
    return table.update({"v": "v || '!'"})


@pytest.mark.one_in(14)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("order", ORDERS)
def test_overtaken_update_is_as_if_it_had_come_later(order: str, other: str) -> None:
    table, model = new_table(ORDERS[order]), new_table(ORDERS[order])
    OTHERS[other](model)
    if other != "write elsewhere":  # what it did not read, it does not change
        shout(model)
    else:
        model.write(new_rows("a1=x! a2=x! b1=x!"))

    shout(overtaken(table, lambda: OTHERS[other](table)))

    assert words_of(table) == words_of(model)
