"""Compares a table with a key index with one that merges on read, and with plain Parquet.

Loads rows with keys in random order, upserts some of them repeatedly, and then reads, filters,
looks up and opens the table. Each operation and its comparison run in turns, so that both see the
same state of the machine: use the ratios. In addition to each median, the worst time and the sum
are printed.

    python benchmarks/key_index.py
    python benchmarks/key_index.py --rows 10000000 --directory /data
    python benchmarks/key_index.py --index-keys 1000000 10000000 100000000

The last form measures only the index, and with `--picture` draws how its results grow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from index_alone import GOALS, HEADINGS, draw, measured
from measure import import_lazily_loaded
from report import print_table
from spark_bench import into_nothing

import keytide as kt

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("at", pa.int64()),
        ("a", pa.int64()),
        ("b", pa.float64()),
        ("s", pa.string()),
    ]
)
LOAD_ROWS = 10_000_000
GET_MS_MAX = 1.0
INDEXED, MERGED = "bench.indexed", "bench.merged"
KINDS: Mapping[str, Mapping[str, str]] = {INDEXED: {"upsert.mode": "full"}, MERGED: {}}

# A process that has imported everything, and then sees the table for the first time.
OPENING = """
import sys, time
import numpy, pyarrow, polars, polars_hash
import keytide, keytide.write.upsert
pyarrow.array([0])
rows = pyarrow.Table.from_pylist([{"id": -1, "at": 1 << 40, "a": 1, "b": 1.0, "s": "new"}])
start = time.perf_counter()
keytide.connect(sys.argv[1]).table(sys.argv[2]).write(rows)
print(time.perf_counter() - start)
status = open("/proc/self/status").read().splitlines()
print(next(line.split()[1] for line in status if line.startswith("RssAnon:")))
"""


@dataclass(frozen=True)
class Line:
    """The seconds of an operation and of its comparison, measured in turns."""

    what: str
    own: list[float]
    other: list[float]
    peer: str = ""

    def cells(self) -> list[str]:
        ratio = f"{median(self.own) / median(self.other):.2f}" if self.other else ""
        return [
            self.what, _ms(median(self.own)), _ms(max(self.own)), _ms(sum(self.own)), self.peer,
            _ms(median(self.other)) if self.other else "",
            _ms(max(self.other)) if self.other else "", ratio,
        ]  # fmt: skip


def main() -> None:
    arguments = parse_arguments()
    load_average = os.getloadavg()[0]
    import_lazily_loaded()
    if arguments.index_keys:
        index_alone(arguments)
        print(f"\nload average {load_average:.1f} before, {os.getloadavg()[0]:.1f} after")
        return
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as folder:
        lines, notes = measure(Path(folder), arguments)
    headings = ["", "median", "worst", "sum", "next to", "its median", "its worst", "ratio"]
    print(f"\nMilliseconds at {arguments.rows:,} rows:\n")
    print_table(headings, [line.cells() for line in lines])
    print()
    for note in notes:
        print(f"- {note}")
    print(f"\nload average {load_average:.1f} before, {os.getloadavg()[0]:.1f} after")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--upsert-rows", type=int, default=100_000)
    parser.add_argument("--upserts", type=int, default=5)
    parser.add_argument("--keys", type=int, default=100_000, help="keys of one get_many")
    parser.add_argument("--gets", type=int, default=200)
    parser.add_argument("--warm", type=int, default=50, help="gets before those measured")
    parser.add_argument("--reads", type=int, default=5)
    parser.add_argument(
        "--index-keys", type=int, nargs="+", help="numbers of keys for indexes without tables"
    )
    parser.add_argument(
        "--picture", type=Path, help="draw the results of these indexes to this file"
    )
    parser.add_argument("--spark", action="store_true", help="also read on Spark")
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="where tables are created"
    )
    return parser.parse_args()


def index_alone(arguments: argparse.Namespace) -> None:
    """Indexes without tables, smallest first. At most one is stored at a time."""
    figures = []
    for keys in sorted(arguments.index_keys):
        with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as folder:
            figures.append(measured(Path(folder), keys, arguments.keys))
            print(f"{keys:,} keys: {figures[-1]}", flush=True)
    print(f"\nMilliseconds of {arguments.keys:,} lookups\n")
    print_table(HEADINGS, [each.cells() for each in figures])
    print()
    for name, most in GOALS.items():
        worst = max(getattr(each, name) for each in figures)
        print(f"- {name}: {worst:.1f} (at most {most:g}): {'pass' if worst <= most else 'FAIL'}")
    if arguments.picture is not None:
        draw(figures, arguments.picture)


def measure(folder: Path, arguments: argparse.Namespace) -> tuple[list[Line], list[str]]:
    """Everything, in the order of a table's life."""
    rng = np.random.default_rng(0)
    lake = kt.connect(folder / "lake")
    options = {"sequence.field": "at"}
    tables = {
        name: lake.create_table(name, SCHEMA, ["id"], options={**options, **own})
        for name, own in KINDS.items()
    }
    indexed = tables[INDEXED]
    lines = [loaded(tables, arguments.rows, rng), upserted(tables, arguments, rng)]
    newest, last = indexed.metadata.latest_snapshot_id() or 0, _upsert(arguments, rng, 99)
    indexed.write(last)
    plain = folder / "plain.parquet"
    pq.write_table(indexed.scan().to_arrow(), plain, row_group_size=1 << 18)
    lines += reads(indexed, plain, arguments)
    lines += reads_on_spark(indexed, folder, arguments) if arguments.spark else []
    lines += look_ups(tables, arguments, rng)
    lines += changes(indexed, newest, folder / "changes.parquet", arguments)
    opened, opened_mb = opening(folder / "lake", INDEXED, arguments.reads)
    other, other_mb = opening(folder / "lake", MERGED, arguments.reads)
    lines.append(Line("first upsert of one row, new process", opened, other, "merge on read"))
    median_get = median(next(line.own for line in lines if line.what == "get")) * 1000
    verdict = "pass" if median_get <= GET_MS_MAX else "FAIL"
    notes = [
        index_size(indexed),
        f"get: {median_get:.2f} ms (at most {GET_MS_MAX} ms): {verdict}",
        f"RssAnon of the process that upserts one row: {opened_mb:,.0f} MB, merge on read "
        f"{other_mb:,.0f} MB",
        f"RssAnon of this process: {_anonymous_mb():,.0f} MB",
    ]
    return lines, notes


def loaded(tables: Mapping[str, kt.Table], rows: int, rng: np.random.Generator) -> Line:
    ids = rng.permutation(rows)
    took: dict[str, list[float]] = {name: [] for name in tables}
    for start in range(0, rows, LOAD_ROWS):
        part = _rows(ids[start : start + LOAD_ROWS], start, rng)
        for name, table in tables.items():
            took[name].append(timed(lambda table=table, part=part: table.write(part)))
    return Line("load", took[INDEXED], took[MERGED], "merge on read")


def upserted(
    tables: Mapping[str, kt.Table], arguments: argparse.Namespace, rng: np.random.Generator
) -> Line:
    took: dict[str, list[float]] = {name: [] for name in tables}
    for number in range(arguments.upserts):
        rows = _upsert(arguments, rng, number)
        for name, table in tables.items():
            took[name].append(timed(lambda table=table, rows=rows: table.write(rows)))
    what = f"upsert of {arguments.upsert_rows:,}"
    return Line(what, took[INDEXED], took[MERGED], "merge on read")


def reads(table: kt.Table, plain: Path, arguments: argparse.Namespace) -> list[Line]:
    low, high = arguments.rows // 2, arguments.rows // 2 + arguments.rows // 100
    where = (pc.field("at") >= low) & (pc.field("at") < high)
    return [
        in_turn(
            "full read", lambda: table.scan().to_arrow(),
            "plain Parquet", lambda: pq.read_table(plain), arguments.reads,
        ),
        in_turn(
            "filter on a time", lambda: table.scan(where=f"at >= {low} and at < {high}").to_arrow(),
            "plain Parquet", lambda: pq.read_table(plain, filters=where), arguments.reads,
        ),
    ]  # fmt: skip


def reads_on_spark(table: kt.Table, folder: Path, arguments: argparse.Namespace) -> list[Line]:
    """Reads into Spark's sink that discards rows, compared with a folder of Parquet written by
    Spark.
    """
    spark = kt.spark.session(spark_local_dir=f"{folder}/local")
    plain = f"{folder}/plain-on-spark"
    table.scan().to_spark(spark).write.parquet(plain)
    low, high = arguments.rows // 2, arguments.rows // 2 + arguments.rows // 100
    where = f"at >= {low} and at < {high}"
    lines = [
        in_turn(
            "full read on Spark", lambda: into_nothing(table.scan().to_spark(spark)),
            "spark.read.parquet", lambda: into_nothing(spark.read.parquet(plain)), arguments.reads,
        ),
        in_turn(
            "filter on a time, on Spark",
            lambda: into_nothing(table.scan(where=where).to_spark(spark)), "spark.read.parquet",
            lambda: into_nothing(spark.read.parquet(plain).where(where)), arguments.reads,
        ),
    ]  # fmt: skip
    spark.stop()
    return lines


def look_ups(
    tables: Mapping[str, kt.Table], arguments: argparse.Namespace, rng: np.random.Generator
) -> list[Line]:
    keys = iter(rng.integers(0, 2 * arguments.rows, 4 * (arguments.gets + arguments.warm)).tolist())
    indexed, merged = tables[INDEXED], tables[MERGED]
    for _ in range(arguments.warm):
        indexed.get(next(keys)), merged.get(next(keys))
    many = rng.integers(0, 2 * arguments.rows, arguments.keys).tolist()
    return [
        in_turn("get", lambda: indexed.get(next(keys)), "merge on read",
                lambda: merged.get(next(keys)), arguments.gets),
        in_turn(f"get_many of {arguments.keys:,}", lambda: indexed.get_many(many), "merge on read",
                lambda: merged.get_many(many), arguments.reads),
    ]  # fmt: skip


def changes(table: kt.Table, before: int, plain: Path, arguments: argparse.Namespace) -> list[Line]:
    """The changes of one commit, compared with reading as many rows, and the files that contain
    them.
    """
    told = table.changes(before, before + 1)
    rows = told.to_arrow()
    pq.write_table(rows, plain)
    files = {file.meta.file_name for task in told.tasks() for file in task.files}
    paths = [path for path in Path(table.uri).rglob("*.parquet") if path.name in files]
    what = f"changes of a commit, {rows.num_rows:,} rows"

    def own() -> pa.Table:
        return table.changes(before, before + 1).to_arrow()

    return [
        in_turn(what, own, "plain Parquet", lambda: pq.read_table(plain), arguments.reads),
        in_turn(
            what, own, "the files that have them", lambda: [pq.read_table(p) for p in paths],
            arguments.reads,
        ),
    ]  # fmt: skip


def opening(lake: Path, table: str, times: int) -> tuple[list[float], float]:
    """Seconds of the first upsert in new processes, and megabytes of the last one."""
    seconds, kilobytes = [], 0
    for _ in range(times):
        found = subprocess.run(
            [sys.executable, "-c", OPENING, str(lake), table],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        took, held = found.stdout.split()
        seconds.append(float(took))
        kilobytes = int(held)
    return seconds, kilobytes / 1024


def index_size(table: kt.Table) -> str:
    snapshot = table.metadata.latest_snapshot()
    assert snapshot is not None
    files = table.metadata.index_files(snapshot)
    heads = [file for file in files if file.index_type == "KEYTIDE_KEYS"]
    stored = sum(file.file_size + sum(file.run_files.values()) for file in heads)
    count = table.scan().count()
    return f"index: {stored / count:.1f} bytes a key, {stored >> 20:,} MB"


# -- parts -----------------------------------------------------------------------------------------


def in_turn(
    what: str, own: Callable[[], Any], peer: str, other: Callable[[], Any], times: int
) -> Line:
    """Run both, one after the other, several times."""
    own(), other()
    pairs = [(timed(own), timed(other)) for _ in range(times)]
    return Line(what, [pair[0] for pair in pairs], [pair[1] for pair in pairs], peer)


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _upsert(arguments: argparse.Namespace, rng: np.random.Generator, number: int) -> pa.Table:
    ids = rng.choice(arguments.rows + arguments.rows // 10, arguments.upsert_rows, replace=False)
    return _rows(ids, (number + 2) * arguments.rows, rng)


def _rows(ids: np.ndarray, first: int, rng: np.random.Generator) -> pa.Table:
    texts = pa.array(rng.integers(0, 100_000, len(ids))).cast(pa.string())
    columns = [
        ids, np.arange(first, first + len(ids)), rng.integers(0, 1000, len(ids)),
        rng.random(len(ids)), texts,
    ]  # fmt: skip
    return pa.table(columns, schema=SCHEMA)


def _anonymous_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}"


if __name__ == "__main__":
    main()
