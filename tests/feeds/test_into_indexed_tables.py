"""Feeds into tables with an index of keys: producers with clocks of their own, rows that merge.

A batch does to a table what a write of its rows does.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from feeds import batch, feed
from keytide.cdc import decode
from keytide.feeds.feed_writer import ChangeCounts, adapt_to_table, change_writer
from keytide.maintenance.writes import writing
from keytide.write.refusals import writable_view
from new_tables import empty_table
from table_rows import by_key

COLUMNS = "id INT; a INT; b INT; v STRING; n INT"
PRODUCERS = {"sequence.field": "a,b", "bucket": "2"}
LEFT_OUT = "__debezium_unavailable_value"


def new_table(**options: str) -> kt.Table:
    """A table with an index of keys, unless the options say otherwise."""
    columns = feed("debezium-json", COLUMNS).columns
    return empty_table(columns, ["id"], options={"upsert.mode": "full", **options})


def fed(table: kt.Table, *messages: Any) -> tuple[ChangeCounts, list[str]]:
    """What a batch did, and why messages of it were rejected."""
    spec, texts = feed("debezium-json", COLUMNS), batch(messages)
    stored = table.stored.pinned()
    with writing(stored, writable_view(stored)) as transaction:
        taken = adapt_to_table(decode(texts, spec), texts, transaction.view)
        part = change_writer(transaction).write(taken.rows)
        transaction.collect(part.written)
        transaction.commit()
    letters = [*taken.rejected.to_pylist(), *part.unknown.to_pylist()]
    return part.counts, [letter["reason"] for letter in letters]


def change(op: str, id: int, **values: Any) -> dict[str, Any]:
    image = {"id": id, **values}
    return {"op": op, "before": image} if op == "d" else {"op": op, "after": image}


TIMES = st.tuples(st.sampled_from("ab"), st.integers(0, 4))
CHANGES = st.lists(
    st.tuples(st.sampled_from("ccd"), st.integers(0, 2), TIMES, st.sampled_from("xy")),
    min_size=1, max_size=6,
)  # fmt: skip


@pytest.mark.takes_turns
@given(batches=st.lists(CHANGES, min_size=1, max_size=3))
def test_rows_are_those_that_a_write_leaves_and_late_ones_are_counted(batches: list[Any]) -> None:
    one = new_table(**PRODUCERS)
    other = new_table(**PRODUCERS, **{"write.count-out-of-order": "true"})
    for changes in batches:
        messages = [change(op, key, **{n: t}, v=v) for op, key, (n, t), v in changes]
        counts, rejected = fed(one, *messages)
        rows = [
            {"_row_kind": "-D" if op == "d" else "+I", "id": key, "a": None, "b": None, n: t,
             "v": v, "n": None}
            for op, key, (n, t), v in changes
        ]  # fmt: skip
        late = other.write(rows).out_of_order
        assert rejected == []
        assert counts.applied + counts.late + counts.duplicate == len(changes)
        # What is late and came before in the same place counts as a duplicate.
        assert counts.late <= (late or 0) <= counts.late + counts.duplicate
        assert by_key(one, "a", "b", "v", key="id") == by_key(other, "a", "b", "v", key="id")


def test_producers_are_counted_each_by_its_own_clock() -> None:
    table = new_table(**PRODUCERS)
    first = fed(table, change("c", 1, a=5), change("c", 1, b=2), change("c", 1, b=1))
    assert first == (ChangeCounts(applied=2, late=1), [])
    again = fed(table, change("c", 1, a=5), change("c", 1, a=4), change("c", 1, b=3))
    assert again == (ChangeCounts(applied=1, late=1, duplicate=1), [])
    assert by_key(table, "a", "b", key="id") == {1: (5, 3)}


def test_rows_without_one_value_to_be_compared_by_are_dead_letters() -> None:
    table = new_table(**PRODUCERS, **{"upsert.row-errors": "count"})
    counts, reasons = fed(
        table, change("c", 1, a=1), change("c", 2, v="x"), change("c", 3, a=1, b=1),
        change("c", None, a=1),  # type: ignore[arg-type]
    )  # fmt: skip
    assert counts == ChangeCounts(applied=1)
    told = Counter(reason.split(",")[0] for reason in reasons)
    assert [*told.values()] == [1, 1, 1]
    assert by_key(table, "a", key="id") == {1: 1}


def test_left_out_value_of_a_producer_is_that_of_the_last_row_that_was_not_late() -> None:
    table = new_table(**PRODUCERS)
    kept, late = change("c", 1, a=5, v="kept"), change("c", 1, a=4, v="late")
    fed(table, kept, late, change("u", 1, b=1, v=LEFT_OUT, n=1))
    assert by_key(table, "a", "b", "v", "n", key="id") == {1: (5, 1, "kept", 1)}
    assert fed(table, change("u", 2, b=1, v=LEFT_OUT))[1] != []


@pytest.mark.parametrize("function", ["sum", "last_non_null_value", "last_value", "max"])
@pytest.mark.parametrize(
    "options",
    [
        {"upsert.mode": "partial", "sequence.field": "a"},
        {"upsert.mode": "none", "merge-engine": "aggregation"},
    ],
    ids=["when written", "when read"],
)
def test_left_out_value_changes_no_column_that_is_merged(
    options: dict[str, str], function: str
) -> None:
    table = new_table(**options, **{"fields.n.aggregate-function": function})
    fed(table, change("c", 1, a=1, n=5, v="x"))
    assert fed(table, change("u", 1, a=2, n=LEFT_OUT, v="y"), change("u", 1, a=3))[1] == []
    assert by_key(table, "n", "v", key="id") == {1: (5, "y")}


def test_left_out_value_of_a_key_that_merges_with_nothing_is_null() -> None:
    table = new_table(**{"upsert.mode": "partial", "sequence.field": "a"})
    assert fed(table, change("u", 1, a=2, n=LEFT_OUT, v="y")) == (ChangeCounts(applied=1), [])
    assert by_key(table, "n", "v", key="id") == {1: (None, "y")}
