"""Flows of every type, mode and key against an oracle that takes the events one by one.

Keys and sequences have NULL, NaN, -0.0 and equal values; events come in any batches, as row kinds
in any case, with compactions between them. The order is that of a merge: NULL lowest, NaN highest,
-0.0 equal to 0.0, and of equal ones the later arrival.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt

NAN = float("nan")
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "numbers": (pa.int64(), [None, 1, 2]),
    "texts": (pa.string(), [None, "", "a"]),
    "flags": (pa.bool_(), [None, False, True]),
    "floats": (pa.float64(), [None, -0.0, 0.0, NAN]),
}
SEQUENCES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "numbers": (pa.int64(), [0, 1, 2, 3, 4]),
    "floats": (pa.float64(), [-0.0, 0.0, 1.0, 2.5, NAN]),
    "decimals": (pa.decimal128(10, 2), [Decimal(n) for n in ("-1.00", "0.00", "0.50", "2.00")]),
    "texts": (pa.string(), ["", "10", "9", "a"]),
    "bytes": (pa.binary(), [b"", b"\x7f", b"\x80", b"\xff\x00"]),
}
COLUMNS = ("a", "b")


class Event(NamedTuple):
    k: Any
    s: Any
    a: int | None = None
    b: float | None = None
    kind: str | None = "+I"

    @property
    def row(self) -> dict[str, Any]:
        row = self._asdict()
        return row | {"_row_kind": row.pop("kind")}

    @property
    def deletes(self) -> bool:
        return self.kind is not None and self.kind.upper() == "-D"


Row = tuple[Any, ...]


def place(s: Any) -> tuple[Any, ...]:
    """A sequence as what Python compares like a merge."""
    if s is None:
        return (0,)
    if isinstance(s, float):
        return (2,) if math.isnan(s) else (1, s + 0.0)
    return (1, s)


def comparable(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def in_order(events: Sequence[Event]) -> dict[Any, list[Event]]:
    """The events of each key, without before images, each after what it follows."""
    told = [event for event in events if (event.kind or "").upper() != "-U"]
    found: dict[Any, list[Event]] = {}
    for event in sorted(told, key=lambda event: place(event.s)):
        found.setdefault(comparable(event.k), []).append(event)
    return found


def newest(events: Sequence[Event], ignores_nulls: bool) -> set[Row]:
    found = set()
    for key, of_key in in_order(events).items():
        now: list[Any] | None = None
        for event in of_key:
            if event.deletes:
                now = None
            elif now is None or not ignores_nulls:
                now = [event.a, event.b, event.s]
            else:
                given = (event.a, event.b)
                left = [b if n is None else n for b, n in zip(now, given, strict=False)]
                now = [*left, event.s]
        if now is not None:
            found.add((key, *map(comparable, now[:2]), place(now[2])))
    return found


def intervals(events: Sequence[Event], tracked: str, ignores_nulls: bool) -> set[Row]:
    found: set[Row] = set()
    for key, of_key in in_order(events).items():
        now: tuple[tuple[Any, ...], list[Any]] | None = None
        # Of events with one place, the last one counts.
        for event in {place(event.s): event for event in of_key}.values():
            at = place(event.s)
            left: list[Any] = [event.a, event.b]
            if now and ignores_nulls:
                left = [b if n is None else n for b, n in zip(now[1], left, strict=True)]
            before = None if now is None else [comparable(now[1]["ab".index(n)]) for n in tracked]
            if not event.deletes and before == [comparable(left["ab".index(n)]) for n in tracked]:
                now = (at if now is None else now[0]), left
                continue
            if now is not None:
                found.add((key, *map(comparable, now[1]), now[0], at))
            now = None if event.deletes else (at, left)
        if now is not None:
            found.add((key, *map(comparable, now[1]), now[0], None))
    return found


@st.composite
def feeds(
    draw: st.DrawFn, sequences: Sequence[str] = tuple(SEQUENCES), scd_types: Sequence[int] = (1, 2)
) -> tuple[pa.Schema, list[list[Event]], bool]:
    """Batches of events of a schema, and whether the flow keeps histories."""
    keeps_history = draw(st.sampled_from(scd_types)) == 2
    key_type, keys = KEYS[draw(st.sampled_from(sorted(KEYS)))]
    type_, places = SEQUENCES[draw(st.sampled_from(sequences))]
    at = st.sampled_from(places if keeps_history else [None, *places])
    kind = st.sampled_from(["+I", "+U", "+u", "+i", "-D", "-d", "-U", "-u"])
    value = st.sampled_from([None, 1, 2])
    other = st.sampled_from([None, NAN, -0.0, 1.0])
    event = st.builds(Event, st.sampled_from(keys), at, value, other, kind)
    schema = pa.schema(
        [("k", key_type), ("s", type_), ("a", pa.int64()), ("b", pa.float64()),
         ("_row_kind", pa.string())]
    )  # fmt: skip
    batches = draw(st.lists(st.lists(event, min_size=1, max_size=5), min_size=1, max_size=4))
    return schema, batches, keeps_history


def a_lake() -> kt.Lake:
    return kt.connect(f"memory://{tempfile.mktemp(dir='')}")


class Flow(NamedTuple):
    """A flow into a table, and how it is called."""

    lake: kt.Lake
    schema: pa.Schema
    keeps_history: bool
    ignores_nulls: bool = False
    tracked: str = "ab"

    def apply(self, events: Sequence[Event], **options: str) -> kt.WriteResult:
        rows = pa.Table.from_pylist([event.row for event in events], self.schema)
        more: dict[str, Any] = {}
        if self.keeps_history and self.tracked != "ab":
            more["track_history_column_list"] = list(self.tracked)
        if self.keeps_history:
            more["except_column_list"] = ["s"]
        options = {"primary-key.nullable": "true"} | options
        return self.lake.auto_cdc(
            "t", rows, "k", "s", ignore_null_updates=self.ignores_nulls,
            stored_as_scd_type=2 if self.keeps_history else 1, options=options, **more,
        )  # fmt: skip

    def compact(self) -> None:
        """As often as it takes until nothing is left to forget."""
        for _ in range(2):
            self.lake.table("t").compact(full=True)

    @property
    def rows(self) -> set[Row]:
        names = ("__START_AT", "__END_AT") if self.keeps_history else ("s",)
        found = set()
        count = 0
        for row in self.lake.table("t").scan(["k", *COLUMNS, *names]).to_pylist():
            count += 1
            ends = [None if n == "__END_AT" and row[n] is None else place(row[n]) for n in names]
            found.add((comparable(row["k"]), comparable(row["a"]), comparable(row["b"]), *ends))
        assert len(found) == count, "no row twice"
        return found

    def oracle(self, events: Sequence[Event]) -> set[Row]:
        if self.keeps_history:
            return intervals(events, self.tracked, self.ignores_nulls)
        return newest(events, self.ignores_nulls)


@given(feed=feeds(), ignores_nulls=st.booleans(), tracked=st.sampled_from(["a", "b", "ab"]),
       compacts=st.lists(st.booleans(), min_size=4, max_size=4))  # fmt: skip
def test_a_flow_leaves_what_its_events_make_one_by_one(
    feed: tuple[pa.Schema, list[list[Event]], bool],
    ignores_nulls: bool, tracked: str, compacts: list[bool],
) -> None:  # fmt: skip
    schema, batches, keeps_history = feed
    flow = Flow(a_lake(), schema, keeps_history, ignores_nulls, tracked)
    for batch, compacts_then in zip(batches, compacts, strict=False):
        flow.apply(batch)
        if compacts_then:
            flow.compact()
    assert flow.rows == flow.oracle([event for batch in batches for event in batch])


@pytest.mark.takes_turns
@given(feed=feeds(), ignores_nulls=st.booleans(), tracked=st.sampled_from(["a", "b", "ab"]))
def test_what_readers_see_needs_no_row_that_retention_removes(
    feed: tuple[pa.Schema, list[list[Event]], bool], ignores_nulls: bool, tracked: str
) -> None:
    """Events in their order, each followed by a compaction that forgets what is not seen."""
    schema, batches, keeps_history = feed
    flow = Flow(a_lake(), schema, keeps_history, ignores_nulls, tracked)
    events = sorted((e for batch in batches for e in batch), key=lambda event: place(event.s))
    for number in range(len(events)):
        if place(events[number].s) == place(events[number - 1].s) and number:
            continue  # of events with one place, the delete that one of them replaces is forgotten
        told = [event for event in events if place(event.s) == place(events[number].s)]
        flow.apply(told, **{"tombstone.retention": "0 ms"})
        before = flow.rows
        flow.compact()
        assert flow.rows == before
    assert flow.rows == flow.oracle(events)


@pytest.mark.takes_turns
@given(feed=feeds(["numbers"], [2]), tracked=st.sampled_from(["a", "b", "ab"]))
def test_an_event_that_changes_nothing_leaves_what_outlived_its_events(
    feed: tuple[pa.Schema, list[list[Event]], bool], tracked: str
) -> None:
    schema, batches, _ = feed
    flow = Flow(a_lake(), schema, True, True, tracked)
    for batch in batches:
        flow.apply(batch, **{"tombstone.retention": "0 ms"})
        flow.compact()
    before = flow.rows
    alive = {row[0] for row in before if row[-1] is None}
    if alive:
        flow.apply([Event(NAN if k == "NaN" else k, 99) for k in alive])
    assert flow.rows == before


KINDS: dict[str, Callable[[Event], Event]] = {
    "NULL": lambda event: event._replace(kind=None),
    "another text": lambda event: event._replace(kind="+X"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize("condition", [None, "a = 2"])
def test_what_is_no_row_kind_is_refused_and_nothing_is_made(
    kind: str, scd_type: int, condition: str | None
) -> None:
    lake = a_lake()
    event = KINDS[kind](Event(1, 1, 1, 1.0))
    with pytest.raises(kt.InvalidError, match=r"_row_kind.*expected '\+I', '-U', '\+U' or '-D'"):
        lake.auto_cdc("t", [Event(1, 0).row, event.row], "k", "s",
                      apply_as_deletes=condition, stored_as_scd_type=scd_type)  # fmt: skip
    assert lake.tables() == [] if lake.exists else True


@pytest.mark.parametrize("scd_type", [1, 2])
def test_values_of_a_row_that_somebody_deletes_do_not_come_back(scd_type: int) -> None:
    schema = pa.schema([("k", pa.int64()), ("s", pa.int64()), ("a", pa.int64()),
                        ("b", pa.float64()), ("_row_kind", pa.string())])  # fmt: skip
    flow = Flow(a_lake(), schema, scd_type == 2, ignores_nulls=True)
    flow.apply([Event(1, 1, 1, 1.0), Event(1, 2, 2)])
    flow.lake.table("t").delete("k = 1")
    flow.apply([Event(1, 3, 5)])
    assert {row[:3] for row in flow.rows} == {(1, 5, None)}
