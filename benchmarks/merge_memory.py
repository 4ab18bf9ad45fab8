"""Measures peak memory and speed of merging one bucket of overlapping runs.

Writes `--rows` rows as `--runs` sorted runs whose key ranges all overlap (one key out of ten occurs
in the other runs too). Then merges them in a separate process, and reports rows per second and the
peak resident memory of that process.

    python benchmarks/merge_memory.py --rows 50000000 --runs 10
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from measure import peak_memory_mb

import keytide as kt

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("a", pa.int64()),
        ("b", pa.float64()),
        ("c", pa.int64()),
        ("s", pa.string()),
    ]
)


def run_rows(run: int, runs: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(run)
    own = np.arange(rows * 9 // 10, dtype=np.int64) * runs + run
    shared = rng.choice(rows * runs, rows - len(own), replace=False).astype(np.int64)
    ids = np.unique(np.concatenate([own, shared]))
    frame = pl.DataFrame(
        {
            "id": ids,
            "a": rng.integers(0, 1000, len(ids)),
            "b": rng.random(len(ids)),
            "c": rng.integers(0, 1 << 40, len(ids)),
            "s": pl.Series(rng.integers(0, 100_000, len(ids))).cast(pl.String),
        }
    )
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def build(warehouse: str, rows: int, runs: int) -> None:
    table = kt.connect(warehouse).create_table(
        "bench.runs", SCHEMA, primary_key=["id"], options={"write-only": "true"}
    )
    for run in range(runs):
        table.write(run_rows(run, runs, rows // runs))


def merge(warehouse: str) -> None:
    table = kt.connect(warehouse).table("bench.runs")
    explanation = table.scan().explain()
    started = time.perf_counter()
    rows = sum(batch.num_rows for batch in table.scan().to_batches())
    seconds = time.perf_counter() - started
    stored = explanation.funnel.stages[0].rows
    peak = peak_memory_mb()
    print(
        f"{stored:,} rows in {explanation.runs_max} overlapping runs -> {rows:,} keys in "
        f"{seconds:.1f} s: {stored / seconds:,.0f} rows/s, peak memory {peak:,.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--merge", metavar="WAREHOUSE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.merge:
        merge(arguments.merge)
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as warehouse:
        build(warehouse, arguments.rows, arguments.runs)
        # A new process, so that the peak belongs only to the merge.
        command = [sys.executable, __file__, "--merge", warehouse]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
