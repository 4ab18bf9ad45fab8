"""ORC and Avro data files, Keytide's and the judges', beside Parquet in one table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from interop_judges import (
    Condition,
    Judge,
    assert_reads_alike,
    assert_same,
    canonical,
    write_with,
)
from interop_values import VALUES, arrow_rows, field

import keytide as kt
from keytide.definition.schema_evolution import SetOption

COLUMNS = {
    "k": "INT NOT NULL",
    "a": "BOOLEAN",
    "b": "TINYINT",
    "c": "BIGINT",
    "d": "DOUBLE",
    "e": "DECIMAL(18, 4)",
    "f": "STRING",
    "g": "BYTES",
    "h": "DATE",
    "i": "TIMESTAMP(3)",
    "j": "TIMESTAMP(6)",
    "l": "ARRAY<INT>",
    "m": "ROW<a INT, b STRING>",
}

# Columns whose types a judge's writer, or its SQL, does not have.
LACKING = {
    ("pypaimon-rust", "avro"): ("m",),
    ("pypaimon-rust", "orc"): ("e", "h", "i", "j", "l", "m"),
}


def values_of(sql_type: str) -> list[object]:
    values = VALUES[sql_type]
    if sql_type.startswith("TIMESTAMP"):
        return [1_700_000_000_123 * 10 ** (int(sql_type[10]) - 3), -(10**9), 0, None]
    return [[], [1, -1], None] if sql_type == "ARRAY<INT>" else values  # Avro's have no NULL


def rows_of(table: kt.Table, count: int, start: int = 0) -> pa.Table:
    ids = range(start, start + count)
    values = {name: values_of(COLUMNS[name]) for name in table.schema.names if name != "k"}
    columns = {name: [some[i % len(some)] for i in ids] for name, some in values.items()}
    return arrow_rows(table.schema, {"k": list(ids), **columns})


@pytest.mark.parametrize("file_format", ["orc", "avro"])
def test_interop_files_of_judge_read_as_written(
    judge: Judge, lake: kt.Lake, file_format: str
) -> None:
    lacking = LACKING.get((judge.name, file_format), ())
    columns = {name: kind for name, kind in COLUMNS.items() if name not in lacking}
    options = {"bucket": "1", "file.format": file_format}
    if judge.name == "pypaimon-rust":
        options["file.compression"] = "none"  # it writes no other ORC
    judge.create("db.t", columns, ["k"], [], options)
    table = lake.table("db.t")
    write_with(judge, table, rows_of(table, 12))
    write_with(judge, table, rows_of(table, 12, start=6))
    names = [entry.file.file_name for entry in table.stored.newest_files().entries]
    assert {name.rsplit(".")[-1] for name in names} == {file_format}
    found = canonical(table.scan().to_arrow(), table.schema)
    assert_same(canonical(rows_of(table, 18), table.schema), found, "Keytide")
    assert_reads_alike(judge, table)
    assert_reads_alike(judge, table, columns=["f", "k"])


@pytest.mark.parametrize("file_format", ["orc", "avro"])
def test_interop_files_of_keytide_read_alike_beside_parquet(
    judge: Judge, lake: kt.Lake, file_format: str
) -> None:
    columns = [field(name, sql_type) for name, sql_type in COLUMNS.items()]
    table = lake.create_table("db.t", columns, ["k"], options={"file.format": file_format})
    table.write(rows_of(table, 12))
    table.write(rows_of(table, 12, start=6))
    assert_reads_alike(judge, table)
    table.alter(SetOption("file.format", "parquet"))
    table.write(rows_of(table, 3, start=10))
    assert_reads_alike(judge, table)
    write_with(judge, table, rows_of(table, 3, start=11))
    assert_reads_alike(judge, table)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("threshold", ["500 b", "0 b"])
def test_interop_filters_hide_no_rows(judge: Judge, lake: kt.Lake, threshold: str) -> None:
    options = {
        "bucket": "1",
        "file-index.bloom-filter.columns": "k,f,c",
        "file-index.in-manifest-threshold": threshold,
    }
    judge.create("db.t", {name: COLUMNS[name] for name in "kfc"}, ["k"], [], options)
    table = lake.table("db.t")
    for start in (0, 3, 40):
        table.write(rows_of(table, 12, start))
        write_with(judge, table, rows_of(table, 12, start + 6))
    for k in (0, 8, 45, 52, 60):
        for row in assert_reads_alike(judge, table, where=[Condition("k", "=", (k,))]):
            assert row
    for text in {value for value in values_of("STRING") if str(value).isalnum()} - {None}:
        assert_reads_alike(judge, table, where=[Condition("f", "=", (text,))])


@pytest.mark.one_in(14)
@pytest.mark.parametrize("threshold", ["500 b", "0 b"])
def test_interop_filters_that_came_later_hide_no_rows(
    judge: Judge, lake: kt.Lake, threshold: str
) -> None:
    options = {"bucket": "1", "file-index.in-manifest-threshold": threshold}
    judge.create("db.t", {name: COLUMNS[name] for name in "kfc"}, ["k"], [], options)
    table = lake.table("db.t")
    table.write(rows_of(table, 12))
    write_with(judge, table, rows_of(table, 12, start=6))
    for columns in ("k", "k,f,c"):
        table.alter(SetOption("file-index.bloom-filter.columns", columns))
        table.rewrite_file_index()
        assert len(assert_reads_alike(judge, table)) == 18
        for k in (0, 8, 15):
            assert assert_reads_alike(judge, table, where=[Condition("k", "=", (k,))])
    write_with(judge, table, rows_of(table, 12, start=12))
    assert len(assert_reads_alike(judge, table)) == 24
    table.compact(full=True)
    assert len(assert_reads_alike(judge, table)) == 24
    assert table.verify().is_healthy


def test_interop_files_outside_of_the_table_are_read(
    judge: Judge, lake: kt.Lake, tmp_path: Path
) -> None:
    options = {
        "bucket": "1",
        "data-file.external-paths": f"file://{tmp_path}/elsewhere",
        "data-file.external-paths.strategy": "round-robin",
    }
    judge.create("db.t", {name: COLUMNS[name] for name in "kfc"}, ["k"], [], options)
    table = lake.table("db.t")
    write_with(judge, table, rows_of(table, 12))
    (entry,) = table.stored.newest_files().entries
    assert f"{tmp_path}/elsewhere" in (entry.file.external_path or "")
    table.write(rows_of(table, 12, start=6))
    assert len(assert_reads_alike(judge, table)) == 18
    assert table.get(1) == rows_of(table, 1, start=1).to_pylist()[0]
    assert table.verify().is_healthy
    table.compact(full=True)
    assert len(assert_reads_alike(judge, table)) == 18
    (external,) = (tmp_path / "elsewhere").rglob("data-*")
    external.unlink()
    (found,) = {each.path for each in table.verify().findings}
    assert external.name in found


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_interop_thin_files_read_alike(judge: Judge, lake: kt.Lake, file_format: str) -> None:
    """Files without the columns `_KEY_*`, Keytide's and the judges' in turn, compacted too."""
    options = {"bucket": "1", "data-file.thin-mode": "true", "file.format": file_format}
    if judge.name == "pypaimon-rust":
        options["file.compression"] = "none"  # it writes no other ORC
    judge.create("db.t", {name: COLUMNS[name] for name in "kfc"}, ["k"], [], options)
    table = lake.table("db.t")
    table.write(rows_of(table, 12))
    write_with(judge, table, rows_of(table, 12, start=6))
    table.write(rows_of(table, 3, start=10))
    assert len(assert_reads_alike(judge, table)) == 18
    assert table.verify().is_healthy
    table.compact(full=True)
    assert len(assert_reads_alike(judge, table)) == 18
    assert len(assert_reads_alike(judge, table, where=[Condition("k", "=", (3,))])) == 1


def test_interop_formats_of_levels_are_those_of_the_judge(judge: Judge, lake: kt.Lake) -> None:
    names = ("k", "c", "f")
    options = {"bucket": "1", "file.format.per.level": "0:avro,5:orc"}
    judge.create("db.t", {name: COLUMNS[name] for name in names}, ["k"], [], options)
    table = lake.table("db.t")
    table.write(rows_of(table, 12))
    table.compact(full=True)
    table.write(rows_of(table, 12, start=6))
    names_of = [entry.file.file_name for entry in table.stored.newest_files().entries]
    assert sorted(name.rsplit(".")[-1] for name in names_of) == ["avro", "orc"]
    assert_reads_alike(judge, table)
