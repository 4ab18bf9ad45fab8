"""Rows are split by partition and bucket, whatever the numbers are."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from keytide.write.layout import BucketSplit

PARTITIONS = [b"a", b"b", b"c"]
rows = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(st.integers(0, 5), st.integers(0, 1 << 31))), max_size=40
)


@given(rows)
def test_the_parts_are_the_rows_of_each_bucket_in_order_of_arrival(
    placed: list[tuple[int, int]],
) -> None:
    places = np.array([place for place, _ in placed], np.int64)
    ids = np.array([bucket for _, bucket in placed], np.int64)
    expected: dict[tuple[int, int], list[int]] = {}
    for number, pair in enumerate(placed):
        expected.setdefault(pair, []).append(number)
    parts = BucketSplit.of(PARTITIONS, places, ids).parts(pl.DataFrame({"n": range(len(placed))}))
    assert [(bucket, part["n"].to_list()) for bucket, part in parts] == [
        ((PARTITIONS[place], bucket), expected[place, bucket]) for place, bucket in sorted(expected)
    ]
