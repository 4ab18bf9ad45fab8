"""Flows whose events truncate the target: what is left is made of the set of events alone.

The oracle takes all events of a key in their order. A truncation ends what came before its place;
an event at the same place is after it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_auto_cdc import SCHEMA, Event, Row, as_rows, newest, newest_values

import keytide as kt
from keytide.catalogs import local_writes
from keytide.commit.transaction import Transaction, WriteResult
from keytide.feeds.auto_cdc import TruncationLookup, retry_after_truncation
from table_rows import rows

NO_KEY = -1


def truncation(at: int) -> Event:
    return Event(NO_KEY, at, op="t")


def outlived(events: Sequence[Event], ignores_nulls: bool) -> list[Row]:
    last = max((event.s for event in events if event.op == "t"), default=-1)
    left = [event for event in events if event.op != "t" and event.s >= last]
    return newest_values(left) if ignores_nulls else newest(left)


def flow(lake: kt.Lake, events: Sequence[Event], **more: Any) -> Any:
    """A flow that knows of truncates only where some of the events are."""
    if any(event.op == "t" for event in events):
        more["apply_as_truncates"] = "op = 't'"
    rows = as_rows(events).to_pylist()
    rows = [row | {"k": None} if row["op"] == "t" else row for row in rows]
    return lake.auto_cdc(
        "t", pa.Table.from_pylist(rows, SCHEMA), "k", "s", apply_as_deletes="op = 'd'",
        except_column_list=["op", "s"], **more,
    )  # fmt: skip


def rows_of(lake: kt.Lake) -> list[Row]:
    return rows(lake.table("t").scan(["k", "a", "b", "s"]))


@st.composite
def feeds(draw: st.DrawFn) -> tuple[list[Event], list[list[Event]]]:
    """Events of some keys and truncations, and batches of them in any order, some twice."""
    events = [truncation(at) for at in draw(st.sets(st.integers(0, 9), min_size=1, max_size=2))]
    for key in range(draw(st.integers(1, 3))):
        for s in draw(st.sets(st.integers(0, 9), max_size=6)):
            a, b = draw(st.sampled_from(["x", None])), draw(st.sampled_from([1, None]))
            events.append(draw(st.sampled_from([Event(key, s, a, b), Event(key, s, op="d")])))
    again = draw(st.lists(st.sampled_from(events), max_size=3))
    arriving = draw(st.permutations(events + again))
    cuts = sorted(draw(st.sets(st.integers(0, len(arriving)), max_size=3)))
    pairs = zip([0, *cuts], [*cuts, len(arriving)], strict=True)
    return events, [list(arriving[start:end]) for start, end in pairs]


@settings(max_examples=10, deadline=None)
@given(feed=feeds(), ignores=st.booleans(), buckets=st.sampled_from(["-1", "2"]))
def test_what_a_truncation_leaves_is_the_same_whatever_the_order(
    feed: tuple[list[Event], list[list[Event]]], ignores: bool, buckets: str
) -> None:
    events, batches = feed
    lake = kt.connect(f"memory://{tempfile.mktemp(dir='')}")
    options = {"bucket": buckets}
    for number, batch in enumerate(batches):
        flow(lake, batch, ignore_null_updates=ignores, options=options)
        if number == 1 and lake.tables():
            lake.table("t").compact(full=True)
    flow(lake, [], ignore_null_updates=ignores, options=options)
    assert rows_of(lake) == outlived(events, ignores)
    assert (
        flow(lake, [e for e in events if e.op == "t"]).snapshot_id is None if not ignores else True
    )


def test_an_event_from_before_a_truncation_brings_no_row_back(lake: kt.Lake) -> None:
    flow(lake, [Event(1, 1, "a"), Event(2, 7, "b")])
    result = flow(lake, [truncation(5)])
    assert (result.snapshot_id, result.rows) == (2, 0)
    flow(lake, [Event(1, 3, "late"), Event(3, 4, "late"), Event(2, 6, "late")])
    assert rows_of(lake) == [(2, "b", None, 7)]
    flow(lake, [Event(1, 5, "at the place"), Event(3, 8, "after")])
    assert rows_of(lake) == [
        (1, "at the place", None, 5), (2, "b", None, 7), (3, "after", None, 8),
    ]  # fmt: skip


def test_a_delete_after_a_truncation_stays_deleted(lake: kt.Lake) -> None:
    flow(lake, [Event(1, 8, op="d")])
    flow(lake, [truncation(5)])
    flow(lake, [Event(1, 7, "late")])
    assert rows_of(lake) == []


def test_values_from_before_a_truncation_fill_no_gap_of_a_row_after_it(lake: kt.Lake) -> None:
    flow(lake, [Event(1, 1, "old", 1), Event(1, 6, None, 2)], ignore_null_updates=True)
    flow(lake, [truncation(5)], ignore_null_updates=True)
    flow(lake, [Event(1, 4, "late")], ignore_null_updates=True)
    assert rows_of(lake) == [(1, None, 2, 6)]


def test_a_rollback_takes_a_truncation_back(lake: kt.Lake) -> None:
    flow(lake, [Event(1, 1, "a")])
    flow(lake, [truncation(5)])
    lake.table("t").rollback_to(1)
    flow(lake, [Event(2, 2, "b")])
    assert rows_of(lake) == [(1, "a", None, 1), (2, "b", None, 2)]


def test_upkeep_and_writes_of_others_carry_a_truncation_on(lake: kt.Lake) -> None:
    flow(lake, [Event(1, 1, "a"), truncation(5)])
    table = lake.table("t")
    table.write([{"k": 9, "a": "z", "b": 1, "s": 1}])
    table.compact(full=True)
    table.delete("k = 9")
    table.expire_snapshots(retain_max=1, retain_min=1)
    flow(lake, [Event(2, 4, "late"), Event(3, 6, "new")])
    assert rows_of(lake) == [(3, "new", None, 6)]


def test_several_columns_are_the_place_of_a_truncation(lake: kt.Lake) -> None:
    def apply(*rows: tuple[int | None, str, int, int]) -> None:
        named = [dict(zip(("k", "op", "file", "pos"), row, strict=True)) for row in rows]
        events = pa.Table.from_pylist(
            named, pa.schema([("k", pa.int64()), ("op", pa.string()), ("file", pa.int32()),
                              ("pos", pa.int64())]),
        )  # fmt: skip
        lake.auto_cdc("t", events, "k", "struct(file, pos)", apply_as_truncates="op = 't'",
                      column_list=["k"])  # fmt: skip

    apply((1, "u", 1, 9), (2, "u", 2, 4), (3, "u", 2, 6), (4, "u", 3, 1))
    apply((None, "t", 2, 5), (None, "t", 1, 7))
    apply((5, "u", 2, 4), (6, "u", 2, 5), (7, "u", 1, 8))
    assert sorted(row["k"] for row in lake.table("t").scan().to_pylist()) == [3, 4, 6]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2, 3], pa.timestamp("ns", "UTC")),
        pa.array([1, 2, 3], pa.timestamp("us")),
        pa.array([1, 2, 3], pa.date32()),
        pa.array(["1.10", "1.20", "1.30"]).cast(pa.decimal128(9, 2)),
        pa.array(["a", "b", "c"]),
        pa.array([b"\x00\xfe", b"\x00\xff", b"\x01"]),
        pa.array([0.1, 0.2, 0.3]),
    ],
    ids=lambda values: str(values.type),
)
def test_a_place_of_any_type_is_remembered(lake: kt.Lake, values: pa.Array) -> None:
    at = {name: values.slice(place, 1) for place, name in enumerate(("before", "at", "after"))}

    def apply(key: int, name: str, op: str = "u") -> None:
        events = pa.table({"k": [key], "op": [op], "s": at[name]})
        lake.auto_cdc("t", events, "k", "s", apply_as_truncates="op = 't'", column_list=["k"])

    apply(1, "before")
    apply(0, "at", "t")
    for key, name in enumerate(at, 2):
        apply(key, name)
    assert sorted(row["k"] for row in lake.table("t").scan().to_pylist()) == [3, 4]


def test_a_writer_that_knows_of_no_truncation_begins_anew(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    flow(lake, [Event(1, 1, "a")])
    table = lake._catalog.table("t")
    late = pa.table({"k": [2, 3], "a": ["late", "new"], "b": [1, 1], "s": [2, 9]})
    seen: list[int] = []

    def write(going_by: TruncationLookup) -> WriteResult:
        def fitting(transaction: Transaction, rows: pa.Table) -> pa.Table:
            left = going_by(transaction).remaining_rows(rows, "t")
            seen.append(left.num_rows)
            if len(seen) == 1:
                flow(kt.connect(warehouse), [truncation(5)])
            return left

        return local_writes.append(table, late, None, fitting)

    retry_after_truncation(table, write)
    assert seen == [2, 1]
    assert rows_of(lake) == [(3, "new", 1, 9)]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("ignores", [False, True])
def test_writers_at_once_and_truncations_leave_the_same_rows(warehouse: str, ignores: bool) -> None:
    picker = Random(11)
    events = [Event(k, s, picker.choice("xyz"), op=picker.choice("uud")) for k in range(3)
              for s in range(8)]  # fmt: skip
    events += [truncation(2), truncation(5)]
    picker.shuffle(events)
    more = {"ignore_null_updates": ignores}
    options = {"commit.max-retries": "100", "commit.min-retry-wait": "1 ms"}
    flow(kt.connect(warehouse), [Event(9, 9, "x")], options=options, **more)

    def write(part: int) -> None:
        for start in range(part, len(events), 12):
            flow(kt.connect(warehouse), events[start : start + 3], **more)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(0, 12, 3)))
    lake = kt.connect(warehouse)
    assert rows_of(lake) == outlived([*events, Event(9, 9, "x")], ignores)
    assert lake.table("t").verify().is_healthy
