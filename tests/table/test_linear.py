"""What grows with the number of columns or of partitions grows in proportion to it.

Calls are counted, not timed: a step that looks at all columns for each column makes four times as
many when their number doubles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.definition.schema_evolution import AddColumn

_COLUMNS = 120
_GROWTH_MAX = 2.2


def new_table(path: Path, columns: int) -> kt.Table:
    fields = [
        pa.field("id", pa.int64()),
        *(pa.field(f"c{i}", _TYPES[i % 4]) for i in range(columns)),
    ]
    table = kt.connect(str(path)).create_table("wide", pa.schema(fields), ["id"])
    table.write(rows_of(table, 1))
    return table


_TYPES = [pa.int64(), pa.string(), pa.float64(), pa.decimal128(12, 2)]


def rows_of(table: kt.Table, key: int) -> list[dict[str, Any]]:
    values = [key, "a", 1.5, None]
    names = table.schema.names[1:]
    return [{"id": key, **{name: values[i % 4] for i, name in enumerate(names)}}]


STEPS: dict[str, Callable[[kt.Table], object]] = {
    "write dicts": lambda t: t.write(rows_of(t, 2)),
    "write Arrow": lambda t: t.write(t.scan().to_arrow()),
    "scan": lambda t: t.scan(where="c0 = 1").to_arrow(),
    "get": lambda t: t.get(1),
    "why": lambda t: t.why(1),
    "alter": lambda t: t.alter(AddColumn(("another",), kt.parse_sql_type("INT"))),
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("step", STEPS)
def test_twice_the_columns_take_twice_the_calls(step: str, tmp_path: Path) -> None:
    calls = []
    for columns in (_COLUMNS, 2 * _COLUMNS):
        table = new_table(tmp_path / str(columns), columns)
        table.get(1)  # what is imported or remembered at the first call does not count
        calls.append(calls_of(lambda t=table: STEPS[step](t)))  # type: ignore[misc]
    assert calls[1] <= _GROWTH_MAX * calls[0]


def test_twice_the_partitions_take_twice_the_calls(tmp_path: Path) -> None:
    schema = pa.schema([("p", pa.int64()), ("id", pa.int64())])
    table = kt.connect(str(tmp_path)).create_table("cut", schema, ["p", "id"], ["p"])
    calls = []
    for count in (50, 100):
        keys = pa.array(range(count))
        rows = pa.table({"p": keys, "id": keys})
        table.write(rows)
        calls.append(calls_of(lambda rows=rows: table.write(rows)))  # type: ignore[misc]
    assert calls[1] <= _GROWTH_MAX * calls[0]
    assert table.scan().count() == 100


def calls_of(function: Callable[[], object]) -> int:
    """How many functions this thread enters, those written in C included."""
    count = 0

    def count_one(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_one)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
