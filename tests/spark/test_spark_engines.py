"""Every merge function gives the same rows however they are written and read."""

from __future__ import annotations

import datetime as dt
import operator
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from keytide.format.arrow import to_arrow
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND, RunWriter
from keytide.format.manifest_entry import FileKind, FileSource
from keytide.read.runs import SYSTEM_COLUMNS, StoredVersions
from keytide.read.scan import Scan
from keytide.read.sections import PlannedFile
from keytide.types import arrow_schema
from new_tables import fields_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# Function (with further options after a blank), type, and values that the rows are drawn from.
COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "sum": ("BIGINT", [None, 1, -2, 3]),
    "product": ("INT", [None, 1, -1, 2]),
    "max": ("STRING", [None, "a", "b", "ab"]),
    "min": ("DOUBLE", [None, 1.5, float("inf"), -0.5]),
    "last_value": ("STRING", [None, "x", "y"]),
    "last_non_null_value": ("DATE", [None, "2024-02-29", "1969-12-31"]),
    "first_value": ("INT", [None, 1, 2]),
    "first_non_null_value": ("INT", [None, 1, 2]),
    "first_not_null_value": ("INT", [None, 1, 2]),
    "listagg": ("STRING", [None, "a", "", "b,c"]),
    "bool_and": ("BOOLEAN", [None, True, True, False]),
    "bool_or": ("BOOLEAN", [None, True, False, False]),
    "collect": ("ARRAY<INT>", [None, [1], [2, 2], []]),
    "union": ("ARRAY<INT>", [None, [3, 1], [2, 2], []]),
    "merge_map": ("MAP<STRING, INT>", [None, {"a": 1}, {"a": 2, "b": 3}]),
    "merge_map_with_keytime": (
        "MAP<STRING, ROW<x INT, t STRING>>",
        [None, {"a": {"x": 1, "t": "1"}}, {"a": {"x": 2, "t": "2"}, "b": {"x": 3, "t": "1"}}],
    ),
    "nested_update": ("ARRAY<ROW<n INT, x INT>>", [None, [{"n": 1, "x": 1}], [{"n": 2, "x": 2}]]),
    "nested_partial_update": (
        "ARRAY<ROW<n INT, x INT, y INT>>",
        [None, [{"n": 1, "x": 1, "y": None}], [{"n": 1, "x": None, "y": 5}]],
    ),
    "overwrite": ("INT", [None, 1, 2]),
    "force_overwrite": ("INT", [None, 1, 2]),
    "ignore": ("INT", [None, 1, 2]),
    "increment": ("INT", [None, 1, 2]),
    "append": ("ARRAY<STRING>", [None, ["a"], ["b", "a"]]),
}
OPTIONS = {
    "merge-engine": "aggregation",
    "sequence.field": "at",
    "fields.nested_update.nested-key": "n",
    "fields.nested_partial_update.nested-key": "n",
    **{f"fields.{name}.aggregate-function": name for name in COLUMNS},
}


def histories() -> list[dict[str, Any]]:
    """Versions of forty keys in the order of their sequence field."""
    drawn = random.Random(3)
    return [
        {
            "k": drawn.randrange(40),
            "at": at,
            **{name: drawn.choice(values) for name, (_, values) in COLUMNS.items()},
        }
        for at in range(200)
    ]


def new_table(lake: kt.Lake, name: str, buckets: int) -> kt.Table:
    types = {"k": "INT", "at": "INT", **{column: kind for column, (kind, _) in COLUMNS.items()}}
    fields = fields_of(types)
    options = {**OPTIONS, "bucket": str(buckets)}
    return lake.create_table(name, fields, ["k"], options=options)


def written(table: kt.Table, rows: list[dict[str, Any]], size: int) -> kt.Table:
    fields = {f.name: f.type.to_arrow() for f in table.table_schema.fields}
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        table.write(
            pa.table(
                {
                    name: pa.array([parsed(row[name], kind) for row in part], kind)
                    for name, kind in fields.items()
                }
            )
        )
    return table


def parsed(value: Any, kind: Any) -> Any:
    return dt.date.fromisoformat(value) if str(kind) == "date32[day]" and value else value


def row_texts(rows: Any) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.takes_turns
def test_no_way_of_writing_or_reading_changes_a_row(warehouse: str, spark: SparkSession) -> None:
    lake, rows = kt.connect(warehouse), histories()
    at_once = written(new_table(lake, "at_once", 1), rows, len(rows))
    one = written(new_table(lake, "one", 1), rows, 40)
    eight = written(new_table(lake, "eight", 8), rows, 40)

    expected = row_texts(at_once.scan().to_arrow())

    assert len(expected) == len({row["k"] for row in rows})
    for table in (one, eight):
        assert row_texts(table.scan().to_arrow()) == expected
        assert row_texts(table.scan().to_spark(spark).toArrow()) == expected


@pytest.mark.takes_turns
@pytest.mark.parametrize(("first", "end"), [(0, 2), (1, 4), (3, 5), (0, 5)])
def test_compacting_some_runs_changes_no_row(
    lake: kt.Lake, spark: SparkSession, first: int, end: int
) -> None:
    table = written(new_table(lake, "t", 1), histories(), 40)
    expected = row_texts(table.scan().to_arrow())

    scan = compacted(table, first, end)

    assert len(scan.live.entries) == 5 - (end - first) + 1
    assert row_texts(scan.to_arrow()) == expected
    assert row_texts(scan.to_spark(spark).toArrow()) == expected


def compacted(table: kt.Table, first: int, end: int) -> Scan:
    """A scan of a table of one bucket with some neighbouring runs merged into one file."""
    scan = table.scan()
    view, entries = scan.view, scan.live.entries[first:end]
    columns = (*view.schema.names, *SYSTEM_COLUMNS)
    stored = StoredVersions(view, entries[0].partition, columns)
    versions = pl.concat([stored.of_file(PlannedFile(entry)) for entry in entries])
    merged = view.engine.merge(view.order.sort(versions))
    system = {SEQUENCE_NUMBER: "BIGINT NOT NULL", VALUE_KIND: "TINYINT NOT NULL"}
    fields = fields_of(system)
    file = RunWriter(view.store, view.schema).write_file(
        to_arrow(merged, arrow_schema([*view.schema.fields, *fields])),
        f"{view.bucket_directory(entries[0].partition, 0)}/data-compacted-0.parquet",
        level=1,
        source=FileSource.COMPACT,
    )
    gone = [replace(entry, kind=FileKind.DELETE) for entry in entries]
    assert scan.snapshot is not None
    live = scan.live.advance(scan.snapshot, [*gone, replace(entries[0], file=file)])
    return replace(scan, state=replace(scan.state, live=live))


@pytest.mark.takes_turns
def test_executors_merge_what_they_write_as_one_process_does(
    warehouse: str, spark: SparkSession
) -> None:
    lake, rows = kt.connect(warehouse), histories()
    source = written(new_table(lake, "source", 4), newest(rows), 40)
    local = written(new_table(lake, "local", 4), newest(rows), 40)
    frame = source.scan().to_spark(spark)

    distributed = new_table(lake, "distributed", 4)
    distributed.write(frame)
    distributed.write(frame)
    local.write(local.scan().to_arrow())

    assert row_texts(distributed.scan().to_arrow()) == row_texts(local.scan().to_arrow())


def newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({row["k"]: row for row in rows}.values())


def test_function_of_ones_own_travels_to_the_executors(warehouse: str, spark: SparkSession) -> None:
    length = operator.methodcaller("len_chars")  # what a function refers to travels with it
    kt.register_merge_function(
        "loudest",
        lambda values: values.sort_by(length(values.str), maintain_order=True).last(),
        types=["STRING"],
    )
    lake = kt.connect(warehouse, spark=spark)
    lake.sql(
        "CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED, v STRING) WITH ("
        "'merge-engine' = 'aggregation', 'fields.v.aggregate-function' = 'loudest')"
    )
    table = lake.table("t")
    for word in ("a", "ccc", "bb"):
        rows = spark.range(50).selectExpr("cast(id as int) as k", f"'{word}' as v")
        table.write(rows.repartition(3))
    found = table.scan().to_spark(spark).groupBy("v").count().collect()
    assert [tuple(row) for row in found] == [("ccc", 50)]
