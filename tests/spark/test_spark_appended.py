"""Rows of append tables are deleted, changed and merged on Spark, and Spark's own reader skips the
dead ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import keytide as kt
from keytide.spark.read_plans import _bitmap, split_scan
from keytide.store import LocalStore
from new_tables import fields_of

pytestmark = pytest.mark.spark

FIELDS = fields_of("p STRING, n INT, v STRING")
KINDS = {"written again": "false", "marked": "true"}
MERGE = """
    MERGE INTO t USING (SELECT 1 AS n, 'm' AS v UNION ALL SELECT 50, 'new') s ON t.n = s.n
    WHEN MATCHED THEN UPDATE SET v = s.v
    WHEN NOT MATCHED THEN INSERT (p, n, v) VALUES ('z', s.n, s.v)
"""


@pytest.mark.one_in(14)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_change_on_spark_as_they_do_in_a_dict(warehouse: str, spark: Any, kind: str) -> None:
    lake = kt.connect(warehouse, spark=spark)
    options = {"deletion-vectors.enabled": KINDS[kind], "target-file-size": "1 kb"}
    table = lake.create_table("t", FIELDS, (), ["p"], options=options)
    expected = {n: ("ab"[n % 2], "x") for n in range(20)}
    for start in (0, 10):
        table.write([{"p": "ab"[n % 2], "n": n, "v": "x"} for n in range(start, start + 10)])
    assert lake.sql("DELETE FROM t WHERE n % 3 = 0").row_count == 7
    expected = {n: row for n, row in expected.items() if n % 3}
    assert lake.sql("UPDATE t SET p = 'c', v = upper(v) WHERE n > 15").row_count == 3
    expected = {n: ("c", "X") if n > 15 else row for n, row in expected.items()}
    assert lake.sql(MERGE).row_count == 2
    expected |= {1: ("b", "m"), 50: ("z", "new")}
    scan = table.scan()
    found = sorted(tuple(row) for row in scan.to_spark(spark).collect())
    assert found == sorted((p, n, v) for n, (p, v) in expected.items())
    split = split_scan(scan)
    assert not split.tasks
    assert {shape.has_dead_rows for shape in split.plain} >= {KINDS[kind] == "true"}
    assert table.verify().findings == ()


@pytest.mark.takes_turns
def test_dead_rows_at_the_edges_of_words_and_stretches_are_not_read(
    warehouse: str, spark: Any
) -> None:
    options = {"upsert.mode": "full", "file.format": "parquet"}
    lake = kt.connect(warehouse, spark=spark)
    table = lake.create_table(
        "t", pa.schema([("k", pa.int64()), ("v", pa.int8())]), ["k"], options=options
    )
    rows, last, first = 4 * STRETCH, 4 * STRETCH - 1, 5 * STRETCH
    dead = {0, 1, 62, 63, 64, 127, 128, STRETCH - 1, STRETCH, 3 * STRETCH + 63, last}
    table.write(pa.table({"k": np.arange(rows), "v": np.zeros(rows, np.int8)}))  # in one file
    table.write(
        pa.table({"k": np.arange(first, first + 10), "v": np.ones(10, np.int8)})
    )  # none dead
    table.write(pa.table({"k": sorted(dead), "v": np.full(len(dead), 2, np.int8)}))
    found = table.scan().to_spark(spark)
    assert {shape.has_dead_rows for shape in split_scan(table.scan()).plain} == {True, False}
    assert {row.k for row in found.where("v = 2").collect()} == dead
    assert found.where("v = 1").count() == 10
    kept = found.where("v = 0").toArrow()["k"].to_numpy()
    assert sorted(kept) == [k for k in range(rows) if k not in dead]


def test_files_of_one_size_are_told_apart_by_their_names(warehouse: str, spark: Any) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    lake = kt.connect(warehouse, spark=spark)
    options = {"upsert.mode": "full", "file.compression": "none"}
    table = lake.create_table("t", schema, ["k"], options=options)
    for start in (0, 100):
        table.write(pa.table({"k": np.arange(start, start + 100), "v": np.arange(100)}))
    sizes = [file.size for file in (*LocalStore(warehouse).list(),) if ".parquet" in file.path]
    assert len(sizes) == 2
    assert len({*sizes}) == 1
    table.write(pa.table({"k": [1, 102], "v": [-1, -2]}))
    found = {(row.k, row.v) for row in table.scan().to_spark(spark).collect()}
    assert found == {(k, k % 100) for k in range(200) if k not in (1, 102)} | {(1, -1), (102, -2)}


STRETCH = 1 << 16


def test_bitmap_holds_no_words_for_stretches_without_dead_rows() -> None:
    bitmap = _bitmap(np.array([3, 64, 5 * STRETCH + 63]))
    assert [stretch.is_valid for stretch in bitmap] == [True, *[False] * 4, True]
    assert bitmap[0].as_py()[:2] == [1 << 3, 1]
    assert bitmap[5].as_py()[0] == -(1 << 63)
    assert len(bitmap.values) == 2 * STRETCH // 64
