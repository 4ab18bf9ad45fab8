"""Measures the peak memory of statements that change every row of a table, by table size.

Each statement runs in a separate process, over tables of several sizes with low memory options. If
memory is bounded, it stays constant from the second size on.

    python benchmarks/statement_memory.py --rows 250000 1000000 3000000
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
from measure import peak_memory_mb

import keytide as kt

STATEMENTS = {
    "DELETE": "DELETE FROM t WHERE k % 2 >= 0",
    "UPDATE": "UPDATE t SET v = v + 1 WHERE k % 2 >= 0",
    "UPDATE of keys": "UPDATE t SET k = k + 100000000",
    "MERGE, update": "MERGE INTO t USING t AS s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET v = s.v + 1",
    "MERGE, update and delete": "MERGE INTO t USING t AS s ON t.k = s.k "
    "WHEN MATCHED AND s.v < 500 THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v + 1",
    "MERGE, insert": "MERGE INTO t USING (SELECT k + 100000000 AS k, v, s FROM t) AS s "
    "ON t.k = s.k WHEN NOT MATCHED THEN INSERT *",
}  # fmt: skip
KINDS = {"keyed": ["k"], "append": []}
ROWS_MAX = 1 << 18


def build(warehouse: str, kind: str, rows: int, memory: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
    options = {"read.memory": memory, "write-buffer-size": memory, "write-only": "true"}
    if kind == "append":
        options |= {"deletion-vectors.enabled": "true"}
    table = kt.connect(warehouse).create_table("t", schema, KINDS[kind], options=options)
    for start in range(0, rows, ROWS_MAX):
        ids = np.arange(start, min(rows, start + ROWS_MAX), dtype=np.int64)
        texts = pa.array(ids * 7919 % 1_000_003).cast(pa.string())
        table.write(pa.table({"k": ids, "v": ids % 1000, "s": texts}, schema=schema))


def run(warehouse: str, statement: str) -> None:
    lake = kt.connect(warehouse)
    lake.sql("SELECT 1").to_arrow()
    before = peak_memory_mb()
    started = time.perf_counter()
    changed = lake.sql(STATEMENTS[statement]).row_count
    seconds = time.perf_counter() - started
    print(
        f"{changed:>10,} rows {seconds:>6.1f} s {peak_memory_mb():>8,.0f} MB (idle {before:,.0f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[250_000, 1_000_000, 3_000_000])
    parser.add_argument("--memory", default="64 mb", help="read.memory and write-buffer-size")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--statements", nargs="+", choices=STATEMENTS, default=list(STATEMENTS))
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run(*given.run)
        return
    for kind in given.kinds:
        for statement in given.statements:
            for rows in given.rows:
                with tempfile.TemporaryDirectory(dir=Path.cwd()) as warehouse:
                    build(warehouse, kind, rows, given.memory)
                    print(f"{kind:>7} {statement:<25}", end="", flush=True)
                    # A new process, so that the peak belongs only to the statement.
                    command = [sys.executable, __file__, "--run", warehouse, statement]
                    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
