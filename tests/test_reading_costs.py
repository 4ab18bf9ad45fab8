"""What a reader meets in the source may become less, and never more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "reading_costs.py"

COUNTS = {
    "modules": 358,
    "code_lines": 77_856,
    "import_lines": 7_868,
    "functions": 8_156,
    "longest_function": 51,
    "one_liners_percent": 29,
    "used_once_percent": 56,
    "lone_modules": 33,
    "names_in_two_packages": 21,
}
"""At most so many. Lower a limit when the count has fallen, and never raise one."""

MEDIANS = {"lines_of_a_module": 333.0, "lines_of_a_function": 4}
"""At least so many."""

WAYS = {
    # At most so many modules, functions, and jumps between modules.
    "upsert": (56, 556, 348),
    "scan": (36, 234, 151),
    "get": (40, 313, 196),
    "DELETE": (90, 999, 781),
    "DELETE in SQL": (109, 1_135, 887),
    "MERGE in SQL": (107, 1_085, 797),
    "SELECT": (60, 455, 299),
    "compaction": (63, 639, 431),
    "auto_cdc": (65, 650, 424),
    "auto_cdc, histories": (75, 777, 520),
    "changes": (43, 329, 231),
    "why": (44, 351, 219),
    "external scan": (35, 235, 139),
    "upsert and publish": (80, 1_031, 782),
}


@cache
def printed() -> dict[str, Any]:
    # What is compacted behind a writer may or may not run while an operation is followed.
    plain = {name: text for name, text in os.environ.items() if name != "KEYTIDE_COMPACTION"}
    done = subprocess.run(
        [sys.executable, SCRIPT, "--ways"], env=plain, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_count_and_every_way_has_its_limit() -> None:
    assert printed().keys() == {*COUNTS, *MEDIANS, *WAYS}


@pytest.mark.parametrize("count", COUNTS)
def test_count_is_no_higher_than_it_may_be(count: str) -> None:
    assert printed()[count] <= COUNTS[count]


@pytest.mark.parametrize("median", MEDIANS)
def test_median_is_no_lower_than_it_may_be(median: str) -> None:
    assert printed()[median] >= MEDIANS[median]


@pytest.mark.parametrize("way", WAYS)
def test_way_of_a_reader_is_no_longer_than_it_may_be(way: str) -> None:
    most = dict(zip(("modules", "functions", "jumps"), WAYS[way], strict=True))
    assert {what: n for what, n in printed()[way].items() if n > most[what]} == {}
