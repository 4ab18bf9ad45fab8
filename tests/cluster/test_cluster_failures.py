"""A statement that fails on executors leaves no file, and the table as it was."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.spark.capacity import TASK_SIZE
from keytide.spark.runner import Cluster
from keytide.store import open_store
from table_rows import dicts

pytestmark = pytest.mark.cluster

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
OPTIONS = {"bucket": "4", "write.distribution": "none", "write-only": "true"}
ROWS, LAST = 400, 399


class Place:
    """Where a statement fails: what happens to the task with the last row."""

    def __init__(self, spark: Any, table: Any) -> None:
        self.spark, self.table = spark, table

    reason = ""
    """What the error says."""

    on_last: Callable[[int], object]
    """What the task does with each row."""

    @contextmanager
    def around(self) -> Iterator[None]:
        """What happens in the driver meanwhile."""
        yield


class SparkError(Place):
    """The task raises an error that is not of Keytide."""

    reason = "ZeroDivisionError"
    on_last = staticmethod(lambda row: 1 // (row - LAST))


class WorkerDies(Place):
    """The process of the task ends, at every attempt."""

    reason = "Python worker exited unexpectedly"
    on_last = staticmethod(lambda row: row != LAST or os.kill(os.getpid(), 9))


def stays(reached: Path) -> Callable[[int], object]:
    """A task that creates a file at the last row, and goes no further."""

    def on_last(row: int) -> None:
        if row == LAST:
            reached.touch()
            time.sleep(100)

    return on_last


class Stopped(Place):
    """The statement is stopped while the task runs, and others may have written files."""

    def __init__(self, spark: Any, table: Any) -> None:
        super().__init__(spark, table)
        self.reached = Path(f"{table.uri}.reached")
        self.on_last = stays(self.reached)

    @contextmanager
    def around(self) -> Iterator[None]:
        def stop() -> None:
            until = time.monotonic() + 60
            while not self.reached.exists() and time.monotonic() < until:
                time.sleep(0.1)
            time.sleep(1)  # the other tasks end
            self.stop()

        thread = threading.Thread(target=stop, daemon=True)
        thread.start()
        yield

    def stop(self) -> None:
        raise NotImplementedError


class Cancelled(Stopped):
    """Someone cancels the jobs of the session."""

    reason = "cancelled"

    def stop(self) -> None:
        self.spark.sparkContext.cancelAllJobs()


class Interrupted(Stopped):
    """Someone presses Ctrl-C."""

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


PLACES = [SparkError, WorkerDies, Cancelled, Interrupted]


def files_of(table: Any) -> set[Path]:
    return {path for path in Path(table.uri).rglob("bucket-*/*") if path.is_file()}


def orphans_of(table: Any) -> tuple[str, ...]:
    time.sleep(0.01)
    paths: tuple[str, ...] = table.remove_orphan_files(older_than=int(time.time() * 1000)).paths
    return paths


def source(spark: Any, ids: str = "id") -> Any:
    """The rows to write, in the order of their ids. The task with the last one fails."""
    rows = spark.range(0, ROWS, 1, 4)
    return rows.selectExpr(f"{ids} AS id", "CAST(failing(id) AS BIGINT) AS n")


def sql(text: str, lake: Any, table: Any) -> None:
    lake.sql(text.format(table.name))


def merge(lake: Any, table: Any, spark: Any) -> None:
    begun = table.merge(source(spark), "target.id = source.id")
    begun.when_matched_update({"n": "source.n"}).when_not_matched_insert_all().execute()


def by_format(mode: str, lake: Any, table: Any, spark: Any) -> None:
    source(spark).write.format("keytide").mode(mode).save(table.uri)


def auto_cdc(lake: Any, table: Any, spark: Any) -> None:
    lake.auto_cdc(table.name, source(spark), ["id"], "n")


VERBS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "write": lambda lake, table, spark: table.write(source(spark)),
    "overwrite": lambda lake, table, spark: table.overwrite(source(spark)),
    "append by format": partial(by_format, "append"),
    "overwrite by format": partial(by_format, "overwrite"),
    "update": lambda lake, table, spark: sql(
        "UPDATE {} SET n = CAST(failing(id) AS BIGINT)", lake, table
    ),
    "delete": lambda lake, table, spark: sql("DELETE FROM {} WHERE failing(id) >= 0", lake, table),
    "merge": merge,
    "auto_cdc": auto_cdc,
}


@pytest.fixture
def lake(cluster: Any, warehouse: str) -> Iterator[Any]:
    size = cluster.conf.get(TASK_SIZE)
    cluster.conf.set(TASK_SIZE, "8 kb")  # a task for each bucket, so that some end before others
    yield kt.connect(warehouse, spark=cluster)
    cluster.conf.set(TASK_SIZE, size)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("verb", VERBS)
def test_a_statement_that_fails_leaves_nothing(
    verb: str, place: type[Place], lake: Any, cluster: Any
) -> None:
    order = {"sequence.field": "n"} if verb == "auto_cdc" else {}
    table = lake.create_table("d.t", SCHEMA, ["id"], options={**OPTIONS, **order})
    before = [{"id": number, "n": -1} for number in range(ROWS)]
    table.write(before)
    fails = place(cluster, table)
    on_last = fails.on_last

    def failing(row: int) -> int:
        on_last(row)
        return row

    cluster.udf.register("failing", failing, "long")
    with pytest.raises(BaseException) as raised, fails.around():  # noqa: PT011  # also Ctrl-C
        VERBS[verb](lake, table, cluster)
    assert isinstance(raised.value, KeyboardInterrupt) or fails.reason in str(raised.value)
    until = time.monotonic() + 60
    # Ctrl-C leaves Spark's own call, and Spark cleans up in the background.
    while "format" in verb and orphans_of(table) and time.monotonic() < until:
        time.sleep(0.2)
    assert orphans_of(table) == ()
    assert dicts(table, by="id") == before
    table.write(cluster.range(0, ROWS, 1, 4).selectExpr("id", "id + 1 AS n"))
    assert all(row["n"] == row["id"] + 1 for row in table.scan().to_pylist())


def test_a_compaction_that_fails_leaves_nothing(lake: Any) -> None:
    table = lake.create_table("d.t", SCHEMA, ["id"], options=OPTIONS)
    for n in range(2):
        table.write([{"id": number, "n": n} for number in range(ROWS)])
    damaged = min(files_of(table))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:100])
    with pytest.raises(kt.DataError, match=damaged.name):
        table.compact(full=True)
    assert orphans_of(table) == ()
    damaged.write_bytes(whole)
    table.compact(full=True)
    assert {row["n"] for row in table.scan().to_pylist()} == {1}
    assert table.scan().count() == ROWS


def test_a_feed_that_fails_leaves_nothing(lake: Any, tmp_path: Path) -> None:
    table = lake.create_table("d.t", SCHEMA, ["id"], options=OPTIONS)
    (tmp_path / "feed").mkdir()
    for number in range(4):
        lines = [json.dumps({"id": row * 4 + number, "n": row}) for row in range(100)]
        (tmp_path / "feed" / f"{number}.jsonl").write_text("\n".join(lines))
    blocked = Path(table.uri) / "bucket-3"
    blocked.write_text("not a folder")
    feed = partial(lake.ingest, "d.t", str(tmp_path / "feed"), format="json")
    with pytest.raises(kt.KeytideError):
        feed()
    assert orphans_of(table) == ()
    blocked.unlink()
    feed()
    assert table.scan().count() == ROWS


# A task of text, because executors cannot import this module. Its store fails once.
HICCUP = """
'done' if __import__('os').path.isdir(place) else __import__('os').mkdir(place) or store.read('x')
""".strip()


def test_a_task_is_tried_again_when_the_store_fails(cluster: Any, tmp_path: Path) -> None:
    done: list[str] = []
    names = {"place": str(tmp_path / "tried"), "store": open_store(tmp_path)}
    Cluster(cluster).each([partial(eval, HICCUP, names)], done.append)
    assert done == ["done"]
