"""Values and conditions as readers of other formats find them in published tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest

import duckdb_reader
import keytide as kt
from other_readers import FORMS, READERS, iceberg_table, scanned
from type_values import ALL, column_of, kind_of


def alike(value: Any) -> Any:
    """A value in one shape: readers give maps as lists of pairs or as dicts, in any order."""
    if isinstance(value, dict):
        return alike(list(value.items()))
    if isinstance(value, list | tuple):
        found = [alike(each) for each in value]
        is_map = bool(found) and all(isinstance(v, tuple) and len(v) == 2 for v in value)
        return sorted(found, key=repr) if is_map else found
    return value


@pytest.mark.one_in(14)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", ALL)
def test_values_of_every_type_are_read_as_they_are_or_the_type_is_refused(
    form: str, text: str, tmp_path: Path
) -> None:
    lake, kind = kt.connect(str(tmp_path)), kind_of(text)
    definition = f"CREATE TABLE t (k INT, x {text}) WITH ('publish' = '{form}')"
    is_stored_otherwise = "TIME(" in text or any(f"TIMESTAMP({p})" in text for p in (7, 8, 9))
    if is_stored_otherwise:
        with pytest.raises(kt.UnsupportedError, match=r"column 'x' is .* does not support"):
            lake.sql(definition)
        return
    lake.sql(definition)
    table, values = lake.table("t"), [*ALL[text], None]
    keys = pa.array(range(len(values)), pa.int32())
    table.write(pa.table({"k": keys, "x": column_of(values, kind)}))
    expected = repr(alike(scanned(table)))
    for name, rows in READERS[form](table).items():
        assert repr(alike(rows)) == expected, name


SCHEMA = pa.schema([("k", pa.int64()), ("d", pa.date32()), ("v", pa.string())])
LONG = "z" * 20
ROWS = [
    {"k": -5, "d": date(1969, 12, 31), "v": "a"},
    {"k": 7, "d": date(2024, 2, 29), "v": LONG + "b"},
    {"k": 8, "d": date(2024, 2, 29), "v": LONG + "\U0010ffff" * 10},
    {"k": 2**40, "d": date(2024, 3, 1), "v": None},
    {"k": 2**40 + 1, "d": date(2024, 3, 1), "v": ""},
]
CONDITIONS: dict[str, tuple[pl.Expr, Callable[[dict[str, Any]], bool], str]] = {
    "k": (pl.col("k") < 0, lambda r: r["k"] < 0, "k < 0"),
    "k, large": (pl.col("k") >= 2**40, lambda r: r["k"] >= 2**40, f"k >= {2**40}"),
    "day": (
        pl.col("d") == date(2024, 2, 29), lambda r: r["d"] == date(2024, 2, 29),
        "d = '2024-02-29'",
    ),
    "day before": (
        pl.col("d") < date(1970, 1, 1), lambda r: r["d"] < date(1970, 1, 1), "d < '1970-01-01'"
    ),
    "text": (pl.col("v") > LONG, lambda r: r["v"] is not None and r["v"] > LONG, f"v > '{LONG}'"),
    "text, exact": (
        pl.col("v") == LONG + "b", lambda r: r["v"] == LONG + "b", f"v = '{LONG}b'"
    ),
    "null": (pl.col("v").is_null(), lambda r: r["v"] is None, "v IS NULL"),
    "no null": (pl.col("v").is_not_null(), lambda r: r["v"] is not None, "v IS NOT NULL"),
}  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> kt.Table:
    """A file for each row, one row dead."""
    lake = kt.connect(str(tmp_path_factory.mktemp("lake")))
    options = {"upsert.mode": "full", "publish": "delta,iceberg", "bucket": "2"}
    table = lake.create_table("t", SCHEMA, ["k", "d"], ["d"], options=options)
    table.write([{**ROWS[0], "v": "before"}])
    for row in ROWS:
        table.write([row])
    return table


@pytest.mark.parametrize("name", CONDITIONS)
def test_files_that_a_condition_needs_are_not_passed_over(table: kt.Table, name: str) -> None:
    condition, holds, text = CONDITIONS[name]
    expected = sorted(row["k"] for row in ROWS if holds(row))
    found = {
        "polars, delta": pl.scan_delta(table.uri).filter(condition).collect()["k"].to_list(),
        "polars, iceberg": pl.scan_iceberg(iceberg_table(table))
        .filter(condition)
        .collect()["k"]
        .to_list(),
        "pyiceberg": iceberg_table(table).scan(row_filter=text).to_arrow()["k"].to_pylist(),
    }
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table.uri))
    where = text.replace("'20", "DATE '20").replace("'19", "DATE '19")
    rows = pa.table(query.execute(f"SELECT k FROM t WHERE {where}"))
    found["deltalake"] = rows["k"].to_pylist()
    if duckdb_reader.is_here():
        for form in FORMS:
            read = duckdb_reader.read(table.uri, form, "k", where)
            found[f"duckdb, {form}"] = read["k"].to_pylist()
    assert {reader: sorted(keys) for reader, keys in found.items()} == dict.fromkeys(
        found, expected
    )
