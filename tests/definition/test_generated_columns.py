"""Generated columns: what is stored is what their expression gives, whichever way rows come."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt

SCHEMA = pa.schema({"id": pa.int64(), "ts": pa.timestamp("us"), "day": pa.date32()})
DAY = {"day": "CAST(ts AS DATE)"}
FIRST, SECOND = datetime(2026, 1, 1, 8), datetime(2026, 1, 2, 9)


def new_table(warehouse: str, key: list[str], **given: Any) -> kt.Table:
    return kt.connect(warehouse).create_table("t", SCHEMA, key, generated=DAY, **given)


def days(table: kt.Table) -> dict[int, Any]:
    """The day of each row, which is that of its time."""
    rows = table.scan().to_arrow().to_pylist()
    assert all(r["day"] == (r["ts"] and r["ts"].date()) for r in rows)
    return {r["id"]: r["day"] and r["day"].day for r in rows}


TABLES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "merged": (["id"], {}),
    "partitioned": (["id"], {"partition_by": ["day"], "options": {"bucket": "-1"}}),
    "key": (["id", "ts", "day"], {"partition_by": ["day"]}),
    "appended": ([], {"partition_by": ["day"]}),
    "indexed": (["id"], {"options": {"upsert.mode": "FULL"}}),
    "first-row": (["id"], {"options": {"merge-engine": "first-row"}}),
}


@pytest.mark.parametrize(("key", "given"), TABLES.values(), ids=TABLES)
def test_missing_values_are_computed_and_others_are_refused(
    warehouse: str, key: list[str], given: dict[str, Any]
) -> None:
    table = new_table(warehouse, key, **given)
    table.write([{"id": 1, "ts": FIRST}, {"id": 2, "ts": SECOND, "day": date(2026, 1, 2)}])
    table.write([{"id": 3, "ts": FIRST, "day": None}])
    assert days(table) == {1: 1, 2: 2, 3: 1}
    wrong = [{"id": n, "ts": SECOND, "day": date(2026, 1, n)} for n in (1, 2, 3)]
    with pytest.raises(
        kt.InvalidError, match=r"2 of 3 rows .*another 'day' than .* 2 rows do: .*day"
    ):
        table.write(wrong)
    if key != ["id"] or "partition_by" not in given:  # keys of other partitions are in the way
        table.overwrite([{"id": 4, "ts": SECOND}])
        assert days(table)[4] == 2


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", ["merged", "partitioned", "key", "appended", "indexed"])
def test_changes_of_rows_compute_it_anew(warehouse: str, name: str) -> None:
    key, given = TABLES[name]
    table = new_table(warehouse, key, **given)
    lake = kt.connect(warehouse)
    lake.sql("INSERT INTO t (id, ts) VALUES (1, TIMESTAMP '2026-01-01 08:00:00')")
    lake.sql("INSERT INTO t VALUES (2, TIMESTAMP '2026-01-01 08:00:00', NULL)")
    lake.sql("UPDATE t SET ts = ts + INTERVAL 1 DAY WHERE id = 1")
    assert days(table) == {1: 2, 2: 1}
    lake.sql(
        "MERGE INTO t USING (SELECT 2 AS id UNION ALL SELECT 3) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET ts = TIMESTAMP '2026-01-05 00:00:00' "
        "WHEN NOT MATCHED THEN INSERT (id, ts) VALUES (s.id, TIMESTAMP '2026-01-06 00:00:00')"
    )
    assert days(table) == {1: 2, 2: 5, 3: 6}
    for text in (
        "UPDATE t SET day = DATE '2026-01-01'",
        "INSERT INTO t VALUES (2, TIMESTAMP '2026-01-01 08:00:00', DATE '2026-01-09')",
        "MERGE INTO t USING (SELECT 2 AS id) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET day = DATE '2026-01-09'",
    ):
        with pytest.raises(kt.InvalidError, match="'day'"):
            lake.sql(text)
    table.delete("day = DATE '2026-01-05'")
    assert days(table) == {1: 2, 3: 6}
    assert table.verify().findings == ()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("k INT, v INT GENERATED ALWAYS AS (k + w)", "'w', which does not exist"),
        ("k INT, v INT GENERATED ALWAYS AS (v + 1)", "cannot be computed from itself"),
        ("k INT, v INT GENERATED ALWAYS AS (CAST(rand() * 9 AS INT))", "between rows, times"),
        ("k INT, v DATE GENERATED ALWAYS AS (current_date)", "reads 'CURRENT_DATE'"),
        ("k INT, v STRING GENERATED ALWAYS AS (k)", "CAST it to this"),
        (
            "k INT, v INT GENERATED ALWAYS AS (k), w INT GENERATED ALWAYS AS (v)",
            "a generated column itself",
        ),
        ("k INT, v INT GENERATED ALWAYS AS ()", "expected an expression in parentheses"),
        ("k INT, v INT DEFAULT 3 GENERATED ALWAYS AS (k)", "also has a DEFAULT"),
        (
            "k INT, v INT NOT NULL GENERATED ALWAYS AS (w), w INT, PRIMARY KEY (k, v)",
            "'w' to the key",
        ),
    ],
)
def test_column_that_cannot_be_generated_is_refused(
    lake: kt.Lake, columns: str, message: str
) -> None:
    key = "" if "PRIMARY" in columns else ", PRIMARY KEY (k)"
    with pytest.raises(kt.KeytideError) as caught:
        lake.sql(f"CREATE TABLE u ({columns}{key})")
    assert message in str(caught.value)
    assert lake.tables() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge-engine": "partial-update"}, "merged column by column"),
        ({"merge-engine": "aggregation"}, "merged column by column"),
        ({"upsert.mode": "PARTIAL"}, "merged column by column"),
        ({"sequence.field": "day"}, "cannot be a generated column"),
    ],
)
def test_tables_in_which_rows_do_not_make_it_are_refused(
    warehouse: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        new_table(warehouse, ["id"], options=options)
    key = new_table(warehouse, ["id", "ts", "day"], options={"merge-engine": "partial-update"})
    key.write([{"id": 1, "ts": FIRST}])
    assert days(key) == {1: 1}


def test_definition_is_told_as_it_was_given_and_keeps_what_it_reads(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    table = new_table(warehouse, ["id"])
    [shown] = lake.sql("SHOW CREATE TABLE t").to_pylist()
    assert "`day` DATE GENERATED ALWAYS AS (CAST(ts AS DATE))" in shown["create_table"]
    assert "generated.day" not in shown["create_table"]
    lake.sql(shown["create_table"].replace("`t`", "`again`") + "; CREATE TABLE alike LIKE t")
    for name in ("again", "alike"):
        assert lake.table(name).table_schema.options == table.table_schema.options
    told = lake.sql("DESCRIBE t").to_pylist()
    assert told[2]["role"] == "generated as (CAST(ts AS DATE))"
    table.write([{"id": 1, "ts": FIRST}])
    for text in (
        "ALTER TABLE t DROP COLUMN ts",
        "ALTER TABLE t RENAME COLUMN ts TO at",
        "ALTER TABLE t SET ('generated.day' = 'CAST(NULL AS DATE)')",
        "ALTER TABLE t ADD COLUMN v INT GENERATED ALWAYS AS (1)",
    ):
        with pytest.raises(kt.InvalidError, match=r"'generated.day'|GENERATED"):
            lake.sql(text)
    lake.sql("ALTER TABLE t RENAME COLUMN day TO d")
    table.write([{"id": 2, "ts": SECOND}])
    lake.sql("ALTER TABLE t RESET ('generated.d'); ALTER TABLE t DROP COLUMN ts")
    assert [r["d"].day for r in lake.sql("SELECT * FROM t ORDER BY id").to_pylist()] == [1, 2]


def test_rows_of_which_it_cannot_be_computed_are_named(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE n (s STRING, i INT NOT NULL GENERATED ALWAYS AS (CAST(s AS INT)))")
    table = lake.table("n")
    assert isinstance(table, kt.Table)
    with pytest.raises(
        kt.InvalidError, match=r"1 of 2 rows .* cannot be computed; 1 row does: s = 'x'"
    ):
        table.write([{"s": "7"}, {"s": "x"}])
    table.write([{"s": "7"}])
    with pytest.raises(kt.InvalidError, match=r"cannot be computed; examples: s = '7x'"):
        table.update({"s": "concat(s, 'x')"})
    with pytest.raises(kt.InvalidError, match="non-null column"):
        table.write([{"s": None}])
    assert table.scan().to_arrow().to_pylist() == [{"s": "7", "i": 7}]


def test_merge_of_all_columns_and_wider_rows_leave_it_to_the_table(warehouse: str) -> None:
    table = new_table(warehouse, ["id"])
    table.write([{"id": 1, "ts": FIRST}])
    rows = pa.table({"id": [1, 2], "ts": pa.array([SECOND, FIRST], pa.timestamp("us"))})
    merge = table.merge(rows, "target.id = source.id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert days(table) == {1: 2, 2: 1}
    table.write(rows.append_column("city", pa.array(["Oslo", "Bergen"])), merge_schema=True)
    assert days(table) == {1: 2, 2: 1}


@pytest.mark.spark
def test_rows_of_spark_are_computed_where_they_are_placed(warehouse: str, spark: Any) -> None:
    key, given = TABLES["key"]
    table = new_table(warehouse, key, **given)
    frame = spark.sql(
        "SELECT id, timestamp_ntz'2026-01-01 08:00:00' + make_dt_interval(id % 3) AS ts, "
        "CASE WHEN id = 7 THEN DATE'2026-01-02' END AS day FROM range(0, 40, 1, 2)"
    )
    table.write(frame)
    assert days(table) == {n: 1 + n % 3 for n in range(40)}
