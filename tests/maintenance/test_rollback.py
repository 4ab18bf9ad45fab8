"""Rollback: the table is what it was, and nothing brings back what came later."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from copies import copies_of
from keytide.definition.schema_evolution import AddColumn
from keytide.format import paths
from keytide.format.snapshot import NO_WATERMARK, Consumer, Snapshot
from keytide.store import Store
from keytide.store.faults import Crash, Fault, FaultyStore
from new_tables import empty_store, empty_table, table_in
from overtaking import overtaken
from stops import faults_of, stops_of
from table_rows import by_key, reopened, snapshot_ids

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
OPTIONS = {"write-only": "true"}


@copies_of
def five_snapshots(store: Store) -> None:
    """Snapshot n has the keys 1 to n; each write changes key 1, too. Two of them have tags."""
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"], options=OPTIONS)
    for n in range(1, 6):
        table.write([{"k": k, "v": f"of {n}"} for k in {1, n}])
    table.create_tag("two", 2)
    table.create_tag("four", 4)


@pytest.fixture
def table() -> kt.Table:
    return table_in(five_snapshots())


def state(n: int) -> dict[int, str]:
    """What snapshot n shows."""
    return {1: f"of {n}"} | {k: f"of {k}" for k in range(2, n + 1)}


def row(k: int, v: str = "new") -> list[dict[str, Any]]:
    return [{"k": k, "v": v}]


# -- what it does ----------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [2, "two"], ids=["snapshot", "tag"])
def test_table_is_what_it_was_and_what_came_later_is_gone(table: kt.Table, to: int | str) -> None:
    assert table.rollback_to(to) == kt.RollbackResult(5, 2, 3, 0, ("four",), ())
    assert (snapshot_ids(table), by_key(table)) == ([1, 2], state(2))
    assert [tag.name for tag in table.tags()] == ["two"]
    assert table.metadata.store.read("snapshot/LATEST") == b"2"
    assert table.verify().is_healthy
    assert table.write(row(9)).snapshot_id == 3
    assert by_key(table) == {**state(2), 9: "new"}


def test_table_is_what_it_was_at_a_time(table: kt.Table) -> None:
    to = newest_at(table, table.snapshots()[1].time_millis)
    assert table.rollback_to(as_of=table.snapshots()[1].time_millis).current_snapshot_id == to
    assert by_key(table) == state(to)


def newest_at(table: kt.Table, time_millis: int) -> int:
    """Several commits may be made in one millisecond."""
    return max(s.id for s in table.snapshots() if s.time_millis <= time_millis)


def test_dry_run_tells_the_same_and_changes_nothing(table: kt.Table) -> None:
    told = table.rollback_to(2, dry_run=True)
    assert told == kt.RollbackResult(5, 2, 3, 0, ("four",), ())
    assert (snapshot_ids(table), by_key(table)) == ([1, 2, 3, 4, 5], state(5))
    assert table.rollback_to(2) == told


def test_rollback_to_the_newest_snapshot_changes_nothing(table: kt.Table) -> None:
    assert table.rollback_to(5) == kt.RollbackResult(5, 5, 0, 0, (), ())
    assert snapshot_ids(table) == [1, 2, 3, 4, 5]


def test_tag_whose_snapshot_expired_is_a_snapshot_again(table: kt.Table) -> None:
    table.metadata.store.delete(paths.snapshot_path(n) for n in (1, 2, 3))
    table.metadata.store.put("snapshot/EARLIEST", b"4")
    assert table.rollback_to("two").snapshots == 2
    assert (snapshot_ids(table), by_key(table)) == ([2], state(2))
    assert table.metadata.earliest_snapshot_id() == 2
    assert table.verify().is_healthy
    table.write(row(9))
    assert by_key(table) == {**state(2), 9: "new"}


def test_snapshot_that_expired_is_found_by_its_tag(table: kt.Table) -> None:
    table.metadata.store.delete(paths.snapshot_path(n) for n in (1, 2, 3))
    table.rollback_to(2)
    assert by_key(table) == state(2)


def test_later_changelogs_go_with_their_hint(table: kt.Table) -> None:
    store = table.metadata.store
    for n in (1, 3, 4):
        store.put(paths.changelog_path(n), store.read(paths.snapshot_path(n)))
    store.put("changelog/LATEST", b"4")
    assert table.rollback_to(2).changelogs == 2
    assert store.list_names("changelog") == ["changelog-1"]


def test_columns_stay_those_of_today(table: kt.Table) -> None:
    table.alter(AddColumn(("w",), kt.parse_sql_type("INT")))
    table.write([{"k": 7, "v": "x", "w": 1}])
    table.rollback_to(1)
    assert table.scan().to_pylist() == [{"k": 1, "v": "of 1", "w": None}]


def test_consumers_that_were_told_of_what_is_gone_are_named(table: kt.Table) -> None:
    store = table.metadata.store
    for name, told in (("behind", 2), ("ahead", 4)):
        store.put(paths.consumer_path(name), Consumer(told + 1, told).to_json())
    with pytest.warns(
        kt.KeytideWarning, match="before changes that ahead had already read; restart"
    ) as told_:
        done = table.rollback_to(2)
    assert done.consumers == ("ahead",)
    assert told_[0].filename == __file__
    with pytest.raises(kt.ConflictError, match=r"changes up to snapshot 4 .* was rolled back"):
        list(table.follow(consumer="ahead", timeout_seconds=0))


def test_who_follows_a_table_is_told_that_it_was_rolled_back(table: kt.Table) -> None:
    batches = table.follow("latest", timeout_seconds=5, poll_seconds=0.01)
    table.write(row(6))
    assert next(batches).num_rows == 1
    table.rollback_to(2)
    with pytest.raises(kt.ConflictError, match="rolled back"):
        next(batches)


def test_result_shows_itself_as_a_table(table: kt.Table) -> None:
    shown = table.rollback_to(2, dry_run=True)._repr_html_()
    assert "current_snapshot_id</th>" in shown
    assert "<td>four</td>" in shown


# -- what it refuses -------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[kt.Table], object], type[Exception], str]] = {
    "expired": (
        lambda t: t.rollback_to(1),
        kt.NotFoundError,
        r"oldest is 2, of .*Z, .* 5; tags",
    ),
    "later": (lambda t: t.rollback_to(9), kt.NotFoundError, "no snapshot 9 to roll back to"),
    "before the first": (
        lambda t: t.rollback_to(0),
        kt.NotFoundError,
        "no snapshot 0 to roll back",
    ),
    "negative": (lambda t: t.rollback_to(-1), kt.NotFoundError, "no snapshot -1 to roll back to"),
    "no tag": (
        lambda t: t.rollback_to("3"),
        kt.NotFoundError,
        "no tag '3'; existing tags: four, two",
    ),
    "too early": (
        lambda t: t.rollback_to(as_of=5),
        kt.NotFoundError,
        "at or before 1970-01-01 00:00:00.005Z",
    ),
    "nothing": (lambda t: t.rollback_to(), kt.InvalidError, "give exactly one"),
    "both": (lambda t: t.rollback_to(2, as_of="2026-01-01"), kt.InvalidError, "give exactly one"),
    "no time": (lambda t: t.rollback_to(as_of="soon"), kt.InvalidError, "not an ISO time"),
    "no place": (lambda t: t.rollback_to(2.5), kt.InvalidError, "to is 2.5"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("act", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_and_changes_nothing(
    table: kt.Table, act: Callable[[kt.Table], object], error: type[Exception], message: str
) -> None:
    table.metadata.store.delete([paths.snapshot_path(1)])
    before = {file.path for file in table.metadata.store.list("")}
    with pytest.raises(error, match=message):
        act(table)
    assert {file.path for file in table.metadata.store.list("")} == before


def test_table_without_snapshots_has_no_earlier_state() -> None:
    table = empty_table(SCHEMA, ["k"])
    with pytest.raises(kt.NotFoundError, match="no snapshots"):
        table.rollback_to(1)


def test_tag_of_a_history_that_is_gone_is_no_place_to_go_back_to(table: kt.Table) -> None:
    store = table.metadata.store
    kept = store.read(paths.tag_path("four"))
    table.rollback_to(3)
    table.write(row(9))
    table.write(row(9))
    store.put(paths.tag_path("four"), kept)
    with pytest.raises(kt.ConflictError, match="another snapshot has this id now"):
        table.rollback_to("four")


# -- what was seen before --------------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.parametrize("commits", [0, 1, 3, 4])
def test_nothing_that_was_seen_before_is_served_again(table: kt.Table, commits: int) -> None:
    """Ids come back, and with them names of snapshots that mean something else."""
    seen = [table, reopened(table)]
    for each in seen:
        assert by_key(each) == state(5)
        assert each.get(1) == {"k": 1, "v": "of 5"}
    seen[0].rollback_to(2)
    expected = state(2)
    for n in range(commits):
        seen[0].write(row(3 + n, "again"))
        expected[3 + n] = "again"
    for each in seen:
        assert by_key(each) == expected
        assert each.get(1) == {"k": 1, "v": "of 2"}
        assert each.get(3) == (row(3, "again")[0] if commits else None)
    seen[1].compact(full=True)
    assert by_key(seen[0]) == expected
    assert sorted(r["k"] for r in table.changes(2).to_pylist()) == list(range(3, 3 + commits))


@pytest.mark.takes_turns
def test_another_process_serves_nothing_that_was_rolled_back(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("t", SCHEMA, ["k"], options=OPTIONS)
    for n in range(1, 4):
        table.write(row(n))
    code = """
import sys, keytide as kt
table = kt.connect(sys.argv[1]).table("t")
for line in sys.stdin:
    print(sorted(row["k"] for row in table.scan().to_pylist()), flush=True)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None

        def seen() -> str:
            print(file=other.stdin, flush=True)
            return str(other.stdout and other.stdout.readline().strip())

        assert seen() == "[1, 2, 3]"
        table.rollback_to(1)
        assert seen() == "[1]"
        for n in (7, 8, 9):
            table.write(row(n))
        assert seen() == "[1, 7, 8, 9]"
        other.stdin.close()


# -- beside writers --------------------------------------------------------------------------------


def again_up_to(table: kt.Table, newest: int) -> None:
    """Roll the table back, and write until there is a snapshot of the old id again."""
    table.rollback_to(2)
    for n in range(3, newest + 1):
        table.write(row(20 + n, "again"))


BESIDE: dict[str, Callable[[kt.Table], object]] = {
    "rolled back": lambda t: t.rollback_to(2),
    "with as many snapshots again": lambda t: again_up_to(t, 5),
}


@pytest.mark.parametrize("meanwhile", BESIDE.values(), ids=BESIDE)
def test_append_that_began_before_brings_nothing_back(
    table: kt.Table, meanwhile: Callable[[kt.Table], object]
) -> None:
    done = overtaken(table, lambda: meanwhile(table)).write(row(9))
    newest = snapshot_ids(table)
    assert newest == list(range(1, len(newest) + 1))
    assert done.snapshot_id == newest[-1]
    expected = by_key(table.scan(snapshot_id=newest[-2]))
    assert {k for k in expected if k < 10} == {1, 2}
    assert by_key(table) == by_key(reopened(table)) == {**expected, 9: "new"}
    assert table.verify().is_healthy


@pytest.mark.parametrize("meanwhile", BESIDE.values(), ids=BESIDE)
def test_overwrite_that_began_before_replaces_what_is_there(
    table: kt.Table, meanwhile: Callable[[kt.Table], object]
) -> None:
    overtaken(table, lambda: meanwhile(table)).overwrite(row(9))
    assert by_key(table) == {9: "new"}
    assert table.verify().is_healthy


@pytest.mark.parametrize("meanwhile", BESIDE.values(), ids=BESIDE)
def test_compaction_of_what_is_gone_commits_nothing(
    table: kt.Table, meanwhile: Callable[[kt.Table], object]
) -> None:
    done = overtaken(table, lambda: meanwhile(table)).compact(full=True)
    assert done.overtaken
    assert {k for k in by_key(table) if k < 10} == {1, 2}
    assert table.verify().is_healthy


@pytest.mark.parametrize("meanwhile", BESIDE.values(), ids=BESIDE)
def test_update_of_rows_that_are_gone_is_made_of_those_there_are(
    table: kt.Table, meanwhile: Callable[[kt.Table], object]
) -> None:
    late = overtaken(table, lambda: meanwhile(table))

    late.update({"v": "v || '!'"})
    assert {k: v for k, v in by_key(table).items() if k < 10} == {1: "of 2!", 2: "of 2!"}
    assert table.verify().is_healthy


@pytest.mark.takes_turns
@pytest.mark.parametrize("meanwhile", BESIDE.values(), ids=BESIDE)
def test_keys_of_dynamic_buckets_stay_in_one_bucket(
    meanwhile: Callable[[kt.Table], object],
) -> None:
    options = {**OPTIONS, "bucket": "-1", "dynamic-bucket.target-row-num": "2"}
    table = empty_table(SCHEMA, ["k"], options=options)
    for n in range(1, 6):
        table.write([{"k": k, "v": f"of {n}"} for k in {1, n}])
    overtaken(table, lambda: meanwhile(table)).write([{"k": k, "v": "new"} for k in (1, 4, 5, 9)])
    table.write([{"k": k, "v": "newer"} for k in range(1, 12)])
    assert table.verify().is_healthy
    assert {k: v for k, v in by_key(table).items() if k < 12} == dict.fromkeys(
        range(1, 12), "newer"
    )


def test_commit_on_a_snapshot_that_expired_stays(table: kt.Table) -> None:
    """Expiry takes the oldest snapshots, and may take the one that a commit was made on."""

    class Expiring(FaultyStore):
        def create(self, path: str, data: bytes) -> bool:
            made = super().create(path, data)
            self.inner.delete(paths.snapshot_path(n) for n in range(1, 6))
            return made

    assert kt.Table(Expiring(table.metadata.store), "t").write(row(9)).snapshot_id == 6
    assert by_key(table) == {**state(5), 9: "new"}


class Between(FaultyStore):
    """Carries the next of `acts` out before each delete."""

    def __init__(self, inner: Store, acts: Iterable[Callable[[], object]]) -> None:
        super().__init__(inner)
        self.acts = list(acts)

    def delete(self, paths: Iterable[str]) -> None:
        if self.acts:
            self.acts.pop(0)()
        super().delete(paths)


@pytest.mark.parametrize("before", range(3))
def test_what_others_commit_meanwhile_is_rolled_back_as_well(table: kt.Table, before: int) -> None:
    """`before` deletes are done, of the snapshots 5, 4 and 3; then somebody writes."""
    acts = [lambda: None] * before + [lambda: table.write(row(9))]
    kt.Table(Between(table.metadata.store, acts), "t").rollback_to(2)
    assert (snapshot_ids(table), by_key(table)) == ([1, 2], state(2))
    assert table.verify().is_healthy


def test_snapshot_that_another_engine_leaves_beyond_a_gap_is_deleted(table: kt.Table) -> None:
    store = table.metadata.store
    copied = store.read(paths.snapshot_path(5))
    acts = [lambda: None] * 2 + [lambda: store.put(paths.snapshot_path(7), copied)]
    kt.Table(Between(store, acts), "t").rollback_to(2)
    assert snapshot_ids(table) == [1, 2]


@pytest.mark.takes_turns
def test_writers_that_go_on_for_ever_are_to_be_stopped(table: kt.Table) -> None:
    class Busy(FaultyStore):
        def list_names(self, path: str) -> list[str]:
            table.write(row(9))
            return super().list_names(path)

    with pytest.raises(kt.ConflictError, match="other writers keep committing"):
        kt.Table(Busy(table.metadata.store), "t").rollback_to(2)
    table.rollback_to(2)
    assert by_key(table) == state(2)
    assert table.verify(quick=True).is_healthy


def test_snapshot_that_expires_meanwhile_is_not_gone_back_to(table: kt.Table) -> None:
    store = table.metadata.store
    acts = [lambda: store.delete([paths.snapshot_path(n) for n in (1, 2)])]
    with pytest.raises(kt.NotFoundError, match="no snapshot 2; snapshots 3 to 3"):
        kt.Table(Between(store, acts), "t").rollback_to(2)
    assert by_key(table) == state(3)


# -- commits beside it, at any moment --------------------------------------------------------------


class Meanwhile(FaultyStore):
    """Carries out what `acts` has for the number of an operation just before that one."""

    def __init__(self, inner: Store, acts: dict[int, Callable[[], object]]) -> None:
        super().__init__(inner)
        self.acts = acts

    def _perform(self, operation: str, path: str, do: Any, tear: Any = None) -> Any:
        act = self.acts.pop(len(self.log), None)
        if act is not None:
            act()
        return super()._perform(operation, path, do, tear)


COMMITS: dict[str, Callable[[kt.Table], object]] = {
    "write": lambda t: t.write(row(9)),
    "compact": lambda t: t.compact(full=True),
    "overwrite": lambda t: t.overwrite(row(9)),
    "restore": lambda t: t.restore(1),
    "truncate": lambda t: t.truncate(),
}


@cache
def counted_operations(name: str) -> int:
    store = FaultyStore(five_snapshots())
    COMMITS[name](table_in(store))
    return len(store.log)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", COMMITS)
def test_commit_beside_writers_and_a_rollback_is_made_or_conflicts(name: str, seed: int) -> None:
    """Others write, and then somebody rolls back; nothing is called unknown that can be told."""
    choice = random.Random(f"{name} {seed}")
    written, back = sorted(choice.sample(range(counted_operations(name) + 12), 2))
    count, target, goes_on = choice.randint(1, 3), choice.randint(2, 5), choice.random() < 0.5
    store = five_snapshots()

    def write() -> None:
        for n in range(count):
            table_in(store).write(row(20 + n))

    def roll_back() -> None:
        table_in(store).rollback_to(target)
        if goes_on:
            table_in(store).write(row(30))

    # Others may roll back what was made here too, or conflict with it.
    with suppress(kt.ConflictError):
        COMMITS[name](table_in(Meanwhile(store, {written: write, back: roll_back})))
    table = table_in(store)
    table.write(row(40))
    assert table.verify().is_healthy
    assert 40 in by_key(table)


# -- crashes ---------------------------------------------------------------------------------------


def expired(store: Store) -> None:
    store.delete([f"default.db/t/{paths.snapshot_path(n)}" for n in (1, 2, 3)])


def operations(prepare: Callable[[Store], None]) -> list[tuple[str, int]]:
    inner = five_snapshots()
    prepare(inner)
    store = FaultyStore(inner)
    table_in(store).rollback_to("two")
    return stops_of(store.log)


STOPS = [
    pytest.param(prepare, *fault, id="-".join(map(str, (prepare.__name__, *fault))))
    for prepare in (expired, lambda _: None)
    for fault in faults_of(operations(prepare), "crash", "fail", "lost-response")
]


@pytest.mark.parametrize(("prepare", "operation", "nth", "action"), STOPS)
def test_wherever_it_stops_the_table_is_one_of_its_states_and_the_same_call_goes_on(
    prepare: Callable[[Store], None], operation: Any, nth: int, action: Any
) -> None:
    store = five_snapshots()
    prepare(store)
    faulty = FaultyStore(store, [Fault(operation, nth=nth, action=action)])
    with suppress(Crash, kt.DataError):
        table_in(faulty).rollback_to("two")
    table = table_in(store)
    assert by_key(table) in [state(n) for n in range(2, 6)]
    assert table_in(store).rollback_to("two").current_snapshot_id == 2
    assert (snapshot_ids(table)[-1], by_key(table)) == (2, state(2))
    assert [tag.name for tag in table.tags()] == ["two"]
    table.write(row(9))
    assert by_key(table) == {**state(2), 9: "new"}
    assert table.verify(quick=True).is_healthy


# -- any history -----------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 6), st.sampled_from("abc")),
        st.tuples(st.just("delete"), st.integers(1, 6)),
        st.tuples(st.just("rollback"), st.integers(0, 20)),
        st.tuples(st.just("compact")),
        st.tuples(st.just("tag"), st.integers(0, 20)),
    ),
    max_size=25,
)


@given(steps=STEPS)
def test_history_is_what_a_list_of_dicts_is(steps: list[tuple[Any, ...]]) -> None:
    store = empty_store()
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"])
    states: list[dict[int, str]] = [{}]
    tags: dict[str, int] = {}
    names = (f"t{number}" for number in itertools.count())
    for name, *arguments in steps:
        newest = len(states) - 1
        if name == "write":
            k, v = arguments
            table.write(row(k, v))
            states.append({**states[-1], k: v})
        elif name == "delete":
            table.write([{"k": arguments[0], "v": None, "_row_kind": "-D"}])
            states.append({k: v for k, v in states[-1].items() if k != arguments[0]})
        elif name == "compact":
            table.compact(full=True)
        elif newest and name == "tag":
            number = 1 + arguments[0] % newest
            tags[table.create_tag(next(names), number).name] = number
        elif newest:
            number = 1 + arguments[0] % newest
            table.rollback_to(number)
            del states[number + 1 :]
            tags = {tag: at for tag, at in tags.items() if at <= number}
        # A write may compact after its commit, and a compaction makes a snapshot of the same rows.
        states += [states[-1]] * (len(table.snapshots()) - len(states) + 1)
        assert by_key(table) == states[-1]
    for number, expected in enumerate(states[1:], start=1):
        assert by_key(table.scan(snapshot_id=number)) == expected
    assert {tag.name: tag.snapshot_id for tag in table.tags()} == tags
    for tag, at in tags.items():
        assert by_key(table.scan(tag=tag)) == states[at]
    assert table.verify().is_healthy


# -- SQL -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "to"),
    [
        ("rollback('t', '2')", 2),
        ("rollback(table => 't', version => 'four')", 4),
        ("rollback(table => 't', snapshot => 3)", 3),
        ("rollback(table => 't', tag => 'two')", 2),
        ("rollback_to('t', 'two')", 2),
        ("rollback_to(`table` => 't', snapshot_id => 3)", 3),
    ],
)
def test_procedures_roll_back(call: str, to: int) -> None:
    lake = kt.connect("", store=five_snapshots())
    found = lake.sql(f"CALL sys.{call}").to_pylist()
    assert found == [{"previous_snapshot_id": 5, "current_snapshot_id": to}]
    assert by_key(lake.table("t")) == state(to)


def test_procedure_rolls_back_to_the_newest_snapshot_of_a_time() -> None:
    lake = kt.connect("", store=five_snapshots())
    time = lake.table("t").snapshots()[2].time_millis
    to = newest_at(lake.table("t"), time)
    lake.sql(f"CALL sys.rollback_to_timestamp('t', {time})")
    assert by_key(lake.table("t")) == state(to)


def with_watermarks(table: kt.Table, *marks: int | None) -> kt.Table:
    """The table, as if a stream had told these watermarks from the first snapshot on."""
    store = table.metadata.store
    for number, mark in enumerate(marks, start=1):
        path = paths.snapshot_path(number)
        told = replace(Snapshot.from_json(store.read(path), path), watermark=mark)
        store.put(path, told.to_json())
    return table


def test_watermark_means_the_newest_snapshot_that_had_come_as_far() -> None:
    lake = kt.connect("", store=five_snapshots())
    table = with_watermarks(lake.table("t"), None, 10, 10, NO_WATERMARK, 30)
    lake.sql("CALL sys.create_tag_from_watermark('t', 'late', 11)")
    assert [tag.snapshot_id for tag in table.tags() if tag.name == "late"] == [5]
    with pytest.raises(kt.NotFoundError, match="31 or a later one; the latest is 30"):
        lake.sql("CALL sys.create_tag_from_watermark('t', 'later', 31)")
    with pytest.raises(kt.NotFoundError, match="9 or an earlier one; the earliest is 10"):
        table.rollback_to(watermark=9)
    assert table.rollback_to(watermark=30, dry_run=True).current_snapshot_id == 5
    assert table.rollback_to(watermark=29, dry_run=True).current_snapshot_id == 3
    lake.sql("CALL sys.rollback_to_watermark(table => 't', watermark => 10)")
    assert by_key(table) == state(3)


def test_table_without_watermarks_says_so() -> None:
    table = kt.connect("", store=five_snapshots()).table("t")
    with pytest.raises(kt.NotFoundError, match="no snapshot has a watermark"):
        table.rollback_to(watermark=1)
    with pytest.raises(kt.InvalidError, match="give exactly one"):
        table.rollback_to(1, watermark=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("rollback('t')", "nothing given; .* one of version, snapshot, tag"),
        ("rollback('t', '2', 3)", "version and snapshot given"),
        ("rollback_to('t', 'two', 2)", "tag and snapshot given"),
        ("rollback_to_timestamp('t', '2026')", "timestamp is '2026', which is not an ISO time"),
    ],
)
def test_procedures_want_one_place(call: str, message: str) -> None:
    lake = kt.connect("", store=five_snapshots())
    with pytest.raises(kt.InvalidError, match=message):
        lake.sql(f"CALL sys.{call}")
