"""DuckDB as a reader of Delta and Iceberg tables, in an environment and a process of its own."""

from __future__ import annotations

import atexit
import json
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PYTHON = Path(__file__).parents[2] / ".venv-duckdb/bin/python"
SCANS = {"delta": "delta_scan", "iceberg": "iceberg_scan"}


class DuckDBError(Exception):
    """DuckDB cannot read what was asked."""


class DuckDBProcess:
    """One process with DuckDB, which answers queries until it is closed."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [PYTHON, Path(__file__).with_name("duckdb_judge.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def query(self, text: str) -> pa.Table:
        """The rows of a query. Raises `DuckDBError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        path = Path(self._scratch.name, "rows.parquet")
        request = {"query": text, "rows": str(path)}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "DuckDB died"
        refusal = json.loads(answer)["refusal"]
        if refusal is not None:
            raise DuckDBError(refusal)
        return pq.read_table(path)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=10)
        self._scratch.cleanup()


def is_here() -> bool:
    """Whether there is an environment with DuckDB; `make interop-env` makes it."""
    return PYTHON.exists()


@cache
def the_process() -> DuckDBProcess:
    """The one process of this run."""
    process = DuckDBProcess()
    atexit.register(process.close)
    return process


def read(uri: str, form: str, columns: str = "*", where: str = "true") -> pa.Table:
    """The rows of a Delta or an Iceberg table that meet a condition. Raises `DuckDBError`."""
    path = uri.removeprefix("file://").rstrip("/")
    query = f"SELECT {columns} FROM {SCANS[form]}('{path}') WHERE {where}"
    return the_process().query(query)
