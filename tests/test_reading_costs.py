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
    "modules": 542,
    "code_lines": 79_844,
    "import_lines": 8_875,
    "functions": 8_579,
    "longest_function": 51,
    "one_liners_percent": 29,
    "used_once_percent": 61,
    "lone_modules": 83,
    "names_in_two_packages": 73,
}
"""At most so many. Lower a limit when the count has fallen, and never raise one."""

MEDIANS = {"lines_of_a_module": 170.0, "lines_of_a_function": 4}
"""At least so many."""

WAYS = {
    # At most so many modules, functions, and jumps between modules.
    "upsert": (70, 574, 358),
    "scan": (42, 242, 155),
    "get": (50, 321, 201),
    "DELETE": (135, 1_142, 877),
    "DELETE in SQL": (137, 1_179, 902),
    "MERGE in SQL": (135, 1_129, 811),
    "SELECT": (76, 473, 303),
    "compaction": (79, 663, 443),
    "auto_cdc": (85, 671, 437),
    "auto_cdc, histories": (96, 804, 535),
    "changes": (55, 341, 241),
    "why": (55, 364, 224),
    "external scan": (40, 240, 141),
    "upsert and publish": (106, 1_077, 811),
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
