"""Measures what deletion vectors cost writers and save readers.

The upsert workload (`--rows` rows, ten upserts of 1 % of them) goes into one bucket of three
tables: one that merges on read, and two with deletion vectors, one of which orders versions by a
sequence field. The same rows are written as one plain Parquet file, with which the reads are
compared: with deletion vectors, a read must take at most 1.1 times as long. Reads of all tables and
of plain Parquet take turns in one process, and the best of each counts. The rows are compared with
the expected ones.

    python benchmarks/vectors.py
    python benchmarks/vectors.py --rows 1000000
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from measure import import_lazily_loaded, stopwatch
from workload import SCHEMA, Workload, digest, open_workload, prepare

import keytide as kt

VECTORS = {"deletion-vectors.enabled": "true"}
TABLES = {
    "merge on read": {},
    "vectors": VECTORS,
    "vectors, by sequence": {**VECTORS, "sequence.field": "n"},
}
COLUMN = "b"
READS = 5
LOOKUPS = 50
GOAL = 1.1


def main() -> None:
    arguments = parse_arguments()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        prepare(Path(directory, "workload"), arguments.rows)
        workload = open_workload(Path(directory, "workload"))
        tables = {name: written(name, workload, Path(directory)) for name in TABLES}
        plain = Path(directory, "plain.parquet")
        write_plain(tables["vectors"], plain)
        show_reads(tables, plain)
        for name, table in tables.items():
            print(f"{name:<24}get {lookup_ms(table, workload):.1f} ms")


def written(name: str, workload: Workload, directory: Path) -> kt.Table:
    """A table after the load and the upserts, and their times."""
    schema = SCHEMA.append(pa.field("n", pa.int64()))
    lake = kt.connect(directory / name.replace(" ", "-").replace(",", ""))
    table = lake.create_table("t", schema, ["id"], options=TABLES[name])
    import_lazily_loaded()
    rows, upserts = workload.load_rows(), list(workload.upserts())
    with stopwatch() as load:
        table.write(numbered(rows, 0))
    took = []
    for number, rows in enumerate(upserts, start=1):
        with stopwatch() as one:
            table.write(numbered(rows, number))
        took.append(one["wall_s"])
    found = digest(table.scan(columns=SCHEMA.names).to_arrow())
    if found != workload.expected:
        raise ValueError(f"{name}: wrong rows: {found}, expected {workload.expected}")
    dead = sum(p.cardinality or 0 for f in table.scan().state.vector_files for p in f.ranges or ())
    print(
        f"{name:<24}load {load['wall_s']:.2f} s, upsert {median(took):.3f} s (median), "
        f"{max(took):.3f} s (most), {len(table.scan().live.entries)} files, {dead:,} dead rows"
    )
    return table


def numbered(rows: pa.Table, number: int) -> pa.Table:
    return rows.append_column("n", pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows))


def write_plain(table: kt.Table, path: Path) -> None:
    """The rows as a Parquet file like the table's own."""
    rows = table.scan().to_polars().sort("id").to_arrow().cast(table.schema)
    pq.write_table(rows, path, compression="zstd", compression_level=1, row_group_size=1 << 18)


def show_reads(tables: dict[str, kt.Table], plain: Path) -> None:
    """The best of some reads of each, with all columns and with one."""
    for columns in (None, [COLUMN]):
        reads: dict[str, Callable[[], Any]] = {
            "plain Parquet": lambda c=columns: pl.read_parquet(plain, columns=c).to_arrow(),
        }
        for name, table in tables.items():
            reads[name] = lambda t=table, c=columns: t.scan(columns=c).to_arrow()
        best = dict.fromkeys(reads, float("inf"))
        for _ in range(READS):
            for name, read in reads.items():
                with stopwatch() as one:
                    read()
                best[name] = min(best[name], one["wall_s"])
        print(f"\nread {'of all columns' if columns is None else f'of column {COLUMN}'}")
        for name, seconds in best.items():
            ratio = seconds / best["plain Parquet"]
            goal = ("pass" if ratio <= GOAL else "FAIL") if name.startswith("vectors") else ""
            print(f"  {name:<22}{seconds:>8.3f} s{ratio:>8.2f}x  {goal}")
    print()


def lookup_ms(table: kt.Table, workload: Workload) -> float:
    """The median of lookups of single keys."""
    step, took = max(1, workload.rows // LOOKUPS), []
    for key in range(0, workload.rows, step):
        with stopwatch() as one:
            assert table.get(key) is not None
        took.append(one["wall_s"])
    return median(took) * 1000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument(
        "--directory", help="where tables are created (default: a temporary folder)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
