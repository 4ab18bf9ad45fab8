"""DuckDB reads what another process publishes at that moment: whole commits, each row once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import behind_writers
import pyarrow as pa
import pytest

import duckdb_reader
import keytide as kt

KEYS = 6
READS_FOR_S, AT_MOST_S, RETAINED_S = 2.0, 60.0, 1
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
OPTIONS = {
    "upsert.mode": "full",
    "bucket": "2",
    "publish": "delta,iceberg",
    "snapshot.time-retained": f"{RETAINED_S} s",
    "snapshot.num-retained.min": "5",
}

WRITER = """
    import itertools, sys
    import keytide as kt

    table = kt.open_table(sys.argv[1])
    for n in itertools.count():
        table.write([{"k": k, "n": n} for k in range(int(sys.argv[2]))])
        if n % 4 == 1:
            table.delete("k = 0")
        if n % 4 == 3:
            table.compact(full=True)
        print(n, flush=True)
"""


@contextmanager
def writer(table: kt.Table) -> Iterator[None]:
    """A process that gives all keys the next number, again and again."""
    path = behind_writers.python_path(str(Path(kt.__file__).parents[1]))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), table.uri, str(KEYS)],
        env={**os.environ, "PYTHONPATH": path, "POLARS_MAX_THREADS": "1"},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        assert process.poll() is None, "the writer died"
    finally:
        process.kill()
        process.communicate()


def much_has_happened(table: kt.Table, seen: dict[str, list[int]]) -> bool:
    """Whether every form was read at two commits at least, and snapshots have expired."""
    return all(len({*numbers}) > 1 for numbers in seen.values()) and table.snapshots()[0].id > 1


@pytest.mark.takes_turns
@pytest.mark.slow
@pytest.mark.skipif(not duckdb_reader.is_here(), reason="`make interop-env` brings DuckDB")
def test_reader_sees_whole_commits_and_no_file_that_expiry_deleted(tmp_path: Path) -> None:
    table = kt.connect(str(tmp_path)).create_table("t", SCHEMA, ["k"], options=OPTIONS)
    seen: dict[str, list[int]] = {form: [] for form in duckdb_reader.SCANS}
    with writer(table):
        start = time.monotonic()
        while (waited := time.monotonic() - start) < READS_FOR_S or (
            waited < AT_MOST_S and not much_has_happened(table, seen)
        ):
            for form, numbers in seen.items():
                began = time.monotonic()
                try:
                    rows = duckdb_reader.read(table.uri, form)
                except duckdb_reader.DuckDBError:
                    if time.monotonic() - began > RETAINED_S / 2:
                        continue  # whoever reads for so long may come too late
                    raise
                keys, (number,) = sorted(rows["k"].to_pylist()), {*rows["n"].to_pylist()}
                assert keys in ([*range(KEYS)], [*range(1, KEYS)])
                numbers.append(number)
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert much_has_happened(table, seen)
