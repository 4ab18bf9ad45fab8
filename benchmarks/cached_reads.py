"""Measures reads of a remote table without a local cache, with an empty cache, and with a full one.

The store is in memory. Each request takes `--latency` milliseconds, and each connection transfers
`--bandwidth` megabytes per second. Every read starts with empty in-memory caches, as in a new
process.

    python benchmarks/cached_reads.py
    python benchmarks/cached_reads.py --buckets 1
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import obstore
import pyarrow as pa
from measure import import_lazily_loaded
from report import print_table

import keytide as kt
from keytide.catalogs.warehouse import FolderWarehouse
from keytide.format.cache import forget_files
from keytide.snapshot.lineage import forget_lineages
from keytide.store import object_store

ADDRESS = "memory://bench"
COLUMNS = 10
REQUESTS = ("get", "get_range", "get_ranges", "head", "list", "list_with_delimiter")
READS: dict[str, Callable[[kt.Table], object]] = {
    "two columns": lambda table: table.scan(columns=["k", "v1"]).to_arrow(),
    "all columns": lambda table: table.scan().to_arrow(),
    "the row of a key": lambda table: table.get(777),
}


class FarClient:
    """Replaces the module `obstore`."""

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self.requests = 0
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        given = getattr(obstore, name)
        return self._late(name, given) if name in REQUESTS else given

    def _late(self, name: str, given: Callable[..., Any]) -> Callable[..., Any]:
        def late(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self.requests += 1
            time.sleep(self._latency_s)
            answer = given(*arguments, **options)
            if name == "get":
                return _Body(answer, self)
            if name in ("get_range", "get_ranges"):
                self.bring(answer if name == "get_ranges" else [answer])
            return answer

        return late

    def bring(self, pieces: Sequence[Any]) -> None:
        """Wait for the transfer of bytes."""
        time.sleep(sum(map(len, pieces)) / self._bytes_per_s)


class _Body:
    """A response whose bytes are transferred when they are read."""

    def __init__(self, result: Any, client: FarClient) -> None:
        self._result, self._client = result, client
        self.meta = result.meta

    def bytes(self) -> Any:
        found = self._result.bytes()
        self._client.bring([found])
        return found


def main() -> None:
    arguments = parse_arguments()
    import_lazily_loaded()
    files = fill(arguments.rows, arguments.buckets)
    client = FarClient(arguments.latency / 1000, arguments.bandwidth * 1e6)
    setattr(object_store, "obstore", client)  # noqa: B010  # mypy knows the module
    lines = []
    for name, read in READS.items():
        with tempfile.TemporaryDirectory() as cache:
            given: list[dict[str, Any]] = [{}, {"cache": cache}, {"cache": cache}]
            lines.append([name, *(cost(client, read, each) for each in given)])
    print(
        f"\n{len(files)} files of {max(files) >> 20} MiB at most, {sum(files) >> 20} MiB in all:\n"
    )
    print_table(["reads of", "without", "first", "later"], lines)


def fill(rows: int, buckets: int) -> list[int]:
    """Create a table with one run. Returns the sizes of its data files."""
    random = np.random.default_rng(1)
    lake = kt.connect(ADDRESS)
    names = [f"v{number}" for number in range(COLUMNS)]
    schema = pa.schema([("k", pa.int64()), *((name, pa.float64()) for name in names)])
    table = lake.create_table("t", schema, ["k"], options={"bucket": str(buckets)})
    values = {name: random.random(rows) for name in names}
    table.write(pa.table({"k": np.arange(rows), **values}, schema=schema))
    warehouse = lake.catalog.warehouse
    assert isinstance(warehouse, FolderWarehouse)
    return [info.size for info in warehouse.store.list() if "/bucket-" in info.path]


def cost(client: FarClient, read: Callable[[kt.Table], object], given: dict[str, Any]) -> str:
    forget_files()
    forget_lineages()
    client.requests, start = 0, time.perf_counter()
    read(kt.connect(ADDRESS, **given).table("t"))
    return f"{time.perf_counter() - start:.1f} s, {client.requests} requests"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--buckets", type=int, default=4)
    parser.add_argument(
        "--latency", type=float, default=30, help="latency of a request in milliseconds"
    )
    parser.add_argument(
        "--bandwidth", type=float, default=100, help="bandwidth of a connection in MB/s"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
