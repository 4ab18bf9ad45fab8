"""A merge takes runs of versions from anywhere: a folder of another writer, a database, a table."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from keytide.base.row_kind import RowKind
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND
from keytide.merge.layers import merge_runs
from keytide.merge.windows import Batch
from keytide.read.merged_versions import batch_rows
from keytide.read.runs import FileRun, StoredVersions, VersionRun, windows_of

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
COLUMNS = ("k", "v", SEQUENCE_NUMBER, VALUE_KIND)
KEYS = 60

Version = tuple[int, str, int, int]
"""A key, its value, how late it is, and its kind."""


@dataclass(frozen=True)
class FolderRun:
    """Versions in the Parquet files of a folder that nobody wrote for Keytide."""

    folder: Path

    @property
    def rows(self) -> int:
        """All of them."""
        return pl.scan_parquet(self.folder / "*.parquet").select(pl.len()).collect().item()

    def batches(self, rows_max: int) -> Iterator[Batch]:
        """One file after the other: their names are in the order of the keys."""
        for path in sorted(self.folder.iterdir()):
            yield Batch(pl.read_parquet(path).select(COLUMNS))


@dataclass(frozen=True)
class QueryRun:
    """Versions that a database gives in the order of their keys."""

    database: Path

    @property
    def rows(self) -> int:
        """A guess that is wrong, as those of databases are."""
        return 1

    def batches(self, rows_max: int) -> Iterator[Batch]:
        """So many rows at a time."""
        with closing(sqlite3.connect(self.database, check_same_thread=False)) as connection:
            found = connection.execute("SELECT k, v, late, kind FROM versions ORDER BY k")
            while rows := found.fetchmany(rows_max):
                yield Batch(frame_of(rows))


def frame_of(versions: list[Version]) -> pl.DataFrame:
    types = [pl.Int64, pl.String, pl.Int64, pl.Int8]
    schema = dict(zip(COLUMNS, types, strict=True))
    return pl.DataFrame(versions, schema=schema, orient="row")


def versions_of(rng: random.Random, lates: list[int]) -> list[Version]:
    """Versions of some keys, in key order, of which some delete."""
    keys = sorted(rng.sample(range(KEYS), rng.randrange(1, KEYS)))
    kinds = [RowKind.INSERT, RowKind.INSERT, RowKind.DELETE]
    return [(k, f"v{(late := lates.pop())}", late, rng.choice(kinds)) for k in keys]


def folder_of(path: Path, versions: list[Version], rng: random.Random) -> FolderRun:
    path.mkdir()
    cut = rng.randrange(len(versions) + 1)
    for number, part in enumerate((versions[:cut], versions[cut:])):
        frame_of(part).write_parquet(path / f"{number}.parquet")
    return FolderRun(path)


def database_of(path: Path, versions: list[Version]) -> QueryRun:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE versions (k INTEGER, v TEXT, late INTEGER, kind INTEGER)")
        connection.executemany("INSERT INTO versions VALUES (?, ?, ?, ?)", versions)
    return QueryRun(path)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("seed", range(12))
def test_runs_of_three_origins_become_one_row_per_key(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    table = kt.connect(tmp_path / "lake").create_table("t", SCHEMA, ["k"])
    table.write([{"k": k, "v": f"stored {k}"} for k in range(0, KEYS, 2)])
    lates = list(range(1_000, 2_000))
    rng.shuffle(lates)
    theirs, asked = versions_of(rng, lates), versions_of(rng, lates)
    scan = table.scan()
    ((section,),) = (bucket.sections for bucket in scan.plan.buckets)
    stored = StoredVersions(scan.view, scan.plan.buckets[0].partition, COLUMNS)
    runs: list[VersionRun] = [
        FileRun(stored, section.runs[0]),
        folder_of(tmp_path / "theirs", theirs, rng),
        database_of(tmp_path / "asked.db", asked),
    ]
    order, engine = scan.view.order, scan.view.engine
    held = batch_rows([run.rows for run in runs], rng.choice([1, 7, 1_000]))
    found: dict[int, Any] = {}
    for window in windows_of(runs, [min(rows, 5) for rows in held], order.key):
        for piece in merge_runs(window, order, engine, arrival_decides=False):
            kept = piece.filter(pl.col(VALUE_KIND) == RowKind.INSERT)
            assert not found.keys() & set(kept["k"]), "a key is in one window"
            found |= dict(kept.select("k", "v").iter_rows())
    assert found == newest_of([*theirs, *asked])


def newest_of(versions: list[Version]) -> dict[int, str]:
    """The oracle: of each key the latest version, unless that deletes; the table's come first."""
    newest = {k: (f"stored {k}", 0, int(RowKind.INSERT)) for k in range(0, KEYS, 2)}
    for k, v, late, kind in versions:
        if k not in newest or late > newest[k][1]:
            newest[k] = (v, late, kind)
    return {k: v for k, (v, _, kind) in newest.items() if kind == RowKind.INSERT}
