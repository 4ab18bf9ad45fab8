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
from keytide.format.data_file.writer import lengths_between_gaps

ROWS = 10_000
BLOCK = st.tuples(st.integers(-(2**62), 2**62), st.integers(1, 40_000), st.integers(1, 1_000))
"""The first key of a block, its number of rows, and the distance of its keys."""


@given(st.lists(BLOCK, min_size=1, max_size=6))
def test_parts_are_the_run_and_each_has_many_rows(blocks: list[tuple[int, int, int]]) -> None:
    keys = np.sort(np.concatenate([low + np.arange(n) * step for low, n, step in blocks]))
    parts = lengths_between_gaps(pa.chunked_array([keys]))
    assert sum(parts) == len(keys)
    assert len(parts) == 1 or min(parts) >= ROWS
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
    assert len(lengths_between_gaps(pa.chunked_array([keys]))) == parts


def test_keys_without_a_distance_are_one_file() -> None:
    keys = [f"{n:05}" for n in (*range(ROWS), *range(9 * ROWS, 10 * ROWS))]
    assert len(lengths_between_gaps(pa.chunked_array([keys]))) == 1


@pytest.mark.parametrize("buckets", [1, 4])
def test_ends_of_sorted_inputs_leave_nothing_to_merge(tmp_path: Path, buckets: int) -> None:
    start = datetime(2026, 1, 1)

    def rows(*ranges: tuple[int, int]) -> pl.DataFrame:
        seconds = [second for low, high in ranges for second in range(low, high)]
        return pl.DataFrame({"k": [start + timedelta(seconds=s) for s in seconds]}).with_columns(
            v=pl.int_range(pl.len())
        )

    options = {"bucket": f"{buckets}", "write-only": "true"}
    columns = rows((0, 1)).to_arrow().schema
    table = kt.connect(tmp_path).create_table("t", columns, ["k"], options=options)
    table.write(rows((0, 180_000)))
    table.write(rows((240_000, 420_000)))
    table.write(rows((180_000, 240_000), (420_000, 480_000)))
    found = [[s.needs_merge for s in bucket.sections] for bucket in table.scan().plan.buckets]
    assert found == [[False] * 4] * buckets
    assert table.scan().to_polars()["k"].n_unique() == 480_000
