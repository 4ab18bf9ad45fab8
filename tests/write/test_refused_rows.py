"""Rows that could not be merged later are refused when they are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from keytide.commit.change import Author, Change
from keytide.options import TableOptions
from keytide.write.bucket_writer import SequenceBase
from keytide.write.input_rows import to_arrow_table
from keytide.write.layout import FixedLayout
from keytide.write.refusals import writable_view
from keytide.write.task import WriteTask
from new_tables import fields_of
from publishing import publish

Row = dict[str, Any]
MAX = {"merge-engine": "aggregation", "fields.v.aggregate-function": "max"}
BITMAP = {"merge-engine": "aggregation", "fields.v.aggregate-function": "rbm32"}
SKETCH = {"merge-engine": "aggregation", "fields.v.aggregate-function": "theta_sketch"}
REMOVING = {"merge-engine": "aggregation", "aggregation.remove-record-on-delete": "true"}
DELETE: Row = {"k": 2, "v": None, "_row_kind": "-D"}


def new_table(warehouse: str, kind: str, options: dict[str, str]) -> kt.Table:
    fields = fields_of({"k": "INT", "v": kind})
    return kt.connect(warehouse).create_table("t", fields, ["k"], options=options)


def files_below(table: kt.Table) -> list[str]:
    return sorted(str(path) for path in Path(table.uri).rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("kind", "options", "row", "reason"),
    [
        ("INT", {"merge-engine": "first-row"}, DELETE, "ignore-delete"),
        ("INT", {"merge-engine": "partial-update"}, DELETE, "ignore-delete"),
        ("INT", MAX, DELETE, r"'max' cannot retract values.*fields\.v\.ignore-retract"),
        ("INT NOT NULL", {"merge-engine": "aggregation"}, DELETE, "make the column nullable"),
        ("BYTES", BITMAP, {"k": 2, "v": b"garbage"}, "no serialized roaring bitmap"),
        ("BYTES", SKETCH, {"k": 2, "v": b"garbage"}, "no serialized sketch"),
    ],
)
def test_row_that_cannot_be_merged_is_refused_before_anything_is_written(
    warehouse: str, kind: str, options: dict[str, str], row: Row, reason: str
) -> None:
    table = new_table(warehouse, kind, options)
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
    table = new_table(warehouse, "INT", ignoring)
    table.write([{"k": 1, "v": 1, "_row_kind": "+I"}, {"k": 1, "v": 1, "_row_kind": "-U"}])
    assert table.scan().to_pylist() == [{"k": 1, "v": 1}]


def test_insert_of_sql_is_refused_too(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    new_table(warehouse, "BYTES", BITMAP)
    with pytest.raises(kt.InvalidError, match=r"k = 1: column 'v'.* no serialized roaring bitmap"):
        lake.sql("INSERT INTO t VALUES (1, X'00')")


# -- rows of writers that refuse less --------------------------------------------------------------


def write_unchecked(table: kt.Table, rows: list[Row]) -> None:
    """Write as an engine does that takes every row: one file for each row, none merged."""
    for row in rows:
        view, live = writable_view(table.stored), table.stored.newest_files()
        deduplicating = {"merge-engine": "deduplicate"}
        options = TableOptions.parse({**without_functions(view.options.raw), **deduplicating})
        loose = replace(view, options=options)
        names = {"_row_kind": "+I", **row}
        arrow = to_arrow_table([names], view.schema, table.name)
        layout = FixedLayout(loose.options, live.partition_buckets)
        task = WriteTask(loose, layout, SequenceBase.after(live))
        publish(table, view, Change(task.feed([arrow], 0), Author.fresh()), live)


def without_functions(raw: Any) -> dict[str, str]:
    return {key: value for key, value in raw.items() if not key.startswith("fields.")}


GROUP = {
    "merge-engine": "partial-update",
    "fields.g.sequence-group": "v",
    "partial-update.remove-record-on-sequence-group": "g",
}
BITMAPS = {"fields.v.aggregate-function": "rbm32"}
GARBAGE: Row = {"k": 2, "v": b"garbage", "g": 1}
RETRACT: Row = {"k": 2, "v": None, "g": 1, "_row_kind": "-U"}


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("options", "bad", "delete_helps"),
    [
        ({"merge-engine": "first-row"}, RETRACT, False),
        ({"merge-engine": "partial-update"}, RETRACT, False),
        ({"merge-engine": "aggregation", **BITMAPS}, GARBAGE, False),
        ({"merge-engine": "aggregation", **BITMAPS}, RETRACT, False),
        ({**REMOVING, **BITMAPS}, GARBAGE, True),
        ({**REMOVING, **BITMAPS}, RETRACT, True),
        ({**GROUP, **BITMAPS}, GARBAGE, True),
        ({**GROUP, **BITMAPS}, RETRACT, True),
    ],
)
def test_rows_that_cannot_be_merged_are_named_with_what_works(
    warehouse: str, options: dict[str, str], bad: Row, delete_helps: bool
) -> None:
    columns = {"k": "INT", "v": "BYTES", "g": "INT", "w": "INT"}
    fields = fields_of(columns)
    table = kt.connect(warehouse).create_table("t", fields, ["k"], options=options)
    sound = {"v": None, "g": 1, "w": 1}
    write_unchecked(table, [{"k": key, **sound} for key in (1, 2, 3)])
    write_unchecked(table, [{"k": 1, **sound}, {"w": 1, **bad}])

    with pytest.raises(kt.InvalidError, match=r"default\.t: .* k = 2 .*What works: ") as caught:
        table.scan().to_arrow()
    message = str(caught.value)

    assert ("kind -D" in message) == delete_helps
    assert table.scan(where="k <> 2").count() == 2
    if "without the column" in message:
        assert "'v'" in message
        assert sorted(row["k"] for row in table.scan(["k"]).to_pylist()) == [1, 2, 3]
    delete = {"k": 2, "v": None, "g": 2, "w": None, "_row_kind": "-D"}
    if delete_helps:
        table.write([delete])
        assert sorted(row["k"] for row in table.scan().to_pylist()) == [1, 3]
    else:
        with pytest.raises(kt.InvalidError, match="cannot be merged"):
            table.write([delete])


def test_kinds_in_two_columns_are_refused(warehouse: str) -> None:
    table = new_table(warehouse, "STRING", {"rowkind.field": "v"})
    table.write([{"k": 1, "v": "+I"}])
    for write in (table.write, table.overwrite):
        with pytest.raises(kt.InvalidError, match=r"'rowkind\.field' reads them from column 'v'"):
            write([{"k": 1, "v": "+I", "_row_kind": "-D"}])
    assert table.get(1) == {"k": 1, "v": "+I"}


@pytest.mark.parametrize("buckets", ["1", "3"])
def test_key_whose_versions_in_one_write_cannot_be_merged_is_named_alone(
    warehouse: str, buckets: str
) -> None:
    options = {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}
    table = new_table(warehouse, "TINYINT", {**options, "bucket": buckets})
    rows = [{"k": k, "v": 100} for k in (*range(10), 7)]
    with pytest.raises(kt.InvalidError, match="the versions with k = 7 cannot be merged"):
        table.write(rows)
