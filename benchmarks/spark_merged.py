"""What could a merged read on Spark gain if Spark read the base itself?

Two tables get the same rows: a compacted base, and ten overlapping upserts of a hundredth of it.
One merges in Python tasks. The other has deletion vectors, which mark the rows of the base that
newer rows replace, so Spark's Parquet reader reads all of its files without Python. It stands for a
merged read whose superseded rows are already known: finding them would cost a read of the keys on
top, which is measured too. `--columns` adds columns that only the first read needs.

Each master runs in its own process, and compared reads take turns. `local-cluster[2,1,1024]` has
executors that are processes of their own.

    python benchmarks/spark_merged.py --rows 10000000 --masters 'local[2]' 'local-cluster[2,1,2048]'
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
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from report import print_table
from spark_bench import seconds

import keytide as kt

COLUMNS = {"id": pa.int64(), "a": pa.int64(), "b": pa.float64(), "c": pa.int64(), "s": pa.string()}
UPSERTS = 10
TURNS = 6
MERGED, VECTORS = "merged in Python", "read by Spark"
TABLES: Mapping[str, dict[str, str]] = {MERGED: {}, VECTORS: {"deletion-vectors.enabled": "true"}}
READS: Mapping[str, Callable[[DataFrame], object]] = {
    "all columns": lambda rows: rows._jdf.queryExecution().toRdd().count(),
    "sum of a column": lambda rows: rows.selectExpr("sum(a)").collect(),
    "count": lambda rows: rows.count(),
    "groups": lambda rows: rows.groupBy("c").agg({"a": "sum", "b": "max"}).collect(),
}
KEYS = "keys, read without Spark"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=0, help="more columns, of numbers")
    parser.add_argument("--masters", nargs="+", default=["local[2]", "local-cluster[2,1,2048]"])
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(in_session(arguments.job, arguments.directory)))
        return
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as folder:
        build(Path(folder), arguments.rows, arguments.columns)
        for master in arguments.masters:
            report(master, in_own_process(master, folder))
    print(f"- load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")


def build(folder: Path, rows: int, more: int) -> None:
    schema = pa.schema({**COLUMNS, **{f"m{place}": pa.int64() for place in range(more)}})
    chance = np.random.default_rng(0)
    versions = [made_of(np.arange(rows), 0, schema)]
    for number in range(UPSERTS):
        keys = chance.choice(rows + rows // 100, rows // 100, replace=False)
        versions.append(made_of(np.sort(keys), number + 1, schema))
    for name, options in TABLES.items():
        table = kt.connect(folder / "lake").create_table(
            name.replace(" ", "_"), schema, ["id"],
            options={"bucket": "4", "write-only": "true", **options},
        )  # fmt: skip
        table.write(versions[0])
        table.compact(full=True)
        for version in versions[1:]:
            table.write(version)
        if options:
            table.compact()  # so that all rows are visible to readers that merge nothing


def made_of(ids: np.ndarray, version: int, schema: pa.Schema) -> pa.Table:
    columns = [ids, ids * 3 + version, ids / 7 + version, ids % 1000 + version]
    more = [ids * place + version for place in range(len(schema) - len(COLUMNS))]
    names = [f"name-{each % 1000}" for each in ids]
    return pa.table([*columns, names, *more], schema=schema)


def in_own_process(master: str, folder: str) -> dict[str, dict[str, list[float]]]:
    command = [sys.executable, __file__, "--directory", folder, "--job", master]
    environment = os.environ | {"SPARK_WORKER_DIR": f"{folder}/work"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    took: dict[str, dict[str, list[float]]] = json.loads(done.stdout.splitlines()[-1])
    return took


def in_session(master: str, folder: Path) -> dict[str, dict[str, list[float]]]:
    """The seconds of each read, by read and table."""
    spark = kt.spark.session(
        {"spark.master": master, "spark.driver.memory": "2g", "spark.executor.memory": "1g",
         "spark.sql.shuffle.partitions": "4", "spark.local.dir": f"{folder}/local"}
    )  # fmt: skip
    spark.sparkContext.setLogLevel("ERROR")
    lake = kt.connect(folder / "lake")
    tables = {name: lake.table(name.replace(" ", "_")) for name in TABLES}
    took: dict[str, dict[str, list[float]]] = {}
    for what, read in READS.items():
        took[what] = {name: [] for name in TABLES}
        for _ in range(TURNS):
            for name, table in tables.items():
                rows = table.scan().to_spark(spark)
                took[what][name].append(seconds(lambda read=read, rows=rows: read(rows)))
    scan = tables[VECTORS].scan(["id"])
    took[KEYS] = {MERGED: [seconds(scan.to_arrow) for _ in range(TURNS)]}
    spark.stop()
    return took


def report(master: str, took: Mapping[str, Mapping[str, list[float]]]) -> None:
    keys = statistics.median(took[KEYS][MERGED][1:])
    rows = []
    for what in READS:
        merged, alone = (statistics.median(took[what][name][1:]) for name in TABLES)
        first = " / ".join(f"{took[what][name][0]:.2f}" for name in TABLES)
        rows.append((what, f"{merged:.2f}", f"{alone:.2f}", f"{alone / merged:.2f}", first))
    print(f"{master}:\n")
    print_table(("seconds, median", *TABLES, "ratio", "first of each"), rows)
    print(f"\n- {KEYS}: {keys:.2f} s\n")


if __name__ == "__main__":
    main()
