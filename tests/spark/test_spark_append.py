"""Append tables through Spark: rows are written and read by tasks, and none is merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import keytide as kt
from new_tables import fields_of
from table_rows import rows_in_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "p STRING, n BIGINT, v STRING"
LAYOUTS = ["", "PARTITIONED BY (p)", "WITH ('bucket' = '3', 'bucket-key' = 'n')"]
ROWS = [("ab"[n % 2], n // 3, None if n % 5 else "x") for n in range(60)]


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_spark_are_kept_and_read_as_they_are(
    spark: SparkSession, warehouse: str, layout: str
) -> None:
    lake = kt.connect(warehouse, spark=spark)
    lake.sql(f"CREATE TABLE t ({COLUMNS}) {layout}")
    table = lake.table("t")
    df = spark.createDataFrame(ROWS, COLUMNS).repartition(3)
    assert table.write(df).rows_stored == 60
    df.write.format("keytide").mode("append").save(table.uri)
    local = rows_in_order(table)
    read = {
        "to_spark": table.scan().to_spark(spark),
        "source": spark.read.format("keytide").load(table.uri),
        "SQL": lake.sql("SELECT * FROM t").to_spark(),
    }
    expected = sorted(ROWS + ROWS, key=repr)
    assert sorted(local, key=repr) == expected
    for name, rows in read.items():
        assert sorted(map(tuple, rows.collect()), key=repr) == expected, name
    found = table.scan(where="n = 2 AND v = 'x'").to_spark(spark).collect()
    assert sorted(map(tuple, found)) == [r for r in expected if r[1:] == (2, "x")]


def test_rows_of_spark_that_change_others_are_refused(spark: SparkSession, warehouse: str) -> None:
    lake = kt.connect(warehouse, spark=spark)
    table = lake.create_table("t", fields_of("n BIGINT"), ())
    df = spark.createDataFrame([(1, "+I"), (1, "-D")], "n BIGINT, _row_kind STRING")
    with pytest.raises(kt.InvalidError, match="without a primary key"):
        table.write(df.repartition(2))
    assert table.metadata.latest_snapshot() is None
    assert not list(table.metadata.store.list_names("bucket-0"))
