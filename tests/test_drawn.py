"""Of cases that take turns each one has its day."""

from __future__ import annotations

import pytest

from drawn import drawn


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("share", [1, 2, 4, 6])
def test_each_case_runs_once_in_so_many_days(share: int, count: int) -> None:
    names = [f"test[{number}]" for number in range(count)]
    days = [drawn(names, share, day) for day in range(min(share, count))]
    assert sorted(name for day in days for name in day) == sorted(names)


@pytest.mark.parametrize("share", [1, 2, 4, 6])
def test_no_day_is_without_a_case(share: int) -> None:
    assert all(drawn(["a", "b", "c"], share, day) for day in range(738_000, 738_020))
