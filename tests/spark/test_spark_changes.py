"""Changes on Spark: the same tasks, so the same rows, in batches and in streams."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.definition.schema_evolution import AddColumn
from keytide.spark.columns import spark_schema
from keytide.spark.internals import HAS_READ_LIMITS
from table_rows import rows_in_order

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [("p", pa.string()), ("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.string())]
)


def new_table(warehouse: str, **options: str) -> kt.Table:
    table = kt.connect(warehouse).create_table(
        "t", SCHEMA, ["p", "k"], ["p"], options={"bucket": "2", **options}
    )
    for version, keys in enumerate([range(20), range(5, 25), range(0, 30, 3)]):
        table.write([{"p": "ab"[k % 2], "k": k, "t": None, "v": str(version)} for k in keys])
    table.write([{"p": "a", "k": 2, "t": None, "v": None, "_row_kind": "-D"}])
    return table


def test_changes_on_executors_are_those_of_a_local_read(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    for mode in ("diff", "delta"):
        changes = table.changes(1, mode=mode)
        found = [tuple(row) for row in changes.to_spark(spark).collect()]
        assert sorted(found, key=repr) == sorted(
            (tuple(row.values()) for row in changes.to_pylist()), key=repr
        )
        if mode == "diff":
            after_before = [b[0] for a, b in itertools.pairwise(found) if a[0] == "-U"]
            assert set(after_before) == {"+U"}
    assert table.changes(4).to_spark(spark).count() == 0


# -- streams ---------------------------------------------------------------------------------------


def run(spark: Any, table: kt.Table, place: Path, **options: str) -> list[list[tuple[Any, ...]]]:
    """What a query tells until it has told all there is, micro-batch by micro-batch."""
    batches: list[list[tuple[Any, ...]]] = []
    stream = spark.readStream.format("keytide").options(**options).load(table.uri)
    query = (
        stream.writeStream.foreachBatch(lambda rows, _: batches.append(rows.collect()))
        .option("checkpointLocation", str(place))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [[tuple(row) for row in rows] for rows in batches if rows]


def fold(held: Mapping[Any, Any], changes: list[tuple[Any, ...]]) -> dict[Any, Any]:
    rows = dict(held)
    for kind, *row in changes:
        if kind in ("-U", "-D"):
            assert rows.pop(tuple(row[:2])) == row
        else:
            assert tuple(row[:2]) not in rows
            rows[tuple(row[:2])] = row
    return rows


def at_most(rows: int) -> dict[str, str]:
    """The option that limits batches, on releases of Spark that know limits."""
    return {"max-rows-per-trigger": str(rows)} if HAS_READ_LIMITS else {}


def values_by_key(table: kt.Table) -> dict[Any, Any]:
    return {(r["p"], r["k"]): list(r.values()) for r in table.scan().to_pylist()}


@pytest.mark.takes_turns
def test_stream_tells_the_rows_there_are_and_then_every_change_once(
    warehouse: str, spark: Any, tmp_path: Path
) -> None:
    table = new_table(warehouse)
    first = run(spark, table, tmp_path / "c")
    assert {row[0] for rows in first for row in rows} == {"+I"}
    held = fold({}, [row for rows in first for row in rows])
    assert held == values_by_key(table)
    for version in ("x", "y", "z"):
        table.write([{"p": "a", "k": k, "t": None, "v": version} for k in (0, 4, 100)])
        table.write([{"p": "a", "k": 100, "t": None, "v": None, "_row_kind": "-D"}])
    second = run(spark, table, tmp_path / "c", **at_most(4))
    assert len(second) == (3 if HAS_READ_LIMITS else 1)
    for rows in second:
        held = fold(held, rows)
    assert held == values_by_key(table)
    assert run(spark, table, tmp_path / "c") == []


@pytest.mark.takes_turns
def test_stream_begins_where_it_is_told_to_and_keeps_the_columns_that_it_began_with(
    warehouse: str, spark: Any, tmp_path: Path
) -> None:
    table = new_table(warehouse)
    options = {"start": "3", "columns": "k", "mode": "delta"}
    assert run(spark, table, tmp_path / "c", **options) == [[("-D", 2)]]
    options = {"start": "latest", "consumer": "spark"}
    stream = spark.readStream.format("keytide").options(**options).load(table.uri)
    assert stream.columns == ["_row_kind", *SCHEMA.names]
    table.alter(AddColumn(("more",), kt.parse_sql_type("INT")))
    table.write([{"p": "b", "k": 1, "t": None, "v": "x", "more": 1}])
    found: list[Any] = []
    query = (
        stream.writeStream.foreachBatch(lambda rows, _: found.extend(rows.collect()))
        .option("checkpointLocation", str(tmp_path / "d"))
        .start()
    )
    try:
        query.processAllAvailable()
        table.write([{"p": "b", "k": 1, "t": None, "v": "y", "more": 2}])
        query.processAllAvailable()
        table.write([{"p": "b", "k": 1, "t": None, "v": "y", "more": 3}])
        query.processAllAvailable()
    finally:
        query.stop()
    place = json.loads(table.metadata.store.read("consumer/consumer-spark"))
    assert place["nextSnapshot"] == place["toldSnapshot"] >= 6
    assert [tuple(row) for row in found] == [
        ("-U", "b", 1, None, "x"),
        ("+U", "b", 1, None, "y"),
    ]


@pytest.mark.takes_turns
def test_stream_goes_on_over_conversions_of_the_table(
    warehouse: str, spark: Any, tmp_path: Path
) -> None:
    table = new_table(warehouse)
    held = fold({}, [row for rows in run(spark, table, tmp_path / "c") for row in rows])
    table.convert("full")
    assert run(spark, table, tmp_path / "c") == []
    rows = spark.createDataFrame([("a", 4, None, "x"), ("b", 101, None, "x")], spark_schema(SCHEMA))
    table.write(rows)
    table.convert("none")
    table.write([{"p": "a", "k": 6, "t": None, "v": "y", "_row_kind": "-D"}])
    (told,) = run(spark, table, tmp_path / "c")
    assert fold(held, told) == values_by_key(table)


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("producer", ["lookup", "full-compaction"])
def test_stream_of_a_changelog_that_jobs_made_is_the_table(
    producer: str, warehouse: str, spark: Any, tmp_path: Path
) -> None:
    new_table(warehouse, **{"changelog-producer": producer})
    table = kt.connect(warehouse, spark=spark).table("t")
    options = {"mode": "changelog", **at_most(15)}
    held = fold({}, run(spark, table, tmp_path / "full", **options)[0])
    assert held == values_by_key(table)
    for version in ("x", "y", "z"):
        rows = [("ab"[k % 2], k, None, version) for k in range(0, 40, 2)]
        table.write(spark.createDataFrame(rows, spark_schema(SCHEMA)))
    batches = run(spark, table, tmp_path / "full", **options)
    assert [len(batch) for batch in batches] == ([32, 40, 40] if HAS_READ_LIMITS else [112])
    for batch in batches:
        held = fold(held, batch)
    assert held == values_by_key(table)
    (told,) = run(spark, table, tmp_path / "all", mode="changelog", start="0")
    assert fold({}, told) == held
    made = table.snapshots()[1].time_millis
    moment = datetime.fromtimestamp(made / 1000, timezone.utc).isoformat()
    (some,) = run(spark, table, tmp_path / "some", mode="changelog", **{"as-of": moment})
    assert Counter(told) - Counter(some) == Counter(first_changes(table))


def first_changes(table: kt.Table) -> list[tuple[Any, ...]]:
    return rows_in_order(table.changes(0, 2, mode="changelog"))


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("mode", "producer"), [("delta", "none"), ("changelog", "lookup"), ("diff", "none")]
)
def test_copy_that_a_stream_keeps_has_every_key_that_moved(
    mode: str, producer: str, lake: kt.Lake, spark: Any, tmp_path: Path
) -> None:
    schema = pa.schema([("k", pa.int64()), ("p", pa.int64()), ("v", pa.int64())])
    moving = {"bucket": "-1", "dynamic-bucket.target-row-num": "2", "changelog-producer": producer}
    table = lake.create_table("moving", schema, ["k"], ["p"], options=moving)
    copy = lake.create_table("copy", schema, ["k"], options={"bucket": "2"})
    dice = random.Random(mode)
    for commits in (1, 6, 6):  # told in one batch each
        for n in range(commits):
            rows = [
                {"k": k, "p": dice.randrange(3), "v": n, "_row_kind": dice.choice(["+I", "-D"])}
                for k in dice.sample(range(10), 6)
            ]
            table.write(rows if n else [{**row, "_row_kind": "+I"} for row in rows])
        stream = spark.readStream.format("keytide").options(mode=mode, start="0").load(table.uri)
        query = (
            stream.writeStream.foreachBatch(lambda rows, _: copy.write(rows))
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        shown = [sorted(map(str, each.scan().to_pylist())) for each in (table, copy)]
        assert shown[0] == shown[1]
    told = table.changes(0, mode=mode)
    on_executors = {}
    for kind, k, *row in told.to_spark(spark).collect():
        on_executors.pop(k, None) if kind in ("-U", "-D") else on_executors.update({k: row})
    assert on_executors == {r["k"]: [r["p"], r["v"]] for r in table.scan().to_pylist()}


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "99"}, "no snapshot 99"),
        ({"mode": "dif"}, "option 'mode' is 'dif'; expected one of"),
        ({"where": "k = 1"}, "this is a stream of changes, which does not support 'where'"),
        ({"max-rows-per-trigger": "0"}, "expected an integer from 1"),
    ],
)
def test_stream_that_cannot_be_says_why(
    options: dict[str, str], message: str, warehouse: str, spark: Any, tmp_path: Path
) -> None:
    with pytest.raises(kt.KeytideError, match=message):
        run(spark, new_table(warehouse), tmp_path / "c", **options)


@pytest.mark.takes_turns
def test_stream_from_an_expired_snapshot_says_which_are_there(
    warehouse: str, spark: Any, tmp_path: Path
) -> None:
    table = new_table(warehouse)
    earliest = table.expire_snapshots(retain_max=2).earliest_id
    with pytest.raises(kt.NotFoundError, match=rf".*snapshots {earliest} to \d+ exist"):
        run(spark, table, tmp_path / "c", start="1")


@pytest.mark.takes_turns
def test_options_of_streams_are_refused_where_one_snapshot_is_read(
    warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse)
    with pytest.raises(kt.InvalidError, match="reads one snapshot, which does not support 'start'"):
        spark.read.format("keytide").option("start", "1").load(table.uri).collect()
