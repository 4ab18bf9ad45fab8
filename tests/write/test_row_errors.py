"""Rows that a table cannot take: refused with their write, or left out and counted.

With `upsert.row-errors` = `count` a write does what one of the other rows alone would do.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from new_tables import empty_lake, empty_table
from table_rows import dicts

COUNTS = {"upsert.row-errors": "count"}
MODES: dict[str, dict[str, str]] = {
    "full": {"upsert.mode": "full", "sequence.field": "a"},
    "producers": {"upsert.mode": "full", "sequence.field": "a,b"},
    "partial": {
        "upsert.mode": "partial", "sequence.field": "a,b",
        "upsert.drop-out-of-order-record": "true", "fields.n.aggregate-function": "sum",
    },
}  # fmt: skip
COLUMNS = {"k": "INT", "a": "INT", "b": "BIGINT", "n": "INT NOT NULL", "v": "STRING"}


def new_table(mode: str, **options: str) -> kt.Table:
    return empty_table(COLUMNS, ["k"], options={"bucket": "2", **MODES[mode], **options})


def row(k: int | None, a: int | None, b: int | None, n: int | None, **more: Any) -> dict[str, Any]:
    return {"_row_kind": "+I", "k": k, "a": a, "b": b, "n": n, "v": f"{k}{a}{b}{n}", **more}


def error_of(row: dict[str, Any], mode: str) -> str | None:
    """What a row is counted as, None for one that is taken."""
    if row["k"] is None:
        return "null-primary-key"
    if row["n"] is None and row["_row_kind"] == "+I":
        return "null-in-not-null-column"
    values = 2 - [row["a"], row["b"]].count(None)
    if mode == "full" or values == 1:
        return None
    return "several-comparison-values" if values else "no-comparison-value"


SMALL = st.none() | st.integers(0, 3)
ROWS = st.lists(
    st.builds(row, SMALL, SMALL, SMALL, SMALL, _row_kind=st.sampled_from(["+I", "+I", "-D"])),
    min_size=1,
    max_size=8,
)


@pytest.mark.takes_turns
@pytest.mark.parametrize("mode", MODES)
@given(commits=st.lists(ROWS, min_size=1, max_size=3))
def test_write_is_one_of_the_rows_that_can_be_taken(
    mode: str, commits: list[list[dict[str, Any]]]
) -> None:
    counting, other = new_table(mode, **COUNTS), new_table(mode)
    for rows in commits:
        found = [error_of(row, mode) for row in rows]
        taken = [row for row, error in zip(rows, found, strict=True) if error is None]
        result, alone = counting.write(rows), other.write(taken)
        assert result.errors == dict(Counter(error for error in found if error is not None))
        assert (result.rows, result.rows_stored) == (len(rows), alone.rows_stored)
        assert (result.out_of_order, alone.errors) == (alone.out_of_order, None)
        assert dicts(counting) == dicts(other)
    assert not counting.verify().findings


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(None, 1, None, 0), "column 'k' is INT NOT NULL and 1 of 2 rows are NULL, .* row 2"),
        (row(1, 1, None, None), "column 'n' is INT NOT NULL and 1 of 2 rows are NULL, .* row 2"),
        (row(1, None, None, 0), r"1 of 2 rows .* with k = 1: all of 'a', 'b' are NULL"),
        (row(1, 1, 1, 0), r"1 of 2 rows .* with k = 1: several of 'a', 'b' have a value"),
    ],
)
def test_row_is_refused_with_its_write_unless_the_table_says_otherwise(
    bad: dict[str, Any], message: str
) -> None:
    table = new_table("producers")
    with pytest.raises(kt.InvalidError, match=message):
        table.write([row(0, 1, None, 0), bad])
    assert table.snapshots() == []


def test_column_that_no_row_of_a_write_brings_is_null_however_rows_are_cut_into_writes() -> None:
    rows: list[dict[str, Any]] = [
        {"k": 1, "a": 5, "n": 0}, {"k": 1, "b": 7, "n": 0, "v": "x"}, {"n": 0, "a": 1}, {"k": 2},
    ]  # fmt: skip
    cut, whole = new_table("producers", **COUNTS), new_table("producers", **COUNTS)
    found = Counter({name: 1 for row in rows for name in cut.write([row]).errors or {}})
    assert whole.write(rows).errors == dict(found)
    assert [*found] == ["null-primary-key", "null-in-not-null-column"]
    assert dicts(cut) == dicts(whole) == [{"k": 1, "a": 5, "b": 7, "n": 0, "v": "x"}]
    with pytest.raises(kt.InvalidError, match="the rows lack the column 'b'"):
        new_table("producers").write(rows[:1])


def test_write_of_nothing_but_errors_makes_no_snapshot() -> None:
    table = new_table("full", **COUNTS)
    result = table.write([row(None, 1, None, 0), row(None, 2, None, None)])
    assert (result.snapshot_id, result.errors) == (None, {"null-primary-key": 2})
    assert table.snapshots() == []


def test_overwrite_counts_too() -> None:
    table = new_table("full", **COUNTS)
    table.write([row(7, 1, None, 0)])
    result = table.overwrite([row(None, 1, None, 0), row(1, 1, None, 0)])
    assert result.errors == {"null-primary-key": 1}
    assert [each["k"] for each in dicts(table)] == [1]


def test_table_without_errors_says_that_there_were_none() -> None:
    assert new_table("full", **COUNTS).write([row(1, 1, None, 0)]).errors == {}


def test_insert_warns_of_what_it_left_out() -> None:
    lake = empty_lake()
    lake.sql(
        "CREATE TABLE t (k INT, n INT NOT NULL, PRIMARY KEY (k) NOT ENFORCED) "
        "WITH ('upsert.mode' = 'full', 'upsert.row-errors' = 'count')"
    )
    with pytest.warns(kt.KeytideWarning, match="1 of 2 rows were skipped.* 1 for null-primary-k"):
        assert lake.sql("INSERT INTO t VALUES (1, 1), (NULL, 2)").row_count == 1
    with warnings.catch_warnings(action="error"):
        lake.sql("INSERT INTO t VALUES (2, 1)")


def test_statement_that_makes_such_a_row_is_refused_all_the_same() -> None:
    table = new_table("full", **COUNTS)
    table.write([row(1, 1, None, 0)])
    with pytest.raises(kt.InvalidError, match="NOT NULL column: n"):
        table.update({"n": None})
    assert [each["n"] for each in dicts(table)] == [0]


def test_option_can_be_set_and_taken_back() -> None:
    table = new_table("full")
    table.alter(SetOption("upsert.row-errors", "count"))
    assert table.write([row(None, 1, None, 0)]).errors == {"null-primary-key": 1}


def test_table_that_merges_on_reading_refuses_the_option() -> None:
    with pytest.raises(kt.InvalidError, match=r"'upsert\.row-errors'.*'upsert\.mode'"):
        empty_table("k INT", ["k"], options=COUNTS)
