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
from table_rows import dicts

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


@pytest.mark.one_in(3)
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
    assert dicts(table, by="id") == ROWS
    assert len(table.snapshots()) == (1 if verb == "read plain" else 2)


def test_workers_with_another_disk_are_refused(cluster: Any, workers: Any, warehouse: str) -> None:
    mounted = f"mount -t tmpfs none {warehouse}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mounted], check=False).returncode:
        pytest.skip("this account must not mount file systems")
    lake = kt.connect(warehouse, spark=cluster)
    table = lake.create_table("d.t", SCHEMA, ["id"], options={"bucket": "2"})
    with (
        workers(f'exec unshare -m sh -c \'{mounted}; exec {sys.executable} "$@"\' sh "$@"'),
        pytest.raises(SetupError, match=os.uname().nodename) as refused,
    ):
        table.write(changes(cluster))
    assert warehouse in str(refused.value)
    assert table.scan().count() == 0
