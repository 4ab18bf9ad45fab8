"""What statistics say of the columns of several files."""

from __future__ import annotations

import keytide as kt
from keytide.base.row_kind import RowKind
from keytide.read.sections import columns_without_nulls
from new_tables import fields_of


def without_nulls(table: kt.Table) -> set[str]:
    scan = table.scan()
    files = [file.entry for bucket in scan.plan.buckets for file in bucket.files]
    return set(columns_without_nulls(files, scan.view.schema.fields, scan.view.schemas))


def new_table(warehouse: str, *rows: dict[str, object], **options: str) -> kt.Table:
    columns = {"k": "INT", "a": "INT", "s": "STRING", "d": "DOUBLE", "l": "ARRAY<INT>"}
    schema = fields_of(columns)
    lake = kt.connect(warehouse)
    table = lake.create_table("t", schema, ["k"], options={"bucket": "1", **options})
    for row in rows:
        table.write([row])
    return table


FULL = {"k": 1, "a": 1, "s": "x", "d": 0.5, "l": [1]}


def test_no_files_say_nothing(warehouse: str) -> None:
    assert without_nulls(new_table(warehouse)) == set()


def test_every_file_has_to_be_free_of_nulls(warehouse: str) -> None:
    table = new_table(warehouse, FULL, {**FULL, "k": 2, "s": None})
    assert without_nulls(table) == {"k", "a", "d"}  # nested columns have no statistics


def test_bounds_that_are_not_known_leave_it_open(warehouse: str) -> None:
    table = new_table(warehouse, FULL, {**FULL, "d": float("nan")})
    assert without_nulls(table) == {"k", "a", "s"}


def test_mode_that_keeps_no_statistics_leaves_it_open(warehouse: str) -> None:
    table = new_table(warehouse, FULL, **{"metadata.stats-mode": "none"})
    assert without_nulls(table) == set()


def test_column_added_later_is_null_in_older_files(warehouse: str) -> None:
    table = new_table(warehouse, FULL)
    kt.connect(warehouse).sql("ALTER TABLE t ADD COLUMN n INT")
    table = kt.connect(warehouse).table("t")
    table.write([{**FULL, "n": 1}])
    assert without_nulls(table) == {"k", "a", "s", "d"}


def test_deletion_without_values_counts_its_nulls(warehouse: str) -> None:
    table = new_table(warehouse, FULL, {"k": 1, "_row_kind": RowKind.DELETE.short})
    assert without_nulls(table) == {"k"}
