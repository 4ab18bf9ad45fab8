from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.errors import InvalidError
from keytide.format.binary_row import decode_rows
from keytide.format.stats import (
    EMPTY_STATS,
    SimpleStats,
    StatsMode,
    collect_piece_stats,
    truncate_max,
    truncate_min,
)
from keytide.types import DataType, Field, parse_sql_type

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "golden.json").read_text()
)["stats_truncation"]
NAN, INF = float("nan"), float("inf")


def field(name: str, sql_type: str) -> Field:
    return Field(0, name, parse_sql_type(sql_type))


def collect_stats(
    table: pa.Table, fields: list[Field], mode: str
) -> tuple[SimpleStats, tuple[str, ...] | None]:
    """Statistics of a table of one piece without keys, and the names of the columns covered."""
    _, (stats,), names = collect_piece_stats(table, [table.num_rows], [], fields, mode)
    return stats, names


def stats_of(values: list[Any], sql_type: str, mode: str = "full") -> tuple[Any, Any, int | None]:
    """(min, max, null count) of one column after the way through its stored row."""
    column = field("c", sql_type)
    table = pa.table({"c": pa.array(values, column.type.to_arrow())})
    stats, names = collect_stats(table, [column], mode)
    assert names is None
    return decoded(stats, [column.type])[0]


def decoded(stats: SimpleStats, types: list[DataType]) -> list[tuple[Any, Any, int | None]]:
    columns = decode_rows([stats.min_values, stats.max_values], types)
    assert stats.null_counts is not None
    return [
        (*column.to_pylist(), count)
        for column, count in zip(columns, stats.null_counts, strict=True)
    ]


def value(text: str | None, sql_type: str) -> Any:
    if text is None or sql_type == "STRING":
        return text
    return int(text) if sql_type == "INT" else bytes.fromhex(text)


@pytest.mark.parametrize(
    "case", [c for c in GOLDEN if "note" not in c], ids=lambda case: case["id"]
)
def test_golden_statistics_agree_with_java(case: dict[str, Any]) -> None:
    sql_type, java = case["type"], case["java"]
    low, high = value(case["min"], sql_type), value(case["max"], sql_type)
    column = field("c", sql_type)
    values = [low, high] if low is not None else []
    table = pa.table({"c": pa.array(values + [None] * case["nulls"], column.type.to_arrow())})
    stats, names = collect_stats(table, [column], case["mode"])
    if java["is_none"]:
        assert (stats, names) == (EMPTY_STATS, ())
    else:
        bounds = [value(java["min"], sql_type), value(java["max"], sql_type)]
        # Releases of Java disagree whether bytes have a sign, so no bounds of bytes are stored.
        expected = (*([None, None] if sql_type == "BYTES" else bounds), java["nulls"])
        assert names is None
        assert decoded(stats, [column.type]) == [expected]


def test_upper_bound_never_ends_in_half_a_surrogate_pair() -> None:
    (case,) = [c for c in GOLDEN if "note" in c]
    assert stats_of([case["min"], case["max"]], "STRING", case["mode"]) == ("\ud7ff", "\ue000", 0)


@given(st.text(), st.integers(1, 5))
def test_truncated_texts_are_bounds_of_at_most_that_length(text: str, length: int) -> None:
    low, high = truncate_min(text, length), truncate_max(text, length)
    assert len(low) <= length
    assert low.encode() <= text.encode()
    if high is not None:
        assert len(high) <= length
        assert high.encode() >= text.encode()
    else:
        assert set(text[:length]) == {"\U0010ffff"}


@given(st.binary(), st.integers(1, 5))
def test_truncated_binaries_are_bounds_of_at_most_that_length(data: bytes, length: int) -> None:
    low, high = truncate_min(data, length), truncate_max(data, length)
    assert len(low) <= length
    assert low <= data
    if high is not None:
        assert len(high) <= length
        assert high >= data
    else:
        assert set(data[:length]) == {0xFF}


@pytest.mark.parametrize(
    ("sql_type", "low", "high"),
    [
        ("BOOLEAN", False, True),
        ("TINYINT", -128, 127),
        ("SMALLINT", -5, 5),
        ("INT", -(2**31), 2**31 - 1),
        ("BIGINT", -(2**63), 2**63 - 1),
        ("FLOAT", -INF, 1.5),
        ("DOUBLE", -1.5, INF),
        ("DECIMAL(5, 2)", Decimal("-9.99"), Decimal("9.99")),
        ("DECIMAL(38, 0)", Decimal(-(10**37)), Decimal(10**37)),
        ("CHAR(3)", "abc", "abd"),
        ("STRING", "A", "é"),
        ("DATE", dt.date(1969, 12, 31), dt.date(2024, 5, 14)),
        ("TIME(3)", dt.time(0), dt.time(23, 59, 59, 999000)),
        ("TIMESTAMP(3)", dt.datetime(1969, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 1000)),
        ("TIMESTAMP(6)", dt.datetime(1969, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 1)),
    ],
)
def test_bounds_of_every_type_are_exact(sql_type: str, low: Any, high: Any) -> None:
    assert stats_of([high, None, low, high], sql_type, "truncate(16)") == (low, high, 1)


@pytest.mark.parametrize("mode", ["full", "truncate(16)", "counts"])
@pytest.mark.parametrize("sql_type", ["BYTES", "VARBINARY(3)", "BINARY(1)"])
def test_bytes_have_no_bounds_because_engines_order_them_differently(
    sql_type: str, mode: str
) -> None:
    assert stats_of([b"\xff", None, b"\x00"], sql_type, mode) == (None, None, 1)


@pytest.mark.parametrize("mode", ["full", "truncate(16)", "counts"])
def test_all_null_column_has_null_bounds_and_its_count(mode: str) -> None:
    assert stats_of([None, None], "STRING", mode) == (None, None, 2)


def test_column_without_rows_has_null_bounds() -> None:
    assert stats_of([], "INT") == (None, None, 0)


def test_counts_keep_the_null_count_alone() -> None:
    assert stats_of([1, None], "INT", "counts") == (None, None, 1)


@pytest.mark.parametrize("sql_type", ["FLOAT", "DOUBLE"])
def test_nan_makes_the_bounds_unknown(sql_type: str) -> None:
    assert stats_of([1.0, NAN, None], sql_type) == (None, None, 1)


@pytest.mark.parametrize("values", [[0.0, -0.0], [-0.0, 0.0], [0.0], [-0.0]])
@pytest.mark.parametrize("sql_type", ["FLOAT", "DOUBLE"])
def test_zero_bounds_hold_both_zeros(values: list[float], sql_type: str) -> None:
    low, high, _ = stats_of(values, sql_type)
    assert (str(low), str(high)) == ("-0.0", "0.0")


@pytest.mark.parametrize(
    "column",
    [
        pl.Series(["b", None, "a"]).to_arrow(compat_level=pl.CompatLevel.newest()),
        pa.array(["b", None, "a"], pa.large_string()),
        pa.array(["b", None, "a"]).dictionary_encode(),
        pa.chunked_array([["b"], [], [None, "a"]], pa.string()),
    ],
    ids=["view", "large", "dictionary", "chunks"],
)
def test_text_may_come_in_any_arrow_layout(column: Any) -> None:
    text = field("c", "STRING")
    stats, _ = collect_stats(pa.table({"c": column}), [text], "truncate(16)")
    assert decoded(stats, [text.type]) == [("a", "b", 1)]


@pytest.mark.parametrize(
    "sql_type",
    [
        "ARRAY<INT>",
        "MAP<STRING, INT>",
        "MULTISET<INT>",
        "ROW<a INT>",
        "TIMESTAMP(7)",
        "TIMESTAMP_LTZ(9)",
        "VARIANT",
        "BLOB",
    ],
)
def test_column_that_cannot_have_statistics_is_left_out(sql_type: str) -> None:
    fields = [field("a", "INT"), field("n", sql_type), field("b", "STRING NOT NULL")]
    table = pa.table(
        {
            "a": pa.array([3, 1], pa.int32()),
            "n": pa.nulls(2, fields[1].type.to_arrow()),
            "b": ["x", "y"],
        }
    )
    stats, names = collect_stats(table, fields, "truncate(16)")
    assert names == ("a", "b")
    assert decoded(stats, [fields[0].type, fields[2].type]) == [(1, 3, 0), ("x", "y", 0)]


def test_columns_follow_the_fields_and_system_columns_are_passed_over() -> None:
    table = pa.table({"_SEQUENCE_NUMBER": [1], "b": ["x"], "a": pa.array([5], pa.int32())})
    fields = [field("a", "INT NOT NULL"), field("b", "STRING")]
    stats, names = collect_stats(table, fields, "full")
    assert names is None
    assert decoded(stats, [f.type for f in fields]) == [(5, 5, 0), ("x", "x", 0)]


def test_mode_none_covers_no_column() -> None:
    assert collect_stats(pa.table({"c": ["x"]}), [field("c", "STRING")], "none") == (
        EMPTY_STATS,
        (),
    )


def test_empty_statistics_have_the_bytes_of_an_empty_row() -> None:
    assert SimpleStats(bytes(12), bytes(12), ()) == EMPTY_STATS


def test_key_statistics_cover_every_key_column_and_are_cut_at_128() -> None:
    keys = [field("s", "STRING NOT NULL"), field("t", "TIMESTAMP(9) NOT NULL")]
    table = pa.table({"s": ["x" * 200], "t": pa.array([1], pa.timestamp("ns"))})
    ((stats,), _, _) = collect_piece_stats(table, [1], keys, keys, "none")
    low, high = "x" * 128, "x" * 127 + "y"
    assert decoded(stats, [key.type for key in keys]) == [(low, high, 0), (None, None, None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", StatsMode("none")),
        ("COUNTS", StatsMode("counts")),
        ("full", StatsMode("full")),
        ("truncate(16)", StatsMode("truncate", 16)),
        (" Truncate(1) ", StatsMode("truncate", 1)),
    ],
)
def test_modes_are_parsed_in_any_case(text: str, expected: StatsMode) -> None:
    assert StatsMode.parse(text) == expected


@pytest.mark.parametrize("text", ["", "truncate", "truncate(0)", "truncate(-1)", "fuller", "all"])
def test_unknown_mode_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(InvalidError, match="truncate\\(n\\)"):
        StatsMode.parse(text)
