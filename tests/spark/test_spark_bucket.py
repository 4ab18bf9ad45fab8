"""Buckets computed by Spark are those of the format."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.format.bucket import bucket_ids
from keytide.spark.columns import with_bucket

pytestmark = pytest.mark.spark

LIMITS = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}
ARROW = {"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64()}


def numbers(bits: int) -> list[int]:
    """Small and great ones, of both signs, the ends included."""
    powers = [1 << power for power in range(bits)]
    found = {0, -(1 << bits), (1 << bits) - 1, *powers, *(-p for p in powers)}
    return sorted(found | {p - 1 for p in powers} | {3**k % (1 << bits) for k in range(40)})


def new_table(
    warehouse: str, keys: dict[str, str], buckets: int = 7, function: str = "default"
) -> kt.Table:
    schema = [kt.Field(-1, n, kt.parse_sql_type(f"{k} NOT NULL")) for n, k in keys.items()]
    options = {"bucket": str(buckets), "bucket-function.type": function}
    return kt.connect(warehouse).create_table("t", schema, list(keys), options=options)


def assert_buckets(table: kt.Table, rows: pa.Table, spark: Any, *, in_sql: bool) -> None:
    view = table.scan().view
    frame = with_bucket(spark.createDataFrame(rows), view, view.options.bucket, "_BUCKET")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert ("ArrowEvalPython" not in plan) == in_sql
    fields = view.schema.trimmed_primary_key_fields()
    columns = [rows.column(f.name).cast(f.type.to_arrow()).combine_chunks() for f in fields]
    options = view.options
    expected = bucket_ids(
        columns, [f.type for f in fields], options.bucket, options.bucket_function
    )
    found = frame.toArrow()
    assert found.column_names == [*rows.column_names, "_BUCKET"]
    assert found.column("_BUCKET").to_pylist() == expected.tolist()
    assert len(set(expected.tolist())) > 1


@pytest.mark.one_in(14)
@pytest.mark.parametrize("buckets", [2, 7, 1000])
@pytest.mark.parametrize("kind", LIMITS)
def test_whole_numbers_are_hashed_by_spark_itself(
    kind: str, buckets: int, warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse, {"id": kind}, buckets)
    rows = pa.table({"id": pa.array(numbers(LIMITS[kind]), ARROW[kind])})
    assert_buckets(table, rows, spark, in_sql=True)


def test_several_whole_numbers_under_odd_names(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse, {"a `b`.c": "INT", "d": "BIGINT", "e": "SMALLINT"})
    first, second = numbers(31), numbers(63)
    rows = pa.table(
        {
            "a `b`.c": pa.array(first, pa.int32()),
            "d": pa.array(second[: len(first)], pa.int64()),
            "e": pa.array([n % 30_000 for n in first], pa.int16()),
            "v": pa.array(first, pa.int32()),
        }
    )
    assert_buckets(table, rows, spark, in_sql=True)


def test_narrower_numbers_hash_as_the_type_of_the_table(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse, {"id": "BIGINT"})
    rows = pa.table({"id": pa.array(numbers(15), pa.int16())})
    assert_buckets(table, rows, spark, in_sql=True)


def test_hash_is_one_stage_with_the_reading(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse, {"id": "BIGINT"})
    rows = with_bucket(spark.range(10), table.scan().view, 5, "_BUCKET")
    plan = rows._jdf.queryExecution().executedPlan().toString()
    assert {line.split("*(")[1][0] for line in plan.splitlines() if "*(" in line} == {"1"}
    assert "Exchange" not in plan


@pytest.mark.parametrize("function", ["default", "hive"])
def test_other_keys_and_functions_go_through_python(
    function: str, warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse, {"id": "BIGINT", "s": "STRING"}, function=function)
    rows = pa.table({"id": numbers(63), "s": [f"text {n}" for n in numbers(63)]})
    assert_buckets(table, rows, spark, in_sql=False)


@pytest.mark.takes_turns
def test_null_in_a_key_is_reported_by_the_write(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse, {"id": "BIGINT"}, buckets=2)
    rows = spark.createDataFrame([(1,), (None,), (3,)], "id BIGINT").repartition(2)
    with pytest.raises(kt.KeytideError, match="'id'"):
        table.write(rows)
    assert table.scan().snapshot is None


def test_session_whose_columns_may_not_name_each_other_gives_the_same_buckets(
    warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse, {"a": "INT", "b": "BIGINT"})
    rows = pa.table({"a": pa.array([1, -7, 0], pa.int32()), "b": [1 << 40, -3, 0]})
    name = "spark.sql.lateralColumnAlias.enableImplicitResolution"
    spark.conf.set(name, "false")
    try:
        assert_buckets(table, rows, spark, in_sql=True)
    finally:
        spark.conf.unset(name)
