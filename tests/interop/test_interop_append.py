"""Append tables, which have no primary key, are one table to all engines."""

from __future__ import annotations

import pyarrow as pa
import pytest
from interop_judges import Condition, Judge, assert_reads_alike, expecting, refusal, write_with
from interop_values import typed, value_lines
from java_judge import JavaPaimon

import keytide as kt
from new_tables import fields_of

COLUMNS = {"k": "INT", "p": "STRING", "v": "STRING", "d": "DECIMAL(20, 3)", "t": "TIMESTAMP(6)"}
INSTANT = "2024-02-29T01:02:03.000004"
FIRST = ["1 x a -1.125 NULL", f"2 y NULL 0.500 {INSTANT}", "1 x a -1.125 NULL"]
SECOND = ["1 x a -1.125 NULL", "9 z b NULL NULL"]
LAYOUTS: list[tuple[list[str], dict[str, str]]] = [
    ([], {}),
    (["p"], {}),
    ([], {"bucket": "2", "bucket-key": "k"}),
    (["p"], {"bucket": "3", "bucket-key": "k,v"}),
]


def given(table: kt.Table, lines: list[str]) -> pa.Table:
    """Rows without kinds, which no engine asks for."""
    return typed(table, *(f"+I {line}" for line in lines)).drop_columns(["_row_kind"])


def read(lines: list[str]) -> list[str]:
    """The lines as `shown` shows them."""
    return sorted(line.replace(INSTANT, INSTANT.replace("T", " ")) for line in lines)


def assert_alike(judge: Judge, table: kt.Table, expected: list[str]) -> None:
    assert value_lines(table) == read(expected)
    assert_reads_alike(judge, table)
    assert_reads_alike(judge, table, columns=["v", "k"], where=[Condition("k", "=", (1,))])
    assert_reads_alike(judge, table, where=[Condition("p", "in", ("y", "z"))])


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("partition_by", "options"), LAYOUTS)
def test_interop_append_table_made_by_judge_is_read_and_written(
    judge: Judge, lake: kt.Lake, partition_by: list[str], options: dict[str, str]
) -> None:
    judge.create("db.t", COLUMNS, [], partition_by, options)
    table = lake.table("db.t")
    assert table.primary_key == ()
    write_with(judge, table, given(table, FIRST))
    assert_alike(judge, table, FIRST)
    table.write(given(table, SECOND))
    assert_alike(judge, table, FIRST + SECOND)
    write_with(judge, table, given(table, SECOND))
    assert_alike(judge, table, FIRST + SECOND + SECOND)
    table.overwrite(given(table, FIRST[1:]))
    untouched = [line for line in SECOND + SECOND if partition_by and line.split()[1] == "z"]
    assert_alike(judge, table, FIRST[1:] + untouched)


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("partition_by", "options"), LAYOUTS)
def test_interop_append_table_of_keytide_is_read_and_written_by_judge(
    judge: Judge, lake: kt.Lake, partition_by: list[str], options: dict[str, str]
) -> None:
    columns = fields_of(COLUMNS)
    table = lake.create_table("db.t", columns, (), partition_by, options)
    table.write(given(table, FIRST))
    assert_alike(judge, table, FIRST)
    write_with(judge, table, given(table, SECOND))
    assert_alike(judge, table, FIRST + SECOND)
    table.write(given(table, SECOND))
    assert_alike(judge, table, FIRST + SECOND + SECOND)


# -- rows that are deleted and changed one by one --------------------------------------------------

FORMS = {"written again": {}, "32 bits": {"deletion-vectors.enabled": "true"}, "64 bits": {
    "deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": "true"}}  # fmt: skip
# pypaimon knows vectors of 32 bits only.
UNREAD = {("pypaimon", "64 bits"): refusal("Error")}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("partition_by", "options"), LAYOUTS)
def test_interop_append_table_whose_rows_change_reads_alike(
    judge: Judge, lake: kt.Lake, partition_by: list[str], options: dict[str, str], form: str
) -> None:
    columns = fields_of(COLUMNS)
    table = lake.create_table("db.t", columns, (), partition_by, {**options, **FORMS[form]})
    table.write(given(table, FIRST))
    table.write(given(table, SECOND))
    assert lake.sql("DELETE FROM db.t WHERE k = 2").row_count == 1
    left = [line for line in FIRST + SECOND if not line.startswith("2")]
    with expecting(UNREAD.get((judge.name, form)) if holds_dead(table) else None):
        assert_alike(judge, table, left)
    table.write(given(table, FIRST))
    assert lake.sql("UPDATE db.t SET v = 'c', p = 'y' WHERE k = 2 OR k = 9").row_count == 2
    changed = [f"2 y c 0.500 {INSTANT}", "9 y c NULL NULL"]
    kept = [line for line in FIRST + FIRST + SECOND if line.startswith("1")]
    with expecting(UNREAD.get((judge.name, form)) if holds_dead(table) else None):
        assert_alike(judge, table, kept + changed)
    table.compact(full=True)
    assert not holds_dead(table)
    assert_alike(judge, table, kept + changed)


@pytest.mark.parametrize("form", ["32 bits", "64 bits"])
@pytest.mark.parametrize(("partition_by", "options"), LAYOUTS)
def test_interop_java_goes_on_with_an_append_table_in_which_rows_died(
    java: JavaPaimon, lake: kt.Lake, partition_by: list[str], options: dict[str, str], form: str
) -> None:
    columns = fields_of(COLUMNS)
    table = lake.create_table("db.t", columns, (), partition_by, {**options, **FORMS[form]})
    expected: list[str] = []
    for line in ["2 y NULL 0.500 NULL", "9 z b NULL NULL"]:
        table.write(given(table, FIRST))
        assert lake.sql("DELETE FROM db.t WHERE k = 2").row_count >= 1
        write_with(java, table, given(table, [line]))
        expected = [each for each in expected if not each.startswith("2")]
        expected += [each for each in FIRST if each.startswith("1")] + [line]
        assert_alike(java, table, expected)
    assert table.verify().findings == ()


def holds_dead(table: kt.Table) -> bool:
    return bool(table.scan().state.vector_files)
