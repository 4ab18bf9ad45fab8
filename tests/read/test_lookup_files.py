"""Lookup files: the same answers as from the data files, within bounds, and nothing left behind."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.compaction import changelog
from keytide.definition.schema_evolution import SetOption
from keytide.format.data_file import FileReader
from keytide.read import lookup as laid_out
from keytide.read import lookup_files
from keytide.read.lookup import VersionsOfKeys
from keytide.read.lookup_files import Bounds, LookupFiles, searched
from keytide.read.sections import PlannedFile
from keytide.store import object_store, open_store
from new_tables import empty_lake, empty_store

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
    monkeypatch.setattr(laid_out, "LOOKUP_FILES", mine)
    return mine


def kept(files: LookupFiles) -> int:
    return len(files._files)


# -- the same rows and changes as without them ----------------------------------------------------


@pytest.mark.one_in(14)
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
        lake = empty_lake()
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


# -- which keys are looked for ------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """Levels of the files that are asked for old versions, and the keys."""
    asked = []
    real = VersionsOfKeys.of

    def of(self: VersionsOfKeys, file: PlannedFile, keys: pl.DataFrame) -> Iterator[pl.DataFrame]:
        asked.append((file.meta.level, sorted(keys["k"])))
        return real(self, file, keys)

    monkeypatch.setattr(VersionsOfKeys, "of", of)
    return asked


def numbered(lake: kt.Lake) -> kt.Table:
    fields = [
        kt.Field(-1, column, kt.parse_sql_type(type_))
        for column, type_ in (("k", "INT NOT NULL"), ("v", "INT"))
    ]
    return lake.create_table("t", fields, ["k"], options={"changelog-producer": "lookup"})


def upsert(table: kt.Table, keys: Iterable[int], v: int) -> list[tuple[Any, ...]]:
    """What the upsert is told as, in key order."""
    table.write([{"k": k, "v": v} for k in keys])
    last = table.snapshots()[-1].id
    rows = table.changes(last - 1, last, mode="changelog").to_polars().rows(named=True)
    return sorted((row["k"], row["_row_kind"], row["v"]) for row in rows)


def test_key_that_a_newer_file_has_is_not_looked_for_in_older_ones(
    asked: list[tuple[int, list[int]]], tmp_path: Path
) -> None:
    table = numbered(kt.connect(tmp_path))
    upsert(table, range(10), 0)
    upsert(table, [1, 2], 1)
    asked.clear()
    told = upsert(table, [1, 2, 3], 2)
    assert asked == [(4, [1, 2, 3]), (5, [3])]
    assert [row for row in told if row[1] == "-U"] == [(1, "-U", 1), (2, "-U", 1), (3, "-U", 0)]


def test_key_that_a_run_to_be_written_again_has_is_not_looked_for_below_it(
    asked: list[tuple[int, list[int]]], tmp_path: Path
) -> None:
    table = numbered(kt.connect(tmp_path))
    for v, keys in enumerate([range(5000), [1, 2], [2, 3], [3, 4]]):
        upsert(table, keys, v)
    asked.clear()
    told = upsert(table, [1, 4, 5], 4)
    assert (5, [5]) in asked
    assert [row for row in told if row[1] == "-U"] == [(1, "-U", 1), (4, "-U", 3), (5, "-U", 0)]


def test_key_of_a_run_to_be_written_again_is_told_once_where_nothing_is_laid_out(
    tmp_path: Path,
) -> None:
    table = numbered(kt.connect(tmp_path))
    table.alter(SetOption("lookup.cache-max-disk-size", "0 b"))
    for v, keys in enumerate([range(5000), [1, 2], [2, 3], [3, 4]]):
        upsert(table, keys, v)
    told = upsert(table, [1, 4, 5], 4)
    assert [row for row in told if row[1] == "-U"] == [(1, "-U", 1), (4, "-U", 3), (5, "-U", 0)]


@pytest.mark.parametrize("far", [False, True])
def test_rows_that_this_process_has_written_are_not_read_to_be_looked_up(
    far: bool, tmp_path: Path, files: LookupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = empty_store() if far else open_store(str(tmp_path))
    table, read = numbered(kt.connect("", store=store)), list[str]()
    upsert(table, range(10), 0)

    def noted(self: FileReader, *_: object, **__: object) -> pl.LazyFrame:
        read.append(self.path)
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setattr(FileReader, "lazy", noted)
        for v in range(1, 4):
            table.write([{"k": k, "v": v} for k in (1, 2, v)])
    assert read == []
    assert sorted(table.scan().to_polars().rows())[:4] == [(0, 0), (1, 3), (2, 3), (3, 3)]


def test_files_that_are_compacted_away_leave_nothing_laid_out(
    tmp_path: Path, files: LookupFiles
) -> None:
    table = numbered(kt.connect(tmp_path))
    for v in range(12):
        table.write([{"k": k, "v": v} for k in range(v, v + 5)])
        assert kept(files) == len(table.scan().live.files)


def test_files_of_a_write_only_table_are_not_laid_out(tmp_path: Path, files: LookupFiles) -> None:
    table = numbered(kt.connect(tmp_path))
    table.alter(SetOption("write-only", "true"))
    table.write([{"k": 1, "v": 1}])
    assert kept(files) == 0


def test_files_of_a_far_store_are_asked_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_first(calls: Sequence[Callable[[], Any]], _: int) -> list[Any]:
        return [call() for call in reversed(calls)][::-1]

    monkeypatch.setattr(object_store, "side_by_side", last_first)
    table = numbered(empty_lake())
    upsert(table, range(10), 0)
    upsert(table, [1, 2], 1)
    told = upsert(table, [1, 2, 3], 2)
    assert [row for row in told if row[1] == "-U"] == [(1, "-U", 1), (2, "-U", 1), (3, "-U", 0)]


def test_old_rows_come_by_windows_where_those_of_the_keys_are_too_many_to_be_held(
    monkeypatch: pytest.MonkeyPatch, asked: list[tuple[int, list[int]]]
) -> None:
    tables = [numbered(empty_lake()) for _ in "ab"]
    steps = [(range(40), 0), (range(5, 15), 1), (range(50), 2)]
    told = [[upsert(tables[0], *step) for step in steps]]
    asked.clear()
    monkeypatch.setattr(changelog, "rows_in", lambda *_: 8)
    told.append([upsert(tables[1], *step) for step in steps])
    assert told[0] == told[1]
    assert (5, list(range(50))) in asked


# -- which rows are found -------------------------------------------------------------------------

VALUES = {
    pl.Int32: st.integers(-9, 9),
    pl.Int64: st.integers(-9, 9) | st.integers(-(2**63), 2**63 - 1),
    pl.String: st.text("aé\U0001f600z", max_size=2),
    pl.Binary: st.binary(max_size=2),
    pl.Date: st.dates(date(2000, 1, 1), date(2000, 1, 9)),
    pl.Float64: st.floats(),
}


@settings(max_examples=15)
@given(st.data())
def test_rows_are_found_by_keys_of_any_types(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=3))
    key = [f"k{place}" for place in range(len(types))]
    nullable = st.none() if data.draw(st.integers(0, 3)) == 3 else st.nothing()
    some = st.lists(st.tuples(*(VALUES[kind] | nullable for kind in types)), min_size=8)
    schema = dict(zip(key, types, strict=True))

    def keys(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
        return pl.DataFrame(rows, schema=schema, orient="row").unique().sort(key)

    rows = keys(data.draw(some)).with_row_index("row")
    wanted = keys(data.draw(some) + rows.select(key).rows()[::3])
    expected = rows.join(wanted, on=key, how="semi", nulls_equal=True).sort("row")
    assert searched(rows, wanted).equals(expected)


# -- when they are made and dropped ---------------------------------------------------------------


def frames(rows: int = 10) -> Iterator[pl.DataFrame]:
    yield pl.DataFrame({"k": range(rows), "v": ["x"] * rows})
    yield pl.DataFrame({"k": range(rows, 2 * rows), "v": ["y"] * rows})


def found(files: LookupFiles, key: str, bounds: Bounds) -> list[tuple[Any, ...]] | None:
    file = files.find(key, frames, bounds)
    if file is None:
        return None
    keys = pl.DataFrame({"k": [-1, 3, 15, 99]})
    return [row for frame in file.with_keys(keys) for row in frame.rows()]


def test_file_is_laid_out_at_the_second_lookup() -> None:
    files, bounds = LookupFiles(), Bounds(None, HOUR)
    assert [found(files, "a", bounds) for _ in range(3)] == [
        None,
        [(3, "x"), (15, "y")],
        [(3, "x"), (15, "y")],
    ]


def test_small_file_is_laid_out_at_its_first_lookup() -> None:
    files, keys = LookupFiles(), pl.DataFrame({"k": [15, 99]})
    file = files.find("a", frames, Bounds(None, HOUR), at_once=True)
    assert file is not None
    assert [rows.rows() for rows in file.with_keys(keys)] == [[(15, "y")]]


def test_file_that_is_kept_is_known_until_it_is_given_up() -> None:
    files, bounds = LookupFiles(), Bounds(None, HOUR)
    assert files.existing("a", bounds) is None
    files.keep("a", frames(), bounds)
    assert found(files, "a", bounds) == [(3, "x"), (15, "y")]
    assert files.existing("a", bounds) is not None
    files.forget("a")
    files.forget("b")
    assert (files.existing("a", bounds), files._bytes) == (None, 0)


def test_oldest_gives_way_to_more_files_than_a_process_may_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookup_files, "_FILES_MAX", 2)
    files = LookupFiles()
    for key in "abc":
        files.find(key, frames, Bounds(None, HOUR), at_once=True)
    assert list(files._files) == ["b", "c"]


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
