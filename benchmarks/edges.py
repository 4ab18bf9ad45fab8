"""Measures extreme workloads: very wide rows, very many parts, very small files.

Each runs in a separate process, which first creates its table. Only the step after that is
measured.

    python benchmarks/edges.py
    python benchmarks/edges.py --against ../other/src   # compares with another Keytide, in turns

`--against` names the folder that contains the other `keytide` package.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from measure import import_lazily_loaded, stopwatch
from report import print_table

import keytide as kt

Step = Callable[[], object]

_SOURCES = Path(__file__).parents[1] / "src"
_KEYS = pa.schema([("id", pa.int64()), ("v", pa.string())])


def wide_write(lake: kt.Lake) -> Step:
    """Write ten dicts of 2,000 columns."""
    types = [pa.int64(), pa.string(), pa.float64(), pa.decimal128(12, 2)]
    columns = [(f"c{i}", types[i % 4]) for i in range(1999)]
    table = lake.create_table("t", pa.schema([("id", pa.int64()), *columns]), ["id"])
    values = [1, "a", 1.5, None]
    row = {name: values[i % 4] for i, (name, _) in enumerate(columns)}
    rows = [{"id": key, **row} for key in range(10)]
    return lambda: table.write(rows)


def partitions_write(lake: kt.Lake) -> Step:
    """Write one row into each of 5,000 partitions."""
    schema = pa.schema([("p", pa.int32()), ("id", pa.int64()), ("v", pa.string())])
    table = lake.create_table("t", schema, ["p", "id"], ["p"])
    numbers = pa.array(range(5000))
    rows = pa.table({"p": numbers.cast(pa.int32()), "id": numbers, "v": ["x"] * 5000})
    return lambda: table.write(rows)


def small_files_scan(lake: kt.Lake) -> Step:
    """Read 1,000 files of eight rows."""
    options = {"bucket": "4", "write-only": "true"}
    table = lake.create_table("t", _KEYS, ["id"], options=options)
    for start in range(0, 250 * 32, 32):
        keys = pa.array(range(start, start + 32))
        table.write(pa.table({"id": keys, "v": ["x"] * 32}))
    return lambda: table.scan().to_arrow()


def in_1_000(lake: kt.Lake) -> Step:
    """Scan with `id IN (1,000 values)`."""
    return _scan(lake, f"id IN ({', '.join(map(str, range(0, 3000, 3)))})")


def in_100_000(lake: kt.Lake) -> Step:
    """Scan with `id IN (100,000 values)`."""
    return _scan(lake, f"id IN ({', '.join(map(str, range(0, 300_000, 3)))})")


def or_400(lake: kt.Lake) -> Step:
    """Scan with 400 conditions and OR between them."""
    return _scan(lake, " OR ".join(f"id = {i}" for i in range(400)))


def sql_in_1_000(lake: kt.Lake) -> Step:
    """Query with `id IN (1,000 values)`."""
    _table(lake)
    return lambda: lake.sql(
        f"SELECT count(*) FROM t WHERE id IN ({', '.join(map(str, range(0, 3000, 3)))})"
    ).to_pylist()


def values_20_000(lake: kt.Lake) -> Step:
    """INSERT of 20,000 VALUES."""
    lake.create_table("t", _KEYS, ["id"])
    statement = "INSERT INTO t VALUES " + ", ".join(f"({i}, 'v{i}')" for i in range(20_000))
    return lambda: lake.sql(statement)


def _scan(lake: kt.Lake, where: str) -> Step:
    table = _table(lake)
    return lambda: table.scan(where=where).to_arrow()


def _table(lake: kt.Lake) -> kt.Table:
    table = lake.create_table("t", _KEYS, ["id"], options={"bucket": "4"})
    keys = pa.array(range(100_000))
    table.write(pa.table({"id": keys, "v": keys.cast(pa.string())}))
    return table


WORKLOADS = {
    step.__name__: step
    for step in (
        wide_write, partitions_write, small_files_scan, in_1_000, in_100_000, or_400,
        sql_in_1_000, values_20_000,
    )
}  # fmt: skip


def measured(workload: str) -> dict[str, Any]:
    """Make the table, then time the step."""
    import_lazily_loaded()
    with tempfile.TemporaryDirectory() as folder:
        step = WORKLOADS[workload](kt.connect(folder))
        os.sync()
        with stopwatch() as took:
            step()
    return took


def run(workload: str, sources: Path, timeout_s: float) -> dict[str, Any]:
    """Run the workload in a separate process, with the package in `sources`."""
    command = [sys.executable, __file__, "--one", workload]
    environment = {**os.environ, "PYTHONPATH": str(sources.resolve())}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"over {timeout_s:g} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1].split(":")[0]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def shown(runs: list[dict[str, Any]], unit: str) -> str:
    failures = [each["failed"] for each in runs if "failed" in each]
    return failures[0] if failures else f"{median(each[unit] for each in runs):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", choices=WORKLOADS, help=argparse.SUPPRESS)
    parser.add_argument("--against", type=Path, help="source folder of another Keytide")
    parser.add_argument("--only", choices=WORKLOADS, nargs="+", default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--timeout", type=float, default=120, help="time limit of one run in seconds"
    )
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(arguments.one)))
        return
    if arguments.against and not (arguments.against / "keytide").is_dir():
        parser.error(f"{arguments.against} holds no keytide package; name the folder src of one")
    candidates = {"this": _SOURCES} | ({"other": arguments.against} if arguments.against else {})
    rows = []
    for workload in arguments.only:
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in candidates}
        for _ in range(arguments.rounds):
            for name, sources in candidates.items():
                if not any("failed" in each for each in runs[name]):
                    runs[name].append(run(workload, sources, arguments.timeout))
        figures = [shown(runs[name], unit) for name in candidates for unit in ("wall_s", "cpu_s")]
        rows.append([workload, *figures])
    heads = [f"{name} {unit}" for name in candidates for unit in ("wall s", "CPU s")]
    print_table(["workload", *heads], rows)


if __name__ == "__main__":
    main()
