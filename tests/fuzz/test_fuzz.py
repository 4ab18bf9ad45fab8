"""A short piece of what `make fuzz` does for hours, always the same."""

from __future__ import annotations

import pytest
from fuzz_run import run_case

SEED = 1


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("is_far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize(
    ("part", "numbers"),
    [
        ("tables", range(2)),
        ("calls", range(3)),
        ("changes", range(2)),
        ("sql", range(1)),
        ("queries", range(2)),
        ("feeds", range(2)),
        ("files", range(3)),
        ("lives", range(3)),
        ("others", range(3)),
        ("published", range(2, 6)),
    ],
)
def test_cases_of_the_fuzzer_find_nothing(part: str, numbers: range, is_far: bool) -> None:
    cases = [run_case(part, SEED, number, is_far=is_far) for number in numbers]

    assert [finding for case in cases for finding in case.findings] == []
    assert sum(case.counts.get("done", 0) for case in cases) > 0
