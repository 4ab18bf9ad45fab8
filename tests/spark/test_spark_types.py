"""Every Spark type goes into a table and comes back, through files and through merges."""

from __future__ import annotations

from datetime import date, datetime, time, timezone
from decimal import Decimal
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.types import Field, parse_sql_type
from new_tables import fields_of

pytestmark = pytest.mark.spark

UTC = timezone.utc
# Spark type, the table's type, values.
TYPES: list[tuple[str, str, list[Any]]] = [
    ("boolean", "BOOLEAN", [True, False]),
    ("tinyint", "TINYINT", [-128, 127]),
    ("smallint", "SMALLINT", [-(2**15), 2**15 - 1]),
    ("int", "INT", [-(2**31), 2**31 - 1]),
    ("bigint", "BIGINT", [-(2**63), 2**63 - 1]),
    ("float", "FLOAT", [0.5, float("inf")]),
    ("double", "DOUBLE", [0.1, -5e-324]),
    ("decimal(5,2)", "DECIMAL(5, 2)", [Decimal("-999.99"), Decimal("0.01")]),
    ("decimal(18,4)", "DECIMAL(18, 4)", [Decimal("12345678901234.5678"), Decimal("0.0000")]),
    ("decimal(38,10)", "DECIMAL(38, 10)", [Decimal(10) ** 27, Decimal("-1.0000000001")]),
    ("string", "STRING", ["", "\U0001f30a ü"]),
    ("char(3)", "CHAR(3)", ["abc", "x"]),
    ("varchar(5)", "VARCHAR(5)", ["abcde", ""]),
    ("binary", "BYTES", [b"", b"\x00\xff"]),
    ("date", "DATE", [date(1, 1, 1), date(9999, 12, 31)]),
    ("time(3)", "TIME(3)", [time(0), time(23, 59, 59, 999_000)]),
    ("timestamp_ntz", "TIMESTAMP(6)", [datetime(1500, 1, 1, 1, 2, 3, 4), datetime(9999, 12, 31)]),
    ("timestamp_ntz", "TIMESTAMP(3)", [datetime(1969, 12, 31, 23, 59, 59, 999_000)]),
    ("timestamp_ntz", "TIMESTAMP(9)", [datetime(1969, 12, 31, 23, 59, 59, 999_999)]),
    ("timestamp", "TIMESTAMP(6) WITH LOCAL TIME ZONE", [datetime(1950, 1, 1, 5, tzinfo=UTC)]),
    ("timestamp", "TIMESTAMP(3) WITH LOCAL TIME ZONE", [datetime(2024, 7, 1, 5, tzinfo=UTC)]),
    ("array<int>", "ARRAY<INT>", [[], [1, None]]),
    ("map<string,bigint>", "MAP<STRING, BIGINT>", [{}, {"a": 1, "b": None}]),
    ("struct<x:int,y:string>", "ROW<x INT, y STRING>", [{"x": 1, "y": None}]),
    (
        "array<struct<m:map<string,array<timestamp_ntz>>,d:decimal(9,2)>>",
        "ARRAY<ROW<m MAP<STRING, ARRAY<TIMESTAMP(6)>>, d DECIMAL(9, 2)>>",
        [[{"m": {"k": [datetime(2020, 1, 2), None]}, "d": Decimal("1.50")}, None]],
    ),
]


def kept_as(spark_type: str) -> str:
    """What a column of a Spark type is when it comes back: Spark drops lengths of texts."""
    return {"char(3)": "string", "varchar(5)": "string", "time(3)": "time(6)"}.get(
        spark_type, spark_type
    )


def plain(value: Any) -> Any:
    """Rows and instants as plain Python values."""
    if hasattr(value, "asDict"):
        return {k: plain(v) for k, v in value.asDict().items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, datetime) and value.tzinfo is None:
        return value
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.mark.one_in(14)
@pytest.mark.parametrize("merged", [False, True], ids=["native", "merged"])
@pytest.mark.parametrize("some", range(0, len(TYPES), 5))
def test_types_survive_the_way_through_a_table(
    some: int, merged: bool, warehouse: str, spark: Any
) -> None:
    """Some types at once, for each table costs Spark several jobs."""
    types = {f"v{number}": each for number, each in enumerate(TYPES[some : some + 5])}
    fields = fields_of("id INT")
    fields += [Field(-1, column, parse_sql_type(sql)) for column, (_, sql, _) in types.items()]
    table = kt.connect(warehouse).create_table("t", fields, ["id"])
    rows = [
        (i, *row) for i, row in enumerate(zip_longest(*(values for *_, values in types.values())))
    ]
    rows.append((len(rows), *[None] * len(types)))
    kept = [f"{c}:{kept_as(spark_type)}" for c, (spark_type, *_) in types.items()]
    frame = spark.createDataFrame(rows, f"id int, {', '.join(kept)}").coalesce(1)
    assert table.write(frame).rows == len(rows)
    if merged:
        table.write(frame)
    found = table.scan().to_spark(spark)
    assert found.schema.simpleString() == f"struct<id:int,{','.join(kept)}>"
    by_id = {row["id"]: plain(row) for row in found.collect()}
    assert by_id == {row["id"]: plain(row) for row in frame.collect()}


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("interval '1' month", "'v' is interval month"),
        ("interval '1' day", "duration"),
        ("parse_json('1')", "found struct"),
        ("null", None),
    ],
)
def test_type_that_no_column_holds_is_refused_by_name(
    expression: str, named: str | None, warehouse: str, spark: Any
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = kt.connect(warehouse).create_table("t", schema, ["id"])
    frame = spark.sql(f"select 1L as id, {expression} as v")
    if named is None:  # NULL of no type fits everywhere
        table.write(frame)
        assert table.scan().to_pylist() == [{"id": 1, "v": None}]
        return
    with pytest.raises(kt.InvalidError, match=named):
        table.write(frame)
    assert table.snapshots() == []


def test_nanoseconds_are_cut_off_downwards(warehouse: str, spark: Any) -> None:
    ticks = pa.array([-1, 1, 1999, -1000, None], pa.timestamp("ns"))
    rows = pa.table({"id": pa.array(range(5)), "t": ticks})
    table = kt.connect(warehouse).create_table("t", rows.schema, ["id"])
    table.write(rows)
    found = {row.id: row.t for row in table.scan().to_spark(spark).collect()}
    before, epoch = datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(1970, 1, 1)
    assert found == {0: before, 1: epoch, 2: epoch.replace(microsecond=1), 3: before, 4: None}


@pytest.mark.takes_turns
def test_session_zone_changes_no_instant(warehouse: str, spark: Any) -> None:
    fields = fields_of("id BIGINT, t TIMESTAMP(6) WITH LOCAL TIME ZONE, n TIMESTAMP(6)")
    table = kt.connect(warehouse).create_table("t", fields, ["id"])
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        frame = spark.sql(
            "select id, timestamp'2024-01-01 00:00:00' as t, timestamp_ntz'2024-01-01' as n "
            "from range(2)"
        )
        table.write(frame)
        table.write(frame.where("id = 0"))
        texts = [
            tuple(row)
            for source in (
                table.scan().to_spark(spark),
                spark.read.format("keytide").load(table.uri),
            )
            for row in source.selectExpr("string(t)", "string(n)").collect()
        ]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert set(texts) == {("2024-01-01 00:00:00", "2024-01-01 00:00:00")}
    assert {row["t"] for row in table.scan().to_pylist()} == {datetime(2024, 1, 1, 5, tzinfo=UTC)}
