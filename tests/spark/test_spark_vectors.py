"""Tables with deletion vectors on Spark: executors mark rows, and Spark's own reader skips them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.functions import col, lit

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from keytide.spark.read_plans import split_scan
from new_tables import dotted, fields_of
from table_rows import rows

pytestmark = pytest.mark.spark

FIELDS = fields_of("k INT NOT NULL, s INT, v STRING")


def new_table(lake: kt.Lake, **options: str) -> kt.Table:
    named = dotted(options)
    vectors = {"deletion-vectors.enabled": "true", "bucket": "2"}
    return lake.create_table("t", FIELDS, ["k"], options={**vectors, **named})


def collected(found: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in found.collect())


def batch(spark: Any, start: int, stop: int, sequence: int, value: str) -> Any:
    return spark.range(start, stop).select(
        col("id").cast("int").alias("k"), lit(sequence).alias("s"), lit(value).alias("v")
    )


@pytest.mark.takes_turns
def test_rows_that_spark_wrote_are_shown_and_read_natively(warehouse: str, spark: Any) -> None:
    table = new_table(kt.connect(warehouse, spark=spark), sequence__field="s")
    table.write(batch(spark, 0, 50, 5, "a"))
    batch(spark, 10, 20, 6, "b").write.format("keytide").mode("append").save(table.uri)
    deletes = batch(spark, 15, 25, 7, "x").withColumn("_row_kind", lit("-D"))
    table.write(deletes)
    table.write(batch(spark, 20, 30, 6, "late"))
    expected = [(k, 6, "b") for k in range(10, 15)] + [(k, 6, "late") for k in range(25, 30)]
    expected += [(k, 5, "a") for k in (*range(10), *range(30, 50))]
    assert collected(table.scan().to_spark(spark)) == rows(table) == sorted(expected)
    split = split_scan(table.scan())
    assert not split.tasks
    assert {shape.has_dead_rows for shape in split.plain} == {True}
    assert not any(shape.has_retracts for shape in split.plain)
    loaded = spark.read.format("keytide").load(table.uri)
    assert collected(loaded.select("k", "s", "v")) == sorted(expected)
    found = table.scan(columns=["k"], where="v = 'late' AND k > 26").to_spark(spark)
    assert collected(found) == [(27,), (28,), (29,)]


@pytest.mark.takes_turns
def test_rows_that_are_not_compacted_are_merged_by_tasks_where_asked_for(
    warehouse: str, spark: Any
) -> None:
    table = new_table(kt.connect(warehouse, spark=spark), write_only="true")
    table.write(batch(spark, 0, 10, 1, "a"))
    table.compact()
    table.write(batch(spark, 5, 15, 1, "b"))
    assert collected(table.scan().to_spark(spark)) == [(k, 1, "a") for k in range(10)]
    table.alter(SetOption("deletion-vectors.merge-on-read", "true"))
    expected = [(k, 1, "a" if k < 5 else "b") for k in range(15)]
    assert collected(table.scan().to_spark(spark)) == rows(table) == expected


@pytest.mark.takes_turns
def test_stream_tells_of_rows_once_they_are_shown(
    warehouse: str, spark: Any, tmp_path: Any
) -> None:
    kt.spark.register(spark)
    table = new_table(kt.connect(warehouse, spark=spark))
    table.write(batch(spark, 0, 4, 1, "a"))

    def told() -> list[tuple[Any, ...]]:
        stream = spark.readStream.format("keytide").load(table.uri)
        found: list[tuple[Any, ...]] = []
        query = (
            stream.writeStream.foreachBatch(lambda frame, _: found.extend(collected(frame)))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(found)

    assert told() == [("+I", k, 1, "a") for k in range(4)]
    table.write(batch(spark, 2, 5, 2, "b"))
    assert told() == sorted(
        [("+I", 4, 2, "b"), *((kind, k, s, v) for k in (2, 3)
                              for kind, s, v in (("-U", 1, "a"), ("+U", 2, "b")))]
    )  # fmt: skip
    assert told() == []
