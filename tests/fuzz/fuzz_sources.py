"""Feeds of a simulated source by every tool, in order and shuffled: the rows of the source."""

from __future__ import annotations

import sys
from pathlib import Path

from fuzz_case import Case

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from simulated_feed import check  # behind the path of the tests of feeds
from simulated_source import TOOLS

__all__ = ["run"]


def run(case: Case) -> None:
    """One history, as each tool writes it."""
    seed = case.chance.randrange(2**32)
    for tool in TOOLS:
        check(tool, seed, length=case.chance.choice([3, 12, 30]))
        case.count(tool)
