"""Feeds of a simulated source: the table has the rows of the source, in any order of arrival."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulated_feed import check
from simulated_source import TOOLS


@pytest.mark.one_in(14)
@pytest.mark.parametrize("tool", sorted(TOOLS))
@given(seed=st.integers(0, 2**32))
def test_table_has_the_rows_of_the_source(tool: str, seed: int) -> None:
    check(tool, seed)
