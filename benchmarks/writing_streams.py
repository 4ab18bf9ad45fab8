"""Measures the micro-batches of a stream that writes upserts to a table.

A table gets its rows. Then a stream brings small batches of upserts (nine keys out of ten exist),
each a Parquet file and a separate micro-batch. Keytide writes them in `foreachBatch` (with default
settings, with compactions in the writes, and without compactions) and with its own sink. Delta Lake
and Iceberg use MERGE in `foreachBatch`, on the same Spark. The result is the duration of a
micro-batch reported by Spark, from its trigger to its commit. The first ones, in which processes
start and code is compiled, are reported separately. Closing is what the table still waits for after
the last one.

    .venv-spark-peers/bin/python benchmarks/writing_streams.py --batches 100
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import spark_peers
from pyspark.sql import DataFrame, SparkSession
from report import print_table
from spark_bench import COLUMNS, digest, made_of, print_goal, seconds

import keytide as kt

WARM_UP = 5
P99_MAX, SUM_MAX = 3.0, 1.5
FIRST, BATCHES, CLOSING = "first", "batches", "closing"


class Keytide(spark_peers.Engine):
    """Two buckets. Compactions run in the background."""

    options: ClassVar[Mapping[str, str]] = {}

    def load(self, rows: DataFrame) -> None:
        fields = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in COLUMNS.items()]
        kt.spark.register(self.spark)
        lake = kt.connect(self.folder / type(self).__name__, spark=self.spark)
        options = {"bucket": "2", **self.options}
        self.table = lake.create_table("t", fields, ["id"], options=options)
        self.table.write(rows)

    def upsert(self, rows: DataFrame) -> None:
        self.table.write(rows)

    def rows(self) -> DataFrame:
        return self.table.scan().to_spark(self.spark)

    def close(self) -> None:
        self.table.close()

    def compact(self) -> None: ...

    def bring(self, batch: DataFrame) -> None: ...

    def change(self, text: str, bounds: Any) -> None: ...


class InFront(Keytide):
    options: ClassVar = {"compaction.background": "false"}


class Uncompacted(Keytide):
    options: ClassVar = {"write-only": "true"}


class Sink(Keytide):
    """The table's own sink, `format("keytide")`."""


ENGINES: Mapping[str, type[spark_peers.Engine]] = {
    "keytide": Keytide,
    "keytide-in-front": InFront,
    "keytide-uncompacted": Uncompacted,
    "keytide-sink": Sink,
    "delta": spark_peers.Delta,
    "iceberg": spark_peers.Iceberg,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch-rows", type=int, default=20_000)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
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
    sizes = {"--rows": arguments.rows, "--batch-rows": arguments.batch_rows}
    given = {**sizes, "--batches": arguments.batches, "--directory": folder, "--job": engine}
    command = [sys.executable, __file__, *(str(part) for pair in given.items() for part in pair)]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def in_session(arguments: argparse.Namespace) -> dict[str, Any]:
    name, folder, rows = arguments.job, arguments.directory, arguments.rows
    spark = spark_peers.session(ENGINES[name], folder)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    engine = ENGINES[name](spark, folder)
    base = spark_peers.stored(spark, folder / "base", lambda: made_of(spark.range(rows), 0))
    feed = feed_of(spark, arguments)
    engine.load(base)
    took = micro_batches(spark, engine, feed, folder / f"checkpoint-{name}")
    closing = seconds(engine.close) if isinstance(engine, Keytide) else 0.0
    found = {FIRST: took[:WARM_UP], BATCHES: took[WARM_UP:], CLOSING: closing}
    found["digest"] = list(digest(engine.rows()))
    spark.stop()
    return found


def feed_of(spark: SparkSession, arguments: argparse.Namespace) -> Path:
    """A folder with a file for each micro-batch, created by the first engine that needs it."""
    folder: Path = arguments.directory / "feed"
    if folder.exists():
        return folder
    folder.mkdir()
    part = arguments.rows // arguments.batch_rows
    for number in range(arguments.batches):
        made = spark_peers.batch_of(spark, arguments.rows, number, part).coalesce(1)
        made.write.parquet(str(arguments.directory / "made"), mode="overwrite")
        (file,) = (arguments.directory / "made").glob("*.parquet")
        file.rename(folder / f"{number:05}.parquet")
    return folder


def micro_batches(
    spark: SparkSession, engine: spark_peers.Engine, feed: Path, checkpoint: Path
) -> list[float]:
    """Seconds of each micro-batch, in order."""
    schema = spark.read.parquet(str(feed)).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(feed))
    stream = rows.writeStream.option("checkpointLocation", str(checkpoint))
    stream = stream.trigger(availableNow=True)
    if isinstance(engine, Sink):
        query = stream.format("keytide").start(engine.table.uri)
    else:
        query = stream.foreachBatch(partial(upsert, engine)).start()
    query.awaitTermination()
    told = [progress for progress in query.recentProgress if progress.numInputRows]
    return [progress.durationMs["triggerExecution"] / 1000 for progress in told]


def upsert(engine: spark_peers.Engine, batch: DataFrame, _number: int) -> None:
    # The stream's own session, which contains the views of the batch.
    engine.spark = batch.sparkSession
    engine.upsert(batch)


def report(figures: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [(name, *(f"{of(found):.3f}" for of in COLUMNS_OF.values()))
            for name, found in figures.items()]  # fmt: skip
    print_table(("seconds", *COLUMNS_OF), rows)
    if len({tuple(found["digest"]) for found in figures.values()}) > 1:
        raise ValueError(f"different rows: { {n: f['digest'] for n, f in figures.items()} }")
    own = figures.get("keytide")
    if own is None:
        return
    print()
    ratio = percentile(own[BATCHES], 99) / statistics.median(own[BATCHES])
    print_goal("99 % of micro-batches, times the median", ratio, P99_MAX)
    if uncompacted := figures.get("keytide-uncompacted"):
        print_goal("sum, times that without compaction", total(own) / total(uncompacted), SUM_MAX)


def percentile(took: list[float], percent: int) -> float:
    return statistics.quantiles(took, n=100, method="inclusive")[percent - 1]


def total(found: Mapping[str, Any]) -> float:
    return float(sum(found[BATCHES])) + float(found[CLOSING])


COLUMNS_OF: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "median": lambda found: statistics.median(found[BATCHES]),
    "95 %": lambda found: percentile(found[BATCHES], 95),
    "99 %": lambda found: percentile(found[BATCHES], 99),
    "worst": lambda found: max(found[BATCHES]),
    "sum and closing": total,
    "worst of the first": lambda found: max(found[FIRST]),
}


if __name__ == "__main__":
    main()
