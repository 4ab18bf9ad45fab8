"""A standalone master and two workers on addresses of their own, as hosts have them.

Spark starts a second attempt of a slow task only on another host, so `local-cluster` never does.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from keytide.spark.capacity import SETTING, TASK_SIZE, capacity_of
from new_tables import fields_of
from table_rows import dicts

pytestmark = pytest.mark.standalone

MASTER, HOSTS = "127.0.0.1", ("127.0.0.2", "127.0.0.3")
ROWS = 400
SCHEMA = fields_of("id BIGINT, n BIGINT")


def free_port() -> int:
    with socket.socket() as free:
        free.bind((MASTER, 0))
        return int(free.getsockname()[1])


@contextmanager
def started(main: str, *arguments: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Spark's, whose log is in a folder. It ends with the block."""
    import pyspark

    command = [str(Path(pyspark.__path__[0], "bin/spark-class")), f"org.apache.spark.deploy.{main}"]
    with Path(folder, f"{arguments[1]}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *arguments], stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex((MASTER, port)) == 0


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder, port = tmp_path_factory.mktemp("standalone"), free_port()
    with ExitStack() as stack:
        stack.enter_context(
            started("master.Master", "--host", MASTER, "--port", str(port), "--webui-port", "0",
                    folder=folder)
        )  # fmt: skip
        until = time.monotonic() + 60
        while not answers(port):
            assert time.monotonic() < until, (folder / f"{MASTER}.log").read_text()
            time.sleep(0.2)
        for host in HOSTS:
            stack.enter_context(
                started("worker.Worker", "--host", host, "--webui-port", "0", "--cores", "1",
                        "--memory", "1g", "--work-dir", str(folder / host),
                        f"spark://{MASTER}:{port}", folder=folder)
            )  # fmt: skip
        spark = kt.spark.session({
            "spark.master": f"spark://{MASTER}:{port}",
            "spark.driver.host": MASTER,
            "spark.executor.memory": "900m",
            "spark.cores.max": "2",
            "spark.sql.shuffle.partitions": "4",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "1s",
            "spark.python.task.killTimeout": "200ms",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            SETTING: "0",
            TASK_SIZE: "8 kb",
        })  # fmt: skip
        yield spark
        spark.stop()


def test_a_session_says_what_the_workers_can_run(session: Any) -> None:
    session.range(0, 8, 1, 8).count()
    capacity = capacity_of(session)
    assert (capacity.slots, capacity.slots_per_process) == (2, 1)


def slow_once(marks: Path) -> Callable[[int], int]:
    """A function of the rows. At the last of them, the first attempt of its task stays for long."""

    def value(row: int) -> int:
        if row == ROWS - 1:
            try:
                (marks / "first").touch(exist_ok=False)
            except FileExistsError:
                (marks / "second").touch()
            else:
                time.sleep(100)
        return row + 1

    return value


VERBS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "write": lambda lake, table, rows: table.write(rows),
    "overwrite": lambda lake, table, rows: table.overwrite(rows),
    "format": lambda lake, table, rows: (
        rows.write.format("keytide").mode("append").save(table.uri)
    ),
    "update": lambda lake, table, rows: lake.sql(f"UPDATE {table.name} SET n = valued(id)"),
    "merge": lambda lake, table, rows: (
        table.merge(rows, "target.id = source.id")
        .when_matched_update({"n": "source.n"}).when_not_matched_insert_all().execute()
    ),
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_a_second_attempt_of_a_slow_task_writes_each_row_once(
    verb: str, session: Any, tmp_path: Path
) -> None:
    lake = kt.connect(tmp_path / "lake", spark=session)
    table = lake.create_table("d.t", SCHEMA, ["id"], options={"bucket": "4"})
    table.write([{"id": number, "n": -1} for number in range(ROWS)])
    session.udf.register("valued", slow_once(tmp_path), "bigint")
    started_at = time.monotonic()
    VERBS[verb](lake, table, session.range(0, ROWS, 1, 4).selectExpr("id", "valued(id) AS n"))
    assert time.monotonic() - started_at < 90, "the slow attempt was waited for"
    assert (tmp_path / "second").exists(), "Spark started no second attempt"
    shown = dicts(table, by="id")
    assert shown == [{"id": number, "n": number + 1} for number in range(ROWS)]
    assert sorted(map(tuple, table.scan().to_spark(session).collect())) == [
        (number, number + 1) for number in range(ROWS)
    ]
    time.sleep(1)
    table.remove_orphan_files(older_than=int(time.time() * 1000))
    assert table.scan().count() == ROWS
