"""Columns that Pinot computes of merged rows: its functions as SQL, and tables that have them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pinot_configs import FULL_PARTIAL, TRANSFORMS, make

import keytide as kt
from keytide.pinot.scalar_functions import parsed, sql_of, unknown_parts
from keytide.predicate.row_expression import row_expression
from new_tables import empty_lake

ROW = pa.table({"a": pa.array([7], pa.int32()), "b": pa.array([2], pa.int32()),
                "x": [2.25], "s": [" aB "], "none": pa.array([None], pa.int32())})  # fmt: skip


def computed(name: str, function: str) -> dict[str, Any]:
    transforms = [{"columnName": name, "transformFunction": function}]
    return {**FULL_PARTIAL, TRANSFORMS: transforms}


def value_of(function: str, expected: Any) -> Any:
    tree = parsed(function)
    assert tree is not None
    assert unknown_parts(tree) == []
    expression = row_expression(sql_of(tree, {"a": "BIGINT", "b": "BIGINT"}))
    kinds = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "STRING", type(None): "DOUBLE"}
    field = kt.Field(-1, "v", kt.parse_sql_type(kinds[type(expected)]))
    return expression.values(ROW.select(expression.columns), field, "t").to_pylist()[0]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("plus(a, b)", 9), ("PLUS(a, b, 1)", 10), ("a + b * 2", 11), ("plus(a, none)", None),
        ("minus(a, minus(b, 1))", 6), ("times(plus(a, 1), b)", 16), ("divide(a, b)", 3.5),
        ("divide(a, 0)", float("inf")), ("mod(a, b)", 1), ("mod(a, 0)", None),
        ("abs(minus(b, a))", 5),
        ("ceil(x)", 3), ("floor(x)", 2), ("round_decimal(x, 1)", 2.3), ("power(b, 3)", 8),
        ("ln(0)", float("-inf")), ("ln(-1)", None), ("sqrt(minus(a, 3))", 2.0),
        ("least(a, b, 1)", 1), ("greatest(a, b)", 7), ("upper(s)", " AB "),
        ("concat(trim(s), 'c')", "aBc"), ("concat(trim(s), 'c', '-')", "aB-c"),
        ("length(s)", 4), ("replace(s, 'B', 'x')", " ax "), ("startsWith(trim(s), 'a')", True),
        ("coalesce(none, b)", 2), ("isNull(none)", True), ("isNotNull(none)", False),
        ("greaterThan(a, b)", True), ("CASE WHEN a > b THEN 'more' ELSE 'less' END", "more"),
        ("plus(CASE WHEN a > b THEN 1 ELSE 0 END, 1)", 2), ("plus(2147483647, a)", 2147483654),
        ("plus(-a, b)", -5), ("a IN (1, 7) AND NOT b IS NULL", True),
    ],
)  # fmt: skip
def test_function_is_understood_as_pinot_has_it(function: str, expected: Any) -> None:
    found = value_of(function, expected)
    assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)


@pytest.mark.parametrize(
    ("function", "part"),
    [
        ("lookUp(a)", "lookUp"), ("now()", "now"), ("substr(s, 1)", "substr"), ("plus(a)", "plus"),
        ("abs(a, b)", "abs"), ("sum(a)", "sum"), ("CAST(a AS LONG)", "CAST"), ("count(*)", "count"),
        ("(SELECT a)", "select"),
    ],
)  # fmt: skip
def test_other_function_is_named(function: str, part: str) -> None:
    tree = parsed(function)
    assert tree is not None
    assert part in unknown_parts(tree)


def test_column_is_computed_whenever_a_row_is_merged() -> None:
    table = make(computed("score", "times(plus(n, 1), 2)"))
    assert table.write([{"k": "a", "ts": 1, "n": 1, "score": 9.0}]).errors == {}
    assert table.get("a")["score"] == 9.0  # type: ignore[index]
    table.write([{"k": "a", "ts": 2, "s": "b"}, {"k": "b", "ts": 1, "n": 1}])
    assert table.get("a")["score"] == 4.0  # type: ignore[index]
    assert table.get("b")["score"] is None  # type: ignore[index]


def test_value_beyond_the_type_is_refused() -> None:
    schema = {"metricFieldSpecs": [{"name": "score", "dataType": "INT"}]}
    table = make(computed("score", "plus(n, 1)"), schema)
    table.write([{"k": "a", "ts": 1, "n": 2**31 - 1}])
    with pytest.raises(kt.InvalidError, match=r"column 'score': .* cannot be computed"):
        table.write([{"k": "a", "ts": 2, "s": "b"}])


def test_value_that_no_column_of_the_type_has_is_refused() -> None:
    with pytest.raises(kt.InvalidError, match="it is double, but column 'n' is INT"):
        make(computed("n", "divide(score, 2)"))


def test_other_computation_of_a_table_that_exists_is_refused() -> None:
    lake = empty_lake()
    table = make(computed("score", "plus(n, 1)"), lake=lake)
    assert make(computed("score", "PLUS(n, 1)"), lake=lake).uri == table.uri
    with pytest.raises(kt.InvalidError, match=r"TransformConfigs\.score', found .* \+ 2"):
        make(computed("score", "plus(n, 2)"), lake=lake)
    with pytest.raises(kt.InvalidError, match=r"Configs\.score', found nothing"):
        make(FULL_PARTIAL, lake=lake)
