"""Changelogs that outlive their snapshots: what they tell, how long they stay, what they keep."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from histories import put_consumer, put_tag, stray_files, torn_snapshots
from keytide.format import paths
from keytide.store import Store
from keytide.store.faults import Crash, Fault, FaultyStore
from new_tables import empty_store, empty_table, table_in
from stops import stops_of
from table_rows import snapshot_ids

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
LONG = {"changelog.num-retained.min": "100", "changelog.num-retained.max": "200"}
MODES = {"none": "delta", "input": "changelog"}
Producer = Any


def full_history(producer: str, **options: str) -> Store:
    """Four writes, a full compaction in their midst, an overwrite, and one write more."""
    store = empty_store()
    given = {"changelog-producer": producer, **LONG, **options}
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"], options=given)
    for value in range(4):
        table.write([{"k": k, "v": f"{value}"} for k in range(value, 4)])
        if value == 2:
            table.compact(full=True)
    table.overwrite([{"k": 9, "v": "anew"}])
    table.write([{"k": 9, "v": "last"}])
    return store


def changelogs(table: kt.Table) -> list[int]:
    return table.metadata.changelog_ids()


def changes_of(table: kt.Table, start: int, end: int, mode: str) -> list[dict[str, Any]]:
    return table.changes(start, end, mode).to_pylist()


@pytest.mark.parametrize("producer", ["none", "input"])
def test_changes_of_expired_snapshots_are_told_as_before(producer: Producer) -> None:
    table, mode = table_in(full_history(producer)), MODES[producer]
    newest = max(snapshot_ids(table))
    before = {n: changes_of(table, n - 1, n, mode) for n in snapshot_ids(table)}
    whole = changes_of(table, 0, newest, mode)
    table.expire_snapshots(1)
    assert (snapshot_ids(table), changelogs(table)) == ([newest], list(range(1, newest)))
    for number, rows in before.items():
        assert changes_of(table, number - 1, number, mode) == rows
    assert changes_of(table, 0, newest, mode) == whole
    assert torn_snapshots(table.stored.store) == set()
    assert stray_files(table.stored.store) == set()
    assert table.verify().is_healthy


def test_reader_who_has_seen_nothing_reads_what_is_kept() -> None:
    store = full_history("none")
    before = changes_of(table_in(store), 0, 7, "delta")
    table_in(store).expire_snapshots(1)
    reader = table_in(store)
    batches = list(reader.follow(0, mode="delta", timeout_seconds=0))
    assert [row for batch in batches for row in batch.to_pylist()] == before
    batches = list(reader.follow(5, mode="delta", timeout_seconds=0))
    assert [row for batch in batches for row in batch.to_pylist()] == changes_of(
        reader, 5, 7, "delta"
    )


def test_what_a_changelog_does_not_tell_is_said() -> None:
    table = table_in(full_history("input"))
    table.expire_snapshots(1)
    with pytest.raises(kt.NotFoundError, match=r"snapshot 1 has expired.*mode='changelog'"):
        table.changes(0, 2, "delta")
    with pytest.raises(kt.NotFoundError, match=r"no snapshot 2; .* It has expired"):
        table.changes(2, 7)
    with pytest.raises(kt.NotFoundError, match=r"no snapshot 2; .* It has expired"):
        table.scan(snapshot_id=2)


@pytest.mark.parametrize("producer", ["none", "input"])
def test_only_what_is_told_outlives_a_snapshot(producer: Producer) -> None:
    both = [full_history(producer), full_history(producer, **dict.fromkeys(LONG, "10"))]
    left = []
    for store in both:
        table_in(store).expire_snapshots(1)
        left.append([f.path for f in table_in(store).stored.store.list() if "bucket-" in f.path])
    longer, shorter = left
    assert len(longer) - len(shorter) == 4


def test_changelogs_go_as_their_options_say() -> None:
    store = full_history("input", **{"changelog.num-retained.min": "3",
                                     "changelog.num-retained.max": "4",
                                     "snapshot.num-retained.min": "2",
                                     "snapshot.num-retained.max": "2"})  # fmt: skip
    table = table_in(store)
    newest = max(snapshot_ids(table))
    assert (snapshot_ids(table), changelogs(table)) == (
        [newest - 1, newest],
        [newest - 3, newest - 2],
    )
    assert stray_files(table.stored.store) == set()
    done = table.expire_changelogs(3, dry_run=True)
    assert (done.snapshots, done.changelogs, done.earliest_id) == (0, 1, newest - 1)
    assert table.expire_changelogs(3) == done
    assert changelogs(table) == [newest - 2]
    lake = kt.connect("", store=store)
    (row,) = lake.sql("CALL sys.expire_changelogs(table => 't', delete_all => true)").to_pylist()
    assert (row["changelogs"], changelogs(table)) == (1, [])
    assert stray_files(table.stored.store) == set()
    assert table.verify().is_healthy


def test_age_of_changelogs_counts_from_their_commits() -> None:
    table = table_in(full_history("none", **{"changelog.num-retained.min": "1",
                                                  "changelog.time-retained": "2 h"}))  # fmt: skip
    newest = max(snapshot_ids(table))
    table.expire_snapshots(2)
    moment = table.metadata.changelog(3).time_millis
    done = table.expire_changelogs(retain_min=1, older_than=moment)
    assert changelogs(table) == list(range(done.changelogs + 1, newest - 1))
    assert done.changelogs <= 2
    assert torn_snapshots(table.stored.store) == set()
    assert stray_files(table.stored.store) == set()


def test_consumer_holds_changelogs_and_where_that_is_said_no_snapshots() -> None:
    for only, snapshots in (("false", [3, 4, 5, 6, 7]), ("true", [7])):
        table = table_in(full_history("input", **{"consumer.changelog-only": only}))
        put_consumer(table, "reader", 3)
        table.expire_snapshots(1)
        assert snapshot_ids(table) == snapshots
        table.expire_changelogs(1)
        assert changelogs(table) == ([] if only == "false" else [3, 4, 5, 6])
        stream = table.follow(mode="changelog", consumer="reader", timeout_seconds=0)
        assert sum(batch.num_rows for batch in stream) > 0
        assert table.verify().is_healthy


def test_tag_keeps_what_a_changelog_told_and_the_other_way_round() -> None:
    table = table_in(full_history("none"))
    put_tag(table, "two", 2)
    shown = table.scan(tag="two").to_pylist()
    table.expire_snapshots(1)
    table.expire_changelogs(1)
    assert table.scan(tag="two").to_pylist() == shown
    assert stray_files(table.stored.store) == set()
    table.delete_tag("two")
    assert stray_files(table.stored.store)


def test_fewest_above_most_is_refused_in_a_definition() -> None:
    options = {"changelog.num-retained.max": "3"}
    with pytest.raises(kt.InvalidError, match=r"'changelog\.num-retained\.min' is 10, .* set both"):
        empty_table(SCHEMA, ["k"], options=options)


def places(producer: str) -> list[tuple[str, int]]:
    store = FaultyStore(full_history(producer))
    expire(store)
    return stops_of(store.log, "hint", "delete", "put")


def expire(store: Store) -> None:
    table_in(store).expire_snapshots(1)
    table_in(store).expire_changelogs(3)


def contents(store: Store) -> frozenset[tuple[str, bytes]]:
    return frozenset((f.path, store.read(f.path)) for f in store.list())


@pytest.mark.parametrize("action", ["crash", "fail"])
@pytest.mark.parametrize("producer", ["none", "input"])
def test_expiry_that_dies_anywhere_loses_nothing_that_is_kept(producer: str, action: Any) -> None:
    source = full_history(producer)
    beginning, mode = contents(source), MODES[producer]
    whole = changes_of(table_in(source), 5, 7, mode)

    def check_end(store: Store) -> None:
        table = table_in(store)
        assert (snapshot_ids(table), changelogs(table)) == ([7], [5, 6])
        assert stray_files(table.stored.store) == set()
        assert changes_of(table, 5, 7, mode) == whole

    expire(source)
    check_end(source)
    end = contents(source)
    for operation, nth in places(producer):
        store = empty_store()
        store.put_all(dict(beginning))
        faulty = FaultyStore(store, [Fault(operation, nth=nth, action=action)])  # type: ignore[arg-type]
        with suppress(Crash, kt.DataError):
            expire(faulty)
        table = table_in(store)
        assert torn_snapshots(table.stored.store) == set()
        assert changes_of(table, 5, 7, mode) == whole
        expire(store)
        if contents(store) != end:
            check_end(store)


def test_hints_of_changelogs_are_there_for_other_engines() -> None:
    table = table_in(full_history("input"))
    table.expire_snapshots(2)
    store = table.stored.store
    assert store.read(paths.changelog_hint_path(paths.Hint.LATEST)) == b"5"
    table.expire_changelogs(4)
    assert store.read(paths.changelog_hint_path(paths.Hint.EARLIEST)) == b"4"
    assert changelogs(table) == [4, 5]
