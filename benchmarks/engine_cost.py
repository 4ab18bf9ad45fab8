"""Measures the cost of merging: partial updates and aggregation compared with `deduplicate`.

The same rows are written to one bucket of three tables: `--rows` rows with unique keys, then ten
runs of 1 % of them, nine out of ten with an existing key. Each table is then read completely, by
Keytide and by pypaimon-rust from the same files, each reader in a separate process. The readers
take turns. The output contains the best of all reads and the ratios, with pass or FAIL for each
goal.

    python benchmarks/engine_cost.py --rows 10000000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

import keytide as kt

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("a", pa.int64()),
        ("b", pa.float64()),
        ("c", pa.int64()),
        ("s", pa.string()),
        ("g", pa.int64()),
        ("h", pa.int64()),
    ]
)
ENGINES = {
    "deduplicate": {},
    "partial-update": {
        "merge-engine": "partial-update",
        "fields.g.sequence-group": "a,b",
        "fields.h.sequence-group": "c,s",
    },
    "aggregation": {
        "merge-engine": "aggregation",
        "fields.a.aggregate-function": "sum",
        "fields.b.aggregate-function": "max",
        "fields.default-aggregate-function": "last_non_null_value",
    },
}
WRITE_ONLY = {"write-only": "true"}
RUNS = 10
ROUNDS = 3
READS = 4
COST_MAX = 1.5
"""As a multiple of the read of `deduplicate`."""
PEER_SHARE_MAX = 0.5
"""As a fraction of the time of pypaimon-rust."""


def build(warehouse: str, rows: int) -> None:
    lake = kt.connect(warehouse)
    tables = [
        lake.create_table(
            f"bench.{name.replace('-', '_')}", SCHEMA, ["id"], options=options | WRITE_ONLY
        )
        for name, options in ENGINES.items()
    ]
    for run in runs(rows):
        for table in tables:
            table.write(run)


def runs(rows: int) -> Iterator[pa.Table]:
    """The base, whose keys are even, and the runs, in which one key out of ten is odd."""
    random = np.random.default_rng(1)
    yield columns(np.arange(rows) * 2, random)
    for _ in range(RUNS):
        keys = random.choice(rows, rows // 100, replace=False) * 2
        keys[: len(keys) // 10] += 1
        yield columns(np.sort(keys), random)


def columns(keys: np.ndarray, random: np.random.Generator) -> pa.Table:
    """Rows with these keys. One value out of ten is NULL, also in sequence fields."""
    count = len(keys)
    values = {
        "a": pl.Series(random.integers(0, 1000, count)),
        "b": pl.Series(random.random(count)),
        "c": pl.Series(random.integers(0, 1 << 40, count)),
        "s": pl.Series(random.integers(0, 100_000, count)).cast(pl.String),
        "g": pl.Series(random.integers(0, 1 << 40, count)),
        "h": pl.Series(random.integers(0, 1 << 40, count)),
    }
    gaps = {name: pl.Series(random.random(count) < 0.1) for name in values}
    frame = pl.DataFrame(
        {"id": keys, **{name: v.set(gaps[name], None) for name, v in values.items()}}
    )
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(SCHEMA)


def read(reader: str, warehouse: str, engine: str) -> dict[str, float]:
    """Read a table several times. Returns the best time and a checksum of the rows."""
    best = float("inf")
    for _ in range(READS):
        rows = None  # one result in memory at a time
        started = time.perf_counter()
        rows = READERS[reader](warehouse, f"bench.{engine.replace('-', '_')}")
        best = min(best, time.perf_counter() - started)
    return {"seconds": best, "rows": rows.num_rows, "digest": digest(rows)}


def read_keytide(warehouse: str, table: str) -> pa.Table:
    return kt.connect(warehouse).table(table).scan().to_arrow()


def read_pypaimon_rust(warehouse: str, table: str) -> pa.Table:
    from pypaimon_rust.datafusion import PaimonCatalog

    builder = PaimonCatalog({"warehouse": warehouse}).get_table(table).new_read_builder()
    splits = builder.new_scan().plan().splits()
    return pa.Table.from_batches(builder.new_read().read_arrow(splits))


READERS = {"keytide": read_keytide, "pypaimon-rust": read_pypaimon_rust}


def digest(rows: pa.Table) -> int:
    """A checksum over whole rows, independent of their order."""
    frame = pl.from_arrow(rows.select(SCHEMA.names).cast(SCHEMA))
    return int(frame.hash_rows().cast(pl.UInt64).to_numpy().sum(dtype=np.uint64))


def measured(reader: str, warehouse: str, engine: str) -> dict[str, float] | None:
    """The result of a separate process. None if the reader is not installed."""
    command = [sys.executable, __file__, "--read", reader, engine, warehouse]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] | None = json.loads(done.stdout)
    return found


def best_of(found: list[dict[str, float] | None]) -> dict[str, float] | None:
    there = [one for one in found if one is not None]
    return min(there, key=lambda one: one["seconds"]) if there else None


def report(ours: dict[str, float], theirs: dict[str, float | None]) -> bool:
    passed = True
    for engine, seconds in ours.items():
        line = f"{engine:<16} keytide {seconds:6.2f} s"
        if engine != "deduplicate":
            line += verdict(seconds / ours["deduplicate"], COST_MAX, "x deduplicate")
            passed &= seconds / ours["deduplicate"] <= COST_MAX
        peer = theirs[engine]
        if peer is not None:
            line += f"   pypaimon-rust {peer:6.2f} s"
            line += verdict(seconds / peer, PEER_SHARE_MAX, "of it")
            passed &= seconds / peer <= PEER_SHARE_MAX
        print(line)
    return passed


def verdict(ratio: float, goal: float, of: str) -> str:
    return f"   {ratio:.2f} {of} (goal {goal}: {'pass' if ratio <= goal else 'FAIL'})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keep", metavar="WAREHOUSE", help="use this folder, and keep it")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        reader, engine, warehouse = arguments.read
        try:
            print(json.dumps(read(reader, warehouse, engine)))
        except ModuleNotFoundError:
            print("null")
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        warehouse = arguments.keep or scratch
        if not (Path(warehouse) / "bench.db").exists():
            build(warehouse, arguments.rows)
        os.sync()
        rounds = [
            {
                (reader, engine): measured(reader, warehouse, engine)
                for engine in ENGINES
                for reader in READERS
            }
            for _ in range(ROUNDS)
        ]
        found = {turn: best_of([one[turn] for one in rounds]) for turn in rounds[0]}
    for engine in ENGINES:
        one, other = found["keytide", engine], found["pypaimon-rust", engine]
        if other is not None and (one["rows"], one["digest"]) != (other["rows"], other["digest"]):
            print(f"{engine}: the readers returned different rows, {one} and {other}")
    ours = {engine: found["keytide", engine]["seconds"] for engine in ENGINES}
    theirs = {
        engine: found["pypaimon-rust", engine] and found["pypaimon-rust", engine]["seconds"]
        for engine in ENGINES
    }
    sys.exit(0 if report(ours, theirs) else 1)


if __name__ == "__main__":
    main()
