"""Runs cut into key windows and merged where touched, against a dict."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.merge.engines import Deduplicate
from keytide.merge.layers import merge_runs
from keytide.merge.order import SEQUENCE_NUMBER, VALUE_KIND, MergeOrder
from keytide.merge.windows import Batch, key_windows

Key = tuple[Any, ...]

KEYS: dict[str, tuple[dict[str, Any], list[Key]]] = {
    "whole numbers": ({"a": pl.Int32}, [(n,) for n in range(-4, 5)]),
    "dates": ({"a": pl.Date}, [(date(2024, 1, n),) for n in range(1, 9)]),
    "texts": ({"a": pl.String}, [(t,) for t in ("", "a", "a ", "b", "é", "\U0001f600")]),
    "bytes": ({"a": pl.Binary}, [(b,) for b in (b"", b"\x00", b"\x7f", b"\x80", b"\xff")]),
    "decimals": ({"a": pl.Decimal(9, 1)}, [(Decimal(n) / 2,) for n in range(-3, 4)]),
    "with NULL": ({"a": pl.Int64}, [(None,), (0,), (1,), (2,)]),
    "floats": ({"a": pl.Float64}, [(None,), (-1.0,), (0.0,), (float("inf"),)]),
    "composite": (
        {"a": pl.Int64, "b": pl.String},
        [(n, t) for n in (None, 0, 1) for t in (None, "x", "y")],
    ),
}


@st.composite
def runs_of(draw: st.DrawFn, keys: list[Key]) -> list[dict[Key, int]]:
    """Runs, oldest first: the values of some keys, each value different from all others."""
    chosen = draw(st.lists(st.sets(st.sampled_from(range(len(keys)))), max_size=4))
    return [
        {keys[i]: 100 * number + i for i in sorted(picked)} for number, picked in enumerate(chosen)
    ]


def frame_of(run: dict[Key, int], schema: dict[str, Any], number: int) -> pl.DataFrame:
    rows = [(*key, value, number, 0) for key, value in run.items()]
    columns = {**schema, "v": pl.Int64, SEQUENCE_NUMBER: pl.Int64, VALUE_KIND: pl.Int8}
    return pl.DataFrame(rows, schema=columns, orient="row")


def batches(frame: pl.DataFrame, rows: int, *, end_known: bool = False) -> Iterator[Batch]:
    for start in range(0, frame.height, rows):
        yield Batch(frame.slice(start, rows), end_known and start + rows >= frame.height)


def dict_of(pieces: Sequence[pl.DataFrame], key: tuple[str, ...]) -> dict[Key, int]:
    found = [row for piece in pieces for row in piece.select(*key, "v").rows()]
    merged = {row[:-1]: row[-1] for row in found}
    assert len(merged) == len(found), "a key came twice"
    return merged


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data(), window_rows=st.integers(1, 9), end_known=st.booleans())
def test_windows_of_any_size_hold_the_same_rows(
    kind: str, data: st.DataObject, window_rows: int, end_known: bool
) -> None:
    schema, keys = KEYS[kind]
    key = tuple(schema)
    runs = data.draw(runs_of(keys))
    frames = [frame_of(run, schema, number) for number, run in enumerate(runs)]
    cut = [batches(frame, window_rows, end_known=end_known) for frame in frames]
    windows = list(key_windows(cut, key))
    for number, run in enumerate(runs):
        parts = [window[number] for window in windows if window[number].width]
        taken = [row for part in parts for row in part.select(*key, "v").rows()]
        assert taken == [(*k, value) for k, value in run.items()]
    places = {k: i for i, k in enumerate(keys)}
    spans = [
        [places[row] for part in window for row in (part.select(key).rows() if part.width else [])]
        for window in windows
    ]
    filled = [span for span in spans if span]
    assert all(max(a) < min(b) for a, b in itertools.pairwise(filled))


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data(), window_rows=st.integers(1, 9), arrival_decides=st.booleans())
def test_runs_merged_window_by_window_agree_with_a_dict(
    kind: str, data: st.DataObject, window_rows: int, arrival_decides: bool
) -> None:
    schema, keys = KEYS[kind]
    order = MergeOrder(tuple(schema))
    runs = data.draw(runs_of(keys))
    frames = [frame_of(run, schema, number) for number, run in enumerate(runs)]
    oracle: dict[Key, int] = {}
    for run in runs:
        oracle.update(run)
    pieces = [
        piece
        for window in key_windows([batches(frame, window_rows) for frame in frames], order.key)
        for piece in merge_runs(window, order, Deduplicate(order), arrival_decides=arrival_decides)
    ]
    assert dict_of(pieces, order.key) == oracle


def test_runs_known_to_end_need_one_window() -> None:
    schema, keys = KEYS["whole numbers"]
    frames = [frame_of({key: 0}, schema, n) for n, key in enumerate(keys[:4])]
    runs = [iter([Batch(frame, is_last=True)]) for frame in frames]
    (window,) = key_windows(runs, tuple(schema))
    assert [frame.height for frame in window] == [1] * 4


@given(data=st.data())
def test_untouched_rows_pass_through_as_they_are(data: st.DataObject) -> None:
    schema, keys = KEYS["whole numbers"]
    order = MergeOrder(tuple(schema))
    base = frame_of({key: i for i, key in enumerate(keys)}, schema, 0)
    small = frame_of({keys[i]: 9 for i in sorted(data.draw(st.sets(st.integers(0, 3))))}, schema, 1)
    pieces = merge_runs([base, small], order, Deduplicate(order))
    untouched = base.filter(~pl.col("a").is_in(small["a"].implode()))
    assert pieces[0].rows() == (untouched if small.height else base).rows()


def test_retracts_are_kept_for_later_merges() -> None:
    schema, keys = KEYS["whole numbers"]
    order = MergeOrder(tuple(schema))
    old = frame_of({keys[0]: 1, keys[1]: 2}, schema, 0)
    delete = frame_of({keys[1]: 3}, schema, 1).with_columns(pl.lit(3, pl.Int8).alias(VALUE_KIND))
    merged = pl.concat(merge_runs([old, delete], order, Deduplicate(order)))
    assert merged.sort("a").select("v", VALUE_KIND).rows() == [(1, 0), (3, 3)]


def test_late_version_of_a_smaller_sequence_loses() -> None:
    order = MergeOrder(("a",), ("v",))
    schema, keys = KEYS["whole numbers"]
    runs = [frame_of({keys[0]: 7}, schema, 0), frame_of({keys[0]: 5}, schema, 1)]
    (merged,) = merge_runs(runs, order, Deduplicate(order))
    assert merged["v"].to_list() == [7]


def test_newest_run_passes_through_as_it_is_where_it_is_the_largest() -> None:
    schema, keys = KEYS["texts"]
    order = MergeOrder(tuple(schema))
    old = frame_of({keys[n]: n for n in (0, 1, 5)}, schema, 0)
    new = frame_of({keys[n]: 9 for n in (1, 2, 3)}, schema, 1)
    older, newest = merge_runs([old, new], order, Deduplicate(order), arrival_decides=True)
    assert newest is new
    assert older["v"].to_list() == [0, 5]
