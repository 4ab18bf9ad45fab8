"""Restore: partitions are what they were, with nothing rewritten and no history lost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import keytide as kt
from copies import copies_of
from keytide.definition.schema_evolution import AddColumn, SetOption
from keytide.format.snapshot import CommitKind
from keytide.store import Store
from keytide.store.faults import Crash, Fault, FaultyStore
from new_tables import dotted, empty_lake, empty_table, table_in
from overtaking import overtaken
from stops import faults_of, stops_of
from table_rows import reopened, snapshot_ids

SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("v", pa.string())])
Rows = dict[tuple[str, int], str]


def new_table(store: Store | None = None, **options: str) -> kt.Table:
    given = {"write-only": "true", **dotted(options)}
    return empty_table(SCHEMA, ["p", "k"], ["p"], options=given, store=store)


def row(p: str, k: int, v: str | None, kind: str = "+I") -> dict[str, Any]:
    return {"p": p, "k": k, "v": v, "_row_kind": kind}


@copies_of
def four_snapshots(store: Store) -> None:
    """Two partitions; the second snapshot has a tag, the third changes a, the fourth both."""
    table = new_table(store)
    table.write([row("a", 1, "old"), row("b", 1, "old")])
    table.write([row("a", 2, "old"), row("b", 2, "old")])
    table.create_tag("two", 2)
    table.write([row("a", 1, "new"), row("a", 2, None, "-D")])
    table.overwrite([row("a", 3, "over"), row("b", 3, "over")])


TWO: Rows = {("a", 1): "old", ("a", 2): "old", ("b", 1): "old", ("b", 2): "old"}
NOW: Rows = {("a", 3): "over", ("b", 3): "over"}
A_AS_IN_TWO: Rows = {("a", 1): "old", ("a", 2): "old", ("b", 3): "over"}


@pytest.fixture
def table() -> kt.Table:
    return kt.connect("", store=four_snapshots()).table("t")


def values(table: kt.Table, **travel: Any) -> Rows:
    return {(r["p"], r["k"]): r["v"] for r in table.scan(**travel).to_pylist()}


def tag_names(table: kt.Table) -> list[str]:
    return [tag.name for tag in table.tags()]


def data_files(table: kt.Table) -> set[str]:
    return {info.path for info in table.metadata.store.list("") if "bucket-" in info.path}


# -- what it does ----------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [2, "two"], ids=["snapshot", "tag"])
def test_partition_is_what_it_was_and_the_others_stay(table: kt.Table, to: int | str) -> None:
    before = data_files(table)
    told = table.restore(to, {"p": "a"}, dry_run=True)
    assert (told, values(table)) == (kt.RestoreResult(None, 2, 1, 1, 2), NOW)
    assert table.restore(to, {"p": "a"}) == kt.RestoreResult(5, 2, 1, 1, 2)
    assert values(table) == A_AS_IN_TWO
    assert values(table, snapshot_id=4) == NOW
    assert data_files(table) == before
    assert (snapshot_ids(table), table.snapshots()[-1].commit_kind.value) == (
        [1, 2, 3, 4, 5],
        "OVERWRITE",
    )
    assert table.verify().is_healthy


def test_whole_table_is_what_it_was(table: kt.Table) -> None:
    assert table.restore("two") == kt.RestoreResult(5, 2, 2, 2, 4)
    assert values(table) == TWO
    assert table.restore("two") == kt.RestoreResult(None, 2, 0, 0, 0)
    assert table.restore(4).snapshot_id == 6
    assert values(table) == NOW
    assert table.verify().is_healthy


def test_table_is_what_it_was_at_a_time(table: kt.Table) -> None:
    time = table.snapshots()[2].time_millis
    expected = values(table, as_of=time)
    table.restore(as_of=time)
    assert values(table) == expected


def test_partition_that_was_not_there_yet_is_empty_again(table: kt.Table) -> None:
    table.write([row("c", 1, "late")])
    assert table.restore(4, {"p": "c"}) == kt.RestoreResult(6, 4, 1, 1, 0)
    assert values(table) == NOW
    assert tag_names(table) == ["two"]


def test_files_that_are_live_still_are_left_alone(table: kt.Table) -> None:
    table.write([row("a", 4, "more")])
    assert table.restore(4, {"p": "a"}) == kt.RestoreResult(6, 4, 1, 1, 0)
    assert values(table) == NOW
    assert table.restore(4) == kt.RestoreResult(None, 4, 0, 0, 0)


def test_restored_rows_are_written_to_compacted_and_told_of(table: kt.Table) -> None:
    table.restore("two", {"p": "a"})
    changed = {(r["_row_kind"], r["p"], r["k"]) for r in table.changes(4).to_pylist()}
    assert changed == {("+I", "a", 1), ("+I", "a", 2), ("-D", "a", 3)}
    table.write([row("a", 1, "after"), row("b", 1, "after")])
    expected = {**A_AS_IN_TWO, ("a", 1): "after", ("b", 1): "after"}
    assert values(table) == expected
    table.compact(full=True)
    assert values(table) == values(reopened(table)) == expected
    assert table.get(("a", 1)) == {"p": "a", "k": 1, "v": "after"}
    assert table.verify().is_healthy


def test_columns_are_those_of_today(table: kt.Table) -> None:
    table.alter(AddColumn(("w",), kt.parse_sql_type("INT")))
    table.restore(1, {"p": "b"})
    (found,) = table.scan(where="p = 'b'").to_pylist()
    assert found == {"p": "b", "k": 1, "v": "old", "w": None}


def test_keys_of_dynamic_buckets_are_found_where_they_were() -> None:
    table = empty_table(
        SCHEMA,
        ["p", "k"],
        ["p"],
        options={"write-only": "true", "bucket": "-1", "dynamic-bucket.target-row-num": "2"},
    )
    table.write([row("a", k, "old") for k in range(5)])
    table.overwrite([row("a", k, "over") for k in (4, 3, 9)])
    table.restore(1, {"p": "a"})
    table.write([row("a", k, "new") for k in range(10)])
    assert values(table) == {("a", k): "new" for k in range(10)}
    assert table.verify().is_healthy


def test_rows_that_vectors_mark_are_dead_as_they_were() -> None:
    table = empty_table(SCHEMA, ["p", "k"], ["p"], options={"deletion-vectors.enabled": "true"})
    table.write([row("a", k, "old") for k in range(5)])
    table.write([row("a", 1, None, "-D"), row("a", 2, "new")])
    then = table.snapshots()[-1].id
    expected = values(table)
    table.write([row("a", 3, None, "-D")])
    assert values(table) != expected
    table.restore(then)
    assert values(table) == expected
    table.write([row("a", 1, "back")])
    assert values(table) == {**expected, ("a", 1): "back"}
    table.restore(1)
    assert table.verify().is_healthy


STILL_LIVE: dict[str, dict[str, str]] = {
    "sorted": {},
    "marked": {"deletion-vectors.enabled": "true"},
    "indexed": {"file-index.bloom-filter.columns": "k", "file-index.in-manifest-threshold": "1 b"},
    "embedded": {"file-index.bloom-filter.columns": "k"},
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("options", STILL_LIVE.values(), ids=STILL_LIVE)
def test_file_that_was_moved_to_another_level_comes_back_and_is_moved_again(
    options: dict[str, str],
) -> None:
    table = new_table(write_only="false", num_sorted_run_compaction_trigger="9", **options)
    table.write([row("a", 1, "old"), row("a", 2, "old")])
    then = table.snapshots()[-1].id
    table.compact(full=True)
    table.write([row("a", 2, None, "-D")])
    both = {("a", 1): "old", ("a", 2): "old"}
    for _ in range(3):
        table.restore(then)
        assert values(table) == values(reopened(table)) == both
        table.compact(full=True)
        assert values(table) == values(reopened(table)) == both
        table.restore(then)
        table.write([row("a", 2, None, "-D")])
        assert values(reopened(table)) == {("a", 1): "old"}
    assert table.get(("a", 1)) == {"p": "a", "k": 1, "v": "old"}
    time.sleep(0.002)
    table.remove_orphan_files(time.time_ns() // 1_000_000, dry_run=False)
    table.expire_snapshots(1, 1)
    table.expire_tags()
    table.expire_snapshots(1, 1)
    assert values(reopened(table)) == {("a", 1): "old"}
    assert table.verify().is_healthy


def test_append_table_has_the_rows_that_it_had() -> None:
    table = empty_table(SCHEMA, [], ["p"])
    table.write([row("a", 1, "x") | {"_row_kind": "+I"}])
    table.write([row("a", 1, "x")])
    table.truncate()
    table.restore(2)
    assert table.scan().count() == 2


# -- what guards it --------------------------------------------------------------------------------


def test_tag_guards_what_came_back_until_the_snapshots_in_between_have_expired(
    table: kt.Table,
) -> None:
    table.delete_tag("two")
    table.restore(2, {"p": "a"})
    assert tag_names(table) == ["restored-2-by-5"]
    for act in (
        lambda: table.delete_tag("restored-2-by-5"),
        lambda: table.rename_tag("restored-2-by-5", "x"),
        lambda: table.replace_tag("restored-2-by-5"),
    ):
        with pytest.raises(kt.InvalidError, match=r"protects restored files .* expire_snapshots"):
            act()
    assert table.expire_tags("2100-01-01") == []
    table.write([row("b", 9, "x")])
    for most in (5, 4, 3):
        table.expire_snapshots(most, 1)
        assert (values(table), tag_names(table)) == (
            {**A_AS_IN_TWO, ("b", 9): "x"}, ["restored-2-by-5"],
        )  # fmt: skip
    table.expire_snapshots(2, 1)
    assert snapshot_ids(table) == [5, 6]
    assert [tag.name for tag in table.expire_tags()] == ["restored-2-by-5"]
    for most in (2, 1):
        table.expire_snapshots(most, 1)
        assert values(table) == {**A_AS_IN_TWO, ("b", 9): "x"}
    assert table.verify().is_healthy


def test_restore_that_was_rolled_back_needs_no_guard(table: kt.Table) -> None:
    table.restore(2, {"p": "a"})
    table.rollback_to(4)
    table.delete_tag("restored-2-by-5")
    assert values(table) == NOW


def test_restore_of_what_a_tag_alone_keeps_is_guarded_too(table: kt.Table) -> None:
    table.expire_snapshots(1, 1)
    table.restore("two", {"p": "a"})
    assert tag_names(table) == ["restored-2-by-5", "two"]
    table.delete_tag("two")
    table.write([row("b", 9, "x")])
    table.expire_snapshots(1, 1)
    assert values(table) == {**A_AS_IN_TWO, ("b", 9): "x"}
    assert table.verify().is_healthy


# -- refused ---------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[kt.Table], object], type[Exception], str]] = {
    "nothing": (lambda t: t.restore(), kt.InvalidError, "give exactly one"),
    "two places": (lambda t: t.restore(2, as_of="2026-01-01"), kt.InvalidError, "give exactly one"),
    "later": (
        lambda t: t.restore(9),
        kt.NotFoundError,
        "no snapshot 9 to roll back to; the oldest",
    ),
    "no tag": (lambda t: t.restore("x"), kt.NotFoundError, "no tag 'x'; existing tags: two"),
    "column": (lambda t: t.restore(2, {"q": 1}), kt.InvalidError, "partition columns are p"),
    "no partition": (lambda t: t.restore(2, {}), kt.InvalidError, "names no column"),
    "value": (lambda t: t.restore(2, {"p": 1}), kt.InvalidError, "'p' is STRING"),
}


@pytest.mark.parametrize(("act", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_and_changes_nothing(
    table: kt.Table, act: Callable[[kt.Table], object], error: type[Exception], message: str
) -> None:
    before = {file.path for file in table.metadata.store.list("")}
    with pytest.raises(error, match=message):
        act(table)
    assert {file.path for file in table.metadata.store.list("")} == before


def test_rows_that_would_be_read_by_other_rules_are_not_brought_back(table: kt.Table) -> None:
    table.truncate()
    table.alter(SetOption("sequence.field", "v"))
    with pytest.raises(kt.UnsupportedError, match=r"read differently.*sequence.field.* AS OF 2"):
        table.restore(2)
    assert values(table) == {}


def test_parts_of_a_table_whose_keys_move_are_refused() -> None:
    table = empty_table(SCHEMA, ["k"], ["p"], options={"bucket": "-1"})
    table.write([row("a", 1, "x"), row("a", 2, "x")])
    table.write([row("b", 1, "moved")])
    with pytest.raises(kt.UnsupportedError, match="restore the whole table"):
        table.restore(1, {"p": "a"})
    table.restore(1)
    assert values(table) == {("a", 1): "x", ("a", 2): "x"}
    table.write([row("b", 1, "moved")])
    assert values(table) == {("b", 1): "moved", ("a", 2): "x"}
    assert table.verify().is_healthy


# -- races and crashes -----------------------------------------------------------------------------


def test_what_others_commit_meanwhile_is_replaced_there_alone(table: kt.Table) -> None:
    late = overtaken(
        table,
        lambda: None,  # the guard
        lambda: table.write([row("a", 8, "meanwhile"), row("b", 8, "meanwhile")]),
    )
    assert late.restore(2, {"p": "a"}).snapshot_id == 6
    assert values(table) == {**A_AS_IN_TWO, ("b", 8): "meanwhile"}
    assert table.verify().is_healthy


def test_file_that_another_one_moves_meanwhile_comes_back_as_a_copy() -> None:
    table = new_table(write_only="false")
    table.write([row("a", 1, "old"), row("b", 1, "old")])
    table.write([row("b", 1, "new")])
    late = overtaken(table, lambda: None, lambda: table.compact(full=True))  # after the guard
    late.restore(1)
    old = {("a", 1): "old", ("b", 1): "old"}
    assert values(reopened(table)) == old
    table.compact(full=True)
    assert values(table) == values(reopened(table)) == old
    assert table.verify().is_healthy


def test_append_that_began_before_lies_on_top(table: kt.Table) -> None:
    late = overtaken(table, lambda: table.restore(2, {"p": "a"}))
    late.write([row("a", 1, "late")])
    assert values(table) == {**A_AS_IN_TWO, ("a", 1): "late"}


def test_compaction_that_began_before_commits_nothing(table: kt.Table) -> None:
    table.write([row("a", 7, "x")])
    late = overtaken(table, lambda: table.restore(2, {"p": "a"}))
    assert late.compact(full=True).overtaken
    assert values(table) == A_AS_IN_TWO


def test_snapshot_that_expires_meanwhile_is_not_brought_back(table: kt.Table) -> None:
    table.delete_tag("two")

    class Expiring(FaultyStore):
        def create(self, path: str, data: bytes) -> bool:
            kt.Table(self.inner, "t").expire_snapshots(1, 1)
            return super().create(path, data)

    with pytest.raises(kt.ConflictError, match="snapshot 2 expired"):
        kt.Table(Expiring(table.metadata.store), "t").restore(2)
    assert (values(table), tag_names(table)) == (NOW, [])


def operations() -> list[tuple[str, int]]:
    store = FaultyStore(four_snapshots())
    table_in(store).restore(2, {"p": "a"})
    return stops_of(store.log, "create", "put", "delete", "hint", "output")


@pytest.mark.parametrize(
    ("operation", "nth", "action"),
    faults_of(operations(), "crash", "fail", "lost-response", "torn"),
)
def test_wherever_it_stops_the_partition_is_old_or_new_and_the_same_call_goes_on(
    operation: Any, nth: int, action: Any
) -> None:
    store = four_snapshots()
    faulty = FaultyStore(store, [Fault(operation, nth=nth, action=action)])
    before = data_files(table_in(store))
    with suppress(Crash, kt.DataError):
        table_in(faulty).restore(2, {"p": "a"})
    table = table_in(store)
    assert values(table) in (NOW, A_AS_IN_TWO)
    table.restore(2, {"p": "a"})
    assert values(table) == A_AS_IN_TWO
    assert data_files(table) == before
    table.delete_tag("two")
    table.write([row("b", 9, "x")])
    for most in range(5, 0, -1):
        table.expire_snapshots(most, 1)
        table.expire_tags()
        assert values(table) == {**A_AS_IN_TWO, ("b", 9): "x"}
    assert table.verify().is_healthy


# -- SQL -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("restore('t', 'p=a', 'two')", A_AS_IN_TWO),
        ("restore('t', 'p=a', '2')", A_AS_IN_TWO),
        ("restore(table => 't', partitions => 'p=a; p=b', snapshot => 2)", TWO),
        ("restore(table => 't', tag => 'two')", TWO),
        ("restore(table => 't', tag => 'two', dry_run => true)", NOW),
        ("rollback_to_as_latest('t', 'two')", TWO),
        ("rollback_to_as_latest(table => 't', snapshot_id => 2)", TWO),
    ],
)
def test_procedures_restore(call: str, expected: Rows) -> None:
    lake = kt.connect("", store=four_snapshots())
    (told,) = lake.sql(f"CALL sys.{call}").to_pylist()
    assert values(lake.table("t")) == expected
    assert told.get("restored_snapshot_id", told.get("rolled_back_snapshot_id")) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("restore('t', 'p=a')", "nothing given"),
        ("restore('t', 'p', 2)", "'p' is not a partition; write it as p="),
        ("restore('t', 'q=1', 2)", "partition columns are p"),
        ("rollback_to_as_latest('t')", "nothing given"),
    ],
)
def test_procedures_say_what_is_missing(call: str, message: str) -> None:
    lake = kt.connect("", store=four_snapshots())
    with pytest.raises(kt.InvalidError, match=message):
        lake.sql(f"CALL sys.{call}")


def test_texts_of_partitions_are_values_of_their_columns() -> None:
    lake = empty_lake()
    schema = pa.schema([("d", pa.date32()), ("n", pa.int32()), ("k", pa.int64())])
    table = lake.create_table("t", schema, ["d", "n", "k"], ["d", "n"])
    for n in (1, 2):
        days, numbers = pa.array([20_000], pa.date32()), pa.array([n], pa.int32())
        table.write(pa.table({"d": days, "n": numbers, "k": [1]}))
    table.truncate()
    lake.sql("CALL sys.restore('t', 'd=2024-10-04, n=2', 2)")
    assert [r["n"] for r in table.scan().to_pylist()] == [2]


# -- any history -----------------------------------------------------------------------------------


class Restoring(RuleBasedStateMachine):
    """A table beside dicts of what each snapshot shows, by its identity."""

    @initialize(
        buckets=st.sampled_from(["1", "2", "-1"]),
        more=st.sampled_from([{}, {"deletion-vectors.enabled": "true"}, {"write-only": "true"}]),
    )
    def begin(self, buckets: str, more: dict[str, str]) -> None:
        self.table = empty_table(
            SCHEMA,
            ["p", "k"],
            ["p"],
            options={
                "bucket": buckets,
                "num-sorted-run.compaction-trigger": "3",
                "manifest.merge-min-count": "3",
                **more,
            },
        )
        self.is_marked = "deletion-vectors.enabled" in more
        self.now: Rows = {}
        self.then: dict[str | None, Rows] = {}
        self.numbers = itertools.count()

    @rule(p=st.sampled_from("ab"), ks=st.sets(st.integers(0, 4), min_size=1))
    def write(self, p: str, ks: set[int]) -> None:
        value = str(next(self.numbers))
        self.table.write([row(p, k, value) for k in ks])
        self.now = {**self.now, **{(p, k): value for k in ks}}
        self.note()

    @rule(p=st.sampled_from("ab"), k=st.integers(0, 4))
    def delete(self, p: str, k: int) -> None:
        self.table.write([row(p, k, None, "-D")])
        self.now = {key: v for key, v in self.now.items() if key != (p, k)}
        self.note()

    @rule(p=st.sampled_from("ab"), k=st.integers(0, 4))
    def overwrite(self, p: str, k: int) -> None:
        value = str(next(self.numbers))
        self.table.overwrite([row(p, k, value)], {"p": p})
        self.now = {key: v for key, v in self.now.items() if key[0] != p} | {(p, k): value}
        self.note()

    @precondition(lambda self: self.whole_snapshots())
    @rule(pick=st.integers(0, 99), p=st.sampled_from(["a", "b", None]))
    def restore(self, pick: int, p: str | None) -> None:
        snapshots = self.whole_snapshots()
        snapshot = snapshots[pick % len(snapshots)]
        self.table.restore(snapshot.id, None if p is None else {"p": p})
        then = self.then[snapshot.uuid]
        self.now = {key: v for key, v in then.items() if p in (None, key[0])} | {
            key: v for key, v in self.now.items() if p is not None and key[0] != p
        }
        self.note()

    @precondition(lambda self: self.whole_snapshots())
    @rule(pick=st.integers(0, 99))
    def roll_back(self, pick: int) -> None:
        snapshots = self.whole_snapshots()
        snapshot = snapshots[pick % len(snapshots)]
        self.table.rollback_to(snapshot.id)
        self.now = self.then[snapshot.uuid]

    @rule(full=st.booleans())
    def compact(self, full: bool) -> None:
        self.table.compact(full=full)
        self.note()

    @precondition(lambda self: self.table.snapshots())
    @rule(column=st.sampled_from("kv"))
    def index_files(self, column: str) -> None:
        self.table.alter(SetOption("file-index.bloom-filter.columns", column))
        self.table.rewrite_file_index()
        self.note()

    @rule(most=st.integers(1, 4))
    def expire(self, most: int) -> None:
        self.table.expire_snapshots(most, 1)
        self.table.expire_tags()

    @rule()
    def clean(self) -> None:
        time.sleep(0.002)
        self.table.remove_orphan_files(time.time_ns() // 1_000_000, dry_run=False)

    @rule()
    def forget_tags(self) -> None:
        for tag in self.table.tags():
            with suppress(kt.InvalidError):
                self.table.delete_tag(tag.name)

    def note(self) -> None:
        # With deletion vectors rows are seen once they are compacted, a snapshot later.
        made = self.table.snapshots()[-1 if self.is_marked else 0 :]
        before: Rows | None = self.now if self.is_marked else None
        for snapshot in made:
            # One that ran behind a writer has come some time after what it compacted.
            is_compaction = snapshot.commit_kind is CommitKind.COMPACT
            before = self.then.get(snapshot.uuid, before if is_compaction else self.now)
            if before is not None:
                self.then[snapshot.uuid] = before

    def whole_snapshots(self) -> list[kt.Snapshot]:
        return [snapshot for snapshot in self.table.snapshots() if snapshot.uuid in self.then]

    @invariant()
    def every_snapshot_shows_what_it_showed(self) -> None:
        assert values(self.table) == values(reopened(self.table)) == self.now
        for snapshot in self.whole_snapshots():
            assert values(self.table, snapshot_id=snapshot.id) == self.then[snapshot.uuid]

    def teardown(self) -> None:
        assert self.table.verify().is_healthy


class TestRestoring(Restoring.TestCase):
    settings = settings(max_examples=6, stateful_step_count=15)


@pytest.mark.soak
@pytest.mark.timeout(1800)
class TestLongRestoring(Restoring.TestCase):
    settings = settings(max_examples=150, stateful_step_count=40)
