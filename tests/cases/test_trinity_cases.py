"""Every case of upserts by watermark and tombstone keys, over tables of the lake's own, folders of
files of others, Delta and Iceberg tables, SQLite, and a source that tells its commits."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import keytide as kt
from external_history import HISTORIES, History, register
from json_values import arrow_table, rows_as_text
from table_rows import rows_in_order

CASES = json.loads((Path(__file__).parents[1] / "data/cases/trinity.json").read_text())

BY_ARRIVAL = {
    "wm-null-vs-null-later-commit", "wm-tie-same-commit-later-row-wins", "wm-tie-live-then-delete",
    "wm-tie-delete-then-live", "wm-negative-zero-ties",
}  # fmt: skip
"""What was written last is the row there, which a folder of files does not tell (rule R3)."""
SQL_TYPES = {
    "varchar": "STRING",
    "float8": "DOUBLE",
    "timestamptz": "TIMESTAMP(6) WITH LOCAL TIME ZONE",
    "list<int>": "ARRAY<INT>",
    "struct<a:int>": "ROW<a INT>",
}
QUERY = re.compile(
    r"SELECT (?P<columns>.+?) FROM t"
    r"(?: FOR SYSTEM_VERSION AS OF (?P<version>\d+))?(?: WHERE (?P<where>.+))?"
)

Case = dict[str, Any]


def managed_cases() -> list[Any]:
    return [pytest.param(c, id=c["id"]) for c in CASES if c["table"]["table_type"] == "MANAGED"]


def is_read_only(case: Case) -> bool:
    return "statement" not in case


def has_versions(case: Case) -> bool:
    return "SYSTEM_VERSION" in case.get("query", "")


def folder_cases() -> list[Any]:
    """Cases that a folder of files can hold, in each of the formats."""
    held = [c for c in CASES if is_read_only(c) and not has_versions(c)]
    return [
        pytest.param(case, format_, id=f"{case['id']}-{format_}")
        for case in held
        for format_ in ("parquet", "csv", "json")
        if case["id"] not in BY_ARRIVAL
    ]


def commit_cases() -> list[Any]:
    """Cases that a source with commits can hold."""
    held = [c for c in CASES if is_read_only(c) and c["table"].get("commit_order", True)]
    return [pytest.param(case, id=case["id"]) for case in held]


@pytest.mark.one_in(14)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", managed_cases())
def test_managed_case(case: Case, lake: kt.Lake) -> None:
    if "expect_error" in case:
        with pytest.raises(kt.InvalidError) as caught:
            create(lake, case)
        assert key_words(case["expect_error"]) - key_words(str(caught.value)) == set()
        return
    table = create(lake, case)
    for append in case.get("appends", []):
        table.write(arrow_table(append["rows"], names(case), types(case)))
    if "statement" in case:
        changed = lake.sql(case["statement"])
        assert changed.row_count == case["expect_count"]
    result = query(table, case.get("query", "SELECT * FROM t"))
    assert rows_as_text(result) == expected_text(result, case)


@pytest.mark.one_in(14)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("case", "format_"), folder_cases())
def test_case_over_a_folder_of_files(case: Case, format_: str, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    for append in case.get("appends", []):
        rows = arrow_table(append["rows"], names(case), types(case))
        # Later commits have names that come before.
        write_file(rows, folder / f"{9 - append['commit']}.{format_}")
    check_external(case, kt.connect(tmp_path / "lake"), format_, str(folder))


@pytest.mark.one_in(14)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", commit_cases())
def test_case_over_commits_of_others(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    fields = zip(names(case), types(case), strict=True)
    schema = pa.schema([(name, type_.to_arrow()) for name, type_ in fields])
    HISTORIES["case"] = History(schema)
    for append in case.get("appends", []):
        rows = arrow_table(append["rows"], names(case), types(case))
        HISTORIES["case"].commits.append(rows)
    check_external(case, kt.connect(tmp_path / "lake"), "history", "test://case")


@pytest.mark.one_in(14)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("format_", ["delta", "iceberg", "sqlite"])
@pytest.mark.parametrize("case", commit_cases())
def test_case_over_tables_of_other_engines(case: Case, format_: str, tmp_path: Path) -> None:
    if format_ == "sqlite" and not sqlite_holds(case):
        return
    location, options = MADE[format_](case, tmp_path)
    check_external(case, kt.connect(tmp_path / "lake"), format_, location, options)


def federated_cases() -> list[Any]:
    """Cases that change rows, where the tables tell which came later, and that of the type."""
    wanted = [c for c in CASES if c["table"]["table_type"] == "FEDERATED" or not is_read_only(c)]
    return [
        pytest.param(case, format_, id=f"{case['id']}-{format_}")
        for case in wanted
        for format_ in MADE
        if is_read_only(case) or format_ != "sqlite"
    ]


def check_federated(case: Case, format_: str, folder: Path) -> None:
    _, options = MADE[format_](case, folder)
    location, name = {
        "delta": (folder, "theirs"),
        "iceberg": ("n", "t"),
        "sqlite": (folder / "theirs.db", "theirs"),
    }[format_]
    table = case["table"]
    keys = kt.UpsertKeys(
        table["primary_key"],
        table["watermark_key"],
        table["tombstone_key"],
        table["tombstone_string_key_value"],
    )
    opening = {key.removeprefix("external.option."): value for key, value in options.items()}
    opening.pop("table", None)
    lake = kt.connect(folder / "lake")
    lake.attach("far", location, format=format_, options=opening, tables={name: keys})
    if "statement" in case:
        changed = lake.sql(re.sub(r"\bt\b", f"far.{name}", case["statement"]))
        assert changed.row_count == case["expect_count"]
    result = lake.sql(f"SELECT * FROM far.{name}").to_arrow()
    assert rows_as_text(result) == expected_text(result, case)


def delta(case: Case, folder: Path) -> tuple[str, Mapping[str, str]]:
    deltalake = pytest.importorskip("deltalake")
    deltalake.DeltaTable.create(folder / "theirs", arrow_schema(case))  # version 0
    for rows in appended(case):
        deltalake.write_deltalake(folder / "theirs", rows, mode="append")
    return str(folder / "theirs"), {}


def iceberg(case: Case, folder: Path) -> tuple[str, Mapping[str, str]]:
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    uri = f"sqlite:///{folder}/c.db"
    catalog = sql.SqlCatalog("default", uri=uri, warehouse=f"file://{folder}/w")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", arrow_schema(case))
    for number, rows in enumerate(appended(case), 1):
        table.append(rows)
        snapshot = table.current_snapshot()
        table.manage_snapshots().create_tag(snapshot.snapshot_id, f"v{number}").commit()
    return "n.t", {"external.option.catalog.uri": uri}


def sqlite(case: Case, folder: Path) -> tuple[str, Mapping[str, str]]:
    described = ", ".join(f"{c['name']} {c['type']}" for c in case["table"]["columns"])
    with sqlite3.connect(folder / "theirs.db") as connection:
        connection.execute(f"CREATE TABLE theirs ({described})")
        for rows in appended(case):
            places = ", ".join("?" * rows.num_columns)
            given = rows_in_order(rows)
            connection.executemany(f"INSERT INTO theirs VALUES ({places})", given)
    return str(folder / "theirs.db"), {"external.option.table": "theirs"}


MADE: dict[str, Callable[[Case, Path], tuple[str, Mapping[str, str]]]] = {
    "delta": delta,
    "iceberg": iceberg,
    "sqlite": sqlite,
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("case", "format_"), federated_cases())
def test_federated_case(case: Case, format_: str, tmp_path: Path) -> None:
    check_federated(case, format_, tmp_path)


def sqlite_holds(case: Case) -> bool:
    held = {"int", "bigint", "varchar", "boolean"}  # there is no NaN
    kinds = {column["type"] for column in case["table"]["columns"]}
    return kinds <= held and case["id"] not in BY_ARRIVAL and not has_versions(case)


def arrow_schema(case: Case) -> pa.Schema:
    fields = zip(names(case), types(case), strict=True)
    return pa.schema([(name, type_.to_arrow()) for name, type_ in fields])


def appended(case: Case) -> list[pa.Table]:
    rows = [
        arrow_table(append["rows"], names(case), types(case)) for append in case.get("appends", [])
    ]
    return [table.cast(arrow_schema(case)) for table in rows]


def check_external(
    case: Case,
    lake: kt.Lake,
    format_: str,
    location: str,
    options: Mapping[str, str] | None = None,
) -> None:
    table = case["table"]

    def define() -> kt.ExternalTable:
        return lake.create_external_table(
            "t",
            format=format_,
            location=location,
            primary_key=table["primary_key"],
            watermark_key=table["watermark_key"],
            tombstone_key=table["tombstone_key"],
            tombstone_string_key_value=table["tombstone_string_key_value"],
            schema=columns(case),
            options=options,
        )

    if "expect_error" in case:
        with pytest.raises(kt.InvalidError) as caught:
            define()
        assert key_words(case["expect_error"]) - key_words(str(caught.value)) == set()
        return
    result = query(define(), case.get("query", "SELECT * FROM t"))
    assert rows_as_text(result) == expected_text(result, case)


def write_file(rows: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(rows, path)
    elif path.suffix == ".csv":
        csv.write_csv(rows, path)
    else:
        lines = (json.dumps(row, default=str) for row in rows.to_pylist())
        path.write_text("\n".join(lines))


def create(lake: kt.Lake, case: Case) -> kt.Table:
    table = case["table"]
    options = {
        "watermark.key": ",".join(table["watermark_key"]),
        "tombstone.key": table["tombstone_key"],
        "tombstone.string-key-value": table["tombstone_string_key_value"],
    }
    return lake.create_table(
        "t",
        columns(case),
        primary_key=table["primary_key"],
        options={key: value for key, value in options.items() if value},
    )


def columns(case: Case) -> list[kt.Field]:
    return [kt.Field(-1, name, kind) for name, kind in zip(names(case), types(case), strict=True)]


def names(case: Case) -> list[str]:
    return [column["name"] for column in case["table"]["columns"]]


def types(case: Case) -> list[Any]:
    return [
        kt.parse_sql_type(SQL_TYPES.get(column["type"], column["type"])).with_nullable(
            column["nullable"]
        )
        for column in case["table"]["columns"]
    ]


def query(table: kt.Table | kt.ExternalTable, text: str) -> pa.Table:
    """Carry out a query; columns, condition and version go to the scan, only counting is left."""
    match = QUERY.fullmatch(text)
    assert match, text
    columns = match["columns"]
    version = match["version"]
    travel = "version" if isinstance(table, kt.ExternalTable) else "snapshot_id"
    plain = columns != "*" and "(" not in columns
    scan = table.scan(
        columns=[name.strip() for name in columns.split(",")] if plain else None,
        where=match["where"],
        **({travel: named(table, int(version))} if version else {}),
    )
    rows = scan.to_arrow()
    if plain or columns == "*":
        return rows
    assert scan.count() == rows.num_rows
    return duckdb.from_arrow(rows).aggregate(columns).to_arrow_table()


def named(table: kt.Table | kt.ExternalTable, commit: int) -> int | str:
    """What a version is called that a commit made; a tag in Iceberg, whose versions have ids."""
    is_iceberg = isinstance(table, kt.ExternalTable) and table.format == "iceberg"
    return f"v{commit}" if is_iceberg else commit


def expected_text(result: pa.Table, case: Case) -> list[str]:
    kinds = dict(zip(names(case), types(case), strict=True))
    of_result = [kinds.get(name, kt.parse_sql_type("BIGINT")) for name in result.column_names]
    return rows_as_text(arrow_table(case["expect_rows"], result.column_names, of_result))


def key_words(message: str) -> set[str]:
    """What an error is about: its words without fillers, singular and plural alike."""
    fillers = {"a", "an", "be", "must", "the", "column", "key"}
    words = re.findall(r"[a-z][a-z-]*", message.lower().replace("key.", "key "))
    return {word.removesuffix("s") for word in words} - fillers
