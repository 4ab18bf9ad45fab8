"""The ways of the data can be followed: few modules, few returns, few looks at the store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "data_ways.py"

LIMITS = {
    # At most so many modules, returns to one that was left, and looks at the store. A module that
    # has several steps of an operation is entered again for each that follows another module's.
    "a Polars frame written": (21, 10, 11),
    "a Polars frame scanned": (14, 12, 2),
    "a pandas frame written": (21, 10, 11),
    "a pandas frame scanned": (14, 15, 2),
    "an Arrow table written": (21, 10, 11),
    "an Arrow table scanned": (14, 15, 2),
    # 60 returns before the rooms, see docs/design/0006-rooms.md. The place of a change in the order
    # of its source is a room of its own.
    "change messages applied": (27, 36, 3),
    "DELETE by key": (30, 44, 11),
    "DELETE in SQL": (30, 44, 11),
    "SELECT": (19, 32, 4),
    "changes": (9, 4, 2),
    "compaction": (20, 28, 15),
}


@cache
def followed() -> dict[str, tuple[int, int, int]]:
    # The ways of one thread: what is compacted behind a writer comes at any place of them.
    plain = {name: text for name, text in os.environ.items() if name != "KEYTIDE_COMPACTION"}
    done = subprocess.run(
        [sys.executable, SCRIPT], env=plain, capture_output=True, text=True, check=True
    )
    found = re.findall(r"^(.+?)  +(\d+) modules +(\d+) returns +(\d+) looks$", done.stdout, re.M)
    return {name: (int(modules), int(back), int(looks)) for name, modules, back, looks in found}


def test_every_way_has_its_limits() -> None:
    assert followed().keys() == LIMITS.keys()


@pytest.mark.parametrize("way", LIMITS)
def test_way_is_no_longer_than_it_may_be(way: str) -> None:
    found = dict(zip(("modules", "returns", "looks"), followed()[way], strict=True))
    most = dict(zip(("modules", "returns", "looks"), LIMITS[way], strict=True))
    assert {what: n for what, n in found.items() if n > most[what]} == {}
