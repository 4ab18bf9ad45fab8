"""Whoever keeps tables that are not Keytide's: how their own libraries write, change and read them.

Rows have plain values, as in `fuzz_columns`. A library that refuses a name or a value of its own
accord raises `UnableError`, and nothing is there then that was not there before.
"""

from __future__ import annotations

import csv
import json
import pickle
import random
import sqlite3
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_columns import array, kind_of, plain
from pyiceberg.catalog.sql import SqlCatalog

import delta_tables  # behind the path of what is beside the tests of such tables
import iceberg_tables
from keytide.types import DataType

__all__ = ["KEEPERS", "Keeper", "UnableError", "quoted_name"]

Row = dict[str, Any]
Columns = dict[str, DataType]
_MOMENT = datetime(1970, 1, 1)


class UnableError(Exception):
    """A library refuses what a case would have it do."""


@dataclass
class Keeper(ABC):
    """A table of one format: its columns, and where its versions lie."""

    folder: Path
    columns: Columns
    chance: random.Random
    partition: str | None = None
    """A column by which the table is cut into folders."""
    has_rewritten: bool = False
    """Whether rows were moved between files, so that nobody knows any more when they came."""
    knows_rows: ClassVar[bool] = True
    """Whether rows of one commit lie in the order in which they were given."""

    format: ClassVar[str]
    types: ClassVar[Sequence[str]]
    awkward: ClassVar[str] = ""
    """Characters that no name of a column may have."""
    is_ordered: bool = True
    is_federated: ClassVar[bool] = False
    declares: ClassVar[bool] = False
    """Whether the types have to be told, as the files do not tell them."""

    @property
    def location(self) -> str:
        """Where an external table finds it."""
        return str(self.folder / "t")

    @property
    def options(self) -> dict[str, str]:
        """The options of an external table."""
        return {}

    @abstractmethod
    def create(self) -> None:
        """Make the table, without a row."""

    @abstractmethod
    def append(self, rows: list[Row]) -> None:
        """Add rows in one commit."""

    @abstractmethod
    def stored(self) -> list[Row]:
        """All rows that lie there now."""

    def keeps(self, v: Any, kind: DataType) -> bool:
        """Whether the format can hold a value as it is."""
        return True

    def maintain(self) -> str:
        """Do what the format's own engines do at times; returns what."""
        return "nothing"

    def evolve(self, name: str, kind: DataType) -> None:
        """Add a column."""
        raise UnableError

    def rename(self, name: str, to: str) -> None:
        """Give a column another name."""
        raise UnableError

    def drop(self, name: str) -> None:
        """Let a column go."""
        raise UnableError

    def version(self) -> str | None:
        """What the newest version is called; None where there is none."""
        return None

    def arrow(self, rows: list[Row]) -> pa.Table:
        """Rows with the columns in their order."""
        return pa.table({n: array([r[n] for r in rows], k) for n, k in self.columns.items()})

    def _plain(self, table: pa.Table) -> list[Row]:
        found = {
            n: plain(table.column(n).cast(k.to_arrow())) if n in table.column_names
            else [None] * table.num_rows
            for n, k in self.columns.items()
        }  # fmt: skip
        return [
            dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)
        ]


def quoted_name(name: str) -> str:
    """A name as databases quote it."""
    return '"' + name.replace('"', '""') + '"'


_NESTED = ["ARRAY<INT>", "MAP<STRING, INT>", "ROW<a INT, b STRING>"]


class DeltaKeeper(Keeper):
    """A Delta table."""

    format = "delta"
    types = (
        "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BYTES",
        "DATE", "DECIMAL(10, 2)", "DECIMAL(30, 5)", "TIMESTAMP(6)",
        "TIMESTAMP(6) WITH LOCAL TIME ZONE", *_NESTED,
    )  # fmt: skip
    awkward = " ,;{}()\n\t=:"  # with a colon the library does not find its own partitions
    is_federated = True

    @property
    def table(self) -> deltalake.DeltaTable:
        """The table now."""
        return deltalake.DeltaTable(self.location)

    def create(self) -> None:
        fields = [
            deltalake.Field.from_arrow(pa.field(n, k.to_arrow())) for n, k in self.columns.items()
        ]
        _able(
            lambda: deltalake.DeltaTable.create(
                self.location, deltalake.Schema(fields), partition_by=self.partition
            )
        )

    def append(self, rows: list[Row]) -> None:
        _able(lambda: deltalake.write_deltalake(self.location, self.arrow(rows), mode="append"))

    def stored(self) -> list[Row]:
        found = deltalake.QueryBuilder().register("t", self.table).execute("SELECT * FROM t")
        return self._plain(pa.table(found))

    def maintain(self) -> str:
        table, files = self.table, len(self.table.file_uris())
        column = self.chance.choice([n for n in self.columns if n != self.partition])
        act: Callable[[], Any]
        told, act = self.chance.choice(
            [
                ("compact", table.optimize.compact),
                ("z-order", lambda: table.optimize.z_order([column])),
                ("delete", lambda: table.delete(f"{quoted_name(column)} IS NULL")),
                ("vacuum", lambda: table.vacuum(0, enforce_retention_duration=False, dry_run=True)),
                ("checkpoint", table.create_checkpoint),
                ("restore", lambda: table.restore(max(0, table.version() - 1))),
                ("vector", lambda: self._kill(table)),
                ("overwrite", lambda: self._overwrite(table, column)),
            ]
        )
        if told == "overwrite" and self.columns[column].sql() == "BYTES":
            return "nothing"
        # A restore takes columns back too that came meanwhile.
        has_evolved = any(name.startswith("x") for name in self.columns)
        if told == "restore" and (table.version() < 2 or has_evolved):
            return "nothing"
        _able(act)
        moves = told in ("compact", "z-order", "delete", "restore", "overwrite")
        self.has_rewritten |= files > 0 and moves
        return f"{told} by {column}"

    def _kill(self, table: deltalake.DeltaTable) -> None:
        """Mark some rows of a file as dead."""
        adds = pa.table(table.get_add_actions()).to_pylist()
        if adds and not table.protocol().reader_features:
            add = self.chance.choice(adds)
            dead = self.chance.sample(range(add["num_records"]), (add["num_records"] + 1) // 2)
            folder = Path(self.location)
            inline = self.chance.random() < 0.5
            delta_tables.delete_by_vector(folder, add["path"], dead, inline=inline)

    def _overwrite(self, table: deltalake.DeltaTable, column: str) -> None:
        """Write rows anew that have no value in a column."""
        query = f"SELECT * FROM t WHERE {quoted_name(column)} IS NULL"
        rows = pa.table(deltalake.QueryBuilder().register("t", table).execute(query))
        rows = rows.cast(self.arrow([]).schema)
        where = f"{quoted_name(column)} IS NULL"
        deltalake.write_deltalake(table, rows, mode="overwrite", predicate=where)

    def evolve(self, name: str, kind: DataType) -> None:
        added = deltalake.Field.from_arrow(pa.field(name, kind.to_arrow()))
        _able(lambda: self.table.alter.add_columns(added))
        self.columns[name] = kind

    def version(self) -> str | None:
        return str(self.table.version())


class IcebergKeeper(Keeper):
    """An Iceberg table in a catalog of SQLite."""

    format = "iceberg"
    types = (
        "BOOLEAN", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BYTES", "DATE", "DECIMAL(10, 2)",
        "DECIMAL(30, 5)", "TIMESTAMP(6)", "TIMESTAMP(6) WITH LOCAL TIME ZONE", "BINARY(3)",
        *_NESTED,
    )  # fmt: skip
    awkward = "."
    is_federated = True

    @property
    def location(self) -> str:
        return "n.t"

    @property
    def options(self) -> dict[str, str]:
        return {"catalog.uri": f"sqlite:///{self.folder}/c.db"}

    @property
    def table(self) -> Any:
        """The table now."""
        catalog = SqlCatalog(
            "default", uri=f"sqlite:///{self.folder}/c.db", warehouse=f"file://{self.folder}/w"
        )
        return catalog.load_table("n.t")

    def create(self) -> None:
        self.folder.mkdir()
        catalog = SqlCatalog(
            "default", uri=f"sqlite:///{self.folder}/c.db", warehouse=f"file://{self.folder}/w"
        )
        catalog.create_namespace("n")
        version = self.chance.choice(["2", "2", "2", "1"])
        self.is_ordered = version == "2"
        schema = self.arrow([]).schema
        _able(lambda: catalog.create_table("n.t", schema, properties={"format-version": version}))

    def append(self, rows: list[Row]) -> None:
        if rows:
            _able(lambda: self.table.append(self.arrow(rows)))

    def stored(self) -> list[Row]:
        return self._plain(self.table.scan().to_arrow())

    def maintain(self) -> str:
        from pyiceberg.expressions import IsNull
        from pyiceberg.table.snapshots import Operation

        table = self.table
        if table.current_snapshot() is None:
            return "nothing"
        column = self.chance.choice(list(self.columns))
        if isinstance(self.columns[column].sql(), str) and "<" in self.columns[column].sql():
            return "nothing"
        act: Callable[[], Any]
        told, act = self.chance.choice(
            [
                ("delete", lambda: table.delete(IsNull(column))),
                ("overwrite", lambda: table.overwrite(table.scan().to_arrow())),
                ("overwrite some", lambda: table.overwrite(
                    table.scan(row_filter=IsNull(column)).to_arrow(), IsNull(column))),
                ("positions", lambda: self._kill(table)),
                ("rewrite", lambda: iceberg_tables.rewrite(
                    table, iceberg_tables.live_files(table), Operation.REPLACE)),
            ]
        )  # fmt: skip
        _able(act)
        self.has_rewritten = True
        return f"{told} by {column}"

    def _kill(self, table: Any) -> None:
        """Mark some rows of a file as dead."""
        files = iceberg_tables.live_files(table)
        if files and self.is_ordered:
            file = self.chance.choice(files)
            dead = self.chance.sample(range(file.record_count), (file.record_count + 1) // 2)
            iceberg_tables.delete_positions(table, {file.file_path: dead})

    def evolve(self, name: str, kind: DataType) -> None:
        from pyiceberg.io.pyarrow import visit_pyarrow  # noqa: F401  # there, if pyiceberg is

        def add() -> None:
            with self.table.update_schema() as update:
                update.union_by_name(
                    pa.schema([*self.arrow([]).schema, pa.field(name, kind.to_arrow())])
                )

        _able(add)
        self.columns[name] = kind

    def rename(self, name: str, to: str) -> None:
        def change() -> None:
            with self.table.update_schema() as update:
                update.rename_column(name, to)

        _able(change)
        self.columns = {to if n == name else n: k for n, k in self.columns.items()}

    def drop(self, name: str) -> None:
        def change() -> None:
            with self.table.update_schema(allow_incompatible_changes=True) as update:
                update.delete_column(name)

        _able(change)
        self.columns = {n: k for n, k in self.columns.items() if n != name}

    def version(self) -> str | None:
        snapshot = self.table.current_snapshot()
        return None if snapshot is None else str(snapshot.snapshot_id)


class SqliteKeeper(Keeper):
    """A table of SQLite."""

    format = "sqlite"
    types = (
        "BIGINT",
        "DOUBLE",
        "STRING",
        "BYTES",
        "BOOLEAN",
        "DATE",
        "TIMESTAMP(6)",
        "DECIMAL(10, 2)",
    )
    awkward = "\0"
    is_ordered = False
    is_federated = True
    _DECLARED: ClassVar[Mapping[str, str]] = {
        "BIGINT": "INTEGER", "DOUBLE": "REAL", "STRING": "TEXT", "BYTES": "BLOB",
        "BOOLEAN": "BOOLEAN", "DATE": "DATE", "TIMESTAMP(6)": "TIMESTAMP",
        "DECIMAL(10, 2)": "DECIMAL(10, 2)",
    }  # fmt: skip

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.is_ordered = False

    @property
    def location(self) -> str:
        return f"{self.folder}.db"

    @property
    def options(self) -> dict[str, str]:
        return {"table": "t"}

    def create(self) -> None:
        columns = ", ".join(map(self._column, self.columns.items()))
        self._run(f"CREATE TABLE t ({columns})")

    def append(self, rows: list[Row]) -> None:
        # In a process of its own: two copies of SQLite in one process drop each other's locks.
        marks = ", ".join("?" * len(self.columns))
        raw = [[_raw(r[n], k) for n, k in self.columns.items()] for r in rows]
        work = pickle.dumps((self.location, f"INSERT INTO t VALUES ({marks})", raw))
        subprocess.run([sys.executable, "-c", _INSERTS], input=work, check=True)

    def stored(self) -> list[Row]:
        with closing(sqlite3.connect(self.location)) as connection:
            found = connection.execute("SELECT * FROM t").fetchall()
        kinds = self.columns.items()
        return [{n: _of_raw(v, k) for (n, k), v in zip(kinds, row, strict=True)} for row in found]

    def keeps(self, v: Any, kind: DataType) -> bool:
        return not isinstance(v, float) or (v == v and str(v) != "-0.0")

    def maintain(self) -> str:
        column = self.chance.choice(list(self.columns))
        text = self.chance.choice(["VACUUM", f"DELETE FROM t WHERE {quoted_name(column)} IS NULL"])
        self._run(text)
        return text

    def evolve(self, name: str, kind: DataType) -> None:
        self._run(f"ALTER TABLE t ADD COLUMN {self._column((name, kind))}")
        self.columns[name] = kind

    def _column(self, column: tuple[str, DataType]) -> str:
        return f"{quoted_name(column[0])} {self._DECLARED[column[1].sql()]}"

    def _run(self, text: str) -> None:
        with closing(sqlite3.connect(self.location, isolation_level=None)) as connection:
            connection.execute(text)


@dataclass
class FolderKeeper(Keeper):
    """A folder of files, each written once; whoever keeps it puts some together now and then."""

    rows: list[Row] = field(default_factory=list)
    files: int = 0
    ending: ClassVar[str]

    def __post_init__(self) -> None:
        self.is_ordered = False

    def create(self) -> None:
        (self.folder / "t").mkdir(parents=True)
        self.append([])

    def append(self, rows: list[Row]) -> None:
        groups: dict[str, list[Row]] = {}
        for row in rows or ([] if self.partition else [None]):  # type: ignore[list-item]
            folder = (
                ""
                if self.partition is None
                else self._folder(row[self.partition], self.columns[self.partition])
            )
            groups.setdefault(folder, []).extend([] if row is None else [row])
        for folder, some in groups.items():
            self.files += 1
            path = (
                self.folder
                / "t"
                / folder
                / f"{self.chance.randrange(10**9)}-{self.files}.{self.ending}"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(path, [n for n in self.columns if n != self.partition], some)
        self.rows += rows

    def stored(self) -> list[Row]:
        return [dict(row) for row in self.rows]

    def keeps(self, v: Any, kind: DataType) -> bool:
        return True

    def maintain(self) -> str:
        if self.partition is not None:
            return "nothing"
        paths = sorted((self.folder / "t").glob(f"*.{self.ending}"))
        rows, self.rows = self.rows, []
        self.chance.shuffle(rows)
        self.append(rows)
        for path in paths:
            path.unlink()
        return "put all files together"

    def _folder(self, v: Any, kind: DataType) -> str:
        text = "__HIVE_DEFAULT_PARTITION__" if v is None else str(_raw(v, kind))
        return f"{quote(self.partition or '', safe='')}={quote(text, safe='')}"

    @abstractmethod
    def _write(self, path: Path, names: list[str], rows: list[Row]) -> None:
        """Write one file."""


class ParquetKeeper(FolderKeeper):
    """A folder of Parquet files."""

    format = ending = "parquet"
    types = (*DeltaKeeper.types, "TIMESTAMP(3)", "BINARY(3)", "TIME(3)", "DECIMAL(18, 0)")

    def _write(self, path: Path, names: list[str], rows: list[Row]) -> None:
        pq.write_table(
            self.arrow(rows).select(names), path, row_group_size=self.chance.choice([2, 999])
        )


class CsvKeeper(FolderKeeper):
    """A folder of CSV files."""

    format = ending = "csv"
    types = (
        "BOOLEAN",
        "INT",
        "BIGINT",
        "DOUBLE",
        "STRING",
        "DATE",
        "DECIMAL(10, 2)",
        "TIMESTAMP(6)",
    )
    awkward = "\0"
    declares = True

    def keeps(self, v: Any, kind: DataType) -> bool:
        return not (isinstance(v, str) and "\0" in v)

    def _write(self, path: Path, names: list[str], rows: list[Row]) -> None:
        with path.open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerow(names)
            for row in rows:
                file.write(",".join(self._spelled(row[n], self.columns[n]) for n in names) + "\n")

    def _spelled(self, v: Any, kind: DataType) -> str:
        v = _raw(v, kind)
        if v is None:
            return ""
        if kind.sql() == "BOOLEAN":
            return "true" if v else "false"
        return quoted_name(v) if isinstance(v, str) and kind.sql() == "STRING" else str(v)


class JsonKeeper(FolderKeeper):
    """A folder of files with an object in each line."""

    format = ending = "json"
    types = ("BOOLEAN", "INT", "BIGINT", "DOUBLE", "STRING", "DATE", "TIMESTAMP(6)")
    declares = True

    def keeps(self, v: Any, kind: DataType) -> bool:
        return not isinstance(v, float) or abs(v) < 1e300

    def _write(self, path: Path, names: list[str], rows: list[Row]) -> None:
        with path.open("w") as file:
            for number, row in enumerate(rows):
                told = {n: _raw(row[n], self.columns[n]) for n in names}
                # A column that orders versions must be in some line.
                if number and self.chance.random() < 0.3:
                    told = {n: v for n, v in told.items() if v is not None}
                for n, k in self.columns.items():
                    if k.sql() == "BOOLEAN" and told.get(n) is not None:
                        told[n] = bool(told[n])
                file.write(json.dumps(told) + "\n")


KEEPERS: dict[str, type[Keeper]] = {
    "delta": DeltaKeeper,
    "iceberg": IcebergKeeper,
    "sqlite": SqliteKeeper,
    "parquet": ParquetKeeper,
    "csv": CsvKeeper,
    "json": JsonKeeper,
}


def _able(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as error:  # whatever the library finds wrong with it
        raise UnableError(f"{type(error).__name__}: {error}") from error


_INSERTS = """
import pickle, sqlite3, sys
location, statement, rows = pickle.loads(sys.stdin.buffer.read())
connection = sqlite3.connect(location, timeout=60)
with connection:
    connection.executemany(statement, rows)
connection.close()
"""


def _raw(v: Any, kind: DataType) -> Any:
    """A value as databases and texts have it."""
    if v is None:
        return None
    told = kind.sql()
    if told == "BOOLEAN":
        return int(v)
    if told == "DATE":
        return (_MOMENT + timedelta(days=v)).date().isoformat()
    if told == "TIMESTAMP(6)":
        return (_MOMENT + timedelta(microseconds=v)).isoformat(sep=" ")
    return str(v) if isinstance(v, Decimal) else v


def _of_raw(v: Any, kind: DataType) -> Any:
    told = kind.sql()
    if v is None:
        return None
    if told == "BOOLEAN":
        return bool(v)
    if told == "DATE":
        return (date.fromisoformat(v) - _MOMENT.date()).days
    if told == "TIMESTAMP(6)":
        return (datetime.fromisoformat(v) - _MOMENT) // timedelta(microseconds=1)
    if told == "DOUBLE":
        return float(v)
    return Decimal(str(v)).quantize(Decimal("0.01")) if told.startswith("DECIMAL") else v


assert all(kind_of(text).sql() for keeper in KEEPERS.values() for text in keeper.types)
