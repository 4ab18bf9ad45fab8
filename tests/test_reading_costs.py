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
    "modules": 350,
    "code_lines": 76_444,
    "import_lines": 7_760,
    "functions": 6_786,
    "longest_function": 49,
    "one_liners_percent": 28,
    "used_once_percent": 41,
    "lone_modules": 29,
    "names_in_two_packages": 21,
}
"""At most so many. A limit falls with its count, and rises only for a new capability."""

MEDIANS = {"lines_of_a_module": 340.5, "lines_of_a_function": 4}
"""At least so many."""

WAYS = {
    # At most so many modules, functions, and jumps between modules.
    "upsert": (50, 511, 348),
    "scan": (33, 211, 144),
    "get": (26, 132, 90),
    "DELETE": (74, 807, 635),
    "DELETE in SQL": (94, 916, 733),
    "MERGE in SQL": (98, 966, 774),
    "SELECT": (55, 406, 289),
    "compaction": (56, 573, 417),
    "auto_cdc": (57, 584, 414),
    "auto_cdc, histories": (68, 693, 505),
    "changes": (40, 295, 224),
    "why": (39, 307, 209),
    "external scan": (33, 206, 127),
    "upsert and publish": (76, 930, 771),
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
