"""Tables with an index of keys are append tables to other engines, which find one row of a key."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
from interop_judges import Condition, Judge, assert_reads_alike, write_with
from interop_values import rows, shown
from java_judge import JavaPaimon

import keytide as kt

COLUMNS = {"k": "INT NOT NULL", "p": "STRING NOT NULL", "ts": "INT", "v": "STRING"}
FIRST = ["+I 1 x 5 a", "+I 2 y 5 a", "+I 1 x 4 late", "+I 3 x 5 a"]
SECOND = ["+I 1 x 6 b", "-D 2 y 6 b", "+I 4 y 1 c"]
LAYOUTS: list[tuple[list[str], list[str], dict[str, str]]] = [
    (["k"], [], {"bucket": "1"}),
    (["k"], [], {"bucket": "3"}),
    (["p", "k"], ["p"], {"bucket": "2"}),
]
CHANGES: dict[str, Callable[[kt.Table], object]] = {
    "write": lambda t: t.write(rows(t, *SECOND)),
    "delete": lambda t: t.delete("k = 1"),
    "update": lambda t: t.update({"v": "'u'"}, "k > 1"),
    "compact": lambda t: t.compact(full=True),
    "overwrite": lambda t: t.overwrite(rows(t, "+I 7 x 1 o", "+I 7 x 2 o")),
    "rollback": lambda t: t.rollback_to(1),
}


@pytest.fixture(params=LAYOUTS, ids=["one bucket", "buckets", "partitions"])
def table(request: pytest.FixtureRequest, lake: kt.Lake) -> kt.Table:
    key, partitions, options = request.param
    columns = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in COLUMNS.items()]
    options = {**options, "upsert.mode": "full", "sequence.field": "ts"}
    made = lake.create_table("db.t", columns, key, partitions, options)
    made.write(rows(made, *FIRST))
    return made


def assert_alike(judge: Judge, table: kt.Table) -> None:
    assert_reads_alike(judge, table)
    assert_reads_alike(judge, table, columns=["v", "k"], where=[Condition("k", "=", (1,))])


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", CHANGES)
def test_interop_judge_reads_one_row_of_a_key_after_each_change(
    judge: Judge, table: kt.Table, name: str
) -> None:
    assert_alike(judge, table)
    table.write(rows(table, *SECOND))
    assert_alike(judge, table)
    CHANGES[name](table)
    assert_alike(judge, table)


@pytest.mark.filterwarnings("ignore:.*built anew:keytide.KeytideWarning")
def test_interop_rows_that_a_judge_appends_are_found_by_the_next_write(
    judge: Judge, table: kt.Table
) -> None:
    write_with(judge, table, rows(table, "+I 9 x 5 judge").drop_columns(["_row_kind"]))
    with pytest.warns(kt.KeytideWarning, match="another engine added data files"):
        table.write(rows(table, "+I 9 x 4 late", "+I 9 x 6 new"))
    assert [line for line in shown(table) if line.startswith("9")] == ["9 x 6 new"]
    assert_alike(judge, table)
    with warnings.catch_warnings(action="error"):
        table.write(rows(table, "+I 9 x 7 newer"))


def test_interop_java_carries_the_index_on(java: JavaPaimon, table: kt.Table) -> None:
    assert_alike(java, table)
    table.write(rows(table, *SECOND))
    assert_alike(java, table)
    write_with(java, table, rows(table, "+I 9 x 5 java").drop_columns(["_row_kind"]))
    assert_alike(java, table)
