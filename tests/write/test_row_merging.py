"""Rows that are merged with the current ones of their keys when they are written.

A dict is the model. After each step the index is the one that the rows alone give.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from busy import Others, busy_store
from far import far_away
from key_indexes import assert_index_is_that_of_the_rows
from keytide.commit.transaction import Transaction
from keytide.definition.schema_evolution import AddColumn
from keytide.store import Store
from keytide.write.input_rows import to_arrow_table
from keytide.write.refusals import writable_view
from new_tables import empty_store, empty_table, table_in
from table_rows import dicts, rows_by_key

Row: TypeAlias = "dict[str, Any]"

STRATEGIES: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "last": ("OVERWRITE", lambda old, new: new),
    "first": ("IGNORE", lambda old, new: old),
    "sum": ("INCREMENT", lambda old, new: old + new),
    "most": ("MAX", max),
    "least": ("MIN", min),
    "each": ("APPEND", lambda old, new: old + new),
    "all": ("UNION", lambda old, new: sorted({*old, *new})),
}
"""By column; what a column becomes whose old and new value are not NULL."""

TYPES = {"each": "ARRAY<STRING>", "all": "ARRAY<STRING>", "is_gone": "BOOLEAN", "v": "STRING"}
COLUMNS = ("k", "ts", *STRATEGIES, "forced", "v")


def new_table(store: Store | None = None, *more: str, **options: str) -> kt.Table:
    fields = [
        kt.Field(-1, n, kt.parse_sql_type("INT NOT NULL" if n == "k" else TYPES.get(n, "INT")))
        for n in (*COLUMNS, *more)
    ]
    functions = {
        f"fields.{name}.aggregate-function": strategy for name, (strategy, _) in STRATEGIES.items()
    }
    merging = {
        "upsert.mode": "partial",
        "sequence.field": "ts",
        "fields.forced.aggregate-function": "FORCE_OVERWRITE",
        **functions,
    }
    with warnings.catch_warnings(action="error"):
        return empty_table(fields, ["k"], options={**merging, **options}, store=store)


# -- the model -------------------------------------------------------------------------------------


class LateError(Exception):
    """A row comes after a fresher one that lives."""


class Model:
    """The row of each key, None for one that is deleted, and how fresh it is."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, Row | None]] = {}

    def write(self, rows: list[Row]) -> None:
        """All rows or, for a late one, none."""
        after = dict(self.rows)
        for row in sorted(rows, key=lambda row: row["ts"]):
            fresh, old = after.get(row["k"], (-1, None))
            known = self.rows.get(row["k"])
            if row["ts"] < fresh:
                if known is not None and known[1] is not None:
                    raise LateError
                continue
            dies = row["_row_kind"] == "-D"
            after[row["k"]] = row["ts"], None if dies else merged(old, row)
        self.rows = after

    def shown(self) -> dict[int, Row]:
        return {k: row for k, (_, row) in self.rows.items() if row is not None}


def merged(old: Row | None, new: Row) -> Row:
    new = {name: new.get(name) for name in COLUMNS}
    if old is None:
        return new
    found = {"k": new["k"], "ts": new["ts"], "forced": new["forced"]}
    found["v"] = old["v"] if new["v"] is None else new["v"]
    for name, (_, strategy) in STRATEGIES.items():
        one, other = old[name], new[name]
        found[name] = strategy(one, other) if one is not None and other is not None else (
            other if one is None else one
        )  # fmt: skip
    return found


NUMBERS = st.none() | st.integers(-3, 3)
LISTS = st.none() | st.lists(st.sampled_from("abc"), max_size=3)
ROWS = st.fixed_dictionaries(
    {
        "_row_kind": st.sampled_from(["+I", "+I", "+U", "-D"]),
        "k": st.integers(0, 2),
        "ts": st.integers(0, 6),
        **dict.fromkeys(("last", "first", "sum", "most", "least", "forced"), NUMBERS),
        "each": LISTS,
        "all": LISTS,
        "v": st.none() | st.sampled_from("xyz"),
    }
)
WRITES = st.lists(ROWS, min_size=1, max_size=5)
STEPS = st.one_of(
    WRITES,
    WRITES,
    st.just("compact"),
    st.tuples(st.sampled_from(["delete", "update"]), st.integers(0, 2)),
)


def take(table: kt.Table, model: Model, step: Any) -> None:
    if step == "compact":
        table.compact(full=True)
    elif isinstance(step, list):
        try:
            model.write(step)
        except LateError:
            with pytest.raises(
                kt.InvalidError, match="are older than the stored rows of their keys"
            ):
                table.write(step)
        else:
            table.write(step)
    else:
        done, key = step
        fresh, row = model.rows.get(key, (-1, None))
        if done == "delete":
            table.delete(f"k = {key}")
        else:
            table.update({"sum": "50", "each": "NULL"}, f"k = {key}")
        if row is not None:
            stated = None if done == "delete" else {**row, "sum": 50, "each": None}
            model.rows[key] = fresh, stated


@pytest.mark.takes_turns
@pytest.mark.parametrize("buckets", ["1", "2"])
@given(steps=st.lists(STEPS, min_size=2, max_size=8))
def test_any_history_gives_the_rows_and_the_index_of_the_model(
    buckets: str, steps: list[Any]
) -> None:
    table, model = new_table(bucket=buckets), Model()
    for step in steps:
        with warnings.catch_warnings(action="error"):
            take(table, model, step)
        assert rows_by_key(table) == model.shown()
        assert_index_is_that_of_the_rows(table)
    assert not table.verify().findings


@given(rows=WRITES, order=st.randoms(use_true_random=False))
def test_order_of_arrival_gives_the_same_rows_or_is_refused(rows: list[Row], order: Any) -> None:
    distinct = [*{(row["k"], row["ts"]): row for row in rows}.values()]
    one, other = new_table(), new_table()
    one.write(distinct)
    order.shuffle(distinct)
    try:
        for row in distinct:
            other.write([row])
    except kt.InvalidError as error:
        assert "are older than the stored rows" in str(error)  # noqa: PT017  # a row may be refused
        return
    assert rows_by_key(one) == rows_by_key(other)


@given(rows=st.lists(ROWS, min_size=2, max_size=8), cuts=st.sets(st.integers(1, 7)))
def test_a_history_in_order_may_be_cut_into_any_writes(rows: list[Row], cuts: set[int]) -> None:
    rows.sort(key=lambda row: row["ts"])
    one, other = new_table(), new_table()
    one.write(rows)
    for start, end in itertools.pairwise([0, *sorted(cuts), len(rows)]):
        if rows[start:end]:
            other.write(rows[start:end])
    assert rows_by_key(one) == rows_by_key(other)


# -- what a row is -------------------------------------------------------------------------------


def test_columns_may_be_left_out_and_keep_their_values() -> None:
    table = new_table()
    table.write([{"k": 1, "ts": 1, "last": 5, "sum": 5, "forced": 5, "v": "a"}])
    table.write([{"k": 1, "ts": 2, "sum": 2}])
    (row,) = table.scan(columns=["last", "sum", "forced", "v"]).to_pylist()
    assert row == {"last": 5, "sum": 7, "forced": None, "v": "a"}


def test_one_row_of_a_key_is_stored_by_a_write() -> None:
    table = new_table()
    result = table.write([{"k": k, "ts": ts, "sum": 1} for k in (1, 2) for ts in (1, 2, 3)])
    assert (result.rows, result.rows_stored) == (6, 2)


def test_revived_row_begins_anew() -> None:
    table = new_table(None, "is_gone", **{"upsert.delete-record-column": "is_gone"})
    table.write([{"k": 1, "ts": 1, "sum": 5, "v": "a"}])
    table.write([{"k": 1, "ts": 3, "is_gone": True, "sum": 50, "v": "b"}])
    table.write([{"k": 1, "ts": 2, "sum": 100}])  # late, and what it adds to is gone
    assert rows_by_key(table) == {}
    table.write([{"k": 1, "ts": 3, "sum": 2}])
    (row,) = rows_by_key(table).values()
    assert (row["sum"], row["v"], row["is_gone"]) == (2, None, None)


def test_rows_of_an_overwrite_are_merged_with_one_another_alone() -> None:
    table = new_table()
    table.write([{"k": 1, "ts": 5, "sum": 5}, {"k": 2, "ts": 5, "sum": 5}])
    table.overwrite([{"k": 1, "ts": 2, "sum": 1}, {"k": 1, "ts": 1, "sum": 2}])
    assert {k: (row["ts"], row["sum"]) for k, row in rows_by_key(table).items()} == {1: (2, 3)}
    assert_index_is_that_of_the_rows(table)


def test_batch_that_is_delivered_again_doubles_nothing() -> None:
    table = new_table()
    for is_new in (True, False):
        rows = [{"k": 1, "ts": 1, "sum": 5, "each": ["a"]}]
        assert table.write(rows, commit_user="u", commit_identifier=1).is_new == is_new
    assert [(row["sum"], row["each"]) for row in rows_by_key(table).values()] == [(5, ["a"])]


@pytest.mark.takes_turns
def test_two_writers_lose_no_increment_whenever_the_other_comes() -> None:
    for request in itertools.count(1):
        store = empty_store()
        new_table(store).write([{"k": 1, "ts": 1, "sum": 1}])
        other = table_in(store)
        others = Others(partial(other.write, [{"k": 1, "ts": 1, "sum": 10}]))
        table = kt.connect("", store=busy_store(store, others)).table("t")
        others.requests.clear()
        others.before = request.__eq__
        table.write([{"k": 1, "ts": 1, "sum": 100}])
        others.before = lambda _: False
        if request > len(others.requests):
            return
        assert [row["sum"] for row in rows_by_key(table).values()] == [111], request
        assert_index_is_that_of_the_rows(table)


@pytest.mark.takes_turns
def test_a_look_at_the_current_rows_of_all_files_is_one_wait() -> None:
    def waits(**options: str) -> int:
        table = empty_table("k INT NOT NULL, n INT", ["k"], options=options)
        for k in range(3):
            table.write([{"k": k, "n": 1}])
        with far_away(0.1) as far, far.counted() as requests:
            table.write([{"k": k, "n": 1} for k in range(3)])
        return requests.waits

    # A busy machine may begin late what goes side by side; it never makes a chain shorter.
    full, merging = (
        min(waits(**{"upsert.mode": mode}) for _ in range(4)) for mode in ("full", "partial")
    )
    assert merging == full + 1


def test_texts_that_spell_one_uuid_are_one_row() -> None:
    options = {
        "upsert.mode": "partial",
        "upsert.hash-function": "uuid",
        "fields.default-aggregate-function": "sum",
    }
    table = empty_table("k STRING NOT NULL, n INT", ["k"], options=options)
    low = "0f14d0ab-9605-4a62-a9e4-5ed26688389b"
    table.write([{"k": low, "n": 1}, {"k": low.upper(), "n": 2}])
    table.write([{"k": low, "n": 4}])
    assert table.scan().to_pylist() == [{"k": low, "n": 7}]


# -- rows that come late -------------------------------------------------------------------------


def test_late_row_is_refused_with_its_key_and_the_ways_out() -> None:
    table = new_table()
    table.write([{"k": 1, "ts": 5, "sum": 1}])
    with pytest.raises(
        kt.InvalidError,
        match=r"1 of 2 rows .* k = 1: its ts is 4, and that of the stored row 5.*"
        r"'upsert.drop-out-of-order-record'.*'merge-engine'",
    ):
        table.write([{"k": 2, "ts": 4, "sum": 1}, {"k": 1, "ts": 4, "sum": 1}])
    assert len(table.snapshots()) == 1


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    "options",
    [
        {"upsert.drop-out-of-order-record": "true"},
        {"upsert.out-of-order-record-column": "is_late"},
    ],
)
@given(rows=st.lists(ROWS, min_size=2, max_size=8))
def test_late_rows_that_are_left_out_are_the_same_in_one_write_and_in_many(
    options: dict[str, str], rows: list[Row]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TYPES, "is_late", "BOOLEAN")
        one, other = new_table(None, "is_late", **options), new_table(None, "is_late", **options)
    late = one.write(rows).out_of_order
    assert late == sum(other.write([row]).out_of_order or 0 for row in rows)
    assert rows_by_key(one) == rows_by_key(other)
    for table in (one, other):
        assert_index_is_that_of_the_rows(table)


# -- producers with clocks of their own ------------------------------------------------------------

PRODUCED = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.integers(0, 1),
            "producer": st.sampled_from(["a", "b"]),
            "clock": st.integers(0, 4),
            "sum": NUMBERS,
        }
    ),
    min_size=1,
    max_size=5,
)


@given(writes=st.lists(PRODUCED, min_size=1, max_size=4))
def test_rows_of_each_producer_are_merged_in_the_order_of_its_clock(
    writes: list[list[Row]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TYPES, "b", "STRING")
        table = new_table(None, "a", "b", **{"sequence.field": "a,b"})
    clocks: dict[tuple[int, str], int] = {}
    sums: dict[int, int | None] = {}
    for rows in writes:
        given = [{"k": r["k"], r["producer"]: stamp(r), "sum": r["sum"]} for r in rows]
        if any(row["clock"] < clocks.get((row["k"], row["producer"]), 0) for row in rows):
            with pytest.raises(kt.InvalidError, match="are older than the stored rows"):
                table.write(given)
            continue
        table.write(given)
        for row in rows:
            place = row["k"], row["producer"]
            clocks[place] = max(row["clock"], clocks.get(place, 0))
            old = sums.get(row["k"])
            sums[row["k"]] = old if row["sum"] is None else row["sum"] + (old or 0)
        found = {k: (r["a"], r["b"], r["sum"]) for k, r in rows_by_key(table).items()}
        assert found == {
            k: (clocks.get((k, "a")), shown_stamp(clocks.get((k, "b"))), n) for k, n in sums.items()
        }
        assert_index_is_that_of_the_rows(table)


def stamp(row: Row) -> Any:
    return row["clock"] if row["producer"] == "a" else shown_stamp(row["clock"])


def shown_stamp(clock: int | None) -> str | None:
    return None if clock is None else f"t{clock}"


# -- statements ------------------------------------------------------------------------------------


def test_statements_state_what_a_row_is() -> None:
    table = new_table()
    table.write([{"k": k, "ts": 1, "sum": 5, "all": ["a"], "v": "x"} for k in (1, 2, 3)])
    table.update({"sum": "1", "v": "NULL"}, "k = 1")
    merge = table.merge([{"k": 2, "n": 7}, {"k": 4, "n": 8}], "target.k = source.k")
    merge = merge.when_matched_update({"sum": "source.n"})
    merge.when_not_matched_insert({"k": "source.k", "ts": "1", "sum": "source.n"}).execute()
    table.delete("k = 3")
    assert {k: (r["sum"], r["all"], r["v"]) for k, r in rows_by_key(table).items()} == {
        1: (1, ["a"], None),
        2: (7, ["a"], "x"),
        4: (8, None, None),
    }
    table.write([{"k": k, "ts": 1, "sum": 1} for k in (1, 2, 3, 4)])
    assert {k: r["sum"] for k, r in rows_by_key(table).items()} == {1: 2, 2: 8, 3: 1, 4: 9}
    assert_index_is_that_of_the_rows(table)


def test_tasks_side_by_side_with_rows_of_one_key_are_refused() -> None:
    table = new_table()
    data = to_arrow_table([dict.fromkeys(COLUMNS) | {"k": 1, "ts": 1}], table.table_schema, "t")
    with Transaction.begin(table.stored, writable_view(table.stored)) as transaction:
        for number in range(2):
            transaction.collect(transaction.task().feed([data], number))
        with pytest.raises(kt.UnsupportedError, match=r"merges the rows of a key.*by one task"):
            transaction.commit()
        transaction.abort()


def test_runs_of_one_task_are_merged_with_those_before() -> None:
    table = new_table()
    table.write([{"k": 1, "ts": 1, "sum": 1}])
    runs = [
        to_arrow_table([dict.fromkeys(COLUMNS) | row for row in rows], table.table_schema, "t")
        for rows in (
            [{"k": 1, "ts": 2, "sum": 10}, {"k": 2, "ts": 2, "sum": 1}],
            [{"k": 1, "ts": 3, "sum": 100}, {"k": 2, "ts": 2, "sum": 2}],
            [{"k": 2, "ts": 3, "sum": 4}],
        )
    ]
    with Transaction.begin(table.stored, writable_view(table.stored)) as transaction:
        transaction.collect(transaction.task().feed(runs, 0))
        transaction.commit()
    assert {k: row["sum"] for k, row in rows_by_key(table).items()} == {1: 111, 2: 7}
    assert_index_is_that_of_the_rows(table)


def test_keys_that_an_update_hands_on_have_the_rows_that_come_to_them() -> None:
    table = new_table()
    table.write([{"k": k, "ts": 1, "sum": k} for k in (1, 2, 3)])
    table.update({"k": "k + 10"}, "k = 1")
    table.update({"k": "k + 1"}, "k < 4")
    assert {k: row["sum"] for k, row in rows_by_key(table).items()} == {3: 2, 4: 3, 11: 1}
    assert_index_is_that_of_the_rows(table)


def test_rows_of_partitions_are_merged_where_they_are() -> None:
    options = {"upsert.mode": "partial", "fields.n.aggregate-function": "INCREMENT"}
    table = empty_table(
        "p STRING NOT NULL, k INT NOT NULL, n INT",
        ["p", "k"],
        partition_by=["p"],
        options=options,
    )
    for _ in range(2):
        table.write([{"p": p, "k": 1, "n": n} for p, n in (("a", 1), ("b", 10))])
    table.alter(AddColumn(("m",), kt.parse_sql_type("INT")))
    table.write([{"p": "a", "k": 1, "m": 5}])
    found = dicts(table, by="p")
    assert found == [{"p": "a", "k": 1, "n": 2, "m": 5}, {"p": "b", "k": 1, "n": 20, "m": None}]
    assert_index_is_that_of_the_rows(table)


# -- what cannot be merged -------------------------------------------------------------------------


def test_sum_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    table = new_table()
    table.write([{"k": 1, "ts": 1, "sum": 2**31 - 1}])
    with pytest.raises(kt.InvalidError, match=r"table default.t: .*k = 1.*'sum'.*overflow"):
        table.write([{"k": 1, "ts": 2, "sum": 1}])
    assert len(table.snapshots()) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"fields.k.aggregate-function": "MAX"}, "'k' identifies, orders or marks rows"),
        ({"fields.ts.aggregate-function": "MAX"}, "sequence field 'ts' cannot have an aggregate"),
        ({"fields.v.aggregate-function": "INCREMENT"}, "'sum' does not support the type STRING"),
        ({"fields.sum.aggregate-function": "APPEND"}, "'collect' does not support the type INT"),
        ({"fields.sum.aggregate-function": "count"}, "about merging versions.*remove one"),
        ({"fields.sum.ignore-retract": "true"}, "about merging versions.*remove one"),
        ({"merge-engine": "aggregation"}, "'merge-engine' = 'aggregation'"),
        ({"upsert.mode": "full"}, "'fields.forced.aggregate-function'.*'upsert.mode' = 'full'"),
    ],
)
def test_definition_that_cannot_work_is_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(kt.KeytideError, match=expected):
        new_table(**options)
