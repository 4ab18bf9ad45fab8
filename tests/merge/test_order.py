"""The merge order against Python's own sorting."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.merge.order import SEQUENCE_NUMBER, VALUE_KIND, MergeOrder, is_strictly_sorted

NAN = float("nan")
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "BIGINT": (pl.Int64, [-(2**63), -1, 0, 1, 2**63 - 1]),
    "TINYINT": (pl.Int8, [-128, 0, 127]),
    "DOUBLE": (pl.Float64, [-math.inf, -1.5, -0.0, 0.0, 1e-300, 2.0, math.inf, NAN]),
    "STRING": (pl.String, ["", " ", "a", "a ", "aa", "b", "Z", "é", "\U0001f600", "￿"]),
    "BINARY": (pl.Binary, [b"", b"\x00", b"\x00\x00", b"\x7f", b"\x80", b"\xff"]),
    "DATE": (pl.Date, [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29)]),
    "TIMESTAMP": (pl.Datetime("us"), [datetime(1900, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 1)]),
    "DECIMAL": (pl.Decimal(38, 2), [Decimal("-9.99"), Decimal("0.00"), Decimal("9.99")]),
    "BOOLEAN": (pl.Boolean, [False, True]),
}


def rank(value: Any) -> tuple[int, Any]:
    """NULL lowest, NaN highest, texts bytewise; -0.0 equals 0.0 as it does in Python."""
    if value is None:
        return (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value.encode() if isinstance(value, str) else value)


def descending(number: int | None) -> tuple[int, Any]:
    """The rank in descending order; NULL is the lowest there too."""
    return rank(None if number is None else -number)


def versions(draw: st.DataObject, columns: dict[str, str], count: int) -> pl.DataFrame:
    data, schema = {}, {}
    for name, kind in columns.items():
        dtype, values = VALUES[kind]
        data[name] = draw.draw(st.lists(st.sampled_from([None, *values]), min_size=count,
                                        max_size=count))  # fmt: skip
        schema[name] = dtype
    data[SEQUENCE_NUMBER] = draw.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    data[VALUE_KIND] = draw.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    data["row"] = list(range(count))
    return pl.DataFrame(
        data, schema={**schema, SEQUENCE_NUMBER: pl.Int64, VALUE_KIND: pl.Int8, "row": pl.Int64}
    )


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data(), count=st.integers(0, 12))
def test_versions_sort_by_key_sequence_number_kind_and_arrival(
    kind: str, data: st.DataObject, count: int
) -> None:
    frame = versions(data, {"k": kind, "s": kind}, count)
    expected = sorted(
        frame.rows(named=True),
        key=lambda r: (rank(r["k"]), rank(r["s"]), r[SEQUENCE_NUMBER], r[VALUE_KIND] in (0, 2)),
    )
    merged = MergeOrder(("k",), ("s",)).sort(frame)
    assert merged["row"].to_list() == [row["row"] for row in expected]


@given(data=st.data(), count=st.integers(0, 12))
def test_null_is_lowest_in_descending_order_too(data: st.DataObject, count: int) -> None:
    frame = versions(data, {"k": "TINYINT", "s": "BIGINT", "t": "TINYINT"}, count)
    expected = sorted(
        frame.rows(named=True),
        key=lambda r: (
            rank(r["k"]), descending(r["s"]), descending(r["t"]), r[SEQUENCE_NUMBER]
        ),
    )  # fmt: skip
    order = MergeOrder(("k",), ("s", "t"), descending=True)
    merged = order.sort(frame.with_columns(pl.lit(0, pl.Int8).alias(VALUE_KIND)))
    assert merged["row"].to_list() == [row["row"] for row in expected]


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data(), count=st.integers(0, 12), composite=st.booleans())
def test_arrival_alone_keeps_versions_of_a_key_as_they_came(
    kind: str, data: st.DataObject, count: int, composite: bool
) -> None:
    frame = versions(data, {"k": kind, "k2": "TINYINT"}, count)
    key = ("k", "k2") if composite else ("k",)
    expected = sorted(frame.rows(named=True), key=lambda r: [rank(r[name]) for name in key])
    merged = MergeOrder(key).sort(frame, arrival_decides=True)
    assert merged["row"].to_list() == [row["row"] for row in expected]


def test_char_sequence_compares_without_trailing_blanks() -> None:
    frame = pl.DataFrame({"k": [1, 1], "s": ["b ", "b"], SEQUENCE_NUMBER: [2, 1], VALUE_KIND: 0})
    padded = MergeOrder(("k",), ("s",), padded=frozenset({"s"})).sort(frame)
    plain = MergeOrder(("k",), ("s",)).sort(frame)
    assert padded[SEQUENCE_NUMBER].to_list() == [1, 2]
    assert plain["s"].to_list() == ["b", "b "]


@given(st.lists(st.tuples(st.sampled_from([None, 0, 1]), st.sampled_from([None, "a", "b"]))))
def test_last_of_key_marks_one_row_per_key(keys: list[tuple[int | None, str | None]]) -> None:
    frame = pl.DataFrame(
        sorted(keys, key=lambda key: [rank(part) for part in key]),
        schema={"a": pl.Int64, "b": pl.String},
        orient="row",
    )
    kept = frame.filter(MergeOrder(("a", "b")).last_of_key())
    assert kept.rows() == list(dict.fromkeys(frame.rows()))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [([], True), ([1], True), ([1, 2, 5], True), ([1, 1], False), ([2, 1], False),
     ([None, 1], False)],
)  # fmt: skip
def test_strictly_sorted_keys_are_known(keys: list[int | None], expected: bool) -> None:
    frame = pl.DataFrame({"k": keys}, schema={"k": pl.Int64})
    assert is_strictly_sorted(frame, ("k",)) is expected


def test_wide_keys_sort_like_narrow_ones() -> None:
    """Values too far apart to share a word with row numbers take the other way."""
    keys = np.array([2**63 - 1, -(2**63), 0, 2**63 - 1, -(2**63)])
    frame = pl.DataFrame({"k": keys, "row": range(5)})
    merged = MergeOrder(("k",)).sort(frame, arrival_decides=True)
    assert merged["row"].to_list() == [1, 4, 2, 0, 3]


@pytest.mark.parametrize("count", [1, 255, 5_000, (1 << 20) + 3])
@pytest.mark.parametrize("kind", ["shuffled", "few runs", "equal"])
def test_keys_of_any_number_and_order_are_sorted_stably(count: int, kind: str) -> None:
    chance = np.random.default_rng(count)
    keys = chance.integers(-count, count, count)
    if kind == "few runs":
        keys = np.concatenate([np.sort(part) for part in np.array_split(keys, 3)])
    elif kind == "equal":
        keys = np.full(count, 7)
    rows = pl.DataFrame({"k": keys, "n": np.arange(count)})
    found = MergeOrder(("k",)).sort(rows, arrival_decides=True)
    assert found.equals(rows.sort("k", maintain_order=True))
