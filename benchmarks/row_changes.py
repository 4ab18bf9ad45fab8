"""Compares DELETE, UPDATE and MERGE of single rows: Keytide, deltalake and DuckDB's own storage.

Each engine loads the rows of the upsert workload. Then, one after the other, it deletes 1 % of them
by a condition on a non-key column, updates another 1 % in the same way, merges the rows of one
upsert, and updates one row by its key. Every engine runs in a separate process, and must end with
the same rows.

The last result is an update of one row by its key in tables of a tenth of the rows, of all of them,
and of ten times as many, of which nine tenths are metadata only. The tables take turns.

    python benchmarks/row_changes.py
    python benchmarks/row_changes.py --rows 1000000 --engines keytide deltalake
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from listed import list_files
from measure import stopwatch
from report import print_table
from workload import SCHEMA, Workload, digest, open_workload, prepare

from keytide.format.binary_row import decode_rows, encode_rows
from keytide.format.manifest_entry import ManifestEntry
from keytide.types import AtomicType

DELETE, UPDATE, MERGE, ONE = "DELETE of 1 %", "UPDATE of 1 %", "MERGE", "UPDATE of one row"
AT_LEAST, BYTES_MAX = 3.0, 0.1
ONE_ROW_TURNS = 9
GROWTH_MAX = 1.5
SIZES = "sizes"


class Engine(ABC):
    """An engine with one table of the workload's rows in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def load(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def delete(self, where: str) -> None: ...

    @abstractmethod
    def update(self, column: str, value: str, where: str) -> None: ...

    @abstractmethod
    def merge(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def read(self) -> pa.Table: ...


class Keytide(Engine):
    def load(self, rows: pa.Table) -> None:
        import keytide

        self.lake = keytide.connect(self.folder)
        self.table = self.lake.create_table("t", SCHEMA, ["id"])
        self.table.write(rows)

    def delete(self, where: str) -> None:
        self.lake.sql(f"DELETE FROM t WHERE {where}")

    def update(self, column: str, value: str, where: str) -> None:
        self.lake.sql(f"UPDATE t SET {column} = {value} WHERE {where}")

    def merge(self, rows: pa.Table) -> None:
        (
            self.table.merge(rows, "target.id = source.id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    def read(self) -> pa.Table:
        return self.table.scan().to_arrow()


class Deltalake(Engine):
    def load(self, rows: pa.Table) -> None:
        from deltalake import DeltaTable, write_deltalake

        write_deltalake(str(self.folder), rows)
        self.open = lambda: DeltaTable(str(self.folder))

    def delete(self, where: str) -> None:
        self.open().delete(where)

    def update(self, column: str, value: str, where: str) -> None:
        self.open().update(updates={column: value}, predicate=where)

    def merge(self, rows: pa.Table) -> None:
        (
            self.open()
            .merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    def read(self) -> pa.Table:
        from deltalake import QueryBuilder

        return pa.table(
            QueryBuilder().register("t", self.open()).execute("SELECT * FROM t").read_all()
        ).cast(SCHEMA)


class DuckDB(Engine):
    def load(self, rows: pa.Table) -> None:
        import duckdb

        self.connection = duckdb.connect(str(self.folder / "t.db"))
        self.connection.execute("CREATE TABLE t AS SELECT * FROM rows")
        self.connection.execute("CHECKPOINT")

    def delete(self, where: str) -> None:
        self.connection.execute(f"DELETE FROM t WHERE {where}")

    def update(self, column: str, value: str, where: str) -> None:
        self.connection.execute(f"UPDATE t SET {column} = {value} WHERE {where}")

    def merge(self, rows: pa.Table) -> None:
        self.connection.execute(
            "MERGE INTO t USING rows s ON t.id = s.id WHEN MATCHED THEN UPDATE SET a = s.a, "
            "b = s.b, c = s.c, s = s.s WHEN NOT MATCHED THEN INSERT VALUES "
            "(s.id, s.a, s.b, s.c, s.s)"
        )

    def read(self) -> pa.Table:
        return self.connection.sql("SELECT * FROM t").to_arrow_table().cast(SCHEMA)


ENGINES: Mapping[str, type[Engine]] = {
    "keytide": Keytide, "deltalake": Deltalake, "duckdb": DuckDB,
}  # fmt: skip


def main() -> None:
    arguments = parse_arguments()
    if arguments.engine:
        measured = one_row_by_size if arguments.engine == SIZES else measure
        print(json.dumps(measured(arguments)))
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as scratch:
        prepare(Path(scratch, "workload"), arguments.rows, upserts=1)
        figures = {
            name: in_own_process(name, arguments.rows, scratch) for name in arguments.engines
        }
        sizes = in_own_process(SIZES, arguments.rows, scratch)
    report(figures)
    report_sizes(sizes)
    print(f"\n- load average {load:.1f} before, {os.getloadavg()[0]:.1f} after")


def in_own_process(engine: str, rows: int, scratch: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--engine", engine, "--rows", str(rows)]
    done = subprocess.run(
        [*command, "--directory", scratch], stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """The results of one engine, and the digest of its final rows."""
    workload: Workload = open_workload(Path(arguments.directory, "workload"))
    folder = Path(arguments.directory, arguments.engine)
    folder.mkdir()
    engine = ENGINES[arguments.engine](folder)
    engine.load(workload.load_rows())
    upsert = next(iter(workload.upserts()))
    steps = {
        DELETE: lambda: engine.delete("a < 10"),
        UPDATE: lambda: engine.update("c", "c + 1", "a >= 10 AND a < 20"),
        MERGE: lambda: engine.merge(upsert),
    }
    figures: dict[str, Any] = {}
    for name, step in steps.items():
        os.sync()
        before = written()
        with stopwatch() as took:
            step()
        os.sync()
        figures[name] = {**took, "bytes": written() - before}
    keys = upsert.column("id").to_pylist()[:ONE_ROW_TURNS]
    figures[ONE] = {"wall_s": median(one_row(engine, key) for key in keys)}
    found = digest(engine.read())
    figures["digest"] = [found.rows, found.checksum]
    return figures


def one_row(engine: Engine, key: int) -> float:
    with stopwatch() as took:
        engine.update("c", "0", f"id = {key}")
    return float(took["wall_s"])


def one_row_by_size(arguments: argparse.Namespace) -> dict[str, Any]:
    """The cost of an update of one row in tables of three sizes, by their rows."""
    import keytide

    rows = open_workload(Path(arguments.directory, "workload")).load_rows()
    lake = keytide.connect(Path(arguments.directory, SIZES))
    tables = {f"{count:,}": count for count in (len(rows) // 10, len(rows), len(rows) * 10)}
    for place, count in enumerate(tables.values()):
        table = lake.create_table(f"t{place}", SCHEMA, ["id"])
        table.write(rows.filter(pc.less(rows["id"], count)))
        table.compact(full=True)
        if count > len(rows):
            list_files(table, shifted(table.stored.newest_files().entries, len(rows) * 2, 9))
    step = len(rows) // 10 // (ONE_ROW_TURNS + 1)
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
    for turn in range(ONE_ROW_TURNS + 1):
        for place, name in enumerate(tables):
            with stopwatch() as took:
                lake.sql(f"UPDATE t{place} SET c = {turn} WHERE id = {turn * step}")
            turns[name].append(took)
    return {
        name: {clock: median(took[clock] for took in taken[1:]) for clock in ("wall_s", "cpu_s")}
        for name, taken in turns.items()
    }


def shifted(entries: Sequence[ManifestEntry], distance: int, times: int) -> list[ManifestEntry]:
    """Entries for files that do not exist, like these but with keys that follow theirs."""
    long = AtomicType("BIGINT")
    made = []
    for step in range(1, times + 1):
        for entry in entries:
            low, high = (
                encode_rows([pc.add(decode_rows([key], [long])[0], step * distance)], [long])[0]
                for key in (entry.file.min_key, entry.file.max_key)
            )
            name = f"data-{uuid.uuid4()}-0.parquet"
            file = replace(entry.file, file_name=name, min_key=low, max_key=high)
            made.append(replace(entry, file=file))
    return made


def report_sizes(sizes: Mapping[str, Mapping[str, float]]) -> None:
    print()
    print_table(
        ("UPDATE of one row by key, of rows", *sizes),
        [(name, *(f"{found[clock] * 1000:.0f} ms" for found in sizes.values()))
         for clock, name in (("wall_s", "elapsed"), ("cpu_s", "CPU"))],
    )  # fmt: skip
    (few, first), *others = sizes.items()
    print()
    for many, found in others:
        growth = found["wall_s"] / first["wall_s"]
        print(f"- one row of {many}: {growth:.2f} times one of {few} (goal: at most {GROWTH_MAX}): "
              f"{'pass' if growth <= GROWTH_MAX else 'FAIL'}")  # fmt: skip


def written() -> int:
    """The bytes that this process has written to disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("write_bytes")))


def report(figures: Mapping[str, Mapping[str, Any]]) -> None:
    if len({tuple(found["digest"]) for found in figures.values()}) > 1:
        raise ValueError(f"rows differ: { {n: f['digest'] for n, f in figures.items()} }")
    steps = (DELETE, UPDATE, MERGE, ONE)
    print_table(
        ("seconds", *figures),
        [(s, *(f"{found[s]['wall_s']:.3f}" for found in figures.values())) for s in steps],
    )
    print()
    print_table(
        ("MB written", *figures),
        [(s, *(f"{found[s]['bytes'] / 2**20:.1f}" for found in figures.values()))
         for s in steps[:3]],
    )  # fmt: skip
    if {"keytide", "deltalake"} <= figures.keys():
        verdicts(figures["keytide"], figures["deltalake"])


def verdicts(own: Mapping[str, Any], peer: Mapping[str, Any]) -> None:
    print()
    for step in (DELETE, UPDATE, MERGE):
        faster = peer[step]["wall_s"] / own[step]["wall_s"]
        less = own[step]["bytes"] / max(peer[step]["bytes"], 1)
        print(f"- {step}: {faster:.1f} times as fast as deltalake (goal: at least {AT_LEAST:.0f}): "
              f"{'pass' if faster >= AT_LEAST else 'FAIL'}")  # fmt: skip
        print(f"- {step}: {less:.3f} of the bytes of deltalake (goal: at most {BYTES_MAX}): "
              f"{'pass' if less <= BYTES_MAX else 'FAIL'}")  # fmt: skip


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--engine", choices=[*ENGINES, SIZES], help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
