"""`KEYTIDE_COMPACTION=behind` reaches the processes that a process begins, and their counts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt

PARENT = """
import subprocess, sys
import behind_writers
behind_writers.begin()
child = "import keytide as kt; t = kt.open_table(%r); t.write([{'k': 1}]); t.write([{'k': 2}])"
subprocess.run([sys.executable, "-c", child % sys.argv[1]], check=True)
print(behind_writers.report())
"""


@pytest.mark.takes_turns
def test_all_is_compacted_behind_the_writers_of_a_child(warehouse: str) -> None:
    options = {"bucket": "1", "num-sorted-run.compaction-trigger": "2"}
    schema = pa.schema({"k": pa.int64()})
    table = kt.connect(warehouse).create_table("t", schema, ["k"], options=options)
    path = os.pathsep.join([str(Path(kt.__file__).parents[1]), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": path, "KEYTIDE_COMPACTION": "behind"}
    environment.pop("KEYTIDE_COMPACTIONS_BEHIND", None)
    done = subprocess.run(
        [sys.executable, "-c", PARENT, table.uri],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "compactions behind writers: 1 begun, 1 commits, 0 failed\n"
