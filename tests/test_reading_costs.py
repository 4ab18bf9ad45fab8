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
    "modules": 795,
    "code_lines": 82_606,
    "import_lines": 10_682,
    "functions": 8_579,
    "longest_function": 52,
    "one_liners_percent": 29,
    "used_once_percent": 61,
    "lone_modules": 155,
    "names_in_two_packages": 106,
}
"""At most so many. Lower a limit when the count has fallen, and never raise one."""

MEDIANS = {"lines_of_a_module": 113, "lines_of_a_function": 4}
"""At least so many."""

WAYS = {
    # At most so many modules, functions, and jumps between modules.
    "upsert": (89, 589, 388),
    "scan": (58, 248, 187),
    "get": (69, 336, 236),
    "DELETE": (175, 1_159, 970),
    "DELETE in SQL": (177, 1_196, 1_001),
    "MERGE in SQL": (175, 1_147, 905),
    "SELECT": (97, 485, 348),
    "compaction": (98, 678, 482),
    "auto_cdc": (105, 686, 473),
    "auto_cdc, histories": (125, 823, 598),
    "changes": (68, 357, 271),
    "why": (75, 383, 261),
    "external scan": (50, 248, 176),
    "upsert and publish": (141, 1_092, 897),
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
