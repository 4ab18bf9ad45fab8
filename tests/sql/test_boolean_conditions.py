"""What decides about rows is BOOLEAN, in every statement and on every engine."""

from __future__ import annotations

from typing import Any

import pytest

import keytide as kt

TABLE = """
CREATE TABLE c (k INT PRIMARY KEY NOT ENFORCED, v STRING, b BOOLEAN, d DATE,
                r ROW<x INT, y BOOLEAN>);
INSERT INTO c VALUES (1, 'true', TRUE, DATE '2026-01-31', ROW(1, TRUE)), (2, '1', FALSE, NULL, NULL)
"""

NO_CONDITIONS = [
    "2026-01-31", "k", "v", "d", "1", "1.5", "'true'", "-k", "k % 2", "k + 1", "v || 'e'",
    "DATE '2026-01-31'", "CAST(b AS INT)", "r.x", "abs(k)", "upper(v)", "coalesce(k, 1)",
    "CASE WHEN b THEN k END", "CASE WHEN k THEN b END", "if(b, k, 1)", "if(k, b, b)",
    "(SELECT max(k) FROM c)", "EXISTS (SELECT 1 FROM c WHERE k)", "k IN (SELECT k FROM c WHERE v)",
    "b IN (SELECT NOT k FROM c)",
]  # fmt: skip
CONDITIONS = [
    "b", "c.b", "(b)", "TRUE", "NULL", "r.y", "k = 1", "NOT b", "b IS NOT NULL", "v LIKE 't%'",
    "CAST(v AS BOOLEAN)", "CASE WHEN b THEN b END", "CASE k WHEN 1 THEN b END", "coalesce(b, TRUE)",
    "if(b, b, FALSE)", "(SELECT max(b) FROM c)", "EXISTS (SELECT 1 FROM c WHERE b)",
    "k IN (SELECT k FROM c WHERE r.y)", "contains(v, 't')", "k BETWEEN 0 AND 1", "k IN (1, 5)",
]  # fmt: skip
PLACES = ["{}", "b AND {}", "({}) OR b", "NOT ({})", "k > 0 AND (b OR NOT ({}))",
          "CASE WHEN {} THEN b ELSE b END"]  # fmt: skip
STATEMENTS = [
    "DELETE FROM c WHERE {}",
    "UPDATE c SET v = 'x' WHERE {}",
    "MERGE INTO c USING (SELECT 1 AS z) s ON {} WHEN MATCHED THEN DELETE",
    "MERGE INTO c USING (SELECT 1 AS z) s ON c.k = s.z WHEN MATCHED AND {} THEN DELETE",
    "MERGE INTO c USING (SELECT 1 AS z) s ON c.k = s.z WHEN NOT MATCHED BY SOURCE AND {} "
    "THEN UPDATE SET v = 'x'",
    "MERGE INTO c USING (SELECT 9 AS z) s ON c.k = s.z WHEN NOT MATCHED AND {} THEN INSERT (k) "
    "VALUES (s.z)",
]
QUERIES = [
    "SELECT k FROM c WHERE {}",
    "SELECT c.k FROM c JOIN (SELECT 1 AS z) u ON {}",
    "SELECT {} AND TRUE AS x FROM c",
    "SELECT count(*) FILTER (WHERE {}) AS n FROM c",
    "WITH w AS (SELECT k FROM c WHERE {}) SELECT * FROM w",
]


def said(texts: list[str], value: str) -> list[str]:
    """Texts about a value; queries that give one have no place in ON."""
    is_query = value.startswith("(SELECT")
    return [text.format(value) for text in texts if not (is_query and " ON {}" in text)]


@pytest.fixture
def table(warehouse: str) -> kt.Table:
    lake = kt.connect(warehouse)
    lake.sql(TABLE)
    return lake.table("c")


def every(lake: kt.Lake) -> list[dict[str, Any]]:
    return lake.sql("SELECT * FROM c ORDER BY k").to_pylist()


def answer(lake: kt.Lake, text: str) -> str:
    """What is said to a statement: nothing, or an error."""
    try:
        lake.sql(text).to_arrow()
    except kt.InvalidError as error:
        return str(error)
    return ""


def not_refused(lake: kt.Lake, texts: list[str]) -> list[str]:
    """The statements that are not refused for their conditions."""
    return [text for text in texts if "BOOLEAN" not in answer(lake, text)]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("value", NO_CONDITIONS)
def test_what_is_no_condition_is_refused_wherever_a_condition_stands(
    warehouse: str, table: kt.Table, value: str
) -> None:
    lake = kt.connect(warehouse)
    before = every(lake)
    places = [place.format(value) for place in PLACES]
    texts = [STATEMENTS[0].format(place) for place in places]
    texts += said([*STATEMENTS[1:], *QUERIES], value)
    assert not_refused(lake, texts) == []
    with pytest.raises(kt.InvalidError, match="BOOLEAN"):
        table.delete(value.replace("c.", "target."))
    with pytest.raises(kt.InvalidError, match="BOOLEAN"):
        table.merge([{"z": 1}], "target.k = source.z").when_matched_delete(value).execute()
    assert every(lake) == before


@pytest.mark.one_in(14)
@pytest.mark.parametrize("value", CONDITIONS)
def test_condition_is_taken_wherever_one_stands(
    warehouse: str, table: kt.Table, value: str
) -> None:
    lake = kt.connect(warehouse)
    nested = [QUERIES[0].format(place) for place in PLACES]
    for text in said([*QUERIES, *nested, *STATEMENTS], value):
        lake.sql(text)


def test_condition_decides_as_it_says(warehouse: str, table: kt.Table) -> None:
    lake = kt.connect(warehouse)
    found = {
        value: [r["k"] for r in lake.sql(f"SELECT k FROM c WHERE {value} ORDER BY k").to_pylist()]
        for value in CONDITIONS
    }
    both = {"TRUE", "b IS NOT NULL", "CAST(v AS BOOLEAN)", "(SELECT max(b) FROM c)",
            "EXISTS (SELECT 1 FROM c WHERE b)"}  # fmt: skip
    expected = {value: [2] if value == "NOT b" else [] if value == "NULL"
                else [1, 2] if value in both else [1] for value in CONDITIONS}  # fmt: skip
    assert found == expected


def test_error_names_what_was_found_and_the_way_out(table: kt.Table) -> None:
    for value, message in {
        "2026-01-31": "2026 - 01 - 31 is used as a condition but is INT, not BOOLEAN; write a date",
        "k = 1 AND v": "line 1, column 11: v is used as a condition but is STRING, not BOOLEAN",
        "k = 1 AND upper(v)": r"UPPER\(v\) is used as a condition but is not BOOLEAN; compare",
    }.items():
        with pytest.raises(kt.InvalidError, match=message):
            table.delete(value)


def test_condition_is_refused_in_a_table_without_rows_too(warehouse: str, table: kt.Table) -> None:
    table.delete()
    texts = [f"DELETE FROM c WHERE {value}" for value in NO_CONDITIONS]
    assert not_refused(kt.connect(warehouse), texts) == []


@pytest.mark.parametrize("where", ["2026-01-31", "k", "v", "1", "'true'", "b AND k"])
def test_scan_refuses_the_same(table: kt.Table, where: str) -> None:
    with pytest.raises(kt.InvalidError):
        table.scan(where=where)


@pytest.mark.takes_turns
@pytest.mark.spark
def test_spark_refuses_and_takes_the_same(warehouse: str, table: kt.Table, spark: Any) -> None:
    lake = kt.connect(warehouse, spark=spark)
    before = every(lake)
    queries = [f"SELECT k FROM c WHERE b AND {value}" for value in NO_CONDITIONS]
    changes = [text.format(v) for text in STATEMENTS[::3] for v in ("2026-01-31", "upper(v)")]
    assert not_refused(lake, [*queries, *changes]) == []
    assert every(lake) == before
    every_one = ", ".join(f"{value} AND TRUE" for value in CONDITIONS)
    text = f"SELECT k FROM c WHERE NULL OR (b AND coalesce({every_one})) AND contains(v, 't')"
    assert lake.sql(text).to_pylist() == kt.connect(warehouse).sql(text).to_pylist() == [{"k": 1}]
