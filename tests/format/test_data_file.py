"""Parts of a data file: row groups stay whole where they fit."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.format.data_file import _spans

EXAMPLES = [
    # row groups, rows at most -> spans
    ([4, 4, 2], 10, [(0, 10)]),
    ([4, 4, 2], 9, [(0, 8), (8, 2)]),
    ([4, 4, 2], 4, [(0, 4), (4, 4), (8, 2)]),
    ([10, 3], 4, [(0, 4), (4, 4), (8, 2), (10, 3)]),
    ([], 4, []),
]


@pytest.mark.parametrize(("group_rows", "rows_max", "spans"), EXAMPLES)
def test_row_groups_are_cut_only_where_one_is_too_large(
    group_rows: list[int], rows_max: int, spans: list[tuple[int, int]]
) -> None:
    assert _spans(group_rows, rows_max) == spans


@given(group_rows=st.lists(st.integers(1, 9), max_size=9), rows_max=st.integers(1, 20))
def test_spans_cover_every_row_once_in_order(group_rows: list[int], rows_max: int) -> None:
    spans = _spans(group_rows, rows_max)
    rows = [row for start, length in spans for row in range(start, start + (length or 0))]
    assert rows == list(range(sum(group_rows)))
    assert all(length is not None and 0 < length <= rows_max for _, length in spans)
    ends = set(itertools.accumulate(group_rows, initial=0))
    small = max(group_rows, default=0) <= rows_max
    assert not small or {start for start, _ in spans} <= ends
