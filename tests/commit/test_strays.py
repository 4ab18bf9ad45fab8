"""Files of tasks whose results are lost, and folders that processes do not share."""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.commit import transaction as strays
from keytide.commit.transaction import Transaction, has_committed
from keytide.compaction.compact import compact_in_full
from keytide.definition.schema_evolution import SetOption
from keytide.errors import DataError, SetupError
from keytide.maintenance.rescale import rescale
from keytide.snapshot.state import Statement
from keytide.snapshot.stored_table import StoredTable
from keytide.store import open_store
from keytide.store.local import LocalStore
from keytide.write.refusals import writable_view

SCHEMA = pa.schema([("p", pa.int32()), ("k", pa.int64()), ("v", pa.int64())])
KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "filters": {"file-index.bloom-filter.columns": "v"},
    "input changelog": {"changelog-producer": "input"},
    "looked up changelog": {"changelog-producer": "lookup"},
    "vectors": {"deletion-vectors.enabled": "true"},
    "aggregates": {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"},
    "partial update": {"merge-engine": "partial-update"},
    "index of keys": {"upsert.mode": "full"},
    "dynamic buckets": {"bucket": "-1"},
}


class LostError(Exception):
    """What a cluster raises."""


class Losing:
    """A cluster whose tasks finish, and whose job then fails."""

    def each(self, tasks: Sequence[Any], take: Callable[[Any], None]) -> None:
        for task in tasks:
            pickle.loads(pickle.dumps(task))()
        raise LostError


def new_rows(first: int) -> pa.Table:
    keys = range(first, first + 20)
    columns = [[key % 2 for key in keys], list(keys), [key * 2 for key in keys]]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


def write(stored: StoredTable) -> None:
    with Transaction.begin(stored, writable_view(stored)) as transaction:
        for number in (0, 1):
            pickle.loads(pickle.dumps(transaction.task())).feed([new_rows(30 * number)], number)
        raise LostError


def overwrite(stored: StoredTable) -> None:
    with Transaction.begin(stored, writable_view(stored)) as transaction:
        pickle.loads(pickle.dumps(transaction.task_anew())).feed([new_rows(5)], 0)
        raise LostError


OPERATIONS: dict[str, Callable[[StoredTable], object]] = {
    "write": write,
    "overwrite": overwrite,
    "compact": lambda stored: compact_in_full(stored, Losing()),
    "rescale": lambda stored: rescale(stored, runner=Losing()),
}


def new_table(warehouse: str, kind: str, operation: str) -> tuple[kt.Table, StoredTable]:
    lake = kt.connect(warehouse)
    options = {"bucket": "2", "write-only": "true", **KINDS[kind]}
    table = lake.create_table("d.t", SCHEMA, ["p", "k"], ["p"], options)
    for first in (0, 10):
        table.write(new_rows(first))
    if operation == "rescale":
        table.alter(SetOption("bucket", "3"))
    return table, lake.catalog.table("d.t")


class Late:
    """A task that was killed, and ends its files after so many seconds. No time passes."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, after_s: float, ends: Callable[[], object]) -> None:
        self.left_s, self.ends = after_s, ends

    def sleep(self, seconds: float) -> None:
        self.left_s, before_s = self.left_s - seconds, self.left_s
        if self.left_s < 0 <= before_s:
            self.ends()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strays, "time", Late(0, lambda: None))


def orphans(table: kt.Table) -> tuple[str, ...]:
    time.sleep(0.01)
    return table.remove_orphan_files(older_than=int(time.time() * 1000)).paths


@pytest.mark.one_in(4)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_files_of_tasks_whose_results_are_lost_are_deleted(
    kind: str, operation: str, warehouse: str
) -> None:
    if (kind, operation) == ("index of keys", "compact"):
        pytest.skip("is compacted in another way")
    if operation == "rescale" and kind in ("index of keys", "dynamic buckets", "aggregates"):
        pytest.skip("cannot be rescaled")
    table, stored = new_table(warehouse, kind, operation)
    before = table.scan().to_arrow().sort_by("k")
    with pytest.raises(LostError):
        OPERATIONS[operation](stored)
    assert orphans(table) == ()
    assert table.scan().to_arrow().sort_by("k").equals(before)
    if operation == "rescale":
        table.rescale()
    table.write(new_rows(100))


@pytest.mark.parametrize("ends_after_s", [0.0, 0.6, 1.9, 2.9])
@pytest.mark.parametrize("others", [0, 1])
def test_files_that_a_killed_task_ends_late_are_deleted(
    ends_after_s: float, others: int, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, stored = new_table(warehouse, "plain", "write")
    transaction = Transaction.begin(stored, writable_view(stored))
    tasks = [pickle.loads(pickle.dumps(transaction.task())) for _ in range(others + 1)]
    for number in range(others):
        tasks[number].feed([new_rows(30 * number)], number)
    late = Late(ends_after_s, lambda: tasks[-1].feed([new_rows(90)], others))
    monkeypatch.setattr(strays, "time", late)
    transaction.abort()
    assert late.left_s < 0
    assert orphans(table) == ()


def test_work_of_this_process_alone_lists_nothing(warehouse: str) -> None:
    _, stored = new_table(warehouse, "plain", "write")
    transaction = Transaction.begin(stored, writable_view(stored))
    transaction.collect(transaction.task().feed([new_rows(50)], 0))
    transaction.abort()
    statement = transaction.view.statement
    assert statement is not None
    assert not statement.is_away


def test_files_that_a_snapshot_references_are_known(warehouse: str) -> None:
    _, stored = new_table(warehouse, "plain", "write")
    mine = Statement.new()
    with Transaction.begin(stored, writable_view(stored), statement=mine) as transaction:
        transaction.collect(pickle.loads(pickle.dumps(transaction.task())).feed([new_rows(50)], 0))
        transaction.commit()
    assert has_committed(stored.live.metadata, mine, 2)
    assert not has_committed(stored.live.metadata, mine, 3)
    assert not has_committed(stored.live.metadata, Statement.new(), 0)


def test_files_in_a_folder_that_is_not_shared_are_not_committed(warehouse: str) -> None:
    table, stored = new_table(warehouse, "plain", "write")
    elsewhere = f"{warehouse}_of_another_host"
    shutil.copytree(warehouse, elsewhere)
    transaction = Transaction.begin(stored, writable_view(stored))
    task = pickle.loads(pickle.dumps(transaction.task()))
    store = LocalStore(table.uri.replace(warehouse, elsewhere))
    transaction.collect(replace(task, view=replace(task.view, store=store)).feed([new_rows(50)], 0))
    with pytest.raises(
        SetupError, match=r"do not exist for the driver on .* All hosts must see the same folder"
    ):
        transaction.commit()
    transaction.abort()
    assert len(table.snapshots()) == 2


def moved(store: Any, to: str) -> Any:
    """A store as another host unpickles it, to which the path is another folder."""
    there = pickle.loads(pickle.dumps(store))
    return replace(there, root=to, origin=replace(there.origin, root=to, host="another"))


def test_another_host_without_the_folder_says_so(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("bucket-0/a", b"1")
    other = moved(store, f"{tmp_path}_elsewhere")
    calls: list[Callable[[], object]] = [
        lambda: other.read("bucket-0/a"),
        lambda: other.open_input("bucket-0/a"),
        lambda: other.size("bucket-0/a"),
        lambda: other.exists("bucket-0/a"),
        lambda: list(other.list()),
        lambda: other.list_names("bucket-0"),
        lambda: other.put("bucket-0/b", b"2"),
        lambda: other.create("bucket-0/b", b"2"),
        lambda: other.sub("bucket-0").read("a"),
    ]
    for call in calls:
        with pytest.raises(
            SetupError, match="_elsewhere exists for the driver on another, but not"
        ):
            call()
    assert not Path(f"{tmp_path}_elsewhere").exists()


def test_a_file_lost_in_the_same_folder_is_lost(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("bucket-0/a", b"1")
    same = pickle.loads(pickle.dumps(store))
    store.delete(["bucket-0/a"])
    with pytest.raises(DataError):
        same.read("bucket-0/a")


def test_a_file_missing_in_another_folder_is_not_lost(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "here"))
    store.put("bucket-0/a", b"1")
    (tmp_path / "there").mkdir()
    other = moved(store, str(tmp_path / "there"))
    with pytest.raises(SetupError, match="another folder than for the driver on another"):
        other.read("bucket-0/a")


def test_a_folder_that_was_deleted_is_not_called_unshared(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "gone"))
    store.put("a", b"1")
    same = pickle.loads(pickle.dumps(store))
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(DataError):
        same.read("a")
