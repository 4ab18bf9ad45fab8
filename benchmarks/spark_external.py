"""Compares appending upserts to a Delta or Iceberg table and merging them on read with MERGE.

A table of each engine gets ten batches of 1 % of its rows (nine keys out of ten exist) in two ways:
with the engine's own MERGE, and as plain appends, after which Keytide reads the table as an
external one, merged by key. Every engine runs in its own session, one after the other, and both
ways must lead to the same rows. Needs the environment of `spark_peers.py`:

    sh scripts/get-spark-peers.sh
    .venv-spark-peers/bin/python benchmarks/spark_external.py --rows 10000000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from report import print_table
from spark_bench import UPSERTS, digest, made_of, seconds, upserted
from spark_peers import Delta, Iceberg, Peer, computed, session, stored

import keytide as kt

MERGES, READ = "ten MERGEs", "read"
APPENDS, MERGED = "ten appends", "read, merged by Keytide"
MERGED_AGAIN, POINT = "the same again", "row of one key"
FASTER_MIN = 5.0


class AppendedDelta(Delta):
    """The Delta table to which versions are appended."""

    table = "delta_appended"
    place = "warehouse-{engine}/delta_appended"


class AppendedIceberg(Iceberg):
    """The Iceberg table to which versions are appended."""

    table = "ice.db.appended"
    place = "iceberg/db/appended"


ENGINES: Mapping[str, tuple[type[Peer], type[AppendedDelta | AppendedIceberg]]] = {
    "delta": (Delta, AppendedDelta),
    "iceberg": (Iceberg, AppendedIceberg),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--job", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(in_session(arguments.job, arguments.directory, arguments.rows)))
        return
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as folder:
        figures = {name: in_own_process(name, arguments.rows, folder) for name in arguments.engines}
    report(figures)
    print(f"- load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")


def in_own_process(engine: str, rows: int, folder: str) -> dict[str, float]:
    """The results of one engine."""
    command = [sys.executable, __file__, "--rows", str(rows), "--directory", folder]
    # Spark starts its Python workers with this interpreter.
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*command, "--job", engine], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def in_session(name: str, folder: Path, rows: int) -> dict[str, float]:
    merging, appending = ENGINES[name]
    spark = session(merging, folder)
    base = stored(spark, folder / "base", lambda: made_of(spark.range(rows), 0))
    batches = [
        stored(spark, folder / f"batch-{n}", lambda n=n: made_of(upserted(spark, rows, n), n + 1))
        for n in range(UPSERTS)
    ]
    for batch in batches:
        batch.persist().count()
    by_merge, by_append = merging(spark, folder), appending(spark, folder)
    by_merge.load(base)
    by_append.load(base)
    figures: dict[str, float] = {}
    figures[APPENDS] = sum(seconds(lambda b=b: appended(b, by_append.table)) for b in batches)
    lake, table = external(folder, name, appending, spark)
    figures[MERGED] = seconds(lambda: computed(table.scan().to_spark(spark)))
    figures[MERGED_AGAIN] = seconds(lambda: computed(table.scan().to_spark(spark)))
    figures[POINT] = seconds(lambda: lake.sql("SELECT * FROM e WHERE id = 17").to_arrow())
    figures[MERGES] = sum(seconds(lambda b=b: by_merge.upsert(b)) for b in batches)
    figures[READ] = seconds(lambda: computed(by_merge.rows()))
    if digest(table.scan().to_spark(spark)) != digest(by_merge.rows()):
        raise ValueError(f"{name}: different rows")
    spark.stop()
    return figures


def appended(batch: DataFrame, table: str) -> None:
    batch.writeTo(table).append()


def external(
    folder: Path, name: str, appending: Any, spark: SparkSession
) -> tuple[kt.Lake, kt.ExternalTable]:
    """The table with appended versions, as an external table of a lake."""
    lake = kt.connect(folder / f"lake-{name}", spark)
    kt.spark.register(spark)
    place = folder / appending.place.format(engine=ENGINES[name][0].__name__)
    table = lake.create_external_table(
        "e",
        format=name,
        location=str(place),
        primary_key=["id"],
    )
    return lake, table


def report(figures: Mapping[str, Mapping[str, float]]) -> None:
    steps = (MERGES, READ, APPENDS, MERGED, MERGED_AGAIN, POINT)
    cells = [(step, *(f"{found[step]:.2f}" for found in figures.values())) for step in steps]
    print_table(("seconds", *figures), cells)
    print()
    for name, found in figures.items():
        faster = (found[MERGES] + found[READ]) / (found[APPENDS] + found[MERGED])
        outcome = "pass" if faster >= FASTER_MIN else "FAIL"
        print(
            f"- {name}: appends and a merged read, times as fast as MERGEs and a read: "
            f"{faster:.1f} (goal: {FASTER_MIN:g}): {outcome}"
        )


if __name__ == "__main__":
    main()
