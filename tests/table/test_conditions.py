"""Conditions pushed into a scan give what DuckDB makes of the whole table."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt

MIDNIGHT = datetime(2024, 1, 1)
INSTANT = datetime(2024, 1, 1, tzinfo=timezone.utc)

# By column: type, values, literals to compare it with.
COLUMNS: dict[str, tuple[str, list[Any], list[str]]] = {
    "k": ("INT", list(range(6)), ["0", "3", "5"]),
    "p": ("STRING", ["a", "b", "%x"], ["'a'", "'%x'", "''"]),
    "i": ("INT", [None, -1, 0, 1, 5], ["-1", "0", "1", "3"]),
    "f": (
        "DOUBLE",
        [None, float("nan"), -0.0, 0.0, 1.5, float("inf"), -1.0],
        ["0", "1.5", "-1", "0.0"],
    ),
    "g": ("FLOAT", [None, 0.1, 0.5, float("nan")], ["0.5", "0.1"]),
    "s": ("STRING", [None, "", "a", "ab", "a%", "b_", "A", "ü"], ["'a'", "''", "'ab'", "'ü'"]),
    "d": ("DATE", [None, MIDNIGHT.date(), date(1969, 12, 31)], ["'2024-01-01'", "'1970-01-01'"]),
    "t": (
        "TIMESTAMP(3)",
        [None, MIDNIGHT, MIDNIGHT.replace(microsecond=1000)],
        ["'2024-01-01 00:00:00'", "'2024-01-01'", "TIMESTAMP '2024-01-01 00:00:00.001'"],
    ),
    "n": (
        "TIMESTAMP(9)",
        [None, MIDNIGHT, MIDNIGHT.replace(microsecond=1)],
        ["'2024-01-01 00:00:00.000001'", "'2024-01-01'"],
    ),
    "z": (
        "TIMESTAMP(6) WITH LOCAL TIME ZONE",
        [None, INSTANT, INSTANT.replace(hour=1)],
        ["'2024-01-01 00:00:00+00:00'", "'2024-01-01 01:00:00+01:00'"],
    ),
    "m": (
        "DECIMAL(6, 2)",
        [None, Decimal("1.00"), Decimal("-2.50"), Decimal("1.01")],
        ["1", "1.005", "1.01", "-2.5"],
    ),
    "b": ("BOOLEAN", [None, True, False], ["true", "false"]),
    "y": ("BYTES", [None, b"", b"a", b"\xff"], ["'a'", "''"]),
    "x": ("TIME(3)", [None, time(1), time(1, 2, 3, 4000)], ["'01:00:00'", "'01:02:03.004'"]),
}


@st.composite
def terms(draw: st.DrawFn) -> str:
    """A comparison of one column with literals."""
    name = draw(st.sampled_from(list(COLUMNS)))
    literals = st.sampled_from(COLUMNS[name][2])
    negation = draw(st.sampled_from(["", "NOT "]))
    shape = draw(st.sampled_from(["compare", "flipped", "in", "null", "between", "like", "flag"]))
    if shape in ("compare", "flipped"):
        operator = draw(st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="]))
        sides = [name, draw(literals)]
        return f" {operator} ".join(sides if shape == "compare" else sides[::-1])
    if shape == "in":
        return f"{name} {negation}IN ({', '.join(draw(st.lists(literals, min_size=1)))})"
    if shape == "null":
        return f"{name} IS {negation}NULL"
    if shape == "between":
        return f"{name} {negation}BETWEEN {draw(literals)} AND {draw(literals)}"
    if shape == "like":
        pattern = draw(st.sampled_from(["a%", "%", "_", "a_", "%b", "", "A%", "ü", "%x"]))
        return f"{draw(st.sampled_from(['s', 'p']))} {negation}LIKE '{pattern}'"
    return f"b IS {negation}{draw(st.sampled_from(['TRUE', 'FALSE']))}"


conditions = st.recursive(
    terms(),
    lambda inner: (
        st.builds("({} AND {})".format, inner, inner)
        | st.builds("({} OR {})".format, inner, inner)
        | st.builds("NOT ({})".format, inner)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module", params=["whole", "partitioned", "buckets", "files apart"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> kt.Table:
    """A table of a few overlapping files, each with bounds of its own."""
    chance = random.Random(3)
    table = kt.connect(tmp_path_factory.mktemp("lake")).create_table(
        "t",
        [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, (kind, *_) in COLUMNS.items()],
        ["p", "k"],
        ["p"] if request.param == "partitioned" else [],
        options={"bucket": "3" if request.param == "buckets" else "1", "write-only": "true"},
    )
    for k in range(6):
        rows = [{n: chance.choice(v) for n, (_, v, _) in COLUMNS.items()} for _ in range(4)]
        if request.param == "files apart":
            rows = [{**row, "p": COLUMNS["p"][1][k % 3], "k": k} for row in rows]
        table.write(rows)
    return table


@pytest.fixture(scope="module")
def duck(table: kt.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("t", table.scan().to_arrow())
        yield connection


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(condition=conditions)
def test_condition_keeps_the_rows_that_duckdb_keeps(
    table: kt.Table, duck: duckdb.DuckDBPyConnection, condition: str
) -> None:
    expected = duck.execute(f"SELECT p, k FROM t WHERE {condition}").fetchall()
    found = table.scan(columns=["p", "k"], where=condition)
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == sorted(expected)
    assert found.count() == len(expected)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("i = NULL", "write IS NULL"),
        ("i IN (1, NULL)", "write IS NULL"),
        ("n = '2024-01-01 00:00:00.1234567891'", "compares column n"),
        ("z = '2024-01-01 00:00:00.1234567Z'", "compares column z"),
        ("d = TIMESTAMP '2024-01-01 00:00:00'", "compares column d"),
        ("t = DATE '2024-01-01 00:00:00'", "compares column t"),
        ("i = 0x1", "found '0'"),
        ("i = 1e400000000", "compares column i"),
        ("i = '1_0'", "compares column i"),
        ("f = 1e400", "compares column f"),
        ("i LIKE '1'", "LIKE is for texts"),
        ("i IS TRUE", "compares column i of type INT with TRUE"),
        ("f < CAST(1.7 AS INT)", "conditions of scans have no functions"),
        ("b = X'1'", "hexadecimal"),
        ("(i = 1", r"expected \)"),
        ("i = 1)", "no parenthesis is open"),
        ("i = 1 i = 2", "expected AND, OR or the end"),
        ("i IN (1,)", "expected a literal"),
        ("i IN (1", r"expected , or \)"),
        ("", "expected a column"),
        ("(" * 200 + "i = 1" + ")" * 200, "parentheses are open"),
        ("n < '3000-01-01'", "compares column n"),
        ("i = 1.5", "compares column i of type INT with 1.5"),
        ("t = '2024-01-01 00:00:00+01:00'", "compares column t"),
        ("s ILIKE 'a'", "compare a column with a literal"),
        ("i + 1 = 2", "compare a column with a literal"),
    ],
)
def test_condition_that_would_mean_something_else_is_refused(
    table: kt.Table, condition: str, message: str
) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        table.scan(where=condition)


@pytest.mark.parametrize("where", ["t >= '2024-01-01'", "t > '2023-12-31T23:59:59.5'"])
def test_timestamps_are_read_with_any_number_of_digits(table: kt.Table, where: str) -> None:
    has_time = table.scan(where="t IS NOT NULL").count()
    assert table.scan(where=where).count() == has_time
