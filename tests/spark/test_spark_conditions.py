"""Conditions mean to Spark what they mean to Spark alone, and to Keytide what they mean locally."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

import keytide as kt

pytestmark = pytest.mark.spark

MIDNIGHT = datetime(2024, 1, 1)
EVENING = MIDNIGHT.replace(hour=19, microsecond=1000)
COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "i": ("BIGINT", [None, -1, 0, 1, 9007199254740993]),
    "d": ("DOUBLE", [None, float("nan"), -0.0, 0.1, 1.5, float("inf")]),
    "f": ("FLOAT", [None, float("nan"), -0.0, 0.1, 1.5]),
    "m": ("DECIMAL(6, 2)", [None, Decimal("1.00"), Decimal("0.10"), Decimal("-1.50")]),
    "s": ("STRING", [None, "", "a", "a ", "a%b", "a\\b", "A", "ü"]),
    "c": ("CHAR(3)", [None, "", "a", "a ", "A", "a\n"]),
    "b": ("BOOLEAN", [None, True, False]),
    "e": ("DATE", [None, MIDNIGHT.date(), date(9999, 12, 31)]),
    "t": ("TIMESTAMP(3)", [None, MIDNIGHT, EVENING]),
    "u": ("TIMESTAMP(6)", [None, MIDNIGHT, EVENING, datetime(1, 1, 1)]),
    "z": ("TIMESTAMP_LTZ(6)", [None, MIDNIGHT.replace(tzinfo=timezone.utc)]),
}
IN_SQL = [
    "i IN (0, 1, 300) OR d > 1.5",
    "NOT (i = 1) AND d <= 0",
    "d >= 1.5 AND f <> 0.5 AND f = -0.0",
    "m = 1.005 OR m <= 0.1 OR m > 0.999999999999999999999",
    "f = 0.1 OR f > 1",
    "s = 'a' OR s LIKE 'a\\%b' OR s LIKE '_'",
    "s > 'A' AND s NOT LIKE 'a_b'",
    "c = 'a ' OR c IN ('A', 'a  ')",
    "c > 'a' OR b IS NOT TRUE",
    "e = '2024-01-01' OR e IN ('9999-12-31')",
    "t >= '2024-01-01 19:00:00' AND u < DATE '2024-01-02'",
    "t = CAST('2024-01-01 07:00:00' AS DATE) OR u = TIMESTAMP '2024-01-01 19:00:00.001'",
    "z >= '2024-01-01 00:00:00+00:00' OR z = '2024-01-01 00:00:00'",
]
OF_SCANS = [
    "c = 'a' OR c > 'a'",
    "t = '2024-01-01 19:00:00.001' OR u < '0001-01-02'",
    "z = '2024-01-01 01:00:00+01:00' OR z IS NULL",
    "m < 1.005 AND m NOT IN (0.1, 0.1000001)",
    "f = 0.1 OR f = 'NaN' OR d = '-0.0'",
    "NOT (m = 1.005) OR s LIKE 'a\\\\%'",
]


@pytest.fixture
def lake(warehouse: str, spark: Any) -> kt.Lake:
    lake = kt.connect(warehouse, spark=spark)
    fields = [
        kt.Field(-1, "k", kt.parse_sql_type("INT")),
        *(kt.Field(-1, name, kt.parse_sql_type(kind)) for name, (kind, _) in COLUMNS.items()),
    ]
    table = lake.create_table("t", fields, ["k"], options={"bucket": "3"})
    table.write(
        [{"k": k, **{n: v[k % len(v)] for n, (_, v) in COLUMNS.items()}} for k in range(30)]
    )
    return lake


@pytest.mark.takes_turns
def test_queries_are_pushed_as_spark_understands_them(lake: kt.Lake, spark: Any) -> None:
    lake.table("t").scan().to_spark(spark).createOrReplaceTempView("whole")
    for condition in IN_SQL:
        in_spark = condition.replace("\\", "\\\\").replace("TIMESTAMP '", "TIMESTAMP_NTZ '")
        expected = {row.k for row in spark.sql(f"SELECT k FROM whole WHERE {in_spark}").collect()}
        found = lake.sql(f"SELECT k FROM t WHERE {condition}").to_arrow().column("k").to_pylist()
        assert (condition, sorted(found)) == (condition, sorted(expected))


def test_scans_keep_the_same_rows_natively_and_locally(lake: kt.Lake, spark: Any) -> None:
    for condition in OF_SCANS:
        scan = lake.table("t").scan(columns=["k"], where=condition)
        expected = sorted(scan.to_arrow().column("k").to_pylist())
        found = sorted(row.k for row in scan.to_spark(spark).collect())
        assert (condition, found) == (condition, expected)


OF_BOUNDS = [
    "d > 1.0", "d = 'NaN'", "d >= 'Infinity'", "NOT (d <= 1.5)", "d <> 0.1", "d IN (-0.0, 'NaN')",
    "f > 1.0", "f <= -0.0", "f < 0.0 OR f IS NULL", "i > 9007199254740992", "s > 'A'", "c >= 'a '",
    "u < '0002-01-01'", "e > '2024-01-01'", "m < 0.1",
]  # fmt: skip


@pytest.mark.takes_turns
def test_bounds_of_single_rows_leave_out_none_that_meets_a_condition(
    lake: kt.Lake, spark: Any
) -> None:
    fields = [*lake.table("t").table_schema.fields[1:], kt.Field(-1, "r", NESTED)]
    one = lake.create_table("one", fields, [])
    for n in range(8):  # a file each, of which bounds say all
        row = {name: values[n % len(values)] for name, (_, values) in COLUMNS.items()}
        one.write([{**row, "r": {"d": row["d"]}}])
    local = spark.createDataFrame(one.scan(["d", "f", "r"]).to_arrow())
    for condition in OF_BOUNDS:
        scan = one.scan(["i", "d"], condition)
        expected, found = scan.to_pylist(), scan.to_spark(spark).collect()
        told = (condition, sorted(repr(tuple(row)) for row in found))
        assert told == (condition, sorted(repr(tuple(row.values())) for row in expected))
    rows = one.scan(["d", "f", "r"]).to_spark(spark)
    for condition in ("d > 1", "d = double('NaN')", "f >= 1.5", "r.d > 1", "d <> 0.1", "f = 0"):
        assert rows.where(condition).count() == local.where(condition).count(), condition


NESTED = kt.parse_sql_type("ROW<d DOUBLE>")
