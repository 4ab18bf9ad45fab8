"""Each Spark task receives its own work: what is sent grows with the work, not with its square."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StructField, StructType

import keytide as kt
from keytide.read.plain_files import split_tasks
from keytide.read.scan import ReadTask
from keytide.read.sections import PlannedFile, Section
from keytide.spark.columns import row_bytes
from keytide.spark.read_plans import BinTask, bins_of_reads
from keytide.spark.runner import Cluster, Executors, dump_task, load_task, payload_rows

NUMBERS = StructType([StructField("n", IntegerType())])


def numbered(number: int, ballast: bytes = b"") -> Any:
    """A task that returns its number. Executors cannot import classes of this module."""
    rows = pa.record_batch([pa.array([number], pa.int32())], ["n"])
    return SimpleNamespace(number=number, batches=partial(iter, [rows]), ballast=ballast)


@pytest.mark.takes_turns
@pytest.mark.spark
@pytest.mark.parametrize("count", [0, 1, 2, 3, 17])
@pytest.mark.parametrize("told", [0, 1 << 27])
def test_tasks_run_once_each_with_one_or_two_in_a_task_of_spark(
    spark: Any, count: int, told: int
) -> None:
    rows = payload_rows(map(numbered, range(count)), spark, told)
    assert [load_task(row.payload).number for row in rows.collect()] == [*range(count)]
    assert count / 2 <= rows.rdd.getNumPartitions() <= max(1, count)
    made = Executors().rows([*map(numbered, range(count))], NUMBERS, spark, told)
    assert sorted(row.n for row in made.collect()) == [*range(count)]


@pytest.mark.spark
def test_results_come_in_the_order_of_tasks(spark: Any) -> None:
    taken: list[int] = []
    Cluster(spark).each([partial(int, number) for number in range(40)], taken.append)
    assert taken == [*range(40)]


@pytest.mark.spark
@pytest.mark.parametrize("count", [0, 100_000, 1_000_000, None])
def test_spark_assumes_as_many_rows_as_there_are(spark: Any, count: int | None) -> None:
    rows = Executors().rows([numbered(1), numbered(2)], NUMBERS, spark, count)
    statistics: Any = rows._jdf.queryExecution().optimizedPlan().stats()
    assumed = int(str(statistics.sizeInBytes())) // row_bytes(NUMBERS)
    expected = 4 << 20 if count is None else count
    assert expected * 0.9 <= assumed <= max(1_000, expected * 1.1)


@pytest.mark.spark
def test_the_function_of_a_job_contains_no_task(spark: Any) -> None:
    tasks = [numbered(number, os.urandom(10_000)) for number in range(50)]
    plan: Any = Executors().rows(tasks, NUMBERS, spark)._jdf.queryExecution().optimizedPlan()
    command = plan.functionExpr().func().command()
    assert command.length() < 2_000


# -- plans of many files ---------------------------------------------------------------------------


def with_files(task: ReadTask, count: int) -> list[ReadTask]:
    """Tasks like one of a table, each of three files, with names, sizes and statistics as unlike as
    real ones."""
    (section,) = task.bucket.sections

    def like(file: PlannedFile) -> PlannedFile:
        meta = file.meta
        stats = replace(
            meta.value_stats,
            min_values=_noise(meta.value_stats.min_values),
            max_values=_noise(meta.value_stats.max_values),
        )
        name = f"data-{os.urandom(16).hex()}-0.parquet"
        meta = replace(meta, file_name=name, value_stats=stats, min_key=_noise(meta.min_key))
        return replace(file, entry=replace(file.entry, file=meta))

    return [
        replace(
            task,
            bucket=replace(
                task.bucket,
                partition=_noise(task.bucket.partition),
                sections=(Section(tuple((like(run[0]),) for run in section.runs)),),
            ),
        )
        for _ in range(count // 3)
    ]


def _noise(row: bytes) -> bytes:
    return row[:12] + os.urandom(len(row) - 12)


@pytest.fixture(scope="module")
def of_a_table(tmp_path_factory: pytest.TempPathFactory) -> ReadTask:
    columns = [("day", pa.int32()), ("id", pa.int64()), *((f"c{i}", pa.int64()) for i in range(20))]
    table = kt.connect(str(tmp_path_factory.mktemp("w"))).create_table(
        "t",
        pa.schema(columns),
        ["day", "id"],
        ["day"],
        options={"bucket": "1", "write-only": "true"},
    )
    for _ in range(3):
        table.write([{name: number for name, _ in columns} for number in (1,)])
    (task,) = split_tasks(table.scan())
    return task


def sent_bytes(task: ReadTask, files: int, bins: int) -> list[int]:
    reads = with_files(task, files)
    schema = pa.schema([("id", pa.int64())])
    packed_bins = bins_of_reads(reads, lambda stored, rows: bins)
    return [len(dump_task(BinTask(some, schema, "t"))) for some in packed_bins]


def test_bytes_sent_grow_with_the_files_and_are_few(of_a_table: ReadTask) -> None:
    some, more = (sum(sent_bytes(of_a_table, files, 8)) for files in (900, 3600))
    assert more < 4.4 * some
    assert more / 3600 < 150
    assert max(sent_bytes(of_a_table, 3600, 8)) < 1.1 * more / 8


@given(st.integers(1, 60))
def test_bytes_sent_do_not_depend_on_the_square_of_tasks(of_a_table: ReadTask, bins: int) -> None:
    sent = sent_bytes(of_a_table, 180, bins)
    assert len(sent) == bins
    # Each task has the table's definition and its own files.
    assert sum(sent) < 180 * 250 + bins * 6_000
