"""A driver that dies inside a commit loses and repeats nothing when the query is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import behind_writers
import pyarrow as pa
import pytest
from crash_query import run_to_the_end

import keytide as kt

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 30

# Runs at the start of every Python of the query: driver, daemon and workers. The process that is
# about to make a certain snapshot, or has just made it, kills all processes up to the driver.
CRASH = """
import contextlib, os, signal

with contextlib.suppress(ImportError):
    import behind_writers  # the one module that begins with Python is this
    behind_writers.begin()

link = os.link

def crash(flag):
    with open(flag, "x"):
        pass
    chain, pid = [], os.getpid()
    while pid != int(os.environ["DRIVER_PID"]):
        chain.append(pid)
        with open(f"/proc/{pid}/stat") as stat:
            pid = int(stat.read().rsplit(")", 1)[1].split()[1])
    for victim in [pid, *reversed(chain)]:
        os.kill(victim, signal.SIGKILL)

def link_or_crash(source, target, **options):
    moments = os.environ.get("CRASHES", "").split()
    name = os.path.basename(os.fspath(target))
    flags = {moment: os.path.join(os.environ["FLAGS"], f"{moment}:{name}")
             for moment in ("before", "after") if f"{moment}:{name}" in moments}
    if "before" in flags and not os.path.exists(flags["before"]):
        crash(flags["before"])
    link(source, target, **options)
    if "after" in flags and not os.path.exists(flags["after"]):
        crash(flags["after"])

if "CRASHES" in os.environ:
    os.link = link_or_crash
"""

DRIVER = """
import os, sys

os.environ["DRIVER_PID"] = str(os.getpid())
import keytide as kt

from crash_query import run_to_the_end

spark = kt.spark.session(
    master="local[2]", spark_driver_memory="512m", spark_sql_shuffle_partitions=2
)
run_to_the_end(spark, *sys.argv[1:])
"""


def make_feed(folder: Path, files: int) -> dict[int, int]:
    """One number a row; the oracle counts them up, so that a batch applied twice shows."""
    folder.mkdir()
    sums: dict[int, int] = {}
    for number in range(files):
        keys = range(number, number + ROWS)
        sums.update({key: sums.get(key, 0) + number for key in keys})
        lines = [f'{{"id": {key}, "n": {number}}}' for key in keys]
        (folder / f"part-{number}.json").write_text("\n".join(lines))
    return sums


MERGING = {"merge-engine": "aggregation", "fields.n.aggregate-function": "sum", "bucket": "2"}
INDEXED = {"upsert.mode": "partial", "fields.n.aggregate-function": "sum", "bucket": "2"}
TEN_TIMES = [f"{'before' if n % 2 else 'after'}:snapshot-{n}" for n in range(2, 12)]


@pytest.mark.takes_turns
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("way", "crashes", "options"),
    [
        ("sink", ["after:snapshot-2"], MERGING),
        pytest.param(
            "sink", ["before:snapshot-2", "after:snapshot-3"], MERGING, marks=pytest.mark.soak
        ),
        pytest.param("foreachBatch", ["after:snapshot-2"], MERGING, marks=pytest.mark.soak),
        pytest.param("sink", TEN_TIMES, INDEXED, marks=pytest.mark.soak),
        pytest.param("foreachBatch", TEN_TIMES, INDEXED, marks=pytest.mark.soak),
    ],
    ids=["sink", "sink, twice", "foreachBatch", "index, ten times", "index, foreachBatch"],
)
def test_driver_killed_inside_commits_applies_each_batch_once(
    way: str, crashes: list[str], options: dict[str, str], tmp_path: Path, warehouse: str,
    spark: Any,
) -> None:  # fmt: skip
    files = 1 + len(TEN_TIMES) if options is INDEXED else 3
    expected = make_feed(tmp_path / "feed", files)
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    table = kt.connect(warehouse).create_table("sums", schema, ["id"], options=options)
    (tmp_path / "flags").mkdir()
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(CRASH)
    path = behind_writers.python_path(str(Path(kt.__file__).parents[1]), str(Path(__file__).parent))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "hook"), path]),
        "FLAGS": str(tmp_path / "flags"),
        "CRASHES": " ".join(crashes),
    }
    arguments = [way, str(tmp_path / "feed"), table.uri, str(tmp_path / "checkpoint")]

    for _ in crashes:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=250,
            cwd=tmp_path,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    run_to_the_end(spark, *arguments)

    assert sorted(flag.name for flag in (tmp_path / "flags").iterdir()) == sorted(crashes)
    assert {row["id"]: row["n"] for row in table.scan().to_pylist()} == expected
    assert [s.commit_identifier for s in table.snapshots()] == list(range(files))
    assert table.verify().is_healthy
