"""Measures the time and peak memory of adopting a folder of Parquet files or a Delta table.

Creates `--rows` rows in `--files` files, sorted by key and unsorted. From each it creates a table
with `Lake.adopt`, and with `Lake.create_table_as` from the rows, which are first read completely.
Each call runs in a separate process.

    python benchmarks/adopting.py --rows 5000000 --memory "1 gb" "64 mb"
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import peak_memory_mb

import keytide as kt

ORDERS = ("sorted", "unsorted")


def rows_of(keys: np.ndarray) -> pa.Table:
    rng = np.random.default_rng(int(keys[0]))
    return pa.table(
        {
            "k": keys,
            "w": pa.array(keys * 7 + 1_700_000_000_000_000, pa.timestamp("us")),
            "status": np.take(["new", "paid", "sent", "done"], keys % 4),
            "amount": rng.random(len(keys)).round(4),
            "note": np.char.add("note ", (keys * 2_654_435_761 % 10**9).astype(str)),
        }
    )


def build(folder: Path, rows: int, files: int, format_: str) -> None:
    in_order = np.arange(rows, dtype=np.int64)
    shuffled = np.random.default_rng(0).permutation(in_order)
    for order, keys in zip(ORDERS, (in_order, shuffled), strict=True):
        (folder / order).mkdir()
        for number, part in enumerate(np.array_split(keys, files)):
            if format_ == "parquet":
                pq.write_table(rows_of(part), folder / order / f"{number:04}.parquet")
            else:
                import deltalake

                deltalake.write_deltalake(str(folder / order), rows_of(part), mode="append")


def make(way: str, source: Path, format_: str, memory: str) -> None:
    with tempfile.TemporaryDirectory() as warehouse:
        lake, options = kt.connect(warehouse), {"read.memory": memory}
        started, used = time.perf_counter(), time.process_time()
        if way == "adopt":
            lake.adopt(
                "t", format=format_, location=source, primary_key=["k"], watermark_key=["w"],
                options=options,
            )  # fmt: skip
        else:
            rows = pq.read_table(source)
            keys = {"watermark.key": "w", **options}
            lake.create_table_as("t", rows, rows.schema, ["k"], options=keys)
        took, worked = time.perf_counter() - started, time.process_time() - used
        print(
            f"{way:15} {source.name:8} read.memory {memory:>6}: {took:5.1f} s, {worked:5.1f} s of "
            f"processor, peak {peak_memory_mb():,.0f} MB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--format", choices=["parquet", "delta"], default="parquet")
    parser.add_argument("--memory", nargs="+", default=["1 gb", "64 mb"])
    parser.add_argument("--make", nargs=2, metavar=("WAY", "SOURCE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        way, source = given.make
        make(way, Path(source), given.format, given.memory[0])
        return
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), given.rows, given.files, given.format)
        for order in ORDERS:
            ways = [("adopt", memory) for memory in given.memory]
            if given.format == "parquet":
                ways.append(("create_table_as", given.memory[0]))
            for way, memory in ways:
                command = [sys.executable, __file__, "--format", given.format, "--memory", memory,
                           "--make", way, str(Path(folder) / order)]  # fmt: skip
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
