"""Runs whose keys are far apart become several files, so that they overlap with no others."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.format.data_file.key_gaps import cut_at_gaps

ROWS = 10_000
BLOCK = st.tuples(st.integers(-(2**62), 2**62), st.integers(1, 40_000), st.integers(1, 1_000))
"""The first key of a block, its number of rows, and the distance of its keys."""


@given(st.lists(BLOCK, min_size=1, max_size=6))
def test_parts_are_the_run_and_each_has_many_rows(blocks: list[tuple[int, int, int]]) -> None:
    keys = np.sort(np.concatenate([low + np.arange(n) * step for low, n, step in blocks]))
    run = pa.table({"k": keys})
    parts = cut_at_gaps(run, "k")
    assert pa.concat_tables(parts).equals(run)
    assert len(parts) == 1 or min(part.num_rows for part in parts) >= ROWS
    assert len(parts) <= 4


@pytest.mark.parametrize(
    ("ends", "parts"),
    [
        ([(0, ROWS)], 1),
        ([(0, ROWS), (1_000_000, ROWS)], 2),
        ([(0, ROWS), (500_000, ROWS), (1_000_000, ROWS)], 3),
        ([(0, ROWS), (1_000_000, ROWS - 1)], 1),
        ([(0, 2 * ROWS), (25_000, 2 * ROWS)], 1),
        ([(-(2**63), ROWS), (2**63 - ROWS, ROWS)], 2),
    ],
)
def test_run_is_cut_where_keys_are_far_apart(ends: list[tuple[int, int]], parts: int) -> None:
    keys = np.concatenate([low + np.arange(n, dtype=np.int64) for low, n in ends])
    assert len(cut_at_gaps(pa.table({"k": keys}), "k")) == parts


def test_keys_without_a_distance_are_one_file() -> None:
    keys = [f"{n:05}" for n in (*range(ROWS), *range(9 * ROWS, 10 * ROWS))]
    assert len(cut_at_gaps(pa.table({"k": keys}), "k")) == 1


def test_ends_of_sorted_inputs_leave_nothing_to_merge(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1)

    def rows(*ranges: tuple[int, int]) -> pl.DataFrame:
        seconds = [second for low, high in ranges for second in range(low, high)]
        return pl.DataFrame({"k": [start + timedelta(seconds=s) for s in seconds]}).with_columns(
            v=pl.int_range(pl.len())
        )

    table = kt.connect(tmp_path).create_table(
        "t", rows((0, 1)).to_arrow().schema, ["k"], options={"bucket": "1", "write-only": "true"}
    )
    table.write(rows((0, 30_000)))
    table.write(rows((40_000, 70_000)))
    table.write(rows((30_000, 40_000), (70_000, 80_000)))
    (bucket,) = table.scan().plan.buckets
    assert [section.needs_merge for section in bucket.sections] == [False] * 4
    assert table.scan().to_polars().height == 80_000
