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
    "modules": 799,
    "code_lines": 82_622,
    "import_lines": 10_698,
    "functions": 8_579,
    "longest_function": 52,
    "one_liners_percent": 29,
    "used_once_percent": 61,
    "lone_modules": 155,
    "names_in_two_packages": 111,
}
"""At most so many. Lower a limit when the count has fallen, and never raise one."""

MEDIANS = {"lines_of_a_module": 112, "lines_of_a_function": 4}
"""At least so many."""

WAYS = {
    # At most so many modules, functions, and jumps between modules.
    "upsert": (84, 574, 365),
    "scan": (54, 242, 166),
    "get": (65, 321, 215),
    "DELETE": (169, 1_142, 908),
    "DELETE in SQL": (171, 1_179, 934),
    "MERGE in SQL": (168, 1_129, 850),
    "SELECT": (92, 473, 322),
    "compaction": (93, 663, 448),
    "auto_cdc": (100, 671, 450),
    "auto_cdc, histories": (118, 804, 551),
    "changes": (62, 341, 242),
    "why": (70, 364, 236),
    "external scan": (46, 240, 149),
    "upsert and publish": (136, 1_077, 829),
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
