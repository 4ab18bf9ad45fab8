"""Whatever fails during a commit, at every operation of the store: readers see the old state or
the new one, never a mixture; writing again works; and a commit that is named is made once."""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from copies import copies_of
from keytide.store import Store
from keytide.store.faults import Action, Crash, Fault, FaultyStore
from new_tables import empty_store
from stops import faults_of

SCHEMA = pa.schema([("p", pa.int64()), ("k", pa.int64()), ("v", pa.string())])
OLD = [(1, 1, "old"), (1, 2, "old"), (2, 3, "old")]
CHANGE = [(1, 1, "new"), (2, 3, "new"), (3, 4, "new")]
NEW = [(1, 1, "new"), (1, 2, "old"), (2, 3, "new"), (3, 4, "new")]
AFTER = [(9, 9, "after")]

Row = tuple[int, int, str]


@pytest.fixture(autouse=True, params=[False, True], ids=["", "behind a cache"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Every test twice: of lakes as they are, and behind a cache of their files."""
    if request.param:
        CACHES.append(tmp_path / "cache")
    yield
    CACHES.clear()


CACHES: list[Path] = []


def lake_in(store: Store) -> kt.Lake:
    return kt.connect("", store=store, cache=CACHES[0] if CACHES else None)


def as_dicts(rows: list[Row]) -> list[dict[str, Any]]:
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]


def rows_in(store: Store, **travel: Any) -> list[Row]:
    """What a reader sees who has seen nothing before."""
    table = lake_in(store).table("t")
    return sorted(tuple(row.values()) for row in table.scan(**travel).to_pylist())


@copies_of
def new_warehouse(store: Store) -> None:
    """A warehouse in memory with one table of one snapshot, whose keys have two partitions."""
    table = lake_in(store).create_table("t", SCHEMA, ["p", "k"], ["p"])
    table.write(as_dicts(OLD))


def write(store: Store, rows: list[Row], **identity: Any) -> kt.WriteResult:
    return lake_in(store).table("t").write(as_dicts(rows), **identity)


def operations_of_one_write() -> list[tuple[str, int]]:
    """Every operation of a write as (operation, how many of its kind until then)."""
    store = FaultyStore(new_warehouse())
    write(store, CHANGE)
    seen: Counter[str] = Counter()
    places = []
    for operation, _ in store.log:
        seen[operation] += 1
        places.append((operation, seen[operation]))
    return places


PLACES = operations_of_one_write()
COMMIT = PLACES.index(("create", 1))
WRITING = [place for place in PLACES if place[0] in ("create", "put", "output", "hint", "delete")]


@pytest.mark.parametrize("change", [CHANGE, CHANGE[:1]], ids=["two buckets", "one bucket"])
def test_a_write_makes_data_files_then_manifests_then_the_snapshot(change: list[Row]) -> None:
    store = FaultyStore(new_warehouse())
    write(store, change)
    written = [path for what, path in store.log if what in ("output", "put", "create", "hint")]
    steps = dict.fromkeys(re.sub(r".*/(\w+)-.*|.*/", r"\1", path) for path in written)
    assert list(steps) == ["data", "manifest", "snapshot", "LATEST"]


def assert_sound(store: Store, *allowed: list[Row]) -> None:
    """Readers see one of the allowed states, the first snapshot is as it was, writing works."""
    seen = rows_in(store)
    assert seen in allowed
    assert rows_in(store, snapshot_id=1) == OLD
    write(store, AFTER)
    assert rows_in(store) == sorted(seen + AFTER)


@pytest.mark.parametrize(("operation", "nth"), WRITING)
def test_crash_at_any_operation_leaves_the_old_or_the_new_state(operation: str, nth: int) -> None:
    store = new_warehouse()
    faulty = FaultyStore(store, [Fault(operation, nth=nth, action="crash")])  # type: ignore[arg-type]
    with pytest.raises(Crash):
        write(faulty, CHANGE)
    is_committed = PLACES.index((operation, nth)) > COMMIT
    assert_sound(store, NEW if is_committed else OLD)


@pytest.mark.parametrize("action", ["fail", "torn", "disk-full", "lost-response", "crash"])
def test_data_file_of_a_lone_bucket_that_fails_changes_nothing(action: Action) -> None:
    store = new_warehouse()
    faulty = FaultyStore(store, [Fault("output", action=action)])
    with pytest.raises((kt.DataError, Crash)):
        write(faulty, CHANGE[:1])
    assert_sound(store, OLD)


@pytest.mark.parametrize("action", ["fail", "interrupt"])
@pytest.mark.parametrize(("operation", "nth"), PLACES)
def test_write_that_is_stopped_before_its_commit_leaves_no_file_behind(
    operation: str, nth: int, action: Action
) -> None:
    store = new_warehouse()
    before = {file.path for file in store.list("")}
    faulty = FaultyStore(store, [Fault(operation, nth=nth, action=action)])  # type: ignore[arg-type]
    try:
        write(faulty, CHANGE)
    except (kt.DataError, KeyboardInterrupt):
        reached_the_commit = PLACES.index((operation, nth)) >= COMMIT
        assert reached_the_commit or {file.path for file in store.list("")} == before
    assert_sound(store, OLD, NEW)


@pytest.mark.parametrize(
    ("operation", "nth", "action"), faults_of(PLACES, "fail", "torn", "disk-full", "lost-response")
)
def test_failure_of_any_operation_is_told_or_harmless(
    operation: str, nth: int, action: Action
) -> None:
    store = new_warehouse()
    faulty = FaultyStore(store, [Fault(operation, nth=nth, action=action)])  # type: ignore[arg-type]
    try:
        write(faulty, CHANGE)
    except kt.DataError:
        assert_sound(store, OLD)
    else:
        assert_sound(store, NEW)


@pytest.mark.parametrize(
    ("operation", "nth", "action"), faults_of(PLACES, "fail", "lost-response", "crash")
)
def test_named_commit_is_made_once_however_often_it_is_tried(
    operation: str, nth: int, action: Action
) -> None:
    store = new_warehouse()
    faulty = FaultyStore(store, [Fault(operation, nth=nth, action=action)])  # type: ignore[arg-type]
    with suppress(kt.DataError, Crash):
        write(faulty, CHANGE, commit_user="writer", commit_identifier=7)
    for _ in range(2):
        write(store, CHANGE, commit_user="writer", commit_identifier=7)
        assert rows_in(store) == NEW
    users = [s.commit_user for s in lake_in(store).table("t").snapshots()]
    assert users.count("writer") == 1


def test_named_commit_is_not_repeated_over_later_changes() -> None:
    store = new_warehouse()
    first = write(store, CHANGE, commit_user="writer", commit_identifier=1)
    write(store, [(1, 1, "later")])
    again = write(store, CHANGE, commit_user="writer", commit_identifier=1)
    assert (first.is_new, again.is_new, again.snapshot_id) == (True, False, first.snapshot_id)
    assert (1, 1, "later") in rows_in(store)


def test_later_identifier_of_the_same_user_and_same_identifier_of_another_are_new() -> None:
    store = new_warehouse()
    results = [
        write(store, CHANGE, commit_user=user, commit_identifier=identifier)
        for user, identifier in [("a", 1), ("a", 2), ("b", 1), ("a", 1), ("b", 1)]
    ]
    assert [result.is_new for result in results] == [True, True, True, False, False]


def test_lost_response_of_the_creation_is_no_failure() -> None:
    store = new_warehouse()
    faulty = FaultyStore(store, [Fault("create", "*/snapshot-2", action="lost-response")])
    result = write(faulty, CHANGE)
    assert (result.snapshot_id, rows_in(store)) == (2, NEW)
    assert [s.id for s in lake_in(store).table("t").snapshots()] == [1, 2]


def test_commit_whose_outcome_cannot_be_learnt_says_so_and_deletes_nothing() -> None:
    whole = FaultyStore(new_warehouse(), [])
    write(whole, CHANGE)
    steps = [(what, path.rpartition("/")[2]) for what, path in whole.log]
    looks = steps[: steps.index(("create", "snapshot-2"))].count(("read", "snapshot-2"))
    store = new_warehouse()
    faults = [
        Fault("create", "*/snapshot-2", action="lost-response"),
        Fault("read", "*/snapshot-2", action="fail", nth=looks + 1),
    ]
    with pytest.raises(kt.DataError, match=r"unknown whether commit 2 succeeded.*same commit user"):
        write(FaultyStore(store, faults), CHANGE)
    assert_sound(store, NEW)


@pytest.mark.parametrize("operation", ["output", "put", "create"])
def test_full_disk_is_told_with_the_way_out(operation: str) -> None:
    store = new_warehouse()
    faulty = FaultyStore(store, [Fault(operation, action="disk-full")])  # type: ignore[arg-type]
    with pytest.raises(kt.DataError, match=r"No space left on device.*Free some space") as caught:
        write(faulty, CHANGE[:1])
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert_sound(store, OLD)


def test_full_disk_gets_back_the_room_of_what_was_not_committed() -> None:
    store = new_warehouse()
    before = sorted(info.path for info in store.list())
    with pytest.raises(kt.DataError):
        write(FaultyStore(store, [Fault("put", action="disk-full")]), CHANGE)
    assert sorted(info.path for info in store.list()) == before


def test_creation_that_failed_but_may_still_arrive_finds_its_files() -> None:
    store = new_warehouse()
    faulty = FaultyStore(store, [Fault("create", action="fail")])
    with pytest.raises(kt.DataError):
        write(faulty, CHANGE)
    written = {path for operation, path in faulty.log if operation in ("output", "put")}
    assert written <= {info.path for info in store.list()}


def test_hints_that_cannot_be_written_hold_nobody_up() -> None:
    store = new_warehouse()
    faulty = FaultyStore(store, [Fault("hint", action="fail", times=100)])
    for version in range(5):
        write(faulty, [(1, 1, str(version))])
    assert rows_in(store)[0] == (1, 1, "4")


def test_every_name_race_lost_is_a_conflict_and_leaves_nothing_behind() -> None:
    """A store that says 'taken' for ever stands for writers that are always faster."""
    store = empty_store()
    options = {"commit.max-retries": "3", "commit.min-retry-wait": "1ms"}
    table = lake_in(store).create_table("t", SCHEMA, ["p", "k"], options=options)
    table.write(as_dicts(OLD))
    before = sorted(info.path for info in store.list())
    with pytest.raises(kt.ConflictError, match=r"4 attempts.*increase 'commit\.max-retries'"):
        write(Taken(store), CHANGE)
    assert sorted(info.path for info in store.list()) == before


class Taken(FaultyStore):
    """A store in which every name is taken."""

    def create(self, path: str, data: bytes) -> bool:
        return False


@pytest.mark.parametrize("action", ["fail", "torn", "lost-response", "crash"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_table_is_made_whole_or_not_at_all(nth: int, action: Action) -> None:
    store = empty_store()
    for operation in ("create", "exists", "list"):
        faulty = FaultyStore(store, [Fault(operation, nth=nth, action=action)])  # type: ignore[arg-type]
        name = f"t_{operation}"
        with suppress(kt.DataError, Crash):
            lake_in(faulty).create_table(name, SCHEMA, ["p", "k"])
        lake = lake_in(store)
        table = lake.create_table(name, SCHEMA, ["p", "k"], exists_ok=True)
        table.write(as_dicts(OLD))
        assert table.scan().count() == len(OLD)
        assert f"default.{name}" in lake.tables()
