"""Tables that grow with what is written to them: columns, members, wider types."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from copies import copies_of
from keytide.store import Store
from keytide.store.faults import Crash, Fault, FaultyStore
from keytide.types import parse_sql_type
from keytide.types.logical import common_type
from new_tables import dotted, table_in
from other_readers import FORMS, READERS, published_as
from table_rows import rows, rows_in_order

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int32())])


def new_table(warehouse: str, columns: str = "k BIGINT, v INT", **options: str) -> kt.Table:
    row: Any = parse_sql_type(f"ROW<{columns}>")
    given = dotted(options)
    return kt.connect(warehouse).create_table("t", row.fields, ["k"], options=given)


def columns_of(table: kt.Table) -> str:
    return ", ".join(f"{f.name} {f.type.sql()}" for f in table.table_schema.fields).replace("`", "")


# -- what grows ----------------------------------------------------------------------------------


def test_new_columns_are_added_last_and_are_null_in_rows_of_before(warehouse: str) -> None:
    t = new_table(warehouse)
    t.write([{"k": 1, "v": 1}])
    t.write([{"w": "new", "k": 2, "v": 2, "x": 1.5}], merge_schema=True)
    assert columns_of(t) == "k BIGINT NOT NULL, v INT, w STRING, x DOUBLE"
    assert rows(t) == [(1, 1, None, None), (2, 2, "new", 1.5)]


def test_columns_that_the_rows_lack_are_null_in_them(warehouse: str) -> None:
    t = new_table(warehouse, "k BIGINT, v INT, w STRING")
    t.write([{"k": 1, "v": 1, "w": "a"}])
    t.write([{"k": 1, "v": 2}], merge_schema=True)
    assert rows(t) == [(1, 2, None)]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("old", "values", "new"),
    [
        ("INT", [1 << 40], "BIGINT"),
        ("TINYINT", pa.array([1], pa.int16()), "SMALLINT"),
        ("BIGINT", pa.array([1], pa.int32()), "BIGINT"),
        ("FLOAT", pa.array([1.5], pa.float64()), "DOUBLE"),
        ("INT", [1.5], "DOUBLE"),
        ("INT", [Decimal("1.25")], "DECIMAL(12, 2)"),
        ("DECIMAL(5, 1)", [Decimal("1.125")], "DECIMAL(7, 3)"),
        ("DECIMAL(5, 3)", [Decimal("12345.1")], "DECIMAL(8, 3)"),
        ("TIMESTAMP(3)", [datetime(2026, 1, 1, 0, 0, 0, 1)], "TIMESTAMP(6)"),
        ("VARCHAR(3)", ["abc"], "VARCHAR(3)"),
        ("ROW<a INT>", [{"a": 1 << 40, "b": "x"}], "ROW<a BIGINT, b STRING>"),
        ("ARRAY<ROW<a INT>>", [[{"b": "x", "a": None}]], "ARRAY<ROW<a INT, b STRING>>"),
    ],
)
def test_types_widen_to_what_holds_the_values_of_both(
    warehouse: str, old: str, values: Any, new: str
) -> None:
    t = new_table(warehouse, f"k BIGINT, v {old}")
    before = None if "ROW" in old else t.schema.field("v").type
    t.write([{"k": 1, "v": None}])
    rows = pa.table({"k": [2], "v": values}) if isinstance(values, pa.Array) else [
        {"k": 2, "v": values[0]}
    ]  # fmt: skip
    t.write(rows, merge_schema=True)
    assert columns_of(t) == f"k BIGINT NOT NULL, v {new}"
    given = pa.array(values).to_pylist()[0]
    assert t.get(2) == {"k": 2, "v": given}
    if before is not None:  # who has rows of the old type goes on
        t.write(pa.table({"k": [3], "v": pa.array([None], before)}), merge_schema=True)
        assert t.get(3) == {"k": 3, "v": None}


def test_common_types_are_the_same_from_both_sides() -> None:
    names = [
        "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(4, 2)",
        "DECIMAL(20, 0)", "DECIMAL(38, 10)", "DATE", "TIMESTAMP(3)", "TIMESTAMP(6)", "BOOLEAN",
    ]  # fmt: skip
    types: list[Any] = [parse_sql_type(name) for name in names]
    for one in types:
        assert common_type(one, one) == one
        for other in types:
            assert common_type(one, other) == common_type(other, one)


def test_members_are_added_to_rows_in_lists_and_maps(warehouse: str) -> None:
    t = new_table(warehouse, "k BIGINT, l ARRAY<ROW<a INT>>, m MAP<STRING, ROW<a INT>>")
    t.write([{"k": 1, "l": [{"a": 1}], "m": {"x": {"a": 1}}}])
    member = pa.struct({"b": pa.string(), "a": pa.int64()})
    new = pa.table(
        {
            "k": [2],
            "l": pa.array([[{"b": "y", "a": 2}, None]], pa.list_(member)),
            "m": pa.array([[("x", {"b": "y", "a": 2})]], pa.map_(pa.string(), member)),
        }
    )
    t.write(new, merge_schema=True)
    t.write([{"k": 3, "l": [{"a": 3}], "m": None}], merge_schema=True)
    wide = "ROW<a BIGINT, b STRING>"
    assert columns_of(t) == f"k BIGINT NOT NULL, l ARRAY<{wide}>, m MAP<STRING, {wide}>"
    assert [row["l"] for row in t.scan(["k", "l"]).to_arrow().sort_by("k").to_pylist()] == [
        [{"a": 1, "b": None}], [{"a": 2, "b": "y"}, None], [{"a": 3, "b": None}],
    ]  # fmt: skip


@pytest.mark.parametrize("make", [pa.Table.from_pylist, pl.DataFrame, pd.DataFrame, list])
def test_every_container_makes_the_same_table(warehouse: str, make: Any) -> None:
    t = new_table(warehouse)
    t.write(make([{"k": 1, "v": 1 << 40, "w": "a"}]), merge_schema=True)
    assert columns_of(t) == "k BIGINT NOT NULL, v BIGINT, w STRING"
    assert rows(t) == [(1, 1 << 40, "a")]


def test_a_column_of_nothing_but_null_has_no_type_and_is_left_out(warehouse: str) -> None:
    t = new_table(warehouse)
    t.write([{"k": 1, "v": 1, "w": None}], merge_schema=True)
    assert rows(t) == [(1, 1)]


def test_a_column_of_another_letter_case_is_refused(warehouse: str) -> None:
    with pytest.raises(kt.AlreadyExistsError, match=r"table default\.t: column 'v' already exists"):
        new_table(warehouse).write([{"k": 1, "V": 1}], merge_schema=True)


# -- what does not -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"k": 1, "v": "text", "w": 1}, "column 'v' is INT, found string"),
        ({"k": "text", "v": 1, "w": 1}, "column 'k' is BIGINT NOT NULL, found string"),
        ({"k": 1.5, "v": 1, "w": 1}, "column 'k' is BIGINT NOT NULL, found double"),
        ({"v": 1, "w": 1}, "lack the primary key column 'k'"),
        ({"k": None, "v": 1, "w": 1}, "1 of 1 rows are NULL"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_changed(
    warehouse: str, row: dict[str, Any], says: str
) -> None:
    t = new_table(warehouse)
    before = t.table_schema
    with pytest.raises(kt.InvalidError, match=says):
        t.write([row], merge_schema=True)
    assert t.table_schema == before
    assert not t.snapshots()


def test_without_merge_schema_refusals_name_it(warehouse: str) -> None:
    t = new_table(warehouse, "k BIGINT, v INT, r ROW<a INT>")
    way = "write with merge_schema=True"
    with pytest.raises(kt.NotFoundError, match=way):
        t.write([{"k": 1, "v": 1, "r": None, "w": 1}])
    with pytest.raises(kt.InvalidError, match=f"{way}, which makes the column BIGINT"):
        t.write(pa.table({"k": [1], "v": [1 << 40], "r": pa.nulls(1)}))
    with pytest.raises(kt.InvalidError, match=f"{way}, which adds members"):
        t.write(pa.table({"k": [1], "v": [1], "r": [{"a": 1, "b": 1}]}))


def test_a_key_of_a_narrower_type_is_written_as_it_is(warehouse: str) -> None:
    t = new_table(warehouse, "k INT, v INT")
    t.write(pa.table({"k": [1], "v": pa.array([1], pa.int32())}), merge_schema=True)
    assert columns_of(t) == "k INT NOT NULL, v INT"


def test_a_sequence_field_is_not_left_out_for_want_of_a_column(warehouse: str) -> None:
    t = new_table(warehouse, sequence__field="v")
    with pytest.raises(kt.InvalidError, match="lack the column 'v'"):
        t.write([{"k": 1, "w": 1}], merge_schema=True)


# -- every kind of table -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"merge-engine": "partial-update"}, [(1, 2, "a")]),
        (
            {
                "merge-engine": "aggregation",
                "fields.default-aggregate-function": "last_non_null_value",
            },
            [(1, 2, "a")],
        ),
        ({"upsert.mode": "FULL"}, [(1, 2, None)]),
        ({"upsert.mode": "PARTIAL"}, [(1, 2, "a")]),
        ({"deletion-vectors.enabled": "true"}, [(1, 2, None)]),
    ],
    ids=["partial-update", "aggregation", "index", "partial index", "deletion vectors"],
)
def test_tables_of_every_engine_grow(
    lake: kt.Lake, options: dict[str, str], expected: list[Any]
) -> None:
    t = lake.create_table("t", SCHEMA, ["k"], options=options)
    t.write([{"k": 1, "v": 1, "w": "a"}], merge_schema=True)
    t.write([{"k": 1, "v": 2}], merge_schema=True)
    t.compact(full=True)
    assert rows(t) == expected
    assert t.verify().is_healthy


def test_append_tables_grow(lake: kt.Lake) -> None:
    t = lake.create_table("t", SCHEMA, [])
    t.write([{"k": 1, "v": 1}])
    t.write([{"k": 1, "v": 1 << 40, "w": 1}], merge_schema=True)
    assert rows_in_order(t) == [(1, 1, None), (1, 1 << 40, 1)]


@pytest.mark.parametrize("form", FORMS)
def test_publications_follow(tmp_path: Path, form: str) -> None:
    options = {**published_as(form), "bucket": "1"}
    t = kt.connect(tmp_path).create_table("t", SCHEMA, ["k"], options=options)
    t.write([{"k": 1, "v": 1}])
    t.write([{"k": 2, "v": 1 << 40, "w": "a"}], merge_schema=True)
    t.compact(full=True)
    expected = [(1, 1, None), (2, 1 << 40, "a")]
    for reader, read in READERS[form](t).items():
        assert sorted(read) == expected, reader


def test_overwrite_of_a_partition_grows_the_table(warehouse: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("p", pa.string()), ("v", pa.int32())])
    t = kt.connect(warehouse).create_table("t", schema, ["k", "p"], ["p"])
    t.write([{"k": 1, "p": "a", "v": 1}, {"k": 1, "p": "b", "v": 1}])
    t.overwrite([{"k": 2, "w": 1 << 40}], {"p": "a"}, merge_schema=True)
    assert rows(t) == [(1, "b", 1, None), (2, "a", None, 1 << 40)]


def test_a_merge_takes_the_columns_of_its_source_and_leaves_others(warehouse: str) -> None:
    t = new_table(warehouse, "k BIGINT, v INT, w STRING")
    t.write([{"k": 1, "v": 1, "w": "stays"}])
    source = [{"k": 1, "v": 1 << 40, "x": "new"}, {"k": 2, "v": 2, "x": "new"}]
    merge = t.merge(source, "target.k = source.k", merge_schema=True)
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert columns_of(t) == "k BIGINT NOT NULL, v BIGINT, w STRING, x STRING"
    assert rows(t) == [(1, 1 << 40, "stays", "new"), (2, 2, None, "new")]
    with pytest.raises(kt.InvalidError, match="neither is used"):
        merge.when_matched_delete().execute()
    with pytest.raises(kt.InvalidError, match="the text of a query"):
        t.merge("SELECT 1 AS k", "target.k = source.k", merge_schema=True) \
            .when_matched_update_all().execute()  # fmt: skip


# -- beside others, and through crashes ----------------------------------------------------------


def test_writers_that_add_columns_at_the_same_time_all_have_their_rows(warehouse: str) -> None:
    new_table(warehouse, **{"commit.max-retries": "50"})

    def write(number: int) -> None:
        wide = number if number % 2 else number + (1 << 40)
        rows = [{"k": number, "v": wide, f"own_{number % 4}": number, "same": "s"}]
        kt.connect(warehouse).table("t").write(rows, merge_schema=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    t = kt.connect(warehouse).table("t")
    assert sorted(t.schema.names) == ["k", "own_0", "own_1", "own_2", "own_3", "same", "v"]
    found = {row["k"]: (row[f"own_{row['k'] % 4}"], row["same"]) for row in t.scan().to_pylist()}
    assert found == {number: (number, "s") for number in range(8)}


def test_a_write_that_was_made_before_changes_no_schema(warehouse: str) -> None:
    t = new_table(warehouse)
    t.write([{"k": 1, "v": 1}], commit_user="job", commit_identifier=1)
    again = t.write(
        pa.table({"k": [1], "v": [1], "w": [1]}),
        merge_schema=True, commit_user="job", commit_identifier=1,
    )  # fmt: skip
    assert not again.is_new
    assert t.schema.names == ["k", "v"]


@copies_of
def a_table(store: Store) -> None:
    t = kt.connect("", store=store).create_table("t", SCHEMA, ["k"])
    t.write([{"k": 1, "v": 1}])


def test_a_crash_at_any_write_leaves_a_table_with_the_rows_or_without(tmp_path: Path) -> None:
    rows = [{"k": 1, "v": 1 << 40, "w": "new"}]

    def write(store: Store) -> None:
        table_in(store).write(rows, merge_schema=True)

    whole = FaultyStore(a_table())
    write(whole)
    writes = sum(operation != "read" for operation, _ in whole.log)
    seen = set()
    for place in range(1, writes + 1):
        store = a_table()
        try:
            write(FaultyStore(store, [Fault("write", nth=place, action="crash")]))
            break  # there is no such write any more
        except Crash:
            pass
        t = table_in(store)
        [row] = t.scan().to_pylist()
        seen.add((len(row), row["v"]))
        write(store)
        assert t.scan().to_pylist() == rows
    assert seen >= {(2, 1), (3, 1)}
