"""A task that fails after it wrote is run again by Spark: its work counts once.

Scenario C7 of engines with row-level changes. Every task of every statement fails on its first
attempt, once it has written its files, and succeeds on the second one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import keytide as kt

pytestmark = [pytest.mark.spark, pytest.mark.driver, pytest.mark.slow, pytest.mark.soak]

DRIVER = """
import json, sys, time
from pathlib import Path

import keytide as kt
from keytide.spark import runner
from pyspark import TaskContext

warehouse, kind = sys.argv[1:]

def failing_once(real):
    def attempt(*args):
        outcome = real(*args)
        context = TaskContext.get()
        if context.attemptNumber() == 0:
            Path(f"{warehouse}/failed-{time.time_ns()}-{context.partitionId()}").touch()
            raise RuntimeError("fails on the first attempt")
        return outcome
    return attempt

# Functions of this script travel to the workers as they are.
runner.feed_here = failing_once(runner.feed_here)
runner.run_here = failing_once(runner.run_here)

spark = kt.spark.session(
    # It is tasks that fail here, and more than one in most statements.
    {"spark.keytide.driver-work.max-size": "0", "spark.keytide.task-size": "1 kb"},
    master="local[2,3]", spark_driver_memory="512m", spark_log_level="OFF",
)
lake = kt.connect(warehouse, spark=spark)
key, options = {
    "keyed": (["id"], {"bucket": "2"}),
    "marked": ([], {"deletion-vectors.enabled": "true"}),
    "written again": ([], {"deletion-vectors.enabled": "false"}),
}[kind]
fields = [kt.Field(-1, n, kt.parse_sql_type(t)) for n, t in {"id": "INT", "n": "INT"}.items()]
table = lake.create_table("t", fields, key, options=options | {"write-only": "true"})
table.write(spark.range(0, 40, 1, 3).selectExpr("cast(id as int) id", "cast(id as int) n"))
counts = {}
for text in json.loads(sys.stdin.read()):
    counts[text] = lake.sql(text).row_count
rows = sorted((row["id"], row["n"]) for row in table.scan().to_pylist())
print(json.dumps([counts, rows]))
"""

STATEMENTS = {
    "INSERT INTO t SELECT id + 40, n FROM t WHERE id < 10": 10,
    "DELETE FROM t WHERE id < 5": 5,
    "DELETE FROM t WHERE id % 10 = 7": 5,
    "UPDATE t SET n = n + 100 WHERE n % 2 = 0": 22,
    """MERGE INTO t USING (SELECT id + 1 AS id, n FROM t WHERE id >= 45) s ON t.id = s.id
       WHEN MATCHED THEN UPDATE SET n = t.n + 1000 WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.n)
    """: 4,
}


def expected() -> dict[int, int]:
    """What the statements make of a dict."""
    rows = {i: i for i in range(40)} | {i + 40: i for i in range(10)}
    rows = {i: n for i, n in rows.items() if i >= 5 and i % 10 != 7}
    rows = {i: n + 100 if n % 2 == 0 else n for i, n in rows.items()}
    source = {i + 1: n for i, n in rows.items() if i >= 45}
    return rows | {i: rows[i] + 1000 if i in rows else n for i, n in source.items()}


def run(warehouse: str, kind: str, statements: list[str]) -> tuple[dict[str, int], dict[int, int]]:
    """Run statements in a session that tries tasks again; gives what they count, and the rows."""
    command = [sys.executable, "-c", DRIVER, warehouse, kind]
    asked = json.dumps(statements)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    counts, rows = json.loads(done.stdout.splitlines()[-1])
    assert len({i for i, _ in rows}) == len(rows)
    return counts, dict(rows)


@pytest.mark.parametrize("kind", ["keyed", "marked", "written again"])
def test_work_of_tasks_that_fail_after_they_wrote_counts_once(warehouse: str, kind: str) -> None:
    counts, rows = run(warehouse, kind, list(STATEMENTS))
    assert len(list(Path(warehouse).glob("failed-*"))) > len(STATEMENTS)
    assert counts == STATEMENTS
    assert rows == expected()
    left_to_the_cleaner(kt.connect(warehouse).table("t"))


def left_to_the_cleaner(table: kt.Table) -> None:
    """The files of failed attempts are named by nobody, and go without harm to the table."""
    before = keys_of(table)
    removed = table.remove_orphan_files(older_than=int(time.time() * 1000), dry_run=False)
    assert removed.deleted
    assert {path.split("/")[0] for path in removed.paths} <= {"bucket-0", "bucket-1", "index"}
    assert keys_of(table) == before
    assert table.remove_orphan_files(older_than=int(time.time() * 1000)).files == 0
    assert table.verify().findings == ()


def keys_of(table: kt.Table) -> list[int]:
    return sorted(row["id"] for row in table.scan().to_pylist())
