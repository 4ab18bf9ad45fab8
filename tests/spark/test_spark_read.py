"""A scan gives the same rows on Spark as locally, natively read or merged by tasks."""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt
from feature_cases import as_json
from json_values import rows_as_text
from keytide.definition.schema_evolution import SetOption
from keytide.format import paths
from keytide.read.plain_files import split_tasks
from keytide.spark.columns import batch_schema, spark_schema
from keytide.spark.read_plans import bins_of_reads, split_scan
from keytide.store import open_store
from keytide.store.faults import FaultyStore
from keytide.types import Field, parse_sql_type

pytestmark = pytest.mark.spark

SAMPLES = Path(__file__).parents[1] / "data" / "samples"
TABLES = sorted(
    str(schema.parent.relative_to(SAMPLES)) for schema in SAMPLES.glob("**/*.db/*/schema")
)
ROWS = pa.table(
    {
        "id": pa.array(range(20), pa.int64()),
        "part": pa.array([f"p{i % 3}" for i in range(20)]),
        "x": pa.array([None if i % 7 == 0 else i * 1.5 for i in range(20)]),
        "s": pa.array([None if i % 5 == 0 else f"text {i % 4}" for i in range(20)]),
        "at": pa.array([datetime(2024, 1, 1 + i) for i in range(20)], pa.timestamp("us")),
    }
)


def new_table(warehouse: str, name: str = "t", **options: str) -> kt.Table:
    return kt.connect(warehouse).create_table(
        name, ROWS.schema, primary_key=["id"], options={"bucket": "2", **options}
    )


def collected(scan: kt.Scan, spark: Any) -> pa.Table:
    return scan.to_spark(spark).toArrow().cast(batch_schema(scan.schema)).cast(scan.schema)


def assert_same(scan: kt.Scan, spark: Any) -> None:
    expected = scan.to_arrow().cast(batch_schema(scan.schema), safe=False).cast(scan.schema)
    assert rows_as_text(collected(scan, spark)) == rows_as_text(expected)
    assert scan.to_spark(spark).schema == spark_schema(scan.schema)


def operators(scan: kt.Scan, spark: Any) -> set[str]:
    plan = scan.to_spark(spark)._jdf.queryExecution().executedPlan().toString()
    names = {"FileScan": "FileScan parquet", "MapInArrow": "MapInArrow", "Join": "Join"}
    return {name for name, text in names.items() if text in plan}


# -- the same rows ---------------------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.parametrize("path", TABLES)
def test_sample_table_reads_as_locally(path: str, spark: Any) -> None:
    scan = kt.open_table(SAMPLES / path).scan()
    assert_same(scan, spark)


def test_table_without_snapshots_is_empty(warehouse: str, spark: Any) -> None:
    scan = new_table(warehouse).scan()
    assert collected(scan, spark).num_rows == 0
    assert scan.to_spark(spark).schema == spark_schema(scan.schema)


def test_columns_come_in_the_order_asked_for(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    table.write(ROWS)
    frame = table.scan(columns=["s", "id"], where="x > 3").to_spark(spark)
    assert frame.columns == ["s", "id"]


def test_scan_stays_with_its_snapshot(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    table.write(ROWS.slice(0, 5))
    frame = table.scan().to_spark(spark)
    table.write(ROWS)
    assert frame.count() == 5
    assert table.scan(snapshot_id=1).to_spark(spark).count() == 5
    assert table.scan().to_spark(spark).count() == 20


def test_deleted_rows_of_a_file_that_needs_no_merge_are_left_out(
    warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse)
    kinds = pa.array(["-D" if i % 2 else "+I" for i in range(20)])
    table.write(ROWS.append_column("_row_kind", kinds))
    assert operators(table.scan(), spark) == {"FileScan"}
    assert_same(table.scan(), spark)


def test_later_writes_win_on_spark_too(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    table.write(ROWS)
    table.write(ROWS.slice(3, 4).set_column(2, "x", pa.array([-1.0, -2.0, None, -4.0])))
    table.write(ROWS.slice(5, 5).append_column("_row_kind", pa.array(["-D"] * 5)))
    assert operators(table.scan(), spark) == {"MapInArrow"}
    assert_same(table.scan(), spark)


def test_merge_and_native_reads_are_one_result(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse, bucket="1")
    table.write(ROWS.slice(0, 10))
    table.write(ROWS.slice(10, 10))
    table.write(ROWS.slice(12, 3))
    assert operators(table.scan(), spark) == {"FileScan", "MapInArrow"}
    assert_same(table.scan(), spark)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    "where",
    [
        "id = 7",
        "id IN (1, 2, 19) AND part <> 'p1'",
        "x > 4.5 OR s IS NULL",
        "NOT (x > 4.5)",
        "s LIKE 'text _' AND part LIKE 'p%'",
        "s IN ('text 1')",
        "x IS NOT NULL AND id BETWEEN 3 AND 11",
        "at >= '2024-01-09 00:00:00' AND at < '2024-01-12'",
        r"s LIKE 'te\xt\_%' OR s LIKE 'text \1'",
        "id = 99",
    ],
)
def test_condition_means_the_same(where: str, merged: bool, warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    table.write(ROWS)
    if merged:
        table.write(ROWS.slice(0, 9))
    assert_same(table.scan(columns=["id", "s"], where=where), spark)


def test_instants_are_compared_as_instants_whatever_the_session_zone(
    warehouse: str, spark: Any
) -> None:
    moments = [datetime(2024, 1, 1, hour, tzinfo=timezone.utc) for hour in range(24)]
    rows = pa.table(
        {"id": pa.array(range(24)), "at": pa.array(moments, pa.timestamp("ms", tz="UTC"))}
    )
    table = kt.connect(warehouse).create_table("t", rows.schema, ["id"])
    table.write(rows)
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        scan = table.scan(where="at >= '2024-01-01 05:00:00'")
        assert sorted(row.id for row in scan.to_spark(spark).collect()) == list(range(5, 24))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_odd_names_of_columns_and_folders(tmp_path: Path, spark: Any) -> None:
    rows = pa.table({"a.b": [1, 2], "`q`": ["x", "y"], "p p": ["[1]{2}*?%", "é=:#/"]})
    lake = kt.connect(tmp_path / "a [b] {c} *")
    table = lake.create_table("t", rows.schema, ["a.b", "p p"], partition_by=["p p"])
    table.write(rows)
    assert operators(table.scan(), spark) == {"FileScan"}
    assert_same(table.scan(where="`a.b` = 2"), spark)
    table.write(rows)
    assert_same(table.scan(), spark)


# -- old schemas, deletion vectors, stores ---------------------------------------------------------


def evolve(table: kt.Table, fields: list[Field]) -> None:
    schema = table.table_schema
    newer = replace(
        schema, id=schema.id + 1, fields=tuple(fields), highest_field_id=max(f.id for f in fields)
    )
    table.metadata.store.put(paths.schema_path(newer.id), newer.to_json())


def test_names_that_differ_in_case_only_as_other_engines_make_them(
    warehouse: str, spark: Any
) -> None:
    rows = pa.table({"k": [1], "v": ["lower"], "w": ["upper"]})
    table = kt.connect(warehouse).create_table("t", rows.schema, ["k"])
    table.write(rows)
    k, v, w = table.table_schema.fields
    evolve(table, [k, v, replace(w, name="V")])
    frame = kt.connect(warehouse).table("t").scan(columns=["k", "V"]).to_spark(spark)
    assert [tuple(row) for row in frame.collect()] == [(1, "upper")]


def test_columns_are_paired_by_id_through_renames_casts_and_additions(
    warehouse: str, spark: Any
) -> None:
    rows = pa.table(
        {"id": pa.array([1, 2, 3], pa.int32()), "a": pa.array([1.5, None, 2.5], pa.float32()),
         "b": ["x", "y", None], "gone": [1, 2, 3]}
    )  # fmt: skip
    table = kt.connect(warehouse).create_table("t", rows.schema, ["id"])
    table.write(rows)
    key, a, b, gone = table.table_schema.fields
    renamed = replace(a, name="b", type=parse_sql_type("DOUBLE"))
    swapped = replace(b, name="a")
    evolve(table, [key, swapped, Field(gone.id + 1, "new", parse_sql_type("DATE")), renamed])
    assert operators(table.scan(), spark) == {"FileScan"}
    assert_same(table.scan(), spark)
    table.write(pa.table({"id": pa.array([2], pa.int32()), "a": ["z"], "b": [0.1],
                          "new": pa.array([20000], pa.date32())}))  # fmt: skip
    assert_same(table.scan(), spark)
    assert_same(table.scan(where="b > 1"), spark)


def test_cast_that_spark_words_otherwise_is_left_to_the_kernels(warehouse: str, spark: Any) -> None:
    rows = pa.table({"id": [1, 2], "v": [1.5, 1e20]})
    table = kt.connect(warehouse).create_table("t", rows.schema, ["id"])
    table.write(rows)
    key, value = table.table_schema.fields
    evolve(table, [key, replace(value, type=parse_sql_type("STRING"))])
    assert operators(table.scan(), spark) == {"MapInArrow"}
    assert_same(table.scan(), spark)


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    "path", ["java-0.9/wh/spec.db/j_dv", "independent/wh/spec.db/m_dv", "wh/spec.db/dv"]
)
def test_deletion_vectors_are_applied_by_spark_itself(path: str, spark: Any) -> None:
    scan = kt.open_table(SAMPLES / path).scan()
    assert operators(scan, spark) == {"FileScan", "Join"}
    assert_same(scan, spark)


def test_deletion_vectors_are_applied_beside_a_column_called_metadata(
    tmp_path: Path, spark: Any
) -> None:
    shutil.copytree(SAMPLES / "wh/spec.db/dv", tmp_path / "dv")
    table = kt.open_table(tmp_path / "dv")
    key, value, *rest = table.table_schema.fields
    evolve(table, [key, replace(value, name="_metadata"), *rest])
    assert operators(table.scan(), spark) == {"FileScan", "Join"}
    assert_same(table.scan(), spark)


def test_store_without_local_files_is_read_by_tasks(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    table.write(ROWS)
    far = kt.connect(warehouse, store=FaultyStore(open_store(warehouse))).table("t")
    split = split_scan(far.scan())
    assert (split.plain, len(split.tasks)) == ({}, 2)


def test_files_in_orc_are_read_by_tasks_beside_parquet(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse, **{"file.format": "orc", "bucket": "1"})
    table.write(ROWS.slice(0, 8))
    table.alter(SetOption("file.format", "parquet"))
    table.write(ROWS.slice(8))
    scan = table.scan(where="x > 3")
    assert_same(scan, spark)
    assert operators(scan, spark) == {"FileScan", "MapInArrow"}


def test_missing_file_is_named(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    table.write(ROWS)
    table.write(ROWS)
    shutil.rmtree(Path(table.uri) / "bucket-0")
    with pytest.raises(kt.DataError, match=r"data file .*/bucket-0/.* is missing"):
        table.scan().to_spark(spark).count()


# -- columns without NULLs -------------------------------------------------------------------------


def looked_at_for_nulls(scan: kt.Scan, spark: Any) -> set[str]:
    """The columns that merge tasks declare nullable."""
    plan = scan.to_spark(spark)._jdf.queryExecution().optimizedPlan()
    assert plan.nodeName() == "MapInArrow"  # nothing is left above the tasks
    output = plan.output()
    columns = [output.apply(i) for i in range(output.size())]
    return {column.name() for column in columns if column.nullable()}


def test_spark_looks_for_nulls_only_where_some_file_has_one(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse, bucket="1")
    table.write(ROWS)
    table.write(ROWS.slice(1, 4))
    assert looked_at_for_nulls(table.scan(), spark) == {"x", "s"}
    assert_same(table.scan(), spark)
    table.write(ROWS.slice(1, 2).set_column(1, "part", pa.array(["p1", None])))
    assert looked_at_for_nulls(table.scan(), spark) == {"part", "x", "s"}
    assert_same(table.scan(), spark)
    table.write([{"id": 3, "_row_kind": "-D"}])
    assert looked_at_for_nulls(table.scan(), spark) == {"part", "x", "s", "at"}
    assert_same(table.scan(), spark)


def test_engine_that_empties_a_column_may_bring_nulls_that_no_file_has(
    warehouse: str, spark: Any
) -> None:
    options = {
        "bucket": "1",
        "merge-engine": "partial-update",
        "fields.g.sequence-group": "a",
    }
    rows = pa.table({"id": [1, 2], "g": [1, 1], "a": ["x", "y"]})
    table = kt.connect(warehouse).create_table("t", rows.schema, ["id"], options=options)
    table.write(rows)
    retract = pa.table({"id": [1], "g": [2], "a": ["x"], "_row_kind": ["-D"]})
    table.write(retract)
    assert looked_at_for_nulls(table.scan(), spark) == {"g", "a"}
    assert table.scan().to_arrow().column("a").to_pylist().count(None) == 1
    assert_same(table.scan(), spark)


@pytest.mark.takes_turns
def test_statistics_that_miss_a_null_are_an_error_and_not_a_value(
    warehouse: str, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(warehouse, bucket="1")
    table.write(ROWS)
    table.write(ROWS.slice(1, 4))
    monkeypatch.setattr("keytide.read.sections._null_count", lambda entry, position: 0)
    with pytest.raises(
        kt.DataError, match=r"table default.t, column '[xs]': found \d rows? with NULL"
    ):
        table.scan().to_spark(spark).collect()
    through_source = spark.read.format("keytide").load(table.uri)
    assert through_source.where("x IS NULL").count() == 3


# -- splitting work --------------------------------------------------------------------------------


def test_tasks_are_packed_into_bins_of_like_size(warehouse: str) -> None:
    table = new_table(warehouse, bucket="8")
    table.write(ROWS)
    table.write(ROWS)
    tasks = split_tasks(table.scan())
    bins = bins_of_reads(tasks, lambda stored, rows: 3)
    assert len(bins) == 3
    assert sorted(len(tasks) for tasks in bins) == [2, 3, 3]
    assert sum(len(tasks) for tasks in bins) == len(tasks)
    assert bins_of_reads([], lambda stored, rows: 3) == []
    assert len(bins_of_reads(tasks, lambda stored, rows: 100)) >= len(tasks)


def test_every_column_is_nullable_to_spark() -> None:
    schema = pa.schema(
        [
            pa.field("k", pa.int64(), nullable=False),
            pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))),
            pa.field("l", pa.list_(pa.field("element", pa.timestamp("ns"), nullable=False))),
        ]
    )
    assert spark_schema(schema).simpleString() == (
        "struct<k:bigint,m:map<string,int>,l:array<timestamp_ntz>>"
    )
    assert all(f.nullable for f in spark_schema(schema).fields)


def test_changed_bit_in_a_page_is_told_by_sparks_own_reader(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse, bucket="1")
    table.write(ROWS)
    (file,) = Path(table.uri).glob("**/*.parquet")
    group = pq.read_metadata(file).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    end = columns["x"].data_page_offset + columns["x"].total_compressed_size
    changed = bytearray(file.read_bytes())
    changed[end - 1] ^= 1
    file.write_bytes(changed)
    assert operators(table.scan(), spark) == {"FileScan"}
    with pytest.raises(Exception, match=f"(?s){file.name}"):
        collected(table.scan(), spark)


def test_spark_plans_joins_by_the_number_of_rows(warehouse: str, spark: Any) -> None:
    lake = kt.connect(warehouse, spark=spark)
    rows = pa.table({"id": range(3000), "v": ["a"] * 3000})
    table = lake.create_table("t", rows.schema, ["id"], options={"bucket": "3"})
    table.write(rows)
    table.write(rows)
    merged = table.scan().to_spark(spark)
    size = merged._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
    assert 3000 * 8 < int(size) < 3000 * 1000
    assert sorted(row.id for row in merged.collect()) == list(range(3000))


FEATURES = SAMPLES.parent / "features.tar.xz"


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", ["fallback_branch", "primary_branch"])
def test_rows_of_two_branches_are_those_of_java(name: str, tmp_path: Path, spark: Any) -> None:
    with tarfile.open(FEATURES) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "features" / "rows.json").read_text())[name]
    lake = kt.connect(str(tmp_path / "features"), spark)
    scan = lake.table(name).scan()
    assert isinstance(scan, kt.FallbackScan)
    for rows in (scan.to_spark(spark), lake.sql(f"SELECT * FROM {name}").to_spark()):
        assert as_json(rows.toArrow()) == expected
    assert lake.table(name).scan(limit=1).to_spark(spark).count() == 1
