"""What was before a conversion and what came after it: read, told, branched off and gone back to,
each in its own kind."""

from __future__ import annotations

from typing import Any

import pytest
from test_conversion import (
    MODES,
    OTHER,
    assert_sound,
    mode_of,
    new_table,
    stored_lines,
    write,
)

import keytide as kt
from keytide.changes.change_scan import changes_of
from keytide.definition.schema_evolution import AddColumn, ChangeColumnType, RenameColumn

LATE = ("+I 0 1 4 late", "+I 1 4 6 late")
NEW_COLUMN = AddColumn(("w",), kt.parse_sql_type("INT"))
THEN = ["0 1 5 a", "0 2 5 a", "1 3 5 a"]
NOW = ["0 1 6 b", "0 5 5 c", "1 3 5 a"]


def with_history(mode: str) -> kt.Table:
    """A table that is converted in snapshot 2 of 3."""
    table = new_table(mode)
    write(table, "+I 0 1 5 a", "+I 0 2 5 a", "+I 1 3 5 a", "-D 1 4 7 x")
    table.create_tag("then")
    table.convert(OTHER[mode])
    write(table, "+I 0 1 6 b", "-D 0 2 6 x", "+I 0 5 5 c", *LATE)
    assert stored_lines(table) == NOW
    return table


def sorted_lines(batches: Any) -> list[str]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    names = ("_row_kind", "p", "k", "ts", "v")
    return sorted(" ".join(str(row[name]) for name in names) for row in rows)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("mode", MODES)
def test_older_snapshots_and_tags_are_read_as_they_were_written(mode: str) -> None:
    table = with_history(mode)
    assert stored_lines(table, snapshot_id=1) == stored_lines(table, tag="then") == THEN
    assert stored_lines(table, snapshot_id=2) == THEN
    assert stored_lines(table, snapshot_id=3) == NOW
    then, now = (table.why((0, 2), **travel) for travel in ({"snapshot_id": 1}, {}))
    assert ("upsert.mode" in str(then), "upsert.mode" in str(now)) == (
        mode == "full", mode == "none",
    )  # fmt: skip
    table.expire_snapshots(1)
    assert (stored_lines(table, tag="then"), stored_lines(table)) == (THEN, NOW)
    assert_sound(table)


@pytest.mark.parametrize("mode", MODES)
def test_a_conversion_changes_no_row(mode: str) -> None:
    table = with_history(mode)
    changed = ["+I 0 5 5 c", "+U 0 1 6 b", "-D 0 2 5 a", "-U 0 1 5 a"]
    assert table.changes(1, 2).explain().files == 0
    assert sorted_lines(table.changes(1, 2).to_batches()) == []
    assert sorted_lines(table.changes(2, 3).to_batches()) == changed
    assert sorted_lines(table.changes(1).to_batches()) == changed
    assert sorted_lines(table.changes("then", 3).to_batches()) == changed
    assert sorted_lines(table.changes(0).to_batches()) == [f"+I {row}" for row in NOW]


@pytest.mark.parametrize("mode", MODES)
def test_changes_over_a_conversion_have_the_columns_of_the_end(mode: str) -> None:
    table = with_history(mode)
    table.alter(NEW_COLUMN, RenameColumn(("v",), "value"))
    table.write([{"p": 0, "k": 5, "ts": 6, "value": "d", "w": 1}])
    rows = {tuple(row.values()) for row in table.changes(1).to_pylist()}
    assert rows == {
        ("-U", 0, 1, 5, "a", None), ("+U", 0, 1, 6, "b", None), ("-D", 0, 2, 5, "a", None),
        ("+I", 0, 5, 6, "d", 1),
    }  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_reader_who_keeps_older_columns_is_told_over_a_conversion(mode: str) -> None:
    """As a query on Spark does: it reads on by the schema that it began with."""
    table = with_history(mode)
    table.alter(NEW_COLUMN, RenameColumn(("v",), "value"))
    table.write([{"p": 0, "k": 5, "ts": 6, "value": "d", "w": 1}])
    first = table.metadata.schema(0)
    full = changes_of(table.stored, 0, 4, schema=first)
    assert sorted_lines(full.to_batches()) == ["+I 0 1 6 b", "+I 0 5 6 d", "+I 1 3 5 a"]
    last = changes_of(table.stored, 3, 4, schema=first)
    assert sorted_lines(last.to_batches()) == ["+U 0 5 6 d", "-U 0 5 5 c"]
    over = changes_of(table.stored, 1, 3, schema=first)
    assert sorted_lines(over.to_batches()) == [
        "+I 0 5 5 c",
        "+U 0 1 6 b",
        "-D 0 2 5 a",
        "-U 0 1 5 a",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_follower_is_told_of_the_commits_around_a_conversion_alone(mode: str) -> None:
    table = with_history(mode)
    follow = table.follow(1, timeout_seconds=0)
    by_snapshot: dict[bytes, list[Any]] = {}
    for batch in follow:
        by_snapshot.setdefault(batch.schema.metadata[b"keytide.snapshot_id"], []).append(batch)
    assert by_snapshot.keys() == {b"3"}
    assert sorted_lines(by_snapshot[b"3"]) == [
        "+I 0 5 5 c",
        "+U 0 1 6 b",
        "-D 0 2 5 a",
        "-U 0 1 5 a",
    ]
    full = table.follow(timeout_seconds=0)
    assert sorted_lines(full) == [f"+I {row}" for row in NOW]


def test_commits_are_told_as_they_were_written_each_by_its_kind() -> None:
    table = with_history("full")
    assert sorted_lines(table.changes(1, mode="delta").to_batches()) == [
        "+I 0 1 6 b", "+I 0 5 5 c", "+I 1 4 6 late", "-D 0 2 6 x",
    ]  # fmt: skip
    before = table.changes(0, 1, mode="delta").to_batches()
    assert sorted_lines(table.changes(0, 2, mode="delta").to_batches()) == sorted_lines(before)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("mode", MODES)
def test_branch_of_a_snapshot_has_the_kind_of_that_and_goes_its_own_way(mode: str) -> None:
    table = with_history(mode)
    branch = table.create_branch("b", snapshot_id=1)
    assert (mode_of(branch), stored_lines(branch)) == (mode, THEN)
    write(branch, *LATE, "+I 0 9 5 new")
    assert stored_lines(branch) == sorted([*THEN, "0 9 5 new"])
    assert stored_lines(table) == NOW
    table.fast_forward("b", discard=True)
    assert (mode_of(table), stored_lines(table)) == (mode, sorted([*THEN, "0 9 5 new"]))
    table.alter(NEW_COLUMN)
    assert_sound(table)


@pytest.mark.parametrize("mode", MODES)
def test_table_is_fast_forwarded_to_a_branch_that_was_converted(mode: str) -> None:
    table = new_table(mode)
    write(table, "+I 0 1 5 a", "-D 1 4 7 x")
    branch = table.create_branch("b")
    branch.convert(OTHER[mode])
    write(branch, "+I 0 2 5 b")
    assert (mode_of(table), mode_of(branch)) == (mode, OTHER[mode])
    table.fast_forward("b", discard=True)
    write(table, *LATE)
    assert (mode_of(table), stored_lines(table)) == (OTHER[mode], ["0 1 5 a", "0 2 5 b"])
    assert_sound(table)


@pytest.mark.parametrize("mode", MODES)
def test_rollback_behind_a_conversion_goes_back_to_the_kind_of_then(mode: str) -> None:
    table = with_history(mode)
    table.rollback_to(1)
    assert (mode_of(table), stored_lines(table)) == (mode, THEN)
    write(table, *LATE)
    assert stored_lines(table) == THEN
    with pytest.raises(kt.ConflictError, match="cannot be altered"):
        table.alter(NEW_COLUMN)
    assert table.convert(mode).snapshot_id == 3
    table.alter(NEW_COLUMN)
    assert (mode_of(table), stored_lines(table)) == (mode, THEN)
    assert_sound(table)


@pytest.mark.parametrize("mode", MODES)
def test_rollback_behind_a_conversion_can_be_followed_by_it_again(mode: str) -> None:
    table = with_history(mode)
    table.rollback_to(1)
    table.convert(OTHER[mode])
    write(table, *LATE)
    table.alter(NEW_COLUMN)
    assert (mode_of(table), stored_lines(table)) == (OTHER[mode], THEN)
    assert_sound(table)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("mode", MODES)
def test_conversion_that_was_rolled_back_with_alterations_comes_again_with_them(mode: str) -> None:
    table = with_history(mode)
    wider = ChangeColumnType(("ts",), kt.parse_sql_type("BIGINT"))
    table.alter(NEW_COLUMN, wider, RenameColumn(("ts",), "at"), RenameColumn(("v",), "value"))
    table.rollback_to(1)
    assert table.schema.names == ["p", "k", "ts", "v"]
    table.convert(OTHER[mode])
    table.write([{"p": 0, "k": 1, "at": 4, "value": "late", "w": 1}])
    table.write([{"p": 1, "k": 4, "at": 6, "value": "late", "w": 1}])
    rows = sorted(tuple(row.values()) for row in table.scan().to_pylist())
    assert rows == [(0, 1, 5, "a", None), (0, 2, 5, "a", None), (1, 3, 5, "a", None)]
    assert_sound(table)


@pytest.mark.parametrize("mode", MODES)
def test_ids_of_columns_that_were_rolled_back_with_a_conversion_are_not_used_again(
    mode: str,
) -> None:
    table = with_history(mode)
    table.alter(NEW_COLUMN)
    used = table.table_schema.highest_field_id
    table.rollback_to(1)
    table.convert(mode)
    table.alter(AddColumn(("x",), kt.parse_sql_type("INT")))
    assert table.table_schema.field("x").id > used
    assert stored_lines(table) == THEN
    assert_sound(table)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("mode", MODES)
def test_restoring_over_a_conversion_is_refused_until_the_table_is_converted_back(
    mode: str,
) -> None:
    table = with_history(mode)
    with pytest.raises(kt.UnsupportedError, match=rf"convert it to '{mode}' first"):
        table.restore(1)
    assert stored_lines(table) == NOW
    table.convert(mode)
    table.restore(1)
    assert stored_lines(table) == THEN
    write(table, *LATE)
    assert stored_lines(table) == THEN
    assert_sound(table)
