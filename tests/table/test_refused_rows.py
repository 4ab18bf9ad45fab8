"""Rows that could not be merged later are refused when they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import keytide as kt

Row = dict[str, Any]
MAX = {"merge-engine": "aggregation", "fields.v.aggregate-function": "max"}
BITMAP = {"merge-engine": "aggregation", "fields.v.aggregate-function": "rbm32"}
SKETCH = {"merge-engine": "aggregation", "fields.v.aggregate-function": "theta_sketch"}
DELETE: Row = {"k": 2, "v": None, "_row_kind": "-D"}


def table_of(warehouse: str, kind: str, options: dict[str, str]) -> kt.Table:
    fields = [kt.Field(-1, n, kt.parse_sql_type(t)) for n, t in {"k": "INT", "v": kind}.items()]
    return kt.connect(warehouse).create_table("t", fields, ["k"], options=options)


def files_below(table: kt.Table) -> list[str]:
    return sorted(str(path) for path in Path(table.uri).rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("kind", "options", "row", "reason"),
    [
        ("INT", {"merge-engine": "first-row"}, DELETE, "ignore-delete"),
        ("INT", {"merge-engine": "partial-update"}, DELETE, "ignore-delete"),
        ("INT", MAX, DELETE, r"'max' does not support retraction.*fields\.v\.ignore-retract"),
        ("INT NOT NULL", {"merge-engine": "aggregation"}, DELETE, "make the column nullable"),
        ("BYTES", BITMAP, {"k": 2, "v": b"garbage"}, "no serialized roaring bitmap"),
        ("BYTES", SKETCH, {"k": 2, "v": b"garbage"}, "no serialized sketch"),
    ],
)
def test_row_that_cannot_be_merged_is_refused_before_anything_is_written(
    warehouse: str, kind: str, options: dict[str, str], row: Row, reason: str
) -> None:
    table = table_of(warehouse, kind, options)
    before = files_below(table)
    sound = {"k": 1, "v": None if kind != "INT NOT NULL" else 1, "_row_kind": "+I"}
    for write in (table.write, table.overwrite):
        with pytest.raises(kt.InvalidError, match=rf"default\.t: 1 of 2 rows.* k = 2: .*{reason}"):
            write([sound, {"_row_kind": "+I", **row}])
    assert files_below(table) == before
    table.write([sound])
    assert table.scan().count() == 1


def test_ignored_retracts_are_no_reason_to_refuse(warehouse: str) -> None:
    ignoring = {"merge-engine": "first-row", "ignore-update-before": "true"}
    table = table_of(warehouse, "INT", ignoring)
    table.write([{"k": 1, "v": 1, "_row_kind": "+I"}, {"k": 1, "v": 1, "_row_kind": "-U"}])
    assert table.scan().to_pylist() == [{"k": 1, "v": 1}]


def test_insert_of_sql_is_refused_too(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    table_of(warehouse, "BYTES", BITMAP)
    with pytest.raises(kt.InvalidError, match=r"k = 1: column 'v'.* no serialized roaring bitmap"):
        lake.sql("INSERT INTO t VALUES (1, X'00')")
