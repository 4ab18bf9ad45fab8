"""Reads on Sail, a server for Spark Connect without a JVM. `make sail` installs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[2] / ".venv-sail" / "bin" / "python"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="`make sail` installs Sail")


def test_each_scan_shows_all_rows_or_names_the_file_that_sail_does_not_find(tmp_path: Path) -> None:
    client = Path(__file__).with_name("sail_client.py")
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [str(PYTHON), str(client), str(tmp_path)],
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-4000:]
    found = json.loads(lines[0].removeprefix("FOUND "))
    for name in ("a%20b", "a[1]b"):
        (refused,) = found.pop(name)
        assert "would read" in refused
        assert f"{tmp_path}/" in refused
    assert set(map(tuple, found.values())) == {(100, 7, 150, 150, 150)}
