"""Measures planning a scan and making a commit as a table gets more files.

The tables consist of metadata only: their manifests describe files that do not exist, because
neither a plan nor a commit opens data files. A table has partitions of 200 files in 4 buckets. Of
the files of a bucket, five overlap on level 0, and the others follow each other on a higher level.

Every result is from a new process, including opening the table, but without starting Python and
importing Keytide and pandas. "again" is a second plan of everything in the same process. CPU time
is the sum over all cores, and other programs disturb it less.

"tasks of Spark" is a scan of everything, planned for a cluster of 100 cores and packed as it is
sent to executors. The bytes sent for each file must not grow with the number of files.

    python benchmarks/planning.py
    python benchmarks/planning.py --files 10 1000 --runs 1
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import pyarrow as pa
from listed import list_files
from measure import import_lazily_loaded, peak_memory_mb, stopwatch
from report import print_table

import keytide as kt
from keytide.format.binary_row import encode_rows
from keytide.format.manifest_entry import ManifestEntry
from keytide.read.plain_files import split_tasks
from keytide.spark.capacity import Capacity, task_count
from keytide.spark.read_plans import BinTask, bins_of_reads
from keytide.spark.runner import dump_task
from keytide.types import AtomicType

TABLE = "bench.t"
SCHEMA = pa.schema(
    [("day", pa.int32()), ("id", pa.int64()), ("a", pa.int64()), ("b", pa.float64()),
     ("s", pa.string())]
)  # fmt: skip
BUCKETS = 4
BUCKET_FILES = 50
OVERLAPPING_FILES = 5
FILE_KEYS = 1_000
CLUSTER = Capacity(100)
COMMITS_MAX_RATIO = 2.0
SENT_MAX_RATIO = 1.2
PLAN_S_MAX = 1.0


def main() -> None:
    arguments = parse_arguments()
    if arguments.measure:
        table = kt.connect(arguments.warehouse)
        import_lazily_loaded()
        print(json.dumps(MEASURES[arguments.measure](table)))
        return
    load_average = os.getloadavg()[0]
    figures = {files: measure(files, arguments) for files in arguments.files}
    for clock, name in (("wall_s", "elapsed"), ("cpu_s", "CPU")):
        print(f"\nMilliseconds, {name}, median of {arguments.runs}:\n")
        rows = [
            [f"{files:,}", *(f"{_median_ms(found[what], clock):.1f}" for what in FIGURES)]
            for files, found in figures.items()
        ]
        print_table(["files", *FIGURES], rows)
    print()
    for line in findings(figures):
        print(f"- {line}")
    print(f"\nload average {load_average:.1f} before, {os.getloadavg()[0]:.1f} after")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", nargs="+", type=int, default=[10, 10_000, 100_000])
    parser.add_argument("--runs", type=int, default=5, help="processes for each figure")
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="where tables are created"
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--warehouse", help=argparse.SUPPRESS)
    return parser.parse_args()


Took = dict[str, float]


def measure(files: int, arguments: argparse.Namespace) -> dict[str, list[Took]]:
    found: dict[str, list[Took]] = {what: [] for what in FIGURES}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as warehouse:
        build(warehouse, files)
        for _ in range(arguments.runs):
            for name in MEASURES:
                for what, took in fresh_process(name, warehouse).items():
                    found[what].append(took)
    return found


def fresh_process(name: str, warehouse: str) -> dict[str, Took]:
    command = [sys.executable, __file__, "--measure", name, "--warehouse", warehouse]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    took: dict[str, Took] = json.loads(done.stdout)
    return took


def _planned(where: str | None) -> Callable[[kt.Lake], dict[str, Took]]:
    name = where or "everything"

    def measured(lake: kt.Lake) -> dict[str, Took]:
        with stopwatch() as took:
            table = lake.table(TABLE)
            planned = table.scan(where=where).plan
        assert planned.funnel.stages
        if where is not None:
            return {name: took}
        with stopwatch() as again:
            planned = table.scan().plan
        assert planned.buckets
        return {name: took, "again": again}

    return measured


def _first_commit(lake: kt.Lake) -> dict[str, Took]:
    rows = pa.table([[0], [os.getpid()], [1], [1.0], ["x"]], schema=SCHEMA)
    with stopwatch() as took:
        lake.table(TABLE).write(rows)
    return {"first commit": took}


def _for_spark(lake: kt.Lake) -> dict[str, Took]:
    before = peak_memory_mb()
    with stopwatch() as took:
        scan = lake.table(TABLE).scan()
        bins = bins_of_reads(split_tasks(scan), lambda *work: task_count(CLUSTER, *work))
        sent = sum(
            len(dump_task(BinTask(tasks, scan.schema, TABLE, snapshot_ids=scan.snapshot_ids)))
            for tasks in bins
        )
    return {SENT: {**took, "tasks": len(bins), "bytes": sent, "memory": peak_memory_mb() - before}}


SENT = "tasks of Spark"
MEASURES = {
    "all": _planned(None),
    "spark": _for_spark,
    "partition": _planned("day = 0"),
    "key": _planned("day = 0 AND id = 1500"),
    "commit": _first_commit,
}
FIGURES = ("everything", "again", "day = 0", "day = 0 AND id = 1500", "first commit", SENT)


def build(warehouse: str, files: int) -> None:
    """A table with that many files, of which only the first one exists."""
    # A due compaction is not part of the commit's cost, and its files do not exist.
    options = {"bucket": str(BUCKETS), "write-only": "true"}
    table = kt.connect(warehouse).create_table(
        TABLE, SCHEMA, ["day", "id"], partition_by=["day"], options=options
    )
    table.write(pa.table([[0], [0], [1], [1.0], ["x"]], schema=SCHEMA))
    first = table.stored.newest_files().entries[0]
    list_files(table, list(_copies(first, files)))


def _copies(entry: ManifestEntry, count: int) -> Iterator[ManifestEntry]:
    integer, long = AtomicType("INT"), AtomicType("BIGINT")
    days = range(-(-count // (BUCKETS * BUCKET_FILES)))
    partitions = encode_rows([pa.array(days, pa.int32())], [integer])
    first = [FILE_KEYS * place for place in range(BUCKET_FILES)]
    lows = encode_rows([pa.array(first, pa.int64())], [long])
    highs = encode_rows([pa.array([key + FILE_KEYS - 1 for key in first], pa.int64())], [long])
    for number in range(count):
        day, place = divmod(number, BUCKETS * BUCKET_FILES)
        bucket, place = divmod(place, BUCKET_FILES)
        is_new = place < OVERLAPPING_FILES
        file = replace(
            entry.file,
            file_name=f"data-{uuid.uuid4()}-0.parquet",
            min_key=lows[0 if is_new else place],
            max_key=highs[-1 if is_new else place],
            min_sequence_number=number + 1,
            max_sequence_number=number + 1,
            level=0 if is_new else 5,
        )
        yield replace(entry, partition=partitions[day], bucket=bucket, file=file)


def findings(figures: dict[int, dict[str, list[Took]]]) -> Iterator[str]:
    """The results compared with the goals."""
    files = max(figures)
    plan_s = _median_ms(figures[files]["everything"], "wall_s") / 1000
    verdict = "pass" if plan_s < PLAN_S_MAX else "FAIL"
    yield f"plan of {files:,} files: {plan_s:.2f} s, to be under {PLAN_S_MAX:g} s: {verdict}"
    sent = {
        n: {key: median(one[key] for one in found[SENT]) for key in ("tasks", "bytes", "memory")}
        for n, found in figures.items()
    }
    for number, each in sent.items():
        yield (
            f"{number:,} files in {each['tasks']:g} tasks of Spark: {each['bytes'] / number:.0f} "
            f"bytes sent for each file, {each['memory']:.0f} MB of memory"
        )
    if files > 10_000 in sent:
        ratio = sent[files]["bytes"] / files / sent[10_000]["bytes"] * 10_000
        verdict = "pass" if ratio <= SENT_MAX_RATIO else "FAIL"
        yield (
            f"bytes sent for each of {files:,} files: {ratio:.2f} times those at 10,000, to be at "
            f"most {SENT_MAX_RATIO:g}: {verdict}"
        )
    few, many = min(figures), 10_000
    if many in figures and few < many:
        before, after = (_median_ms(figures[n]["first commit"], "wall_s") for n in (few, many))
        ratio = after / before
        verdict = "pass" if ratio <= COMMITS_MAX_RATIO else "FAIL"
        yield (
            f"first commit at {many:,} files: {ratio:.2f} times that at {few:,}, to be at most "
            f"{COMMITS_MAX_RATIO:g}: {verdict}"
        )


def _median_ms(measured: Sequence[Took], clock: str) -> float:
    return median(one[clock] for one in measured) * 1000


if __name__ == "__main__":
    main()
