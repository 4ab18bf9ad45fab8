"""Purging: nothing is left of a table but its definition, wherever it stopped before."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from copies import copies_of
from keytide.definition.schema_evolution import SetOption
from keytide.store import Store
from keytide.store.faults import Crash, Fault, FaultyStore
from new_tables import empty_lake
from stops import stops_of
from table_rows import reopened

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@copies_of
def storied(store: Store) -> None:
    """A table with all that can be known of the past: tags, a branch, a consumer, a restore."""
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"], options={"bucket": "2"})
    for k in range(4):
        table.write([{"k": k, "v": "main"}])
    table.create_tag("two", 2)
    table.overwrite([{"k": 1, "v": "over"}])
    table.restore(3)
    table.create_branch("b").write([{"k": 9, "v": "branch"}])
    next(table.follow(start=1, consumer="slow", timeout_seconds=0))


def opened() -> kt.Table:
    return kt.connect("", store=storied()).table("t")


def past(table: kt.Table) -> tuple[int, list[str], list[str], list[str]]:
    branches, tags = ([each.name for each in found] for found in (table.branches(), table.tags()))
    return len(table.snapshots()), tags, branches, [each.name for each in table.consumers()]


def test_nothing_is_left_but_the_definition() -> None:
    table = opened()
    would = table.purge_files(dry_run=True)
    assert (would.rows, would.tags, would.branches, would.consumers) == (3, 2, 1, 1)
    assert (would.snapshots, would.files) == (6, None)
    assert past(table)[0] == 6
    done = table.purge_files()
    assert (done.snapshots, done.branches, (done.files or 0) > 0) == (6, 1, True)
    assert (past(table), table.scan().to_pylist()) == ((1, [], [], []), [])
    assert table.verify().is_healthy
    table.write([{"k": 1, "v": "anew"}])
    assert table.scan().to_pylist() == [{"k": 1, "v": "anew"}]


def test_procedure_counts_what_went_and_goes_for_a_table_that_never_had_rows() -> None:
    lake = empty_lake()
    lake.create_table("t", SCHEMA, ["k"]).write([{"k": 1, "v": "a"}])
    (row,) = lake.sql("CALL sys.purge_files(table => 't', dry_run => true)").to_pylist()
    assert (row["rows"], row["snapshots"], row["files"]) == (1, 1, None)
    (row,) = lake.sql("CALL sys.purge_files('t')").to_pylist()
    assert (row["rows"], row["snapshots"]) == (1, 1)
    lake.create_table("empty", SCHEMA, ["k"])
    assert lake.sql("CALL sys.purge_files('empty')").to_pylist()[0]["snapshots"] == 0


def test_branches_that_are_needed_and_branches_themselves_are_refused() -> None:
    table = opened()
    with pytest.raises(kt.InvalidError, match="or delete this branch"):
        table.branch("b").purge_files()
    table.alter(SetOption("branch", "b"))
    with pytest.raises(kt.InvalidError, match="RESET the option"):
        table.purge_files()
    assert past(table)[0] == 6


def stops() -> list[tuple[str, int]]:
    store = FaultyStore(opened().metadata.store)
    kt.Table(store, "t").purge_files()
    return stops_of(store.log, "create", "put", "delete", "output")


@pytest.mark.parametrize("action", ["crash", "fail"])
@pytest.mark.parametrize(("operation", "nth"), stops())
def test_wherever_it_stops_the_table_is_whole_and_the_same_call_goes_on(
    operation: Any, nth: int, action: Any
) -> None:
    table = opened()
    faulty = FaultyStore(table.metadata.store, [Fault(operation, nth=nth, action=action)])
    with suppress(Crash, kt.DataError):
        kt.Table(faulty, "t").purge_files()
    fresh = reopened(table)
    found = fresh.scan().count()
    assert found in (0, 3)
    assert fresh.verify().is_healthy
    fresh.write([{"k": 10, "v": "after"}])
    assert fresh.scan().count() == found + 1
    fresh.purge_files()
    assert (past(fresh), fresh.scan().to_pylist()) == ((1, [], [], []), [])
    assert fresh.verify().is_healthy
