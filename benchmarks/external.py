"""Compares appending upserts and merging them on read with each format's own MERGE.

A Delta table and an Iceberg table get the rows of the upsert workload, in two ways. In one, the
upserts use the library's own MERGE (deltalake) or upsert (pyiceberg). In the other, a Keytide
statement on a federated table appends them. Then all rows are read, by the library, or merged by
Keytide. The result is the time of all upserts and one read together. Each way runs in a separate
process, and both must lead to the same rows.

    python benchmarks/external.py
    python benchmarks/external.py --rows 1000000 --formats delta

The upserts of pyiceberg take long. `--own-upserts` limits their number, and the others are assumed
to take their median time. The rows are then compared with what is expected after that number.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import pyarrow as pa
from measure import import_lazily_loaded, peak_memory_mb, stopwatch
from report import print_table
from workload import SCHEMA, UPSERTS, Workload, digest, open_workload, prepare

import keytide as kt

FASTER_MIN = 5.0
VERSION = "version"
STORED = SCHEMA.append(pa.field(VERSION, pa.int64()))
KEYS = kt.UpsertKeys(["id"], [VERSION])


class Way(ABC):
    """A table of some format, and one way to upsert and read it."""

    format: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def load(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def upsert(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def read(self) -> pa.Table: ...


class DeltaMerge(Way):
    """deltalake: `merge`, and `QueryBuilder`, which is faster than `to_pyarrow_table`."""

    format = "delta"

    def load(self, rows: pa.Table) -> None:
        from deltalake import DeltaTable, write_deltalake

        self.uri = str(self.folder / "t")
        write_deltalake(self.uri, rows)
        self.open = lambda: DeltaTable(self.uri)

    def upsert(self, rows: pa.Table) -> None:
        merge = self.open().merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def read(self) -> pa.Table:
        from deltalake import QueryBuilder

        query = QueryBuilder().register("t", self.open()).execute("SELECT * FROM t")
        return pa.table(query.read_all())


class IcebergMerge(Way):
    """pyiceberg: `upsert` and `scan`."""

    format = "iceberg"

    def load(self, rows: pa.Table) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        self.uri = f"sqlite:///{self.folder}/catalog.db"
        self.catalog = SqlCatalog("own", uri=self.uri, warehouse=f"file://{self.folder}")
        self.catalog.create_namespace("bench")
        self.catalog.create_table("bench.t", STORED).append(rows)

    def upsert(self, rows: pa.Table) -> None:
        self.catalog.load_table("bench.t").upsert(rows, join_cols=["id"])

    def read(self) -> pa.Table:
        return self.catalog.load_table("bench.t").scan().to_arrow()


class DeltaAppend(DeltaMerge):
    """Keytide's federated table over a Delta table that deltalake loaded."""

    def load(self, rows: pa.Table) -> None:
        super().load(rows)
        self.lake = kt.connect(self.folder / "lake")
        self.lake.attach("far", str(self.folder), format="delta", tables={"t": KEYS})

    def upsert(self, rows: pa.Table) -> None:
        self.lake.table("far.t").write(rows)

    def read(self) -> pa.Table:
        return self.lake.table("far.t").scan().to_arrow()


class IcebergAppend(IcebergMerge):
    """Keytide's federated table over an Iceberg table that pyiceberg loaded."""

    def load(self, rows: pa.Table) -> None:
        super().load(rows)
        self.lake = kt.connect(self.folder / "lake")
        options = {"catalog.uri": self.uri, "catalog.name": "own"}
        tables = {"t": KEYS}
        self.lake.attach("far", "bench", format="iceberg", options=options, tables=tables)

    upsert, read = DeltaAppend.upsert, DeltaAppend.read


WAYS: Mapping[str, type[Way]] = {
    "delta, keytide appends": DeltaAppend,
    "delta, deltalake merge": DeltaMerge,
    "iceberg, keytide appends": IcebergAppend,
    "iceberg, pyiceberg upsert": IcebergMerge,
}
READS = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--formats", nargs="+", choices=("delta", "iceberg"))
    parser.add_argument("--own-upserts", type=int, default=UPSERTS)
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measured(arguments.way, arguments.directory, arguments.own_upserts)))
        return
    load = os.getloadavg()[0]
    wanted = arguments.formats or ("delta", "iceberg")
    figures = {}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as scratch:
        prepare(Path(scratch, "workload"), arguments.rows)
        for name, way in WAYS.items():
            if way.format in wanted:
                figures[name] = in_own_process(name, scratch, arguments.own_upserts)
    report(figures)
    print(f"- load average {load:.1f} before, {os.getloadavg()[0]:.1f} after")


def in_own_process(way: str, scratch: str, own_upserts: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--way", way, "--own-upserts", str(own_upserts)]
    done = subprocess.run(
        [*command, "--directory", scratch], stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measured(name: str, directory: Path, own_upserts: int) -> dict[str, Any]:
    """The results of one way. Raises `ValueError` if it ends with wrong rows."""
    workload: Workload = open_workload(directory / "workload")
    folder = directory / name.replace(", ", "-").replace(" ", "-")
    folder.mkdir()
    way = WAYS[name](folder)
    import_lazily_loaded()
    count = own_upserts if way.format == "iceberg" and "keytide" not in name else UPSERTS
    batches = [versioned(rows, number) for number, rows in enumerate(workload.upserts(), 1)]
    way.load(versioned(workload.load_rows(), 0))
    os.sync()
    upserts, reads = [], []
    for batch in batches[:count]:
        with stopwatch() as one:
            way.upsert(batch)
        upserts.append(one)
    for _ in range(READS):
        rows = None  # one result in memory at a time
        with stopwatch() as one:
            rows = way.read()
        reads.append(one)
    assert rows is not None
    found, expected = digest(rows.select(SCHEMA.names)), workload.digests[count - 1]
    if found != expected:
        raise ValueError(f"{name}: wrong rows: {found}, expected {expected}")
    return {"upserts": upserts, "reads": reads, "peak_mb": peak_memory_mb()}


def versioned(rows: pa.Table, version: int) -> pa.Table:
    return rows.append_column(STORED.field(VERSION), pa.repeat(version, rows.num_rows))


def report(figures: Mapping[str, Mapping[str, Any]]) -> None:
    headings = ("way", "upserts", "median s", "worst s", "first read s", "best read s", "all s",
                "peak MB")  # fmt: skip
    print_table(headings, [cells(name, found) for name, found in figures.items()])
    print()
    for format_ in ("delta", "iceberg"):
        pair = [whole(found) for name, found in figures.items() if name.startswith(format_)]
        if len(pair) == len(("appends", "merges")):
            ratio = pair[1] / pair[0]
            outcome = "pass" if ratio >= FASTER_MIN else "FAIL"
            print(
                f"- {format_}: ten upserts and the first read {ratio:.1f} times faster "
                f"(goal: at least {FASTER_MIN:g}): {outcome}"
            )


def whole(found: Mapping[str, Any]) -> float:
    """Ten upserts and the first read of everything."""
    seconds = walls(found["upserts"])
    missing = (UPSERTS - len(seconds)) * median(seconds)
    return sum(seconds) + missing + walls(found["reads"])[0]


def cells(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    upserts, reads = walls(found["upserts"]), walls(found["reads"])
    timed = (median(upserts), max(upserts), reads[0], min(reads), whole(found))
    return (name, str(len(upserts)), *(f"{s:.2f}" for s in timed), f"{found['peak_mb']:,.0f}")


def walls(steps: list[dict[str, float]]) -> list[float]:
    return [step["wall_s"] for step in steps]


if __name__ == "__main__":
    main()
