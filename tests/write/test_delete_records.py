"""Columns that mark rows as deletes: `upsert.delete-record-column`."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import RenameColumn
from new_tables import empty_table

DELETES, KEEPS = True, False

MARKS: list[tuple[str, Any, bool]] = [
    ("BOOLEAN", True, DELETES),
    ("BOOLEAN", False, KEEPS),
    ("STRING", "true", DELETES),
    ("STRING", "tRUE", DELETES),
    ("STRING", "1", DELETES),
    ("STRING", "false", KEEPS),
    ("STRING", "yes", KEEPS),
    ("STRING", "", KEEPS),
    ("CHAR(6)", "True", DELETES),
    ("INT", 1, DELETES),
    ("INT", 0, KEEPS),
    ("INT", 2, KEEPS),
    ("BIGINT", -1, KEEPS),
    ("TINYINT", 1, DELETES),
    ("DOUBLE", 1.0, DELETES),
    ("DOUBLE", 1.75, DELETES),
    ("FLOAT", 0.5, KEEPS),
    ("DOUBLE", float("nan"), KEEPS),
    ("DECIMAL(10, 2)", Decimal("1.00"), DELETES),
    ("DECIMAL(10, 2)", Decimal("2.00"), KEEPS),
]


def table_with(type_: str, **options: str) -> kt.Table:
    fields = [
        kt.Field(-1, name, kt.parse_sql_type(text))
        for name, text in (("k", "INT"), ("ts", "INT"), ("gone", type_))
    ]
    indexed = {"upsert.mode": "full", "sequence.field": "ts", "upsert.delete-record-column": "gone"}
    return empty_table(fields, ["k"], options={**indexed, **options})


def keys_of(table: kt.Table) -> list[int]:
    return sorted(row["k"] for row in table.scan().to_pylist())


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("type_", "value", "deletes"), MARKS)
def test_what_marks_a_delete(type_: str, value: Any, deletes: bool) -> None:
    table = table_with(type_)
    table.write([{"k": k, "ts": 5, "gone": None} for k in (1, 2)])
    table.write([{"k": 1, "ts": 5, "gone": value}])
    assert keys_of(table) == ([2] if deletes else [1, 2])
    table.write([{"k": 1, "ts": 4, "gone": None}])
    assert keys_of(table) == ([2] if deletes else [1, 2]), "a late row brings nothing back"
    table.write([{"k": 1, "ts": 5, "gone": None}])
    assert keys_of(table) == [1, 2]


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.none() | st.booleans()), min_size=1
)


@given(commits=st.lists(ROWS, min_size=1, max_size=4))
def test_marked_rows_do_what_rows_of_the_kind_delete_do(commits: list[Any]) -> None:
    marked, plain = table_with("BOOLEAN"), table_with("BOOLEAN")
    for rows in commits:
        marked.write([{"k": k, "ts": ts, "gone": gone} for k, ts, gone in rows])
        kinds = ["-D" if gone else "+I" for _, _, gone in rows]
        plain.write(
            [
                {"k": k, "ts": ts, "gone": None if gone else gone, "_row_kind": kind}
                for (k, ts, gone), kind in zip(rows, kinds, strict=True)
            ]
        )
    assert marked.scan().to_arrow().sort_by("k") == plain.scan().to_arrow().sort_by("k")


def test_update_that_marks_a_row_deletes_it() -> None:
    table = table_with("BOOLEAN")
    table.write([{"k": k, "ts": 5, "gone": None} for k in (1, 2)])
    table.update({"gone": "true"}, "k = 1")
    assert keys_of(table) == [2]


def test_delete_by_key_needs_no_mark() -> None:
    table = table_with("BOOLEAN")
    table.write([{"k": k, "ts": 5, "gone": None} for k in (1, 2)])
    table.write([{"k": 1, "ts": 6, "_row_kind": "-D"}])
    assert keys_of(table) == [2]


def test_column_that_is_renamed_goes_on_marking() -> None:
    table = table_with("BOOLEAN")
    table.alter(RenameColumn(("gone",), "away"))
    assert table.options["upsert.delete-record-column"] == "away"
    table.write([{"k": k, "ts": 5, "away": k == 1} for k in (1, 2)])
    assert keys_of(table) == [2]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"upsert.delete-record-column": "x"}, "'x' does not exist; columns: k, ts, gone"),
        ({"upsert.delete-record-column": "k"}, "'k' is in the primary key"),
        ({"watermark.key": "ts", "tombstone.key": "gone"}, "both mark deletes"),
    ],
)
def test_column_that_cannot_mark_is_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(kt.InvalidError, match=expected):
        table_with("BOOLEAN", **options)


@pytest.mark.parametrize("type_", ["DATE", "BYTES", "ARRAY<INT>"])
def test_column_of_another_type_is_refused(type_: str) -> None:
    with pytest.raises(kt.InvalidError, match="expected a BOOLEAN, string or number"):
        table_with(type_)


@pytest.mark.parametrize("key", [["k"], []])
def test_table_without_an_index_is_refused(key: list[str], warehouse: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("gone", pa.bool_())])
    options = {"upsert.delete-record-column": "gone"}
    with pytest.raises(kt.InvalidError, match=r"requires 'upsert\.mode'; set it"):
        kt.connect(warehouse).create_table("t", schema, key, options=options)
