"""Tables that grow with the DataFrames and streams that are written to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from table_rows import rows

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [("k", pa.int64()), ("v", pa.int32()), ("r", pa.list_(pa.struct({"a": pa.int32()})))]
)


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    t = lake.create_table("t", SCHEMA, ["k"], options={"bucket": "1"})
    t.write([{"k": 1, "v": 1, "r": [{"a": 1}]}])
    return t


FIRST = (1, 1, [{"a": 1, "b": None}], None)


def test_a_table_grows_with_a_dataframe(spark: Any, table: kt.Table) -> None:
    wide = spark.sql(
        "SELECT 2L AS k, 1L << 40 AS v, array(named_struct('b', 'y', 'a', 2), NULL) AS r, 'n' AS w"
    )
    with pytest.raises(kt.NotFoundError, match="write with merge_schema=True"):
        table.write(wide)
    table.write(wide, merge_schema=True)
    narrow = spark.sql("SELECT 3L AS k, 3 AS v, array(named_struct('a', 3)) AS r, NULL AS nothing")
    table.write(narrow, merge_schema=True)
    assert [f.type.sql() for f in table.table_schema.fields[1:]] == [
        "BIGINT", "ARRAY<ROW<`a` INT, `b` STRING>>", "STRING",
    ]  # fmt: skip
    second = (2, 1 << 40, [{"a": 2, "b": "y"}, None], "n")
    assert rows(table) == [FIRST, second, (3, 3, [{"a": 3, "b": None}], None)]
    table.overwrite(narrow.withColumn("x", narrow.k), merge_schema=True)
    assert rows(table) == [(3, 3, [{"a": 3, "b": None}], None, 3)]


def test_a_dataframe_that_does_not_fit_changes_nothing(spark: Any, table: kt.Table) -> None:
    before = table.table_schema
    rows = spark.sql("SELECT 2L AS k, 'text' AS v, 1 AS w")
    with pytest.raises(kt.InvalidError, match="column 'v' is INT, found string"):
        table.write(rows, merge_schema=True)
    assert table.table_schema == before


@pytest.mark.takes_turns
def test_the_data_source_grows_a_table_by_an_option(spark: Any, table: kt.Table) -> None:
    kt.spark.register(spark)
    new = spark.sql("SELECT 2L AS k, 2 AS v, array(named_struct('b', 'y', 'a', 2)) AS r, 'n' AS w")
    new.write.format("keytide").mode("append").option("mergeSchema", "true").save(table.uri)
    assert rows(table) == [FIRST, (2, 2, [{"a": 2, "b": "y"}], "n")]
    less = spark.sql("SELECT 3L AS k, 1L << 40 AS v")
    less.write.format("keytide").mode("overwrite").option("merge-schema", "true").save(table.uri)
    assert rows(table) == [(3, 1 << 40, None, None)]
    with pytest.raises(Exception, match="reads one snapshot, which does not support 'mergeSchema'"):
        spark.read.format("keytide").option("mergeSchema", "true").load(table.uri).collect()


@pytest.mark.takes_turns
def test_a_stream_grows_a_table_by_an_option(spark: Any, table: kt.Table, tmp_path: Path) -> None:
    kt.spark.register(spark)
    spark.sql("SELECT 2L AS k, 1L << 40 AS v, 'n' AS w").write.parquet(str(tmp_path / "rows"))
    frame = spark.readStream.schema("k LONG, v LONG, w STRING").parquet(str(tmp_path / "rows"))
    stream = frame.writeStream.format("keytide").option("mergeSchema", "true")
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).start(table.uri).awaitTermination()
    assert rows(table) == [(1, 1, [{"a": 1}], None), (2, 1 << 40, None, "n")]
