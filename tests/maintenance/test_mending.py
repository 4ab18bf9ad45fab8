"""Snapshots that other engines refuse are counted, and written so that these can read them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from copies import copies_of
from keytide.format.checksum import DOCUMENT_SEAL, SEAL_KEY, UNSEALED
from keytide.format.snapshot import Operation
from keytide.store import Store
from keytide.store.faults import Crash, Fault, FaultyStore
from new_tables import table_in
from stops import stops_of
from table_rows import dicts

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
DOCUMENTS = re.compile(r"(branch/[^/]+/)?(snapshot/snapshot-|changelog/changelog-|tag/tag-).+")


@copies_of
def foreign(store: Store) -> None:
    """A table with tags, changelogs and a branch, all of whose snapshots say `COMPACT`."""
    options = {"bucket": "1", "changelog-producer": "input", "changelog.time-retained": "99 d"}
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"], options=options)
    for k in range(4):
        table.write([{"k": k, "v": "main"}])
    table.create_tag("two", 2)
    table.compact(full=True)
    branch = table.create_branch("b")
    branch.write([{"k": 9, "v": "branch"}])
    branch.create_tag("nine")
    table.expire_snapshots(retain_max=3, retain_min=1)
    for path, document in documents(store).items():
        document |= {"operation": "COMPACT", SEAL_KEY: UNSEALED}
        store.put(path, DOCUMENT_SEAL.set(json.dumps(document, separators=(", ", " : ")).encode()))


def documents(store: Store) -> dict[str, dict[str, Any]]:
    """All snapshots, changelogs and tags by their paths."""
    names = [file.path for file in store.list("")]
    return {
        name: json.loads(store.read(name)) for name in names
        if DOCUMENTS.fullmatch(name.removeprefix("default.db/t/"))
    }  # fmt: skip


def refused(store: Store) -> list[str]:
    """Those that say what no other engine knows."""
    known = {None, *(each.value for each in Operation)}
    found = documents(store).items()
    return sorted(path for path, each in found if each.get("operation") not in known)


def every_state(table: kt.Table) -> dict[object, object]:
    """What all that is known of the past shows."""
    states: dict[object, object] = {}
    for line in (table, table.branch("b")):
        for snapshot in line.snapshots():
            states[line.name, snapshot.id] = dicts(line.scan(snapshot_id=snapshot.id))
        for tag in line.tags():
            states[line.name, tag.name] = dicts(line.scan(tag=tag.name))
    states["changes"] = table.changes(1, 4, mode="changelog").to_arrow().to_pylist()
    return states


def test_all_that_is_refused_is_counted_and_mended() -> None:
    store = foreign()
    table, before = table_in(store), len(refused(store))
    states = every_state(table)
    signs = {sign.subject: sign for sign in table.doctor().signs}
    assert "mend_snapshots" in str(signs["other engines"].action)
    assert signs["other engines"].found.startswith("5 snapshots, 2 changelogs, 2 tags with")
    counted = table.mend_snapshots(dry_run=True)
    assert counted.snapshots + counted.changelogs + counted.tags == before == len(refused(store))
    assert table.mend_snapshots() == counted
    assert refused(store) == []
    assert every_state(table).items() >= states.items()
    assert table.verify().is_healthy
    assert table.doctor().is_healthy
    assert table.mend_snapshots() == kt.MendResult(0, 0, 0)


def test_newest_snapshot_is_left_as_it_is_until_it_has_a_successor() -> None:
    store = foreign()
    table = table_in(store)
    newest = table.snapshots()[-1].id
    faulty = FaultyStore(store)
    table_in(faulty).mend_snapshots()
    written = [path for operation, path in faulty.log if operation in ("put", "create")]
    paths = [next(i for i, path in enumerate(written) if path.endswith(f"t/snapshot/snapshot-{n}"))
             for n in (newest, newest + 1)]  # fmt: skip
    assert paths[0] > paths[1]


def test_any_commit_is_enough_for_the_newest_state_and_copies_say_no_such_operation() -> None:
    store = foreign()
    table = table_in(store)
    table.write([{"k": 1, "v": "new"}])
    table.create_tag("copy", 5)
    table.replace_tag("two", 2)
    left = [path for path in refused(store) if "/branch/" not in path]
    assert not any(path.endswith(("snapshot-6", "tag-copy", "tag-two")) for path in left)
    assert any(path.endswith("snapshot-5") for path in left)


def test_procedure_counts_what_it_mends() -> None:
    store = foreign()
    (row,) = kt.connect("", store=store).sql("CALL sys.mend_snapshots('t')").to_pylist()
    assert (row, refused(store)) == ({"snapshots": 5, "changelogs": 2, "tags": 2}, [])


def test_branch_is_mended_alone() -> None:
    store = foreign()
    table_in(store).branch("b").mend_snapshots()
    assert not any("/branch/" in path for path in refused(store))
    assert refused(store)


def stops() -> list[tuple[str, int]]:
    store = FaultyStore(foreign())
    table_in(store).mend_snapshots()
    return stops_of(store.log, "create", "put", "delete")


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("operation", "nth"), stops())
def test_wherever_mending_stops_nothing_is_lost_and_it_goes_on(operation: Any, nth: int) -> None:
    store = foreign()
    states = every_state(table_in(store))
    with suppress(Crash):
        table_in(FaultyStore(store, [Fault(operation, nth=nth, action="crash")])).mend_snapshots()
    assert every_state(table_in(store)).items() >= states.items()
    table_in(store).mend_snapshots()
    assert refused(store) == []
    assert every_state(table_in(store)).items() >= states.items()


class Beside(FaultyStore):
    """A store in which something happens before its n-th change."""

    def __init__(self, inner: Store, nth: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.plan = {"left": nth, "act": act}

    def _perform(self, operation: str, path: str, do: Any, tear: Any = None) -> Any:
        if operation in ("put", "create", "delete"):
            self.plan["left"] -= 1
            if self.plan["left"] == 0:
                self.plan["act"]()
        return super()._perform(operation, path, do, tear)


def changes() -> range:
    store = FaultyStore(foreign())
    table_in(store).mend_snapshots()
    return range(1, 1 + sum(kind in ("put", "create", "delete") for kind, _ in store.log))


@pytest.mark.one_in(14)
@pytest.mark.parametrize("nth", changes())
def test_snapshots_that_expire_while_they_are_mended_stay_gone_or_readable(nth: int) -> None:
    store = foreign()
    states = every_state(table_in(store))

    def act() -> None:
        table_in(store).expire_snapshots(retain_max=1, retain_min=1)
        table_in(store).write([{"k": 2, "v": "beside"}])

    table_in(Beside(store, nth, act)).mend_snapshots()
    assert {"k": 2, "v": "beside"} in dicts(table_in(store))
    found = every_state(table_in(store))
    assert all(
        states[key] == found[key] for key in states.keys() & found.keys() if key != "changes"
    )
    table_in(store).expire_snapshots(retain_max=1, retain_min=1)
    assert len(table_in(store).snapshots()) == 1
    assert [tag.name for tag in table_in(store).tags()] == ["two"]
    assert table_in(store).verify().is_healthy
