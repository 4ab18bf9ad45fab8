"""DELETE by a predicate: no SQL engine takes part, and the rows are those of the same SQL text."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import keytide as kt
from keytide.dml.deletion import PredicateHost, delete_matching
from keytide.dml.memory import MemoryConnector
from keytide.dml.row_statements import FederatedCallTarget
from keytide.format.schema import TableSchema

ROWS = pl.DataFrame(
    {"k": [1, 2, 3, 4], "v": ["a", None, "c", "a"], "x": [0.5, float("nan"), None, 2]}
)
SAME = {
    # Conditions as objects, and as SQL.
    "k > 2": pl.col("k") > 2,
    "v = 'a'": pc.field("v") == "a",
    "v IS NULL OR k = 1": pl.col("v").is_null() | (pl.col("k") == 1),
    "NOT (v = 'a')": ~(pl.col("v") == "a"),
    "x > 1": pl.col("x") > 1,
    "k IN (1, 9)": pl.col("k").is_in([1, 9]),
    "k > 9": pl.col("k") > 9,
}
KINDS = {
    "merged": {"primary_key": ["k"]},
    "indexed": {"primary_key": ["k"], "options": {"upsert.mode": "full", "bucket": "2"}},
    "appended": {"primary_key": []},
}


@pytest.mark.parametrize("text", SAME)
@pytest.mark.parametrize("kind", KINDS)
def test_predicate_deletes_the_rows_of_the_same_text(tmp_path: Path, kind: str, text: str) -> None:
    lake = kt.connect(tmp_path)
    tables = []
    for name, where in (("by_text", text), ("by_predicate", SAME[text])):
        table = lake.create_table(f"db.{name}", ROWS.to_arrow().schema, **KINDS[kind])  # type: ignore[arg-type]
        table.write(ROWS)
        tables.append((table.delete(where).rows, table.scan().to_polars().sort("k").to_dicts()))
    assert str(tables[0]) == str(tables[1])


def test_without_a_condition_all_rows_are_deleted(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("db.t", ROWS.to_arrow().schema, primary_key=["k"])
    table.write(ROWS)
    assert (table.delete().rows, table.scan().count()) == (4, 0)


def test_no_sql_engine_is_loaded(tmp_path: Path) -> None:
    code = f"""
import sys, polars as pl, pyarrow as pa, keytide as kt
lake = kt.connect({str(tmp_path)!r})
table = lake.create_table("db.t", pa.schema({{"k": pa.int64()}}), primary_key=["k"])
table.write(pl.DataFrame({{"k": [1, 2]}}))
table.delete(pl.col("k") == 1)
print({{"duckdb", "keytide.sql.statements", "keytide.sql.query_engine"}} & {{*sys.modules}})
"""
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_rows_of_a_connector_that_finds_others_too_are_tested(tmp_path: Path) -> None:
    memory = MemoryConnector()
    rows = pa.table({"k": [1, 2, 3, 4], "v": ["a", None, "c", "a"]})
    memory.create_table("t", rows.schema, [])
    memory.insert("t", rows)
    lake = kt.connect(tmp_path)
    lake.attach("m", memory.connector)

    def no_schema() -> TableSchema:
        raise AssertionError

    done = delete_matching(
        FederatedCallTarget(lake.catalog, "m.t", no_schema),
        lambda predicate, fields, _: PredicateHost(predicate, fields),
        pl.col("v") == "a",
        "snapshot",
        is_local=True,
    )
    assert done.rows == 2
    assert lake.sql("SELECT k FROM m.t ORDER BY k").to_pylist() == [{"k": 2}, {"k": 3}]
