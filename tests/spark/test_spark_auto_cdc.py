"""Flows of change events on Spark: DataFrames, streams, in the driver and on executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from table_rows import rows

pytestmark = pytest.mark.spark

EVENTS = (
    "SELECT * FROM VALUES (1L, 'a', 'c', 1L), (1L, 'b', 'u', 3L), (1L, NULL, 'd', 5L), "
    "(2L, 'x', 'c', 2L), (1L, 'late', 'u', 4L) AS events(k, v, op, s)"
)
NEWEST = [(2, "x", 2)]
HISTORY = [(1, "a", 1, 3), (1, "b", 3, 4), (1, "late", 4, 5), (2, "x", 2, None)]


def flow(lake: kt.Lake, target: str, source: Any, scd_type: int, **more: Any) -> Any:
    more = {"apply_as_deletes": "op = 'd'", **more}
    left_out = ["op"] if scd_type == 1 else ["op", "s"]
    return lake.auto_cdc(
        target, source, ["k"], "s", except_column_list=left_out, stored_as_scd_type=scd_type, **more
    )


@pytest.mark.takes_turns
@pytest.mark.parametrize("limit", ["0", "128 mb"], ids=["executors", "driver"])
def test_a_dataframe_goes_where_its_work_is_done(spark: Any, warehouse: str, limit: str) -> None:
    from pyspark.sql.functions import col

    lake = kt.connect(warehouse, spark=spark)
    options = {"spark.driver-work.max-size": limit, "bucket": "2"}
    events = spark.sql(EVENTS).repartition(2)
    deletes = col("op") == "d"
    flow(lake, "newest", events, 1, apply_as_deletes=deletes, options=options)
    assert rows(lake.table("newest")) == NEWEST
    late = events.where("op = 'd' OR v = 'late'")
    flow(lake, "history", late, 2, options=options)
    result = lake.auto_cdc(
        "history", events.where("op <> 'd'"), [col("k")], col("s"),
        column_list=["k", "v"], stored_as_scd_type=2,
    )  # fmt: skip
    assert result.rows == 4
    assert rows(lake.table("history")) == HISTORY
    assert flow(lake, "history", events, 2).snapshot_id is None


@pytest.mark.takes_turns
@pytest.mark.parametrize("limit", ["0", "128 mb"], ids=["executors", "driver"])
def test_events_truncate_the_target(spark: Any, warehouse: str, limit: str) -> None:
    from pyspark.sql.functions import col

    lake = kt.connect(warehouse, spark=spark)
    options = {"spark.driver-work.max-size": limit, "bucket": "2"}
    more = {"apply_as_truncates": "op = 't'", "options": options}
    events = spark.sql(EVENTS)
    for target, ignores_nulls in [("newest", False), ("values", True)]:
        flow(lake, target, events, 1, ignore_null_updates=ignores_nulls, options=options)
        truncates = spark.sql(
            "SELECT NULL :: LONG AS k, '' AS v, 't' AS op, EXPLODE(ARRAY(1L, 3L)) AS s"
        )
        result = flow(lake, target, truncates, 1, ignore_null_updates=ignores_nulls, **more)
        assert result.snapshot_id is not None
        assert lake.table(target).scan().count() == 0
        late = spark.sql("SELECT EXPLODE(ARRAY(2L, 3L)) AS s, 'late' AS v, 'u' AS op").withColumn(
            "k", col("s")
        )
        flow(lake, target, late, 1, ignore_null_updates=ignores_nulls)
        assert [row["k"] for row in lake.table(target).scan(["k"]).to_pylist()] == [3]
    nowhere = truncates.withColumn("s", col("s").cast("long") + None)
    with pytest.raises(kt.InvalidError, match="its order is unknown"):
        flow(lake, "newest", nowhere, 1, **more)


@pytest.mark.takes_turns
def test_a_stream_gives_its_query(spark: Any, warehouse: str, tmp_path: Path) -> None:
    lake = kt.connect(warehouse, spark=spark)
    spark.sql(EVENTS).write.parquet(str(tmp_path / "events"))
    source = spark.readStream.schema("k LONG, v STRING, op STRING, s LONG")
    events = source.parquet(str(tmp_path / "events"))
    for target, scd_type, expected in [("newest", 1, NEWEST), ("history", 2, HISTORY)]:
        query = flow(
            lake, target, events, scd_type, name=target, trigger={"availableNow": True},
            checkpoint=tmp_path / target,
        )  # fmt: skip
        query.awaitTermination()
        assert query.name == target
        assert rows(lake.table(target)) == expected
    with pytest.raises(kt.InvalidError, match="each batch of a streaming DataFrame"):
        flow(lake, "newest", events, 1, commit_user="me", commit_identifier=1)
