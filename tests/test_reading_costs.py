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
    "modules": 347,
    "code_lines": 75_368,
    "import_lines": 7_631,
    "functions": 6_727,
    "longest_function": 49,
    "one_liners_percent": 29,
    "used_once_percent": 41,
    "lone_modules": 30,
    "names_in_two_packages": 21,
}
"""At most so many. A limit falls with its count, and rises only for a new capability."""

MEDIANS = {"lines_of_a_module": 336, "lines_of_a_function": 4}
"""At least so many."""

WAYS = {
    # At most so many modules, functions, and jumps between modules.
    "upsert": (51, 513, 345),
    "scan": (33, 211, 144),
    "get": (26, 132, 90),
    "DELETE": (77, 801, 635),
    "DELETE in SQL": (96, 911, 734),
    "MERGE in SQL": (101, 966, 778),
    "SELECT": (56, 404, 292),
    "compaction": (58, 576, 415),
    "auto_cdc": (60, 586, 418),
    "auto_cdc, histories": (69, 695, 508),
    "changes": (40, 295, 224),
    "why": (39, 306, 209),
    "external scan": (34, 206, 128),
    "upsert and publish": (77, 934, 769),
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
