"""Columns named with the database of their table, wherever a column can be named."""

from __future__ import annotations

import re

import pytest

import keytide as kt
from table_rows import dicts

QUERIES = [
    "SELECT a.t.k, a.t.v FROM a.t WHERE a.t.k > 1 ORDER BY a.t.k",
    "SELECT a.t.* FROM a.t ORDER BY A.T.v DESC",
    "SELECT a.t.k, b.u.v FROM a.t JOIN b.u ON a.t.k = b.u.k",
    "SELECT default.d.k FROM d WHERE default.d.k IN (SELECT a.t.k FROM a.t)",
    "SELECT default.d.k FROM default.d GROUP BY default.d.k HAVING max(default.d.v) > 0",
    "SELECT d.k FROM d WHERE EXISTS (SELECT 1 FROM a.t WHERE a.t.k = default.d.k)",
    "SELECT (SELECT max(b.u.v) FROM b.u WHERE b.u.k = a.t.k) AS m FROM a.t",
    "WITH w AS (SELECT a.t.k FROM a.t) SELECT w.k, b.u.k FROM w LEFT JOIN b.u ON b.u.k = w.k",
    "SELECT `a`.`t`.`k` FROM a.t UNION ALL SELECT b.u.k FROM b.u",
    "SELECT x.s.f FROM (SELECT s FROM a.t) AS x",
]
CHANGES = [
    "DELETE FROM a.t WHERE a.t.k = 1",
    "UPDATE a.t SET v = a.t.v + 1 WHERE a.t.k IN (SELECT b.u.k FROM b.u WHERE b.u.k = a.t.k)",
    "UPDATE a.t SET v = (SELECT max(b.u.v) FROM b.u WHERE b.u.k = a.t.k)",
    "MERGE INTO a.t USING b.u ON a.t.k = b.u.k WHEN MATCHED AND b.u.v > a.t.v THEN UPDATE "
    "SET v = b.u.v WHEN NOT MATCHED THEN INSERT (k, v) VALUES (b.u.k, b.u.v)",
]


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    lake = kt.connect(warehouse)
    lake.sql(
        """
        CREATE TABLE a.t (k INT PRIMARY KEY NOT ENFORCED, v INT, s ROW<f INT>);
        CREATE TABLE b.u (k INT PRIMARY KEY NOT ENFORCED, v INT);
        CREATE TABLE b.t (k INT PRIMARY KEY NOT ENFORCED, v INT);
        CREATE TABLE d (k INT, v INT);
        INSERT INTO a.t VALUES (1, 1, ROW(5)), (2, 2, ROW(6)), (3, 3, NULL);
        INSERT INTO b.u VALUES (1, 10), (3, 2), (4, 40);
        INSERT INTO d VALUES (1, 1), (1, 1), (9, 9)
        """
    )
    return lake


def short(text: str) -> str:
    """The same with columns that are named by their tables alone."""
    return re.sub(r"(?i)`?\b(?:a|b|default)\b`?\.(`?[tud]`?\.(?:`?[kvs]\b|\*))", r"\1", text)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("text", QUERIES)
def test_query_is_the_same_by_full_names(lake: kt.Lake, text: str) -> None:
    full, plain = (lake.sql(each).to_pylist() for each in (text, short(text)))
    assert full
    assert sorted(map(repr, full)) == sorted(map(repr, plain))


@pytest.mark.parametrize("text", CHANGES)
def test_change_is_the_same_by_full_names(lake: kt.Lake, text: str) -> None:
    def outcome(text: str) -> list[object]:
        t = lake.table("a.t")
        count = lake.sql(text).row_count
        rows = dicts(t)
        t.rollback_to(1)
        return [count, rows]

    found = outcome(text)
    assert found == outcome(short(text))
    assert found[0]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT b.t.k FROM a.t",
        "SELECT a.t.k FROM a.t AS x",
        "SELECT t.k FROM a.t WHERE EXISTS (SELECT 1 FROM b.t WHERE a.t.k = 1)",
        "SELECT a.t.k FROM a.t JOIN b.t ON a.t.k = b.t.k",
        "DELETE FROM a.t WHERE b.t.k = 1",
        "DELETE FROM a.t AS x WHERE a.x.k = 1",
        "UPDATE a.t SET v = 0 WHERE b.t.k IN (1, 2)",
    ],
)
def test_name_of_another_table_stays_refused(lake: kt.Lake, text: str) -> None:
    with pytest.raises(kt.InvalidError, match="cannot be executed"):
        lake.sql(text)


@pytest.mark.parametrize("condition", ["s.s.k = 1", "s.s.k IN (1)", "s.s.k IS NOT NULL AND k = 2"])
def test_member_of_a_row_is_no_column_of_the_table(lake: kt.Lake, condition: str) -> None:
    lake.sql(
        """
        CREATE TABLE s (k INT PRIMARY KEY NOT ENFORCED, s ROW<k INT>);
        INSERT INTO s VALUES (1, ROW(2)), (2, ROW(1))
        """
    )
    assert lake.sql(f"SELECT k FROM s WHERE {condition}").to_pylist() == [{"k": 2}]
    assert lake.sql(f"DELETE FROM s WHERE {condition}").row_count == 1
    assert lake.sql("SELECT k FROM s").to_pylist() == [{"k": 1}]
