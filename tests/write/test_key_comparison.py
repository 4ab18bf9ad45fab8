"""What rows are compared by in tables with an index of keys: any type, or one column per producer.

A dict is the model. After each step the index is the one that the rows alone give.
"""

from __future__ import annotations

import warnings
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from key_indexes import assert_index_is_that_of_the_rows
from keytide.commit.transaction import Transaction
from keytide.definition.schema_evolution import ChangeColumnType
from keytide.write.input_rows import to_arrow_table
from keytide.write.refusals import writable_view
from new_tables import empty_table
from table_rows import rows_by_key

TYPES: dict[str, tuple[str, list[Any]]] = {
    "text": ("STRING", ["", "a", "aaaaaaaa", "aaaaaaaab", "aaaaaaaac", "é"]),
    "padded text": ("CHAR(2)", ["a", "aa", "ab", "b", "bb", "c"]),
    "bytes": ("BYTES", [b"", b"\x00", b"a", b"aaaaaaaaa", b"aaaaaaaab", b"\xff"]),
    "decimal": (
        "DECIMAL(38, 18)",
        [Decimal(n) for n in ("-1e19", "-2", "0.000000000000000001", "0.1", "3", "1e19")],
    ),
}  # fmt: skip
"""Values of each type in ascending order, some alike in their first eight bytes."""


def new_table(**options: str) -> kt.Table:
    columns = {"k": "INT NOT NULL", "ts": "STRING", "a": "INT", "b": "STRING", "v": "STRING"}
    columns |= {
        name: options.pop(f"type_of_{name}") for name in columns if f"type_of_{name}" in options
    }
    return empty_table(columns, ["k"], options={"upsert.mode": "full", **options})


def write(table: kt.Table, rows: list[dict[str, Any]]) -> kt.WriteResult:
    names = ("k", "ts", "a", "b", "v")
    return table.write([dict.fromkeys(names) | row for row in rows])


# -- one column of any type ------------------------------------------------------------------------

Row: TypeAlias = "tuple[str, int, int, str]"
"""Kind, key, the place of its value among those of the type, -1 for NULL, and another column."""

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["+I", "+I", "-D"]),
        st.integers(0, 3),
        st.integers(-1, 5),
        st.sampled_from("xyz"),
    ),
    min_size=1,
    max_size=6,
)
CHANGES = st.one_of(
    ROWS,
    ROWS,
    st.just("compact"),
    st.tuples(st.sampled_from(["delete", "update"]), st.integers(0, 3)),
)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("name", TYPES)
@given(steps=st.lists(CHANGES, min_size=2, max_size=7))
def test_values_of_any_type_order_rows_exactly(name: str, order: str, steps: list[Any]) -> None:
    type_, values = TYPES[name]
    table = new_table(
        type_of_ts=type_, **{"sequence.field": "ts", "sequence.field.sort-order": order}
    )
    newest: dict[int, Row] = {}
    for step in steps:
        with warnings.catch_warnings(action="error"):
            for row in change(table, newest, step, values):
                if row[1] not in newest or rank(row, order) >= rank(newest[row[1]], order):
                    newest[row[1]] = row
        assert {
            k: (values_at(values, table, r["ts"]), r["v"]) for k, r in rows_by_key(table).items()
        } == {k: (place, v) for kind, k, place, v in newest.values() if kind != "-D"}
        assert_index_is_that_of_the_rows(table)
    assert not table.verify().findings


def rank(row: Row, order: str) -> int:
    return 5 - row[2] if order == "descending" and row[2] >= 0 else row[2]


def values_at(values: list[Any], table: kt.Table, value: Any) -> int:
    found = value.rstrip(" ") if isinstance(value, str) else value
    return -1 if found is None else values.index(found)


def change(table: kt.Table, newest: dict[int, Row], step: Any, values: list[Any]) -> list[Row]:
    """Do a step; gives the rows that it is in the model."""
    if step == "compact":
        table.compact(full=True)
        return []
    if isinstance(step, list):
        write(
            table,
            [
                {"_row_kind": kind, "k": k, "ts": None if at < 0 else values[at], "v": v}
                for kind, k, at, v in step
            ],
        )
        return step
    done, key = step
    if done == "delete":
        table.delete(f"k = {key}")
    else:
        table.update({"v": "'new'"}, f"k = {key}")
    row = newest.get(key)
    if row is None or row[0] == "-D":
        return []
    return [
        ("-D" if done == "delete" else "+U", key, row[2], "new" if done == "update" else row[3])
    ]


@pytest.mark.parametrize(
    ("narrow", "wide", "values"),
    [
        ("INT", "DOUBLE", [3, 5, 7]),
        ("INT", "DECIMAL(12, 2)", [3, 5, 7]),
        ("TIMESTAMP(3)", "TIMESTAMP(6)", [datetime(2020, 1, day) for day in (1, 2, 3)]),
        ("INT", "BIGINT", [3, 5, 7]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is rebuilt from its rows:keytide.KeytideWarning")
def test_late_row_stays_late_where_the_column_gets_a_wider_type(
    narrow: str, wide: str, values: list[Any]
) -> None:
    table = new_table(type_of_ts=narrow, **{"sequence.field": "ts"})
    write(table, [{"k": k, "ts": values[1], "v": "x"} for k in (1, 2)])
    table.alter(ChangeColumnType(("ts",), kt.parse_sql_type(wide)))
    write(table, [{"k": 1, "ts": values[0], "v": "late"}, {"k": 2, "ts": values[2], "v": "new"}])
    assert {k: row["v"] for k, row in rows_by_key(table).items()} == {1: "x", 2: "new"}
    assert_index_is_that_of_the_rows(table)


def test_each_row_of_a_key_is_explained() -> None:
    table = new_table(**{"sequence.field": "ts"})
    write(table, [{"k": 1, "ts": "b", "v": "x"}, {"k": 1, "ts": "a", "v": "late"}])
    write(table, [{"k": 1, "ts": "c", "v": "y"}])
    assert [(row["v"], row["outcome"]) for row in table.why(1).versions.to_pylist()] == [
        ("x", "replaced by a later row"),
        ("late", "skipped: it arrived after a newer row"),
        ("y", "the row"),
    ]


# -- a column for each producer --------------------------------------------------------------------

PRODUCERS = {"sequence.field": "a,b"}
CLOCKS = [None, "k", "l", "m", "n"]
"""Those of b in ascending order; a counts."""


class Producers:
    """What each key is compared by in each column, and its newest row."""

    def __init__(self) -> None:
        self.clocks: dict[int, dict[str, int]] = {}
        self.newest: dict[int, tuple[str, str]] = {}

    def take(self, kind: str, key: int, producer: str, clock: int, value: str) -> bool:
        """Gives whether the row came late."""
        clocks = self.clocks.setdefault(key, {"a": 0, "b": 0})
        if clock < clocks[producer]:
            return True
        clocks[producer] = clock
        self.newest[key] = (kind, value)
        return False

    def shown(self) -> dict[int, tuple[int, int, str]]:
        return {
            k: (self.clocks[k]["a"], self.clocks[k]["b"], v)
            for k, (kind, v) in self.newest.items()
            if kind != "-D"
        }


PRODUCED = st.lists(
    st.tuples(
        st.sampled_from(["+I", "+I", "-D"]),
        st.integers(0, 2),
        st.sampled_from("ab"),
        st.integers(1, 4),
        st.sampled_from("xyz"),
    ),
    min_size=1,
    max_size=6,
)


def produced(kind: str, key: int, producer: str, clock: int, value: str) -> dict[str, Any]:
    stamp = clock if producer == "a" else CLOCKS[clock]
    return {"_row_kind": kind, "k": key, producer: stamp, "v": value}


def shown_of_producers(table: kt.Table) -> dict[int, tuple[int, int, str]]:
    return {k: (r["a"] or 0, CLOCKS.index(r["b"]), r["v"]) for k, r in rows_by_key(table).items()}


@given(
    steps=st.lists(
        st.one_of(
            PRODUCED,
            PRODUCED,
            st.just("compact"),
            st.tuples(st.sampled_from(["delete", "update"]), st.integers(0, 2)),
        ),
        min_size=2,
        max_size=7,
    )
)
def test_each_row_competes_in_the_column_of_its_producer(steps: list[Any]) -> None:
    table, model = new_table(**PRODUCERS, **{"write.count-out-of-order": "true"}), Producers()
    for step in steps:
        with warnings.catch_warnings(action="error"):
            if step == "compact":
                table.compact(full=True)
            elif isinstance(step, list):
                late = write(table, [produced(*row) for row in step]).out_of_order
                assert late == sum([model.take(*row) for row in step])
            elif step[0] == "delete":
                table.delete(f"k = {step[1]}")
                if step[1] in model.newest:
                    model.newest[step[1]] = ("-D", "")
            else:
                table.update({"v": "'new'"}, f"k = {step[1]}")
                if model.newest.get(step[1], ("-D", ""))[0] != "-D":
                    model.newest[step[1]] = ("+U", "new")
        assert shown_of_producers(table) == model.shown()
        assert_index_is_that_of_the_rows(table)
    assert not table.verify().findings


@given(rows=PRODUCED, order=st.randoms(use_true_random=False))
def test_order_among_the_rows_of_one_producer_does_not_matter(rows: list[Any], order: Any) -> None:
    rows = [*{row[1:4]: row for row in rows if row[2] == "a"}.values()]
    one, other = new_table(**PRODUCERS), new_table(**PRODUCERS)
    if rows:
        write(one, [produced(*row) for row in rows])
        order.shuffle(rows)
        for row in rows:
            write(other, [produced(*row)])
    assert rows_by_key(one) == rows_by_key(other)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, r"all of 'a', 'b' are NULL"),
        ({"a": 1, "b": "k"}, r"several of 'a', 'b' have a value.*set the others to NULL"),
        ({"_row_kind": "+U", "a": 1, "b": "k"}, "several of 'a', 'b' have a value"),
    ],
)
def test_row_of_no_producer_or_of_several_is_refused_with_its_key(
    row: dict[str, Any], expected: str
) -> None:
    table = new_table(**PRODUCERS)
    with pytest.raises(kt.InvalidError, match=f"k = 7.*{expected}"):
        write(table, [{"k": 7, "_row_kind": "+I", **row}])
    assert table.snapshots() == []


def test_statement_that_sets_a_producer_back_is_refused() -> None:
    table = new_table(**PRODUCERS)
    write(table, [{"k": 1, "a": 5}, {"k": 1, "b": "m"}])
    with pytest.raises(kt.InvalidError, match="older than the stored value"):
        table.update({"a": "9", "b": "'k'"}, "k = 1")
    table.update({"a": "9", "b": "'n'"}, "k = 1")
    assert shown_of_producers(table)[1][:2] == (9, 4)
    assert_index_is_that_of_the_rows(table)


@pytest.mark.parametrize("options", [PRODUCERS, {"sequence.field": "ts"}])
def test_tasks_side_by_side_with_rows_of_one_key_are_refused(options: dict[str, str]) -> None:
    table = new_table(**options)
    rows = [{"k": 1, "ts": "x", "a": 1, "b": None, "v": "x"}]
    with Transaction.begin(table.stored, writable_view(table.stored)) as transaction:
        for number in range(2):
            data = to_arrow_table(rows, table.table_schema, "t")
            transaction.collect(transaction.task().feed([data], number))
        with pytest.raises(kt.UnsupportedError, match=r"tasks side by side.*by one task"):
            transaction.commit()
        transaction.abort()
    assert table.snapshots() == []
