"""Java Paimon reads, writes and compacts tables in turn with Keytide."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interop_judges import assert_reads_alike, canonical
from interop_values import arrow_rows, field, typed, value_lines
from java_judge import JavaPaimon

import keytide as kt
from keytide.definition.schema_evolution import AddColumn

COLUMNS = [
    field("k", "INT NOT NULL"), field("p", "STRING NOT NULL"), field("v", "STRING"),
    field("n", "BIGINT"), field("s", "INT"),
]  # fmt: skip
ENGINES: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "sequence field": {"sequence.field": "s"},
    "first-row": {"merge-engine": "first-row"},
    "partial-update": {"merge-engine": "partial-update", "ignore-delete": "true"},
    "sequence group": {
        "merge-engine": "partial-update", "fields.s.sequence-group": "v,n", "ignore-delete": "true",
    },
    "aggregation": {
        "merge-engine": "aggregation",
        "fields.v.aggregate-function": "last_non_null_value",
        "fields.n.aggregate-function": "sum",
        "fields.s.aggregate-function": "max",
    },
}  # fmt: skip
KINDS = {
    "deduplicate": ["+I", "+U", "-U", "-D"], "sequence field": ["+I", "-D"],
    "aggregation": ["+I", "+U"],
}  # fmt: skip
NUMBERS = itertools.count()

a_row = st.tuples(
    st.integers(0, 5), st.sampled_from(["x", "y"]), st.none() | st.sampled_from(["a", "b"]),
    st.none() | st.integers(0, 9), st.integers(0, 9), st.integers(0, 3),
)  # fmt: skip
some_rows = st.lists(a_row, min_size=1, max_size=5)
a_step = st.one_of(
    st.tuples(st.sampled_from(["Keytide writes", "Java writes"]), some_rows),
    st.tuples(st.sampled_from(["Keytide compacts", "Java compacts"]), st.just([])),
)  # fmt: skip


def new_table(lake: kt.Lake, options: dict[str, str], partitioned: bool) -> kt.Table:
    keys, parts = (["k", "p"], ["p"]) if partitioned else (["k"], [])
    return lake.create_table(f"db.t{next(NUMBERS)}", COLUMNS, keys, parts, options=options)


def arrow(table: kt.Table, given_rows: list[Any], kinds: list[str]) -> Any:
    names = ("k", "p", "v", "n", "s")
    columns = {name: [row[i] for row in given_rows] for i, name in enumerate(names)}
    columns["_row_kind"] = [kinds[row[5] % len(kinds)] for row in given_rows]
    return arrow_rows(table.schema, columns)


@pytest.mark.parametrize("engine", ENGINES)
@given(
    steps=st.lists(a_step, min_size=1, max_size=7),
    buckets=st.sampled_from(["1", "3"]),
    file_format=st.sampled_from(["parquet", "orc"]),
    partitioned=st.booleans(),
    write_only=st.booleans(),
)
@settings(
    max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_interop_java_and_keytide_take_turns(
    java: JavaPaimon, lake: kt.Lake, engine: str, steps: list[Any], buckets: str, file_format: str,
    partitioned: bool, write_only: bool,
) -> None:  # fmt: skip
    options = {
        **ENGINES[engine], "bucket": buckets, "file.format": file_format,
        "write-only": str(write_only).lower(),
    }  # fmt: skip
    table = new_table(lake, options, partitioned)
    for doing, given_rows in steps:
        if doing == "Keytide writes":
            table.write(arrow(table, given_rows, KINDS.get(engine, ["+I"])))
        elif doing == "Java writes":
            java.write(table.name, arrow(table, given_rows, KINDS.get(engine, ["+I"])))
        elif table.scan().live.entries:
            if doing == "Keytide compacts":
                table.compact(full=True)
            else:
                java.compact(table.name)
        if engine == "first-row" and doing != "Keytide compacts":
            continue  # Java shows no level 0 of it
        if engine == "first-row":
            table.compact(full=True)
        assert_reads_alike(java, table)


def test_interop_keytide_goes_on_after_java_compacted(java: JavaPaimon, lake: kt.Lake) -> None:
    table = new_table(lake, {"sequence.field": "s", "bucket": "2"}, partitioned=False)
    for n in range(4):
        table.write(typed(table, f"+I {n} x a {n} 5", f"-D {n + 1} x a 1 7"))
    before = value_lines(table)
    java.compact(table.name)
    assert {entry.file.level for entry in table.scan().live.entries} == {5}
    assert value_lines(table) == before == ["0 x a 0 5"]
    table.write(typed(table, "+I 9 x new 1 1"))
    assert_reads_alike(java, table)
    assert value_lines(table) == ["0 x a 0 5", "9 x new 1 1"]


def test_interop_java_reads_tables_with_dynamic_buckets(java: JavaPaimon, lake: kt.Lake) -> None:
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": "3", "write-only": "true"}
    table = new_table(lake, options, partitioned=True)
    for n in range(5):
        table.write(typed(table, *(f"+I {k} {'xy'[k % 2]} a {n} 1" for k in range(n, n + 6))))
    table.write(typed(table, "-D 1 y a 0 0"))
    assert len(assert_reads_alike(java, table)) == 9
    table.compact(full=True)
    assert len(assert_reads_alike(java, table)) == 9


def test_interop_java_follows_the_changelog_of_input(java: JavaPaimon, lake: kt.Lake) -> None:
    table = new_table(lake, {"changelog-producer": "input"}, partitioned=False)
    table.write(typed(table, "+I 1 x a 1 1", "+I 2 x b 1 1"))
    table.write(typed(table, "-U 1 x a 1 1", "+U 1 x c 2 1", "-D 2 x b 1 1"))
    seen = [(kind, row["k"], row["v"]) for kind, row in java.changes(table.name, after=1)]
    assert sorted(seen) == [("+U", 1, "c"), ("-D", 2, "b"), ("-U", 1, "a")]
    java.write(table.name, typed(table, "+U 1 x d 3 1"))
    found = table.changes(2, mode="changelog").to_arrow().to_pylist()
    assert [(row["_row_kind"], row["k"], row["v"]) for row in found] == [("+U", 1, "d")]


def test_interop_java_reads_old_snapshots_of_a_changed_table(
    java: JavaPaimon, lake: kt.Lake
) -> None:
    table = new_table(lake, {"write-only": "true"}, partitioned=False)
    table.write(typed(table, "+I 1 x a 1 1", "+I 2 x b 1 1"))
    table.alter(AddColumn(("w",), kt.parse_sql_type("INT")))
    table.write([{"k": 2, "p": "x", "v": "c", "n": 1, "s": 1, "w": 7}])
    table.compact(full=True)
    for snapshot in (1, 2, 3):
        theirs = java.read(table.name, snapshot_id=snapshot)
        scan = table.scan(snapshot_id=snapshot, columns=theirs.column_names)
        assert canonical(theirs, scan.schema) == canonical(scan.to_arrow(), scan.schema)


def test_interop_rows_that_java_leaves_in_no_bucket_are_placed(
    java: JavaPaimon, lake: kt.Lake
) -> None:
    options = {"bucket": "-2", "postpone.default-bucket-num": "2"}
    table = new_table(lake, options, partitioned=True)
    table.write(typed(table, "+I 1 x a 1 1", "+I 2 x a 1 1"))
    java.write(table.name, typed(table, "+U 1 x b 2 2", "-D 2 x a 1 1", "+I 3 y b 2 2"))
    java.write(table.name, typed(table, "+U 1 x c 3 3"))
    assert value_lines(table) == ["1 x a 1 1", "2 x a 1 1"]
    table.compact()
    assert value_lines(table) == ["1 x c 3 3", "3 y b 2 2"]
    assert_reads_alike(java, table)
    assert table.verify().is_healthy
