"""The way of the data can be followed, and a change message does not go back and forth on it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "data_ways.py"


def test_change_message_comes_back_seldom_into_modules_that_it_left() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    found = re.findall(r"^(.+?)  +(\d+) modules +(\d+) returns$", done.stdout, re.MULTILINE)
    returns = {name: int(count) for name, _, count in found}
    assert len(returns) == 7
    # 60 before the rooms, see docs/design/0006-rooms.md.
    assert returns["change messages applied"] <= 30
