"""Views: queries by name, read as tables are, and nothing more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt

TABLES = """
CREATE TABLE shop.orders (id INT PRIMARY KEY NOT ENFORCED, status STRING, qty INT);
INSERT INTO shop.orders VALUES (1, 'paid', 5), (2, 'new', 1), (3, 'paid', 2);
CREATE VIEW shop.paid COMMENT 'what is paid' AS SELECT id, qty FROM orders WHERE status = 'paid';
"""
# The view's own database is that in use where it was made.
TABLES = "CREATE DATABASE shop; USE shop;" + TABLES
PAID = [{"id": 1, "qty": 5}, {"id": 3, "qty": 2}]


def rows(lake: kt.Lake, text: str) -> Any:
    return lake.sql(text).to_pylist()


def test_view_is_read_in_any_place_of_a_query(lake: kt.Lake) -> None:
    assert rows(lake, "SELECT * FROM shop.paid ORDER BY id") == PAID
    assert rows(lake, "SELECT p.qty FROM SHOP.Paid AS p WHERE p.id = 3") == [{"qty": 2}]
    assert rows(lake, "SELECT shop.paid.id FROM shop.paid WHERE qty > 2") == [{"id": 1}]
    text = """WITH orders AS (SELECT 3 AS id) SELECT o.status, v.qty FROM shop.orders o
        JOIN shop.paid v ON o.id = v.id WHERE v.id IN (SELECT id FROM orders)"""
    assert rows(lake, text) == [{"status": "paid", "qty": 2}]
    lake.sql("INSERT INTO shop.orders VALUES (2, 'paid', 9)")
    assert rows(lake, "SELECT count(*) AS n FROM shop.paid") == [{"n": 3}]


def test_view_of_views_has_the_columns_it_names(lake: kt.Lake) -> None:
    lake.use("shop")
    lake.create_view("large", "SELECT * FROM paid WHERE qty > 2", ["key", "how many"])
    lake.sql("CREATE VIEW twice AS WITH p AS (SELECT * FROM large) SELECT * FROM p UNION ALL "
             "SELECT a.* FROM large a JOIN large b USING (`key`)")  # fmt: skip
    lake.use("default")
    found = rows(lake, "SELECT * FROM shop.twice")
    assert found == [{"key": 1, "how many": 5}] * 2
    told = rows(lake, "DESCRIBE shop.twice")
    assert [(r["name"], r["type"]) for r in told] == [("key", "INT"), ("how many", "INT")]
    assert lake.views() == ["shop.large", "shop.paid", "shop.twice"]
    assert rows(lake, "SHOW VIEWS IN shop LIKE 't%'") == [{"database": "shop", "view": "twice"}]
    assert lake.tables() == ["shop.orders"]


def test_view_is_made_again_by_what_is_shown_of_it(lake: kt.Lake) -> None:
    [shown] = rows(lake, "SHOW CREATE TABLE shop.paid")
    lake.sql("USE shop; DROP VIEW paid; DROP VIEW IF EXISTS paid")
    assert lake.views() == []
    lake.sql(shown["create_view"])
    assert rows(lake, "SELECT * FROM paid ORDER BY id") == PAID
    extended = {r["name"]: r["comment"] for r in rows(lake, "DESC EXTENDED paid")}
    assert extended["view"] == "what is paid"


def test_view_is_a_source_of_changes(lake: kt.Lake) -> None:
    lake.sql("USE shop; CREATE TABLE t (id INT PRIMARY KEY NOT ENFORCED, qty INT);"
             "INSERT INTO t SELECT * FROM paid;"
             "UPDATE t SET qty = 0 WHERE id IN (SELECT id FROM paid WHERE qty = 2);"
             "MERGE INTO t USING paid AS s ON t.id = s.id WHEN MATCHED AND t.qty = 0 "
             "THEN UPDATE SET qty = s.qty")  # fmt: skip
    assert rows(lake, "SELECT * FROM t ORDER BY id") == PAID


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INSERT INTO shop.paid VALUES (1, 2)", "is a view"),
        ("DELETE FROM shop.paid", "is a view"),
        ("UPDATE shop.PAID SET qty = 1", "is a view"),
        ("MERGE INTO shop.paid t USING shop.orders s ON t.id = s.id WHEN MATCHED THEN DELETE",
         "is a view"),
        ("DROP TABLE shop.paid", "is a view"),
        ("ALTER TABLE shop.paid RENAME TO x", "is a view"),
        ("SELECT * FROM shop.paid VERSION AS OF 1", "shop.paid is a view, which has no versions"),
        ("SELECT * FROM shop.paid$snapshots", "no branches and no system tables"),
        ("SELECT * FROM shop.paid /*+ OPTIONS('scan.snapshot-id' = '1') */",
         "does not support OPTIONS"),
        ("CREATE TABLE shop.Paid (k INT PRIMARY KEY)", "view shop.paid already exists"),
        ("CREATE VIEW shop.orders AS SELECT 1 AS a", "table shop.orders already exists"),
        ("CREATE VIEW shop.Paid AS SELECT 1 AS a", "CREATE OR REPLACE"),
        ("CREATE VIEW v AS SELECT 1 AS a, 2 AS A", "two columns are named"),
        ("CREATE VIEW v (a) AS SELECT 1, 2", "names 1 column, but its query returns 2"),
        ("CREATE VIEW v AS SELECT nobody FROM shop.orders", "nobody"),
        ("CREATE VIEW v AS DELETE FROM shop.orders", "expected a query"),
        ("CREATE OR REPLACE VIEW shop.paid AS SELECT * FROM shop.paid", "refers to itself"),
        ("DROP VIEW shop.orders", "is a table"),
        ("DROP DATABASE shop", "shop.orders, shop.paid"),
    ],
)  # fmt: skip
def test_what_a_view_is_not_for_is_refused_by_name(lake: kt.Lake, text: str, message: str) -> None:
    with pytest.raises(kt.KeytideError) as caught:
        lake.sql(text)
    assert message in str(caught.value)
    assert (lake.views(), lake.tables()) == (["shop.paid"], ["shop.orders"])
    assert rows(lake, "SELECT * FROM shop.paid ORDER BY id") == PAID


def test_circle_through_other_views_is_refused(lake: kt.Lake) -> None:
    lake.sql("CREATE VIEW a AS SELECT * FROM shop.paid; CREATE VIEW b AS SELECT * FROM a")
    with pytest.raises(kt.InvalidError, match=r"default\.a -> default\.b -> default\.a"):
        lake.sql("CREATE OR REPLACE VIEW a AS SELECT * FROM b")
    lake.sql("CREATE OR REPLACE VIEW a AS SELECT 7 AS seven")
    assert rows(lake, "SELECT * FROM b") == [{"seven": 7}]


def test_table_that_is_gone_is_named_with_the_view(lake: kt.Lake) -> None:
    lake.sql("CREATE VIEW v AS SELECT * FROM shop.paid; DROP TABLE shop.orders")
    with pytest.raises(kt.NotFoundError, match=r"view shop\.paid cannot be read: .*shop\.orders"):
        lake.sql("SELECT * FROM v")
    assert lake.views() == ["default.v", "shop.paid"]


def test_error_inside_of_a_view_points_at_its_text(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED, v INT);"
             "CREATE VIEW w AS SELECT v + 1 AS more FROM t;"
             "ALTER TABLE t DROP COLUMN v")  # fmt: skip
    with pytest.raises(kt.InvalidError, match=r"SELECT v \+ 1 AS more FROM t"):
        lake.sql("SELECT * FROM w")


def test_python_is_told_how_to_read_a_view(lake: kt.Lake) -> None:
    with pytest.raises(kt.UnsupportedError, match=r"Lake\.sql\('SELECT \* FROM shop\.paid'\)"):
        lake.table("shop.paid")
    with pytest.raises(kt.AlreadyExistsError, match=r"view shop\.paid already exists"):
        lake.create_table("shop.paid", pa.schema({"k": pa.int64()}), ["k"])
    lake.drop_database("shop", cascade=True)
    assert (lake.databases(), lake.views()) == ([], [])


def test_far_views_are_seen_by_whoever_connects() -> None:
    address = "memory://views-of-all"
    kt.connect(address).create_view("v", "SELECT 1 AS one", comment="one")
    assert kt.connect(address).sql("SELECT * FROM v").to_pylist() == [{"one": 1}]


def test_other_engines_see_no_table(lake: kt.Lake) -> None:
    stored = sorted(p.name for p in Path(lake.uri, "shop.db").iterdir())
    assert stored == [".keytide", "orders"]


@pytest.mark.spark
def test_views_on_spark_are_those_of_duckdb(lake: kt.Lake, spark: Any) -> None:
    on_spark = kt.connect(lake.uri, spark=spark)
    on_spark.sql("CREATE VIEW s (k, n) AS SELECT * FROM shop.paid WHERE qty > 2")
    text = "SELECT k, n FROM s JOIN shop.paid p ON p.id = s.k"
    assert rows(on_spark, text) == rows(lake, text) == [{"k": 1, "n": 5}]
    assert [r["type"] for r in rows(on_spark, "DESCRIBE s")] == ["INT", "INT"]
