"""Flows of change events into tables: what they leave is made of the set of events alone.

The oracle takes all events of a key in their order, one by one.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_captured_feed import messages_of, spec_of

import keytide as kt
from keytide.cdc import decode
from table_rows import rows_in_order

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("a", pa.string()),
        ("b", pa.int64()),
        ("op", pa.string()),
        ("s", pa.int64()),
    ]
)
EVERY = frozenset("ab")


class Event(NamedTuple):
    k: int
    s: int
    a: str | None = None
    b: int | None = None
    op: str = "u"


Row = tuple[Any, ...]
"""Key, values, start and end of an interval."""


def intervals(events: Sequence[Event], tracked: frozenset[str], ignores_nulls: bool) -> list[Row]:
    found: list[Row] = []
    for key in sorted({event.k for event in events}):
        of_key = {event.s: event for event in events if event.k == key}
        now: tuple[int, tuple[Any, ...]] | None = None
        for s, event in sorted(of_key.items()):
            if event.op == "d":
                found += [(key, *now[1], now[0], s)] if now else []
                now = None
                continue
            left: tuple[Any, ...] = (event.a, event.b)
            if now and ignores_nulls:
                left = tuple(b if n is None else n for b, n in zip(now[1], left, strict=True))
            if now and all(left[i] == now[1][i] for i, name in enumerate("ab") if name in tracked):
                now = now[0], left
                continue
            found += [(key, *now[1], now[0], s)] if now else []
            now = s, left
        found += [(key, *now[1], now[0], None)] if now else []
    return found


def newest(events: Sequence[Event]) -> list[Row]:
    last = {event.k: event for event in sorted(events, key=lambda event: event.s)}
    return sorted((e.k, e.a, e.b, e.s) for e in last.values() if e.op != "d")


def as_rows(events: Sequence[Event]) -> pa.Table:
    return pa.Table.from_pylist([event._asdict() for event in events], SCHEMA)


def apply(lake: kt.Lake, events: Sequence[Event], scd_type: int, **more: Any) -> Any:
    return lake.auto_cdc(
        "t", as_rows(events), ["k"], "s", apply_as_deletes="op = 'd'",
        except_column_list=["op", "s"], stored_as_scd_type=scd_type, **more,
    )  # fmt: skip


def history_of(lake: kt.Lake) -> list[Row]:
    names = ["k", "a", "b", "__START_AT", "__END_AT"]
    rows = lake.table("t").scan(names).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=lambda row: (row[0], row[3]))


@st.composite
def feeds(draw: st.DrawFn) -> tuple[list[Event], list[list[Event]]]:
    """Events with a place of their own each, and batches of them in any order, some twice."""
    events = []
    for key in range(draw(st.integers(1, 3))):
        for s in draw(st.sets(st.integers(0, 9), max_size=7)):
            if draw(st.integers(0, 3)) == 0:
                events.append(Event(key, s, op="d"))
            else:
                a, b = draw(st.sampled_from(["x", "y", None])), draw(st.sampled_from([1, 2, None]))
                events.append(Event(key, s, a, b))
    again = draw(st.lists(st.sampled_from(events), max_size=4)) if events else []
    arriving = draw(st.permutations(events + again))
    cuts = sorted(draw(st.sets(st.integers(0, len(arriving)), max_size=3)))
    pairs = zip([0, *cuts], [*cuts, len(arriving)], strict=True)
    return events, [list(arriving[start:end]) for start, end in pairs]


def a_lake() -> kt.Lake:
    return kt.connect(f"memory://{tempfile.mktemp(dir='')}")


@settings(max_examples=8, deadline=None)
@given(feed=feeds(), tracked=st.sampled_from(["", "a", "b", "ab"]), ignores=st.booleans())
def test_a_history_is_that_of_the_sorted_events_whatever_their_order(
    feed: tuple[list[Event], list[list[Event]]], tracked: str, ignores: bool
) -> None:
    events, batches = feed
    lake = a_lake()
    more: dict[str, Any] = {"ignore_null_updates": ignores}
    if tracked != "ab":
        others = [name for name in "ab" if name not in tracked]
        more["track_history_except_column_list"] = others
    for number, batch in enumerate(batches):
        apply(lake, batch, 2, **more)
        if number == 1:
            lake.table("t").compact(full=True)
    assert history_of(lake) == intervals(events, frozenset(tracked), ignores)
    assert apply(lake, events, 2, **more).snapshot_id is None  # nothing is new


@settings(max_examples=6, deadline=None)
@given(feed=feeds())
def test_the_newest_rows_are_those_of_the_sorted_events_whatever_their_order(
    feed: tuple[list[Event], list[list[Event]]],
) -> None:
    events, batches = feed
    lake = a_lake()
    for batch in batches:
        apply(lake, batch, 1)
        lake.table("t").compact(full=True)
    rows = lake.table("t").scan(["k", "a", "b", "s"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == newest(events)


def newest_values(events: Sequence[Event]) -> list[Row]:
    """Per key the newest value of each column since the last delete, and the newest place."""
    rows = intervals(events, EVERY, ignores_nulls=True)
    places = {
        e.k: max(o.s for o in events if o.k == e.k and o.op != "d") for e in events if e.op != "d"
    }
    return [(k, a, b, places[k]) for k, a, b, _, end in rows if end is None]


@settings(max_examples=5, deadline=None)
@given(feed=feeds())
def test_values_that_are_null_leave_the_newest_ones_whatever_the_order(
    feed: tuple[list[Event], list[list[Event]]],
) -> None:
    events, batches = feed
    lake = a_lake()
    for number, batch in enumerate(batches):
        apply(lake, batch, 1, ignore_null_updates=True)
        if number == 1:
            lake.table("t").compact(full=True)
    rows = lake.table("t").scan(["k", "a", "b", "s"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == newest_values(events)
    assert apply(lake, events, 1, ignore_null_updates=True).snapshot_id is None


EVENTS = [
    Event(1, 1, "a", 1), Event(1, 3, "b", 1), Event(1, 5, op="d"), Event(1, 7, "c", 1),
]  # fmt: skip
HISTORY = [(1, "a", 1, 1, 3), (1, "b", 1, 3, 5), (1, "c", 1, 7, None)]


def test_a_delete_that_comes_before_the_update_that_it_ends(lake: kt.Lake) -> None:
    apply(lake, [EVENTS[2]], 2)
    assert history_of(lake) == []
    lake.table("t").compact(full=True)
    apply(lake, EVENTS[:2], 2)
    assert history_of(lake) == HISTORY[:2]
    apply(lake, [Event(1, 4, "late", 1)], 2)
    assert history_of(lake)[1:] == [(1, "b", 1, 3, 4), (1, "late", 1, 4, 5)]


def test_an_interval_stays_closed_where_its_delete_is_forgotten(lake: kt.Lake) -> None:
    apply(lake, EVENTS[:3], 2, options={"tombstone.retention": "0 ms"})
    table = lake.table("t")
    table.compact(full=True)
    table.compact(full=True)
    apply(lake, EVENTS[3:], 2)
    assert history_of(lake) == HISTORY


def test_what_somebody_deletes_of_a_history_does_not_come_back(lake: kt.Lake) -> None:
    same = [Event(1, 1, "a", 1), Event(1, 2, "a", 2), Event(1, 3, "a", 3), Event(1, 8, "b", 1)]
    apply(lake, [*same, Event(2, 2, "a", 1)], 2, track_history_column_list=["a"])
    assert history_of(lake) == [(1, "a", 3, 1, 8), (1, "b", 1, 8, None), (2, "a", 1, 2, None)]
    lake.table("t").delete("k = 1")
    apply(lake, [Event(1, 9, "c", 1)], 2, track_history_column_list=["a"])
    assert history_of(lake) == [(1, "c", 1, 9, None), (2, "a", 1, 2, None)]


def test_several_columns_order_events_as_one(lake: kt.Lake) -> None:
    rows = [
        {"k": 1, "v": "b", "file": 1, "pos": 9}, {"k": 1, "v": "c", "file": 2, "pos": 1},
        {"k": 1, "v": "a", "file": 1, "pos": 2},
    ]  # fmt: skip
    for row in rows:
        lake.auto_cdc("t", [row], "k", "struct(file, pos)", column_list=["k", "v"],
                      stored_as_scd_type=2)  # fmt: skip
        lake.auto_cdc("newest", [row], "k", ["file", "pos"], column_list=["k", "v"])
    by = [("__START_AT_file", "ascending"), ("__START_AT_pos", "ascending")]
    found = lake.table("t").scan().to_arrow().sort_by(by)
    assert rows_in_order(found) == [
        (1, "a", 1, 2, 1, 9), (1, "b", 1, 9, 2, 1), (1, "c", 2, 1, None, None),
    ]  # fmt: skip
    assert lake.table("newest").get(1) == {"k": 1, "v": "c", "file": 2, "pos": 1}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("buckets", ["1", "3"])
def test_writers_at_once_make_one_history(warehouse: str, buckets: str) -> None:
    picker = random.Random(7)
    events = [
        Event(k, s, picker.choice("xyz"), None, picker.choice("uuud"))
        for k in range(4) for s in range(12)
    ]  # fmt: skip
    picker.shuffle(events)
    options = {"bucket": buckets, "commit.max-retries": "100", "commit.min-retry-wait": "1 ms"}
    apply(kt.connect(warehouse), events[:1], 2, options=options)

    def write(part: int) -> None:
        for start in range(part, len(events), 24):
            apply(kt.connect(warehouse), events[start : start + 6], 2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(0, 24, 6)))
    lake = kt.connect(warehouse)
    assert history_of(lake) == intervals(events, EVERY, ignores_nulls=False)
    assert lake.table("t").verify().is_healthy


@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize("table", ["orders"])
def test_a_captured_feed_in_any_order(lake: kt.Lake, table: str, scd_type: int) -> None:
    messages = messages_of(table)
    spec = spec_of(table, messages, "order_id", frozenset())
    events = decode(pa.array(messages), spec).rows.drop_columns(
        ["_ordinal", "_unavailable", "_message"]
    )
    shuffled = list(range(events.num_rows))
    random.Random(3).shuffle(shuffled)
    for start in range(0, len(shuffled), 1 + len(shuffled) // 3):
        part = events.take(shuffled[start : start + 1 + len(shuffled) // 3])
        lake.auto_cdc("t", part, "order_id", "_lsn", stored_as_scd_type=scd_type)
    sorted_events = pl.DataFrame(events).unique(["order_id", "_lsn"], keep="last").sort("_lsn")
    found = pl.DataFrame(lake.table("t").scan().to_arrow())
    is_row = sorted_events.unique("order_id", keep="last").filter(pl.col("_row_kind") != "-D")
    if scd_type == 1:
        assert found.sort("order_id").equals(is_row.drop("_row_kind").sort("order_id"))
        return
    now = found.filter(pl.col("__END_AT").is_null())
    names = [name for name in is_row.columns if name != "_row_kind"]
    assert now.select(names).sort("order_id").equals(is_row.select(names).sort("order_id"))
    assert found.sort("order_id", "__START_AT").equals(history_of_frame(sorted_events, found))


def history_of_frame(events: pl.DataFrame, like: pl.DataFrame) -> pl.DataFrame:
    """The history by the oracle's rule, of events in their order."""
    rows: list[dict[str, Any]] = []
    for of_key in events.partition_by("order_id"):
        rows += intervals_of_key(of_key.to_dicts())
    return pl.DataFrame(rows, schema=like.schema).sort("order_id", "__START_AT")


def intervals_of_key(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    now: dict[str, Any] | None = None
    for event in events:
        kind, at = event.pop("_row_kind"), event["_lsn"]
        values = {name: value for name, value in event.items() if name != "_lsn"}
        same = now is not None and all(now[name] == value for name, value in values.items())
        if kind != "-D" and same and now is not None:
            now["_lsn"] = at
            continue
        if now is not None:
            yield now | {"__END_AT": at}
        now = None if kind == "-D" else event | {"__START_AT": at, "__END_AT": None}
    if now is not None:
        yield now


# -- sources, targets, refusals ----------------------------------------------------------------


def test_changes_of_a_table_are_a_source(lake: kt.Lake) -> None:
    source = lake.create_table("source", pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])
    for v in (1, 2):
        source.write([{"k": 1, "v": v}])
    source.delete("k = 1")
    for snapshot in source.snapshots():
        rows = source.changes(snapshot.id - 1, snapshot.id).to_arrow()
        rows = rows.append_column("at", pa.array([snapshot.id] * rows.num_rows))
        lake.auto_cdc("t", rows, "k", "at", stored_as_scd_type=2, except_column_list=["at"])
    found = rows_in_order(lake.table("t"))
    assert sorted(found) == [(1, 1, 1, 2), (1, 2, 2, 3)]


def test_new_columns_come_with_merge_schema(lake: kt.Lake) -> None:
    lake.auto_cdc("t", [{"k": 1, "v": 1, "s": 1}], "k", "s", stored_as_scd_type=2)
    wide = [{"k": 1, "v": 1, "s": 2, "w": "new"}]
    with pytest.raises(kt.NotFoundError, match="merge_schema=True"):
        lake.auto_cdc("t", wide, "k", "s", stored_as_scd_type=2)
    lake.auto_cdc("t", wide, "k", "s", stored_as_scd_type=2, merge_schema=True)
    lake.auto_cdc(
        "t", [{"k": 1, "v": 2, "s": 3}], "k", "s", stored_as_scd_type=2, merge_schema=True
    )
    found = lake.table("t").scan(["v", "w", "__START_AT", "__END_AT"]).to_pylist()
    assert sorted(map(str, (tuple(row.values()) for row in found))) == [
        "(1, 'new', 2, 3)", "(1, None, 1, 2)", "(2, None, 3, None)",
    ]  # fmt: skip


ROW = {"k": 1, "v": 1, "s": 1}


@pytest.mark.parametrize(
    ("row", "given", "says"),
    [
        (ROW, {"keys": ["x"]}, "keys names 'x', which is not a .*; columns: k, v, s"),
        (ROW, {"keys": []}, "keys is"),
        (ROW, {"keys": "s"}, "in keys and in sequence_by"),
        (ROW, {"column_list": ["k"], "except_column_list": ["v"]}, "cannot be combined"),
        (ROW, {"track_history_column_list": ["v"]}, "SCD type 1 keeps no history"),
        (ROW, {"stored_as_scd_type": 3}, "expected 1 or 2"),
        (ROW | {"s": None}, {"apply_as_truncates": "v = 1"}, "its order is unknown"),
        (ROW, {"apply_as_truncates": "v = 1", "stored_as_scd_type": 2}, "requires SCD type 1"),
        (ROW, {"sequence_by": ["s", "v"], "ignore_null_updates": True}, "in sequence_by, found 2"),
        (ROW, {"merge_schema": True, "ignore_null_updates": True}, "does not support merge_schema"),
        (ROW, {"checkpoint": "/tmp/x"}, "checkpoint is only for streaming DataFrames"),
        (ROW, {"apply_as_deletes": "gone = 1"}, "gone"),
        (ROW | {"__END_AT": 1}, {}, "which is reserved in the target; rename it"),
        (ROW | {"s": None}, {"stored_as_scd_type": 2}, "contains only NULLs"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(
    lake: kt.Lake, row: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    call = {"keys": "k", "sequence_by": "s", **given}
    with pytest.raises(kt.KeytideError, match=says):
        lake.auto_cdc("t", [row], **call)
    assert lake.tables() == [] if lake.exists else True


def test_an_event_without_a_place_in_a_history_is_refused(lake: kt.Lake) -> None:
    events = pa.table({"k": [1, 1], "s": [1, None]})
    with pytest.raises(kt.InvalidError, match="1 of 2 rows are NULL"):
        lake.auto_cdc("t", events, "k", "s", stored_as_scd_type=2)


def test_a_table_of_another_flow_is_no_target(lake: kt.Lake) -> None:
    apply(lake, EVENTS, 2)
    with pytest.raises(kt.InvalidError, match="its primary key is k, __START_AT, expected k"):
        apply(lake, EVENTS, 1)
    with pytest.raises(kt.InvalidError, match="it is the target of the flow"):
        apply(lake, EVENTS, 2, track_history_column_list=["a"])
    lake.create_table("plain", pa.schema([("k", pa.int64()), ("s", pa.int64())]), ["k"])
    with pytest.raises(kt.InvalidError, match=r"'sequence.field' is not set, expected s"):
        lake.auto_cdc("plain", [{"k": 1, "s": 1}], "k", "s")


def test_a_table_whose_lowest_version_is_the_newest_is_no_target(lake: kt.Lake) -> None:
    options = {"sequence.field": "s", "sequence.field.sort-order": "descending"}
    columns = pa.schema([("k", pa.int64()), ("s", pa.int64())])
    lake.create_table("t", columns, ["k"], options=options)
    with pytest.raises(kt.InvalidError, match="the version with the smallest sequence wins"):
        lake.auto_cdc("t", [{"k": 1, "s": 1}], "k", "s")


def test_no_events_are_no_commit(lake: kt.Lake) -> None:
    assert lake.auto_cdc("t", [], "k", "s").snapshot_id is None
    assert apply(lake, [], 2).snapshot_id is None
    assert history_of(lake) == []
