"""Compacted tables read alike everywhere, deletes on the highest level among them, and everybody
goes on writing to them."""

from __future__ import annotations

import pytest
from interop_judges import Judge, assert_reads_alike, write_with
from interop_values import arrow_rows, field, typed, value_lines

import keytide as kt
from new_tables import dotted

WRITE_ONLY = {"write-only": "true"}


def orders(lake: kt.Lake, **options: str) -> kt.Table:
    named = dotted(options)
    columns = [field("k", "INT NOT NULL"), field("v", "STRING"), field("s", "INT")]
    return lake.create_table("db.t", columns, ["k"], options=named)


def levels(table: kt.Table) -> list[int]:
    return sorted(entry.file.level for entry in table.scan().live.entries)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("full", [True, False], ids=["full", "in writes"])
def test_interop_deletes_that_a_compaction_kept_show_nowhere(
    judge: Judge, lake: kt.Lake, full: bool
) -> None:
    table = orders(lake, sequence__field="s", write_only=str(full).lower())
    for n in range(6):
        table.write(typed(table, f"+I {n} a{n} 5", f"-D {n + 1} x 7"))
        assert_reads_alike(judge, table)
    if full:
        table.compact(full=True)
    assert_reads_alike(judge, table)
    assert value_lines(table) == ["0 a0 5"]
    assert 5 in levels(table)
    (top,) = [e.file for e in table.scan().live.entries if e.file.level == 5]
    assert top.delete_row_count
    table.write(typed(table, "+I 3 late 6", "+I 4 back 8"))
    assert_reads_alike(judge, table)
    assert value_lines(table) == ["0 a0 5", "4 back 8"]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("full", [True, False], ids=["full", "in writes"])
@pytest.mark.parametrize(
    "engine",
    [
        {"merge_engine": "partial-update"},
        {"merge_engine": "aggregation", "fields__v__aggregate_function": "first_value"},
    ],
    ids=["partial-update", "aggregation"],
)
def test_interop_versions_that_stay_apart_are_merged_by_all(
    judge: Judge, lake: kt.Lake, engine: dict[str, str], full: bool
) -> None:
    table = orders(lake, **engine, sequence__field="s", write_only=str(full).lower())
    for n in range(7):
        values = {"k": [1, 2, n + 3], "v": [f"a{n}" if n else None, None, "b"], "s": [9 - n, n, n]}
        table.write(arrow_rows(table.schema, values))
        assert_reads_alike(judge, table)
    if full:
        table.compact(full=True)
    assert max(levels(table)) > 5
    assert_reads_alike(judge, table)
    late = arrow_rows(table.schema, {"k": [1, 1, 2], "v": ["late", None, "c"], "s": [1, 10, -1]})
    write_with(judge, table, late)
    assert_reads_alike(judge, table)


def test_interop_files_that_moved_without_being_written_again_read_alike(
    judge: Judge, lake: kt.Lake
) -> None:
    table = orders(lake, target_file_size="1 kb", sequence__field="s", write_only="true")
    for n in range(3):
        table.write(typed(table, f"+I {10 * n} a 1", f"-D {10 * n + 1} x 1"))
    done = table.compact(full=True)
    assert (done.files_after, done.files_written) == (3, 0)
    assert_reads_alike(judge, table)
    assert len(value_lines(table)) == 3


def test_interop_run_of_several_files_reads_alike(judge: Judge, lake: kt.Lake) -> None:
    table = orders(lake, target_file_size="4 kb", write_only="true")
    for n in range(2):
        values = {"k": range(n, 2000, 2 - n), "v": [f"text {n * k}" for k in range(n, 2000, 2 - n)]}
        table.write(arrow_rows(table.schema, {**values, "s": [n] * len(values["v"])}))
    assert table.compact(full=True).files_after > 1
    assert len(assert_reads_alike(judge, table)) == 2000


def test_interop_everybody_goes_on_writing(judge: Judge, lake: kt.Lake) -> None:
    table = orders(lake, write_only="true")
    for n in range(3):
        table.write(typed(table, f"+I 1 a{n} 1", f"+I {n + 2} b 1"))
    table.compact(full=True)
    write_with(judge, table, arrow_rows(table.schema, {"k": [1, 9], "v": ["j", "j"], "s": [2, 2]}))
    assert value_lines(table) == ["1 j 2", "2 b 1", "3 b 1", "4 b 1", "9 j 2"]
    table.write(typed(table, "+I 9 mine 3"))
    assert_reads_alike(judge, table)
    table.compact(full=True)
    assert_reads_alike(judge, table)
    assert levels(table) == [5]
    assert value_lines(table) == ["1 j 2", "2 b 1", "3 b 1", "4 b 1", "9 mine 3"]


ENGINES = {
    "first-row": {"merge-engine": "first-row"},
    "partial-update": {"merge-engine": "partial-update"},
    "aggregation": {
        "merge-engine": "aggregation",
        "fields.v.aggregate-function": "listagg",
        "fields.s.aggregate-function": "sum",
    },
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("engine", ENGINES)
def test_interop_compacted_engines_read_alike(judge: Judge, lake: kt.Lake, engine: str) -> None:
    columns = [field("k", "INT NOT NULL"), field("v", "STRING"), field("s", "INT")]
    table = lake.create_table("db.t", columns, ["k"], options=ENGINES[engine])
    for n in range(13):
        table.write(typed(table, f"+I {n % 3} a{n} {n}", f"+I {n % 4} NULL {n}"))
    assert 5 in levels(table)
    if engine == "first-row":  # the others show no level 0 of it
        table.compact(full=True)
    assert len(assert_reads_alike(judge, table)) == 4
