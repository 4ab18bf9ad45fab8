"""Tables of this format as sources: append tables in the order of snapshots, keyed ones as read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.errors import DataError, InvalidError, NotFoundError
from keytide.predicate.predicate import Comparison
from keytide.sources.table_source import PinnedStored, open_source
from sources import all_rows, check_order, counted, place

NUMBERS = pa.schema([("k", pa.int64()), ("n", pa.int64())])


def new_table(folder: Path, *keys: str, **options: str) -> Any:
    lake = kt.connect(folder)
    schema = pa.schema([pa.field(f.name, f.type, f.name not in keys) for f in NUMBERS])
    return lake.create_table("t", schema, primary_key=list(keys), options=options)


def pinned(folder: Path, version: str | int | None = None) -> PinnedStored:
    return open_source(place(folder / "default.db/t")).pin(version)


def numbered(*numbers: int) -> pa.Table:
    return pa.table({"k": [n % 5 for n in numbers], "n": numbers}, schema=NUMBERS)


def places(source: PinnedStored) -> list[tuple[int, bool]]:
    return [(part.commit, part.is_in_order) for part in source.parts()]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("delete"), st.integers(0, 4)),
        st.tuples(st.just("compact"), st.just(0)),
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, st.booleans())
def test_rows_are_those_of_the_table_in_the_order_in_which_they_came(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], vectors: bool
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    table = new_table(folder, **{"deletion-vectors.enabled": str(vectors).lower()})
    written = 0
    for step, count in [("append", 2), *steps]:
        if step == "append":
            table.write(numbered(*range(written, written + count)))
            written += count
        elif step == "delete":
            kt.connect(folder).sql(f"DELETE FROM t WHERE k = {count}")
        else:
            table.compact(full=True)
    source = pinned(folder)
    assert counted(all_rows(source)) == counted(table.scan().to_arrow().to_pylist())
    check_order(source, "n")
    expected = table.scan(where="k <= 1").to_arrow().to_pylist()
    assert counted(all_rows(source, Comparison("k", "<=", 1))) == counted(expected)


def test_commits_of_an_append_table_are_its_snapshots(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for n in range(3):
        table.write(numbered(n))
    assert places(pinned(tmp_path)) == [(1, True), (2, True), (3, True)]
    assert [row["n"] for row in all_rows(pinned(tmp_path, 2))] == [0, 1]
    table.create_tag("first", 1)
    assert [row["n"] for row in all_rows(pinned(tmp_path, "first"))] == [0]


def test_files_put_together_have_the_commits_of_those_in_no_order(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for n in range(3):
        table.write(numbered(n))
    table.compact(full=True)
    table.write(numbered(3))
    assert places(pinned(tmp_path)) == [(3, False), (5, True)]


def test_files_of_expired_snapshots_are_in_no_order_and_before_all_others(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for n in range(4):
        table.write(numbered(n))
    table.expire_snapshots(retain_max=1, retain_min=1)
    assert places(pinned(tmp_path)) == [(3, False)] * 3 + [(4, True)]


def test_rows_of_a_keyed_table_are_those_that_it_has_now(tmp_path: Path) -> None:
    table = new_table(tmp_path, "k")
    table.write(pa.table({"k": [1, 2, 3], "n": [0, 0, 0]}))
    table.write(pa.table({"k": [2], "n": [5]}))
    table.delete("k = 3")
    source = pinned(tmp_path)
    assert counted(all_rows(source)) == counted([{"k": 1, "n": 0}, {"k": 2, "n": 5}])
    assert set(places(source)) == {(0, False)}


def test_table_without_rows_has_no_parts(tmp_path: Path) -> None:
    new_table(tmp_path)
    assert pinned(tmp_path).parts() == []
    assert pinned(tmp_path).version is None


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        pinned(tmp_path)
    new_table(tmp_path).write(numbered(1))
    with pytest.raises(NotFoundError, match="7"):
        pinned(tmp_path, 7)
    with pytest.raises(InvalidError, match="tag"):
        pinned(tmp_path, "")


def test_missing_file_is_named(tmp_path: Path) -> None:
    new_table(tmp_path).write(numbered(1))
    source = pinned(tmp_path)
    (file,) = (tmp_path / "default.db/t").rglob("data-*.parquet")
    file.unlink()
    with pytest.raises(DataError, match=file.name):
        all_rows(source)


SAMPLES = Path(__file__).parents[1] / "data/samples"


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "path",
    sorted(SAMPLES.rglob("spec.db/*")),
    ids=lambda path: f"{path.parents[2].name}-{path.name}",
)
def test_tables_that_other_writers_made_have_the_rows_that_a_scan_shows(path: Path) -> None:
    shown = kt.open_table(path).scan().to_arrow().to_pylist()
    assert counted(all_rows(open_source(place(path)).pin())) == counted(shown)


@pytest.mark.parametrize("options", [{}, {"bucket": "4", "bucket-key": "v"}])
@pytest.mark.parametrize("turn", [1, -1])
def test_of_rows_of_a_write_that_lie_apart_nobody_knows_the_later_one(
    tmp_path: Path, turn: int, options: dict[str, str]
) -> None:
    lake = kt.connect(tmp_path / "lake")
    schema = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("v", pa.string())])
    partition = [] if options else ["v"]
    table = lake.create_table("t", schema, [], partition, options=options)
    table.write([{"k": 1, "w": 1, "v": v} for v in "abcdef"[::turn]])
    merged = lake.create_external_table(
        "e", format="keytide", location=table.uri, primary_key=["k"], watermark_key=["w"]
    )
    assert merged.scan().to_pylist() == [{"k": 1, "w": 1, "v": "f"}]
    table.write([{"k": 1, "w": 1, "v": "a"}])
    assert merged.scan().to_pylist() == [{"k": 1, "w": 1, "v": "a"}]
