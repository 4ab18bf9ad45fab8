"""Every case of upserts by watermark and tombstone keys, over managed tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import keytide as kt
from json_values import arrow_table, rows_as_text

CASES = json.loads((Path(__file__).parents[1] / "data/cases/trinity.json").read_text())

# Tables that another system keeps: this release keeps its own only.
NOT_IN_THIS_RELEASE = {
    "EXTERNAL": "tables over files of another writer cannot be defined",
    "FEDERATED": "tables of another database cannot be defined",
}
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


def runnable_cases() -> list[Any]:
    managed = [case for case in CASES if case["table"]["table_type"] not in NOT_IN_THIS_RELEASE]
    return [pytest.param(case, id=case["id"]) for case in managed]


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", runnable_cases())
def test_managed_case(case: Case, warehouse: str) -> None:
    lake = kt.connect(warehouse)
    if "expect_error" in case:
        with pytest.raises(kt.InvalidError) as caught:
            create(lake, case)
        assert key_words(case["expect_error"]) - key_words(str(caught.value)) == set()
        return
    table = create(lake, case)
    for append in case["appends"]:
        table.write(arrow_table(append["rows"], names(case), types(case)))
    if "statement" in case:
        changed = lake.sql(case["statement"])
        assert changed.row_count == case["expect_count"]
    result = query(table, case.get("query", "SELECT * FROM t"))
    assert rows_as_text(result) == expected_text(result, case)


def test_the_cases_left_out_are_the_ones_that_are_listed() -> None:
    left_out = sorted(
        case["id"] for case in CASES if case["table"]["table_type"] in NOT_IN_THIS_RELEASE
    )
    assert left_out == [
        "external-merge-on-read",
        "federated-merge-on-read",
        "wm-tie-no-commit-order-tombstone-wins",
    ]


def create(lake: kt.Lake, case: Case) -> kt.Table:
    table = case["table"]
    options = {
        "watermark.key": ",".join(table["watermark_key"]),
        "tombstone.key": table["tombstone_key"],
        "tombstone.string-key-value": table["tombstone_string_key_value"],
    }
    return lake.create_table(
        "t",
        [kt.Field(-1, name, kind) for name, kind in zip(names(case), types(case), strict=True)],
        primary_key=table["primary_key"],
        options={key: value for key, value in options.items() if value},
    )


def names(case: Case) -> list[str]:
    return [column["name"] for column in case["table"]["columns"]]


def types(case: Case) -> list[Any]:
    return [
        kt.parse_sql_type(SQL_TYPES.get(column["type"], column["type"])).with_nullable(
            column["nullable"]
        )
        for column in case["table"]["columns"]
    ]


def query(table: kt.Table, text: str) -> pa.Table:
    """Carry out a query; columns, condition and version go to the scan, only counting is left."""
    match = QUERY.fullmatch(text)
    assert match, text
    columns = match["columns"]
    version = match["version"]
    plain = columns != "*" and "(" not in columns
    scan = table.scan(
        columns=[name.strip() for name in columns.split(",")] if plain else None,
        where=match["where"],
        snapshot_id=int(version) if version else None,
    )
    rows = scan.to_arrow()
    if plain or columns == "*":
        return rows
    assert scan.count() == rows.num_rows
    return duckdb.from_arrow(rows).aggregate(columns).to_arrow_table()


def expected_text(result: pa.Table, case: Case) -> list[str]:
    kinds = dict(zip(names(case), types(case), strict=True))
    of_result = [kinds.get(name, kt.parse_sql_type("BIGINT")) for name in result.column_names]
    return rows_as_text(arrow_table(case["expect_rows"], result.column_names, of_result))


def key_words(message: str) -> set[str]:
    """What an error is about: its words without fillers, singular and plural alike."""
    fillers = {"a", "an", "be", "must", "the", "column", "key"}
    words = re.findall(r"[a-z][a-z-]*", message.lower().replace("key.", "key "))
    return {word.removesuffix("s") for word in words} - fillers
