"""A view of DuckDB has the rows that a scan has, whichever conditions DuckDB hands on."""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from keytide.duckdb import split_for_duckdb
from keytide.store import open_store
from keytide.store.faults import FaultyStore
from new_tables import fields_of
from type_values import ALL, column_of, cycled, kind_of

S = pa.schema({"k": pa.int64(), "i": pa.int32(), "s": pa.string(), "f": pa.float64()})


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        yield connection


def row(k: int) -> dict[str, Any]:
    f = None if k % 11 == 0 else float("nan") if k % 7 == 0 else k / 4
    return {"k": k, "i": None if k % 5 == 0 else k % 9, "s": f"s{k % 4}", "f": f}


QUERIES = """
SELECT * FROM t
SELECT count(*) FROM t
SELECT s, count(*), sum(i) FROM t GROUP BY ALL
SELECT k FROM t WHERE i > 5 AND s = 's1'
SELECT s FROM t WHERE k BETWEEN 20 AND 60
SELECT k, f FROM t WHERE f > 5
SELECT k FROM t WHERE NOT f > 5
SELECT k FROM t WHERE f = 'nan'::DOUBLE OR f IS NULL
SELECT k FROM t WHERE k IN (3, 30, 31, 300)
SELECT k FROM t WHERE i IS NULL AND s <> 's2'
SELECT i FROM t WHERE s LIKE 's%' AND k % 3 = 1
SELECT k FROM t WHERE s >= 's2' OR i < 2
SELECT a.k FROM t a JOIN t b ON a.k = b.i WHERE b.s = 's3'
SELECT k FROM t WHERE k > 1.5 AND i IS NOT NULL
SELECT k FROM t ORDER BY f DESC NULLS LAST, k LIMIT 4
""".strip().splitlines()


def hold(con: duckdb.DuckDBPyConnection, table: kt.Table) -> None:
    """The rows of a scan as the table `oracle` of DuckDB."""
    con.register("rows", table.scan().to_arrow())
    con.execute("CREATE OR REPLACE TABLE oracle AS SELECT * FROM rows")


def check(con: duckdb.DuckDBPyConnection, view: str, table: kt.Table) -> None:
    """Each query gives of the view what it gives of the rows of a scan, held by DuckDB."""
    hold(con, table)
    for query in QUERIES:
        found = con.sql(query.replace("FROM t", f"FROM {view}").replace("JOIN t", f"JOIN {view}"))
        wanted = con.sql(query.replace("FROM t", "FROM oracle").replace("JOIN t", "JOIN oracle"))
        assert found.types == wanted.types, query
        assert sorted(map(str, found.fetchall())) == sorted(map(str, wanted.fetchall())), query


KINDS: dict[str, dict[str, str]] = {
    "merged": {"write-only": "true"},
    "compacted": {},
    "with dead rows": {"deletion-vectors.enabled": "true"},
    "with an index of keys": {"upsert.mode": "full"},
    "in ORC": {"file.format": "orc"},
    "with a default": {"fields.i.default-value": "4"},
    "put together": {"merge-engine": "partial-update", "write-only": "true"},
    "added up": {
        "merge-engine": "aggregation",
        "fields.default-aggregate-function": "max",
        "fields.i.aggregate-function": "sum",
    },
    "first rows": {"merge-engine": "first-row"},
}
"""Options by what they make of a table."""
NO_DELETES = ("put together", "added up", "first rows")


@pytest.mark.one_in(14)
@pytest.mark.parametrize("kind", KINDS)
def test_views_of_all_kinds_of_tables_have_the_rows_of_scans(
    con: duckdb.DuckDBPyConnection, lake: kt.Lake, kind: str
) -> None:
    options = {"bucket": "2", **KINDS[kind]}
    table = lake.create_table("shop.orders", S, ["k"], options=options)
    table.write([row(k) for k in range(200)])
    table.compact(full=True)
    table.write([{**row(k), "s": "s1"} for k in range(195, 230)])
    if kind not in NO_DELETES:
        table.delete("k >= 90 AND k < 110")
    assert kt.duckdb.register(con, lake) == ["shop.orders"]
    check(con, "shop.orders", table)
    if kind == "compacted":
        kt.duckdb.register(con, lake, fresh=True)
        check(con, "shop.orders", table)


def test_append_table_with_deleted_rows_and_partitions(
    con: duckdb.DuckDBPyConnection, lake: kt.Lake
) -> None:
    options = {"deletion-vectors.enabled": "true"}
    table = lake.create_table("t", S, [], partition_by=["s"], options=options)
    table.write([row(k) for k in range(150)])
    table.delete("k >= 90 AND k < 110")
    kt.duckdb.register(con, lake)
    assert not split_for_duckdb(table.scan()).tasks
    check(con, '"default".t', table)


def test_columns_of_older_schemas_are_those_of_their_fields(
    con: duckdb.DuckDBPyConnection, lake: kt.Lake
) -> None:
    old = pa.schema({"k": pa.int64(), "a": pa.int32(), "s": pa.string(), "f": pa.float32()})
    table = lake.create_table("t", old, ["k"], options={"bucket": "1", "write-only": "true"})
    table.write([{"k": k, "a": k % 9, "s": f"s{k % 4}", "f": k / 4} for k in range(80)])
    lake.sql("ALTER TABLE t RENAME a TO i")
    lake.sql("ALTER TABLE t ADD a STRING")
    lake.sql("ALTER TABLE t MODIFY f DOUBLE")
    lake.sql("ALTER TABLE t MODIFY i BIGINT")
    table = lake.table("t")
    table.write([{"k": k, "i": 1 << 40, "s": "s3", "f": 0.1, "a": "new"} for k in range(80, 150)])
    kt.duckdb.register(con, lake)
    assert len(split_for_duckdb(table.scan()).plain) == 2
    check(con, '"default".t', table)
    assert con.sql("SELECT count(a) FROM \"default\".t WHERE a = 'new'").fetchall() == [(70,)]


# -- every type ------------------------------------------------------------------------------------

ROW_COUNT = 24


def of_types(lake: kt.Lake, name: str, types: dict[str, str]) -> kt.Table:
    fields = fields_of({"k": "INT", **types})
    return lake.create_table(name, fields, ["k"], options={"bucket": "1", "write-only": "true"})


def rows_of(types: dict[str, str]) -> pa.Table:
    columns = {
        n: column_of(cycled(ALL[text], ROW_COUNT), kind_of(text)) for n, text in types.items()
    }
    return pa.table({"k": pa.array(range(ROW_COUNT), pa.int32()), **columns})


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("writes", [1, 2], ids=["plain", "merged"])
def test_values_of_every_type_are_those_of_a_scan(
    con: duckdb.DuckDBPyConnection, lake: kt.Lake, writes: int
) -> None:
    known = {f"c{i}": text for i, text in enumerate(ALL)}
    nanos = {n: text for n, text in known.items() if any(f"({p})" in text for p in (7, 8, 9))}
    others = {n: text for n, text in known.items() if n not in nanos}
    for name, types in {"nanos": nanos, "others": others}.items():
        table = of_types(lake, name, types)
        for _ in range(writes):
            table.write(rows_of(types))
    kt.duckdb.register(con, lake)
    assert bool(split_for_duckdb(lake.table("others").scan()).plain) == (writes == 1)
    for name, types in {"nanos": nanos, "others": others}.items():
        hold(con, lake.table(name))
        view = f'"default".{name}'
        for column, text in types.items():
            query = f"SELECT k, {column}, typeof({column}) FROM "
            found, wanted = (con.sql(query + each).fetchall() for each in (view, "oracle"))
            assert sorted(map(str, found)) == sorted(map(str, wanted)), text
            value, kind = con.sql(
                f"SELECT {column}::VARCHAR, typeof({column}) FROM oracle WHERE k = 1"
            ).fetchall()[0]
            for operator in ("=", ">=", "<"):
                where = f"{column} {operator} CAST(? AS {kind})"
                found, wanted = (
                    con.execute(f"SELECT k FROM {each} WHERE {where}", [value]).fetchall()
                    for each in (view, "oracle")
                )
                assert sorted(found) == sorted(wanted), (text, operator, value)


# -- what else there is ----------------------------------------------------------------------------


@pytest.fixture
def orders(warehouse: str) -> kt.Table:
    """A table in one plain file, and rows that overlap it."""
    options = {"bucket": "2", "write-only": "true"}
    table = kt.connect(warehouse).create_table("shop.orders", S, ["k"], options=options)
    table.write([row(k) for k in range(100)])
    table.compact(full=True)
    table.write([row(k) for k in range(90, 110)])
    return table


def plan(con: duckdb.DuckDBPyConnection, query: str) -> str:
    return re.sub(r"[^!-~]+", " ", con.sql("EXPLAIN " + query).fetchall()[0][1])


def test_columns_and_conditions_reach_both_readers(
    con: duckdb.DuckDBPyConnection, lake: kt.Lake, orders: kt.Table
) -> None:
    kt.duckdb.register(con, lake)
    streamed = plan(con, "SELECT f FROM shop.orders WHERE k = 7")
    assert "ARROW_SCAN" in streamed
    assert re.search(r"k\W*= ?7", streamed)
    assert "Projections: f" in streamed
    orders.compact(full=True)
    kt.duckdb.register(con, lake)
    native = plan(con, "SELECT i FROM shop.orders WHERE k = 7 AND s = 'a'")
    assert "READ_PARQUET" in native
    assert re.search(r"k ?= ?7,? ?s ?= ?'a'", native)
    assert "ARROW_SCAN" not in native


def test_files_that_overlap_nothing_are_read_natively_beside_merged_ones(
    con: duckdb.DuckDBPyConnection, warehouse: str, orders: kt.Table
) -> None:
    orders.compact(full=True)
    orders.write([row(k) for k in range(1000, 1010)])
    orders.write([row(k) for k in range(1000, 1005)])
    kt.duckdb.register(con, kt.connect(warehouse))
    told = plan(con, "SELECT * FROM shop.orders")
    assert "READ_PARQUET" in told
    assert "ARROW_SCAN" in told
    check(con, "shop.orders", orders)


def test_condition_narrows_what_is_merged(
    con: duckdb.DuckDBPyConnection, lake: kt.Lake, orders: kt.Table, caplog: Any
) -> None:
    kt.duckdb.register(con, lake)
    caplog.set_level("DEBUG", "keytide.plan")
    con.sql("SELECT i FROM shop.orders WHERE k = 7").fetchall()
    assert any("where `k` = 7" in message for message in caplog.messages)


def test_views_stay_with_their_snapshot_until_registered_again(
    con: duckdb.DuckDBPyConnection, lake: kt.Lake, orders: kt.Table
) -> None:
    kt.duckdb.register(con, lake)
    lake.create_table("shop.other", S, ["k"])
    orders.delete("k >= 0")
    count = "SELECT count(*) FROM shop.orders"
    assert con.sql(count).fetchall() == [(110,)]
    assert kt.duckdb.register(con, lake, fresh=True) == ["shop.orders", "shop.other"]
    assert con.sql(count).fetchall() == [(0,)]
    orders.write([row(1)])
    assert con.sql(count).fetchall() == [(1,)]
    lake.drop_table("shop.other")
    kt.duckdb.register(con, lake)
    with pytest.raises(duckdb.CatalogException):
        con.sql("SELECT * FROM shop.other")


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.usefixtures("orders")
def test_views_do_not_keep_a_connection_open(tmp_path: Path, lake: kt.Lake, fresh: bool) -> None:
    file = tmp_path / "x.duckdb"
    con = duckdb.connect(file)
    kt.duckdb.register(con, lake, fresh=fresh)
    con.sql("SELECT count(*) FROM shop.orders").fetchall()
    del con
    gc.collect()
    duckdb.connect(file, read_only=True).close()  # an open connection would refuse this


def test_fresh_view_of_an_altered_table_asks_for_another_registration(
    con: duckdb.DuckDBPyConnection, lake: kt.Lake, orders: kt.Table
) -> None:
    kt.duckdb.register(con, lake, fresh=True)
    lake.sql("ALTER TABLE shop.orders MODIFY i BIGINT")
    with pytest.raises(duckdb.Error, match="register the lake again"):
        con.sql("SELECT i FROM shop.orders").fetchall()


def test_what_is_wrong_with_a_file_is_an_error_of_the_query(
    con: duckdb.DuckDBPyConnection, lake: kt.Lake, orders: kt.Table
) -> None:
    kt.duckdb.register(con, lake)
    for file in Path(orders.uri).glob("bucket-*/*.parquet"):
        file.unlink()
    with pytest.raises(duckdb.Error, match=r"\.parquet is missing"):
        con.sql("SELECT * FROM shop.orders").fetchall()


def test_nothing_is_stored_in_a_file_of_duckdb(
    tmp_path: Path, warehouse: str, orders: kt.Table
) -> None:
    with duckdb.connect(tmp_path / "own.db") as con:
        con.execute("CREATE TABLE kept AS SELECT 1 AS k")
    with duckdb.connect(tmp_path / "own.db", read_only=True) as con:
        kt.duckdb.register(con, kt.connect(warehouse))
        assert con.sql("SELECT count(*) FROM shop.orders JOIN kept USING (k)").fetchall() == [(1,)]


@pytest.mark.parametrize("taken", ["CREATE SCHEMA shop", "ATTACH '{}' AS shop"])
def test_name_that_the_connection_has_for_something_else_is_refused(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, warehouse: str, orders: kt.Table, taken: str
) -> None:
    con.execute(taken.format(tmp_path / "shop.db"))
    with pytest.raises(kt.InvalidError, match=r"shop.orders cannot become a view.*tables="):
        kt.duckdb.register(con, kt.connect(warehouse))
    assert kt.duckdb.register(con, kt.connect(warehouse), []) == []


def test_tables_without_local_files_are_streamed(
    con: duckdb.DuckDBPyConnection, warehouse: str
) -> None:
    lake = kt.connect(warehouse, store=FaultyStore(open_store(warehouse)))
    table = lake.create_table("t", S, ["k"], options={"bucket": "1"})
    table.write([row(k) for k in range(100)])
    kt.duckdb.register(con, lake)
    check(con, '"default".t', table)


def test_external_tables_are_views_too(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, warehouse: str
) -> None:
    versions = pl.DataFrame({"k": [1, 1, 2], "w": [1, 2, 1], "s": ["a", "b", "c"]})
    (tmp_path / "versions").mkdir()
    versions.write_parquet(tmp_path / "versions" / "a.parquet")
    lake = kt.connect(warehouse)
    lake.create_external_table(
        "feed.e", format="parquet", location=tmp_path / "versions", primary_key=["k"],
        watermark_key=["w"],
    )  # fmt: skip
    assert kt.duckdb.register(con, lake) == ["feed.e"]
    assert con.sql("SELECT k FROM feed.e WHERE s = 'a'").fetchall() == []
    assert con.sql("SELECT s FROM feed.e WHERE k = 1").fetchall() == [("b",)]


@pytest.mark.parametrize(
    "condition",
    ["c = 'a'", "c < 'b '", "c = 'a  '", "r.x > 1", "r.x IS NULL", "f > 1 AND c >= 'a'"],
)
def test_conditions_that_no_scan_has_are_asked_as_duckdb_does(
    con: duckdb.DuckDBPyConnection, warehouse: str, condition: str
) -> None:
    types = {"k": "INT", "c": "CHAR(3)", "f": "FLOAT", "r": "ROW<x INT>"}
    fields = fields_of(types)
    table = kt.connect(warehouse).create_table("t", fields, ["k"], options={"write-only": "true"})
    for _ in range(2):
        table.write(
            [
                {"k": 1, "c": "a", "f": float("nan"), "r": {"x": 2}},
                {"k": 2, "c": "a  ", "f": 2.0, "r": None},
                {"k": 3, "c": "b", "f": None, "r": {"x": None}},
            ]
        )
    kt.duckdb.register(con, kt.connect(warehouse))
    hold(con, table)
    found, wanted = (
        con.sql(f"SELECT k FROM {each} WHERE {condition} ORDER BY k").fetchall()
        for each in ('"default".t', "oracle")
    )
    assert found == wanted


def test_random_queries_give_what_they_give_of_a_scan(
    con: duckdb.DuckDBPyConnection, lake: kt.Lake, orders: kt.Table
) -> None:
    kt.duckdb.register(con, lake)
    hold(con, orders)
    rng = random.Random(7)
    terms = [
        "k {} 50", "i {} 4", "s {} 's2'", "f {} 9.5", "f {} 'nan'::DOUBLE", "k {} 95::TINYINT",
    ]  # fmt: skip
    others = ["i IS NULL", "f IS NOT NULL", "k IN (1, 95, 500)", "s LIKE '%3'", "i NOT IN (1, 2)"]
    for _ in range(20):
        some = [t.format(rng.choice(["=", "<>", "<", ">="])) for t in rng.sample(terms, 2)]
        parts = [rng.choice(["", "NOT "]) + f"({each})" for each in [*some, rng.choice(others)]]
        where = f"{parts[0]} {rng.choice(['AND', 'OR'])} {parts[1]} AND {parts[2]}"
        found, wanted = (
            con.sql(f"SELECT k FROM {each} WHERE {where} ORDER BY k").fetchall()
            for each in ("shop.orders", "oracle")
        )
        assert found == wanted, where
