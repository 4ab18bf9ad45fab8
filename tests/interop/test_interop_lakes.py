"""Delta and Iceberg tables of their own engines on Spark, as sources of external tables.

Tables that were written once lie in tests/data; `make interop` lets the engines write them anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from interop_judges import PROJECT
from lake_cases import DELTA, ICEBERG, KEYS, Case
from lake_values import plain

import keytide as kt

SAMPLES = PROJECT / "tests/data/lakes.tar.xz"
WRITERS = PROJECT / ".venv-spark-peers"
CASES = {case.name: case for case in [*DELTA, *ICEBERG]}
STORED = [name for name, case in CASES.items() if not case.has_full_paths]
READABLE = [name for name in STORED if CASES[name].refused is None]

Told = dict[str, Any]
Rows = dict[str, tuple[Any, ...]]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the tables that lie in tests/data; paths in them begin in its parent."""
    parent = tmp_path_factory.mktemp("stored")
    with tarfile.open(SAMPLES) as archive:
        archive.extractall(parent, filter="data")
    yield from standing_in(parent / "lakes")


@pytest.fixture(scope="module")
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The folder of the tables that are wanted, written just now."""
    if not (WRITERS / ".ready").exists():
        pytest.skip("Spark has no engines of Delta and Iceberg; `make interop` brings them")
    folder = tmp_path_factory.mktemp("written") / "lakes"
    items = [each for each in request.session.items if isinstance(each, pytest.Function)]
    wanted = [each.callspec.params["name"] for each in items if "written" in each.fixturenames]
    script = Path(__file__).with_name("lake_writers.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [WRITERS / "bin/python", script, folder, *wanted],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-500:]}{done.stderr[-2_000:]}"
    yield from standing_in(folder)


def standing_in(folder: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        yield folder


def external(format_: str, location: Path) -> kt.ExternalTable:
    lake = kt.connect(f"memory://{uuid4().hex}")
    return lake.create_external_table("t", format=format_, location=str(location), **KEYS)


def told_of(folder: Path, case: Case) -> Told:
    told: Told = json.loads((folder / f"{case.name}.json").read_text())
    return told


def merged(told: Told, shown: tuple[int, ...] | None = None) -> Rows:
    """The row of each key by the rules: the freshest version, of equal ones the later, no dead."""
    rows = [dict(zip(told["columns"], row, strict=True)) for row in told["rows"]]
    if shown is not None:
        rows = [row for row in rows if row["n"] in shown]
        assert len(rows) == len(shown)
    found: dict[Any, Told] = {}
    for row in sorted(rows, key=lambda row: (row["ts"], row.get("n", 0))):
        found[row["k"]] = row
    return texts([row for row in found.values() if not row["deleted"]])


def texts(rows: list[Told]) -> Rows:
    """Rows by their keys, as texts, for NaN is not equal to itself."""
    found = {json.dumps(row["k"]): tuple(sorted(map(json.dumps, row.items()))) for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def keyed_texts(source: kt.ExternalTable, **asked: Any) -> Rows:
    rows = source.scan(**asked).to_arrow().to_pylist(maps_as_pydicts="strict")
    return texts([{name: plain(value) for name, value in row.items()} for row in rows])


def check(folder: Path, case: Case) -> None:
    """Every version that the table had is read as its engine reads it, one row for each key."""
    told = told_of(folder, case)
    source = external(case.format, folder / case.name)
    newest = merged(told["newest"], case.shown)
    assert keyed_texts(source) == newest
    for key in (0, 1, 2, 9999999999):
        wanted = {name: row for name, row in newest.items() if name == str(key)}
        assert keyed_texts(source, where=f"k = {key}") == wanted
    for version, rows in told["versions"].items():
        # A definition has columns and types of now, which those of then need not fit.
        if case.shown is None and rows["columns"] == told["newest"]["columns"]:
            assert keyed_texts(source, version=version) == merged(rows), version


def check_refused(folder: Path, case: Case) -> None:
    with pytest.raises(kt.UnsupportedError, match=case.refused):
        external(case.format, folder / case.name).scan().to_arrow()


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", READABLE)
def test_tables_of_other_engines_show_one_row_for_each_key(stored: Path, name: str) -> None:
    check(stored, CASES[name])


@pytest.mark.parametrize("name", sorted({*STORED} - {*READABLE}))
def test_what_is_not_read_of_other_engines_is_refused_by_name(stored: Path, name: str) -> None:
    check_refused(stored, CASES[name])


@pytest.mark.parametrize("name", ["iceberg_marked_v3", "iceberg_packed"])
def test_metadata_file_is_a_place_too(stored: Path, name: str) -> None:
    number = (stored / name / "metadata/version-hint.text").read_text()
    (newest,) = (stored / name / "metadata").glob(f"v{number}.*metadata.json")
    newest_rows = merged(told_of(stored, CASES[name])["newest"])
    assert keyed_texts(external("iceberg", newest)) == newest_rows
    oldest = next((stored / name / "metadata").glob("v1.*metadata.json"))
    assert keyed_texts(external("iceberg", oldest)) == {}


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", CASES)
def test_tables_written_just_now_are_read_or_refused_the_same(written: Path, name: str) -> None:
    (check if CASES[name].refused is None else check_refused)(written, CASES[name])
