"""Conversions beside writers, alterations and each other, and those that are cut short."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from test_conversion import (
    MODES,
    OTHER,
    as_dicts,
    assert_sound,
    mode_of,
    new_table,
    rows_of,
    stored_lines,
    write,
)

import keytide as kt
from copies import copies_of
from keytide.catalogs.local_writes import fill
from keytide.commit.transaction import Transaction
from keytide.definition.schema_evolution import AddColumn
from keytide.store import Store
from keytide.store.faults import Action, Crash, Fault, FaultyStore
from keytide.write.input_rows import to_arrow_table
from keytide.write.refusals import writable_view
from new_tables import table_in
from overtaking import overtaken
from table_rows import reopened

FIRST = ("+I 0 1 5 a", "+I 0 2 5 a", "+I 1 3 5 a", "-D 1 4 7 x")
ROWS = ["0 1 5 a", "0 2 5 a", "1 3 5 a"]
LATE = ("+I 0 1 4 late", "+I 1 4 6 late")
NEW_COLUMN = AddColumn(("w",), kt.parse_sql_type("INT"))


def began(mode: str) -> kt.Table:
    table = new_table(mode)
    write(table, *FIRST)
    return table


def files_of_no_snapshot(table: kt.Table) -> set[str]:
    named = {e.file.file_name for s in table.snapshots()
             for e in table.stored.live_files(s).entries}  # fmt: skip
    stored = {i.path.split("/")[-1] for i in table.metadata.store.list() if "/data-" in i.path}
    return stored - named


@pytest.mark.takes_turns
@pytest.mark.parametrize("mode", MODES)
def test_writers_who_come_first_have_the_conversion_made_again(mode: str) -> None:
    table = began(mode)
    other = reopened(table)
    before_schema = partial(write, other, "+I 0 1 6 b", "-D 0 2 6 x")
    before_snapshot = partial(write, other, "+I 1 5 5 c", "+I 0 2 5 late")
    done = overtaken(table, before_schema, before_snapshot).convert(OTHER[mode])
    assert (done.snapshot_id, mode_of(table)) == (4, OTHER[mode])
    write(table, *LATE, "+I 0 2 5 late")
    assert stored_lines(table) == ["0 1 6 b", "1 3 5 a", "1 5 5 c"]
    assert files_of_no_snapshot(table) == set()
    assert_sound(table)


@pytest.mark.parametrize("mode", MODES)
def test_conversion_that_always_comes_second_gives_up_and_the_table_stays(mode: str) -> None:
    table = new_table(mode, **{"commit.max-retries": "1"})
    write(table, *FIRST)
    other = reopened(table)
    acts: list[Callable[[], object]] = [lambda: None]
    acts += [partial(write, other, f"+I 0 {k} 5 new") for k in (7, 8)]
    with pytest.raises(
        kt.ConflictError, match=r"conversion failed after 2 attempts.*cannot be altered"
    ):
        overtaken(table, *acts).convert(OTHER[mode])
    assert mode_of(table) == mode
    assert stored_lines(table) == sorted([*ROWS, "0 7 5 new", "0 8 5 new"])
    assert files_of_no_snapshot(table) == set()


@pytest.mark.parametrize("mode", MODES)
def test_alteration_that_comes_first_is_part_of_the_conversion(mode: str) -> None:
    table = began(mode)
    overtaken(table, partial(reopened(table).alter, NEW_COLUMN)).convert(OTHER[mode])
    assert table.schema.names == ["p", "k", "ts", "v", "w"]
    assert (mode_of(table), stored_lines(table)) == (OTHER[mode], ROWS)


@pytest.mark.parametrize("mode", MODES)
def test_alteration_during_a_conversion_is_refused_by_name(mode: str) -> None:
    table = began(mode)
    refused = []

    def alter() -> None:
        with pytest.raises(kt.ConflictError, match=r"a conversion created schema 1 .*sys\.convert"):
            reopened(table).alter(NEW_COLUMN)
        refused.append(True)

    overtaken(table, lambda: None, alter).convert(OTHER[mode])
    assert refused == [True]
    table.alter(NEW_COLUMN)
    assert mode_of(table) == OTHER[mode]


def started_write(table: kt.Table, *lines: str) -> Callable[[], object]:
    """A write that began by now, and commits when it is called."""
    view = writable_view(table.stored)
    transaction = Transaction.begin(table.stored, view)
    fill(transaction, to_arrow_table(as_dicts(rows_of(*lines)), view.schema, "t"))
    return transaction.commit


@pytest.mark.parametrize("mode", MODES)
def test_writer_who_began_before_a_conversion_and_comes_later_is_refused(mode: str) -> None:
    table = began(mode)
    commit = started_write(table, "+I 0 1 6 b", "+I 0 9 5 new")
    table.convert(OTHER[mode])
    with pytest.raises(kt.ConflictError, match=r"converted it to another 'upsert\.mode'"):
        commit()
    assert stored_lines(table) == ROWS
    assert files_of_no_snapshot(table) == set()
    assert_sound(table)


@pytest.mark.parametrize("mode", MODES)
def test_writer_whose_commit_a_conversion_overtakes_never_mixes_the_kinds(mode: str) -> None:
    table = began(mode)
    convert = partial(reopened(table).convert, OTHER[mode])
    with pytest.raises(kt.ConflictError, match=r"converted it to another 'upsert\.mode'"):
        write(overtaken(table, convert), "+I 0 1 6 b", "+I 0 9 5 new")
    assert stored_lines(table) == ROWS
    assert_sound(table)
    write(table, "+I 0 1 6 b", "+I 0 9 5 new")
    assert stored_lines(table) == ["0 1 6 b", "0 2 5 a", "0 9 5 new", "1 3 5 a"]


@pytest.mark.takes_turns
@pytest.mark.parametrize("mode", MODES)
def test_statement_that_a_conversion_overtakes_is_carried_out_anew(mode: str) -> None:
    table = began(mode)
    convert = partial(reopened(table).convert, OTHER[mode])
    assert overtaken(table, convert).update({"v": "'u'"}, "k < 3").rows == 2
    assert (mode_of(table), stored_lines(table)) == (OTHER[mode], ["0 1 5 u", "0 2 5 u", "1 3 5 a"])
    convert = partial(reopened(table).convert, mode)
    overtaken(table, convert).delete("k = 1")
    write(table, "+I 0 1 4 late")
    assert (mode_of(table), stored_lines(table)) == (mode, ["0 2 5 u", "1 3 5 a"])
    assert_sound(table)


def test_first_writer_of_an_empty_table_meets_a_conversion() -> None:
    table = new_table()
    convert = partial(reopened(table).convert, "full")
    with pytest.raises(kt.ConflictError, match=r"converted it"):
        write(overtaken(table, convert), *FIRST)
    writer = partial(write, reopened(table), *FIRST)
    overtaken(table, lambda: None, writer).convert("none")
    write(table, *LATE)
    assert (mode_of(table), stored_lines(table)) == ("none", ROWS)


def test_compaction_that_a_conversion_overtakes_is_none() -> None:
    table = began("none")
    write(table, "+I 0 1 6 b")
    convert = partial(reopened(table).convert, "full")
    assert overtaken(table, convert).compact(full=True).overtaken
    assert (mode_of(table), stored_lines(table)) == ("full", ["0 1 6 b", "0 2 5 a", "1 3 5 a"])
    assert_sound(table)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("acts_before", [0, 1], ids=["before the schema", "before the snapshot"])
def test_two_conversions_to_the_same_kind_are_one(mode: str, acts_before: int) -> None:
    table = began(mode)
    acts: list[Callable[[], object]] = [lambda: None] * acts_before
    other = partial(reopened(table).convert, OTHER[mode])
    done = overtaken(table, *acts, other).convert(OTHER[mode])
    assert done.snapshot_id is None, "there was nothing left to do"
    assert (mode_of(table), stored_lines(table), len(table.snapshots())) == (OTHER[mode], ROWS, 2)
    assert files_of_no_snapshot(table) == set()
    assert_sound(table)


@pytest.mark.parametrize("mode", MODES)
def test_conversion_that_is_taken_back_by_another_begins_anew(mode: str) -> None:
    """And an alteration that came after that is not lost."""
    table = began(mode)
    other = reopened(table)

    def take_back() -> None:
        assert other.convert(mode).snapshot_id == 2
        other.alter(NEW_COLUMN)

    done = overtaken(table, lambda: None, take_back).convert(OTHER[mode])
    assert done.snapshot_id == 3
    assert table.schema.names == ["p", "k", "ts", "v", "w"]
    assert (mode_of(table), stored_lines(table)) == (OTHER[mode], ROWS)
    table.alter(AddColumn(("x",), kt.parse_sql_type("INT")))


# -- cut short -------------------------------------------------------------------------------------


@copies_of
def merging(store: Store) -> None:
    write(new_table("none", store, bucket="1"), *FIRST)


@copies_of
def indexed(store: Store) -> None:
    write(new_table("full", store, bucket="1"), *FIRST)


BEGUN = {"none": merging, "full": indexed}


def is_pending(table: kt.Table) -> bool:
    return not table.metadata.schemas_in_force().is_settled


@pytest.mark.one_in(14)
@pytest.mark.parametrize("action", ["lost-response", "crash"])
@pytest.mark.parametrize("mode", MODES)
def test_conversion_that_stops_at_any_write_leaves_one_kind_or_the_other(
    mode: str, action: Action
) -> None:
    """And the same rows; others go on writing, and the same call goes on."""
    pending = 0
    for nth in range(1, writes_of_one_conversion(mode) + 1):
        store = BEGUN[mode]()
        faulty = FaultyStore(store, [Fault("write", nth=nth, action=action)])
        with suppress(kt.DataError, Crash):
            table_in(faulty).convert(OTHER[mode])
        table = table_in(store)
        assert mode_of(table) in MODES
        pending += is_pending(table)
        assert stored_lines(table) == ROWS
        write(table, *LATE, "+I 0 9 5 new")
        assert stored_lines(table) == sorted([*ROWS, "0 9 5 new"])
        table.convert(OTHER[mode])
        assert (mode_of(table), is_pending(table)) == (OTHER[mode], False)
        assert stored_lines(table) == sorted([*ROWS, "0 9 5 new"])
        assert not table.verify(quick=True).findings
    assert pending, "some of them were cut short between the schema and the snapshot"


def writes_of_one_conversion(mode: str) -> int:
    store = FaultyStore(BEGUN[mode]())
    table_in(store).convert(OTHER[mode])
    return sum(what in ("create", "put", "output", "hint", "delete") for what, _ in store.log)


def cut_short(mode: str) -> kt.Lake:
    """A lake whose table's conversion was stopped right before its snapshot."""
    store = BEGUN[mode]()
    faulty = FaultyStore(store, [Fault("create", "*/snapshot-*", action="crash")])
    with pytest.raises(Crash):
        table_in(faulty).convert(OTHER[mode])
    return kt.connect("", store=store)


@pytest.mark.parametrize("mode", MODES)
def test_table_whose_conversion_was_cut_short_goes_on_as_it_was(mode: str) -> None:
    lake = cut_short(mode)
    table = lake.table("t")
    assert (mode_of(table), stored_lines(table)) == (mode, ROWS)
    listed = lake.sql("SELECT schema_id FROM t$schemas ORDER BY 1").to_pylist()
    assert [row["schema_id"] for row in listed] == [0, 1]
    (sign,) = [sign for sign in table.doctor().signs if sign.subject == "conversion"]
    assert f"with '{mode}' to undo it" in str(sign.action)
    write(table, *LATE, "+I 0 1 6 b")
    table.delete("k = 2")
    table.compact(full=True)
    table.create_tag("then")
    table.create_branch("b")
    assert stored_lines(table) == stored_lines(table.branch("b")) == ["0 1 6 b", "1 3 5 a"]
    assert mode_of(table) == mode_of(table.branch("b")) == mode
    with pytest.raises(kt.ConflictError, match=r"created schema 1 and.*'upsert\.mode' = "):
        table.alter(NEW_COLUMN)
    table.branch("b").alter(NEW_COLUMN)
    assert_sound(table)


@pytest.mark.parametrize("mode", MODES)
def test_conversion_that_was_cut_short_is_taken_back(mode: str) -> None:
    table = cut_short(mode).table("t")
    foreseen = table.convert(mode, dry_run=True)
    assert foreseen == kt.ConversionResult(None, mode, 0, None, ())
    assert is_pending(table)
    assert table.convert(mode).snapshot_id == 2
    write(table, *LATE)
    table.alter(NEW_COLUMN)
    assert (mode_of(table), stored_lines(table)) == (mode, ROWS)
    assert table.schema.names[-1] == "w"
    assert table.convert(OTHER[mode]).snapshot_id == 4
    assert (mode_of(table), stored_lines(table), table.schema.names[-1]) == (OTHER[mode], ROWS, "w")
    assert_sound(table)


@pytest.mark.parametrize("mode", MODES)
def test_taking_back_that_is_cut_short_goes_on(mode: str) -> None:
    table = cut_short(mode).table("t")
    store = table.metadata.store
    faulty = FaultyStore(store, [Fault("create", "*snapshot-*", action="crash")])
    with pytest.raises(Crash):
        kt.Table(faulty, "t").convert(mode)
    with pytest.raises(kt.ConflictError, match="cannot be altered"):
        table.alter(NEW_COLUMN)
    assert table.convert(mode).snapshot_id == 2
    table.alter(NEW_COLUMN)
    assert (mode_of(table), stored_lines(table)) == (mode, ROWS)


@pytest.mark.parametrize("mode", MODES)
def test_taking_back_that_meets_the_end_of_the_conversion_is_a_conflict(mode: str) -> None:
    table = cut_short(mode).table("t")
    finish = partial(reopened(table).convert, OTHER[mode])
    with pytest.raises(kt.ConflictError, match="converted it"):
        overtaken(table, lambda: None, finish).convert(mode)
    assert (mode_of(table), stored_lines(table)) == (OTHER[mode], ROWS)
    assert_sound(table)
