"""Measures compaction: of overlapping runs, in a stream of small commits, and with a changelog.

"runs" writes `--rows` rows and ten upserts of 1 % of them into one bucket of a write-only table,
and compacts it fully. The number of rows includes old versions. The rate of a core is rows per CPU
second, which other programs disturb less than wall-clock time.

"stream" makes `--commits` commits of `--commit-rows` rows with `--keys` keys to a table with
default options, which compacts as usual. The write amplification is the size of all written data
files divided by that of the files of the commits.

"changelog" upserts 1 % of `--rows` rows, nine out of ten with an existing key, into tables with
each `changelog-producer` of compactions. It compares a commit with one to a table without a
changelog. With `lookup`, it must take at most twice as long.

Each part runs in a separate process. The rows are read afterwards and compared with the expected
ones.

    python benchmarks/compaction.py
    python benchmarks/compaction.py --rows 1000000 --commits 100
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from measure import import_lazily_loaded, peak_memory_mb, stopwatch
from workload import SCHEMA, UPSERTS, Workload, digest, open_workload, prepare

import keytide as kt
from keytide.format.manifest_entry import FileKind
from keytide.format.snapshot import CommitKind

TABLE = "bench.t"
PRODUCERS = ("none", "lookup", "full-compaction")
LOOKUP_COST_MAX = 2.0
"""As a multiple of the upsert without a changelog."""


def main() -> None:
    arguments = parse_arguments()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](arguments)))
        return
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        prepare(Path(directory, "workload"), arguments.rows)
        for part in PARTS:
            given = [*sys.argv[1:], "--part", part, "--directory", directory]
            run = subprocess.run(
                [sys.executable, __file__, *given], stdout=subprocess.PIPE, check=True, text=True
            )
            print(f"\n{part}")
            for name, value in json.loads(run.stdout.splitlines()[-1]).items():
                shown = value if isinstance(value, str) else f"{value:,}"
                print(f"  {name:<34}{shown:>14}")


def runs(arguments: argparse.Namespace) -> dict[str, Any]:
    """One large run and ten small ones become one."""
    workload = open_workload(Path(arguments.directory, "workload"))
    lake = kt.connect(Path(arguments.directory, "runs"))
    table = lake.create_table(TABLE, SCHEMA, ["id"], options={"write-only": "true"})
    table.write(workload.load_rows())
    for rows in workload.upserts():
        table.write(rows)
    read = workload.rows + UPSERTS * workload.upsert_rows
    import_lazily_loaded()
    os.sync()
    with stopwatch() as took:
        done = table.compact(full=True)
    peak_mb = peak_memory_mb()
    found = digest(table.scan().to_arrow())
    if found != workload.expected:
        raise ValueError(f"wrong rows: {found}, expected {workload.expected}")
    return {
        "rows read": read,
        "files before": done.files_before,
        "files after": done.files_after,
        "MB before": done.bytes_before >> 20,
        "MB written": (done.bytes_written or 0) >> 20,
        "seconds": round(took["wall_s"], 2),
        "CPU seconds": round(took["cpu_s"], 2),
        "rows a second": round(read / took["wall_s"]),
        "rows a second and core": round(read / took["cpu_s"]),
        "peak memory MB, writing included": round(peak_mb),
    }


def stream(arguments: argparse.Namespace) -> dict[str, Any]:
    """Small commits, one after the other, with compactions in between."""
    table = kt.connect(Path(arguments.directory, "stream")).create_table(TABLE, SCHEMA, ["id"])
    chance = np.random.default_rng(0)
    commits = [upsert(chance, arguments) for _ in range(arguments.commits)]
    took, runs_max = [], 0
    for rows in commits:
        with stopwatch() as one:
            table.write(rows)
        took.append(one)
        state = next(iter(table.stored.newest_files().buckets.values()))
        runs_max = max(runs_max, state.runs)
    check_rows(table, commits)
    with stopwatch() as reading:
        table.scan().to_arrow()
    seconds = sorted(one["wall_s"] for one in took)
    appended, compacted = (
        data_bytes(table, kind) for kind in (CommitKind.APPEND, CommitKind.COMPACT)
    )
    kinds = [snapshot.commit_kind for snapshot in table.snapshots()]
    return {
        "commits": len(commits),
        "compactions": kinds.count(CommitKind.COMPACT),
        "files at the end": len(table.scan().live.entries),
        "sorted runs at most": runs_max,
        "MB appended": round(appended / 2**20, 1),
        "MB written by compactions": round(compacted / 2**20, 1),
        "write amplification": round((appended + compacted) / appended, 2),
        "commit, median ms": round(median(seconds) * 1000, 1),
        "commit, 99 of 100 ms": round(seconds[int(len(seconds) * 0.99)] * 1000, 1),
        "commit, longest ms": round(seconds[-1] * 1000, 1),
        "rows a second": round(arguments.commits * arguments.commit_rows / sum(seconds)),
        "read of all, ms": round(reading["wall_s"] * 1000, 1),
    }


def changelog(arguments: argparse.Namespace) -> dict[str, Any]:
    """Upserts of 1 % of the rows with different changelogs. The tables take turns."""
    workload = open_workload(Path(arguments.directory, "workload"))
    tables, took = {}, {producer: [] for producer in PRODUCERS}
    for producer in PRODUCERS:
        lake = kt.connect(Path(arguments.directory, producer))
        options = {"changelog-producer": producer}
        tables[producer] = lake.create_table(TABLE, SCHEMA, ["id"], options=options)
        tables[producer].write(workload.load_rows())
    import_lazily_loaded()
    for rows in workload.upserts():
        for producer, table in tables.items():
            os.sync()
            with stopwatch() as one:
                table.write(rows)
            took[producer].append(one)
    figures: dict[str, Any] = {}
    for producer, table in tables.items():
        check_changelog(table, producer, workload)
        for unit, name in (("wall_s", "ms"), ("cpu_s", "CPU ms")):
            middle = median(one[unit] for one in took[producer])
            figures[f"{producer}, median {name}"] = round(middle * 1000)
    for producer in PRODUCERS[1:]:
        times = figures[f"{producer}, median ms"] / figures["none, median ms"]
        figures[f"{producer}, times none"] = round(times, 1)
    passed = figures["lookup, times none"] <= LOOKUP_COST_MAX
    figures[f"lookup: at most {LOOKUP_COST_MAX:g} times none"] = "pass" if passed else "FAIL"
    return figures


def check_changelog(table: kt.Table, producer: str, workload: Workload) -> None:
    """Raise `ValueError` unless the rows and the number of changes are as expected."""
    found = digest(table.scan().to_arrow())
    if found != workload.expected:
        raise ValueError(f"{producer}: wrong rows: {found}, expected {workload.expected}")
    told = sum(snapshot.changelog_record_count or 0 for snapshot in table.snapshots())
    added = workload.expected.rows - workload.rows
    replaced = UPSERTS * workload.upsert_rows - added
    expected = 0 if producer == "none" else workload.expected.rows + 2 * replaced
    if told != expected:
        raise ValueError(f"{producer}: {told} changes, expected {expected}")


def upsert(chance: np.random.Generator, arguments: argparse.Namespace) -> pa.Table:
    count = arguments.commit_rows
    ids = chance.choice(arguments.keys, count, replace=False)
    columns = [
        ids, chance.integers(0, 1000, count), chance.random(count),
        chance.integers(0, 1 << 40, count), [str(n) for n in chance.integers(0, 100_000, count)],
    ]  # fmt: skip
    return pa.table(columns, schema=SCHEMA)


def check_rows(table: kt.Table, commits: list[pa.Table]) -> None:
    """Raise `ValueError` unless every key has the row of the last commit that wrote it."""
    written = [pl.DataFrame(rows).with_columns(n=pl.lit(n)) for n, rows in enumerate(commits)]
    expected = pl.concat(written).sort("n").unique("id", keep="last").drop("n").sort("id")
    if not table.scan().to_polars().sort("id").equals(expected.select(SCHEMA.names)):
        raise ValueError("wrong rows after the stream")


def data_bytes(table: kt.Table, kind: CommitKind) -> int:
    """The bytes of the data files that commits of a kind wrote, without files that only moved."""
    total = 0
    for snapshot in table.snapshots():
        if snapshot.commit_kind is kind:
            entries = table.metadata.entries(table.metadata.delta_manifests(snapshot))
            gone = {e.file.file_name for e in entries if e.kind is FileKind.DELETE}
            added = (e.file for e in entries if e.kind is FileKind.ADD)
            total += sum(file.file_size for file in added if file.file_name not in gone)
    return total


PARTS = {"runs": runs, "stream": stream, "changelog": changelog}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the large run")
    parser.add_argument("--commits", type=int, default=500, help="commits of the stream")
    parser.add_argument("--commit-rows", type=int, default=1_000, help="rows of each commit")
    parser.add_argument("--keys", type=int, default=1_000_000, help="number of keys in the stream")
    parser.add_argument(
        "--directory", type=Path, help="where tables are created (default: a temporary folder)"
    )
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
