"""A folder that executors do not share is refused, and nothing is committed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.errors import SetupError

pytestmark = pytest.mark.cluster

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
ROWS = [{"id": number, "n": 0} for number in range(50)]


@pytest.fixture
def unshared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A warehouse that is another folder in each process."""
    if not Path("/proc/self/cwd").exists():
        pytest.skip("this system has no /proc")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "warehouse").mkdir()
    return "/proc/self/cwd/warehouse"


def changes(spark: Any) -> Any:
    return spark.range(0, 100, 1, 4).selectExpr("id", "id + 1 AS n")


def merge(lake: Any, table: Any, spark: Any) -> None:
    begun = table.merge(changes(spark), "target.id = source.id")
    begun.when_matched_update({"n": "source.n"}).when_not_matched_insert_all().execute()


VERBS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "write": lambda lake, table, spark: table.write(changes(spark)),
    "overwrite": lambda lake, table, spark: table.overwrite(changes(spark)),
    "update": lambda lake, table, spark: lake.sql(f"UPDATE {table.name} SET n = n + id"),
    "delete": lambda lake, table, spark: lake.sql(f"DELETE FROM {table.name} WHERE n + id > 3"),
    "merge": merge,
    "compact": lambda lake, table, spark: table.compact(full=True),
    "read merged": lambda lake, table, spark: table.scan().to_spark(spark).collect(),
    "read plain": lambda lake, table, spark: table.scan().to_spark(spark).collect(),
    "read changes": lambda lake, table, spark: table.changes(0).to_spark(spark).collect(),
    "auto_cdc": lambda lake, table, spark: lake.auto_cdc("d.new", changes(spark), ["id"], "n"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_executors_do_not_share_is_refused(
    verb: str, unshared: str, cluster: Any
) -> None:
    lake = kt.connect(unshared, spark=cluster)
    options = {"bucket": "2", "write-only": "true"}
    table = lake.create_table("d.t", SCHEMA, ["id"], options=options)
    table.write(ROWS)
    if verb != "read plain":
        table.write(ROWS)
    with pytest.raises(SetupError) as refused:
        VERBS[verb](lake, table, cluster)
    assert f"{unshared}/d.db/" in str(refused.value)
    assert "mounts at the same path, or in an object store" in str(refused.value)
    assert sorted(table.scan().to_pylist(), key=lambda row: row["id"]) == ROWS
    assert len(table.snapshots()) == (1 if verb == "read plain" else 2)


def run(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )


UNSHARED = """
import keytide as kt, pyarrow as pa
from keytide.errors import SetupError
spark = kt.spark.session({{
    "spark.master": "local-cluster[1,1,900]", "spark.executor.memory": "700m",
    "spark.driver.memory": "700m", "spark.pyspark.python": {worker!r},
    "spark.keytide.driver-work.max-size": "0",
}})
lake = kt.connect({warehouse!r}, spark=spark)
schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
table = lake.create_table("d.t", schema, ["id"], options={{"bucket": "2"}})
rows = spark.range(0, 100, 1, 2).selectExpr("id", "id + 1 AS n")
try:
    table.write(rows)
except SetupError as error:
    print("refused", error)
print("rows", table.scan().count())
spark.stop()
"""


def test_workers_with_another_disk_are_refused(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    worker = tmp_path / "worker"
    mounted = f"mount -t tmpfs none {warehouse}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mounted], check=False).returncode:
        pytest.skip("this account must not mount file systems")
    worker.write_text(
        f'#!/bin/sh\nexec unshare -m sh -c \'{mounted}; exec {sys.executable} "$@"\' sh "$@"\n'
    )
    worker.chmod(0o755)
    done = run(UNSHARED.format(worker=str(worker), warehouse=str(warehouse)), tmp_path)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["refused", "rows"], done.stderr
    assert os.uname().nodename in lines[0]
    assert str(warehouse) in lines[0]
    assert lines[-1] == "rows 0"
