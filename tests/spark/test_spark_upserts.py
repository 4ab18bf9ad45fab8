"""Tables with an index of keys on Spark: a task of a write has whole buckets, and its index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import keytide as kt
from table_rows import by_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(params=["1", "3"])
def table(request: pytest.FixtureRequest, warehouse: str, spark: SparkSession) -> kt.Table:
    lake = kt.connect(warehouse, spark)
    lake.sql(
        "CREATE TABLE t (k INT NOT NULL, ts INT, v STRING, PRIMARY KEY (k) NOT ENFORCED) "
        f"WITH ('upsert.mode' = 'full', 'sequence.field' = 'ts', 'bucket' = '{request.param}')"
    )
    return lake.table("t")


def frame(spark: SparkSession, rows: list[tuple[int, int, str]], parts: int = 3) -> object:
    return spark.createDataFrame(rows, "k INT, ts INT, v STRING").repartition(parts)


@pytest.mark.takes_turns
def test_dataframes_are_upserted(table: kt.Table, spark: SparkSession) -> None:
    table.write(frame(spark, [(k, 5, "a") for k in range(40)]))
    table.write(frame(spark, [(k, 4 + k % 3, "b") for k in range(0, 60, 2)]))
    expected = dict.fromkeys(range(40), (5, "a"))
    expected |= {k: (4 + k % 3, "b") for k in range(0, 60, 2) if k >= 40 or k % 3}
    assert by_key(table, "ts", "v") == expected
    assert not table.verify().findings


def test_rows_are_read_by_sparks_own_reader(table: kt.Table, spark: SparkSession) -> None:
    table.write(frame(spark, [(k, 5, "a") for k in range(40)]))
    table.write(frame(spark, [(1, 6, "b"), (2, 4, "late")]))
    read = table.scan().to_spark(spark)
    assert "Python" not in read._jdf.queryExecution().toString()
    found = {row.k: (row.ts, row.v) for row in read.collect()}
    assert found == by_key(table, "ts", "v")
    assert (found[1], found[2]) == ((6, "b"), (5, "a"))


def test_rows_are_changed_on_executors(table: kt.Table, spark: SparkSession) -> None:
    lake = kt.connect(table.uri.rsplit("/default.db", 1)[0], spark)
    table.write(frame(spark, [(k, 5, "a") for k in range(20)]))
    lake.sql("DELETE FROM t WHERE k < 5")
    lake.sql("UPDATE t SET v = 'u' WHERE k = 7")
    lake.sql("MERGE INTO t USING (SELECT 8 AS k UNION ALL SELECT 30) s ON t.k = s.k "
             "WHEN MATCHED THEN DELETE "
             "WHEN NOT MATCHED THEN INSERT VALUES (s.k, 1, 'm')")  # fmt: skip
    expected = dict.fromkeys(range(5, 20), (5, "a")) | {7: (5, "u"), 30: (1, "m")}
    del expected[8]
    assert by_key(table, "ts", "v") == expected
    assert not table.verify().findings


@pytest.mark.takes_turns
def test_rows_are_merged_with_those_that_are_stored(warehouse: str, spark: SparkSession) -> None:
    lake = kt.connect(warehouse, spark)
    lake.sql(
        "CREATE TABLE t (k INT NOT NULL, ts INT, n INT, v STRING, PRIMARY KEY (k) NOT ENFORCED) "
        "WITH ('upsert.mode' = 'partial', 'sequence.field' = 'ts', 'bucket' = '2', "
        "'fields.n.aggregate-function' = 'INCREMENT')"
    )
    table = lake.table("t")
    rows = [(k, ts, 1) for k in range(10) for ts in (3, 1, 2)]
    for shift in (0, 3):
        given = [(k, ts + shift, n) for k, ts, n in rows]
        table.write(spark.createDataFrame(given, "k INT, ts INT, n INT").repartition(3))
    lake.sql("UPDATE t SET n = 100 WHERE k = 1")
    lake.sql("INSERT INTO t SELECT k, 9 AS ts, 1 AS n, 'z' AS v FROM t WHERE k < 2")
    found = {row["k"]: (row["ts"], row["n"], row["v"]) for row in table.scan().to_pylist()}
    assert found == dict.fromkeys(range(10), (6, 6, None)) | {0: (9, 7, "z"), 1: (9, 101, "z")}
    assert not table.verify().findings


@pytest.mark.one_in(14)
def test_more_than_current_rows_are_read(table: kt.Table, spark: SparkSession) -> None:
    table.write(frame(spark, [(k, 5, "a") for k in range(20)]))
    table.write(frame(spark, [(1, 6, "b"), (2, 4, "late")]))
    table.delete("k = 3")
    read = spark.read.format("keytide").option("skip-upsert", "true").load(table.uri)
    assert sorted(row.v for row in read.where("k IN (1, 2)").collect()) == ["a", "a", "b", "late"]
    assert read.count() == table.scan(skip_upsert=True).count()
    last = table.scan(skip_upsert_delete=True).to_spark(spark)
    assert sorted(row.k for row in last.collect()) == list(range(20))


@pytest.mark.takes_turns
def test_rows_that_are_errors_are_counted_over_all_tasks(
    warehouse: str, spark: SparkSession
) -> None:
    lake = kt.connect(warehouse, spark)
    lake.sql(
        "CREATE TABLE t (k INT, a INT, b INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket' = '3', "
        "'upsert.mode' = 'full', 'sequence.field' = 'a,b', 'upsert.row-errors' = 'count')"
    )
    table = lake.table("t")
    rows = [(k, 1, None) for k in range(20)] + [(k, None, None) for k in range(4)]
    rows += [(k, 1, 1) for k in range(3)] + [(None, 1, None)] * 2
    frame = spark.createDataFrame(rows, "k INT, a INT, b INT").repartition(3)
    result = table.write(frame)
    assert result.errors == {
        "no-comparison-value": 4, "several-comparison-values": 3, "null-primary-key": 2,
    }  # fmt: skip
    assert (result.rows, result.rows_stored, table.scan().count()) == (29, 20, 20)
    frame.write.format("keytide").mode("append").save(table.uri)
    assert table.scan().count() == 20


def test_tasks_compute_columns_of_merged_rows(warehouse: str, spark: SparkSession) -> None:
    lake = kt.connect(warehouse, spark)
    lake.sql(
        "CREATE TABLE t (k INT, ts INT, a INT, b INT, total INT, PRIMARY KEY (k) NOT ENFORCED) "
        "WITH ('bucket' = '3', 'upsert.mode' = 'partial', 'sequence.field' = 'ts', "
        "'fields.total.post-merge-expression' = 'a + b')"
    )
    table, columns = lake.table("t"), "k INT, ts INT, a INT, b INT"
    table.write(spark.createDataFrame([(k, 1, k, None) for k in range(9)], columns).repartition(3))
    table.write(spark.createDataFrame([(k, 2, None, 1) for k in range(0, 9, 2)], columns))
    rows = table.scan(columns=["k", "total"]).to_pylist()
    assert {r["k"]: r["total"] for r in rows} == {
        k: k + 1 if k % 2 == 0 else None for k in range(9)
    }
