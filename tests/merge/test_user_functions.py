"""Merge functions of users: the laws they are held to, their use in tables, and how they fail."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from merging import Merging

import keytide as kt
from keytide.merge.functions import registry
from keytide.merge.functions.user import MergeFunction

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("n", pa.int64()), ("g", pa.int64())])


@pytest.fixture(autouse=True)
def _no_functions_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def longest(values: pl.Expr) -> pl.Expr:
    return values.sort_by(values.str.len_chars(), maintain_order=True).last()


def total(values: pl.Expr) -> pl.Expr:
    return values.sum()


def less(added: pl.Expr, taken: pl.Expr) -> pl.Expr:
    return added.fill_null(0) - taken


def a_table(warehouse: str, **options: str) -> kt.Table:
    own = {f"fields.{key.replace('__', '.').replace('_', '-')}": v for key, v in options.items()}
    return kt.connect(warehouse).create_table(
        "db.t", SCHEMA, ["k"], options={"merge-engine": "aggregation", **own}
    )


# -- laws --------------------------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("function", "types"),
    [
        (total, ["TINYINT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10, 2)"]),
        (lambda v: v.product(), ["TINYINT", "INT", "DOUBLE"]),
        (lambda v: v.bitwise_xor(), ["INT"]),
        (longest, ["STRING", "VARCHAR(2)", "CHAR(3)"]),
        (lambda v: v.explode().implode(), ["ARRAY<INT>", "ARRAY<ROW<a STRING, b DATE>>"]),
        (lambda v: v.last(), ["BOOLEAN", "BYTES", "TIME(3)", "TIMESTAMP(9)", "MAP<STRING, INT>",
                              "TIMESTAMP(6) WITH LOCAL TIME ZONE"]),
    ],
)  # fmt: skip
def test_function_that_folds_folds_is_accepted(
    function: Callable[[pl.Expr], pl.Expr], types: list[str]
) -> None:
    kt.register_merge_function("mine", function, types=types)


@pytest.mark.parametrize(
    ("function", "type_"),
    [
        (lambda v: v.mean(), "DOUBLE"),
        (lambda v: v.len(), "BIGINT"),
        (lambda v: v.median().cast(pl.Int64), "INT"),
        (lambda v: v.first() - v.last(), "BIGINT"),
        (lambda v: v.sum() + 1, "BIGINT"),
        (lambda v: v.str.join("").str.reverse(), "STRING"),
    ],
)
def test_function_that_depends_on_grouping_is_refused_with_an_example(
    function: Callable[[pl.Expr], pl.Expr], type_: str
) -> None:
    with pytest.raises(kt.InvalidError, match=r"'mine'.*\[.*\] folds to .*, but in groups \[.*\]"):
        kt.register_merge_function("mine", function, types=[type_])


def test_example_finds_what_made_up_values_do_not() -> None:
    def capped(values: pl.Expr) -> pl.Expr:
        return pl.when(values.sum() > 10**6).then(values.min()).otherwise(values.sum())

    kt.register_merge_function("capped", capped, types=["BIGINT"])
    with pytest.raises(kt.InvalidError, match="in groups"):
        kt.register_merge_function("capped", capped, types=["BIGINT"], examples=[400_000, 7])


def test_example_of_another_type_is_refused() -> None:
    itself: list[Any] = []
    itself.append(itself)
    for example in ("a", itself, 2**40):
        with pytest.raises(kt.InvalidError, match="'mine': the examples must be values of INT"):
            kt.register_merge_function("mine", total, types=["INT"], examples=[1, example])


def test_retract_that_depends_on_steps_is_refused_with_an_example() -> None:
    kt.register_merge_function("total", total, types=["INT"], retract=less)
    with pytest.raises(kt.InvalidError, match=r"'total'.*less \["):
        kt.register_merge_function("total", total, types=["INT"], retract=lambda a, t: a - t * 2)


@pytest.mark.parametrize(
    ("name", "types", "message"),
    [
        ("sum", ["INT"], "'sum' is built in"),
        ("Append", ["INT"], "'Append' is built in"),
        ("count", ["INT"], "'count' is built in"),
        ("no name", ["INT"], "is not a name"),
        ("mine", [], "list the SQL types"),
        ("mine", "INT", r"types is 'INT' .*a list of strings, such as \['INT'\]"),
        ("mine", ["NUMBER"], "NUMBER"),
    ],
)
def test_malformed_registration_is_refused(name: str, types: Any, message: str) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        kt.register_merge_function(name, total, types=types)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda v: 1 / 0, "failed with ZeroDivisionError"),
        (lambda v: v.nonsense(), "failed with AttributeError"),
        (lambda v: v.str.len_chars().sum(), "failed with"),
        (lambda v: 5, "returns 5; expected a Polars expression"),
        (lambda v: v + 1, "reduce the values to one"),
        (lambda v: v.first().cast(pl.String), "gives String for a column of Int64"),
        (lambda v: v.mean(), "gives Float64 for a column of Int64"),
    ],
)
def test_function_of_another_shape_is_refused(function: Any, message: str) -> None:
    with pytest.raises(kt.InvalidError, match=f"'mine' {message}|'mine'.*{message}"):
        kt.register_merge_function("mine", function, types=["BIGINT"])


ROWS = st.lists(
    st.tuples(st.just("+I"), st.integers(0, 2), st.sampled_from(["a", "bb", "cc", None]))
)


@given(rows=ROWS, lengths=st.lists(st.integers(1, 4), max_size=5))
def test_accepted_function_merges_run_by_run(rows: list[Any], lengths: list[int]) -> None:
    longest_ = MergeFunction("longest", longest, (kt.parse_sql_type("STRING"),))
    merging = Merging.of(
        "k INT NOT NULL, s STRING",
        {"merge-engine": "aggregation", "fields.s.aggregate-function": "longest"},
        functions={"longest": longest_},
    )
    at_once = merging.visible(merging.at_once(rows))
    assert merging.visible(merging.run_by_run(rows, lengths)) == at_once


# -- tables --------------------------------------------------------------------------------------


def test_table_folds_by_a_registered_function(warehouse: str) -> None:
    kt.register_merge_function("longest", longest, types=["STRING"])
    kt.register_merge_function("total", total, types=["BIGINT"], retract=less)
    table = a_table(warehouse, s__aggregate_function="longest", n__aggregate_function="total")
    table.write([{"k": 1, "s": "ab", "n": 1, "g": 1}, {"k": 1, "s": "c", "n": 2, "g": 1}])
    table.write([{"k": 1, "s": "de", "n": 4, "g": 2}, {"k": 2, "s": None, "n": None, "g": 1}])
    assert table.get(1) == {"k": 1, "s": "de", "n": 7, "g": 2}
    assert table.get(2) == {"k": 2, "s": None, "n": None, "g": 1}


def test_retract_is_taken_back_or_refused(warehouse: str) -> None:
    kt.register_merge_function("total", total, types=["BIGINT"], retract=less)
    table = a_table(warehouse, n__aggregate_function="total")
    for kind, n in [("+I", 5), ("-U", 3), ("+U", 1)]:
        table.write([{"k": 1, "s": "", "n": n, "g": 1, "_row_kind": kind}])
    assert table.scan(columns=["n"]).to_pylist() == [{"n": 3}]
    kt.register_merge_function("total", total, types=["BIGINT"])
    with pytest.raises(kt.InvalidError, match=r"db\.t.*'total' cannot retract values.*'n'"):
        table.scan().to_pylist()


def test_function_folds_late_rows_of_a_sequence_group_before_the_others(warehouse: str) -> None:
    kt.register_merge_function("joined", lambda v: v.str.join("-"), types=["STRING"])
    table = kt.connect(warehouse).create_table(
        "db.t",
        SCHEMA,
        ["k"],
        options={
            "merge-engine": "partial-update",
            "fields.g.sequence-group": "s,n",
            "fields.s.aggregate-function": "joined",
        },
    )
    for s, g in [("b", 5), ("c", 6), ("a", 1)]:
        table.write([{"k": 1, "s": s, "n": g, "g": g}])
    assert table.scan().to_pylist() == [{"k": 1, "s": "a-b-c", "n": 6, "g": 6}]


def test_function_travels_with_read_tasks_by_value(warehouse: str) -> None:
    kt.register_merge_function("top", lambda v: v.max(), types=["BIGINT"])
    table = a_table(warehouse, n__aggregate_function="top")
    for n in (1, 3, 2):
        table.write([{"k": 1, "s": "", "n": n, "g": n}])
    payload = pickle.dumps(list(table.scan().tasks()))
    registry._registered.clear()
    rows = [row for task in pickle.loads(payload) for f in task.frames(1 << 20) for row in f["n"]]
    assert rows == [3]


def test_unregistered_function_is_named_and_other_columns_stay_readable(warehouse: str) -> None:
    kt.register_merge_function("top", total, types=["BIGINT"])
    table = a_table(warehouse, n__aggregate_function="top")
    for n in (1, 2):
        table.write([{"k": 1, "s": "x", "n": n, "g": n}])
    registry._registered.clear()
    with pytest.raises(kt.SetupError, match=r"db\.t.*'n'.*'top'.*register_merge_function\('top'"):
        table.scan().to_pylist()
    assert table.scan(columns=["k", "s", "g"]).to_pylist() == [{"k": 1, "s": "x", "g": 2}]
    with pytest.raises(kt.SetupError, match="'top'"):
        table.write([{"k": 1, "s": "x", "n": n, "g": n} for n in (3, 4)])
    assert table.scan(columns=["g"]).to_pylist() == [{"g": 2}]


def test_function_that_fails_on_stored_rows_is_named(warehouse: str) -> None:
    kt.register_merge_function("top", total, types=["BIGINT"])
    table = a_table(warehouse, n__aggregate_function="top")
    for _ in range(2):
        table.write([{"k": 1, "s": "x", "n": 2**63 - 1, "g": 1}])
    broken = MergeFunction("top", lambda v: v.str.to_uppercase(), (kt.parse_sql_type("BIGINT"),))
    registry._registered["top"] = broken
    with pytest.raises(kt.InvalidError, match=r"db\.t.*column 'n'.*'top' failed with"):
        table.scan().to_pylist()
    assert table.scan(columns=["s"]).to_pylist() == [{"s": "x"}]


@pytest.mark.parametrize(
    ("column", "function", "message"),
    [("s", "total", "'total' does not support the type STRING; expected one of BIGINT"),
     ("n", "nobodys", "function 'nobodys'.*register_merge_function")],
)  # fmt: skip
def test_column_that_the_function_does_not_take_is_refused(
    warehouse: str, column: str, function: str, message: str
) -> None:
    kt.register_merge_function("total", total, types=["BIGINT"])
    with pytest.raises(kt.InvalidError, match=message):
        a_table(warehouse, **{f"{column}__aggregate_function": function})
