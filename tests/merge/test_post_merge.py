"""Columns that are computed of the merged row: `fields.<column>.post-merge-expression`.

The model computes them whenever a row is merged with an earlier one of its key.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from key_indexes import assert_index_is_that_of_the_rows
from keytide.definition.schema_evolution import DropColumn, SetOption
from new_tables import empty_table
from table_rows import by_key

COLUMNS = {
    "k": "INT NOT NULL", "ts": "INT", "a": "INT", "b": "INT", "total": "BIGINT", "said": "STRING",
    "d": "DOUBLE", "t": "TIMESTAMP(3)", "many": "ARRAY<INT>", "full": "INT NOT NULL",
    "day": "DATE", "cents": "DECIMAL(10, 2)", "gone": "BOOLEAN", "f": "FLOAT", "r": "ROW<m INT>",
}  # fmt: skip
SUM = {"total": "a + b"}


def new_table(expressions: dict[str, str], **options: str) -> kt.Table:
    computed = {f"fields.{n}.post-merge-expression": text for n, text in expressions.items()}
    merging = {"upsert.mode": "partial", "sequence.field": "ts", **computed}
    with warnings.catch_warnings(action="error"):
        return empty_table(COLUMNS, ["k"], options={**merging, **options})


def row(ts: int, k: int = 1, kind: str = "+I", **values: Any) -> dict[str, Any]:
    return {"_row_kind": kind, "k": k, "ts": ts, "full": 0, **values}


def model(rows: list[dict[str, Any]]) -> dict[int, tuple[Any, ...]]:
    """a, b, total and said of each key, of rows in the order of their times."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        old = found.get(row["k"])
        if row["_row_kind"] == "-D":
            found.pop(row["k"], None)
            continue
        new = {name: row.get(name) for name in ("a", "b", "total", "said")}
        if old is not None:
            new = {n: old[n] if new[n] is None else new[n] for n in new}
            known = None not in (new["a"], new["b"])
            new["total"] = new["a"] + new["b"] if known else None
            new["said"] = f"{new['total']}!" if known else None
        found[row["k"]] = new
    return {k: tuple(row.values()) for k, row in found.items()}


SMALL = st.none() | st.integers(-3, 3)
ROW = st.fixed_dictionaries(
    {
        "k": st.integers(0, 2), "kind": st.sampled_from(["+I", "+I", "+I", "-D"]),
        "a": SMALL, "b": SMALL, "total": SMALL,
    }
)  # fmt: skip


@given(commits=st.lists(st.lists(ROW, min_size=1, max_size=5), min_size=1, max_size=4))
def test_merged_rows_have_what_their_columns_give_however_they_are_cut_into_writes(
    commits: list[list[dict[str, Any]]],
) -> None:
    # `said` reads `total`, whichever of them is named first.
    expressions = {"said": "CAST(total AS VARCHAR) || '!'", **SUM}
    cut, whole = new_table(expressions), new_table(expressions)
    rows: list[dict[str, Any]] = []
    for commit in commits:
        written = [row(len(rows) + n, **values) for n, values in enumerate(commit)]
        rows += written
        cut.write(written)
        assert by_key(cut, "a", "b", "total", "said") == model(rows)
        assert_index_is_that_of_the_rows(cut)
    whole.write(rows[::-1])  # rows of one write are merged by their times
    assert by_key(whole, "a", "b", "total", "said") == model(rows)


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("column", "expression", "expected"),
    [
        ("total", "CASE WHEN a > b THEN a ELSE b END", 3),
        ("d", "a / b", 1.5),
        ("f", "a / 2", 1.5),
        ("cents", "a * 1.25", 3.75),
        ("said", "upper('x') || a", "X3"),
        ("said", "'a constant'", "a constant"),
        ("total", "NULL", None),
        ("total", "len(many)", 2),
        ("many", "[a, 8]", [3, 8]),
        ("gone", "a BETWEEN 1 AND 3 AND said IS NOT NULL", True),
        ("total", "r.m + 1 -- a comment", 6),
        ("total", "greatest(a, b, 9)", 9),
    ],
)
def test_expression_gives_a_value_of_the_column(
    column: str, expression: str, expected: Any
) -> None:
    table = new_table({column: expression})
    table.write([row(1, a=3, said="x", many=[7, 8], r={"m": 5}), row(2, b=2)])
    assert by_key(table, column) == {1: expected}


@pytest.mark.parametrize(
    ("column", "expression", "expected"),
    [
        ("total", "score + 1", "reads 'score', which does not exist; columns: k, ts, a"),
        ("total", "A + 1", "reads 'A', which does not exist"),
        ("total", "total + 1", "cannot be computed from itself"),
        ("total", "a +", "not a valid SQL expression"),
        ("total", "a, b", "it is struct"),
        ("total", "1) FROM given WHERE (1 = 1", "more than one SQL expression"),
        ("total", "(SELECT 1)", "has a subquery"),
        ("total", "sum(a)", "calls 'sum', whose result can change"),
        ("total", "sum(a) OVER ()", "has a window"),
        ("d", "random()", "calls 'random', whose result can change"),
        ("t", "now()", "calls 'now', whose result can change"),
        ("t", "current_timestamp", "reads 'current_timestamp', which does not exist"),
        ("total", "txid_current()", "calls 'txid_current'"),
        ("total", "nothing_known(a)", "calls 'nothing_known', which DuckDB does not know"),
        ("total", "a / b", "it is double, but column 'total' is BIGINT: CAST it"),
        ("total", "said", "it is string, but column 'total' is BIGINT"),
        ("said", "a", "it is int32, but column 'said' is STRING"),
        ("cents", "CAST(a AS DECIMAL(10, 3))", r"it is decimal128\(10, 3\)"),
        ("total", "upper(a, b)", "cannot be computed"),
        ("k", "a", "'k' is not a column that is merged"),
        ("ts", "a", "'ts' is not a column that is merged"),
        ("x", "a", "names the field 'x', which does not exist"),
        ("full", "a", "'full' is INT NOT NULL, but an expression can return NULL"),
    ],
)
def test_expression_that_gives_no_such_value_is_refused_when_the_table_is_made(
    column: str, expression: str, expected: str
) -> None:
    with pytest.raises(kt.InvalidError, match=expected) as raised:
        new_table({column: expression})
    assert f"fields.{column}.post-merge-expression" in str(raised.value)


def test_column_that_marks_deletes_is_not_computed() -> None:
    with pytest.raises(kt.InvalidError, match="'gone' is not a column that is merged"):
        new_table({"gone": "a > 1"}, **{"upsert.delete-record-column": "gone"})


def test_columns_that_are_computed_of_each_other_are_refused() -> None:
    with pytest.raises(kt.InvalidError, match=r"columns '[ab]', '[ab]' are computed from each"):
        new_table({"a": "b + 1", "b": "a + 1"})


@pytest.mark.parametrize("mode", ["full", "none"])
def test_table_that_merges_no_rows_takes_no_expression(mode: str) -> None:
    options = {"fields.b.post-merge-expression": "a + 1", "upsert.mode": mode}
    with pytest.raises(
        kt.InvalidError, match=r"'fields\.b\.post-merge-expression'.*'upsert\.mode'"
    ):
        empty_table("k INT, a INT, b INT", ["k"], options=options)


def test_value_that_the_column_does_not_hold_is_refused_with_its_write() -> None:
    table = new_table({"a": "b * 2"})
    table.write([row(1, b=2**30)])
    with pytest.raises(kt.InvalidError, match=r"column 'a': 'b \* 2' cannot be computed.*[Oo]verf"):
        table.write([row(2, said="x")])
    assert by_key(table, "a", "said") == {1: (None, None)}


def test_statement_states_a_row_and_computes_nothing() -> None:
    table = new_table(SUM)
    table.write([row(1, a=1), row(2, b=2)])
    table.update({"a": 5})
    assert by_key(table, "a", "total") == {1: (5, 3)}
    table.write([row(3, b=3)])
    assert by_key(table, "a", "total") == {1: (5, 8)}


def test_row_that_is_the_first_of_its_key_stays_as_it_came() -> None:
    table = new_table(SUM)
    table.write([row(1, a=1, b=2, total=9), row(1, k=2, a=1, b=2)])
    assert by_key(table, "total") == {1: 9, 2: None}
    table.write([row(2, kind="-D"), row(3, a=4, b=4)])
    assert by_key(table, "total") == {1: None, 2: None}


def test_what_an_expression_reads_stays_there() -> None:
    table = new_table(SUM)
    with pytest.raises(kt.InvalidError, match="reads 'b', which does not exist"):
        table.alter(DropColumn(("b",)))
    assert "b" in table.schema.names


def test_expression_of_a_table_with_rows_stays() -> None:
    table = new_table(SUM)
    table.write([row(1, a=1)])
    with pytest.raises(kt.InvalidError, match="post-merge-expression"):
        table.alter(SetOption("fields.total.post-merge-expression", "a - b"))
