"""Compaction on executors: asked for, and after writes of Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from typer.testing import CliRunner

import keytide as kt
from keytide.cli.main import app
from keytide.compaction.rewrite import CompactTask
from new_tables import dotted, fields_of
from table_rows import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIELDS = fields_of("p INT NOT NULL, k INT NOT NULL, v STRING")


def new_table(spark: SparkSession, warehouse: str, **options: str) -> kt.Table:
    lake = kt.connect(warehouse, spark=spark)
    options = dotted(options)
    return lake.create_table("t", FIELDS, ["p", "k"], ["p"], options=options)


def test_compaction_of_a_lake_with_a_session_runs_on_its_executors(
    spark: SparkSession, warehouse: str
) -> None:
    table = new_table(spark, warehouse, write_only="true")
    for n in range(3):
        table.write([{"p": p, "k": k, "v": f"v{n}"} for p in range(4) for k in (0, n)])
    before = rows(table)
    with mock.patch.object(CompactTask, "__call__", side_effect=AssertionError("here")):
        done = table.compact(full=True)
    assert (done.buckets, done.files_before, done.files_after) == (4, 12, 4)
    assert rows(table) == before
    assert {e.file.level for e in table.scan().live.entries} == {5}
    assert table.compact(full=True).snapshot_id is None


def test_command_compacts_as_a_job_of_a_session(
    spark: SparkSession, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(spark, warehouse, write_only="true")
    for n in range(2):
        table.write([{"p": p, "k": k, "v": f"v{n}"} for p in range(3) for k in (0, n)])
    before = rows(table)
    monkeypatch.setattr(CompactTask, "__call__", mock.Mock(side_effect=AssertionError("here")))
    command = ["compact", table.uri, "--full", "--spark", "local[2]", "--format", "json"]
    ran = CliRunner().invoke(app, command)
    assert (ran.exit_code, ran.stderr) == (0, "")
    done = json.loads(ran.stdout)
    assert (done["buckets"], done["files_before"], done["files_after"]) == (3, 6, 3)
    assert rows(table) == before


def test_error_on_an_executor_arrives_and_leaves_no_file(
    spark: SparkSession, warehouse: str
) -> None:
    table = new_table(spark, warehouse, write_only="true")
    for n in range(2):
        table.write([{"p": p, "k": 1, "v": f"v{n}"} for p in range(2)])
    files = sorted(Path(table.uri).rglob("data-*"))
    files[0].write_bytes(b"torn")
    with pytest.raises(kt.DataError, match=files[0].name):
        table.compact(full=True)
    assert sorted(Path(table.uri).rglob("data-*")) == files


@pytest.mark.takes_turns
def test_writes_of_spark_compact_what_they_touch(spark: SparkSession, warehouse: str) -> None:
    table = new_table(spark, warehouse, **{"compaction.background": "false"})
    for n in range(5):
        frame = spark.createDataFrame([(0, 1, f"v{n}"), (1, n, "x")], "p INT, k INT, v STRING")
        if n % 2:
            table.write(frame)
        else:
            frame.write.format("keytide").mode("append").save(table.uri)
    assert [e.file.level for e in table.scan().live.entries] == [5, 5]
    assert rows(table) == [(0, 1, "v4"), *((1, n, "x") for n in range(5))]
