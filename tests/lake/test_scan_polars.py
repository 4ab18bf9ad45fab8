"""Tables as lazy frames of Polars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import keytide as kt
from keytide.errors import DataError, InvalidError
from keytide.lake import polars_source
from keytide.predicate.condition import text_of
from keytide.predicate.predicate import Predicate

SCHEMA = pa.schema(
    {
        "k": pa.int64(),
        "v": pa.string(),
        "n": pa.float64(),
        "at": pa.timestamp("us"),
        "b": pa.bool_(),
    }
)
OPTIONS = {"bucket": "2", "write-only": "true"}


def row(k: int) -> dict[str, Any]:
    return {
        "k": k,
        "v": None if k % 5 == 0 else f"v{k % 3}",
        "n": float("nan") if k % 7 == 0 else k / 2,
        "at": datetime(1970, 1, 1) + timedelta(seconds=k),
        "b": k % 2 == 0,
    }


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    table = lake.create_table("t", SCHEMA, ["k"], options=OPTIONS)
    table.write([row(k) for k in range(50)])
    table.write([{**row(k), "v": "late"} for k in range(40, 60)])
    return table


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[kt.Scan]:
    """The scans that lazy frames have read."""
    seen: list[kt.Scan] = []
    to_frames = kt.Scan.to_frames

    def noting(scan: kt.Scan) -> Iterator[pl.DataFrame]:
        seen.append(scan)
        return to_frames(scan)

    monkeypatch.setattr(kt.Scan, "to_frames", noting)
    return seen


k, v, n = pl.col("k"), pl.col("v"), pl.col("n")
QUERIES: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "all": lambda rows: rows,
    "columns in another order": lambda rows: rows.select("v", "k"),
    "no column": lambda rows: rows.select(pl.len()),
    "a condition": lambda rows: rows.filter(k >= 45),
    "a condition on a column that is not asked for": lambda rows: rows.filter(v == "late").select(
        n
    ),
    "conditions of which one is computed": lambda rows: rows.filter((k > 40) & (n * 2 > 43)),
    "a condition that is computed": lambda rows: rows.filter(v.str.ends_with("e")),
    "or": lambda rows: rows.filter((k < 3) | (n.is_nan())),
    "not": lambda rows: rows.filter(~(v == "v1")),
    "null": lambda rows: rows.filter(v.is_null()),
    "not a number": lambda rows: rows.filter(n > 10),
    "a list": lambda rows: rows.filter(k.is_in([3, 44, 99])),
    "a column by itself": lambda rows: rows.filter(pl.col("b")),
    "a time": lambda rows: rows.filter(pl.col("at") < pl.datetime(1970, 1, 1, 0, 0, 9)),
    "two columns": lambda rows: rows.filter(k > n),
    "a value of another type": lambda rows: rows.filter(k > 41.5),
    "groups": lambda rows: rows.group_by("v").agg(pl.len(), k.max()),
    "a join": lambda rows: rows.join(rows.filter(k < 5), on="k"),
    "head of a condition, sorted": lambda rows: rows.filter(k > 50).sort("k").head(3),
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query_gives_what_it_gives_of_the_rows_in_memory(
    table: kt.Table, query: Callable[[pl.LazyFrame], pl.LazyFrame], engine: Any
) -> None:
    lazy = query(kt.scan_polars(table)).collect(engine=engine)
    eager = query(table.scan().to_polars().lazy()).collect()
    assert lazy.schema == eager.schema
    assert_frame_equal(lazy, eager, check_row_order=False)


@pytest.mark.parametrize(
    ("query", "columns", "pushed"),
    [
        (lambda rows: rows.select("v"), ("v",), None),
        (lambda rows: rows.filter(k > 1).select("v"), ("v", "k"), "`k` > 1"),
        (lambda rows: rows.filter((k > 1) & (n * 2 > 3)).select("k"), ("k", "n"), "`k` > 1"),
        (lambda rows: rows.filter(n * 2 > 3).select("n"), ("n",), None),
    ],
)
def test_columns_and_conditions_reach_the_scan(
    table: kt.Table,
    scans: list[kt.Scan],
    query: Callable[[pl.LazyFrame], pl.LazyFrame],
    columns: tuple[str, ...],
    pushed: str | None,
) -> None:
    query(kt.scan_polars(table)).collect()
    (scan,) = scans
    assert set(scan.columns) == set(columns)
    assert pushed_text(scan.predicate, table) == pushed


def pushed_text(predicate: Predicate | None, table: kt.Table) -> str | None:
    return None if predicate is None else text_of(predicate, table.table_schema.fields)


def test_head_reads_no_further(table: kt.Table, scans: list[kt.Scan]) -> None:
    assert kt.scan_polars(table).head(4).collect().height == 4
    assert scans[0].limit == 4


def test_a_condition_on_a_head_is_asked_of_these_rows_alone(table: kt.Table) -> None:
    assert kt.scan_polars(table.scan(limit=4)).filter(k < 0).collect().height == 0
    head = kt.scan_polars(table).head(4)
    assert head.filter(k < 0).collect().height == 0
    everything = head.filter(k >= 0).collect()
    assert everything.height == 4
    some = head.filter(k.is_in(everything["k"].to_list()[:2])).collect()
    assert some.height == 2


def test_a_frame_stays_with_its_snapshot(table: kt.Table) -> None:
    lazy, before = kt.scan_polars(table), table.scan().to_polars()
    table.delete("k < 100")
    assert_frame_equal(lazy.collect(), before, check_row_order=False)
    assert kt.scan_polars(table).collect().height == 0
    first = kt.scan_polars(table.scan(["k"], where="k > 47", snapshot_id=1))
    assert sorted(first.collect()["k"]) == [48, 49]


def test_explain_tells_what_the_scan_was_asked_for(table: kt.Table) -> None:
    plan = kt.scan_polars(table).filter(k > 1).select("v").explain()
    assert "PYTHON" in plan
    assert 'SELECTION: col("k") > 1' in plan


def test_a_condition_that_stays_with_polars_is_told_when_it_runs(
    table: kt.Table, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "keytide.plan")
    kt.scan_polars(table).filter((k > 1) & (n * 2 > 3)).collect()
    (told,) = (m for m in caplog.messages if "Polars itself" in m)
    assert 'col("n")' in told
    assert 'col("k")' not in told


def test_a_file_that_is_gone_fails_with_its_name(table: kt.Table) -> None:
    lazy = kt.scan_polars(table)
    for file in Path(table.uri).glob("bucket-*/*.parquet"):
        file.unlink()
    with pytest.raises(DataError, match=r"\.parquet is missing"):
        lazy.collect()


def test_what_is_no_table_is_refused() -> None:
    nothing: Any = "t"
    with pytest.raises(InvalidError, match="scan_polars: table is 't' of type str"):
        kt.scan_polars(nothing)


def test_external_tables_are_read_alike(tmp_path: Path, warehouse: str) -> None:
    rows = pl.DataFrame({"k": [1, 1, 2], "w": [1, 2, 1], "v": ["a", "b", "c"]})
    (tmp_path / "versions").mkdir()
    rows.write_parquet(tmp_path / "versions" / "a.parquet")
    external = kt.connect(warehouse).create_external_table(
        "e", format="parquet", location=tmp_path / "versions", primary_key=["k"],
        watermark_key=["w"],
    )  # fmt: skip
    lazy = kt.scan_polars(external)
    assert lazy.filter(v == "a").collect().height == 0
    assert lazy.filter(k == 1).select("v").collect()["v"].to_list() == ["b"]


def test_polars_without_words_for_a_scan_does_without(
    table: kt.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(source: Any, *, schema: Any, is_pure: bool = False) -> pl.LazyFrame:
        assert is_pure
        return pl.LazyFrame(schema=schema)

    monkeypatch.setattr(polars_source, "register_io_source", older)
    assert kt.scan_polars(table).collect_schema().names() == SCHEMA.names
