"""A statement on Spark reads each table at one snapshot, whoever commits while it is planned.

Commit n brings the rows 1 to n, all with v = n: whatever is told of the table tells n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import keytide as kt
import keytide.spark
from busy import Others, busy_store
from keytide.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIRST = 3
READS = {
    "scalars": "SELECT (SELECT count(*) FROM t) AS a, (SELECT max(v) FROM t) AS b",
    "join": "SELECT count(*) AS a, max(y.v) AS b FROM t AS x JOIN t AS y ON x.k = y.k",
    "within": "SELECT max(k) AS a, max(v) AS b FROM t WHERE v IN (SELECT min(v) FROM t)",
    "system": "SELECT (SELECT max(snapshot_id) FROM t$snapshots) AS a, (SELECT max(v) FROM t) AS b",
    "files": "SELECT (SELECT count(*) FROM t$files) AS a, (SELECT min(v) FROM t) AS b",
    "time": "SELECT (SELECT max(v) FROM t TIMESTAMP AS OF '2999-01-01') AS a, max(v) AS b FROM t",
}


def bring(lake: kt.Lake, n: int) -> None:
    lake.table("t").write([{"k": k, "v": n, "w": 0} for k in range(1, n + 1)])


@dataclass
class Busy:
    """A lake on Spark, and one of another process, which commits between its requests."""

    plain: kt.Lake
    lake: kt.Lake
    others: Others

    def commit(self) -> None:
        bring(self.plain, 1 + len(self.plain.table("t").snapshots()))


@pytest.fixture
def busy(tmp_path: Path, spark: SparkSession) -> Busy:
    path, seen = tmp_path / "lake", tmp_path / "seen"
    plain, others = kt.connect(path), Others(lambda: None)
    plain.sql("CREATE TABLE t (k INT, v INT, w INT, PRIMARY KEY (k) NOT ENFORCED) "
              "WITH ('write-only' = 'true'); CREATE TABLE told (a INT, b INT)")  # fmt: skip
    for n in range(1, FIRST + 1):
        bring(plain, n)
    seen.symlink_to(path)
    lake = kt.connect(seen, spark, store=busy_store(open_store(str(seen)), others))
    made = Busy(plain, lake, others)
    others.come = made.commit
    return made


def often(phase: int) -> Callable[[int], bool]:
    return lambda request: request % 6 == phase % 6 and request < 240


@pytest.mark.parametrize("name", READS)
def test_query_reads_one_snapshot(busy: Busy, name: str) -> None:
    busy.others.before = often(len(name))
    result = busy.lake.sql(READS[name])
    busy.commit()  # the snapshot is that of the moment at which the DataFrame was made
    (row,) = result.to_arrow().to_pylist()
    assert row["a"] == row["b"] >= FIRST
    assert row["a"] < len(busy.plain.table("t").snapshots())


def test_rows_are_inserted_of_one_snapshot(busy: Busy) -> None:
    busy.others.before = often(1)
    busy.lake.sql(f"INSERT INTO told {READS['scalars']}")
    (row,) = busy.plain.table("told").scan().to_pylist()
    assert row["a"] == row["b"]


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE t SET w = (SELECT max(v) FROM t)",
        "MERGE INTO t USING t AS s ON t.k = s.k WHEN MATCHED AND s.v = t.v THEN UPDATE SET w = s.v "
        "WHEN MATCHED THEN DELETE",
    ],
)
@pytest.mark.parametrize("request_number", [2, 7, 12])
def test_change_is_that_of_one_snapshot(busy: Busy, text: str, request_number: int) -> None:
    busy.others.before = request_number.__eq__
    busy.lake.sql(text)
    found = {(row["v"], row["w"]) for row in busy.plain.table("t").scan().to_pylist()}
    last = FIRST + (request_number <= len(busy.others.requests))
    assert found in [{(last, last)}, {(last, 0)}]


def test_dataframe_of_the_source_keeps_its_definition_and_its_snapshot(
    busy: Busy, spark: SparkSession
) -> None:
    keytide.spark.register(spark)
    frame = spark.read.format("keytide").load(busy.plain.table("t").uri)
    busy.plain.sql("ALTER TABLE t DROP COLUMN w; ALTER TABLE t ADD w STRING")
    busy.plain.sql("INSERT INTO t VALUES (1, 9, 'x')")
    assert {tuple(row) for row in frame.collect()} == {(k, FIRST, 0) for k in range(1, FIRST + 1)}
