"""Rows that come after a fresher one of their key: stored, dropped or marked, and counted.

Whatever becomes of them, the rows that are shown are the same in any order of arrival.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from key_indexes import assert_index_is_that_of_the_rows
from new_tables import empty_table
from table_rows import rows, write_lines

DROPS = {"upsert.drop-out-of-order-record": "true"}
MARKS = {"upsert.out-of-order-record-column": "late"}


def new_table(**options: str) -> kt.Table:
    columns = {
        "k": "INT NOT NULL", "ts": "INT", "v": "STRING", "late": "BOOLEAN", "is_gone": "BOOLEAN",
    }  # fmt: skip
    indexed = {"upsert.mode": "full", "sequence.field": "ts"}
    return empty_table(columns, ["k"], options={**indexed, **options})


ROWS = st.lists(
    st.builds(
        "{} {} {} {}".format,
        st.sampled_from(["+I", "-D"]),
        st.integers(0, 2),
        st.integers(0, 4),
        st.sampled_from("abc"),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.takes_turns
@pytest.mark.parametrize("options", [DROPS, MARKS])
@given(commits=st.lists(ROWS, min_size=1, max_size=4))
def test_rows_that_are_shown_and_counted_are_those_of_a_table_that_stores_all(
    options: dict[str, str], commits: list[list[str]]
) -> None:
    one, other = new_table(**options), new_table(**{"write.count-out-of-order": "true"})
    for lines in commits:
        with warnings.catch_warnings(action="error"):
            late = write_lines(one, *lines).out_of_order
        assert late == write_lines(other, *lines).out_of_order
        assert rows(one.scan(["k", "ts", "v"])) == rows(other.scan(["k", "ts", "v"]))
        assert_index_is_that_of_the_rows(one)
    assert not one.verify().findings


@pytest.mark.parametrize("options", [DROPS, MARKS])
@given(lines=ROWS, order=st.randoms(use_true_random=False))
def test_order_does_not_matter(options: dict[str, str], lines: list[str], order: Any) -> None:
    distinct = [*{tuple(line.split()[1:3]): line for line in lines}.values()]
    one, other = new_table(**options), new_table(**options)
    write_lines(one, *distinct)
    order.shuffle(distinct)
    for line in distinct:
        write_lines(other, line)
    assert rows(one.scan(["k", "ts", "v"])) == rows(other.scan(["k", "ts", "v"]))
    assert one.scan(where="late").count() == other.scan(where="late").count() == 0


def test_dropped_row_is_not_stored() -> None:
    table = new_table(**DROPS)
    result = write_lines(table, "+I 1 5 a", "+I 1 4 late", "+I 2 5 b")
    assert (result.rows, result.rows_stored, result.out_of_order) == (3, 2, 1)
    result = write_lines(table, "+I 1 4 late", "-D 2 4 late")
    assert (result.snapshot_id, result.rows_stored, result.out_of_order) == (None, 0, 2)
    assert rows(table.scan(["k", "ts", "v"])) == [(1, 5, "a"), (2, 5, "b")]
    assert table.why(1).versions["v"].to_pylist() == ["a"]


def test_marked_row_is_stored_and_shown_to_nobody_but_who_asks_for_versions() -> None:
    table = new_table(**MARKS)
    result = write_lines(table, "+I 1 5 a", "+I 1 4 late")
    assert (result.rows_stored, result.out_of_order) == (2, 1)
    versions = table.why(1).versions.to_pylist()
    assert [(row["v"], row["late"]) for row in versions] == [("a", False), ("late", True)]
    assert table.scan(columns=["v", "late"]).to_pylist() == [{"v": "a", "late": False}]


def test_write_alone_says_which_row_is_late() -> None:
    table = new_table(**MARKS)
    table.write([{"k": 1, "ts": 5, "v": "a", "is_gone": None}])
    table.write([{"k": 2, "ts": 5, "v": "a", "is_gone": None, "late": True}])
    assert table.scan(columns=["late"]).to_pylist() == [{"late": False}] * 2
    with pytest.raises(kt.InvalidError, match="cannot set 'late', in which each write records"):
        table.update({"late": "true"}, "k = 1")
    table.update({"v": "'b'"}, "k = 1")
    assert rows(table.scan(["k", "ts", "v"])) == [(1, 5, "b"), (2, 5, "a")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (DROPS | MARKS, "'late' marks rows that .* drops"),
        ({"upsert.out-of-order-record-column": "v"}, "is STRING; expected a BOOLEAN"),
        ({"upsert.out-of-order-record-column": "x"}, "columns: k, ts, v"),
        (MARKS | {"upsert.delete-record-column": "late"}, "is already used to identify"),
        (MARKS | {"sequence.field": ""}, "without 'sequence.field' no row is late"),
        (DROPS | {"sequence.field": ""}, "without 'sequence.field' no row is late"),
        (DROPS | {"upsert.mode": "none"}, "'true' requires 'upsert.mode'.*remove the first"),
        (MARKS | {"upsert.mode": "none"}, "'late' requires 'upsert.mode'"),
    ],
)
def test_definition_that_cannot_work_is_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(kt.InvalidError, match=expected):
        new_table(**options)
