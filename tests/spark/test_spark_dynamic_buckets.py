"""Dynamic buckets on Spark: tasks side by side put no key into two buckets."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import keytide as kt

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.int64())])


def new_table(warehouse: str, **options: str) -> kt.Table:
    given = {"bucket": "-1", "dynamic-bucket.target-row-num": "20", **options}
    return kt.connect(warehouse).create_table("t", SCHEMA, ["id", "p"], ["p"], options=given)


def make_rows(spark: Any, first: int, count: int, value: int) -> Any:
    """Rows of `count` keys, each of them in two of four partitions of the DataFrame."""
    numbers = spark.range(0, 2 * count, 1, 4)
    return numbers.selectExpr(
        f"id % {count} + {first} AS id", "concat('p', id % 2) AS p", f"CAST({value} AS BIGINT) AS v"
    )


def buckets_by_key(table: kt.Table) -> dict[tuple[int, str], set[int]]:
    found: dict[tuple[int, str], set[int]] = {}
    for task in table.scan().tasks():
        for frame in task.outcomes(1 << 20):
            for key in frame.select("id", "p").iter_rows():
                found.setdefault(key, set()).add(task.bucket.bucket)
    return found


@pytest.mark.takes_turns
def test_tasks_place_keys_alike_and_later_writes_find_them(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    table.write(make_rows(spark, 0, 101, 1))
    before = buckets_by_key(table)
    assert len(before) == 202
    assert {len(buckets) for buckets in before.values()} == {1}
    table.write(make_rows(spark, 51, 101, 2))
    table.write([{"id": 7, "p": "p1", "v": 3}])  # in plain Python
    after = buckets_by_key(table)
    assert {key: after[key] for key in before} == before
    assert {len(buckets) for buckets in after.values()} == {1}
    assert table.scan().count() == 304
    assert sum(row["v"] for row in table.scan().to_pylist()) == 102 + 2 * 202 + (3 - 1)
    assert table.get({"id": 60, "p": "p0"}) == {"id": 60, "p": "p0", "v": 2}


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("options", "buckets"),
    [
        ({"dynamic-bucket.initial-buckets": "3", "dynamic-bucket.target-row-num": "1000"}, 3),
        ({"dynamic-bucket.assigner-parallelism": "5", "dynamic-bucket.target-row-num": "1000"}, 5),
        ({"dynamic-bucket.max-buckets": "1"}, 1),
    ],
    ids=["initial buckets", "parallelism", "one bucket"],
)
def test_options_say_how_many_buckets_there_are(
    warehouse: str, spark: Any, options: dict[str, str], buckets: int
) -> None:
    table = new_table(warehouse, **options)
    table.write(make_rows(spark, 0, 101, 1))
    found = buckets_by_key(table)
    assert set().union(*found.values()) == set(range(buckets))
    assert {len(each) for each in found.values()} == {1}


def test_data_source_is_refused_with_the_way_out(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    rows = make_rows(spark, 0, 3, 1)
    with pytest.raises(Exception, match=r"dynamic buckets.*table\.write\(df\)"):
        rows.write.format("keytide").mode("append").save(table.uri)
    assert table.snapshots() == []
    table.write([{"id": 1, "p": "p0", "v": 1}])
    assert spark.read.format("keytide").load(table.uri).count() == 1


@pytest.mark.takes_turns
def test_key_without_partition_columns_is_in_one_partition(warehouse: str, spark: Any) -> None:
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": "20"}
    table = kt.connect(warehouse).create_table("t", SCHEMA, ["id"], ["p"], options=options)
    table.write(make_rows(spark, 0, 101, 1))
    table.write(make_rows(spark, 51, 101, 2))
    ids = [row["id"] for row in table.scan().to_pylist()]
    assert sorted(ids) == list(range(152))
    assert sum(row["v"] for row in table.scan().to_pylist()) == 51 + 2 * 101
