"""Append tables, which have no primary key, are one table to all engines."""

from __future__ import annotations

import pyarrow as pa
import pytest
from interop_judges import Condition, Judge, assert_reads_alike, write_with
from interop_values import rows, shown

import keytide as kt

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
    return rows(table, *(f"+I {line}" for line in lines)).drop_columns(["_row_kind"])


def read(lines: list[str]) -> list[str]:
    """The lines as `shown` shows them."""
    return sorted(line.replace(INSTANT, INSTANT.replace("T", " ")) for line in lines)


def assert_alike(judge: Judge, table: kt.Table, expected: list[str]) -> None:
    assert shown(table) == read(expected)
    assert_reads_alike(judge, table)
    assert_reads_alike(judge, table, columns=["v", "k"], where=[Condition("k", "=", (1,))])
    assert_reads_alike(judge, table, where=[Condition("p", "in", ("y", "z"))])


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


@pytest.mark.parametrize(("partition_by", "options"), LAYOUTS)
def test_interop_append_table_of_keytide_is_read_and_written_by_judge(
    judge: Judge, lake: kt.Lake, partition_by: list[str], options: dict[str, str]
) -> None:
    columns = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in COLUMNS.items()]
    table = lake.create_table("db.t", columns, (), partition_by, options)
    table.write(given(table, FIRST))
    assert_alike(judge, table, FIRST)
    write_with(judge, table, given(table, SECOND))
    assert_alike(judge, table, FIRST + SECOND)
    table.write(given(table, SECOND))
    assert_alike(judge, table, FIRST + SECOND + SECOND)
