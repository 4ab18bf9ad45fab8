"""Measures the latency and the cost of a stream that reads the changes of a table.

A table gets its rows, and a stream of its changes starts at the latest snapshot. Small batches of
upserts (nine keys out of ten exist) are written one by one, each after the stream has emitted the
previous one. The result is the duration of a micro-batch reported by Spark, from its trigger to the
commit of its offset. The first ones, in which processes start and code is compiled, are reported
separately. The start is the time until a new query is ready to read. `changes` of one commit is
measured too, without Spark. Delta Lake's change data feed reads the same batches, written by MERGE,
on the same Spark.

    python benchmarks/reading_streams.py
    .venv-spark-peers/bin/python benchmarks/reading_streams.py --engines keytide delta
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import spark_peers
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from report import print_table
from spark_bench import COLUMNS, made_of, print_goal, seconds

import keytide as kt

WARM_UP = 4
BATCH_MAX_S, CHANGES_MAX_S = 1.0, 0.1
START, BATCHES, FIRST = "start", "micro-batches", "first micro-batches"
CHANGES = "changes of one commit"
RUN, WHOLE = "addBatch", "triggerExecution"


class Engine(ABC):
    """A table with the benchmark's rows, batches to write, and a stream of its changes."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder

    @abstractmethod
    def load(self, rows: DataFrame) -> None: ...

    @abstractmethod
    def upsert(self, rows: DataFrame) -> None: ...

    @abstractmethod
    def stream(self) -> DataFrame:
        """The changes from now on."""

    def changes(self, rows: DataFrame) -> float | None:
        """The time to read the changes of one more commit without Spark."""
        return None


class Keytide(Engine):
    """Four buckets. Emits before and after images."""

    def load(self, rows: DataFrame) -> None:
        fields = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in COLUMNS.items()]
        kt.spark.register(self.spark)
        lake = kt.connect(self.folder / "keytide", spark=self.spark)
        self.table = lake.create_table("t", fields, ["id"], options={"bucket": "4"})
        self.table.write(rows)
        self.table.compact(full=True)

    def upsert(self, rows: DataFrame) -> None:
        self.table.write(rows.toArrow())

    def stream(self) -> DataFrame:
        return (
            self.spark.readStream.format("keytide").option("start", "latest").load(self.table.uri)
        )

    def changes(self, rows: DataFrame) -> float | None:
        written = self.table.write(rows.toArrow()).snapshot_id
        assert written is not None
        table = kt.open_table(self.table.uri)
        return seconds(lambda: table.changes(written - 1, written).to_arrow())


class Delta(Engine):
    """Delta Lake with a change data feed and deletion vectors."""

    def load(self, rows: DataFrame) -> None:
        self.peer = spark_peers.Delta(self.spark, self.folder)
        self.peer.definition = (
            "USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
            "'delta.enableChangeDataFeed' = 'true')"
        )
        self.peer.load(rows)

    def upsert(self, rows: DataFrame) -> None:
        self.peer.upsert(rows)

    def stream(self) -> DataFrame:
        reader = self.spark.readStream.format("delta").option("readChangeFeed", "true")
        return reader.option("startingVersion", "latest").table(self.peer.table)


ENGINES: Mapping[str, type[Engine]] = {"keytide": Keytide, "delta": Delta}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--changes", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["keytide"])
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--job", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(in_session(arguments)))
        return
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as folder:
        figures = {name: in_own_process(name, arguments, folder) for name in arguments.engines}
    report(figures)
    print(f"- load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")


def in_own_process(engine: str, arguments: argparse.Namespace, folder: str) -> dict[str, Any]:
    """The results of one engine."""
    sizes = {"--rows": arguments.rows, "--changes": arguments.changes}
    given = {**sizes, "--batches": arguments.batches, "--directory": folder, "--job": engine}
    command = [sys.executable, __file__, *(str(part) for pair in given.items() for part in pair)]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def in_session(arguments: argparse.Namespace) -> dict[str, Any]:
    engine_class, folder, rows = ENGINES[arguments.job], arguments.directory, arguments.rows
    spark = spark_peers.session(spark_peers.ENGINES[arguments.job], folder)
    engine = engine_class(spark, folder)
    engine.load(made_of(spark.range(rows), 0))
    numbers = iter(range(1, 1 << 20))

    def batch(changes: int) -> DataFrame:
        number = next(numbers)
        return made_of(some_keys(spark, rows, changes, number), number).persist()

    query = counting(engine.stream(), folder / f"checkpoint-{arguments.job}")
    figures: dict[str, Any] = {START: seconds(query.processAllAvailable)}
    took: list[float] = []
    last = -1
    for _ in range(WARM_UP + arguments.batches):
        written = batch(arguments.changes)
        written.count()
        engine.upsert(written)
        query.processAllAvailable()
        batches = batches_after(query, last)
        last = max(batches, default=last)
        took.append(sum(batches.values()))
    query.stop()
    figures |= {FIRST: took[:WARM_UP], BATCHES: took[WARM_UP:]}
    for changes in (100, arguments.changes):
        found = [engine.changes(batch(changes)) for _ in range(WARM_UP + 5)]
        figures[f"{CHANGES}, {changes:,} rows"] = [f for f in found[WARM_UP:] if f is not None]
    spark.stop()
    return figures


def some_keys(spark: SparkSession, rows: int, count: int, number: int) -> DataFrame:
    """Keys of which nine out of ten exist, spread over the table."""
    old = count - count // 10
    first = rows + number * count
    spread = spark.range(old).selectExpr(f"pmod(xxhash64(id, {number}), {rows}) AS id").distinct()
    return spread.unionAll(spark.range(first, first + count - old).toDF("id"))


def counting(changes: DataFrame, checkpoint: Path) -> StreamingQuery:
    """A query that computes all changes and keeps none."""
    writer = changes.writeStream.foreachBatch(lambda batch, _: spark_peers.computed(batch))
    return writer.option("checkpointLocation", str(checkpoint)).start()


def batches_after(query: StreamingQuery, last: int) -> dict[int, float]:
    """The duration of each micro-batch after `last`."""
    told = [p for p in query.recentProgress if p["batchId"] > last and RUN in p["durationMs"]]
    return {p["batchId"]: p["durationMs"][WHOLE] / 1000 for p in told}


def report(figures: Mapping[str, Mapping[str, Any]]) -> None:
    def cells(step: str) -> list[Sequence[str]]:
        times = [found.get(step) or [] for found in figures.values()]
        shown = [("median", 0.5), ("p95", 0.95), ("worst", 1.0)]
        return [
            (f"{step}, {name}", *(f"{at(one, share):.2f}" if one else "" for one in times))
            for name, share in shown
        ]

    steps = [step for step in next(iter(figures.values())) if step != START]
    start = (START, *(f"{found[START]:.2f}" for found in figures.values()))
    print_table(("seconds", *figures), [start, *(row for step in steps for row in cells(step))])
    own = figures.get("keytide")
    if own is None:
        return
    print()
    print_goal("micro-batch, p95 seconds", at(own[BATCHES], 0.95), BATCH_MAX_S)
    for step in steps:
        if step.startswith(CHANGES):
            print_goal(f"{step}, median seconds", at(own[step], 0.5), CHANGES_MAX_S)


def at(times: Sequence[float], share: float) -> float:
    """The percentile of the times for this fraction."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


if __name__ == "__main__":
    main()
