"""Statements succeed when executors are killed, blocks are lost or other drivers write, with the
right rows. What attempts that lost have left is no part of the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import behind_writers
import pyarrow as pa
import pytest
from cluster_lives import executors_of
from cluster_settings import cluster_settings
from pyspark.cloudpickle import register_pickle_by_value

import keytide as kt
from keytide.spark.capacity import TASK_SIZE

pytestmark = pytest.mark.cluster

# Executors cannot import this module.
register_pickle_by_value(sys.modules[__name__])

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
OPTIONS = {"bucket": "4", "write.distribution": "none", "write-only": "true"}
ROWS, LAST = 400, 399
Rows = dict[int, int]
EXECUTOR = "CoarseGrainedExecutorBackend"


def once(reached: Path, act: Callable[[], object]) -> Callable[[int], int]:
    """A function of rows that acts in the first process that reaches the last one."""

    def reaching(row: int) -> int:
        if row == LAST:
            try:
                reached.touch(exist_ok=False)
            except FileExistsError:
                return row
            act()
        return row

    return reaching


def kill_executor() -> None:
    """End the JVM above this worker."""
    pid = os.getpid()
    while EXECUTOR not in Path(f"/proc/{pid}/cmdline").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, 9)


def executor_count(spark: Any) -> int:
    """How many executors there are, beside the driver."""
    return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1


@pytest.fixture
def never_replaced(cluster: Any) -> Iterator[None]:
    """A context in which Spark does not replace an executor that was lost."""
    context = cluster.sparkContext._jsc.sc()
    none = cluster.sparkContext._jvm.PythonUtils.toScalaMap({})
    count = executor_count(cluster)
    context.requestTotalExecutors(count - 1, 0, none)
    yield
    context.requestTotalExecutors(count, 0, none)
    until = time.monotonic() + 60
    while executor_count(cluster) < count and time.monotonic() < until:
        time.sleep(0.1)


@pytest.fixture
def lake(cluster: Any, warehouse: str) -> Iterator[Any]:
    size = cluster.conf.get(TASK_SIZE)
    cluster.conf.set(TASK_SIZE, "8 kb")  # a task for each bucket
    yield kt.connect(warehouse, spark=cluster)
    cluster.conf.set(TASK_SIZE, size)


def source(spark: Any) -> Any:
    """The numbers of the rows, in order, and blocks of them that pass through a shuffle."""
    rows = spark.range(0, ROWS, 1, 4).repartition(4, "id")
    return rows.selectExpr("id", "reaching(id) + 1 AS n")


def merge(lake: Any, table: Any, spark: Any) -> None:
    begun = table.merge(source(spark), "target.id = source.id")
    begun.when_matched_update({"n": "source.n"}).when_not_matched_insert_all().execute()


def stream(lake: Any, table: Any, spark: Any) -> None:
    folder = Path(table.uri).parents[2]
    spark.range(0, ROWS, 1, 4).write.parquet(str(folder / "rows"))
    rows = spark.readStream.schema("id bigint").parquet(str(folder / "rows"))
    query = (
        rows.selectExpr("id", "reaching(id) + 1 AS n").writeStream.format("keytide")
        .option("path", table.uri).option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()


def everywhere(rows: Rows) -> Rows:
    return {key: key + 1 for key in rows}


VERBS: dict[str, tuple[Callable[[Any, Any, Any], Any], Callable[[Rows], Rows]]] = {
    "write": (lambda lake, table, spark: table.write(source(spark)), everywhere),
    "overwrite": (lambda lake, table, spark: table.overwrite(source(spark)), everywhere),
    "update": (
        lambda lake, table, spark: lake.sql(f"UPDATE {table.name} SET n = reaching(id) + 1"),
        everywhere,
    ),
    "delete": (
        lambda lake, table, spark: lake.sql(f"DELETE FROM {table.name} WHERE reaching(id) >= 200"),
        lambda rows: {key: n for key, n in rows.items() if key < 200},
    ),
    "merge": (merge, everywhere),
    "stream": (stream, everywhere),
    "append by format": (
        lambda lake, table, spark: (
            source(spark).write.format("keytide").mode("append").save(table.uri)
        ),
        everywhere,
    ),
}


def filled(lake: Any) -> tuple[Any, Rows]:
    table = lake.create_table("d.t", SCHEMA, ["id"], options=OPTIONS)
    rows = dict.fromkeys(range(ROWS), -1)
    table.write([{"id": key, "n": n} for key, n in rows.items()])
    return table, rows


def check(table: Any, expected: Rows) -> None:
    """The rows are those, all files are whole, and the table loses none with its orphans."""
    for _ in range(2):
        shown = table.scan().to_pylist()
        assert {row["id"]: row["n"] for row in shown} == expected
        assert len(shown) == len(expected)
        assert table.verify().is_healthy
        time.sleep(0.01)
        table.remove_orphan_files(older_than=int(time.time() * 1000))


@pytest.mark.one_in(7)
@pytest.mark.parametrize("verb", VERBS)
def test_an_executor_that_is_lost_for_good_costs_no_row(
    verb: str, lake: Any, cluster: Any, never_replaced: None, tmp_path: Path
) -> None:
    table, before = filled(lake)
    reached = tmp_path / "reached"
    cluster.udf.register("reaching", once(reached, kill_executor), "long")
    statement, model = VERBS[verb]
    statement(lake, table, cluster)
    assert reached.exists()
    assert executor_count(cluster) == 1
    check(table, model(before))


@contextmanager
def an_executor_killed(spark: Any, table: Any) -> Iterator[None]:
    """A context in which an executor is killed once the first file of data has appeared."""
    driver = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    before, killed = files_of(table), list[int]()

    def kill() -> None:
        until = time.monotonic() + 60
        while files_of(table) == before and time.monotonic() < until:
            time.sleep(0.01)
        killed.append(next(executors_of(driver)))
        os.kill(killed[0], 9)

    thread = threading.Thread(target=kill)
    thread.start()
    yield
    assert killed, "the statement ended before the executor did"
    thread.join()


def files_of(table: Any) -> set[Path]:
    return set(Path(table.uri).glob("bucket-*/*"))


def test_lost_blocks_of_a_shuffle_keep_the_order_of_rows(cluster: Any, warehouse: str) -> None:
    options = {"bucket": "4", "write.distribution": "hash", "write-buffer-size": "4 kb"}
    table = kt.connect(warehouse).create_table("t", SCHEMA, ["id"], options=options)
    with an_executor_killed(cluster, table):
        table.write(cluster.range(0, 20_000, 1, 4).selectExpr("id % 997 AS id", "id AS n"))
    check(table, {number % 997: number for number in range(20_000)})


def test_a_compaction_that_loses_an_executor_keeps_all_rows(lake: Any, cluster: Any) -> None:
    options = {"bucket": "8", "write-only": "true"}
    table = lake.create_table("d.t", SCHEMA, ["id"], options=options)
    for turn in range(3):
        table.write(cluster.range(0, 40_000, 1, 4).selectExpr("id", f"id + {turn} AS n"))
    with an_executor_killed(cluster, table):
        table.compact(full=True)
    check(table, {number: number + 2 for number in range(40_000)})


def test_a_feed_of_files_that_loses_an_executor_applies_each_change_once(
    lake: Any, cluster: Any, tmp_path: Path
) -> None:
    options = {"bucket": "4", "merge-engine": "aggregation", "fields.n.aggregate-function": "sum"}
    table = lake.create_table("d.t", SCHEMA, ["id"], options=options)
    (tmp_path / "feed").mkdir()
    for number in range(8):
        lines = [json.dumps({"id": row % 500, "n": 1}) for row in range(5_000)]
        (tmp_path / "feed" / f"{number}.jsonl").write_text("\n".join(lines))
    with an_executor_killed(cluster, table):
        lake.ingest("d.t", str(tmp_path / "feed"), format="json", max_files_per_batch=4)
    check(table, dict.fromkeys(range(500), 80))


def write_beside(folder: Path, first: str) -> None:
    """What one of several drivers does: it writes its own keys, and compacts all."""
    spark = kt.spark.session({**cluster_settings(folder / first), "spark.master": "local[1]"})
    table = kt.connect(str(folder), spark=spark).table("d.t")
    (folder / f"ready-{first}").touch()
    until = time.monotonic() + 120
    while len(list(folder.glob("ready-*"))) < DRIVERS and time.monotonic() < until:
        time.sleep(0.01)
    for turn in range(TURNS):
        rows = spark.range(int(first), ROWS, DRIVERS, 2).selectExpr("id", f"id + {turn} AS n")
        table.write(rows)
        table.compact(full=turn == TURNS - 1)
    spark.stop()


DRIVERS, TURNS = 2, 3


def started(act: Callable[..., None], *arguments: str) -> subprocess.Popen[str]:
    """Another driver."""
    script = (
        "import sys; from pathlib import Path; import test_cluster_losses as all\n"
        f"all.{act.__name__}(Path(sys.argv[1]), *sys.argv[2:])"
    )
    paths = behind_writers.python_path(*sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], cwd=arguments[0],
        env={**os.environ, "PYTHONPATH": paths, "SPARK_WORKER_DIR": f"{arguments[0]}/work"},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def end(driver: subprocess.Popen[str]) -> None:
    _, said = driver.communicate(timeout=250)
    assert driver.returncode == 0, said


@pytest.mark.takes_turns
def test_drivers_that_write_at_once_lose_no_row(warehouse: str) -> None:
    table, _ = filled(kt.connect(warehouse))
    drivers = [started(write_beside, warehouse, str(first)) for first in range(DRIVERS)]
    for driver in drivers:
        end(driver)
    check(table, {key: key + TURNS - 1 for key in range(ROWS)})
