"""Work that begins on what a process saw last is what it is for one that looks first.

Others come since the last look of a process, by a lake of other options: nothing that this process
remembers is shared. What it then does is compared with what a process does that has seen nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import keytide as kt
from copies import copies_of
from far import FarClient, far_away
from keytide.errors import DataError, KeytideError
from keytide.snapshot.metadata import TableMetadata
from keytide.store import ObjectStore, Store
from new_tables import fields_of

ROWS = [{"k": k, "v": 0} for k in range(4)]
OPTIONS = {"bucket": "1", "num-sorted-run.compaction-trigger": "20"}


@pytest.fixture
def client() -> Iterator[FarClient]:
    with far_away(0.02) as client:
        yield client


@copies_of
def new_lake(store: Store) -> None:
    """Three tables of two commits, whose look tells of nothing new."""
    lake = kt.connect(store.uri)
    fields = fields_of("k INT, v INT")
    for name, key, more in (("t", ["k"], {}), ("rows", [], {"bucket": "-1"}),
                            ("indexed", ["k"], {"upsert.mode": "full"})):  # fmt: skip
        table = lake.create_table(name, fields, key, options=OPTIONS | more)
        table.write(ROWS)
        table.write([{"k": 1, "v": 1}])


def seen_by(store: Store, who: str) -> kt.Lake:
    """The lake as a process of its own knows it."""
    return kt.connect(store.uri, options={"token": who})


def others_write(lake: kt.Lake, name: str) -> None:
    lake.table(name).write([{"k": 1, "v": 10}, {"k": 9, "v": 10}])


def others_expire(lake: kt.Lake, name: str) -> None:
    for _ in range(2):
        others_write(lake, name)
    lake.table(name).expire_snapshots(retain_max=1)


def others_roll_back(lake: kt.Lake, name: str) -> None:
    lake.table(name).rollback_to(1)


def others_go_another_way(lake: kt.Lake, name: str) -> None:
    others_roll_back(lake, name)
    others_write(lake, name)


def others_make_anew(lake: kt.Lake, name: str) -> None:
    lake.drop_table(name)
    lake.sql(f"CREATE TABLE {name} (k INT NOT NULL, w STRING, PRIMARY KEY (k) NOT ENFORCED)")


def sql(text: str) -> Callable[[kt.Lake, str], None]:
    return lambda lake, name: lake.sql(text.format(name)) and None


OTHERS: dict[str, Callable[[kt.Lake, str], None]] = {
    "nobody": lambda lake, name: None,
    "write": others_write,
    "delete": sql("DELETE FROM {} WHERE k = 1"),
    "compact": lambda lake, name: lake.table(name).compact(full=True) and None,
    "expire": others_expire,
    "roll back": others_roll_back,
    "go another way": others_go_another_way,
    "add a column": sql("ALTER TABLE {} ADD w INT"),
    "drop a column": sql("ALTER TABLE {} DROP COLUMN v"),
    "drop": lambda lake, name: lake.drop_table(name),
    "make anew": others_make_anew,
}  # fmt: skip

Action = Callable[[kt.Table], Any]
ACTIONS: dict[str, Action] = {
    "write": lambda t: t.write([{"k": 1, "v": 2}, {"k": 5, "v": 2}]).snapshot_id,
    "write of a column": lambda t: t.write([{"k": 1, "v": 2, "w": 3}]).snapshot_id,
    "write by name": lambda t: t.write(ROWS, commit_user="u", commit_identifier=7).snapshot_id,
    "delete": lambda t: t.delete("k = 1").rows,
    "delete of nothing": lambda t: t.delete("k = 77").rows,
    "update": lambda t: t.update({"v": "v + 1"}, "k IN (1, 9)").rows,
    "update by a query": lambda t: t.update({"k": "(SELECT max(k) + 1 FROM target)"}, "k = 1").rows,
    "get": lambda t: t.get(1),
    "get_many": lambda t: t.get_many([1, 5, 9]).to_pylist(),
}


def outcome(action: Action, lake: kt.Lake, table: kt.Table) -> tuple[Any, ...]:
    """What comes of an action: what it gives or raises, and the table after it."""
    try:
        given = action(table)
    except KeytideError as error:
        given = type(error), str(error).replace(lake.uri, "")
    if table.name not in lake.tables():
        return (given, sorted(stored(table)))
    rows = sorted(map(repr, table.scan().to_pylist()))
    return given, rows, named(table) == stored(table)


def stored(table: kt.Table) -> set[str]:
    return {info.path for info in table.stored.store.list() if "/data-" in info.path}


def named(table: kt.Table) -> set[str]:
    found = (table.scan(snapshot_id=each.id).state for each in table.snapshots())
    return {state.view.file_path(entry) for state in found for entry in state.live.entries}


CASES = [("t", come) for come in OTHERS] + [
    *(("rows", come) for come in ("write", "drop a column")),
    *(("indexed", come) for come in ("write", "expire", "go another way", "make anew")),
]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("name", "come"), CASES)
def test_whatever_others_did_is_found(
    name: str, come: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what, action in ACTIONS.items():
        begun = outcome_after(come, action, name)
        with monkeypatch.context() as patch:
            patch.setattr(TableMetadata, "expected_look", lambda _: None)
            assert begun == outcome_after(come, action, name), what


def outcome_after(come: str, action: Action, name: str) -> tuple[Any, ...]:
    store = new_lake()
    lake = seen_by(store, "us")
    table = lake.table(name)
    table.scan().to_arrow()
    OTHERS[come](seen_by(store, "others"), name)
    return outcome(action, lake, table)


@pytest.mark.parametrize("come", ["nobody", "write", "roll back", "drop a column", "make anew"])
def test_write_is_under_way_before_the_look_has_told_and_commits_after_it(
    come: str, client: FarClient
) -> None:
    store = new_lake()
    lake = seen_by(store, "us")
    table = lake.table("t")
    table.scan().to_arrow()
    OTHERS[come](seen_by(store, "others"), "t")
    before = {info.path for info in store.list() if "/data-" in info.path}
    client.latency_s = 0.2
    with client.counted() as requests, suppress(KeytideError):
        ACTIONS["write"](table)
    client.latency_s = 0.001
    looked = min(r.ended for r in requests.made if r.what == "get" and "/schema/" in r.path)
    begun = min(r.began for r in requests.made if r.what == "put" and "/data-" in r.path)
    created = [r.began for r in requests.made if r.what == "put" and "/snapshot-" in r.path]
    assert begun < looked
    assert all(looked < began for began in created)
    assert bool(created) is (come not in {"drop a column", "make anew"})
    assert {path for path in stored(table) if f"default.db/t/{path}" not in before} <= named(table)


def test_write_whose_look_fails_commits_nothing_and_leaves_nothing(
    client: FarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = seen_by(new_lake(), "us").table("t")
    before = stored(table), len(table.snapshots())

    def fail(metadata: TableMetadata) -> None:
        time.sleep(3 * client.latency_s)  # files are under way by then
        raise DataError("Cannot read: injected fault")

    with monkeypatch.context() as patch:
        patch.setattr(TableMetadata, "look_alone", fail)
        with pytest.raises(DataError, match="injected"):
            ACTIONS["write"](table)
    assert (stored(table), len(table.snapshots())) == before
    assert table.verify().is_healthy


@pytest.mark.takes_turns
@pytest.mark.parametrize(("action", "value"), [("write", 2), ("update", 11)])
def test_commit_that_comes_between_the_look_and_the_creation_lies_below(
    action: str, value: int, client: FarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_lake()
    lake, others = seen_by(store, "us"), seen_by(store, "others")
    table, create = lake.table("t"), ObjectStore.create
    coming = [lambda: others_write(others, "t")]

    def created(store: ObjectStore, path: str, data: bytes) -> bool:
        if coming:
            coming.pop()()
        return create(store, path, data)

    monkeypatch.setattr(ObjectStore, "create", created)
    table.scan().to_arrow()
    ACTIONS[action](table)
    assert not coming
    assert len(table.snapshots()) == 4
    assert table.get(1) == {"k": 1, "v": value}
    assert table.verify().is_healthy
