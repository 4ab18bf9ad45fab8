"""SQL of the page: what runs, what is refused by name, what is exported."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient
from ui_requests import Browse, form

import keytide as kt
from keytide.sql.grammar import parse_statements
from keytide.ui import sql_pages
from keytide.ui.sql_pages import ROWS_MAX, answer, exported, refuse_changes

CHANGES = {
    "INSERT INTO shop.orders VALUES (1, 'x', 1, NULL)": "INSERT",
    "SELECT 1; DELETE FROM shop.orders": "DELETE",
    "UPDATE shop.orders SET qty = 1": "UPDATE",
    "MERGE INTO shop.orders t USING shop.log s ON t.id = 1 WHEN MATCHED THEN DELETE": "MERGE",
    "EXPLAIN ANALYZE DELETE FROM shop.orders": "EXPLAIN ANALYZE DELETE",
    "CALL sys.compact('shop.orders')": "CALL",
    "CREATE TABLE a (k INT)": "CREATE TABLE",
    "CREATE TABLE a AS SELECT 1 AS k": "CREATE TABLE",
    "CREATE VIEW v AS SELECT 1 AS k": "CREATE VIEW",
    "CREATE DATABASE d": "CREATE DATABASE",
    "DROP TABLE shop.orders": "DROP TABLE",
    "DROP VIEW shop.open": "DROP VIEW",
    "DROP DATABASE shop CASCADE": "DROP DATABASE",
    "TRUNCATE TABLE shop.orders": "TRUNCATE",
    "ALTER TABLE shop.orders DROP COLUMN qty": "ALTER TABLE",
    "ALTER TABLE shop.orders CREATE TAG x": "CREATE VERSION NAME",
    "ALTER TABLE shop.orders RENAME TO shop.o": "RENAME TABLE",
    "COMMENT ON TABLE shop.orders IS 'x'": "COMMENT ON",
}


@pytest.mark.parametrize("text", CHANGES)
def test_statement_that_changes_is_refused_by_name(text: str) -> None:
    with pytest.raises(kt.UnsupportedError, match=f"^{CHANGES[text]} can change the lake"):
        refuse_changes(parse_statements(text))


def test_refused_text_changes_nothing_before_the_refusal(page: TestClient, shown: kt.Lake) -> None:
    answer = page.post("/sql", data=form(text="USE shop; DELETE FROM orders; SELECT 1"))
    assert answer.status_code == 400
    assert "DELETE can change the lake" in answer.text
    assert shown.table("shop.orders").metadata.latest_snapshot_id() == 3


LOOKS = [
    "SELECT 1 AS a",
    "SHOW TABLES",
    "DESCRIBE shop.orders",
    "DESCRIBE HISTORY shop.orders",
    "SHOW CREATE TABLE shop.orders",
    "EXPLAIN SELECT * FROM shop.orders WHERE id = 2",
    "EXPLAIN DELETE FROM shop.orders WHERE id = 2",
    "EXPLAIN ANALYZE SELECT * FROM shop.orders WHERE id = 2",
    "SELECT count(*) FROM shop.orders VERSION AS OF 1",
    "SELECT * FROM shop.orders$files",
    "USE shop; SELECT * FROM orders",
]


@pytest.mark.parametrize("text", LOOKS)
def test_statement_that_looks_runs(page: TestClient, text: str) -> None:
    answer = page.post("/sql", data=form(text=text))
    assert answer.status_code == 200, answer.text


def test_use_is_of_one_text_alone(page: TestClient) -> None:
    page.post("/sql", data=form(text="USE shop"))
    assert page.post("/sql", data=form(text="SELECT * FROM orders")).status_code == 400


def test_time_travel_shows_what_was(shown: kt.Lake) -> None:
    query = "SELECT status FROM shop.orders VERSION AS OF 'first' WHERE id = 2"
    assert answer(shown, query, allows_changes=False).rows == (("new",),)


def test_no_more_rows_are_computed_than_are_shown(shown: kt.Lake) -> None:
    query = "SELECT a.range AS n FROM range(1000000) a, range(1000000) b"
    found = answer(shown, query, allows_changes=False)
    assert (len(found.rows), found.has_more) == (ROWS_MAX, True)


def test_explain_is_a_tree_of_the_tables_that_are_read(shown: kt.Lake) -> None:
    query = "EXPLAIN SELECT * FROM shop.orders o JOIN shop.log l ON o.status = l.text WHERE id = 2"
    plan = answer(shown, query, allows_changes=False).plan
    assert plan is not None
    assert [child.title for child in plan.children] == [
        "scan of shop.orders, snapshot 3", "scan of shop.log, snapshot 1",
    ]  # fmt: skip
    assert plan.children[0].stages[0].files >= plan.children[0].stages[-1].files


def test_explain_analyze_is_the_tree_with_what_was_measured(page: TestClient) -> None:
    text = "SELECT * FROM shop.orders WHERE id = 2"
    for asked in (form(text=text, what="analyze"), form(text=f"EXPLAIN ANALYZE {text}")):
        shown = page.post("/sql", data=asked).text
        assert "scan of shop.orders, snapshot 3" in shown
        assert "versions: 2 read, 1 after the merge" in shown
    refused = page.post("/sql", data=form(text="DELETE FROM shop.orders", what="analyze"))
    assert "EXPLAIN ANALYZE DELETE can change the lake" in refused.text


def test_rows_with_a_number_are_drawn(page: TestClient) -> None:
    text = "SELECT status, sum(qty) AS n FROM shop.orders GROUP BY status ORDER BY status"
    assert "Bars of n by status: 2 points" in page.post("/sql", data=form(text=text)).text
    text = "SELECT id, qty FROM shop.orders ORDER BY id"
    assert "Line of qty by id: 5 points" in page.post("/sql", data=form(text=text)).text


def test_rows_are_exported_as_csv_and_parquet(page: TestClient) -> None:
    text = (
        "SELECT id, status, NULL AS nothing, '' AS empty FROM shop.orders WHERE id < 3 ORDER BY id"
    )
    lines = page.post("/sql/export", data=form(text=text, format="csv"))
    stored = page.post("/sql/export", data=form(text=text, format="parquet"))
    assert lines.text.splitlines() == [
        '"id","status","nothing","empty"', '1,"new",,""', '2,"paid",,""',
    ]  # fmt: skip
    assert "attachment" in lines.headers["content-disposition"]
    assert pq.read_table(io.BytesIO(stored.content)).num_rows == 2


def test_export_of_changes_of_too_much_and_of_nothing_is_refused(
    shown: kt.Lake, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_pages, "EXPORT_BYTES", 4 << 20)
    with pytest.raises(kt.InvalidError, match="more than 4 MiB"):
        exported(shown, "SELECT range AS n FROM range(1000000000000)")
    for text, status in (("DELETE FROM shop.orders", 422), ("USE shop", 400), ("SELEC", 400)):
        answer = page.post("/sql/export", data=form(text=text, format="csv"))
        assert answer.status_code == status
    assert page.post("/sql/export", data=form(text="SELECT 1", format="x")).status_code == 400


def test_files_of_the_machine_are_not_read(page: TestClient) -> None:
    answer = page.post("/sql", data=form(text="SELECT * FROM read_csv('/etc/passwd')"))
    assert answer.status_code == 400
    assert "root:" not in answer.text


def test_changes_run_where_they_are_allowed(browse: Browse, lake: kt.Lake) -> None:
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    answer = browse(lake, allows_changes=True).post(
        "/sql", data=form(text="INSERT INTO t VALUES (1), (2)")
    )
    assert "2 rows changed" in answer.text
    assert table.scan().count() == 2
