"""Tables whose names and commits a service keeps, as another place for them than a folder."""

from __future__ import annotations

import pickle
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import keytide as kt
from keytide.dml.attachments import AttachedCatalog
from keytide.format import paths
from keytide.lake.lake import Lake
from keytide.snapshot.authority import Commits, TellChanges, UnknownOutcomeError, no_changes
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import StoredTable
from keytide.store import Store
from service import ServiceCommits, ServiceWarehouse, changing, connect_by_service
from table_rows import by_key, put, snapshot_ids

KEYED = "k INT, v INT, PRIMARY KEY (k) NOT ENFORCED"
Rows = dict[int, int]


@pytest.fixture
def lake(tmp_path: Path) -> kt.Lake:
    return connect_by_service(tmp_path)


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    lake.sql(f"CREATE TABLE t ({KEYED})")
    return lake.table("t")


def commits_of(table: kt.Table) -> ServiceCommits:
    commits = table.metadata.commits
    assert isinstance(commits, ServiceCommits)
    return commits


def test_service_knows_the_tables(lake: kt.Lake, tmp_path: Path) -> None:
    lake.sql(f"CREATE TABLE t ({KEYED}); CREATE TABLE s.t AS SELECT 1 AS k")
    assert lake.tables() == ["default.t", "s.t"]
    assert connect_by_service(tmp_path).tables() == lake.tables()
    assert lake.sql("SELECT * FROM S.T").to_pylist() == [{"k": 1}]
    with pytest.raises(kt.AlreadyExistsError, match=r"table default\.t already exists"):
        lake.sql(f"CREATE TABLE t ({KEYED})")
    lake.sql("DROP TABLE t")
    with pytest.raises(kt.NotFoundError, match=r"table default\.t does not exist in service:"):
        lake.table("t")


def test_table_of_a_dropped_name_begins_without_rows(lake: kt.Lake, table: kt.Table) -> None:
    put(table, {1: 1})
    lake.sql(f"DROP TABLE t; CREATE TABLE t ({KEYED})")
    assert by_key(table) == by_key(lake.table("t")) == {}
    put(table, {2: 2})
    assert (by_key(lake.table("t")), snapshot_ids(table)) == ({2: 2}, [1])


def test_history_goes_on_back_and_sideways(lake: kt.Lake, table: kt.Table) -> None:
    put(table, {1: 1, 2: 1})
    put(table, {1: 2})
    table.create_tag("two")
    lake.sql("UPDATE t SET v = 3 WHERE k = 2; DELETE FROM t WHERE k = 1")
    assert by_key(table) == {2: 3}
    branch = table.create_branch("b", tag="two")
    put(branch, {3: 3})
    table.rollback_to("two")
    assert (by_key(table), snapshot_ids(table)) == ({1: 2, 2: 1}, [1, 2])
    put(table, {9: 9})
    assert snapshot_ids(table) == [1, 2, 3]
    table.restore(1)
    assert by_key(table) == {1: 1, 2: 1}
    table.fast_forward("b", discard=True)
    assert by_key(table) == by_key(lake.table("t$branch_b")) == {1: 2, 2: 1, 3: 3}
    table.compact(full=True)
    table.expire_snapshots(retain_max=1, retain_min=1)
    assert (by_key(table), len(snapshot_ids(table))) == ({1: 2, 2: 1, 3: 3}, 1)
    assert table.verify().is_healthy


def test_table_without_snapshots_becomes_what_its_branch_is(table: kt.Table) -> None:
    branch = table.create_branch("b", empty=True)
    put(branch, {1: 1})
    put(branch, {2: 2})
    table.fast_forward("b", discard=True)
    assert (by_key(table), snapshot_ids(table)) == ({1: 1, 2: 2}, [1, 2])
    put(table, {3: 3})
    assert (by_key(table), snapshot_ids(table)) == ({1: 1, 2: 2, 3: 3}, [1, 2, 3])


def test_what_the_service_did_not_decide_is_no_snapshot(table: kt.Table) -> None:
    put(table, {1: 1})
    store = table.metadata.store
    newest = store.read(paths.snapshot_path(1))
    store.put(paths.snapshot_path(2), newest.replace(b'"id" : 1', b'"id" : 2'))
    assert (snapshot_ids(table), by_key(table)) == ([1], {1: 1})
    assert table.verify().snapshots == 1
    put(table, {2: 2})
    assert (snapshot_ids(table), by_key(table)) == ([1, 2], {1: 1, 2: 2})


def test_what_was_not_decided_leaves_no_gap_behind_a_rollback(table: kt.Table) -> None:
    for number in range(1, 5):
        put(table, {number: number})
    store = table.metadata.store
    store.put(paths.snapshot_path(5), store.read(paths.snapshot_path(4)).replace(b": 4", b": 5"))
    table.rollback_to(2)
    assert (snapshot_ids(table), by_key(table)) == ([1, 2], {1: 1, 2: 2})
    assert table.verify().is_healthy


@pytest.mark.takes_turns
def test_of_writers_at_once_none_loses_a_row(table: kt.Table, tmp_path: Path) -> None:
    def write(number: int) -> None:
        own = connect_by_service(tmp_path).table("t")
        for n in range(8):
            put(own, {10 * n + number: number})

    threads = [threading.Thread(target=write, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert by_key(table) == {10 * n + number: number for n in range(8) for number in range(4)}
    assert sorted(snapshot_ids(table)) == snapshot_ids(table)
    assert table.verify().is_healthy


@dataclass(frozen=True)
class Failing(ServiceCommits):
    """A service that fails for once: before it has decided, or right after."""

    decides: bool
    error: type[kt.DataError]
    left: list[str] = field(default_factory=lambda: ["the service is away"])

    def create(
        self, store: Store, snapshot_id: int, data: bytes, changes: TellChanges = no_changes
    ) -> bool:
        if not self.left:
            return super().create(store, snapshot_id, data)
        if self.decides:
            super().create(store, snapshot_id, data)
        raise self.error(self.left.pop())


def through(table: kt.Table, commits: Commits) -> kt.Table:
    stored = table.stored
    metadata = stored.metadata
    return kt.Table.of(StoredTable.of(type(metadata)(metadata.store, metadata.name, commits)))


def test_write_that_was_not_decided_is_not_there(table: kt.Table) -> None:
    put(table, {1: 1})
    away = through(table, Failing(commits_of(table).database, decides=False, error=kt.DataError))
    with pytest.raises(kt.DataError, match="the service is away"):
        put(away, {2: 2})
    assert by_key(table) == {1: 1}
    put(away, {3: 3})
    assert by_key(table) == {1: 1, 3: 3}


@dataclass(frozen=True)
class FailingWarehouse(ServiceWarehouse):
    """A service whose first commit fails."""

    def metadata(self, database: str, table: str) -> TableMetadata:
        commits = Failing(self.database, decides=False, error=kt.DataError)
        return replace(super().metadata(database, table), commits=commits)


def test_table_whose_first_rows_were_not_decided_is_not_there(tmp_path: Path) -> None:
    lake = connect_by_service(tmp_path)
    warehouse = lake.catalog.warehouse
    assert isinstance(warehouse, ServiceWarehouse)
    away = Lake(AttachedCatalog(FailingWarehouse(warehouse.database, warehouse.store)))
    with pytest.raises(kt.DataError, match="the service is away"):
        away.sql("CREATE TABLE t AS SELECT 1 AS k")
    assert lake.tables() == []
    lake.sql("CREATE TABLE t AS SELECT 2 AS k")
    assert lake.sql("SELECT * FROM t").to_pylist() == [{"k": 2}]


def test_write_of_an_unknown_outcome_keeps_what_it_wrote(table: kt.Table) -> None:
    put(table, {1: 1})
    away = through(
        table, Failing(commits_of(table).database, decides=True, error=UnknownOutcomeError)
    )
    with pytest.raises(kt.DataError, match="unknown whether commit 2 succeeded"):
        put(away, {2: 2})
    assert by_key(table) == {1: 1, 2: 2}
    assert table.verify().is_healthy


@pytest.mark.parametrize("dies", ["before", "after"])
def test_process_that_dies_around_the_decision(
    table: kt.Table, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All or nothing: the file of a snapshot that was not decided is written anew."""
    put(table, {1: 1})

    def move(self: ServiceCommits, connection: sqlite3.Connection, *others: object) -> None:
        if dies == "after":
            moved(self, connection, *others)  # type: ignore[arg-type]  # as it was called
            connection.execute("COMMIT")
        raise KeyboardInterrupt

    moved: Callable[..., None] = ServiceCommits._move
    with monkeypatch.context() as patch:
        patch.setattr(ServiceCommits, "_move", move)
        with pytest.raises(KeyboardInterrupt):
            put(table, {2: 2})
    assert by_key(table) == ({1: 1} if dies == "before" else {1: 1, 2: 2})
    put(table, {3: 3})
    assert by_key(table) == ({1: 1, 3: 3} if dies == "before" else {1: 1, 2: 2, 3: 3})


def test_table_travels_with_its_service(table: kt.Table) -> None:
    put(table, {1: 1})
    there = kt.Table.of(pickle.loads(pickle.dumps(table.stored)))
    put(there, {2: 2})
    with changing(commits_of(table).database) as connection:
        ((newest,),) = connection.execute("SELECT max(id) FROM heads").fetchall()
    assert (newest, by_key(table)) == (2, {1: 1, 2: 2})
