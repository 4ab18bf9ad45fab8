"""A statement on Spark reads each table at one snapshot, whoever commits while it is planned.

Commit n brings the rows 1 to n, all with v = n: whatever is told of the table tells n.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
import keytide.spark
import one_look
from busy import Others, busy_store
from keytide.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIRST = 3


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


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> one_look.Busy:
    """The table that tells which snapshot a statement read, on Spark."""
    return one_look.made_busy(tmp_path_factory.mktemp("drawn"), spark)


FEW = settings(max_examples=5, deadline=None)
PHASES = st.integers(0, 5)


@FEW
@given(st.sampled_from([*one_look.SHAPES.values()]), one_look.QUERIES, one_look.QUERIES, PHASES)
def test_query_reads_one_snapshot(
    drawn: one_look.Busy, shape: str, one: str, other: str, phase: int
) -> None:
    with drawn.at(one_look.often(phase)) as lake:
        result = lake.sql(shape.format(one, other))
        drawn.release()  # the snapshot is that of the moment at which the DataFrame was made
        found = one_look.one_snapshot(result)
    assert one_look.FIRST <= found < one_look.LAST


@FEW
@given(st.sampled_from([*one_look.STATEMENTS.values()]), one_look.QUERIES, one_look.QUERIES, PHASES)
def test_rows_are_changed_by_one_snapshot(
    drawn: one_look.Busy, statement: str, one: str, other: str, phase: int
) -> None:
    drawn.lake.sql("INSERT OVERWRITE told VALUES (0, 0)")
    with drawn.at(one_look.often(phase)) as lake:
        lake.sql(statement.format(one, other))
    told = one_look.one_snapshot(drawn.lake.sql("SELECT * FROM told"))
    assert one_look.FIRST <= told < one_look.LAST


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
