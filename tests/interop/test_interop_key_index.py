"""Tables with an index of keys are append tables to other engines, which find one row of a key."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from interop_judges import Condition, Judge, assert_reads_alike, write_with
from interop_values import field, typed, value_lines
from java_judge import JavaPaimon

import keytide as kt
from key_indexes import assert_index_is_that_of_the_rows
from key_lives import KEYS, SCHEMA, TABLES, Model, act, steps, table_of
from keytide.definition.schema_evolution import AddColumn, ChangeColumnType, RenameColumn, SetOption

COLUMNS = {"k": "INT NOT NULL", "p": "STRING NOT NULL", "ts": "INT", "v": "STRING"}
FIRST = ["+I 1 x 5 a", "+I 2 y 5 a", "+I 1 x 4 late", "+I 3 x 5 a"]
LAYOUTS: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "one bucket": (["k"], [], {"bucket": "1"}),
    "buckets": (["k"], [], {"bucket": "3"}),
    "partitions": (["p", "k"], ["p"], {"bucket": "2"}),
    "partial": (
        ["p", "k"],
        ["p"],
        {"bucket": "2", "upsert.mode": "partial", "upsert.drop-out-of-order-record": "true"},
    ),
}
OF_JAVA: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "orc": (["k"], [], {"bucket": "3", "file.format": "orc"}),
    "vectors of 64 bits": (["p", "k"], ["p"], {"bucket": "2", "deletion-vectors.bitmap64": "true"}),
}
"""What the other judges do not read, whatever the table: vectors in a file of ORC, or so wide."""
ANEW = pytest.mark.filterwarnings("ignore:.*is rebuilt from its rows:keytide.KeytideWarning")


def write(*lines: str) -> Callable[[kt.Table], object]:
    return lambda table: table.write(typed(table, *lines))


def merge(table: kt.Table) -> object:
    source = [{"k": 3, "p": "x", "ts": 8, "v": "m"}, {"k": 6, "p": "y", "ts": 8, "v": "m"}]
    merging = table.merge(source, "target.k = source.k")
    return merging.when_matched_update_all().when_not_matched_insert_all().execute()


def rescale(table: kt.Table) -> object:
    table.alter(SetOption("bucket", "4"))
    return table.rescale()


def evolve(table: kt.Table) -> object:
    return table.alter(
        AddColumn(("n",), kt.parse_sql_type("INT")),
        RenameColumn(("v",), "w"),
        ChangeColumnType(("ts",), kt.parse_sql_type("BIGINT")),
    )


def go_on_in_a_branch(table: kt.Table) -> object:
    branch = table.create_branch("side", tag="second")
    branch.write(typed(branch, "+I 1 x 30 side", "-D 3 x 30 side"))
    return table.fast_forward("side", discard=True)


LIFE: dict[str, Callable[[kt.Table], object]] = {
    "an upsert": write("+I 1 x 6 b", "+I 2 y 6 b", "+I 4 y 1 c"),
    "a late row": write("+I 1 x 2 late"),
    "no time": write("+I 5 y NULL n", "+I 1 x NULL late"),
    "a delete": write("-D 2 y 7 b", "-D 3 x 1 late"),
    "a row that comes late to a delete": write("+I 2 y 6 late"),
    "DELETE": lambda t: t.delete("k = 4"),
    "UPDATE": lambda t: t.update({"v": "'u'"}, "k = 1"),
    "MERGE": merge,
    "a tag": lambda t: t.create_tag("second", 2),
    "a row that comes back": write("+I 2 y 9 back", "+I 4 y 9 back"),
    "a compaction": lambda t: t.compact(),
    "a full compaction": lambda t: t.compact(full=True),
    "a write after a compaction": write("+I 1 x 10 c", "-D 5 y 10 c"),
    "a restored snapshot": lambda t: t.restore(3),
    "a write after that": write("+I 1 x 11 d", "+I 5 y 1 late"),
    "more buckets": rescale,
    "a write to these": write("+I 1 x 12 e", "-D 2 y 12 e"),
    "a branch that became the table": go_on_in_a_branch,
    "a write after the branch": write("+I 1 x 31 f", "+I 3 x 29 late"),
    "an overwrite": lambda t: t.overwrite(typed(t, "+I 7 x 1 o", "+I 7 x 2 o")),
    "a rollback": lambda t: t.rollback_to("second"),
    "a write after the rollback": write("+I 1 x 32 g"),
    "other columns": evolve,
    "a write of these": write("+I 1 x 33 h 1", "+I 9 y 33 h NULL"),
    "nothing left": lambda t: t.truncate(),
    "the last write": write("+I 1 x 1 i 1", "+I 1 x 0 late 1"),
}  # fmt: skip


def new_table(lake: kt.Lake, layout: str) -> kt.Table:
    key, partitions, options = {**LAYOUTS, **OF_JAVA}[layout]
    columns = [field(name, kind) for name, kind in COLUMNS.items()]
    options = {"upsert.mode": "full", "sequence.field": "ts", **options}
    made = lake.create_table("db.t", columns, key, partitions, options)
    made.write(typed(made, *FIRST))
    return made


@pytest.fixture(params=["one bucket", "buckets", "partitions"])
def table(request: pytest.FixtureRequest, lake: kt.Lake) -> kt.Table:
    return new_table(lake, request.param)


def assert_alike(judge: Judge, table: kt.Table) -> None:
    assert_reads_alike(judge, table)
    assert_reads_alike(judge, table, columns=["ts", "k"], where=[Condition("k", "=", (1,))])


@pytest.mark.one_in(14)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_interop_judge_reads_one_row_of_a_key_after_each_kind_of_commit(
    judge: Judge, lake: kt.Lake, layout: str
) -> None:
    assert_reads_its_life(judge, new_table(lake, layout))


@pytest.mark.one_in(14)
@pytest.mark.parametrize("layout", OF_JAVA)
def test_interop_java_reads_them_however_they_are_stored(
    java: JavaPaimon, lake: kt.Lake, layout: str
) -> None:
    assert_reads_its_life(java, new_table(lake, layout))


def assert_alike_after_each(
    judge: Judge, table: kt.Table, steps: dict[str, Callable[[kt.Table], object]]
) -> None:
    for name, step in steps.items():
        step(table)
        try:
            assert_alike(judge, table)
        except BaseException as error:
            error.add_note(f"after {name}")
            raise


def assert_reads_its_life(judge: Judge, table: kt.Table) -> None:
    assert_alike(judge, table)
    assert_alike_after_each(judge, table, LIFE)
    for snapshot in [*table.snapshots()][::6]:
        assert_reads_alike(judge, table, snapshot_id=snapshot.id)
    assert_reads_alike(judge, table, tag="second")
    assert_alike(judge, table.branch("side"))


CONVERSIONS: dict[str, Callable[[kt.Table], object]] = {
    "to a table that merges": lambda t: t.convert("none"),
    "a write that is merged": write("+I 4 y 2 d", "+I 2 y 4 late", "-D 3 x 9 d"),
    "and back": lambda t: t.convert("full"),
    "a write after that": write("+I 4 y 3 e", "+I 3 x 8 late", "+I 1 x 7 e"),
}


@pytest.mark.one_in(14)
def test_interop_judge_reads_a_table_after_each_conversion(judge: Judge, table: kt.Table) -> None:
    assert_alike_after_each(judge, table, CONVERSIONS)
    assert value_lines(table) == ["1 x 7 e", "2 y 5 a", "4 y 3 e"]


@pytest.mark.one_in(14)
@ANEW
def test_interop_rows_that_a_judge_appends_are_found_by_the_next_write(
    judge: Judge, table: kt.Table
) -> None:
    write_with(judge, table, typed(table, "+I 9 x 5 judge").drop_columns(["_row_kind"]))
    with pytest.warns(kt.KeytideWarning, match="another engine added data files"):
        table.write(typed(table, "+I 9 x 4 late", "+I 9 x 6 new"))
    assert [line for line in value_lines(table) if line.startswith("9")] == ["9 x 6 new"]
    assert_alike(judge, table)
    with warnings.catch_warnings(action="error"):
        table.write(typed(table, "+I 9 x 7 newer"))


def test_interop_java_carries_the_index_on(java: JavaPaimon, table: kt.Table) -> None:
    assert_alike(java, table)
    write_with(java, table, typed(table, "+I 9 x 5 java").drop_columns(["_row_kind"]))
    assert_alike(java, table)


@ANEW
@pytest.mark.one_in(14)
def test_interop_rows_that_java_puts_in_the_place_of_others_are_found_by_the_next_write(
    java: JavaPaimon, table: kt.Table
) -> None:
    table.write(typed(table, "+I 1 x 6 b", "-D 2 y 6 b"))
    new = typed(table, "+I 1 x 3 java", "+I 2 x 3 java").drop_columns(["_row_kind"])
    java.overwrite(table.name, new)
    assert_alike(java, table)
    with pytest.warns(kt.KeytideWarning, match="rebuilt"):
        table.write(typed(table, "+I 1 x 2 late", "+I 2 x 4 new"))
    assert [line for line in value_lines(table) if " x " in line] == ["1 x 3 java", "2 x 4 new"]
    assert_index_is_that_of_the_rows(table)
    assert_alike(java, table)


@ANEW
@pytest.mark.one_in(14)
def test_interop_rows_that_java_compacted_are_found_by_the_next_write(
    java: JavaPaimon, table: kt.Table
) -> None:
    for ts in range(6, 9):
        table.write(typed(table, f"+I 1 x {ts} b", f"+I 3 x {ts} b", f"-D 2 y {ts} b"))
    before = value_lines(table)
    java.compact(table.name)
    assert value_lines(table) == before
    assert_alike(java, table)
    # Java knows of no delete, so it removes the row of 2; the index still knows when it came.
    table.write(typed(table, "+I 1 x 7 late", "+I 2 y 1 late", "+I 3 x 9 new"))
    assert value_lines(table) == ["1 x 8 b", "3 x 9 new"]
    table.write(typed(table, "+I 2 y 9 again"))
    assert value_lines(table) == ["1 x 8 b", "2 y 9 again", "3 x 9 new"]
    assert_index_is_that_of_the_rows(table)
    assert_alike(java, table)


numbers = itertools.count()


@ANEW
@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES.keys())
@settings(
    max_examples=max(2, settings.default.max_examples // 3),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(life=steps)
@example(life=[*[("write", [(0, 0)])] * 3, ("drop", [(0, 3)]), ("append", [(0, 0)])])
def test_interop_one_row_of_a_key_in_any_life_with_java(
    java: JavaPaimon,
    lake: kt.Lake,
    options: dict[str, str],
    life: list[tuple[str, list[tuple[int, int]]]],
) -> None:
    def append(table: kt.Table, new: pa.Table) -> None:
        # Its writers compact, too, once there are five small files.
        alone = {"write-only": "true"} if model.forgets_deletes else None
        java.write(table.name, new.drop_columns(["_row_kind"]), options=alone)

    name = f"db.t{next(numbers)}"
    table = lake.create_table(name, SCHEMA, ["k"], options={"upsert.mode": "full", **options})
    model = Model(options)
    for step, given_rows in life:
        act(table, model, step, given_rows, append, lambda t: java.compact(t.name))
        assert {row["k"]: row for row in table.scan()} == model.rows
        assert [table.get(k) for k in KEYS] == [model.rows.get(k) for k in KEYS]
    every = [model.row(k, s) for k in (*KEYS, 50, 51, 52, 53) for s in (3, 0)]
    table.write(table_of(every))
    for row in every:
        model.arrives(row)
    assert len(assert_reads_alike(java, table)) == len(model.rows)
    assert {row["k"]: row for row in table.scan()} == model.rows
