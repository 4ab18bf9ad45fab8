"""System tables tell what is stored, under the column names of the format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.catalogs.system_tables import SYSTEM_TABLES, audit_log, read_optimized, system_table
from keytide.definition.schema_evolution import AddColumn, ChangeColumnType, RenameColumn
from keytide.format import paths
from keytide.format.snapshot import Tag
from new_tables import empty_lake
from table_rows import rows_in_order

SAMPLES = Path(__file__).parents[1] / "data/samples"
SCHEMA = pa.schema([("d", pa.date32()), ("k", pa.int64()), ("v", pa.string())])
DAY = "2024-01-31"


@pytest.fixture
def table() -> kt.Table:
    """Two snapshots: three rows in two partitions, then an update and a delete."""
    lake = empty_lake()
    made = lake.create_table("t", SCHEMA, ["d", "k"], ["d"], comment="of tests")
    write(made, "+I 2024-01-31 1 a", "+I 2024-01-31 2 b", "+I 2024-02-01 1 c")
    write(made, "+U 2024-01-31 1 A", "-D 2024-01-31 2 b")
    return made


def write(table: kt.Table, *rows: str) -> None:
    kinds, days, keys, values = zip(*(row.split() for row in rows), strict=True)
    days_read = pa.array(days).cast(pa.date32())
    keys_read = pa.array(keys).cast(pa.int64())
    table.write(pa.table({"_row_kind": kinds, "d": days_read, "k": keys_read, "v": values}))


def selected(found: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    return rows_in_order(found.select(columns))


def open_sample(name: str) -> kt.Table:
    (path,) = SAMPLES.rglob(f"spec.db/{name}")
    return kt.open_table(path)


def test_unknown_system_table_is_refused_naming_those_there_are(table: kt.Table) -> None:
    with pytest.raises(
        kt.NotFoundError, match="no system table 'file'; system tables: audit_log, bra"
    ):
        system_table(table.stored, "file")
    assert list(SYSTEM_TABLES) == sorted(SYSTEM_TABLES)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", SYSTEM_TABLES)
def test_table_without_snapshots_has_the_columns_of_every_system_table(
    name: str, table: kt.Table
) -> None:
    lake = empty_lake()
    empty = system_table(lake.create_table("e", SCHEMA, ["d", "k"], ["d"]).stored, name)
    assert empty.schema == system_table(table.stored, name).schema
    assert empty.num_rows == {"schemas": 1, "options": 2}.get(name, 0)


def test_snapshots_are_listed_oldest_first(table: kt.Table) -> None:
    found = system_table(table.stored, "snapshots")
    columns = (
        "snapshot_id",
        "schema_id",
        "commit_kind",
        "total_record_count",
        "delta_record_count",
    )
    assert selected(found, *columns) == [(1, 0, "APPEND", 3, 3), (2, 0, "APPEND", 5, 2)]
    first = table.snapshots()[0]
    assert found["commit_user"][0].as_py() == first.commit_user
    assert found["commit_time"][0].value == first.time_millis


def test_schemas_are_listed_with_their_fields_as_json(table: kt.Table) -> None:
    table.alter(AddColumn(("w",), kt.parse_sql_type("INT")))
    found = system_table(table.stored, "schemas")
    columns = ("schema_id", "partition_keys", "primary_keys", "comment")
    assert selected(found, *columns) == [
        (0, '["d"]', '["d","k"]', "of tests"),
        (1, '["d"]', '["d","k"]', "of tests"),
    ]
    assert json.loads(found["fields"][1].as_py())[-1] == {"id": 3, "name": "w", "type": "INT"}
    assert json.loads(found["options"][0].as_py()) == table.options


def test_options_are_those_stored(table: kt.Table) -> None:
    assert selected(system_table(table.stored, "options"), "key", "value") == [
        ("bucket", "1"),
        ("file.format", "parquet"),
    ]


def test_files_are_told_with_keys_levels_and_statistics(table: kt.Table) -> None:
    found = system_table(table.stored, "files")
    columns = ("partition", "bucket", "schema_id", "level", "record_count", "min_key", "max_key")
    assert selected(found, *columns) == [
        ("{2024-01-31}", 0, 0, 0, 2, "[1]", "[2]"),
        ("{2024-02-01}", 0, 0, 0, 1, "[1]", "[1]"),
        ("{2024-01-31}", 0, 0, 0, 2, "[1]", "[2]"),
    ]
    newest = found.slice(2).to_pylist()[0]
    assert newest["min_value_stats"] == "{d=2024-01-31, k=1, v=A}"
    assert newest["max_value_stats"] == "{d=2024-01-31, k=2, v=b}"
    assert newest["null_value_counts"] == "{d=0, k=0, v=0}"
    assert (newest["deleteRowCount"], newest["file_source"], newest["file_format"]) == (
        1, "APPEND", "parquet",
    )  # fmt: skip
    assert newest["file_path"].startswith(f"{table.uri}d=")
    assert system_table(table.stored, "files", snapshot_id=1).num_rows == 2


def test_statistics_follow_renames_and_widenings(table: kt.Table) -> None:
    table.alter(RenameColumn(("v",), "w"), AddColumn(("a",), kt.parse_sql_type("INT")))
    assert system_table(table.stored, "files")["min_value_stats"][1].as_py() == (
        "{a=null, d=2024-02-01, k=1, w=c}"
    )
    lake = empty_lake()
    other = lake.create_table("o", pa.schema([("k", pa.int32()), ("v", pa.int32())]), ["k"])
    other.write([{"k": 1, "v": 2}])
    other.alter(ChangeColumnType(("v",), kt.parse_sql_type("DECIMAL(12, 2)")))
    assert system_table(other.stored, "files")["min_value_stats"].to_pylist() == ["{k=1, v=2.00}"]


def test_partitions_and_buckets_add_their_files_up(table: kt.Table) -> None:
    sizes = {"{2024-01-31}": 0, "{2024-02-01}": 0}
    for partition, size in selected(
        system_table(table.stored, "files"), "partition", "file_size_in_bytes"
    ):
        sizes[partition] += size
    columns = ("partition", "record_count", "file_count", "file_size_in_bytes", "total_buckets")
    assert selected(system_table(table.stored, "partitions"), *columns) == [
        ("d=2024-01-31", 4, 2, sizes["{2024-01-31}"], 1),
        ("d=2024-02-01", 1, 1, sizes["{2024-02-01}"], 1),
    ]
    columns = ("partition", "bucket", "record_count", "file_count", "file_size_in_bytes")
    assert selected(system_table(table.stored, "buckets"), *columns) == [
        ("{2024-01-31}", 0, 4, 2, sizes["{2024-01-31}"]),
        ("{2024-02-01}", 0, 1, 1, sizes["{2024-02-01}"]),
    ]


def test_manifests_tell_their_partitions(table: kt.Table) -> None:
    columns = ("num_added_files", "num_deleted_files", "min_partition_stats", "max_partition_stats")
    assert selected(system_table(table.stored, "manifests"), *columns) == [
        (2, 0, "{2024-01-31}", "{2024-02-01}"),
        (1, 0, "{2024-01-31}", "{2024-01-31}"),
    ]


def test_tags_are_told_with_their_snapshots(table: kt.Table) -> None:
    first = table.snapshots()[0]
    hours_and_a_half = 36 * 3600 * 10**9 + 5 * 10**8
    for name, times in {"plain": (None, None), "kept": (10**15, hours_and_a_half)}.items():
        tag = Tag(snapshot=first, create_time_ns=times[0], time_retained_ns=times[1])
        table.metadata.store.put(paths.tag_path(name), tag.to_json())
    found = system_table(table.stored, "tags")
    assert selected(found, "tag_name", "snapshot_id", "record_count", "time_retained") == [
        ("kept", 1, 3, "PT36H0.5S"),
        ("plain", 1, 3, None),
    ]
    assert found["create_time"][0].value == 10**9
    assert system_table(table.stored, "files", tag="kept").num_rows == 2


def test_audit_log_shows_every_outcome_with_its_kind_deletes_among_them(table: kt.Table) -> None:
    found = system_table(table.stored, "audit_log").sort_by(
        [("d", "ascending"), ("k", "ascending")]
    )
    assert found.column_names == ["rowkind", "d", "k", "v"]
    assert selected(found, "rowkind", "k", "v") == [("+U", 1, "A"), ("-D", 2, "b"), ("+I", 1, "c")]
    assert selected(audit_log(table.scan(columns=["k"], where="v = 'A'")), "rowkind", "k") == [
        ("+U", 1)
    ]
    before = system_table(table.stored, "audit_log", snapshot_id=1)
    assert before["rowkind"].to_pylist() == ["+I"] * 3


def test_read_optimized_table_shows_compacted_files_only(table: kt.Table) -> None:
    assert system_table(table.stored, "ro").num_rows == 0
    sample = open_sample("j_dedup")
    files = system_table(sample.stored, "files").to_pylist()
    assert {file["level"] for file in files} == {0, 3}  # it is compacted from three runs on
    scan = read_optimized(sample.scan())
    assert {e.file.level for e in scan.live.entries} == {3}
    assert scan.explain().sections_merged == 0
    assert system_table(sample.stored, "ro").num_rows == sum(
        file["record_count"] for file in files if file["level"] == 3
    )


@pytest.mark.one_in(14)
@pytest.mark.parametrize("sample", sorted({p.stem for p in SAMPLES.rglob("expected/*.json")}))
def test_system_tables_tell_of_the_tables_of_other_writers(sample: str) -> None:
    table = open_sample(sample)
    found = {name: system_table(table.stored, name) for name in SYSTEM_TABLES}
    count = sum(found["files"]["record_count"].to_pylist())
    assert count == found["snapshots"]["total_record_count"][-1].as_py()
    for name in ("buckets", "partitions"):
        assert sum(found[name]["record_count"].to_pylist()) == count
    assert found["audit_log"].num_rows >= table.scan().count()
