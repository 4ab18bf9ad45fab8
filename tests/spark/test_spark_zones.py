"""SQL means the same whatever the time zone of the Spark session is: it is that of a local lake."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import product
from typing import Any

import pytest

import keytide as kt

pytestmark = pytest.mark.spark

SETTING = "spark.sql.session.timeZone"
ZONES = ("UTC", "Australia/Melbourne", "America/New_York", "Asia/Kolkata")
EVENING = datetime(2023, 1, 10, 20)
LITERALS = (
    "TIMESTAMP '2023-01-10 20:00:00Z'",
    "TIMESTAMP '2023-01-10 20:00:00'",
    "TIMESTAMP '2023-01-11 01:30:00+05:30'",
    "TIMESTAMP_LTZ '2023-01-10 20:00:00'",
    "TIMESTAMP_LTZ '2023-01-11 01:30:00+05:30'",
    "CAST('2023-01-10 20:00:00' AS TIMESTAMP_LTZ)",
    "CAST(TIMESTAMP_LTZ '2023-01-10 20:00:00Z' AS TIMESTAMP)",
    "'2023-01-10 20:00:00Z'",
    "'2023-01-10 20:00:00'",
)
CONDITIONS = (
    *(f"{column} = {literal}" for column, literal in product("zn", LITERALS)),
    "z IN (TIMESTAMP '2023-01-10 20:00:00Z', TIMESTAMP '2023-01-11 07:00:00')",
    "z BETWEEN TIMESTAMP '2023-01-10 19:30:00' AND TIMESTAMP_LTZ '2023-01-10 20:30:00'",
    "z < DATE '2023-01-11' AND n >= DATE '2023-01-11'",
    "d = CAST(z AS DATE)",
    "hour(z) = 20 OR CAST(z AS STRING) LIKE '%15:00:00%'",
    "z = n",
)
FIELDS = "id BIGINT, d DATE, z TIMESTAMP_LTZ(6), n TIMESTAMP(6), PRIMARY KEY (id, d) NOT ENFORCED"
ROWS = [
    {
        "id": i,
        "d": at.date(),
        "z": at.replace(tzinfo=timezone.utc),
        "n": at + timedelta(hours=i % 3),
    }
    for i, at in enumerate(EVENING + timedelta(minutes=30 * m) for m in range(-24, 24, 2))
]


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, spark: Any) -> Iterator[str]:
    before = spark.conf.get(SETTING)
    spark.conf.set(SETTING, request.param)
    yield request.param
    assert spark.conf.get(SETTING) == request.param
    spark.conf.set(SETTING, before)


@pytest.fixture
def lakes(warehouse: str, spark: Any, zone: str) -> tuple[kt.Lake, kt.Lake]:
    """A lake on Spark, and the same one locally. The table `t` is partitioned by day."""
    local = kt.connect(warehouse)
    filled(local, "t")
    return kt.connect(warehouse, spark=spark), local


def filled(lake: kt.Lake, name: str) -> kt.Table:
    lake.sql(f"CREATE TABLE {name} ({FIELDS}) PARTITIONED BY (d) WITH ('bucket' = '1')")
    table = lake.table(name)
    table.write(ROWS)
    return table


@pytest.mark.takes_turns
def test_a_query_finds_the_rows_of_the_local_engine(lakes: tuple[kt.Lake, kt.Lake]) -> None:
    on_spark, local = lakes
    flags = ", ".join(f"{condition} AS c{i}" for i, condition in enumerate(CONDITIONS))
    query = f"SELECT id, {flags}, CAST(n AS TIMESTAMP_LTZ) l FROM t ORDER BY id"
    assert on_spark.sql(query).to_pylist() == local.sql(query).to_pylist()
    found = " UNION ALL ".join(
        f"SELECT {i} AS c, id FROM t WHERE {condition}" for i, condition in enumerate(CONDITIONS)
    )
    query = f"SELECT * FROM ({found}) ORDER BY c, id"
    assert on_spark.sql(query).to_pylist() == local.sql(query).to_pylist()


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {t} WHERE z = TIMESTAMP '2023-01-10 20:00:00Z'",
        "DELETE FROM {t} WHERE z >= TIMESTAMP_LTZ '2023-01-10 20:00:00' AND d = DATE '2023-01-10'",
        "UPDATE {t} SET n = z WHERE z > TIMESTAMP '2023-01-10 22:00:00'",
        "UPDATE {t} SET z = TIMESTAMP '2020-01-01 00:00:00' WHERE id = 3",
        "MERGE INTO {t} USING (SELECT 3 AS id, TIMESTAMP '2023-01-10 11:00:00' AS at) s "
        "ON {t}.z = s.at WHEN MATCHED THEN UPDATE SET n = TIMESTAMP_LTZ '2020-01-01 00:00:00'",
        "INSERT INTO {t} SELECT id + 100, d, n, z FROM t WHERE z = TIMESTAMP '2023-01-10 20:00:00'",
    ],
    ids=lambda statement: statement[:14],
)
def test_a_statement_changes_the_rows_of_the_local_engine(
    lakes: tuple[kt.Lake, kt.Lake], statement: str
) -> None:
    on_spark, local = lakes
    for lake, name in ((on_spark, "a"), (local, "b")):
        filled(lake, name)
        lake.sql(statement.format(t=name))
    rows = [local.sql(f"SELECT * FROM {name} ORDER BY id").to_pylist() for name in "ab"]
    assert rows[0] == rows[1]
    assert rows[0] != local.sql("SELECT * FROM t ORDER BY id").to_pylist()


@pytest.mark.takes_turns
def test_a_view_finds_the_rows_of_the_local_engine(lakes: tuple[kt.Lake, kt.Lake]) -> None:
    on_spark, local = lakes
    query = "SELECT id, hour(z) AS h FROM t WHERE z <= TIMESTAMP '2023-01-10 20:00:00Z'"
    on_spark.sql(f"CREATE VIEW v AS {query}")
    found = "SELECT * FROM v ORDER BY id"
    assert on_spark.sql(found).to_pylist() == local.sql(found).to_pylist()
    assert local.sql(found).to_pylist()


@pytest.mark.one_in(14)
def test_a_dataframe_keeps_utc(lakes: tuple[kt.Lake, kt.Lake]) -> None:
    on_spark, local = lakes
    query = "SELECT id FROM t WHERE hour(z) = 20 ORDER BY id"
    frame = on_spark.sql(query).to_spark()
    assert [row.id for row in frame.collect()] == [r["id"] for r in local.sql(query).to_pylist()]
