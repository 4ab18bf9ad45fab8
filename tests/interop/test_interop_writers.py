"""What the other engines made or wrote, alone or in turn with Keytide, is one table to all."""

from __future__ import annotations

import itertools

import pytest
from interop_judges import (
    Judge,
    Outcome,
    Pypaimon,
    PypaimonRust,
    assert_reads_alike,
    difference,
    expecting,
    write_with,
)
from interop_values import typed, value_lines

import keytide as kt
from keytide.format.snapshot import CommitKind
from new_tables import fields_of

COLUMNS = {"k": "INT NOT NULL", "p": "STRING NOT NULL", "v": "STRING", "s": "BIGINT"}


def sent_by(judge: Judge, table: kt.Table, *lines: str) -> None:
    """Have the judge write lines whose kinds go into the table's column `op`."""
    write_with(judge, table, typed(table, *lines).drop_columns(["_row_kind"]))


@pytest.mark.parametrize("buckets", ["1", "3"])
def test_interop_table_made_by_judge_reads_alike(judge: Judge, lake: kt.Lake, buckets: str) -> None:
    columns = {**COLUMNS, "d": "DECIMAL(20, 3)", "t": "TIMESTAMP(6)", "day": "DATE"}
    judge.create("db.t", columns, ["k", "p"], ["p"], {"bucket": buckets})
    table = lake.table("db.t")
    assert table.primary_key == ("k", "p")
    assert table.partition_by == ("p",)
    instant = "2024-02-29T01:02:03.000004"
    sent_by(judge, table, f"+I 1 x a 1 -1.125 {instant} 2024-02-29", "+I 2 x a 1 NULL NULL NULL")
    sent_by(judge, table, f"+I 1 y/z b 2 0.5 {instant} NULL", "+I 2 x c NULL NULL NULL 1969-12-31")
    assert_reads_alike(judge, table)
    assert [line.split()[:4] for line in value_lines(table)] == [
        ["1", "x", "a", "1"],
        ["1", "y/z", "b", "2"],
        ["2", "x", "c", "NULL"],
    ]


@pytest.mark.parametrize(("order", "winner"), [("ascending", "1 x c 9"), ("descending", "1 x b 1")])
def test_interop_sequence_field_of_judges_table_decides(
    judge: Judge, lake: kt.Lake, order: str, winner: str
) -> None:
    options = {"bucket": "1", "sequence.field": "s", "sequence.field.sort-order": order}
    judge.create("db.t", COLUMNS, ["k", "p"], ["p"], options)
    table = lake.table("db.t")
    sent_by(judge, table, "+I 1 x a 5")
    table.write(typed(table, "+I 1 x b 1"))
    sent_by(judge, table, "+I 1 x c 9", "+I 1 x d 5")
    table.write(typed(table, "+I 1 x e NULL" if order == "ascending" else "+I 1 x e 9"))
    assert_reads_alike(judge, table)
    assert value_lines(table) == [winner]


def test_interop_deletions_by_judge_hide_rows(judge: Judge, lake: kt.Lake) -> None:
    columns = {**COLUMNS, "op": "STRING"}
    judge.create("db.t", columns, ["k", "p"], [], {"bucket": "1", "rowkind.field": "op"})
    table = lake.table("db.t")
    sent_by(judge, table, "+I 1 x a 1 +I", "+I 2 x a 1 +I", "+I 3 x a 1 +I")
    sent_by(judge, table, "+I 1 x b 1 -D", "+I 2 x b 1 +U", "+I 3 x b 1 -U")
    assert_reads_alike(judge, table)
    assert value_lines(table) == ["2 x b 1 +U"]
    table.write(typed(table, "+I 1 x c 1 +I", "+I 2 x c 1 -D").drop_columns(["_row_kind"]))
    assert_reads_alike(judge, table)
    assert value_lines(table) == ["1 x c 1 +I"]


# It counts no deletions, and does not look for them in a file that it need not merge.
SHOWN_DELETIONS: dict[str, Outcome] = {"pypaimon": difference("has besides")}


def test_interop_deletion_by_judge_in_lone_file_is_hidden(judge: Judge, lake: kt.Lake) -> None:
    columns = {**COLUMNS, "op": "STRING"}
    judge.create("db.t", columns, ["k"], [], {"bucket": "1", "rowkind.field": "op"})
    table = lake.table("db.t")
    sent_by(judge, table, "+I 1 x a 1 -D", "+I 2 x a 1 +I")
    assert value_lines(table) == ["2 x a 1 +I"]
    with expecting(SHOWN_DELETIONS.get(judge.name)):
        assert_reads_alike(judge, table)


def test_interop_kinds_written_by_pypaimon_rust_count(
    pypaimon_rust: PypaimonRust, lake: kt.Lake
) -> None:
    pypaimon_rust.create("db.t", COLUMNS, ["k"], [], {"bucket": "2"})
    table = lake.table("db.t")
    write_with(pypaimon_rust, table, typed(table, *(f"+I {n} x a 1" for n in range(4))))
    write_with(pypaimon_rust, table, typed(table, "-D 0 x a 1", "-U 1 x a 1", "+U 2 x b 1"))
    assert_reads_alike(pypaimon_rust, table)
    assert value_lines(table) == ["2 x b 1", "3 x a 1"]


def test_interop_versions_of_key_in_one_write_by_judge_become_the_last(
    judge: Judge, lake: kt.Lake
) -> None:
    judge.create("db.t", COLUMNS, ["k"], [], {"bucket": "1"})
    table = lake.table("db.t")
    sent_by(judge, table, "+I 1 x a 1", "+I 2 x a 1", "+I 1 x b 1", "+I 1 x c 1")
    assert_reads_alike(judge, table)
    assert value_lines(table) == ["1 x c 1", "2 x a 1"]


def counted_rows(table: kt.Table) -> int:
    return sum(entry.file.row_count for entry in table.stored.newest_files().entries)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("maker", ["Keytide", "the judge"])
def test_interop_commits_in_turn_make_one_history(judge: Judge, lake: kt.Lake, maker: str) -> None:
    columns = {**COLUMNS, "op": "STRING"}
    options = {"bucket": "2", "rowkind.field": "op"}
    if maker == "Keytide":
        fields = fields_of(columns)
        lake.create_table("db.t", fields, ["k", "p"], ["p"], options)
    else:
        judge.create("db.t", columns, ["k", "p"], ["p"], options)
    table = lake.table("db.t")
    expected: dict[int, str] = {}
    for n in range(12):
        kinds = {k: "-D" if (n + k) % 5 == 0 else "+I" for k in range(n % 4, 6)}
        lines = {k: f"{k} p{k % 2} v{n} {n} {kind}" for k, kind in kinds.items()}
        batch = typed(table, *(f"+I {line}" for line in lines.values()))
        batch = batch.drop_columns(["_row_kind"])
        if n % 2:
            write_with(judge, table, batch)
        else:
            table.write(batch)
        expected |= lines
    alive = sorted(line for line in expected.values() if not line.endswith("-D"))
    assert value_lines(table) == alive
    assert_reads_alike(judge, table)
    snapshots = table.snapshots()
    assert [snapshot.id for snapshot in snapshots] == list(range(1, len(snapshots) + 1))
    assert sum(snapshot.commit_kind is CommitKind.APPEND for snapshot in snapshots) == 12
    assert snapshots[-1].total_record_count == counted_rows(table)


def test_interop_three_writers_in_turn_make_one_history(
    pypaimon: Pypaimon, pypaimon_rust: PypaimonRust, lake: kt.Lake
) -> None:
    fields = fields_of(COLUMNS)
    table = lake.create_table("db.t", fields, ["k", "p"], options={"bucket": "3"})
    judges: list[Judge | None] = [None, pypaimon, pypaimon_rust]
    for n, judge in enumerate(itertools.islice(itertools.cycle(judges), 9)):
        batch = typed(table, *(f"+I {k} x v{n} {n}" for k in range(n, 10)))
        if judge is None:
            table.write(batch)
        else:
            write_with(judge, table, batch.drop_columns(["_row_kind"]))
    for judge in (pypaimon, pypaimon_rust):
        assert_reads_alike(judge, table)
    assert value_lines(table) == [f"{k} x v{min(k, 8)} {min(k, 8)}" for k in range(10)]


def test_interop_keytide_rebases_on_a_judges_commit(judge: Judge, lake: kt.Lake) -> None:
    fields = fields_of(COLUMNS)
    table = lake.create_table("db.t", fields, ["k"])
    early = lake.table("db.t")
    early.write(typed(early, "+I 1 x a 1"))
    write_with(judge, table, typed(table, "+I 1 x b 1").drop_columns(["_row_kind"]))
    early.write(typed(early, "+I 1 x c 1", "+I 2 x c 1"))
    assert_reads_alike(judge, early)
    assert value_lines(early) == ["1 x c 1", "2 x c 1"]
