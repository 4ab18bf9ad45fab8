"""CHECK constraints: no row that fails one is written, whichever way it comes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt

TABLE = """
CREATE TABLE t (k INT, qty INT, status STRING, PRIMARY KEY (k) NOT ENFORCED,
  CONSTRAINT positive CHECK (qty > 0), CONSTRAINT known CHECK (status IN ('new', 'paid')))
"""
GOOD = {"k": 1, "qty": 5, "status": "new"}


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    lake = kt.connect(warehouse)
    lake.sql(f"{TABLE}; INSERT INTO t VALUES (1, 5, 'new')")
    return lake


def rows(lake: kt.Lake) -> Any:
    return lake.sql("SELECT * FROM t ORDER BY k").to_pylist()


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES (2, 3, 'new'), (3, 0, 'new')",
        "INSERT OVERWRITE t VALUES (3, 0, 'new')",
        "UPDATE t SET qty = qty - 5",
        "MERGE INTO t USING (SELECT 1 AS k) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET qty = -1",
        "MERGE INTO t USING (SELECT 4 AS k) s ON t.k = s.k "
        "WHEN NOT MATCHED THEN INSERT (k, qty, status) VALUES (s.k, 0, 'new')",
    ],
)
def test_statement_that_breaks_a_constraint_changes_nothing(lake: kt.Lake, text: str) -> None:
    with pytest.raises(kt.InvalidError, match=r"1 of . rows? .*'positive', CHECK \(qty > 0\)"):
        lake.sql(text)
    assert rows(lake) == [GOOD]


def test_write_names_how_many_rows_and_the_first(lake: kt.Lake) -> None:
    table = lake.table("t")
    assert isinstance(table, kt.Table)
    bad = [{"k": k, "qty": 1, "status": "odd" if k > 7 else "paid"} for k in range(5, 10)]
    with pytest.raises(kt.InvalidError, match=r"2 of 5 rows .* k = 8: .*'known'"):
        table.write(bad)
    assert rows(lake) == [GOOD]


def test_null_and_deletes_pass(lake: kt.Lake) -> None:
    table = lake.table("t")
    assert isinstance(table, kt.Table)
    table.write([{"k": 2, "qty": None, "status": None}])
    table.write([{"k": 1, "qty": -9, "status": "gone", "_row_kind": "-D"}])
    assert rows(lake) == [{"k": 2, "qty": None, "status": None}]


def test_partial_rows_are_checked_by_what_they_bring(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    lake.sql(TABLE + "WITH ('merge-engine' = 'partial-update')")
    lake.sql("INSERT INTO t (k, qty) VALUES (1, 5); INSERT INTO t (k, status) VALUES (1, 'new')")
    with pytest.raises(kt.InvalidError, match="'known'"):
        lake.sql("INSERT INTO t (k, status) VALUES (1, 'odd')")
    assert rows(lake) == [GOOD]


@pytest.mark.parametrize("options", [{}, {"upsert.mode": "FULL"}], ids=["merged", "indexed"])
def test_constraints_come_and_go(warehouse: str, options: dict[str, str]) -> None:
    schema = pa.schema({"k": pa.int64(), "qty": pa.int64()})
    table = kt.connect(warehouse).create_table("t", schema, ["k"], options=options)
    table.write([{"k": 1, "qty": 0}, {"k": 2, "qty": 2}])
    with pytest.raises(kt.InvalidError, match=r"1 rows violate .* k = 1"):
        table.add_constraint("positive", "qty > 0")
    table.delete("k = 1")
    table.add_constraint("positive", "qty > 0")
    with pytest.raises(kt.AlreadyExistsError, match="'positive'"):
        table.add_constraint("positive", "qty > 1")
    with pytest.raises(kt.InvalidError, match="'positive'"):
        table.write([{"k": 3, "qty": 0}])
    table.drop_constraint("positive")
    with pytest.raises(kt.NotFoundError, match="existing constraints: none"):
        table.drop_constraint("positive")
    table.write([{"k": 3, "qty": 0}])
    assert table.get(3) == {"k": 3, "qty": 0}


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (nobody > 0)", "nobody"),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (qty > 5)", "1 rows violate the constraint 'c'"),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK ()", "expected a condition in parentheses"),
        ("ALTER TABLE t DROP COLUMN qty", "positive"),
        ("ALTER TABLE t DROP CONSTRAINT c", "existing constraints: positive, known"),
        ("CREATE TABLE u (k INT PRIMARY KEY, CONSTRAINT c CHECK (k LIKE 'a'))", "constraint 'c'"),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (qty > nobody)", "'nobody', which does not exist"),
        (
            "ALTER TABLE t ADD CONSTRAINT c CHECK (qty + k)",
            "it is int32, but a condition must be BOOLEAN",
        ),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (qty > rand())", "between rows, times and sessions"),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (now() > DATE '2026-01-01')", "calls 'now'"),
        (
            "ALTER TABLE t ADD CONSTRAINT c CHECK (qty > k AND current_date > ts)",
            "'ts', which does not exist",
        ),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (current_date > DATE '2026-01-01')", "CURRENT_DATE"),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (qty = (SELECT 1))", "has a subquery"),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (sum(qty) > 1)", "calls 'sum'"),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (qty > k k)", "not a valid SQL expression"),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (unheard(qty) > k)", "which DuckDB does not know"),
        ("ALTER TABLE t RENAME COLUMN qty TO n", "'constraint.positive' = 'qty > 0' uses it"),
    ],
)
def test_constraint_that_cannot_be_is_refused(lake: kt.Lake, text: str, message: str) -> None:
    before = lake.table("t").table_schema
    with pytest.raises(kt.KeytideError) as caught:
        lake.sql(text)
    assert message in str(caught.value)
    assert lake.table("t").table_schema == before
    assert lake.tables() == ["default.t"]


def test_sql_alters_constraints(lake: kt.Lake) -> None:
    lake.sql("ALTER TABLE t DROP CONSTRAINT known; ALTER TABLE t DROP CONSTRAINT IF EXISTS known")
    lake.sql("ALTER TABLE t ADD CONSTRAINT small CHECK (qty < 10 AND NOT status = 'x')")
    with pytest.raises(kt.InvalidError, match="'small'"):
        lake.sql("INSERT INTO t VALUES (2, 11, 'any')")
    [shown] = lake.sql("SHOW CREATE TABLE t").to_pylist()
    assert "'constraint.small' = 'qty < 10 AND NOT status = ''x'''" in shown["create_table"]


WIDE = """
CREATE TABLE w (k INT PRIMARY KEY, `from` TIMESTAMP, `to` TIMESTAMP, s STRING,
  CONSTRAINT span CHECK (`TO` >= `from` AND date_format(`from`, 'yyyy') <> '1999'),
  CONSTRAINT word CHECK (
    CASE WHEN s LIKE '%a%' THEN length(trim(s)) + k > 2 ELSE CAST(s AS INT) = 7 END))
"""


def test_conditions_compare_columns_and_call_functions(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    lake.sql(WIDE)
    table = lake.table("w")
    assert isinstance(table, kt.Table)
    early, late = datetime(2026, 1, 1), datetime(2026, 1, 2)
    good = [
        {"k": 1, "from": early, "to": late, "s": "ab"},
        {"k": 2, "from": early, "to": None, "s": None},
        {"k": 0, "from": None, "to": late, "s": "7"},
    ]
    table.write(good)
    bad = [{"k": k, "from": late, "to": early, "s": "abc"} for k in range(10, 17)]
    with pytest.raises(kt.InvalidError) as caught:
        table.write([*good, *bad])
    assert "7 of 10 rows cannot be merged, the first with k = 10: " in str(caught.value)
    assert (
        "; 7 rows do: k = 10, to = 2026-01-01 00:00:00, from = 2026-01-02 00:00:00; k = 11"
        in str(caught.value)
    )
    assert str(caught.value).endswith("; ...")
    # No number can be made of it.
    with pytest.raises(kt.InvalidError, match=r"1 row does: k = 0, s = 'x'"):
        table.write([{"k": 0, "from": None, "to": None, "s": "x"}])
    assert table.scan().to_polars().sort("k")["k"].to_list() == [0, 1, 2]
    with pytest.raises(
        kt.InvalidError, match=r"2 rows violate .* for example k = 0, s = '7'; k = 1"
    ):
        table.add_constraint("long", "length(s) > 2")
    lake.sql("ALTER TABLE w DROP CONSTRAINT span; ALTER TABLE w DROP COLUMN `to`")


@pytest.mark.spark
def test_rows_of_spark_are_checked(lake: kt.Lake, spark: Any) -> None:
    lake.sql("ALTER TABLE t ADD CONSTRAINT more CHECK (qty > k OR length(status) = 3)")
    frame = spark.createDataFrame([(7, 1, "paid")], "k int, qty int, status string")
    table = lake.table("t")
    assert isinstance(table, kt.Table)
    with pytest.raises(kt.InvalidError, match=r"'more'.* 1 row does: k = 7, qty = 1"):
        table.write(frame)
    assert rows(lake) == [GOOD]


def test_update_of_an_append_table_is_checked(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    lake.sql("CREATE TABLE a (k INT, CONSTRAINT few CHECK (k < 5)); INSERT INTO a VALUES (1), (4)")
    with pytest.raises(kt.InvalidError, match="'few'"):
        lake.sql("UPDATE a SET k = k + 3")
    assert lake.sql("SELECT k FROM a ORDER BY k").to_pylist() == [{"k": 1}, {"k": 4}]
