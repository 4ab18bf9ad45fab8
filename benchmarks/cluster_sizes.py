"""Large and uneven tables on executors of 1 GB: are the rows right, the tasks even, memory bounded?

Each shape runs in its own session on `local-cluster`, so that executors are processes of their own
and share neither memory nor a disk cache with the driver. The shapes are:

- `hot keys`: `--rows` versions, half of them of a hundredth of the keys, which lie side by side
- `partitions`: a tenth of the versions, in 500 partitions of 4 buckets
- `columns`: a hundredth of the versions, with 300 columns

A table is loaded, a hundredth of its keys is upserted, the table is read, compacted in full and
read again. Each read is compared with what Spark computes from the versions. The report has the
seconds of each step and, from Spark's event log, the number of tasks of its largest stage, how long
the longest one ran compared with the median, and the peak memory of an executor: the heap of the
JVM, and all its Python processes together.

    python benchmarks/cluster_sizes.py --rows 20000000 --directory /tmp
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # pyspark's functions are F everywhere
from report import print_table

import keytide as kt

EXECUTORS, EXECUTOR_MEMORY = 2, "1g"
UNEVEN_MAX = 3.0
"""The longest task of a stage must not take more times the median than this."""
LONG_S = 1.0
"""Stages whose longest task is shorter than this are not judged."""


@dataclass(frozen=True)
class Shape:
    """A table, and the versions that are written to it."""

    columns: Mapping[str, str]
    key: tuple[str, ...]
    options: Mapping[str, str]
    versions: Callable[[SparkSession, int], DataFrame]
    """Versions with a column `n`, which tells them apart and grows. The highest of a key wins."""
    partitioned_by: tuple[str, ...] = ()

    def upserts(self, spark: SparkSession, rows: int) -> DataFrame:
        """New versions of a hundredth of the keys."""
        some = self.versions(spark, rows).where(F.expr("pmod(xxhash64(id), 100) = 0"))
        return some.withColumn("n", F.col("n") + rows).select(*self.columns)


def hot_keys(spark: SparkSession, rows: int) -> DataFrame:
    keys = rows // 2
    number = spark.range(rows)
    is_hot, at = F.expr("id % 2 = 0"), F.expr(f"pmod(xxhash64(id), {keys})")
    return number.select(
        F.when(is_hot, F.expr(f"pmod(xxhash64(id), {keys // 100})")).otherwise(at).alias("id"),
        F.expr("id AS n"), F.expr("id * 3 AS a"), F.expr("id / 7 AS b"),
        F.expr("concat('name-', id % 1000) AS s"),
    )  # fmt: skip


def in_partitions(spark: SparkSession, rows: int) -> DataFrame:
    number = spark.range(rows // 10)
    return number.selectExpr(
        "CAST(id % 500 AS INT) AS p", f"id % {rows // 20} AS id", "id AS n", "id * 3 AS a"
    )


WIDE = [f"c{place}" for place in range(298)]


def wide(spark: SparkSession, rows: int) -> DataFrame:
    number = spark.range(rows // 100)
    return number.select(
        F.expr(f"id % {rows // 200} AS id"), F.expr("id AS n"),
        *(F.expr(f"id * {place} AS {name}") for place, name in enumerate(WIDE)),
    )  # fmt: skip


SHAPES = {
    "hot keys": Shape(
        {"id": "BIGINT", "n": "BIGINT", "a": "BIGINT", "b": "DOUBLE", "s": "STRING"},
        ("id",), {"bucket": "4"}, hot_keys,
    ),
    "partitions": Shape(
        {"p": "INT", "id": "BIGINT", "n": "BIGINT", "a": "BIGINT"},
        ("p", "id"), {"bucket": "4"}, in_partitions, ("p",),
    ),
    "columns": Shape(
        {"id": "BIGINT", "n": "BIGINT", **dict.fromkeys(WIDE, "BIGINT")},
        ("id",), {"bucket": "4"}, wide,
    ),
}  # fmt: skip
WRITE_ONLY = {"write-only": "true"}
STEPS = ("load", "upsert", "read merged", "compact", "read compacted")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--job", choices=SHAPES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        steps = in_session(SHAPES[arguments.job], arguments.rows, arguments.directory)
        print(json.dumps(steps))
        return
    load_before = os.getloadavg()[0]
    for name in arguments.shapes:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as folder:
            report(name, in_own_process(name, arguments.rows, folder), Path(folder))
    print(f"- load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")


def in_own_process(shape: str, rows: int, folder: str) -> dict[str, float]:
    """The seconds of each step."""
    command = [sys.executable, __file__, "--rows", str(rows), "--directory", folder, "--job", shape]
    environment = os.environ | {"SPARK_WORKER_DIR": f"{folder}/work"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    steps: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return steps


def in_session(shape: Shape, rows: int, folder: Path) -> dict[str, float]:
    spark = session(folder)
    schema = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in shape.columns.items()]
    table = kt.connect(folder / "lake", spark=spark).create_table(
        "t",
        schema,
        shape.key,
        shape.partitioned_by,
        options={**shape.options, "write-only": "true"},
    )
    versions, upserts = shape.versions(spark, rows), shape.upserts(spark, rows)
    actions: Mapping[str, Callable[[], Any]] = {
        "load": lambda: table.write(versions.select(*shape.columns)),
        "upsert": lambda: table.write(upserts),
        "read merged": lambda: digest(shape, table.scan().to_spark(spark)),
        "compact": lambda: table.compact(full=True),
        "read compacted": lambda: digest(shape, table.scan().to_spark(spark)),
    }
    took, found = {}, {}
    for step in STEPS:
        spark.sparkContext.setJobDescription(step)
        started = time.perf_counter()
        found[step] = actions[step]()
        took[step] = time.perf_counter() - started
    spark.sparkContext.setJobDescription("check")
    every = versions.select(*shape.columns).unionAll(upserts)
    rest = [F.col(name) for name in shape.columns if name not in shape.key]
    newest = every.groupBy(*shape.key).agg(F.max_by(F.struct(*rest), "n").alias("row"))
    expected = digest(shape, newest.select(*shape.key, "row.*"))
    spark.stop()
    for step in ("read merged", "read compacted"):
        if found[step] != expected:
            raise ValueError(f"{step}: {found[step]}, expected {expected}")
    return took


def session(folder: Path) -> SparkSession:
    (folder / "events").mkdir()
    spark: SparkSession = kt.spark.session(
        {
            "spark.master": f"local-cluster[{EXECUTORS},1,1024]",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "8",
            "spark.local.dir": f"{folder}/local",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{folder}/events",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.logStageExecutorMetrics": "true",
            "spark.executor.processTreeMetrics.enabled": "true",
            "spark.executor.metrics.pollingInterval": "500",
        }
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def digest(shape: Shape, rows: DataFrame) -> tuple[int, int]:
    row_hash = F.xxhash64(*shape.columns).bitwiseAND(F.lit((1 << 31) - 1))
    count, total = rows.agg(F.count("*"), F.sum(row_hash)).first()
    return count, total


# -- the event log ---------------------------------------------------------------------------------


def report(name: str, took: Mapping[str, float], folder: Path) -> None:
    tasks, peaks = events(folder)
    cells, uneven = [], []
    for step in STEPS:
        stage = max(tasks[step], key=sum, default=[0.0])  # little work stays in the driver
        longest, middle = max(stage), statistics.median(stage)
        if longest > LONG_S and longest > UNEVEN_MAX * middle:
            uneven.append(step)
        heap, python = peaks[step]
        cells.append(
            (
                step, f"{took[step]:.1f}", str(len(stage)), f"{middle:.1f}", f"{longest:.1f}",
                f"{heap >> 20}", f"{python >> 20}",
            )
        )  # fmt: skip
    print(f"{name}:\n")
    headings = ("step", "s", "tasks", "median, s", "longest, s", "heap, MB", "Python, MB")
    print_table(headings, cells)
    outcome = f"FAIL: {', '.join(uneven)}" if uneven else "pass"
    print(f"\n- rows: right\n- longest task, times the median (goal: {UNEVEN_MAX:g}): {outcome}\n")


def events(folder: Path) -> tuple[dict[str, list[list[float]]], dict[str, tuple[int, int]]]:
    """For each step the seconds of the tasks of its stages, and the peaks of an executor."""
    step_of: dict[int, str] = {}
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    heap: defaultdict[str, int] = defaultdict(int)
    python: defaultdict[str, int] = defaultdict(int)
    for event in _log(folder):
        kind = event["Event"]
        if kind == "SparkListenerJobStart":
            step = event["Properties"].get("spark.job.description", "")
            step_of |= dict.fromkeys(event["Stage IDs"], step)
        elif kind == "SparkListenerTaskEnd" and event.get("Task Metrics"):
            seconds[event["Stage ID"]].append(event["Task Metrics"]["Executor Run Time"] / 1e3)
        elif kind == "SparkListenerStageExecutorMetrics" and event["Executor ID"] != "driver":
            step, metrics = step_of[event["Stage ID"]], event["Executor Metrics"]
            heap[step] = max(heap[step], metrics["JVMHeapMemory"])
            python[step] = max(python[step], metrics["ProcessTreePythonRSSMemory"])
    tasks: defaultdict[str, list[list[float]]] = defaultdict(list)
    for stage, ran in seconds.items():
        tasks[step_of[stage]].append(ran)
    return tasks, {step: (heap[step], python[step]) for step in STEPS}


def _log(folder: Path) -> Iterator[dict[str, Any]]:
    for path in (folder / "events").iterdir():
        if path.is_file():
            yield from map(json.loads, path.read_text().splitlines())


if __name__ == "__main__":
    main()
