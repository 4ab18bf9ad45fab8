"""Conditions pushed into a scan give what DuckDB makes of the whole table."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, datetime, time, timezone
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.format.arrow import from_arrow
from keytide.predicate.condition import predicate_of, text_of
from keytide.predicate.literals import array_of
from keytide.predicate.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Predicate,
    may_match,
    row_filter,
)
from keytide.sql.cursor import parse_tree, tokenize
from keytide.sql.pushdown import exact_predicate, pushed_predicate
from table_rows import rows

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


FIELDS = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, (kind, *_) in COLUMNS.items()]


def tree_of(condition: Any) -> Predicate:
    return predicate_of(condition, FIELDS, "t")


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
        FIELDS,
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


@pytest.mark.one_in(14)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(condition=conditions)
def test_condition_keeps_the_rows_that_duckdb_keeps(
    table: kt.Table, duck: duckdb.DuckDBPyConnection, condition: str
) -> None:
    expected = duck.execute(f"SELECT p, k FROM t WHERE {condition}").fetchall()
    found = table.scan(columns=["p", "k"], where=condition)
    assert rows(found) == sorted(expected)
    assert found.count() == len(expected)


# -- every form of a condition is one tree ---------------------------------------------------------


def pushed_tree(text: str) -> tuple[Predicate | None, Predicate | None]:
    """What SQL makes of a condition exactly, and what of it is implied."""
    tree = parse_tree(text, tokenize(text), 0)
    by_name = {field.name: field for field in FIELDS}
    return exact_predicate(tree, by_name), pushed_predicate(tree, by_name)


@given(condition=conditions)
@example("m = 1.005 OR NOT (m < 1.005)")
@example("NOT (b IS NOT TRUE OR i IN (1, 3, 1) OR i = 5)")
@example("i != 1 AND NOT (i IN (3)) AND (i > 1 OR (s LIKE 'a_' AND NOT d IS NULL))")
def test_shown_and_given_as_a_value_a_condition_is_the_same_tree(condition: str) -> None:
    tree = tree_of(condition)
    assert tree_of(text_of(tree, FIELDS)) == tree
    assert tree_of(tree) == tree


@given(condition=conditions)
def test_sql_makes_the_same_tree_or_leaves_it_to_the_engine(condition: str) -> None:
    tree = tree_of(condition)
    exact, implied = pushed_tree(condition)
    assert exact in (None, tree)
    assert exact is None or implied == tree


def test_sql_makes_trees_of_all_kinds() -> None:
    text = "k < 3 AND (i IN (1, 3) OR s LIKE 'a%') AND NOT d IS NULL AND b IS TRUE AND m <= 1"
    assert pushed_tree(text) == (tree_of(text), tree_of(text))


def is_plain(tree: Predicate) -> bool:
    """Whether rows are filtered by no pattern, for Polars has other ones."""
    if isinstance(tree, And | Or):
        return all(map(is_plain, tree.terms))
    return is_plain(tree.term) if isinstance(tree, Not) else not isinstance(tree, Like)


@given(condition=conditions)
@example(condition="(k = 0 OR k = 0)")
@example(condition="(k != 0 AND k != 0)")
def test_expression_that_filters_rows_is_read_as_the_same_tree(condition: str) -> None:
    tree = tree_of(condition)
    assume(is_plain(tree))
    assert tree_of(row_filter(tree, FIELDS)) == tree


def bounds_of(frame: pl.DataFrame) -> pl.DataFrame:
    """What statistics say of a file with these rows; nothing of a column with NaN."""
    made: dict[str, Any] = {"rows": [frame.height]}
    for column in frame:
        known = column.drop_nulls()
        has_bounds = len(known) and not (column.dtype.is_float() and known.is_nan().any())
        ends = known.sort().gather([0, -1]) if has_bounds else column.clear(2)
        made |= {f"{column.name}.min": ends[:1], f"{column.name}.max": ends[1:]}
        made[f"{column.name}.nulls"] = [column.null_count()]
    return pl.DataFrame(made)


a_row = st.fixed_dictionaries({n: st.sampled_from(v) for n, (_, v, _) in COLUMNS.items()})


@given(condition=conditions, rows=st.lists(a_row, min_size=1, max_size=4))
def test_file_with_rows_that_meet_a_condition_is_not_left_out(
    condition: str, rows: list[dict[str, Any]]
) -> None:
    tree = tree_of(condition)
    arrays = {f.name: array_of([row[f.name] for row in rows], f, "t") for f in FIELDS}
    frame = from_arrow(pa.table(arrays))
    kept = frame.filter(row_filter(tree, FIELDS))
    assert kept.is_empty() or bounds_of(frame).select(may_match(tree, FIELDS)).item()


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("given_", "text"),
    [
        (Comparison("t", ">=", MIDNIGHT), "t >= '2024-01-01'"),
        (Comparison("z", "=", INSTANT), "z = '2024-01-01 00:00:00Z'"),
        (Comparison("m", ">", 1), "m > 1"),
        (Comparison("y", "=", b"a"), "y = 'a'"),
        (In("i", (1, 1, 3)), "i IN (1, 3)"),
        (In("i", (1,)), "i = 1"),
        (In("i", ()), "i IN ()"),
        (pl.col("k").is_in([]), "k IN ()"),
        (Not(In("p", ())), "p NOT IN ()"),
        (And((Or((IsNull("i"), Comparison("i", "=", 1))),)), "i IS NULL OR i = 1"),
        (Not(Not(Like("s", "a%"))), "s LIKE 'a%'"),
        (pl.col("i") > 3, "i > 3"),
        (pl.col("i") <= 3, "i <= 3"),
        (pl.col("i").is_in([1, 3]), "i IN (1, 3)"),
        (pl.col("i").is_in(pl.Series([1, 3])), "i IN (1, 3)"),
        (pl.col("i").is_between(1, 3), "i BETWEEN 1 AND 3"),
        (pl.col("i").is_between(1, 3, closed="right"), "i > 1 AND i <= 3"),
        (pl.col("f") == float("nan"), "f = 'NaN'"),
        (pl.col("d") < pl.date(2024, 1, 1), "d < '2024-01-01'"),
        (pl.col("z") < INSTANT, "z < '2024-01-01'"),
        (pl.col("s").str.starts_with("a%"), r"s LIKE 'a\%%'"),
        (pl.col("b") & ~pl.col("s").is_null(), "b AND s IS NOT NULL"),
        (pl.any_horizontal(pl.col("b"), pl.col("i") == -pl.lit(1)), "b OR i = -1"),
        (pc.field("i") > 3, "i > 3"),
        (pc.scalar(3) > pc.field("i"), "i < 3"),
        (pc.field("d") == date(2024, 1, 1), "d = '2024-01-01'"),
        (pc.field("z") < pa.scalar(INSTANT), "z < '2024-01-01'"),
        (pc.field("i").isin([1, 3]), "i IS NOT NULL AND i IN (1, 3)"),
        (pc.field("i").isin([1, 3, None]), "i IS NULL OR i IN (1, 3)"),
        (pc.starts_with(pc.field("s"), "a%"), r"s LIKE 'a\%%'"),
        (pc.match_like(pc.field("s"), "_a%"), "s LIKE '_a%'"),
        (pc.field("b") & pc.field("s").is_valid(), "b AND s IS NOT NULL"),
        (~pc.field("b") | pc.field("i").is_null(), "NOT b OR i IS NULL"),
        (reduce(or_, [pc.field("i") == i for i in range(3000)]), f"i IN {(*range(3000),)}"),
    ],
)
def test_condition_that_is_a_value_means_what_the_text_means(
    table: kt.Table, given_: Any, text: str
) -> None:
    assert tree_of(given_) == tree_of(text)
    assert table.scan(where=given_).count() == table.scan(where=text).count()


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (Comparison("i", "=", "a"), "column i of type INT with 'a', which is not a value"),
        (Comparison("i", "=", None), "write IS NULL"),
        (Comparison("i", "=", True), "column i of type INT with TRUE"),
        (Comparison("d", "=", MIDNIGHT), "column d of type DATE with TIMESTAMP '2024"),
        (Comparison("s", "=", "\ud800"), "column s of type STRING with"),
        (Comparison("m", "=", object()), "column m of type DECIMAL"),
        (Comparison("i", "~", 1), "has the operator '~'"),
        (Comparison("q", "=", 1), "has no column 'q'"),
        (In("i", (1, None)), "write IS NULL"),
        (Like("i", "1"), "LIKE needs a string"),
        (And(()), "an And without terms"),
        (Not("i = 1"), "has 'i = 1' as a term"),
        (IsNull(5), "as a term"),
        (In("i", 5), "has 5; expected a tuple"),
        (Or(IsNull("i")), "expected a tuple"),
        (Comparison("t", "=", 2**70), "column t of type TIMESTAMP.* with 1180591620717411303424"),
        (Comparison("t", "=", 2**62), "column t of type TIMESTAMP"),
        (Comparison("x", "=", time(1, tzinfo=timezone.utc)), "column x of type TIME"),
        (Comparison("m", "=", Decimal("NaN")), "column m of type DECIMAL.* with NaN"),
        (reduce(lambda tree, _: Not(And((tree,))), range(200), IsNull("i")), "flatten it"),
        (pl.col("i") > 1.5, "column i of type INT with 1.5"),
        (pl.col("i") == pl.lit(None), "write IS NULL"),
        (pl.col("q") == 1, "has no column 'q'"),
        (pl.col("i") + 1 == 2, r"contains '\[\(col\(\"i\"\)\) \+ .*filter the result"),
        (pl.col("i") == pl.col("k"), "which is not supported"),
        (pl.col("i") > pl.len(), r"contains 'len\(\)'"),
        (pl.col("i").eq_missing(1), "which is not supported"),
        (pl.col("i").is_in([1], nulls_equal=True), "which is not supported"),
        (pl.col("i", "k") == 1, "which is not supported"),
        (pl.lit(True), "contains 'true', which is not supported"),  # a literal of Polars
        (reduce(or_, [pl.col("i") == i for i in range(3000)]), "any_horizontal"),
        (pc.field("i") > 1.5, "column i of type INT with 1.5"),
        (pc.field("i") == pa.scalar(None), "write IS NULL"),
        (pc.field("q") == 1, "has no column 'q'"),
        (
            pc.field("i") + 1 == 2,
            r"contains '\(add_checked\(i, 1\) == 2\)', .*filter the result",
        ),
        (pc.field("i") == pc.field("k"), r"contains '\(i == k\)'"),
        (pc.field("i").is_null(nan_is_null=True), "which is not supported"),
        (pc.match_like(pc.field("s"), "a", ignore_case=True), "which is not supported"),
        (pc.field("r", "x") == 1, "which is not supported"),
        (pc.field(0) == 1, "refer to columns with pc.field"),
        (pc.scalar(True), "contains 'true', which is not supported"),  # a literal of Arrow
        (reduce(lambda one, _: ~(one & pc.field("b")), range(2000), pc.field("b")), "too deeply"),
    ],
)
def test_value_that_is_no_condition_is_refused(given_: Any, message: str) -> None:
    with pytest.raises(kt.KeytideError, match=message):
        tree_of(given_)


OF_FILES = """
id > 3                       | `id` > 3
day = '2024-01-01'           | `day` = '2024-01-01'
qty > 4 AND note LIKE '%a'   |
note IS NOT NULL OR id = 1   |
day NOT LIKE '%1'            | `day` NOT LIKE '%1'
"""


@pytest.mark.parametrize("line", OF_FILES.strip().splitlines())
def test_explanation_tells_conditions_that_leave_out_no_file(warehouse: str, line: str) -> None:
    where, of_files = (part.strip() for part in line.split("|"))
    schema = pa.schema(
        {"id": pa.int64(), "day": pa.string(), "qty": pa.int64(), "note": pa.string()}
    )
    options = {"bucket": "1", "merge-engine": "partial-update", "write-only": "true"}
    table = kt.connect(warehouse).create_table("t", schema, ["id", "day"], ["day"], options=options)
    for _ in range(2):  # rows are put together, so `qty` leaves out no file
        table.write([{"id": k, "day": "2024-01-01", "qty": k, "note": None} for k in range(9)])
    told = table.scan(where=where).explain()
    assert (told.asked_of_files or "") == of_files
    assert (told.asked_of_rows is None) == bool(of_files)
    table.compact(full=True)
    told = table.scan(where="qty > 4 AND note LIKE '%a'").explain()
    assert str(told).endswith("files: `qty` > 4\nconditions on rows only: `note` LIKE '%a'")


@pytest.mark.one_in(14)
def test_empty_list_keeps_nothing_and_its_opposite_all_that_is_known(table: kt.Table) -> None:
    for column in ("k", "p", "i", "m", "t"):
        assert table.scan(where=f"{column} IN ()").count() == 0
        known = table.scan(where=f"{column} IS NOT NULL").count()
        assert table.scan(where=f"{column} NOT IN ()").count() == known > 0


# -- what is no condition --------------------------------------------------------------------------


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
        ("i LIKE '1'", "LIKE needs a string column"),
        ("i IS TRUE", "compares column i of type INT with TRUE"),
        ("f < CAST(1.7 AS INT)", "conditions of scans support no functions"),
        ("b = X'1'", "hexadecimal"),
        ("(i = 1", r"expected \)"),
        ("i = 1)", "there is no open parenthesis"),
        ("i = 1 i = 2", "expected AND, OR or the end"),
        ("i IN (1,)", "expected a literal"),
        ("i IN (1", r"expected , or \)"),
        ("", "expected a column"),
        ("(" * 200 + "i = 1" + ")" * 200, "open parentheses"),
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
