"""Tags and rollbacks of Keytide mean the same to others, and theirs to Keytide."""

from __future__ import annotations

import pytest
from interop_judges import Judge, Pypaimon, assert_reads_alike, write_with
from interop_values import field, typed, value_lines

import keytide as kt
from keytide.format import paths


@pytest.fixture
def orders(lake: kt.Lake) -> kt.Table:
    """Three snapshots of one row each."""
    columns = [field("k", "INT NOT NULL"), field("v", "STRING")]
    table = lake.create_table("db.orders", columns, ["k"], options={"bucket": "1"})
    for line in ("+I 1 x", "+I 2 y", "+U 1 z"):
        table.write(typed(table, line))
    return table


@pytest.mark.parametrize("retained", [None, "36 h"], ids=["for ever", "with an end"])
def test_interop_tag_is_read_alike_though_its_snapshot_expired(
    judge: Judge, orders: kt.Table, retained: str | None
) -> None:
    orders.create_tag("first", 1, retained)
    orders.create_tag("second", 2)
    orders.replace_tag("second", 1)
    orders.rename_tag("second", "other")
    orders.metadata.store.delete([paths.snapshot_path(1)])
    assert assert_reads_alike(judge, orders, tag="first") == ["(1, 'x')"]
    assert assert_reads_alike(judge, orders, tag="other") == ["(1, 'x')"]


def test_interop_tag_of_pypaimon_is_one_of_keytide(orders: kt.Table, pypaimon: Pypaimon) -> None:
    pypaimon.process.ask(
        action="create_tag", warehouse=pypaimon.warehouse, table="db.orders", tag="theirs"
    )
    orders.write(typed(orders, "+I 3 z"))
    assert [(tag.name, tag.snapshot_id) for tag in orders.tags()] == [("theirs", 3)]
    assert len(value_lines(orders)) == 3
    assert orders.scan(tag="theirs").count() == 2
    assert orders.verify().is_healthy


@pytest.mark.takes_turns
def test_interop_rolled_back_table_is_read_and_written_alike(
    judge: Judge, orders: kt.Table
) -> None:
    orders.create_tag("first", 1)
    orders.rollback_to("first")
    assert assert_reads_alike(judge, orders) == ["(1, 'x')"]
    write_with(judge, orders, typed(orders, "+I 5 theirs").drop_columns(["_row_kind"]))
    orders.write(typed(orders, "+I 6 ours"))
    assert len(assert_reads_alike(judge, orders)) == 3
    assert [snapshot.id for snapshot in orders.snapshots()] == [1, 2, 3]


# -- branches --------------------------------------------------------------------------------------


@pytest.mark.takes_turns
def test_interop_branch_is_read_and_written_alike(judge: Judge, orders: kt.Table) -> None:
    orders.create_tag("first", 1)
    for name, place in {"tagged": {"tag": "first"}, "newest": {}, "blank": {"empty": True}}.items():
        branch = orders.create_branch(name, **place)  # type: ignore[arg-type]
        branch.write(typed(branch, "+I 5 ours"))
        write_with(judge, branch, typed(branch, "+I 6 theirs").drop_columns(["_row_kind"]))
        branch.write(typed(branch, "+U 6 ours"))
        assert_reads_alike(judge, branch)
    assert [value_lines(orders.branch(name)) for name in ("tagged", "blank")] == [
        ["1 x", "5 ours", "6 ours"], ["5 ours", "6 ours"],
    ]  # fmt: skip
    assert len(assert_reads_alike(judge, orders)) == 2
    orders.fast_forward("tagged", discard=True)
    assert assert_reads_alike(judge, orders) == ["(1, 'x')", "(5, 'ours')", "(6, 'ours')"]
    orders.delete_branch("tagged")
    assert len(assert_reads_alike(judge, orders)) == 3
    assert orders.verify().is_healthy


def test_interop_branch_of_pypaimon_is_one_of_keytide(orders: kt.Table, pypaimon: Pypaimon) -> None:
    orders.create_tag("first", 1)
    pypaimon.process.ask(
        action="create_branch", warehouse=pypaimon.warehouse, table="db.orders",
        branch="theirs", tag="first",
    )  # fmt: skip
    branch = orders.branch("theirs")
    write_with(pypaimon, branch, typed(branch, "+I 6 theirs").drop_columns(["_row_kind"]))
    branch.write(typed(branch, "+I 5 ours"))
    assert [each.name for each in orders.branches()] == ["theirs"]
    assert assert_reads_alike(pypaimon, branch) == ["(1, 'x')", "(5, 'ours')", "(6, 'theirs')"]
    assert orders.verify().is_healthy
    orders.fast_forward("theirs", discard=True)
    assert len(assert_reads_alike(pypaimon, orders)) == 3


# -- restore ---------------------------------------------------------------------------------------


@pytest.mark.one_in(14)
def test_interop_restored_partition_is_read_and_written_alike(judge: Judge, lake: kt.Lake) -> None:
    columns = [field("p", "STRING NOT NULL"), field("k", "INT NOT NULL"), field("v", "STRING")]
    table = lake.create_table("db.t", columns, ["p", "k"], ["p"], options={"bucket": "1"})
    table.write(typed(table, "+I a 1 old", "+I b 1 old"))
    table.write(typed(table, "+U a 1 new", "+U b 1 new"))
    table.compact(full=True)
    table.overwrite(typed(table, "+I a 2 over"))
    for number in (1, 3, 4):
        table.restore(number, {"p": "a"})
        assert_reads_alike(judge, table)
    table.restore(1)
    assert assert_reads_alike(judge, table) == ["('a', 1, 'old')", "('b', 1, 'old')"]
    write_with(judge, table, typed(table, "+I a 1 theirs").drop_columns(["_row_kind"]))
    assert len(assert_reads_alike(judge, table)) == 2
    assert value_lines(table) == ["a 1 theirs", "b 1 old"]
    assert table.verify().is_healthy
