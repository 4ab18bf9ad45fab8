"""Delta and Iceberg tables, databases and tables of this format by SQL, as external tables."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import iceberg_tables
import keytide as kt
from table_rows import answer

SCHEMA = pa.schema([("k", pa.int32()), ("w", pa.int32()), ("d", pa.bool_()), ("v", pa.string())])
KEYS: dict[str, Any] = {"primary_key": ["k"], "watermark_key": ["w"], "tombstone_key": "d"}
WITH = "'watermark.key' = 'w', 'tombstone.key' = 'd'"


def new_rows(*given: tuple[Any, ...]) -> pa.Table:
    named = [dict(zip(SCHEMA.names, row, strict=True)) for row in given]
    return pa.Table.from_pylist(named, schema=SCHEMA)


FIRST = new_rows((1, 5, None, "a"), (2, 6, None, "b"))
SECOND = new_rows((1, 5, None, "z"), (2, 9, True, None), (3, 1, None, "c"))


@pytest.fixture
def lake(tmp_path: Path) -> kt.Lake:
    return kt.connect(tmp_path / "lake", allow_external_files=True)


@pytest.fixture
def versions(lake: kt.Lake, tmp_path: Path) -> dict[str, list[str]]:
    """A Delta table `theirs_delta`, and an Iceberg table `theirs_iceberg`, of the same commits."""
    iceberg = iceberg_tables.create(tmp_path / "i", SCHEMA)
    for commit in (FIRST, SECOND):
        deltalake.write_deltalake(tmp_path / "d", commit, mode="append")
        iceberg.append(commit)
    lake.create_external_table("theirs_delta", format="delta", location=tmp_path / "d", **KEYS)
    lake.sql(
        f"CREATE EXTERNAL TABLE theirs_iceberg (PRIMARY KEY (k) NOT ENFORCED) USING iceberg "
        f"LOCATION 'n.t' WITH ({WITH}, "
        f"'external.option.catalog.uri' = 'sqlite:///{tmp_path}/i/c.db')"
    )
    ids = [str(snapshot.snapshot_id) for snapshot in iceberg.snapshots()]
    return {"delta": ["0", "1"], "iceberg": ids}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_versions_are_selected_travelled_and_compared(
    lake: kt.Lake, versions: dict[str, list[str]], kind: str
) -> None:
    first, second = versions[kind]
    name = f"theirs_{kind}"
    assert answer(lake, f"SELECT k, v FROM {name} ORDER BY k") == [(1, "z"), (3, "c")]
    travelled = answer(lake, f"SELECT k, v FROM {name} VERSION AS OF {first} ORDER BY k")
    assert travelled == [(1, "a"), (2, "b")]
    changes = lake.table(name).changes(first, second).to_arrow().to_pylist()
    assert [(row["_row_kind"], row["k"]) for row in changes] == [
        ("-D", 2), ("-U", 1), ("+U", 1), ("+I", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "place"),
    [("delta", r"part-\S+\.parquet"), ("iceberg", r"(file://)?/\S+/n/t/data/\S+\.parquet")],
)
def test_why_names_the_file_of_each_version(
    lake: kt.Lake, versions: dict[str, list[str]], kind: str, place: str
) -> None:
    why = lake.table(f"theirs_{kind}").why(1)
    files = why.versions["file"].to_pylist()
    assert len({*files}) == 2
    assert all(re.fullmatch(place, file) for file in files), files


def test_tables_of_two_formats_are_joined(lake: kt.Lake, versions: dict[str, list[str]]) -> None:
    joined = "SELECT k, i.v FROM theirs_delta JOIN theirs_iceberg i USING (k) ORDER BY k"
    assert answer(lake, joined) == [(1, "z"), (3, "c")]


def test_rows_of_a_database_and_of_a_table_of_this_format_are_merged(
    lake: kt.Lake, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("CREATE TABLE t (k INTEGER, w INTEGER, d BOOLEAN, v TEXT)")
        connection.execute(
            "INSERT INTO t VALUES (1, 5, NULL, 'a'), (1, 6, NULL, 'z'), (2, 1, 1, '')"
        )
    lake.create_table("kept", SCHEMA, primary_key=[]).write(FIRST)
    lake.table("kept").write(SECOND)
    options = {"external.option.table": "t"}
    lake.create_external_table(
        "q", format="sqlite", location=tmp_path / "x.db", options=options, **KEYS
    )
    place = tmp_path / "lake/default.db/kept"
    lake.create_external_table("own", format="keytide", location=place, **KEYS)
    assert answer(lake, "SELECT k, v FROM q") == [(1, "z")]
    assert answer(lake, "SELECT k, v FROM own ORDER BY k") == [(1, "z"), (3, "c")]
