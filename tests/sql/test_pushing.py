"""What a query gives does not depend on which of its conditions are read by."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.predicate.condition import text_of
from keytide.predicate.predicate import conjunction
from keytide.predicate.where import agreed_predicate
from keytide.sql.change_queries import row_query
from keytide.sql.grammar import parse_statements
from keytide.sql.local_query import run_locally
from keytide.sql.relations import bind
from keytide.sql.statements import Delete, Query

MIDNIGHT = datetime(2024, 1, 1)
EVENING = MIDNIGHT.replace(hour=19, microsecond=1000)
NUMBERS = [
    "0", "-0.0", "1", "1.5", "0.1", "-1", "300", "1e0", "'1'", "2147483648", "9007199254740993",
    "99999999999999999999.999999999999999999", "1.0000000000000000001", "1/0", "CAST(1.7 AS INT)",
]  # fmt: skip
TEXTS = ["''", "'a'", "'a '", "'a%b'", "'ü'", "'A'", "'a\\b'", "1", "'it''s'", "lower('A')"]
TIMES = ["'2024-01-01'", "DATE '2024-01-01'", "TIMESTAMP '2024-01-01 19:00:00.001'", "'2024-1-1'",
         "'2024-01-01 19:00:00'", "CAST('2024-01-01 07:00:00' AS DATE)", "'0001-01-01'",
         "'2024-01-01 00:00:00+01:00'", "'9999-12-31 23:59:59.999999'", "current_date"]  # fmt: skip

# By column: type, values, what it is compared with.
COLUMNS: dict[str, tuple[str, list[Any], list[str]]] = {
    "k": ("INT", [], ["0", "3", "5", "3.0", "'3'"]),
    "y": ("TINYINT", [None, -128, 0, 1, 127], NUMBERS),
    "i": ("BIGINT", [None, -1, 0, 1, 9007199254740993], NUMBERS),
    "d": ("DOUBLE", [None, float("nan"), -0.0, 0.1, 1.5, float("inf"), float("-inf")], NUMBERS),
    "f": ("FLOAT", [None, float("nan"), -0.0, 0.1, 1.5, float("inf")], NUMBERS),
    "m": ("DECIMAL(6, 2)", [None, Decimal("1.00"), Decimal("0.10"), Decimal("-1.50")], NUMBERS),
    "w": (
        "DECIMAL(38, 18)",
        [None, Decimal("99999999999999999999.999999999999999999"), Decimal("1.5"), Decimal("-1")],
        NUMBERS,
    ),
    "s": ("STRING", [None, "", "a", "a ", "a%b", "a\\b", "A", "ü", "\U0001f600"], TEXTS),
    "c": ("CHAR(3)", [None, "", "a", "a ", "A", "ü", "a\n"], TEXTS),
    "b": ("BOOLEAN", [None, True, False], ["true", "FALSE", "1"]),
    "e": ("DATE", [None, MIDNIGHT.date(), date(1, 1, 1), date(9999, 12, 31)], TIMES),
    "t": ("TIMESTAMP(3)", [None, MIDNIGHT, EVENING, datetime(1, 1, 1)], TIMES),
    "u": ("TIMESTAMP(6)", [None, MIDNIGHT, EVENING, datetime(9999, 12, 31, 23, 59)], TIMES),
    "n": ("TIMESTAMP(9)", [None, MIDNIGHT, EVENING], TIMES),
    "z": (
        "TIMESTAMP_LTZ(6)",
        [None, MIDNIGHT.replace(tzinfo=timezone.utc), EVENING.replace(tzinfo=timezone.utc)],
        TIMES,
    ),
    "x": ("TIME(3)", [None, time(0), time(23, 59, 59, 999000)], ["'00:00:00'", "'23:59:59.999'"]),
    "o": ("BYTES", [None, b"", b"a", b"\xff"], ["'a'", "X'61'", "'\\xFF'"]),
}
PATTERNS = ["'a%'", "'%'", "'_'", "'a\\%b'", "'a\\\\b'", "''", "'A_'", "'ü'", "'a%' ESCAPE '!'"]


@st.composite
def terms(draw: st.DrawFn, names: tuple[str, ...] = tuple(COLUMNS)) -> str:
    """A condition of one column."""
    name = draw(st.sampled_from(names))
    others = st.sampled_from(COLUMNS[name][2])
    no = draw(st.sampled_from(["", "NOT "]))
    shape = draw(st.sampled_from(["compare", "flipped", "in", "null", "between", "like", "flag"]))
    if shape in ("compare", "flipped"):
        operator = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"]))
        sides = [name, draw(others)]
        return f" {operator} ".join(sides if shape == "compare" else sides[::-1])
    if shape == "in":
        return f"{name} {no}IN ({', '.join(draw(st.lists(others, min_size=1, max_size=3)))})"
    if shape == "null":
        return f"{name} IS {no}NULL"
    if shape == "between":
        return f"{name} {no}BETWEEN {draw(others)} AND {draw(others)}"
    if shape == "like":
        return f"{draw(st.sampled_from(['s', 'c']))} {no}LIKE {draw(st.sampled_from(PATTERNS))}"
    return draw(st.sampled_from(["b", "NOT b", "b IS TRUE", "b IS NOT FALSE", "(b)"]))


conditions = st.recursive(
    terms(),
    lambda inner: (
        st.builds("({} AND {})".format, inner, inner)
        | st.builds("({} OR {})".format, inner, inner)
        | st.builds("NOT ({})".format, inner)
    ),
    max_leaves=4,
)


def table_of_awkward_values(lake: kt.Lake) -> kt.Table:
    table = lake.create_table(
        "t",
        [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, (kind, *_) in COLUMNS.items()],
        ["k"],
        options={"write-only": "true"},
    )
    for k in range(12):  # a file each, so that bounds are narrow
        values = {n: v[k % len(v)] for n, (_, v, _) in COLUMNS.items() if v}
        table.write([{"k": k, **values}])
    return table


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> kt.Lake:
    lake = kt.connect(tmp_path_factory.mktemp("lake"))
    table_of_awkward_values(lake)
    return lake


def outcome(lake: kt.Lake, condition: str, *, is_pushed: bool) -> tuple[list[int] | None, int]:
    """The keys that a query finds, None if the engine refuses it; how many terms were pushed."""
    (query,) = parse_statements(f"SELECT k FROM t WHERE {condition}")
    assert isinstance(query, Query)
    bound = bind(query, lake.catalog)
    (relation,) = bound.relations
    count = len(relation.terms)
    if not is_pushed:
        bound = replace(bound, relations=(replace(relation, terms=()),))
    try:
        return sorted(run_locally(bound).column("k").to_pylist()), count
    except kt.InvalidError:
        return None, count


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(condition=conditions)
def test_pushed_condition_keeps_what_the_engine_alone_keeps(lake: kt.Lake, condition: str) -> None:
    alone, _ = outcome(lake, condition, is_pushed=False)
    together, count = outcome(lake, condition, is_pushed=True)
    # Rows that a condition would fail on may be left out before; all others are the same.
    assert together == alone or (alone is None and count)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(condition=conditions)
def test_terms_that_say_it_all_keep_what_the_engine_alone_keeps(
    lake: kt.Lake, condition: str
) -> None:
    (statement,) = parse_statements(f"DELETE FROM t WHERE {condition}")
    assert isinstance(statement, Delete)
    query = row_query(statement.query, lake.catalog, "t")
    if not query.is_all_terms:
        return
    alone, _ = outcome(lake, condition, is_pushed=False)
    found = lake.table("t").scan(["k"], where=conjunction(query.target.terms)).to_pylist()
    assert alone is None or sorted(row["k"] for row in found) == alone


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(condition=conditions)
def test_condition_that_is_a_predicate_keeps_what_the_engine_alone_keeps(
    lake: kt.Lake, condition: str
) -> None:
    table = lake.table("t")
    predicate = agreed_predicate(condition, table.table_schema.fields)
    if predicate is None:
        return
    alone, _ = outcome(lake, condition, is_pushed=False)
    found = table.scan(["k"], where=predicate).to_pylist()
    assert sorted(row["k"] for row in found) == alone


@pytest.mark.parametrize(
    ("condition", "terms"),
    [
        ("k = 3 AND i + 1 = 2", ["`k` = 3"]),
        ("k = 3 AND (i > 1 OR s = 'a')", ["`k` = 3", "`i` > 1 OR `s` = 'a'"]),
        ("k = 3 OR upper(s) = 'A'", []),
        ("NOT (k IN (1, 2) OR s NOT LIKE 'a%')", ["NOT (`k` IN (1, 2) OR `s` NOT LIKE 'a%')"]),
        ("5 > k", ["`k` < 5"]),
        ("c = 'a '", ["`c` = 'a '"]),
        ("NOT c = 'a '", []),
        ("c > 'a'", []),
        ("i = '1'", []),
        ("i = 1.0", []),
        ("y = 300", []),
        ("d = 1e0", []),
        ("f = 0.1", []),
        ("f = 0.5", ["`f` = 0.5"]),
        ("s LIKE 'a\\%b'", []),
        ("s = 'a\\b'", ["`s` = 'a\\b'"]),
        ("s COLLATE NOCASE = 'A'", []),
        ("e >= DATE '2024-01-01'", ["`e` >= DATE '2024-01-01'"]),
        ("t < '2024-01-01 00:00:00'", ["`t` < TIMESTAMP '2024-01-01 00:00:00'"]),
        ("t = CAST('2024-01-01 07:00:00' AS DATE)", []),
        ("z = '2024-01-01 00:00:00'", []),
        ("d < CAST(1.7 AS INT)", []),
        ("m IN (1, 1.005) OR m = 2", ["`m` IN (1.00, 2.00)"]),
        ("m = 1.005", ["`m` IN ()"]),
        ("n < '3000-01-01'", []),
        ("(n < '3000-01-01' AND k = 3) OR k = 4", ["`k` IN (3, 4)"]),
        ("b AND b IS NOT TRUE", ["`b` = TRUE", "NOT (`b` IS NOT NULL AND `b` = TRUE)"]),
        ("k BETWEEN 1 AND 2", ["`k` >= 1 AND `k` <= 2"]),
        ("k <=> 1", []),
    ],
)  # fmt: skip
def test_terms_are_pushed_where_engines_agree_on_them(
    lake: kt.Lake, condition: str, terms: list[str]
) -> None:
    (query,) = parse_statements(f"SELECT k FROM t WHERE {condition}")
    assert isinstance(query, Query)
    (relation,) = bind(query, lake.catalog).relations
    assert [text_of(term, relation.fields) for term in relation.terms] == terms


def test_pattern_escapes_with_a_backslash(lake: kt.Lake) -> None:
    assert lake.sql("SELECT s FROM t WHERE s LIKE 'a\\%b'").to_pylist() == [{"s": "a%b"}]
    assert lake.sql("SELECT s FROM t WHERE s NOT LIKE 'a\\\\b' AND s LIKE 'a_b'").to_pylist() == [
        {"s": "a%b"}
    ]


@pytest.mark.takes_turns
@pytest.mark.parametrize("count", [100, 3_000])
def test_long_chains_and_lists_are_queried(lake: kt.Lake, count: int) -> None:
    listed = ", ".join(map(str, range(5, 5 + count)))
    chained = " OR ".join(f"k = {k}" for k in range(5, 5 + count))
    for condition in (f"k IN ({listed})", chained):
        assert lake.sql(f"SELECT count(*) AS n FROM t WHERE {condition}").to_pylist() == [{"n": 7}]
