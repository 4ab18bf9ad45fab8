"""Expiry of snapshots: which go, what goes with them, what holds it, whatever happens meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from copies import copies_of
from histories import (
    every_snapshot,
    put_branch,
    put_consumer,
    put_tag,
    rows_at,
    stray_files,
    torn_snapshots,
)
from keytide.format import paths
from keytide.format.snapshot import Tag
from keytide.maintenance.expiry import Retention
from keytide.snapshot.lineage import forget_lineages
from keytide.store import Store
from keytide.store.faults import Crash, Fault, FaultyStore
from new_tables import dotted, empty_store, table_in
from overtaking import overtaken
from stops import stops_of
from table_rows import snapshot_ids

SCHEMA = pa.schema([("p", pa.int64()), ("k", pa.int64()), ("v", pa.string())])
KEEP_ONE = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"}


def new_table(store: Store, **options: str) -> kt.Table:
    given = dotted(options)
    return kt.connect("", store=store).create_table("t", SCHEMA, ["p", "k"], ["p"], options=given)


def write(table: kt.Table, value: int) -> None:
    rows = [{"p": k % 2, "k": k, "v": f"{value}-{k}"} for k in range(value % 3, 4)]
    table.write(rows)


@copies_of
def full_history(store: Store) -> None:
    """Nine commits, with a compaction that rewrites files, one that moves them, and an overwrite;
    snapshot 2 is tagged, snapshot 4 lives on in a branch."""
    table = new_table(store, changelog_producer="input", file_index__bloom_filter__columns="v",
                      file_index__in_manifest_threshold="0 b")  # fmt: skip
    for value in range(3):
        write(table, value)
    table.compact(full=True)
    write(table, 3)
    table.overwrite([{"p": 0, "k": 0, "v": "anew"}], {"p": 0})
    write(table, 4)
    table.compact(full=True)
    write(table, 5)
    put_tag(table, "two", 2)
    put_branch(table, "four", 4)


@copies_of
def short_history(store: Store) -> None:
    """Four commits and a compaction; snapshot 2 is tagged, snapshot 3 lives on in a branch."""
    table = new_table(store)
    for value in range(3):
        table.write([{"p": 0, "k": 1, "v": f"{value}"}])
    table.compact(full=True)
    table.overwrite([{"p": 0, "k": 2, "v": "anew"}])
    put_tag(table, "two", 2)
    put_branch(table, "three", 3)


def rows_of_all(table: kt.Table) -> dict[str, list[tuple[Any, ...]]]:
    return {path: rows_at(table, s) for path, s in every_snapshot(table.stored.store)}


# -- which snapshots go ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "keep", "held_from", "expired"),
    [
        ("1@0 2@1 3@2 4@3", (1, None, 9, None), None, "1 2 3"),  # all are old, and one stays
        ("1@0 2@1 3@2 4@3", (1, None, 2, None), None, "1 2"),  # made before 2
        ("1@0 2@1 3@2 4@3", (3, None, 9, None), None, "1"),  # three stay however old
        ("1@0 2@1 3@2 4@3", (1, 2, 0, None), None, "1 2"),  # two stay at most, however young
        ("1@0 2@1 3@2 4@3", (1, None, 9, 2), None, "1 2"),  # two at a time
        ("1@0 2@1 3@2 4@3", (1, 1, 9, None), 2, "1"),  # a consumer still needs the second
        ("1@0 2@1 3@2 4@3", (1, 1, 9, None), 9, "1 2 3"),  # and another one is up to date
        ("1@0 2@1 3@2 4@3", (4, None, 9, None), None, ""),
        ("1@0 2@1 3@2 4@3", (1, None, 0, None), None, ""),
        ("3@0 4@9 5@1 6@1", (1, None, 5, None), None, "3"),  # the first young one ends it
        ("2@0 4@1 5@2", (2, None, 9, None), None, "2"),  # a gap counts as a snapshot
        ("", (1, 1, 9, None), None, ""),
    ],
)
def test_decision(made: str, keep: Any, held_from: int | None, expired: str) -> None:
    times = dict(map(int, each.split("@")) for each in made.split())  # type: ignore[misc]
    found = Retention(*keep).expired(
        list(times), max(times, default=0), held_from, times.__getitem__
    )
    assert " ".join(map(str, found)) == expired


def test_decision_reads_no_more_than_it_needs() -> None:
    read = []

    def made_ms(number: int) -> int:
        read.append(number)
        return number

    assert Retention(1, None, 3).expired(range(1, 1000), 999, None, made_ms) == [1, 2]
    assert read == [1, 2, 3]


@pytest.mark.parametrize(
    ("count", "age_ms", "is_due"),
    [(3, 99, False), (4, 40, False), (4, 41, True), (9, 0, True), (8, 0, False)],
)
def test_commit_has_to_expire_when_the_oldest_is_too_old_by_some_slack(
    count: int, age_ms: int, is_due: bool
) -> None:
    assert Retention(3, 8, -30).is_due(count, 1, -age_ms, 10) == is_due


def test_numbers_that_contradict_each_other_are_refused() -> None:
    table = new_table(empty_store())
    for numbers, message in (
        ({"retain_max": 2, "retain_min": 3}, r"t: retain_min is 3, .* larger than retain_max"),
        ({"retain_min": 0}, r"retain_min is 0; should be at least 1"),
        ({"retain_max": 0}, r"retain_max is 0; should be at least 1"),
        ({"max_deletes": -1}, r"max_deletes is -1; expected 0 or more"),
        ({"older_than": "yesterday"}, r"older_than is 'yesterday', which is not an ISO time"),
    ):
        with pytest.raises(kt.InvalidError, match=message):
            table.expire_snapshots(**numbers)  # type: ignore[arg-type]


def test_fewest_above_most_is_refused_in_a_definition() -> None:
    message = r"'snapshot\.num-retained\.min' is 10, which should not be larger than .*set both"
    with pytest.raises(kt.InvalidError, match=message):
        new_table(empty_store(), snapshot__num_retained__max="3")


# -- after commits ---------------------------------------------------------------------------------


def test_writes_keep_as_many_snapshots_as_the_options_say() -> None:
    options = {"snapshot__num_retained__min": "2", "snapshot__num_retained__max": "3"}
    table = new_table(empty_store(), **options, num_sorted_run__compaction_trigger="9")
    kept = []
    for value in range(6):
        write(table, value)
        kept.append(snapshot_ids(table))
    assert kept == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]
    assert stray_files(table.stored.store) == set()
    assert table.verify().is_healthy


def test_writes_keep_young_snapshots_and_the_fewest() -> None:
    store = empty_store()
    table = new_table(store, snapshot__num_retained__min="2",
                      num_sorted_run__compaction_trigger="99")  # fmt: skip
    for value in range(4):
        write(table, value)
    assert snapshot_ids(table) == [1, 2, 3, 4]  # for an hour
    kt.connect("", store=store).sql("ALTER TABLE t SET ('snapshot.time-retained' = '1 ms')")
    time.sleep(0.01)
    write(table, 4)
    assert snapshot_ids(table) == [4, 5]


def test_one_commit_expires_as_many_as_the_limit_says() -> None:
    store = empty_store()
    table = new_table(store, write_only="true", snapshot__expire__limit="2", **{
        key.replace(".", "__").replace("-", "_"): text for key, text in KEEP_ONE.items()
    })  # fmt: skip
    for value in range(6):
        write(table, value)
    assert snapshot_ids(table) == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]  # a table that is write-only leaves it to others
    table.compact()
    assert snapshot_ids(table) == [3, 4, 5, 6, 7]
    assert table.expire_snapshots().snapshots == 4  # who asks for it has no limit
    assert stray_files(table.stored.store) == set()


def test_commits_leave_expiry_to_a_thread_where_that_is_said() -> None:
    table = new_table(empty_store(), snapshot__num_retained__min="1",
                      snapshot__num_retained__max="2",
                      snapshot__expire__execution_mode="async")  # fmt: skip
    for value in range(4):
        write(table, value)
    until = time.monotonic() + 10
    while len(snapshot_ids(table)) > 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert snapshot_ids(table)[-1] == 4
    assert len(snapshot_ids(table)) <= 3  # one more may be waiting for the thread's next round


def looks(store: FaultyStore) -> int:
    """How often somebody looked which snapshots there are."""
    return sum("EARLIEST" in path or path.endswith("/snapshot") for _, path in store.log)


def test_nothing_that_is_due_costs_a_write_no_look_at_the_store() -> None:
    store = FaultyStore(empty_store())
    table = new_table(store, num_sorted_run__compaction_trigger="99")
    for value in range(9):
        write(table, value)
    looks_before = looks(store)
    write(table, 9)
    write(table, 10)
    first_looks = looks(store) - looks_before
    write(table, 11)
    assert first_looks <= 2
    assert looks(store) == looks_before + first_looks


def test_expiry_that_fails_after_a_write_is_a_warning() -> None:
    inner = empty_store()
    options = {"snapshot__num_retained__min": "1", "snapshot__num_retained__max": "1"}
    write(new_table(inner, **options), 0)
    store = FaultyStore(inner, [Fault("delete", "*/snapshot-1")])
    with pytest.warns(kt.KeytideWarning, match="rows are written, but expiring snapshots"):
        write(table_in(store), 1)
    assert snapshot_ids(table_in(inner)) == [1, 2]
    write(table_in(inner), 2)
    assert snapshot_ids(table_in(inner)) == [3]
    assert stray_files(inner.sub("default.db/t")) == set()


# -- what goes with them, and what holds it --------------------------------------------------------


@pytest.mark.takes_turns
def test_what_only_expired_snapshots_have_goes_and_all_else_stays() -> None:
    table = table_in(full_history())
    store, before = table.stored.store, rows_of_all(table)
    would = table.expire_snapshots(1, dry_run=True)
    assert rows_of_all(table) == before
    files, size = len(list(store.list())), sum(f.size for f in store.list())
    done = table.expire_snapshots(1)
    assert done == would
    assert (done.snapshots, done.earliest_id, snapshot_ids(table)) == (8, 9, [9])
    hint = 1
    assert files + hint - len(list(store.list())) == done.snapshots + done.files
    assert 0 < done.bytes < size
    after = rows_of_all(table)
    assert after == {path: before[path] for path in after}
    assert {"tag/tag-two", "branch/branch-four/snapshot/snapshot-4"} < after.keys()
    assert stray_files(store) == set()
    assert table.verify().is_healthy
    assert table.expire_snapshots(1) == kt.ExpiryResult(0, 0, 0, 9)


def test_tag_that_is_dropped_leaves_nothing_to_hold() -> None:
    table = table_in(full_history())
    table.stored.store.delete([paths.tag_path("two")])
    table.stored.store.delete_tree(paths.branch_dir("four"))
    table.expire_snapshots(1)
    assert stray_files(table.stored.store) == set()


def test_consumer_holds_the_snapshots_that_it_has_still_to_read() -> None:
    table = table_in(full_history())
    put_consumer(table, "slow", 5)
    put_consumer(table, "fast", 9)
    assert table.expire_snapshots(1).snapshots == 4
    assert snapshot_ids(table) == [5, 6, 7, 8, 9]
    stream = table.follow(mode="delta", consumer="slow", timeout_seconds=0)
    assert sum(batch.num_rows for batch in stream) > 0
    assert table.expire_snapshots(1).earliest_id == 9


def test_table_of_no_snapshots_has_nothing_to_expire() -> None:
    table = new_table(empty_store())
    assert table.expire_snapshots(1) == kt.ExpiryResult(0, 0, 0, None)


def test_append_table_and_dynamic_buckets_lose_what_nobody_names() -> None:
    for key, options in (((), {}), (("p", "k"), {"bucket": "-1"})):
        store = empty_store()
        table = kt.connect("", store=store).create_table("t", SCHEMA, key, ["p"], options=options)
        for value in range(4):
            write(table, value)
        table.overwrite([{"p": 1, "k": 1, "v": "anew"}])
        before = rows_at(table, table.metadata.latest_snapshot())
        table.expire_snapshots(1)
        assert stray_files(table.stored.store) == set()
        assert rows_at(table, table.metadata.latest_snapshot()) == before
        write(table, 5)
        assert table.verify().is_healthy


def test_torn_tag_stops_expiry_before_a_file_of_its_goes() -> None:
    table = table_in(full_history())
    store = table.stored.store
    files = {f.path for f in store.list() if "snapshot-" not in f.path}
    store.put(paths.tag_path("two"), b"{")
    with pytest.raises(kt.DataError, match="tag-two"):
        table.expire_snapshots(1)
    assert files <= {f.path for f in store.list()}


# -- readers ---------------------------------------------------------------------------------------


def test_scan_of_a_snapshot_that_expired_says_so() -> None:
    table = table_in(full_history())
    planned = table.scan(snapshot_id=3)
    assert planned.plan.buckets
    changes = table.changes(3, 6)
    tagged = table.scan(tag="two")
    kept = tagged.to_pylist()
    table.expire_snapshots(1)
    way_out = r"'snapshot\.time-retained'"
    with pytest.raises(kt.DataError, match=rf"snapshot 3 expired before it was read.*{way_out}"):
        planned.to_pylist()
    with pytest.raises(kt.DataError, match=rf"snapshot 3 expired.*{way_out}.*read from a tag"):
        list(changes.to_batches())
    with pytest.raises(kt.NotFoundError, match=rf"no snapshot 3; snapshots 9 to 9.*{way_out}"):
        table.scan(snapshot_id=3)
    with pytest.raises(kt.NotFoundError, match=r"no snapshot 3; snapshots 9 to 9 exist"):
        list(table.follow(3, mode="delta", timeout_seconds=0))
    assert tagged.to_pylist() == kept
    assert table.snapshots()._repr_html_().count("<tr>") == 2


# -- whatever fails --------------------------------------------------------------------------------


def places_of_an_expiry() -> list[tuple[str, int]]:
    store = FaultyStore(short_history())
    table_in(store).expire_snapshots(1)
    return stops_of(store.log)


PLACES = places_of_an_expiry()
WRITING = [place for place in PLACES if place[0] in ("hint", "delete")]


@pytest.mark.parametrize("action", ["crash", "fail", "torn", "lost-response"])
def test_expiry_that_dies_anywhere_leaves_all_whole_and_the_next_one_finishes_it(
    action: Any,
) -> None:
    for operation, nth in WRITING:
        store = short_history()
        faulty = FaultyStore(store, [Fault(operation, nth=nth, action=action)])  # type: ignore[arg-type]
        with suppress(Crash, kt.DataError):
            table_in(faulty).expire_snapshots(1)
        table = table_in(store)
        assert torn_snapshots(table.stored.store) == set()
        assert table.scan().to_pylist() == [{"p": 0, "k": 2, "v": "anew"}]
        table.expire_snapshots(1)
        assert snapshot_ids(table) == [5]
        assert torn_snapshots(table.stored.store) == set()
        assert stray_files(table.stored.store) == set()


# -- whatever happens meanwhile --------------------------------------------------------------------


class Beside(FaultyStore):
    """A store in which something happens before its n-th operation of a kind."""

    def __init__(self, inner: Store, operation: str, nth: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.plan = {"operation": operation, "left": nth, "act": act}

    def _perform(self, operation: str, path: str, do: Any, tear: Any = None) -> Any:
        if operation == self.plan["operation"]:
            self.plan["left"] -= 1
            if self.plan["left"] == 0:
                self.plan["act"]()
        return super()._perform(operation, path, do, tear)


def tag_beside(store: Store, name: str, snapshot_id: int) -> bool:
    """Tag a snapshot, and take the tag back where the snapshot is gone by then."""
    table = table_in(store)
    snapshot = table.metadata.snapshot(snapshot_id)
    table.stored.store.put(paths.tag_path(name), Tag(snapshot=snapshot).to_json())
    try:
        return table.metadata.snapshot(snapshot_id) == snapshot
    except kt.NotFoundError:
        table.stored.store.delete([paths.tag_path(name)])
        return False


@pytest.mark.takes_turns
def test_tag_made_at_any_moment_of_an_expiry_is_whole_or_refused() -> None:
    outcomes = set()
    for operation, nth in PLACES:
        store = short_history()
        made: list[bool] = []

        def tag(store: Store = store, made: list[bool] = made) -> None:
            with suppress(kt.NotFoundError):
                made.append(tag_beside(store, "new", 4))

        table_in(Beside(store, operation, nth, tag)).expire_snapshots(1)
        inside = table_in(store).stored.store
        outcomes |= {*made}
        assert torn_snapshots(inside) == set()
        assert inside.exists(paths.tag_path("new")) == any(made)
    assert True in outcomes


def test_tag_made_while_its_snapshot_goes_is_taken_back() -> None:
    store = full_history()
    table = table_in(store)
    snapshot = table.metadata.snapshot(5)
    table.expire_snapshots(1)
    table.stored.store.put(paths.tag_path("new"), Tag(snapshot=snapshot).to_json())
    with pytest.raises(kt.NotFoundError, match="It has expired"):
        table.metadata.snapshot(5)


@pytest.mark.takes_turns
def test_table_that_is_rolled_back_meanwhile_keeps_its_rows() -> None:
    for operation, nth in PLACES:
        store = short_history()
        inside = table_in(store).stored.store
        done = []

        def roll_back(inside: Store = inside, done: list[bool] = done) -> None:
            done.append(True)
            inside.delete(map(paths.snapshot_path, range(5, 2, -1)))
            inside.put(paths.snapshot_path(2), inside.read(paths.tag_path("two")))
            inside.hint(paths.snapshot_hint_path(paths.Hint.LATEST), b"2")
            inside.delete([paths.tag_path("two")])

        with suppress(kt.KeytideError):
            table_in(Beside(store, operation, nth, roll_back)).expire_snapshots(1)
        table = table_in(store)
        assert torn_snapshots(inside) == set()
        rolled_back = [{"p": 0, "k": 1, "v": "1"}]
        assert table.scan().to_pylist() == (
            rolled_back if done else [{"p": 0, "k": 2, "v": "anew"}]
        )


@pytest.mark.takes_turns
def test_expiries_beside_each_other_and_a_writer_lose_nothing() -> None:
    store = full_history()
    table = table_in(store)

    def expire(_: int) -> int:
        return table_in(store).expire_snapshots(2).snapshots

    with ThreadPoolExecutor(4) as pool:
        expired = [pool.submit(expire, number) for number in range(6)]
        for value in range(6, 10):
            write(table, value)
        total = sum(each.result() for each in expired)
    assert total >= 7
    assert table.verify().is_healthy
    table.expire_snapshots(1)
    assert stray_files(table.stored.store) == set()


def commit_and_expire(table: kt.Table, times: int, left: int = 1) -> None:
    """Others go on, and expire what was before."""
    for value in range(times):
        table.write([{"p": 0, "k": 50 + value, "v": "other"}])
    table.expire_snapshots(left)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("written", [0, 1, 3])
@pytest.mark.parametrize(("others", "left"), [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3)])
def test_writer_whose_snapshot_id_expired_before_it_commits_commits_on_top_of_what_is_newest(
    written: int, others: int, left: int
) -> None:
    table = new_table(empty_store(), write_only="true")
    for value in range(written):
        write(table, value)
    before = len(table.scan().to_pylist())
    slow = overtaken(table, lambda: commit_and_expire(table, others, left))
    done = slow.write([{"p": 0, "k": 99, "v": "late"}])
    assert done.snapshot_id == written + others + 1 == max(snapshot_ids(table))
    assert table.scan().count() == before + others + 1
    assert snapshot_ids(table) == list(range(written + others - left + 1, written + others + 2))
    table.expire_snapshots(1)
    assert stray_files(table.stored.store) == set()


@pytest.mark.parametrize(("others", "left"), [(1, 2), (2, 1), (3, 1), (4, 3)])
def test_delete_whose_snapshot_id_expired_before_it_commits_is_made_once(
    others: int, left: int
) -> None:
    table = new_table(empty_store(), write_only="true")
    write(table, 0)
    slow = overtaken(table, lambda: commit_and_expire(table, others, left))
    slow.truncate()
    assert table.scan().to_pylist() == []
    assert max(snapshot_ids(table)) == others + 2
    assert torn_snapshots(table.stored.store) == set()


@pytest.mark.one_in(14)
@pytest.mark.parametrize("merges", ["2", "30"])
@pytest.mark.parametrize(("others", "left"), [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1), (3, 2)])
def test_commit_that_others_build_upon_before_it_is_sure_of_itself_stays(
    others: int, left: int, merges: str
) -> None:
    table = new_table(empty_store(), write_only="true", manifest__merge_min_count=merges)
    write(table, 0)
    before = table.scan().count()

    class Followed(FaultyStore):
        """A store on which others are fast between a commit and what comes next."""

        def create(self, path: str, data: bytes) -> bool:
            made = super().create(path, data)
            commit_and_expire(table, others, left)
            return made

    slow = kt.Table(Followed(table.stored.store), "t")
    assert slow.write([{"p": 0, "k": 99, "v": "first"}]).snapshot_id == 2
    assert table.scan().count() == before + others + 1
    assert snapshot_ids(table) == list(range(max(1, 3 + others - left), 3 + others))
    assert torn_snapshots(table.stored.store) == set()
    table.expire_snapshots(1)
    assert stray_files(table.stored.store) == set()


def test_commit_of_unknown_outcome_that_expired_is_told_so() -> None:
    table = new_table(empty_store(), write_only="true")
    write(table, 0)

    class Lost(FaultyStore):
        """A store that says that the name is taken, where it made it, and then others go on."""

        def create(self, path: str, data: bytes) -> bool:
            super().create(path, data)
            commit_and_expire(table, 2)
            forget_lineages()  # the others are another process
            return False

    slow = kt.Table(Lost(table.stored.store), "t")
    with pytest.raises(kt.DataError, match="unknown whether commit 2 succeeded: it expired"):
        slow.write([{"p": 0, "k": 99, "v": "mine"}])
    assert table.scan(where="k = 99").count() == 1


@pytest.mark.takes_turns
def test_readers_and_writers_beside_aggressive_expiry_go_on() -> None:
    store = full_history()
    stop = Event()

    def expire() -> None:
        while not stop.is_set():
            table_in(store).expire_snapshots(1)

    def read() -> None:
        while not stop.is_set():
            table = table_in(store)
            assert table.metadata.latest_snapshot() is not None
            assert table.snapshots() or True
            table.doctor()
            table.scan()  # planned, though perhaps not to be read any more

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(each) for each in (expire, read, read)]
        try:
            for value in range(6, 16):
                write(table_in(store), value)
        finally:
            stop.set()
        for each in running:
            each.result()
    assert table_in(store).verify().is_healthy


# -- faces -----------------------------------------------------------------------------------------


def test_procedure_takes_the_names_that_users_of_the_format_know() -> None:
    store = full_history()
    lake = kt.connect("", store=store)
    call = "CALL sys.expire_snapshots(table => 'default.t', retain_max => 3, dry_run => true)"
    would = lake.sql(call).to_pylist()
    done = lake.sql("CALL sys.expire_snapshots('default.t', 3)").to_pylist()
    assert would == done
    assert [(row["snapshots"], row["earliest_id"]) for row in done] == [(6, 7)]
    moment = lake.table("t").metadata.snapshot(9).time_millis
    call = f"CALL sys.expire_snapshots(table => 't', older_than => {moment + 1}, retain_min => 1)"
    assert lake.sql(call).to_pylist()[0]["earliest_id"] == 9
    with pytest.raises(kt.InvalidError, match="retain_max is 'all' of type str"):
        lake.sql("CALL sys.expire_snapshots('t', retain_max => 'all')")
