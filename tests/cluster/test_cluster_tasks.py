"""Work reaches executors in as many tasks as it needs, and one large bucket is not one task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.functions import spark_partition_id

import keytide as kt
from keytide.spark.capacity import TASK_SIZE, Capacity, capacity_of

pytestmark = pytest.mark.cluster

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("text", pa.string())])


def new_rows(numbers: range, value: int) -> pa.Table:
    texts = [f"{n * 7919 % 10_007}-{value}" for n in numbers]
    return pa.table([[*numbers], [value] * len(numbers), texts], schema=SCHEMA)


@contextmanager
def tasks_of(spark: Any, size: str) -> Iterator[None]:
    """A context in which tasks read at most this much."""
    before = spark.conf.get(TASK_SIZE)
    spark.conf.set(TASK_SIZE, size)
    try:
        yield
    finally:
        spark.conf.set(TASK_SIZE, before)


def test_the_session_says_what_it_can_run(cluster: Any) -> None:
    assert capacity_of(cluster) == Capacity(2, 1, 2)


def test_one_large_bucket_is_read_by_several_tasks_of_about_equal_size(
    cluster: Any, warehouse: str
) -> None:
    options = {"bucket": "1", "write-only": "true"}
    table = kt.connect(warehouse).create_table("t", SCHEMA, ["id"], options=options)
    table.write(new_rows(range(60_000), 0))
    table.write(new_rows(range(0, 60_000, 5), 1))
    read = table.scan().to_spark(cluster)
    assert sorted(map(tuple, read.collect())) == sorted(
        tuple(row.values()) for row in table.scan().to_pylist()
    )
    counted = read.withColumn("part", spark_partition_id()).groupBy("part").count().collect()
    counts = [row["count"] for row in counted]
    assert 4 <= len(counts) <= 8
    assert max(counts) < 1.5 * sum(counts) / len(counts)


def test_a_small_table_is_read_by_one_task(cluster: Any, lake: kt.Lake) -> None:
    table = lake.create_table("t", SCHEMA, ["id"], options={"bucket": "4"})
    table.write(new_rows(range(50), 0))
    table.write(new_rows(range(50), 1))
    with tasks_of(cluster, "128 mb"):
        read = table.scan().to_spark(cluster)
    assert read.rdd.getNumPartitions() == 1
    assert read.agg({"v": "sum", "id": "sum"}).collect()[0][0:2] in [(50, 1225), (1225, 50)]


@pytest.mark.parametrize("options", [{"bucket": "4"}, {}], ids=["keyed", "append"])
def test_merge_of_few_rows_takes_few_steps(
    cluster: Any, warehouse: str, options: dict[str, str]
) -> None:
    table = kt.connect(warehouse, spark=cluster).create_table(
        "t", SCHEMA, ["id"] if options else [], options=options
    )
    table.write(new_rows(range(1_000), 0))

    def steps_of_merge(source: Any) -> int:
        group = f"{warehouse} {type(source)}"
        cluster.sparkContext.setJobGroup(group, group)
        merge = table.merge(source, "target.id = source.id").when_matched_update_all()
        with tasks_of(cluster, "128 mb"):
            merge.when_not_matched_insert_all().execute()
        return stages_run(cluster, group)

    # One collects the source, one sends the target's rows, and one joins and writes.
    assert steps_of_merge(cluster.createDataFrame(new_rows(range(950, 1_050), 1))) <= 3
    assert steps_of_merge(new_rows(range(950, 1_060), 2)) <= 2
    found = {row["id"]: row["v"] for row in table.scan().to_pylist()}
    assert found == {n: 2 if n >= 950 else 0 for n in range(1_060)}


def stages_run(spark: Any, group: str) -> int:
    """The number of stages of a job group that ran. Each job must have one."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    ran = [stage for stage in stages if stage is not None and stage.numCompletedTasks]
    assert len(ran) >= len(jobs)
    return len(ran)


def test_changes_of_a_bucket_in_ranges_are_those_of_a_local_table(
    cluster: Any, warehouse: str
) -> None:
    with tasks_of(cluster, "16 kb"):
        found = []
        for name, spark in (("here", None), ("there", cluster)):
            lake = kt.connect(warehouse, spark=spark)
            options = {"bucket": "2", "write-only": "true"}
            table = lake.create_table(name, SCHEMA, ["id"], options=options)
            table.write(new_rows(range(4_000), 0))
            table.write(new_rows(range(0, 4_000, 3), 1))
            lake.sql(f"UPDATE {name} SET v = v + id WHERE id % 10 = 3")
            lake.sql(f"DELETE FROM {name} WHERE text LIKE '%7-1'")
            lake.sql(
                f"MERGE INTO {name} t USING (SELECT id + 2 AS id, v FROM {name} WHERE id > 3900) s "
                "ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v "
                "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
            )
            found.append(sorted(tuple(row.values()) for row in table.scan().to_pylist()))
    assert found[0] == found[1]
