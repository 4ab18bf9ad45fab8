"""What the laws do not say: exact results, limits, errors and options of functions."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from datasketches import compact_theta_sketch, hll_sketch
from merging import Merging

from keytide.errors import InvalidError, SetupError
from keytide.merge.functions import registry
from keytide.options import TableOptions

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


def folded(function: str, type_: str, *inputs: Any, **options: str) -> Any:
    """What inputs of one key become; a pair of kind and value is no plain add."""
    merging = Merging.of(
        f"k INT NOT NULL, v {type_}",
        {
            "merge-engine": "aggregation",
            "fields.v.aggregate-function": function,
            **{f"fields.v.{key.replace('_', '-')}": value for key, value in options.items()},
        },
    )
    rows = [i if isinstance(i, tuple) and i[0] in ("-U", "-D") else ("+I", i) for i in inputs]
    ((kind, _, value),) = merging.rows(merging.at_once([(k, 1, v) for k, v in rows]))
    assert kind == "+I"
    return value


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("function", "type_", "inputs", "expected"),
    [
        ("sum", "TINYINT", [100, 27], "127"),
        ("sum", "SMALLINT", [None, None], "None"),
        ("sum", "INT", [("-U", 5), None], "-5"),
        ("sum", "BIGINT", [LONG_MAX, LONG_MAX, ("-U", LONG_MAX)], str(LONG_MAX)),
        ("sum", "BIGINT", [LONG_MIN, ("-D", LONG_MIN)], "0"),
        ("sum", "FLOAT", [1.11, None, -1.11], "0.0"),
        ("sum", "DOUBLE", [0.1, 0.2], "0.30000000000000004"),
        ("sum", "DECIMAL(4, 2)", ["1.01", "1.10", "10.00"], "12.11"),
        ("sum", "DECIMAL(38, 0)", ["9" * 38, ("-U", "9" * 38)], "0"),
        ("product", "BIGINT", [2**62, -2], str(LONG_MIN)),
        ("product", "BIGINT", [-7, ("-U", 2)], "-3"),
        ("product", "INT", [("-U", 3), 5, ("-D", 2)], "2"),
        ("product", "INT", [None, ("-U", 3)], "None"),
        ("product", "FLOAT", [1.11, -1.11, 0.0], "-0.0"),
        ("product", "DOUBLE", [1.11, 1.11, -1.11], "-1.3676310000000003"),
        ("product", "DECIMAL(4, 2)", ["1.01", "1.10", "10.00"], "11.10"),
        ("product", "DECIMAL(5, 3)", ["1.01", "1.10", "10.00"], "11.110"),
        ("product", "DECIMAL(2, 2)", ["-0.05", "0.10"], "-0.01"),
        ("product", "DECIMAL(38, 18)", ["10000000000", "100000"], "1000000000000000." + "0" * 18),
        ("product", "DECIMAL(3, 2)", ["1.01", ("-U", "2.00")], "0.51"),
        ("max", "DOUBLE", [float("nan"), 1.0, None], "nan"),
        ("min", "DOUBLE", [float("nan"), 1.0, None], "1.0"),
        ("min", "FLOAT", [float("nan"), None], "nan"),
        ("max", "BIGINT", [None, LONG_MIN], str(LONG_MIN)),
        ("max", "CHAR(3)", ["b", "a", "c"], "c"),
        ("last_value", "STRING", ["a", None], "None"),
        ("last_non_null_value", "STRING", ["a", ("-U", None)], "a"),
        ("last_non_null_value", "STRING", ["a", ("-U", "b"), None], "None"),
        ("first_value", "STRING", [None, "a"], "None"),
        ("first_not_null_value", "STRING", [None, "a", "b"], "a"),
    ],
)  # fmt: skip
def test_results_are_exact(function: str, type_: str, inputs: list[Any], expected: str) -> None:
    assert str(folded(function, type_, *inputs)) == expected


@pytest.mark.parametrize(
    ("function", "type_", "inputs"),
    [
        ("sum", "TINYINT", [127, 1]),
        ("sum", "SMALLINT", [-32768, -1]),
        ("sum", "INT", [2**31 - 1, 1]),
        ("sum", "BIGINT", [LONG_MAX, 1]),
        ("sum", "BIGINT", [LONG_MIN, ("-U", 1)]),
        ("sum", "BIGINT", [LONG_MAX] * 5),
        ("sum", "DECIMAL(4, 2)", ["99.99", "0.01"]),
        ("sum", "DECIMAL(38, 0)", ["9" * 38, "1"]),
        ("sum", "DECIMAL(38, 0)", ["9" * 38] * 4),
        ("product", "TINYINT", [100, 2]),
        ("product", "BIGINT", [2**62, 2]),
        ("product", "BIGINT", [2**40] * 4),
        ("product", "BIGINT", [2**62, ("-U", 1), 4]),
        ("product", "DECIMAL(3, 2)", ["9.01", "2.00"]),
        ("product", "DECIMAL(38, 0)", ["9" * 38, "9" * 37]),
    ],
)
def test_result_that_does_not_fit_is_an_error(function: str, type_: str, inputs: list[Any]) -> None:
    with pytest.raises(InvalidError, match=f"column 'v'.*'{function}' does not fit.*overflow"):
        folded(function, type_, *inputs)


def test_dividing_by_zero_is_an_error() -> None:
    with pytest.raises(InvalidError, match=r"column 'v'.*'product' cannot take back a zero"):
        folded("product", "INT", 4, ("-U", 0))


@pytest.mark.parametrize(
    ("function", "type_", "add"),
    [("max", "INT", 1), ("min", "INT", 1), ("bool_and", "BOOLEAN", True),
     ("first_value", "INT", 1), ("first_non_null_value", "INT", 1), ("listagg", "STRING", "a"),
     ("nested_partial_update", "ARRAY<ROW<n INT>>", [[1]]), ("rbm32", "BYTES", {"$rbm32": [1]})],
)  # fmt: skip
def test_function_without_retraction_says_so_unless_retracts_are_ignored(
    function: str, type_: str, add: Any
) -> None:
    retract = ("-U", add)
    with pytest.raises(InvalidError, match=f"'{function}' cannot retract values.*column 'v'"):
        folded(function, type_, add, retract, nested_key="n")
    kept = folded(function, type_, add, retract, nested_key="n", ignore_retract="true")
    assert kept == folded(function, type_, add, None, nested_key="n")


@pytest.mark.parametrize(
    ("inputs", "options", "expected"),
    [
        ([[1, 2], None, [2]], {}, [1, 2, 2]),
        ([[1, 2], [2, None]], {"distinct": "true"}, [1, 2, None]),
        ([[1, 1, 2], ("-U", [1, 3])], {}, [1, 2]),
        ([("-U", [1]), [1, 2]], {}, [1, 2]),
        ([[1], ("-U", [1, 1]), [1]], {}, [1]),
        ([[1], ("-U", [1])], {}, []),
        ([[1], ("-U", None), ("-D", [])], {}, [1]),
        ([None, ("-U", [1])], {}, None),
        ([[1, 2], ("-U", [1]), [1]], {"distinct": "true"}, [2, 1]),
    ],
)
def test_collect(inputs: list[Any], options: dict[str, str], expected: list[Any] | None) -> None:
    assert folded("collect", "ARRAY<INT>", *inputs, **options) == expected


def test_collect_tells_nested_elements_apart_by_value() -> None:
    type_ = "ARRAY<ROW<a INT, b ARRAY<STRING>, c BYTES>>"
    one, other = [1, ["x"], "00"], [1, ["x", None], "00"]
    found = folded("collect", type_, [one, other], [one], ("-U", [other]), distinct="true")
    assert found == [{"a": 1, "b": ["x"], "c": b"\x00"}]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([{"x": 1, "y": 2}, None, {"x": None}], {"x": None, "y": 2}),
        ([{"x": 1, "y": 2}, ("-U", {"x": 9})], {"y": 2}),
        ([{"x": 1}, ("-U", {"x": 1})], {}),
        ([None, ("-U", {"x": 1})], None),
        ([{"x": 1}, ("-U", None), {"y": 2}], {"x": 1, "y": 2}),
    ],
)
def test_merge_map(inputs: list[Any], expected: dict[str, Any] | None) -> None:
    assert folded("merge_map", "MAP<STRING, INT>", *inputs) == expected


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([{"x": [1, "2"]}, {"x": [2, "1"]}], {"x": (1, "2")}),
        ([{"x": [1, "2"]}, {"x": [2, "2"]}], {"x": (1, "2")}),
        ([{"x": [1, "2"]}, {"x": [2, "3"], "y": [3, "0"]}], {"x": (2, "3"), "y": (3, "0")}),
        ([{"x": [1, "9"]}, {"x": [2, "10"]}], {"x": (1, "9")}),
        ([{"x": [1, "2"]}, {"x": None}], {}),
        ([{"x": [1, "2"]}, {"x": None}, {"x": [3, "1"]}], {"x": (3, "1")}),
        ([{"x": [1, "2"]}, {"x": [2, None]}], {"x": (1, "2")}),
        ([None, {"x": None, "y": [1, None]}, {"y": [2, "1"]}], {"x": None, "y": (2, "1")}),
        ([{}, {"x": None}], {}),
    ],
)
def test_merge_map_with_keytime(inputs: list[Any], expected: dict[str, Any]) -> None:
    found = folded("merge_map_with_keytime", "MAP<STRING, ROW<v INT, t STRING>>", *inputs)
    assert {k: v if v is None else (v["v"], v["t"]) for k, v in found.items()} == expected


@pytest.mark.parametrize(
    ("inputs", "options", "expected"),
    [
        ([[[0, 1], None], [[0, 2]]], {}, [(0, 1), (0, 2)]),
        ([[[0, 1], [0, 1]], ("-U", [[0, 1]])], {}, []),
        ([[[0, 1]], [[0, 2], [1, 3]]], {"nested_key": "n"}, [(0, 2), (1, 3)]),
        ([[[0, 1]], ("-U", [[0, 9]]), [[1, 1]]], {"nested_key": "n"}, [(1, 1)]),
        ([[[0, 2]], [[0, 1]]], {"nested_key": "n", "nested_sequence_field": "s"}, [(0, 2)]),
        ([[[0, None]], [[0, 1]]], {"nested_key": "n", "nested_sequence_field": "s"}, [(0, 1)]),
        ([[[0, 1]], [[1, 1]], [[0, 2], [2, 2]]], {"nested_key": "n", "count_limit": "2"},
         [(0, 2), (1, 1)]),
        ([[[0, 1]], [[1, 1], [2, 1]]], {"count_limit": "2"}, [(0, 1), (1, 1)]),
        ([[[None, 1]], [[None, 2]]], {"nested_key": "n"}, [(None, 2)]),
        ([[[None, 1]], [[1, 2]]], {"nested_key": "n", "nested_key_null_strategy": "ignore"},
         [(1, 2)]),
    ],
)  # fmt: skip
def test_nested_update(
    inputs: list[Any], options: dict[str, str], expected: list[tuple[Any, ...]]
) -> None:
    found = folded("nested_update", "ARRAY<ROW<n INT, s INT>>", *inputs, **options)
    assert [(row["n"], row["s"]) for row in found] == expected


def test_value_that_is_no_bitmap_is_an_error() -> None:
    with pytest.raises(InvalidError, match=r"column 'v'.*'rbm64'.*no serialized roaring bitmap"):
        folded("rbm64", "BYTES", "00ff", "00ff")


@pytest.mark.parametrize(
    ("function", "type_", "options", "expected"),
    [
        ("count", "INT", {}, "'count' .it is chosen column by column"),
        ("sum", "STRING", {}, "column 'v'.*'sum' does not support the type STRING"),
        ("max", "ARRAY<INT>", {}, "'max' does not support the type ARRAY<INT>"),
        ("bool_or", "INT", {}, "expected one of BOOLEAN"),
        ("listagg", "VARCHAR(9)", {}, "Data type for list agg column must be STRING"),
        ("collect", "INT", {}, "'collect'.*expected ARRAY"),
        ("collect", "ARRAY<INT>", {"distinct": "yes"}, "'fields.v.distinct'.*'yes'.*'true'"),
        ("merge_map", "ARRAY<INT>", {}, "expected MAP"),
        ("merge_map_with_keytime", "INT", {}, "must be 'MAP'"),
        ("merge_map_with_keytime", "MAP<INT, INT>", {}, "Value type of MAP.*must be ROW"),
        ("merge_map_with_keytime", "MAP<INT, ROW<a INT>>", {}, "must have at least 2 fields"),
        ("merge_map_with_keytime", "MAP<INT, ROW<a INT, b INT>>", {"ts_field": "c"},
         "Timestamp field 'c' not found in ROW type"),
        ("nested_update", "ARRAY<INT>", {}, "expected ARRAY<ROW>"),
        ("nested_update", "ARRAY<ROW<a INT>>", {"nested_key": "b"}, "fields of the nested ROW: a"),
        ("nested_update", "ARRAY<ROW<a INT>>", {"nested_sequence_field": "a"},
         "Option 'fields.v.nested-sequence-field' requires 'fields.v.nested-key' to be configured"),
        ("nested_update", "ARRAY<ROW<a INT>>", {"nested_key_null_strategy": "ignore"},
         "Option 'fields.v.nested-key-null-strategy' requires 'fields.v.nested-key'"),
        ("nested_update", "ARRAY<ROW<a INT>>", {"count_limit": "-1"}, "an integer from 0"),
        ("nested_partial_update", "ARRAY<ROW<a INT>>", {}, "needs a nested key"),
        ("rbm32", "STRING", {}, "expected one of VARBINARY"),
        ("union", "INT", {}, "'union'.*expected ARRAY"),
        ("union", "ARRAY<ARRAY<INT>>", {}, "'union'.*expected ARRAY of one of"),
    ],
)  # fmt: skip
def test_function_that_does_not_fit_its_column_is_refused(
    function: str, type_: str, options: dict[str, str], expected: str
) -> None:
    with pytest.raises(InvalidError, match=expected):
        folded(function, type_, **options)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([["b", "a", "b"]], ["b", "a", "b"]),
        ([["b", "a", "b"], None], ["b", "a", "b"]),
        ([["z", "a"], ["m", None]], [None, "a", "m", "z"]),
        ([["c", "a"], [], ["c"]], ["a", "c"]),
        ([None, None], None),
    ],
)
def test_union(inputs: list[Any], expected: list[Any] | None) -> None:
    assert folded("union", "ARRAY<STRING>", *inputs) == expected


@pytest.mark.parametrize(
    ("function", "sketch", "estimate"),
    [("hll_sketch", "$hll", hll_sketch.deserialize),
     ("theta_sketch", "$theta", compact_theta_sketch.deserialize)],
)  # fmt: skip
def test_sketches_estimate_the_union(function: str, sketch: str, estimate: Any) -> None:
    inputs = [{sketch: range(n, n + 20_000)} for n in (0, 10_000, 20_000)]
    found = estimate(folded(function, "BYTES", *inputs, None)).get_estimate()
    assert found == pytest.approx(40_000, rel=0.05)


@pytest.mark.parametrize("function", ["hll_sketch", "theta_sketch"])
@pytest.mark.parametrize("value", ["", "00", "00" * 40])
def test_value_that_is_no_sketch_is_an_error(function: str, value: str) -> None:
    with pytest.raises(InvalidError, match=rf"column 'v'.*'{function}'.*no serialized sketch"):
        folded(function, "BYTES", value, value)


def test_sketches_say_when_their_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(SetupError, match=r"'hll_sketch'.* needs .*keytide\[sketches\]"):
        folded("hll_sketch", "BYTES", "00", "00")


@pytest.mark.parametrize(
    ("name", "type_", "inputs", "expected"),
    [
        ("OVERWRITE", "INT", [3, 5, None], 5),
        ("force_overwrite", "INT", [3, None], None),
        ("Ignore", "INT", [None, 3, 5], 3),
        ("INCREMENT", "INT", [5, None, -2], 3),
        ("APPEND", "ARRAY<INT>", [[2, 1], [2]], [2, 1, 2]),
        ("UNION", "ARRAY<INT>", [[2, 1], [2]], [1, 2]),
        ("MAX", "STRING", ["a", "b"], "b"),
        ("MIN", "STRING", ["a", "b"], "a"),
    ],
)
def test_functions_have_other_names(
    name: str, type_: str, inputs: list[Any], expected: Any
) -> None:
    assert folded(name, type_, *inputs) == expected


@pytest.mark.parametrize("name", sorted({*registry._FUNCTIONS, *registry._OTHER_NAMES}))
@pytest.mark.parametrize("of", ["v.", "default-"])
def test_name_with_hyphens_is_the_same_function(name: str, of: str) -> None:
    """Tables are made with it, and those of other engines that store it are understood."""
    key = f"fields.{of}aggregate-function"
    expected = registry.with_stored_names({key: name})
    hyphens = {key: name.replace("_", "-")}
    assert registry.with_stored_names(hyphens) == expected
    assert registry.function_names(["v"], TableOptions.parse(hyphens)) == {"v": expected[key]}


ROWS = "ARRAY<ROW<n INT, x INT>>"


@pytest.mark.parametrize(
    ("function", "type_", "options", "alone", "merged"),
    [
        ("nested_update", ROWS, {}, [None], []),
        ("nested_update", ROWS, {"nested_key": "n"}, [None], []),
        ("nested_update", ROWS, {"nested_key": "n"}, [[1, 1], [1, 2]], [{"n": 1, "x": 2}]),
        ("nested_partial_update", ROWS, {"nested_key": "n"}, [None], []),
        ("nested_partial_update", ROWS, {"nested_key": "n"}, [[None, 1], [None, None]],
         [{"n": None, "x": 1}]),
        ("collect", "ARRAY<INT>", {}, [None, None], [None, None]),
        ("collect", "ARRAY<INT>", {"distinct": "true"}, [None, None], [None]),
    ],
)  # fmt: skip
def test_only_version_stays_as_it_is_and_null_merged_with_it_makes_a_fold(
    function: str, type_: str, options: dict[str, str], alone: Any, merged: Any
) -> None:
    lone = folded(function, type_, alone, **options)
    assert len(lone) == len(alone)
    for inputs in ([alone, None], [None, alone]):
        assert folded(function, type_, *inputs, **options) == merged
