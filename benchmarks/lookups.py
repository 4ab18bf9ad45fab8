"""Measures the cost of a lookup by key as a table grows.

Creates tables with more and more rows, each with ten overlapping runs of 1 % of them on top.
Measures `get` of random keys, half of which exist, and `get_many` of some. "first" is the first
lookup of the process in that table. The others come after `--warm` lookups. `--filters` gives the
key a bloom filter.

    python benchmarks/lookups.py
    python benchmarks/lookups.py --filters
    python benchmarks/lookups.py --rows 1000000 10000000 --keys 100 --warm 1000
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import pyarrow as pa
from measure import import_lazily_loaded
from report import print_table
from workload import SCHEMA

import keytide as kt

TABLE = "bench.t"
RUNS = 10
LOAD_ROWS = 10_000_000
FILTERS = {"file-index.bloom-filter.columns": "id", "file-index.bloom-filter.id.fpp": "0.01"}
GET_MS_MAX = 1.5
GET_P95_MS_MAX = 4.0
GET_MANY_MS_MAX = 15.0
"""Of a thousand keys."""
GROWTH_MAX = 1.5


@dataclass(frozen=True)
class Cost:
    """Milliseconds of the lookups in a table with `rows` rows."""

    rows: int
    first: float
    get: list[float]
    get_many: list[float]


def main() -> None:
    arguments = parse_arguments()
    load_average = os.getloadavg()[0]
    import_lazily_loaded()
    costs = [measure(rows, arguments) for rows in arguments.rows]
    headings = ["rows", "first get", "get", "get, p95", f"get_many({arguments.keys})"]
    print(f"\nMilliseconds of lookups, medians, {RUNS} overlapping runs:\n")
    print_table(headings, [_cells(cost) for cost in costs])
    print()
    for line in findings(costs):
        print(f"- {line}")
    print(f"\nload average {load_average:.1f} before, {os.getloadavg()[0]:.1f} after")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--keys", type=int, default=1000, help="keys of one get_many")
    parser.add_argument("--warm", type=int, default=50, help="lookups before those measured")
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--filters", action="store_true", help="give the key a bloom filter")
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="where tables are created"
    )
    return parser.parse_args()


def measure(rows: int, arguments: argparse.Namespace) -> Cost:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as warehouse:
        build(warehouse, rows, FILTERS if arguments.filters else {})
        table = kt.connect(warehouse).table(TABLE)
        rng = np.random.default_rng(1)

        def random_keys(count: int) -> list[int]:
            found: list[int] = rng.integers(0, 2 * rows, count).tolist()
            return found

        first = timed(lambda: table.get(*random_keys(1)))
        for _ in range(arguments.warm):
            table.get(*random_keys(1))
        get = [timed(lambda: table.get(*random_keys(1))) for _ in range(arguments.repeat)]
        get_many = [
            timed(lambda: table.get_many(random_keys(arguments.keys)))
            for _ in range(arguments.repeat // 10)
        ]
    return Cost(rows, first, get, get_many)


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def build(warehouse: str, rows: int, options: Mapping[str, str]) -> None:
    """Even keys in sorted files, then runs of random keys over all of them."""
    # No compaction merges the runs while they are measured.
    options = {"write-only": "true", **options}
    table = kt.connect(warehouse).create_table(TABLE, SCHEMA, ["id"], options=options)
    for part in _parts(rows):
        table.write(part)
    rng = np.random.default_rng(0)
    for seed in range(RUNS):
        table.write(_rows(np.unique(rng.integers(0, 2 * rows, rows // 100)), seed))


def _parts(rows: int) -> Iterator[pa.Table]:
    for start in range(0, rows, LOAD_ROWS):
        yield _rows(np.arange(2 * start, 2 * min(start + LOAD_ROWS, rows), 2), start)


def _rows(ids: np.ndarray, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    texts = pa.array(rng.integers(0, 100_000, len(ids))).cast(pa.string())
    columns = [
        ids, rng.integers(0, 1000, len(ids)), rng.random(len(ids)),
        rng.integers(0, 1 << 40, len(ids)), texts,
    ]  # fmt: skip
    return pa.table(columns, schema=SCHEMA)


def findings(costs: list[Cost]) -> Iterator[str]:
    for cost in costs:
        found = {
            "get": (median(cost.get), GET_MS_MAX),
            "get, p95": (_p95(cost.get), GET_P95_MS_MAX),
            "get_many": (median(cost.get_many), GET_MANY_MS_MAX),
        }
        for name, (ms, most) in found.items():
            verdict = "pass" if ms <= most else "FAIL"
            yield f"{name} at {cost.rows:,} rows: {ms:.2f} ms (at most {most} ms): {verdict}"
    for small, large in itertools.pairwise(costs):
        ratio = median(large.get) / median(small.get)
        verdict = "pass" if ratio <= GROWTH_MAX else "FAIL"
        yield (
            f"get from {small.rows:,} to {large.rows:,} rows: {ratio:.2f}x (at most "
            f"{GROWTH_MAX}x): {verdict}"
        )


def _cells(cost: Cost) -> list[str]:
    figures = (cost.first, median(cost.get), _p95(cost.get), median(cost.get_many))
    return [f"{cost.rows:,}", *(f"{figure:.2f}" for figure in figures)]


def _p95(milliseconds: list[float]) -> float:
    return quantiles(milliseconds, n=20)[-1]


if __name__ == "__main__":
    main()
