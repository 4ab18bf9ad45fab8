"""DELETE, UPDATE and MERGE on Spark: which jobs they run, and that these change what they say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from keytide.predicate.predicate import In
from keytide.spark import dml_tasks
from keytide.spark import merge as spark_merge
from keytide.spark.dml_tasks import GROUP
from keytide.spark.row_changes import ExecutorWorkers
from new_tables import fields_of

pytestmark = pytest.mark.spark

KEYS = {"keyed": ["id"], "append": []}


@pytest.fixture(params=KEYS)
def lake(request: pytest.FixtureRequest, warehouse: str, spark: Any) -> kt.Lake:
    """Rows (0, "a", 0) to (9, "a", 9); where there is a key, the even ones were written twice."""
    lake = kt.connect(warehouse, spark=spark)
    kinds = {"id": "INT", "v": "STRING", "n": "INT"}
    fields = fields_of(kinds)
    key = KEYS[request.param]
    table = lake.create_table("t", fields, key, options={"bucket": "2"} if key else {})
    table.write([{"id": i, "v": "a", "n": i} for i in range(10) if key or i % 2])
    table.write([{"id": i, "v": "a", "n": i} for i in range(0, 10, 2)])
    return lake


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The frames of targets that are shown to Spark as a whole."""
    made: list[Any] = []
    show = ExecutorWorkers.rows_for_sql
    monkeypatch.setattr(ExecutorWorkers, "rows_for_sql", lambda *a: made.append(a) or show(*a))
    return made


def ids(lake: kt.Lake) -> list[int]:
    return sorted(row["id"] for row in lake.table("t").scan().to_pylist())


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("where", "gone", "computes"),
    [
        ("id > 6", {7, 8, 9}, False),
        ("id IN (1, 2) OR n = 3", {1, 2, 3}, False),
        ("TRUE", set(range(10)), True),
        ("n = 99", set(), False),
        ("id % 2 = 0 AND n > 3", {4, 6, 8}, True),
        ("(id = 1 AND n + 0 = 1) OR (id = 2 AND n + 0 = 3)", {1}, True),
        ("id IN (SELECT n - 5 FROM t)", {0, 1, 2, 3, 4}, True),
    ],
)
def test_delete_computes_only_what_its_terms_leave_open(
    lake: kt.Lake,
    where: str,
    gone: set[int],
    computes: bool,
    frames: list[Any],
) -> None:
    assert lake.sql(f"DELETE FROM t WHERE {where}").row_count == len(gone)
    assert ids(lake) == sorted(set(range(10)) - gone)
    assert bool(frames) == computes


def test_condition_that_is_a_value_leaves_nothing_to_compute(
    lake: kt.Lake, frames: list[Any]
) -> None:
    assert lake.table("t").delete(pl.col("id") > 6).rows == 3
    assert lake.table("t").update({"n": -1}, In("id", (1, 5))).rows == 2
    expected = [(i, -1 if i in (1, 5) else i) for i in range(7)]
    assert sorted((r["id"], r["n"]) for r in lake.table("t").scan().to_pylist()) == expected
    assert not frames, "Spark SQL is asked"


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("text", "changed", "computes"),
    [
        ("SET v = 'b', n = -7 WHERE id > 6", dict.fromkeys((7, 8, 9), ("b", -7)), False),
        ("SET v = NULL WHERE n IN (1, 2)", {i: (None, i) for i in (1, 2)}, False),
        ("SET n = 5 WHERE id > 99", {}, False),
        (r"SET v = 'it''s \n \', n = -0 WHERE id = 3", {3: ("it's \\n \\", 0)}, False),
        ("SET n = 5.0 WHERE id = 3", {3: ("a", 5)}, False),
        ("SET n = 5e0 WHERE id = 3", {3: ("a", 5)}, True),
        ("SET n = 5 WHERE id % 5 = 4", dict.fromkeys((4, 9), ("a", 5)), True),
        ("SET n = n + 1 WHERE id > 7", {i: ("a", i + 1) for i in (8, 9)}, True),
    ],
)
def test_update_computes_only_what_is_not_the_same_for_all_rows(
    lake: kt.Lake,
    text: str,
    changed: dict[int, Any],
    computes: bool,
    frames: list[Any],
) -> None:
    assert lake.sql(f"UPDATE t {text}").row_count == len(changed)
    found = {row["id"]: (row["v"], row["n"]) for row in lake.table("t").scan().to_pylist()}
    assert found == {i: ("a", i) for i in range(10)} | changed
    assert bool(frames) == computes


def test_constant_that_does_not_fit_changes_nothing(lake: kt.Lake) -> None:
    for value in ("3000000000", "'x'"):
        with pytest.raises(kt.InvalidError, match="'n'"):
            lake.sql(f"UPDATE t SET n = {value} WHERE id > 6")
    assert ids(lake) == list(range(10))


# -- MERGE -----------------------------------------------------------------------------------------

BROUGHT = pa.table({"id": pa.array([2, 5, 77, None], pa.int64()), "v": ["x", "y", "z", "w"]})
SOURCES = {
    "table": "s",
    "query": "(SELECT * FROM s WHERE v <> 'none')",
    "query of no columns of its own": "(SELECT id + 0 AS id, v FROM s)",
    "random": "(SELECT *, rand() AS r FROM s)",
    "values": "(VALUES (2, 'x'), (5, 'y'), (77, 'z'), (NULL, 'w')) AS s (id, v)",
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("on", "whens", "left"),
    [
        (
            "t.id = s.id",
            "WHEN MATCHED AND s.v = 'x' THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v "
            "WHEN NOT MATCHED AND s.id IS NOT NULL THEN INSERT (id, v) VALUES (s.id, s.v)",
            {2: None, 5: ("y", 5), 77: ("z", None)},
        ),
        (
            "t.id = s.id AND t.n > 2",
            "WHEN MATCHED THEN UPDATE SET n = t.n + 10",
            {5: ("a", 15)},
        ),
    ],
)
def test_merge_reads_rows_that_can_match(
    lake: kt.Lake, frames: list[Any], source: str, on: str, whens: str, left: dict[int, Any]
) -> None:
    lake.create_table("s", BROUGHT.schema, []).write(BROUGHT)
    given = SOURCES[source]
    using = given if given.endswith(")") and " AS s " in given else f"{given} AS s"
    lake.sql(f"MERGE INTO t USING {using} ON {on} {whens}")
    assert found(lake) == changed(left)
    assert bool(frames) == (source == "random")


def changed(left: dict[int, Any]) -> dict[int, Any]:
    rows = {i: ("a", i) for i in range(10)} | left
    return {i: row for i, row in rows.items() if row is not None}


def found(lake: kt.Lake) -> dict[int, Any]:
    return {row["id"]: (row["v"], row["n"]) for row in lake.table("t").scan().to_pylist()}


@pytest.mark.takes_turns
@pytest.mark.parametrize("rows_max", [1 << 20, 1], ids=["few rows", "many rows"])
def test_merge_of_a_dataframe_computes_it_once_and_lets_go_of_it(
    lake: kt.Lake, spark: Any, frames: list[Any], rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_merge, "_BYTES_MAX", rows_max)
    computed = spark.sparkContext.accumulator(0)

    def counting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            computed.add(batch.num_rows)
            yield batch

    source = spark.createDataFrame(BROUGHT).mapInArrow(counting, "id bigint, v string")
    merge = lake.table("t").merge(source, "target.id = source.id")
    merge.when_matched_update({"v": "source.v"}).execute()
    assert found(lake) == changed({2: ("x", 2), 5: ("y", 5)})
    assert computed.value == BROUGHT.num_rows
    assert bool(frames) == (rows_max == 1)
    assert not source.storageLevel.useMemory


@pytest.mark.takes_turns
def test_merge_lets_go_of_no_dataframe_that_its_owner_keeps(lake: kt.Lake, spark: Any) -> None:
    source = spark.createDataFrame(BROUGHT).select("id", "v").persist()
    merge = lake.table("t").merge(source, "target.id = source.id")
    merge.when_matched_update({"v": "source.v"}).execute()
    assert source.storageLevel.useMemory
    lake.table("t").merge(source, "target.id = source.id + 0").when_matched_delete().execute()
    assert source.storageLevel.useMemory
    source.unpersist()


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("on", "whens"),
    [
        ("t.id = s.id", "WHEN NOT MATCHED BY SOURCE THEN DELETE"),
        ("t.id < s.id AND s.id = 2", "WHEN MATCHED THEN DELETE"),
        ("t.id = s.id OR t.n = 1", "WHEN MATCHED AND s.id = 2 THEN DELETE"),
        ("CAST(t.id AS STRING) = s.id", "WHEN MATCHED AND s.id = 2 THEN DELETE"),
    ],
)
def test_merge_that_may_match_any_row_reads_all(
    lake: kt.Lake, frames: list[Any], on: str, whens: str
) -> None:
    lake.create_table("s", BROUGHT.schema, []).write(BROUGHT)
    lake.sql(f"MERGE INTO t USING s ON {on} {whens}")
    assert frames


def dealt(*rows: tuple[int | None, int]) -> pa.RecordBatch:
    ids, groups = zip(*rows, strict=True)
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array(groups, pa.int32())], ["_0", GROUP])


def test_values_are_told_by_group_once_each_and_of_groups_with_too_many_rows_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dml_tasks, "_GATHERED_MAX", 3)
    batches = [
        dealt((1, 0), (1, 0), (None, 1)),
        dealt((2, 0), (3, 2)),
        dealt((4, 2), (5, 2), (6, 2)),
    ]
    told = dml_tasks._gathered(batches, ["id"])
    assert {group: {n: v.to_pylist() for n, v in some.items()} for group, some in told.items()} == {
        0: {"id": [1, 2]},
        1: {"id": []},
        2: {},
    }
