"""Lookup files: the same answers as from the data files, within bounds, and nothing left behind."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import pytest

import keytide as kt
from keytide.store import open_store
from keytide.table.compaction import lookup
from keytide.table.read import lookup_files
from keytide.table.read.lookup_files import Bounds, LookupFiles

KEYS = {
    "INT": lambda n: n,
    "STRING": lambda n: f"kéy {n % 7} {n}",
    "DATE": lambda n: pl.Series([n], dtype=pl.Int32).cast(pl.Date)[0],
    "DECIMAL(9, 2)": lambda n: Decimal(n) / 4,
    "BYTES": lambda n: bytes([255 - n % 256, n // 256]),
}
HOUR = 3600.0


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> LookupFiles:
    """The lookup files of this test alone."""
    mine = LookupFiles()
    monkeypatch.setattr(lookup, "LOOKUP_FILES", mine)
    return mine


def kept(files: LookupFiles) -> int:
    return len(files._files)


# -- the same rows and changes as without them ----------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("key", "vectors"), [*((key, "false") for key in KEYS), ("INT", "true"), ("STRING", "true")]
)
def test_changelog_with_lookup_files_tells_the_same_and_folds_to_the_rows(
    key: str, vectors: str, files: LookupFiles
) -> None:
    chance = random.Random(7)
    oracle: dict[int, tuple[Any, ...]] = {}
    tables = []
    for name, size in (("with", None), ("without", "0 b")):
        options = {"changelog-producer": "lookup", "deletion-vectors.enabled": vectors}
        if size is not None:
            options["lookup.cache-max-disk-size"] = size
        fields = [
            kt.Field(-1, column, kt.parse_sql_type(type_))
            for column, type_ in (("part", "INT NOT NULL"), ("k", f"{key} NOT NULL"), ("v", "INT"))
        ]
        lake = kt.connect("", store=open_store(f"memory://{uuid4().hex}"))
        tables.append(lake.create_table(name, fields, ["part", "k"], options=options))
    for commit in range(6):
        count = 400 if commit == 0 else 12
        numbers = chance.sample(range(500), count)
        rows = []
        for n in numbers:
            kind = "-D" if commit and chance.random() < 0.3 else "+I"
            rows.append({"_row_kind": kind, "part": 1, "k": KEYS[key](n), "v": commit})
            if kind == "-D":
                oracle.pop(n, None)
            else:
                oracle[n] = (1, KEYS[key](n), commit)
        for table in tables:
            table.write(rows)
        expected = sorted(oracle.values(), key=lambda row: row[1])
        told = []
        for table in tables:
            assert sorted(table.scan().to_polars().rows(), key=lambda row: row[1]) == expected
            last = table.snapshots()[-1].id
            changes = table.changes(last - 1, last).to_polars()
            told.append(sorted(map(repr, changes.rows())))
        assert told[0] == told[1]
    assert kept(files) > 0


# -- when they are made and dropped ---------------------------------------------------------------


def frames(rows: int = 10) -> Iterator[pl.DataFrame]:
    yield pl.DataFrame({"k": range(rows), "v": ["x"] * rows})
    yield pl.DataFrame({"k": range(rows, 2 * rows), "v": ["y"] * rows})


def found(files: LookupFiles, key: str, bounds: Bounds) -> list[tuple[Any, ...]] | None:
    file = files.find(key, frames, bounds)
    if file is None:
        return None
    keys = pl.DataFrame({"k": [15, -1, 3, 99]})
    return [row for frame in file.with_keys(keys) for row in frame.rows()]


def test_file_is_laid_out_at_the_second_lookup() -> None:
    files, bounds = LookupFiles(), Bounds(None, HOUR)
    assert [found(files, "a", bounds) for _ in range(3)] == [
        None,
        [(3, "x"), (15, "y")],
        [(3, "x"), (15, "y")],
    ]


def test_file_that_does_not_fit_is_tried_once() -> None:
    files, bounds, made = LookupFiles(), Bounds(100, HOUR), []

    def versions() -> Iterator[pl.DataFrame]:
        made.append(1)
        return frames()

    assert [files.find("a", versions, bounds) for _ in range(4)] == [None] * 4
    assert len(made) == 1


def test_oldest_gives_way_when_the_bound_is_reached() -> None:
    files = LookupFiles()
    for key in "aab":
        file = files.find(key, frames, Bounds(None, HOUR))
        size = file.size if file else 0
    assert size == 0  # the file of 'b' is not made yet
    (kept_file, _) = files._files["a"]
    bounds = Bounds(kept_file.size * 3 // 2, HOUR)
    assert found(files, "b", bounds) == [(3, "x"), (15, "y")]
    assert list(files._files) == ["b"]


def test_unused_file_goes_after_its_time() -> None:
    now = [0.0]
    files, bounds = LookupFiles(lambda: now[0]), Bounds(None, 10)
    for _ in range(2):
        found(files, "a", bounds)
    now[0] = 11
    found(files, "b", bounds)
    assert kept(files) == 0


def test_nothing_is_left_in_the_folder_of_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files, bounds = LookupFiles(), Bounds(None, HOUR)
    for _ in range(2):
        found(files, "a", bounds)
    assert kept(files) == 1
    assert os.listdir(tmp_path) == []


def test_disk_that_refuses_costs_the_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lookup_files, "_is_written", full)
    files, bounds = LookupFiles(), Bounds(None, HOUR)
    assert [found(files, "a", bounds) for _ in range(3)] == [None] * 3
