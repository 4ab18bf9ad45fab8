"""Measures the cost of a small commit as a table grows.

Measures upserts of `--upsert-rows` rows, one data file each, into tables with more and more rows
and more and more files. The tables consist of metadata only: their manifests describe files that do
not exist, in commits of `--files-per-commit` files each. This works because a commit never opens
old data files.

"warm" is a process that has written to the table before. "first" is the first write of a new
process, including opening the table, but without starting Python and importing Keytide and pandas.
CPU time is the sum over all cores, and other programs disturb it less. "growing" is the most
expensive of the commits that created the table, one that merged manifests.

    python benchmarks/commit_cost.py
    python benchmarks/commit_cost.py --files 10 1000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl
import pyarrow as pa
from measure import import_lazily_loaded, stopwatch
from report import print_table
from workload import SCHEMA

import keytide as kt
from keytide.commit.change import Author, Change
from keytide.commit.committer import Committed, Committer
from keytide.format.manifest_entry import ManifestEntry
from keytide.lake.table import Table
from keytide.write.bucket_writer import restamp
from keytide.write.refusals import writable_view
from keytide.write.task import TaskResult

TABLE = "bench.t"
FLAT_RATIO_MAX = 1.25
WARM_COMMITS = 40
"""Enough to include at least one of the commits that also merge manifests."""
FIRST_COMMITS = 3


@dataclass(frozen=True)
class Size:
    """The size of a table before the measured commits."""

    rows: int
    files: int


@dataclass(frozen=True)
class Cost:
    """`wall_s` and `cpu_s` of every measured upsert."""

    size: Size
    warm: Sequence[dict[str, float]]
    first: Sequence[dict[str, float]]
    growing: Sequence[dict[str, float]]


def main() -> None:
    arguments = parse_arguments()
    if arguments.first:
        print(json.dumps(first_write(arguments.first, arguments.upsert_rows)))
        return
    load_average = os.getloadavg()[0]
    by_rows = [Size(rows, arguments.files_fixed) for rows in arguments.rows]
    by_files = [Size(arguments.rows_fixed, files) for files in arguments.files]
    for what, sizes in (("rows", by_rows), ("files", by_files)):
        costs = [measure(size, arguments) for size in sizes]
        print(f"\nMilliseconds of an upsert of {arguments.upsert_rows} rows, by {what}:\n")
        print_table(_HEADINGS, [_cells(cost) for cost in costs])
        print()
        for line in findings(what, costs):
            print(f"- {line}")
    print(f"\nload average {load_average:.1f} before, {os.getloadavg()[0]:.1f} after")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--files", nargs="+", type=int, default=[10, 100, 1_000, 10_000])
    parser.add_argument(
        "--rows-fixed", type=int, default=10_000_000, help="rows while the number of files grows"
    )
    parser.add_argument(
        "--files-fixed", type=int, default=100, help="files while the number of rows grows"
    )
    parser.add_argument("--files-per-commit", type=int, default=10)
    parser.add_argument("--upsert-rows", type=int, default=100)
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="where tables are created"
    )
    parser.add_argument("--first", metavar="WAREHOUSE", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(size: Size, arguments: argparse.Namespace) -> Cost:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as warehouse:
        table, growing = build(warehouse, size, arguments.files_per_commit)
        first = [fresh_process(warehouse, arguments.upsert_rows) for _ in range(FIRST_COMMITS)]
        table.write(upsert(arguments.upsert_rows, seed=0))  # catches up with the commits of others
        warm = []
        for number in range(WARM_COMMITS):
            rows = upsert(arguments.upsert_rows, seed=number)
            with stopwatch() as one:
                table.write(rows)
            warm.append(one)
    return Cost(size, warm, first, growing)


def build(
    warehouse: str, size: Size, files_per_commit: int
) -> tuple[Table, list[dict[str, float]]]:
    """A table with that many files and rows, of which only the first file exists, and the measured
    times.
    """
    table = kt.connect(warehouse).create_table(
        TABLE, SCHEMA, ["id"], options={"write-only": "true"}
    )
    table.write(upsert(1_000, seed=0))
    (written,) = table.stored.newest_files().entries
    copies = list(_copies(written, size.files - 1, size.rows // size.files))
    view = writable_view(table.stored)
    committer = Committer(table.metadata, view, restamp)
    live, growing = table.stored.newest_files(), []
    for start in range(0, len(copies), files_per_commit):
        written = TaskResult(tuple(copies[start : start + files_per_commit]))
        change = Change(written, Author.fresh())
        with stopwatch() as one:
            committed = committer.publish(change, live)
        assert isinstance(committed, Committed)
        live = committed.live
        growing.append(one)
    return table, growing


def upsert(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    frame = pl.DataFrame(
        {
            "id": rng.choice(1 << 40, rows, replace=False),
            "a": rng.integers(0, 1000, rows),
            "b": rng.random(rows),
            "c": rng.integers(0, 1 << 40, rows),
            "s": pl.Series(rng.integers(0, 100_000, rows)).cast(pl.String),
        }
    )
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(SCHEMA)


def fresh_process(warehouse: str, upsert_rows: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--first", warehouse, "--upsert-rows", str(upsert_rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def first_write(warehouse: str, upsert_rows: int) -> dict[str, float]:
    rows = upsert(upsert_rows, seed=os.getpid())
    import_lazily_loaded()
    with stopwatch() as one:
        kt.connect(warehouse).table(TABLE).write(rows)
    return one


def findings(what: str, costs: Sequence[Cost]) -> Iterator[str]:
    """What stays constant from the smallest table to the largest, and what does not."""
    small, large = costs[0], costs[-1]
    if small is large:
        return
    for name in ("warm", "first"):
        for clock in ("wall_s", "cpu_s"):
            before, after = (_median_ms(getattr(c, name), clock) for c in (small, large))
            ratio = after / before
            verdict = "flat" if ratio <= FLAT_RATIO_MAX else "NOT flat"
            yield (
                f"{name}, {_CLOCKS[clock]}: {verdict} from {getattr(small.size, what):,} to "
                f"{getattr(large.size, what):,} {what}: {before:.1f} to {after:.1f} ms, "
                f"{ratio:.2f} times"
            )


_CLOCKS = {"wall_s": "elapsed", "cpu_s": "CPU"}
_HEADINGS = (
    "rows",
    "files",
    "warm, median",
    "warm, fastest",
    "warm, slowest",
    "warm, CPU",
    "warm, most CPU",
    "first, median",
    "first, CPU",
    "growing, most CPU",
)


def _cells(cost: Cost) -> tuple[str, ...]:
    warm_ms = [one["wall_s"] * 1000 for one in cost.warm]
    figures = (
        median(warm_ms),
        min(warm_ms),
        max(warm_ms),
        _median_ms(cost.warm, "cpu_s"),
        max(one["cpu_s"] for one in cost.warm) * 1000,
        _median_ms(cost.first, "wall_s"),
        _median_ms(cost.first, "cpu_s"),
        max((one["cpu_s"] for one in cost.growing), default=0.0) * 1000,
    )
    return (
        f"{cost.size.rows:,}",
        f"{cost.size.files:,}",
        *(f"{figure:.1f}" for figure in figures),
    )


def _median_ms(measured: Sequence[dict[str, float]], clock: str) -> float:
    return median(one[clock] for one in measured) * 1000


def _copies(entry: ManifestEntry, count: int, rows: int) -> Iterator[ManifestEntry]:
    first_number = entry.file.min_sequence_number + 1
    for number in range(first_number, first_number + count):
        file = replace(
            entry.file,
            file_name=f"data-{uuid.uuid4()}-0.parquet",
            row_count=rows,
            min_sequence_number=number,
            max_sequence_number=number,
        )
        yield replace(entry, file=file)


if __name__ == "__main__":
    main()
