"""Compares Keytide on Spark with Spark's own reads.

Loads rows, makes ten upserts of 1 % of them (nine keys out of ten exist), and reads all rows
without storing them. The comparisons read the same rows: as Parquet that Spark wrote, and with the
latest version of each key selected by `max_by` and by `row_number` over everything written. One
session does all of it. The merged rows are then read again in a session that only reads, in a
separate process. Compared reads take turns in one session, and each result is the median of its
turns.

    python benchmarks/spark_bench.py --rows 10000000
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # pyspark's functions are F everywhere
from report import print_table

import keytide as kt

UPSERTS = 10
WARM_UP_TURNS = 2
TURNS = 7
COLUMNS = {"id": "BIGINT", "a": "BIGINT", "b": "DOUBLE", "c": "BIGINT", "s": "STRING"}

Read = Callable[[], DataFrame]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--buckets", type=int, default=4)
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(in_session(arguments)))
        return
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as scratch:
        figures: dict[str, float] = {}
        for job in JOBS:
            figures |= in_own_process(job, arguments.rows, arguments.buckets, scratch)
    report(figures, arguments.rows)
    print(f"- load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")


def in_own_process(job: str, rows: int, buckets: int, folder: str) -> dict[str, float]:
    """The results of one job."""
    where = ["--rows", str(rows), "--buckets", str(buckets), "--directory", folder]
    command = [sys.executable, __file__, *where, "--job", job]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def in_session(arguments: argparse.Namespace) -> dict[str, float]:
    folder = arguments.directory
    spark = kt.spark.session(
        spark_local_dir=f"{folder}/local",
        spark_sql_shuffle_partitions=2 * (os.cpu_count() or 1),
    )
    figures = JOBS[arguments.job](spark, folder, arguments.rows, arguments.buckets)
    spark.stop()
    return figures


def load(spark: SparkSession, folder: Path, rows: int, buckets: int) -> dict[str, float]:
    made_of(spark.range(rows), 0).write.parquet(f"{folder}/base")
    base = spark.read.parquet(f"{folder}/base")
    for number in range(UPSERTS):  # on disk, for the session that only reads
        batch = made_of(upserted(spark, rows, number), number + 1)
        batch.write.parquet(f"{folder}/batch-{number}")
    table = make_table(folder, buckets)
    return {
        "load, Parquet by Spark": seconds(lambda: base.write.parquet(f"{folder}/plain")),
        "load, keytide": seconds(lambda: table.write(base)),
    }


def read_unmerged(spark: SparkSession, folder: Path) -> dict[str, float]:
    table = open_table(folder)
    return median_reads(
        {
            PARQUET: lambda: spark.read.parquet(f"{folder}/plain"),
            UNMERGED: lambda: table.scan().to_spark(spark),
        }
    )


def upsert(spark: SparkSession, folder: Path) -> dict[str, float]:
    table = open_table(folder)
    batches = batches_of(spark, folder)
    for batch in batches:
        batch.persist().count()
    took = [seconds(lambda batch=batch: table.write(batch)) for batch in batches]
    return {UPSERT: statistics.median(took[2:])}


def read_merged(spark: SparkSession, folder: Path) -> dict[str, float]:
    table = open_table(folder)
    return median_reads(
        {
            PARQUET_AGAIN: lambda: spark.read.parquet(f"{folder}/plain"),
            MERGED: lambda: table.scan().to_spark(spark),
        }
    )


def everything(spark: SparkSession, folder: Path, rows: int, buckets: int) -> dict[str, float]:
    figures = load(spark, folder, rows, buckets) | read_unmerged(spark, folder)
    figures |= upsert(spark, folder) | read_merged(spark, folder)
    os.sync()  # the session that only reads must not wait for what this one wrote
    table = open_table(folder)
    versions = all_versions(spark.read.parquet(f"{folder}/base"), batches_of(spark, folder))
    check(table, versions)
    return figures | median_reads(
        {MAX_BY: lambda: by_max_by(versions), ROW_NUMBER: lambda: by_row_number(versions)}, turns=3
    )


def read_only(spark: SparkSession, folder: Path, *_: int) -> dict[str, float]:
    return {f"{name}{READ_ONLY}": took for name, took in read_merged(spark, folder).items()}


JOBS: Mapping[str, Callable[..., dict[str, float]]] = {
    "everything": everything,
    "read-only": read_only,
}
UPSERT = "upsert of a hundredth, median after two"
PARQUET = "read, spark.read.parquet"
PARQUET_AGAIN = "read, spark.read.parquet, after the upserts"
UNMERGED = "read, keytide, nothing to merge"
MERGED = f"read, keytide, {UPSERTS} overlapping runs more"
READ_ONLY = ", session that only reads"
MAX_BY = "read, max_by over all versions"
ROW_NUMBER = "read, row_number over all versions"


def report(figures: Mapping[str, float], rows: int) -> None:
    print_table(("step", "s"), [(name, f"{value:.2f}") for name, value in figures.items()])
    unmerged = figures[UNMERGED] / figures[PARQUET]
    merged = figures[MERGED] / figures[PARQUET_AGAIN]
    print()
    print_goal("nothing to merge, times spark.read.parquet", unmerged, 1.2)
    print_goal(f"{UPSERTS} overlapping runs, times spark.read.parquet", merged, 1.6)
    read_only = figures[MERGED + READ_ONLY] / figures[PARQUET_AGAIN + READ_ONLY]
    print_goal("the same in a session that only reads", read_only, 1.6)
    print_goal(f"upsert of {rows // 100:,} rows, seconds", figures[UPSERT], 1.0)


def print_goal(what: str, value: float, value_max: float) -> None:
    outcome = "pass" if value <= value_max else "FAIL"
    print(f"- {what}: {value:.2f} (goal: at most {value_max:g}): {outcome}")


# -- the rows --------------------------------------------------------------------------------------


def make_table(folder: Path, buckets: int) -> kt.Table:
    schema = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in COLUMNS.items()]
    options = {"bucket": str(buckets)}
    return kt.connect(folder / "lake").create_table("t", schema, ["id"], options=options)


def open_table(folder: Path) -> kt.Table:
    return kt.connect(folder / "lake").table("t")


def batches_of(spark: SparkSession, folder: Path) -> list[DataFrame]:
    return [spark.read.parquet(f"{folder}/batch-{number}") for number in range(UPSERTS)]


def made_of(ids: DataFrame, version: int) -> DataFrame:
    return ids.select(
        "id",
        (F.hash("id", F.lit(version)) % 1000).cast("long").alias("a"),
        F.rand(version).alias("b"),
        F.xxhash64("id", F.lit(version)).alias("c"),
        F.concat(F.lit("name-"), F.abs(F.hash("id")) % 100_000).alias("s"),
    )


def upserted(spark: SparkSession, rows: int, number: int) -> DataFrame:
    return upserted_by(spark, rows, number, rows // 100)


def upserted_by(spark: SparkSession, rows: int, number: int, batch: int) -> DataFrame:
    """The keys of a batch with `batch` rows, of which a tenth is new."""
    new = batch // 10
    old = spark.range(batch - new).select(
        F.pmod(F.xxhash64("id", F.lit(number)), F.lit(rows)).alias("id")
    )
    first = rows + number * new
    return old.distinct().unionAll(spark.range(first, first + new).toDF("id"))


def all_versions(base: DataFrame, batches: list[DataFrame]) -> DataFrame:
    versions = base.withColumn("v", F.lit(0))
    for number, batch in enumerate(batches):
        versions = versions.unionAll(batch.withColumn("v", F.lit(number + 1)))
    return versions


def by_max_by(versions: DataFrame) -> DataFrame:
    newest = F.max_by(F.struct("a", "b", "c", "s"), "v").alias("row")
    return versions.groupBy("id").agg(newest).select("id", "row.*")


def by_row_number(versions: DataFrame) -> DataFrame:
    window = Window.partitionBy("id").orderBy(F.desc("v"))
    numbered = versions.withColumn("n", F.row_number().over(window))
    return numbered.where("n = 1").select(*COLUMNS)


def check(table: kt.Table, versions: DataFrame) -> None:
    """Check the rows, because results for wrong rows would be worthless."""
    found = digest(table.scan().to_spark(versions.sparkSession))
    expected = digest(by_max_by(versions))
    if found != expected:
        raise ValueError(f"wrong rows: {found}, expected {expected}")


def digest(rows: DataFrame) -> Any:
    row_hash = F.xxhash64(*COLUMNS).bitwiseAND(F.lit((1 << 31) - 1))
    return rows.agg(F.count("*"), F.sum(row_hash)).first()


# -- the clock -------------------------------------------------------------------------------------


def seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def median_reads(reads: Mapping[str, Read], turns: int = TURNS) -> dict[str, float]:
    """The reads in turns, several times, after some turns to warm up."""
    took: dict[str, list[float]] = {name: [] for name in reads}
    for _ in range(WARM_UP_TURNS + turns):
        for name, read in reads.items():
            took[name].append(seconds(lambda read=read: into_nothing(read())))
    return {name: statistics.median(times[WARM_UP_TURNS:]) for name, times in took.items()}


def into_nothing(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
