"""Tables with an index of keys: what is written, late and deleted, and what is read of it.

A dict is the model. After each step the index is the one that the rows alone give.
"""

from __future__ import annotations

import itertools
import pickle
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from busy import Others, busy_store
from copies import copies_of
from key_indexes import assert_index_is_that_of_the_rows, indexes_of
from keytide.commit.transaction import Transaction
from keytide.definition.schema_evolution import SetOption
from keytide.format.cache import forget_files
from keytide.key_index.indexed_keys import KeyHashes
from keytide.snapshot.bucket_key_index import KeyIndex
from keytide.store import Store
from keytide.store.faults import Action, Crash, Fault, FaultyStore
from keytide.write.input_rows import to_arrow_table
from keytide.write.refusals import writable_view
from new_tables import empty_store, empty_table, table_in
from table_rows import by_key

Row: TypeAlias = "tuple[str, int, int | None, str]"
"""Kind, key, what it is compared by, and value."""

INDEXED = {"upsert.mode": "full", "sequence.field": "ts"}


def new_table(store: Store | None = None, **options: str) -> kt.Table:
    schema = pa.schema([pa.field("k", pa.int64(), False), ("ts", pa.int32()), ("v", pa.string())])
    return empty_table(schema, ["k"], options={**INDEXED, **options}, store=store)


def rows_of(*lines: str) -> list[Row]:
    """Rows of texts such as `+I 1 5 a`."""
    found = (line.split() for line in lines)
    return [(kind, int(k), None if ts == "-" else int(ts), v) for kind, k, ts, v in found]


def write(table: kt.Table, *rows: Row) -> kt.WriteResult:
    names = ("_row_kind", "k", "ts", "v")
    return table.write([dict(zip(names, row, strict=True)) for row in rows])


# -- the model -------------------------------------------------------------------------------------


class Model:
    """The newest row of each key, deleted ones too.

    With `ttl` a row that lies further behind the freshest one before it is late.
    """

    def __init__(self, ttl: int | None = None) -> None:
        self.newest: dict[int, Row] = {}
        self.ttl, self.mark = ttl, (False, 0)

    def take(self, rows: list[Row]) -> int:
        """Gives how many came late."""
        late = 0
        for row in rows:
            known = self.newest.get(row[1])
            if self.is_too_old(row) or (known is not None and rank(row) < rank(known)):
                late += 1
            else:
                self.newest[row[1]] = row
            self.mark = max(self.mark, rank(row))
        return late

    def is_too_old(self, row: Row) -> bool:
        has_mark, mark = self.mark
        if row[0] == "-D":
            return False
        return self.ttl is not None and has_mark and rank(row) < (True, mark - self.ttl)

    def state(self, row: Row) -> None:
        """What a statement says of the row of a key."""
        self.newest[row[1]] = row

    def shown(self) -> dict[int, tuple[int | None, str]]:
        return {k: (ts, v) for kind, k, ts, v in self.newest.values() if kind in ("+I", "+U")}


def rank(row: Row) -> tuple[bool, int]:
    return row[2] is not None, row[2] or 0


ROWS = st.tuples(
    st.sampled_from(["+I", "+I", "+U", "-D"]),
    st.integers(0, 5),
    st.none() | st.integers(0, 3),
    st.sampled_from("abc"),
)
COMMITS = st.lists(st.lists(ROWS, min_size=1, max_size=6), min_size=1, max_size=5)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("buckets", ["1", "3"])
@pytest.mark.parametrize("function", ["none", "murmur3", "xxhash", "md5"])
@given(commits=COMMITS)
def test_rows_and_index_are_those_of_the_model(
    buckets: str, function: str, commits: list[list[Row]]
) -> None:
    table, model = new_table(bucket=buckets, **{"upsert.hash-function": function}), Model()
    for rows in commits:
        with warnings.catch_warnings(action="error"):
            write(table, *rows)
        model.take(rows)
        assert by_key(table, "ts", "v") == model.shown()
        assert_index_is_that_of_the_rows(table)
    assert not table.verify().findings


@given(commits=COMMITS)
def test_late_rows_are_counted(commits: list[list[Row]]) -> None:
    table, model = new_table(**{"write.count-out-of-order": "true"}), Model()
    for rows in commits:
        assert write(table, *rows).out_of_order == model.take(rows)


@given(commits=COMMITS, order=st.randoms(use_true_random=False))
def test_order_does_not_matter(commits: list[list[Row]], order: Any) -> None:
    """Of rows that differ in what they are compared by."""
    every = [row for rows in commits for row in rows]
    distinct = [*{(row[1], row[2]): row for row in every}.values()]
    one, other = new_table(), new_table()
    write(one, *distinct)
    order.shuffle(distinct)
    for start in range(0, len(distinct), 3):
        write(other, *distinct[start : start + 3])
    assert by_key(one, "ts", "v") == by_key(other, "ts", "v")


STEPS = st.one_of(
    st.lists(ROWS, min_size=1, max_size=6),
    st.sampled_from(["compact", "compact in full", "1 bucket", "2 buckets", "3 buckets"]),
    st.tuples(st.sampled_from(["delete", "update"]), st.integers(0, 5)),
)


@pytest.mark.takes_turns
@pytest.mark.parametrize("buckets", ["1", "2"])
@given(steps=st.lists(STEPS, min_size=2, max_size=10))
def test_any_history_gives_the_rows_and_the_index_of_the_model(
    buckets: str, steps: list[Any]
) -> None:
    table, model = new_table(bucket=buckets), Model()
    for step in steps:
        with warnings.catch_warnings(action="error"):
            take(table, model, step)
        assert by_key(table, "ts", "v") == model.shown()
        assert_index_is_that_of_the_rows(table)
    assert not table.verify().findings


@given(steps=st.lists(STEPS, min_size=2, max_size=8), data=st.data())
def test_changes_lead_from_any_snapshot_to_any_later_one(steps: list[Any], data: Any) -> None:
    table, model, states = new_table(), Model(), [dict[int, tuple[int | None, str]]()]
    for step in steps:
        take(table, model, step)
        states += [model.shown()] * (len(table.snapshots()) + 1 - len(states))
    start = data.draw(st.integers(0, len(states) - 1))
    end = data.draw(st.integers(start, len(states) - 1))
    if start == end:
        return
    told = table.changes(start, end).to_arrow().to_pylist()
    before, after = states[start], states[end]
    assert {(r["_row_kind"], r["k"], (r["ts"], r["v"])) for r in told} == {
        *(("-D", k, row) for k, row in before.items() if k not in after),
        *(("+I", k, row) for k, row in after.items() if k not in before),
        *(("-U", k, before[k]) for k in before.keys() & after.keys() if before[k] != after[k]),
        *(("+U", k, after[k]) for k in before.keys() & after.keys() if before[k] != after[k]),
    }


def take(table: kt.Table, model: Model, step: Any) -> None:
    if isinstance(step, list):
        write(table, *step)
        model.take(step)
    elif isinstance(step, str) and "bucket" in step:
        table.alter(SetOption("bucket", step[0]))
        table.rescale()
    elif isinstance(step, str):
        table.compact(full=step == "compact in full")
    else:
        done, key = step
        shown_rows = model.shown()
        if done == "delete":
            table.delete(f"k = {key}")
            if key in shown_rows:
                model.state(("-D", key, *shown_rows[key]))
        else:
            table.update({"v": "'new'"}, f"k = {key}")
            if key in shown_rows:
                model.state(("+U", key, shown_rows[key][0], "new"))


def test_compaction_leaves_current_rows_and_deletes_alone() -> None:
    table = new_table()
    for n in range(6):
        write(table, *rows_of(f"+I 1 {n} a", f"+I 2 {n} b", f"-D {n + 3} 5 c"))
    table.compact(full=True)
    (entry,) = table.scan().live.entries
    assert entry.file.row_count == 2 + 6
    write(table, *rows_of("+I 3 4 late", "+I 1 4 late"))
    assert by_key(table, "ts", "v") == {1: (5, "a"), 2: (5, "b")}


@copies_of
def in_six_files(store: Store) -> None:
    table = new_table(store)
    for n in range(6):
        write(table, *rows_of(f"+I 1 {n} a", f"+I {n + 2} 5 b"))


@pytest.mark.takes_turns
def test_compaction_beside_a_write_loses_neither() -> None:
    for request in itertools.count(1):
        store = in_six_files()
        other = table_in(store)
        others = Others(partial(write, other, *rows_of("+I 1 9 new", "+I 20 1 new")))
        table = kt.connect("", store=busy_store(store, others)).table("t")
        others.requests.clear()
        others.before = request.__eq__
        table.compact(full=True)
        others.before = lambda _: False
        if request > len(others.requests):
            return
        assert by_key(table, "ts", "v")[1] == (9, "new"), request
        assert by_key(table, "ts", "v")[20] == (1, "new"), request
        assert_index_is_that_of_the_rows(table)


def test_row_that_ties_replaces_the_one_before() -> None:
    table = new_table()
    write(table, *rows_of("+I 1 5 a", "+I 1 5 b"))
    assert by_key(table, "ts", "v") == {1: (5, "b")}
    write(table, *rows_of("+I 1 5 c"))
    assert by_key(table, "ts", "v") == {1: (5, "c")}


def test_delete_stays_deleted_until_something_newer_comes() -> None:
    table = new_table()
    write(table, *rows_of("+I 1 5 a", "-D 1 7 a"))
    write(table, *rows_of("+I 1 6 late"))
    assert by_key(table, "ts", "v") == {}
    write(table, *rows_of("+I 1 7 back"))
    assert by_key(table, "ts", "v") == {1: (7, "back")}


@pytest.mark.parametrize("descending", [False, True])
def test_rows_are_compared_as_tables_that_merge_do(descending: bool) -> None:
    order = {"sequence.field.sort-order": "descending"} if descending else {}
    table = new_table(**order)
    merged = empty_table(table.scan().schema, ["k"], options={"sequence.field": "ts", **order})
    values = [None, -(2**31), -1, 0, 7, 2**31 - 1]
    pairs = [(one, other) for one in values for other in values]
    for each in (table, merged):
        write(each, *(("+I", key, one, "a") for key, (one, _) in enumerate(pairs)))
        write(each, *(("+I", key, other, "b") for key, (_, other) in enumerate(pairs)))
    assert by_key(table, "ts", "v") == by_key(merged, "ts", "v")


# -- several writers, and others -------------------------------------------------------------------


@pytest.mark.takes_turns
def test_two_writers_leave_one_row_of_a_key_whenever_the_other_comes() -> None:
    for request in itertools.count(1):
        store, model = empty_store(), Model()
        steps = [rows_of(*texts) for texts in (
            ("+I 1 1 a", "+I 2 1 a", "+I 4 1 a"),
            ("+I 1 3 b", "+I 3 1 b", "-D 4 2 b"),
            ("+I 1 2 c", "+I 3 2 c", "+I 4 1 c"),
        )]  # fmt: skip
        write(new_table(store), *steps[0])
        other = table_in(store)
        others = Others(partial(write, other, *steps[1]))
        table = kt.connect("", store=busy_store(store, others)).table("t")
        others.requests.clear()
        others.before = request.__eq__
        write(table, *steps[2])
        others.before = lambda _: False
        for rows in steps:
            model.take(rows)
        if request > len(others.requests):
            return
        assert by_key(table, "ts", "v") == model.shown(), request
        assert_index_is_that_of_the_rows(table)


def test_write_of_a_named_commit_is_made_once() -> None:
    table = new_table()
    rows = [{"k": 1, "ts": 1, "v": "a"}]
    assert table.write(rows, commit_user="u", commit_identifier=1).is_new
    assert not table.write(rows, commit_user="u", commit_identifier=1).is_new
    assert table.scan().count() == 1


CHANGES = {
    "delete": lambda t: t.delete("k = 1"),
    "update": lambda t: t.update({"v": "'new'"}, "k <= 2"),
    "update of what is compared": lambda t: t.update({"ts": "9"}, "k = 2"),
    "truncate": lambda t: t.truncate(),
    "overwrite": lambda t: t.overwrite([{"k": 1, "ts": 1, "v": "o"}, {"k": 7, "ts": 1, "v": "o"}]),
    "rollback": lambda t: t.rollback_to(1),
    "branch": lambda t: (t.create_branch("b"), t.fast_forward("b", discard=True)),
    "expiry": lambda t: t.expire_snapshots(1),
    "orphans": lambda t: t.remove_orphan_files(time.time_ns() // 1_000_000, dry_run=False),
}


@pytest.mark.one_in(14)
@pytest.mark.filterwarnings("ignore:.*is rebuilt from its rows:keytide.KeytideWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_after_other_changes_writes_go_on(name: str) -> None:
    table = new_table()
    write(table, *rows_of("+I 1 5 a", "+I 2 5 a", "+I 3 5 a"))
    write(table, *rows_of("+I 2 6 b", "-D 3 6 b"))
    CHANGES[name](table)
    before = by_key(table, "ts", "v")
    write(table, *rows_of("+I 2 4 late", "+I 1 9 new", "+I 8 1 new"))
    expected = before | {1: (9, "new"), 8: (1, "new")}
    if 2 not in before:
        expected |= {2: (4, "late")}
    assert by_key(table, "ts", "v") == expected
    assert_index_is_that_of_the_rows(table)
    assert not table.verify().findings


def test_row_that_sql_deletes_stays_deleted() -> None:
    table = new_table()
    write(table, *rows_of("+I 1 5 a"))
    table.delete("k = 1")
    write(table, *rows_of("+I 1 4 late"))
    assert by_key(table, "ts", "v") == {}
    write(table, *rows_of("+I 1 5 again"))
    assert by_key(table, "ts", "v") == {1: (5, "again")}


@pytest.mark.parametrize("harm", ["gone", "torn", "rotten", "newer"])
def test_index_that_cannot_be_read_is_built_anew(harm: str) -> None:
    store = empty_store()
    table = new_table(store)
    write(table, *rows_of("+I 1 5 a", "-D 2 5 a"))
    for name in store.list_names("default.db/t/index"):
        path = f"default.db/t/index/{name}"
        data = store.read(path)
        if b"KTKEYIDX" not in data and harm != "newer":
            continue
        store.delete([path])
        if harm == "torn":
            store.put(path, data[:-3])
        elif harm == "rotten":
            store.put(path, data[:9] + bytes([data[9] ^ 1]) + data[10:])
        elif harm == "newer":
            store.put(path, data.replace(b'"version": 1', b'"version": 9'))
    forget_files()
    fresh = table_in(store)
    if harm == "newer":
        with pytest.raises(kt.UnsupportedError, match=r"version 9.*use a newer release"):
            write(fresh, *rows_of("+I 1 4 late"))
        return
    with pytest.warns(kt.KeytideWarning, match="rebuilt"):
        write(fresh, *rows_of("+I 1 4 late", "+I 2 4 late"))
    assert by_key(fresh, "ts", "v") == {1: (5, "a")}
    assert_index_is_that_of_the_rows(fresh)


def test_index_that_a_task_hands_on_does_not_carry_what_is_stored(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("t", KEYED, ["k"], options={"upsert.mode": "full"})
    table.write(pa.table({"k": range(10_000), "v": range(10_000)}, schema=KEYED))
    ((index, _, _),) = indexes_of(table)
    asked = next(index.pieces()).hashes
    assert len(pickle.dumps(index)) < 4000
    handed_on = pickle.loads(pickle.dumps(index)).on(table.metadata.store)
    assert all(
        (a == b).all() for a, b in zip(places(handed_on, asked), places(index, asked), strict=True)
    )


KEYED = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


def places(index: KeyIndex, asked: KeyHashes) -> tuple[Any, Any]:
    is_known, entries = index.find(asked)
    return entries.files[is_known], entries.positions[is_known]


def test_rotten_run_that_a_write_need_not_look_into_is_not_copied_into_a_sound_one() -> None:
    store = empty_store()
    table = new_table(store)
    write(table, *rows_of("+I 1 5 a", "+I 2 5 a"))
    (run,) = (
        n
        for n in store.list_names("default.db/t/index")
        if b"KTKEYIDX" in store.read(f"default.db/t/index/{n}")
    )
    path = f"default.db/t/index/{run}"
    data = store.read(path)
    store.delete([path])
    store.put(path, data[:9] + bytes([data[9] ^ 1]) + data[10:])
    forget_files()
    fresh = table_in(store)
    write(fresh, *rows_of("+I 0 5 below"))
    snapshot = fresh.metadata.latest_snapshot()
    assert snapshot is not None
    named = [each for file in fresh.metadata.index_files(snapshot) for each in file.ranges or ()]
    assert run in [each.data_file_name for each in named]
    with pytest.warns(kt.KeytideWarning, match="damaged"):
        write(fresh, *rows_of("+I 1 6 b"))
    assert by_key(fresh, "ts", "v") == {0: (5, "below"), 1: (6, "b"), 2: (5, "a")}
    assert_index_is_that_of_the_rows(fresh)


# -- faults ---------------------------------------------------------------------------------------


@copies_of
def filled(store: Store) -> None:
    table = new_table(store)
    write(table, *rows_of("+I 1 5 a", "+I 2 5 a", "+I 3 5 a"))
    write(table, *rows_of("+I 2 6 b", "-D 3 6 b"))


LATER = rows_of("+I 2 5 late", "+I 1 7 c", "+I 3 7 back", "+I 4 1 new")


def changes_of_the_store() -> list[int]:
    store = FaultyStore(filled())
    write(table_in(store), *LATER)
    changes = [each for each, _ in store.log if each in ("create", "put", "output", "hint")]
    return list(range(1, len(changes) + 1))


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@pytest.mark.parametrize("action", ["crash", "fail", "torn", "lost-response"])
@pytest.mark.parametrize("nth", changes_of_the_store())
def test_failure_anywhere_leaves_rows_and_index_before_or_after(nth: int, action: Action) -> None:
    before = {1: (5, "a"), 2: (6, "b")}
    after = {1: (7, "c"), 2: (6, "b"), 3: (7, "back"), 4: (1, "new")}
    store, told = filled(), None
    faulty = FaultyStore(store, [Fault("write", nth=nth, action=action)])
    with suppress(kt.DataError, Crash):
        told = write(table_in(faulty), *LATER)
    table = table_in(store)
    assert by_key(table, "ts", "v") in (before, after)
    assert by_key(table, "ts", "v") == after or told is None
    assert_index_is_that_of_the_rows(table)
    write(table, *rows_of("+I 1 6 late", "+I 9 9 z"))
    expected = (
        after if (7, "c") in by_key(table, "ts", "v").values() else {**before, 1: (6, "late")}
    )
    assert by_key(table, "ts", "v") == expected | {9: (9, "z")}
    assert_index_is_that_of_the_rows(table)
    assert not table.verify().findings


# -- definitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"bucket": "-1"}, "fixed number"),
        ({"bucket": "-2"}, "fixed number of buckets"),
        ({"merge-engine": "aggregation"}, "'merge-engine' = 'aggregation'"),
        ({"changelog-producer": "input"}, "without a changelog"),
        ({"upsert.mode": "half"}, "expected .*none.*full"),
        ({"primary-key.nullable": "true"}, "does not support NULL"),
    ],
)
def test_definition_that_cannot_work_is_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(kt.KeytideError, match=expected):
        new_table(**options)


# -- what is told of a key -------------------------------------------------------------------------


def test_each_row_of_a_key_is_explained() -> None:
    table = new_table()
    write(table, *rows_of("+I 1 5 a", "+I 1 4 late", "+I 2 1 x"))
    write(table, *rows_of("+I 1 6 b"))
    why = table.why(1)
    assert why.row == {"k": 1, "ts": 6, "v": "b"}
    assert [(row["v"], row["outcome"]) for row in why.versions.to_pylist()] == [
        ("a", "replaced by a later row"),
        ("late", "skipped: it arrived after a newer row"),
        ("b", "the row"),
    ]
    assert why.taken == {"ts": (3,), "v": (3,)}
    write(table, *rows_of("-D 1 7 gone"))
    why = table.why(1)
    assert (why.row, why.versions["row_kind"].to_pylist()) == (None, ["+I", "+I", "+I", "-D"])
    assert table.why(9).versions.num_rows == 0


# -- tasks side by side ----------------------------------------------------------------------------


@pytest.mark.takes_turns
@given(
    before=st.lists(ROWS, max_size=6),
    parts=st.lists(st.lists(ROWS, min_size=1, max_size=6), min_size=2, max_size=3),
    after=st.lists(ROWS, max_size=4),
)
def test_tasks_that_know_of_none_other_leave_one_row_of_a_key(
    before: list[Row], parts: list[list[Row]], after: list[Row]
) -> None:
    table, model = new_table(), Model()
    if before:
        write(table, *before)
        model.take(before)
    names = ("_row_kind", "k", "ts", "v")
    with Transaction.begin(table.stored, writable_view(table.stored)) as transaction:
        for number, rows in enumerate(parts):
            given = to_arrow_table(
                [dict(zip(names, row, strict=True)) for row in rows], table.table_schema, "t"
            )
            made = transaction.task().feed([given], number)
            transaction.collect(made)
            model.take(rows)
        transaction.commit()
    assert by_key(table, "ts", "v") == model.shown()
    assert_index_is_that_of_the_rows(table)
    if after:
        write(table, *after)
        model.take(after)
        assert by_key(table, "ts", "v") == model.shown()
        assert_index_is_that_of_the_rows(table)
