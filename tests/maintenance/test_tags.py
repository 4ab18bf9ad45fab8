"""Tags: names for snapshots, made by one of many, and never torn from what they name."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from copies import copies_of
from keytide.base.text import moment_text
from keytide.definition.schema_evolution import SetOption
from keytide.format import paths
from keytide.format.checksum import SEAL_KEY
from keytide.format.snapshot import Tag
from keytide.maintenance.tags import create_tag_of, snapshot_at_or_after, source_of
from keytide.store import Store
from keytide.store.faults import Crash, Fault, FaultyStore
from new_tables import table_in
from stops import faults_of, stops_of
from table_rows import rows_in_order, tag_ids

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@copies_of
def three_snapshots(store: Store) -> None:
    """One row a snapshot."""
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"])
    for k in (1, 2, 3):
        table.write([{"k": k, "v": "x"}])


@pytest.fixture
def table() -> kt.Table:
    return table_in(three_snapshots())


def read(table: kt.Table, tag: str) -> list[int]:
    return sorted(row["k"] for row in table.scan(tag=tag).to_pylist())


def expire(table: kt.Table, snapshot_id: int) -> None:
    table.metadata.store.delete([paths.snapshot_path(snapshot_id)])


# -- what they do ----------------------------------------------------------------------------------


def test_tag_names_the_newest_snapshot_or_the_one_that_is_asked_for(table: kt.Table) -> None:
    made = table.create_tag("now")
    table.create_tag("first", 1)
    assert (made.name, made.snapshot, made.time_retained) == ("now", table.snapshots()[-1], None)
    assert tag_ids(table) == {"first": 1, "now": 3}
    assert (read(table, "first"), read(table, "now")) == ([1], [1, 2, 3])


def test_tag_is_a_plain_copy_of_the_snapshot_unless_it_has_an_end(table: kt.Table) -> None:
    table.create_tag("plain", 2)
    table.create_tag("ending", 2, "36 h")
    store = table.metadata.store
    plain, ending = (json.loads(store.read(paths.tag_path(name))) for name in ("plain", "ending"))
    snapshot = json.loads(store.read(paths.snapshot_path(2)))
    assert plain == snapshot
    assert ending.pop("tagTimeRetained") == 129600
    assert len(ending.pop("tagCreateTime")) >= 5
    assert {**ending, SEAL_KEY: ""} == {**snapshot, SEAL_KEY: ""}


def test_tag_keeps_what_can_be_read_when_its_snapshot_expires(table: kt.Table) -> None:
    table.create_tag("first", 1)
    expire(table, 1)
    assert read(table, "first") == [1]
    again = table.create_tag("again", 1)
    assert again.snapshot == table.metadata.tag("first")
    assert table.verify().is_healthy


def test_renamed_tag_has_its_new_name_alone(table: kt.Table) -> None:
    made = table.create_tag("old", 2, "1 d")
    renamed = table.rename_tag("old", "new")
    assert (renamed.snapshot, renamed.create_time) == (made.snapshot, made.create_time)
    assert tag_ids(table) == {"new": 2}


def test_replaced_tag_names_another_snapshot_and_its_time_begins_anew(table: kt.Table) -> None:
    table.create_tag("a", 1, "1 d")
    assert table.replace_tag("a").snapshot_id == 3
    assert table.tags()[0].time_retained is None
    assert table.replace_tag("a", 2, timedelta(hours=5)).time_retained == timedelta(hours=5)
    assert tag_ids(table) == {"a": 2}


def test_deleted_tag_is_gone_and_its_snapshot_is_not(table: kt.Table) -> None:
    table.create_tag("a", 1)
    table.delete_tag("a")
    assert tag_ids(table) == {}
    assert table.scan(snapshot_id=1).count() == 1


@pytest.mark.parametrize(
    ("option", "given", "kept"),
    [
        (None, None, None),
        ("7 d", None, timedelta(days=7)),
        ("7 d", "forever", None),
        ("7 d", "1 h", timedelta(hours=1)),
        (None, timedelta(seconds=90), timedelta(seconds=90)),
    ],
)
def test_tag_stays_as_its_maker_says_or_else_the_table(
    table: kt.Table, option: str | None, given: Any, kept: timedelta | None
) -> None:
    if option:
        table.alter(SetOption("tag.default-time-retained", option))
    assert table.create_tag("a", time_retained=given).time_retained == kept


def test_tags_show_themselves_as_a_table(table: kt.Table) -> None:
    table.create_tag("b<", 2, "1 d")
    table.create_tag("a", 3)
    shown = table.tags()._repr_html_()
    assert "<td>b&lt;</td><td>2</td>" in shown
    assert shown.endswith("<td>ever</td></tr></table>")


# -- what they refuse ------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[kt.Table], object], type[Exception], str]] = {
    "no name": (lambda t: t.create_tag(" "), kt.InvalidError, "cannot be a file name"),
    "slash": (lambda t: t.create_tag("a/b"), kt.InvalidError, "without '/'"),
    "comma": (lambda t: t.create_tag("a,b"), kt.InvalidError, "do not use commas"),
    "blank end": (lambda t: t.create_tag("a "), kt.InvalidError, "trailing blanks"),
    "digits": (lambda t: t.create_tag("12"), kt.InvalidError, "looks like a snapshot id.*'v12'"),
    "long": (lambda t: t.create_tag("é" * 121), kt.InvalidError, "242 bytes; .* at most 240"),
    "no text": (lambda t: t.create_tag(7), kt.InvalidError, "name is 7 .*expected a string"),  # type: ignore[arg-type]
    "taken": (lambda t: t.create_tag("a", 3), kt.AlreadyExistsError, "a tag 'a' of snapshot 2;"),
    "never": (lambda t: t.create_tag("b", 9), kt.NotFoundError, "1 to 3 exist, and 2 through tags"),
    "time": (lambda t: t.create_tag("b", 1, "soon"), kt.InvalidError, "is 'soon'; .*'10 s'"),
    "no time": (lambda t: t.create_tag("b", 1, timedelta()), kt.InvalidError, "a duration above 0"),
    "replaces none": (
        lambda t: t.replace_tag("b"),
        kt.NotFoundError,
        "no tag 'b'; existing tags: a",
    ),
    "renames none": (
        lambda t: t.rename_tag("b", "c"),
        kt.NotFoundError,
        "no tag 'b'; existing tags: a",
    ),
    "to itself": (lambda t: t.rename_tag("a", "a"), kt.AlreadyExistsError, "already has this name"),
    "to digits": (lambda t: t.rename_tag("a", "1"), kt.InvalidError, "looks like a snapshot id"),
    "deletes none": (lambda t: t.delete_tag("b"), kt.NotFoundError, "no tag 'b'; existing tags: a"),
}


@pytest.mark.parametrize(("act", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_with_a_way_out_and_changes_nothing(
    table: kt.Table, act: Callable[[kt.Table], object], error: type[Exception], message: str
) -> None:
    table.create_tag("a", 2)
    with pytest.raises(error, match=message):
        act(table)
    assert tag_ids(table) == {"a": 2}


def test_tag_of_an_expired_snapshot_is_refused_naming_those_there_are(table: kt.Table) -> None:
    expire(table, 1)
    with pytest.raises(
        kt.NotFoundError, match=r"no snapshot 1, and no tag that keeps it; snap.*2 to 3"
    ):
        table.create_tag("late", 1)


def test_table_without_snapshots_has_nothing_to_tag() -> None:
    lake = kt.connect("", store=three_snapshots())
    with pytest.raises(kt.NotFoundError, match="write to it first"):
        lake.create_table("empty", SCHEMA, ["k"]).create_tag("a")


def test_tag_of_a_taken_name_cannot_be_renamed_onto(table: kt.Table) -> None:
    table.create_tag("a", 1)
    table.create_tag("b", 2)
    with pytest.raises(kt.AlreadyExistsError, match="a tag 'b' of snapshot 2"):
        table.rename_tag("a", "b")
    assert tag_ids(table) == {"a": 1, "b": 2}


# -- races and crashes -----------------------------------------------------------------------------


class Expiring(FaultyStore):
    """As soon as a tag is stored, its snapshot expires."""

    def create(self, path: str, data: bytes) -> bool:
        made = super().create(path, data)
        self.inner.delete([paths.snapshot_path(1)])
        return made

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self.inner.delete([paths.snapshot_path(1)])


@pytest.mark.parametrize("has_tag", [False, True], ids=["created", "replaced"])
def test_tag_whose_snapshot_expires_meanwhile_is_not_made(table: kt.Table, has_tag: bool) -> None:
    if has_tag:
        table.create_tag("a", 2)
    late = kt.Table(Expiring(table.metadata.store), "t")
    with pytest.raises(kt.ConflictError, match=r"snapshot 1 expired .*2 to 3 exist"):
        late.replace_tag("a", 1) if has_tag else late.create_tag("a", 1)
    assert tag_ids(table) == ({"a": 2} if has_tag else {})


def test_of_two_who_make_a_tag_one_makes_it(table: kt.Table) -> None:
    store = table.metadata.store

    class Faster(FaultyStore):
        def create(self, path: str, data: bytes) -> bool:
            kt.Table(store, "t").create_tag("a", 1)
            return super().create(path, data)

    with pytest.raises(kt.AlreadyExistsError, match="of snapshot 1"):
        kt.Table(Faster(store), "t").create_tag("a", 3)
    assert tag_ids(table) == {"a": 1}


CALLS: dict[str, Callable[[kt.Table], object]] = {
    "create": lambda t: t.create_tag("new", 3),
    "replace": lambda t: t.replace_tag("a", 3),
    "rename": lambda t: t.rename_tag("a", "new"),
    "delete": lambda t: t.delete_tag("a"),
}


def tagged_table() -> kt.Table:
    """A table with tag `a` of snapshot 1."""
    table = table_in(three_snapshots())
    table.create_tag("a", 1)
    return table


def operations(name: str) -> list[tuple[str, int]]:
    store = FaultyStore(tagged_table().metadata.store)
    CALLS[name](kt.Table(store, "t"))
    return stops_of(store.log)


STOPS = [
    (name, operation, nth, action)
    for name in CALLS
    for operation, nth, action in faults_of(
        operations(name), "crash", "fail", "torn", "lost-response"
    )
    # A store that tears what it replaces keeps no promise.
    if (operation, action) != ("put", "torn")
]
ENDS = {
    "create": [{"a": 1}, {"a": 1, "new": 3}],
    "replace": [{"a": 1}, {"a": 3}],
    "rename": [{"a": 1}, {"a": 1, "new": 1}, {"new": 1}],
    "delete": [{"a": 1}, {}],
}


@pytest.mark.parametrize(("name", "operation", "nth", "action"), STOPS)
def test_tags_are_old_or_new_wherever_it_stops_and_the_same_call_goes_on(
    name: str, operation: Any, nth: int, action: Any
) -> None:
    table = tagged_table()
    faulty = FaultyStore(table.metadata.store, [Fault(operation, nth=nth, action=action)])
    with suppress(Crash, kt.DataError):
        CALLS[name](kt.Table(faulty, "t"))
    assert tag_ids(table) in ENDS[name]
    with suppress(kt.AlreadyExistsError, kt.NotFoundError):  # it was done
        CALLS[name](table)
    assert tag_ids(table) == ENDS[name][-1]
    assert table.verify(quick=True).is_healthy


# -- by time ---------------------------------------------------------------------------------------


def test_first_snapshot_at_or_after_a_time_is_found_among_snapshots_and_tags(
    table: kt.Table,
) -> None:
    times = [snapshot.time_millis for snapshot in table.snapshots()]
    assert snapshot_at_or_after(table.metadata, times[2]).id <= 3
    assert snapshot_at_or_after(table.metadata, 0).id == 1
    table.create_tag("first", 1)
    expire(table, 1)
    assert snapshot_at_or_after(table.metadata, 0).id == 1
    with pytest.raises(kt.NotFoundError, match=f"the latest one is from {moment_text(times[2])}"):
        snapshot_at_or_after(table.metadata, times[2] + 1)


def test_clock_says_when_a_tag_with_an_end_was_made(table: kt.Table) -> None:
    nanoseconds = 1_700_000_000_123_456_789
    create_tag_of(
        table.metadata, "a", source_of(table.metadata, 1), "1 d", clock_ns=lambda: nanoseconds
    )
    stored = Tag.from_json(table.metadata.store.read(paths.tag_path("a")), "a")
    assert (stored.create_time_ns, stored.time_retained_ns) == (nanoseconds, 86_400 * 10**9)
    assert str(table.tags()[0].create_time) == "2023-11-14 22:13:20.123456"


# -- SQL -------------------------------------------------------------------------------------------


def test_procedures_make_rename_replace_and_delete_tags(table: kt.Table) -> None:
    lake = kt.connect("", store=three_snapshots())
    lake.sql("CALL sys.create_tag('t', 'a')")
    lake.sql("CALL sys.create_tag(table => 't', tag => 'b', snapshot => 1, time_retained => '1 d')")
    lake.sql("CALL sys.create_tag(`table` => 't', tag => 'c', snapshot_id => 2)")
    lake.sql("CALL sys.rename_tag(table => 't', tag => 'c', target_tag => 'd')")
    assert lake.sql("CALL sys.replace_tag('t', 'a', 2)").to_pylist() == [{"result": True}]
    found = lake.sql("SELECT tag_name, snapshot_id, time_retained FROM t$tags ORDER BY 1")
    rows = rows_in_order(found)
    assert rows == [("a", 2, None), ("b", 1, "PT24H"), ("d", 2, None)]
    assert lake.sql("SELECT k FROM t VERSION AS OF 'b'").to_pylist() == [{"k": 1}]
    lake.sql("CALL sys.delete_tag('t', 'a, b')")
    assert tag_ids(lake.table("t")) == {"d": 2}


def test_tag_is_made_of_the_first_snapshot_since_a_time() -> None:
    lake = kt.connect("", store=three_snapshots())
    time = lake.table("t").snapshots()[0].time_millis
    found = lake.sql(f"CALL sys.create_tag_from_timestamp('t', 'a', {time})").to_pylist()
    assert found == [{"tagName": "a", "snapshot": 1, "commit_time": time, "watermark": None}]
    assert tag_ids(lake.table("t")) == {"a": 1}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("create_tag('t')", kt.InvalidError, "expected .table, tag, snapshot=None, time_retained"),
        ("create_tag('t', 7)", kt.InvalidError, "tag is 7 of type int; expected a string"),
        ("create_tag('t', 'a', '1')", kt.InvalidError, "snapshot is '1' of type str"),
        (
            "create_tag('t', 'a', 1, snapshot_id => 1)",
            kt.InvalidError,
            "multiple values for argument 'snapshot'",
        ),
        ("create_tag('u', 'a')", kt.NotFoundError, "table default.u does not exist"),
        ("delete_tag('t', 'a,b')", kt.NotFoundError, "no tag 'a'"),
    ],
)
def test_procedures_say_what_is_wrong_with_their_arguments(
    call: str, error: type[Exception], message: str
) -> None:
    lake = kt.connect("", store=three_snapshots())
    with pytest.raises(error, match=message):
        lake.sql(f"CALL sys.{call}")


def test_tag_of_digits_that_another_engine_made_comes_before_the_snapshot_of_that_id() -> None:
    lake = kt.connect("", store=three_snapshots())
    store = lake.table("t").metadata.store
    store.put(paths.tag_path("3"), store.read(paths.snapshot_path(1)))
    assert lake.sql("SELECT k FROM t VERSION AS OF '3'").to_pylist() == [{"k": 1}]
    assert lake.sql("SELECT k FROM t VERSION AS OF 2 ORDER BY k").row_count == 2
