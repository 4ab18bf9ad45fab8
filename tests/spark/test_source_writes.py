"""Options of writes: what an overwrite replaces, and writes that are repeated.

A task of Spark's is carried out here without Spark, as it is on executors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.spark.columns import spark_schema
from keytide.spark.data_source import KeytideSource, TaskMessage
from keytide.tasks import run_feed_task

SCHEMA = pa.schema({"id": pa.int64(), "day": pa.string()})
BEFORE = [{"id": 1, "day": "mon"}, {"id": 2, "day": "tue"}, {"id": 3, "day": "wed"}]


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    made = lake.create_table("t", SCHEMA, ["id", "day"], partition_by=["day"])
    made.write(BEFORE)
    return made


def write(table: kt.Table, rows: list[dict[str, Any]], *, overwrite: bool, **options: str) -> None:
    """What Spark does for `df.write.format("keytide").options(...)`, with one task."""
    given = pa.Table.from_pylist(rows, SCHEMA)
    writer = KeytideSource({"path": table.uri, **options}).writer(spark_schema(SCHEMA), overwrite)
    outcome = run_feed_task(writer._write.task, [given], 0)
    writer.commit([TaskMessage(outcome)])


def words_of(table: kt.Table) -> str:
    return " ".join(sorted(f"{row['id']}{row['day']}" for row in table.scan().to_pylist()))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "7mon"),
        ({"partitionOverwriteMode": "static"}, "7mon"),
        ({"partitionOverwriteMode": "DYNAMIC"}, "2tue 3wed 7mon"),
        ({"replaceWhere": "day = 'mon'"}, "2tue 3wed 7mon"),
        ({"replaceWhere": "day IN ('mon', 'tue')"}, "3wed 7mon"),
        ({"replaceWhere": "day < 'tue'", "overwriteSchema": "false"}, "2tue 3wed 7mon"),
    ],
)
def test_overwrite_replaces_what_options_say(
    table: kt.Table, options: dict[str, str], expected: str
) -> None:
    write(table, [{"id": 7, "day": "mon"}], overwrite=True, **options)
    assert words_of(table) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replaceWhere": "day = 'tue'"}, "day = 'mon', which do not satisfy 'replaceWhere'"),
        ({"replaceWhere": "id = 1"}, "no column 'id'"),
        ({"replaceWhere": "day ="}, "cannot be parsed"),
        ({"replaceWhere": "day = 'mon'", "partitionOverwriteMode": "dynamic"},
         "'replaceWhere' and 'partitionOverwriteMode' each say what is replaced"),
        ({"partitionOverwriteMode": "some"}, "expected one of static, dynamic"),
        ({"overwriteSchema": "true"}, "alter the table with lake.sql"),
        ({"snapshot-id": "1"}, "this overwrites, which does not support 'snapshot-id'"),
        ({"txnAppId": "job"}, "this overwrites, which does not support 'txnAppId'"),
    ],
)  # fmt: skip
def test_overwrite_that_is_wrong_changes_nothing(
    table: kt.Table, options: dict[str, str], message: str
) -> None:
    with pytest.raises(kt.KeytideError, match=message):
        write(table, [{"id": 7, "day": "mon"}], overwrite=True, **options)
    assert words_of(table) == "1mon 2tue 3wed"
    assert len(list(Path(table.uri).rglob("*.parquet"))) == 3


def test_append_takes_no_option_of_an_overwrite(table: kt.Table) -> None:
    with pytest.raises(
        kt.InvalidError, match="this appends, which does not support 'replaceWhere'"
    ):
        write(table, [{"id": 7, "day": "mon"}], overwrite=False, replaceWhere="day = 'mon'")


def test_append_that_is_repeated_under_its_number_is_made_once(table: kt.Table) -> None:
    for day in ("mon", "tue"):
        rows = [{"id": 7, "day": day}]
        write(table, rows, overwrite=False, txnAppId="job", txnVersion="7")
    assert len(table.snapshots()) == 2
    assert words_of(table) == "1mon 2tue 3wed 7mon"
