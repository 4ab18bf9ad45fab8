"""Overwrites by rows that executors write: what they replace is what local rows would replace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from new_tables import fields_of
from table_rows import rows

pytestmark = pytest.mark.spark

KINDS = {"p": "STRING", "id": "INT", "v": "STRING"}
FIELDS = fields_of(KINDS)
NEW = [("a", i, f"new {i}") for i in range(20)]


@pytest.fixture
def lake(warehouse: str, spark: Any) -> kt.Lake:
    """A lake with the keyed tables `t` and `u` of the same rows, in the partitions a, b and c."""
    lake = kt.connect(warehouse, spark=spark)
    for name in "tu":
        table = lake.create_table(name, FIELDS, ["p", "id"], ["p"], options={"bucket": "2"})
        table.write([{"p": p, "id": i, "v": "old"} for p in "abc" for i in range(3)])
    return lake


def files(table: kt.Table) -> set[str]:
    return {path.name for path in Path(table.uri).rglob("*.parquet")}


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("names", "options", "partition"),
    [
        ("p id v", {}, None),
        ("p id v", {"dynamic-partition-overwrite": "false"}, None),
        ("p id v", {}, {"p": "a"}),
        ("id v", {}, {"p": "b"}),
        ("id v", {}, {"p": "z"}),
        ("p id v", {"bucket": "3"}, None),
    ],
)
def test_a_dataframe_replaces_what_local_rows_replace(
    lake: kt.Lake,
    spark: Any,
    names: str,
    options: dict[str, str],
    partition: dict[str, Any] | None,
) -> None:
    for name in "tu":
        for key, value in options.items():
            lake.sql(f"ALTER TABLE {name} SET ('{key}' = '{value}')")
    given = [dict(zip(KINDS, row, strict=True)) for row in NEW]
    local = [{name: row[name] for name in names.split()} for row in given]
    frame = spark.createDataFrame(NEW, "p string, id int, v string").select(*names.split())
    here = lake.table("u").overwrite(local, partition)
    there = lake.table("t").overwrite(frame.repartition(3), partition)
    assert (there.rows, there.rows_stored, there.snapshot_id) == (20, 20, here.snapshot_id)
    assert rows(lake.table("t")) == rows(lake.table("u"))
    assert lake.table("t").verify().findings == ()


@pytest.mark.takes_turns
def test_insert_overwrite_sends_no_rows_to_the_driver(
    lake: kt.Lake, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    monkeypatch.delattr(type(spark.range(1)), "toArrow")
    text = "INSERT OVERWRITE t SELECT p, id + 10, upper(v) FROM t WHERE p <> 'c'"
    assert lake.sql(text).row_count == 6
    assert lake.sql("INSERT OVERWRITE t PARTITION (p = 'c') SELECT id, v FROM u").row_count == 9
    expected = [(p, i, "OLD") for p in "ab" for i in (10, 11, 12)]
    assert rows(lake.table("t")) == [*expected, *(("c", i, "old") for i in range(3))]


def test_no_rows_replace_the_partition_that_is_named(lake: kt.Lake, spark: Any) -> None:
    lake.sql("INSERT OVERWRITE t PARTITION (p = 'b') SELECT id, v FROM u WHERE id > 99")
    assert {p for p, *_ in rows(lake.table("t"))} == {"a", "c"}


def test_row_outside_of_the_partition_changes_nothing_and_leaves_no_file(
    lake: kt.Lake, spark: Any
) -> None:
    table = lake.table("t")
    before, stored = rows(table), files(table)
    frame = spark.createDataFrame([("a", 1, "x"), ("b", 1, "x")], "p string, id int, v string")
    with pytest.raises(kt.InvalidError, match="not in the partition to overwrite"):
        table.overwrite(frame, {"p": "a"})
    assert (rows(table), files(table)) == (before, stored)
