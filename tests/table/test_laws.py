"""The three laws, with a dict as oracle: order does not matter, one row per key, and a delete
stays deleted."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import behind_writers
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import keytide as kt
from keytide.read import merged_versions as read
from new_tables import empty_lake

SCHEMA = pa.schema(
    [
        ("a", pa.string()),
        ("b", pa.int64()),
        ("s", pa.int64()),
        ("r", pa.float64()),
        ("v", pa.string()),
    ]
)
KINDS = ("+I", "+U", "-U", "-D")


class Event(NamedTuple):
    """One version of a row: key, two sequence fields, value, kind."""

    a: str
    b: int
    s: int | None
    r: float | None
    v: str | None
    kind: str

    @property
    def key(self) -> tuple[str, int]:
        return self.a, self.b


keys = st.tuples(st.sampled_from(["", "a", "b", "\u00fc", "\U0001f600"]), st.integers(-1, 2))
sequences = st.tuples(
    st.none() | st.integers(-2, 3),
    st.none() | st.sampled_from([-1.5, -0.0, 0.0, 2.0, float("inf"), float("nan")]),
)
events = st.builds(
    lambda key, sequence, v, kind: Event(*key, *sequence, v, kind),
    keys,
    sequences,
    st.none() | st.text(max_size=3),
    st.sampled_from(KINDS),
)


# -- the oracle ------------------------------------------------------------------------------------


def rank(event: Event, fields: Sequence[str], descending: bool) -> tuple[Any, ...]:
    """A key for `max`: NULL lowest, NaN highest, field by field."""
    return tuple(component(getattr(event, name), descending) for name in fields)


def component(value: float | None, descending: bool) -> tuple[int, float]:
    if value is None:
        return (0, 0.0)
    if value != value:
        return (1, 0.0) if descending else (2, 0.0)
    return (2, -value) if descending else (1, value)


def table_of(
    arrived: Iterable[Event], fields: Sequence[str] = (), descending: bool = False
) -> list[str]:
    """What a reader must see after events that arrived in this order, as texts."""
    winners: dict[tuple[str, int], Event] = {}
    for each in arrived:
        held = winners.get(each.key)
        if held is None or rank(each, fields, descending) >= rank(held, fields, descending):
            winners[each.key] = each
    return sorted(repr(tuple(e)[:5]) for e in winners.values() if e.kind[0] == "+")


def rows_of(scan: kt.Scan) -> list[str]:
    columns = [column.to_pylist() for column in scan.to_arrow().columns]
    return sorted(repr(row) for row in zip(*columns, strict=True))


def arrow(batch: Sequence[Event]) -> pa.Table:
    columns = list(zip(*batch, strict=True)) if batch else [[]] * 6
    schema = SCHEMA.append(pa.field("_row_kind", pa.string()))
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


@contextmanager
def warehouse(place: str) -> Iterator[kt.Lake]:
    """An empty warehouse, in memory or on disk."""
    if place == "memory":
        yield empty_lake()
        return
    with tempfile.TemporaryDirectory() as path:
        yield kt.connect(path)


places = st.sampled_from(["memory", "disk"])


# -- order does not matter -------------------------------------------------------------------------


def told_apart(found: list[Event], fields: Sequence[str]) -> list[Event]:
    """Events without those that only their arrival would order."""
    seen: dict[tuple[Any, ...], Event] = {}
    for each in found:
        seen.setdefault((each.key, rank(each, fields, descending=False)), each)
    return list(seen.values())


@settings(max_examples=settings.default.max_examples)
@given(
    found=st.lists(events, max_size=25),
    fields=st.sampled_from([("s",), ("r",), ("s", "r"), ("r", "s")]),
    descending=st.booleans(),
    buckets=st.integers(1, 4),
    writers=st.integers(1, 3),
    place=places,
    seed=st.integers(),
)
def test_order_batches_copies_buckets_and_writers_do_not_matter(
    found: list[Event],
    fields: tuple[str, ...],
    descending: bool,
    buckets: int,
    writers: int,
    place: str,
    seed: int,
) -> None:
    chance = random.Random(seed)
    found = told_apart(found, fields)
    arrived = [*found, *chance.choices(found, k=len(found) // 2)] if found else []
    chance.shuffle(arrived)
    options = {
        "bucket": str(buckets),
        "sequence.field": ",".join(fields),
        "sequence.field.sort-order": "descending" if descending else "ascending",
    }
    with warehouse(place) as lake:
        lake.create_table("t", SCHEMA, ["a", "b"], options=options)
        tables = [lake.table("t") for _ in range(writers)]
        for batch in cut(arrived, chance):
            chance.choice(tables).write(arrow(batch))
        event(f"{len(lake.table('t').snapshots())} commits")
        assert rows_of(lake.table("t").scan()) == table_of(found, fields, descending)


def cut(arrived: list[Event], chance: random.Random) -> list[list[Event]]:
    """The events in batches of any size, empty ones included."""
    places = sorted(chance.choices(range(len(arrived) + 1), k=chance.randint(0, 4)))
    return [arrived[i:j] for i, j in itertools.pairwise([0, *places, len(arrived)])]


@given(
    found=st.lists(events, max_size=25),
    primary_key=st.permutations(["a", "b"]),
    partitioned=st.booleans(),
    buckets=st.integers(1, 3),
    place=places,
    seed=st.integers(),
)
def test_without_sequence_field_arrival_decides(
    found: list[Event],
    primary_key: list[str],
    partitioned: bool,
    buckets: int,
    place: str,
    seed: int,
) -> None:
    chance = random.Random(seed)
    with warehouse(place) as lake:
        lake.create_table(
            "t", SCHEMA, primary_key, ["a"] if partitioned else [],
            options={"bucket": str(buckets)},
        )  # fmt: skip
        tables = [lake.table("t") for _ in range(2)]
        for batch in cut(found, chance):
            chance.choice(tables).write(arrow(batch))
        assert rows_of(lake.table("t").scan()) == table_of(found)


@given(found=st.lists(events, min_size=1, max_size=25), seed=st.integers())
def test_ties_go_to_the_later_commit_then_the_later_row(found: list[Event], seed: int) -> None:
    chance = random.Random(seed)
    with warehouse("memory") as lake:
        table = lake.create_table("t", SCHEMA, ["a", "b"], options={"sequence.field": "s"})
        for batch in cut(found, chance):
            table.write(arrow(batch))
        assert rows_of(table.scan()) == table_of(found, ["s"])


# -- a delete stays deleted ------------------------------------------------------------------------


@given(
    older=st.lists(events, max_size=15),
    deleted_at=st.integers(0, 3),
    newer=st.lists(events, max_size=5),
    seed=st.integers(),
)
def test_late_older_events_never_bring_a_deleted_row_back_and_newer_ones_do(
    older: list[Event], deleted_at: int, newer: list[Event], seed: int
) -> None:
    chance = random.Random(seed)
    late = [e._replace(s=None if e.s is None else min(e.s, deleted_at - 1)) for e in older]
    tombstones = [
        Event(*key, deleted_at, None, None, "-D") for key in {e.key for e in [*older, *newer]}
    ]
    reborn = [e._replace(s=deleted_at + 1, kind="+I") for e in newer]
    with warehouse("memory") as lake:
        table = lake.create_table("t", SCHEMA, ["a", "b"], options={"sequence.field": "s"})
        table.write(arrow(tombstones))
        for batch in cut(late, chance):
            table.write(arrow(batch))
        assert rows_of(table.scan()) == []
        table.write(arrow(reborn))
        assert rows_of(table.scan()) == table_of([*tombstones, *reborn], ["s"])


# -- key-range streaming ---------------------------------------------------------------------------


@given(
    found=st.lists(events, max_size=60),
    batch_rows=st.integers(1, 5),
    fields=st.sampled_from([(), ("s",)]),
    primary_key=st.sampled_from([["a", "b"], ["b", "a"]]),
    place=places,
    seed=st.integers(),
)
def test_merging_in_windows_of_any_size_is_merging_at_once(
    found: list[Event],
    batch_rows: int,
    fields: tuple[str, ...],
    primary_key: list[str],
    place: str,
    seed: int,
) -> None:
    options = {"read.memory": "1 b"} | ({"sequence.field": ",".join(fields)} if fields else {})
    with warehouse(place) as lake, mock.patch.object(read, "_BATCH_ROWS_MIN", batch_rows):
        table = lake.create_table("t", SCHEMA, primary_key, options=options)
        for batch in cut(found, random.Random(seed)):
            table.write(arrow(batch))
        assert rows_of(table.scan()) == table_of(found, fields)


KEY_COLUMNS: dict[str, list[pl.Expr]] = {
    "whole numbers": [pl.col("n").alias("k1")],
    "texts": [pl.format("k{}", pl.col("n")).alias("k1")],
    "numbers with NaN": [
        pl.when(pl.col("n") == 0).then(float("nan")).otherwise(pl.col("n") / 7).alias("k1")
    ],
    "pairs": [(pl.col("n") % 97).alias("k1"), (pl.col("n") // 97).cast(pl.String).alias("k2")],
    "pairs with NULL": [
        pl.when(pl.col("n") % 50 > 0).then(pl.col("n") % 50).alias("k1"),
        pl.when(pl.col("n") // 50 != 7).then(pl.col("n") // 50).alias("k2"),
    ],
}


@pytest.mark.parametrize("key", KEY_COLUMNS)
@pytest.mark.parametrize("ordered", [False, True])
def test_small_memory_gives_the_rows_of_large_memory(
    tmp_path: Any, key: str, ordered: bool
) -> None:
    chance = np.random.default_rng(7)
    writes = [
        pl.DataFrame({"n": chance.permutation(60_000)[:count], "s": chance.integers(0, 9, count)})
        .with_columns(*KEY_COLUMNS[key])
        .with_columns(v=pl.lit(version), _row_kind=pl.when(pl.col("n") % 11 == version)
                      .then(pl.lit("-D")).otherwise(pl.lit("+I")))
        for version, count in enumerate([60_000, 30_000, 9_000, 100])
    ]  # fmt: skip
    names = [expression.meta.output_name() for expression in KEY_COLUMNS[key]]
    schema = writes[0].drop("_row_kind").to_arrow().schema
    options = {"primary-key.nullable": "true"} | ({"sequence.field": "s"} if ordered else {})
    found = {}
    for memory in ("1 kb", "1 gb"):
        table = kt.connect(tmp_path / memory).create_table(
            "t", schema, names, options=options | {"read.memory": memory}
        )
        for rows in writes:
            table.write(rows)
        found[memory] = list(table.scan().to_batches())
    assert len(found["1 kb"]) > len(found["1 gb"])
    small, large = (pl.DataFrame(pa.Table.from_batches(b)).sort("n") for b in found.values())
    arrived = pl.concat([w.with_columns(commit=pl.lit(i)) for i, w in enumerate(writes)])
    winners = (
        arrived.sort(["s", "commit"] if ordered else ["commit"])
        .group_by("n")
        .last()
        .filter(pl.col("_row_kind") == "+I")
        .select(large.columns)
        .sort("n")
    )
    assert small.equals(large)
    assert large.equals(winners.cast(large.schema))


# -- histories -------------------------------------------------------------------------------------


class History(RuleBasedStateMachine):
    """Random writes through several table objects, against a dict and its past."""

    fields: tuple[str, ...] = ()
    primary_key = ("a", "b")
    partition_by: tuple[str, ...] = ()
    buckets = 1

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.lake = kt.connect(self.folder.name)
        options = {"bucket": str(self.buckets), **behind_writers.OFTEN}
        if self.fields:
            options["sequence.field"] = ",".join(self.fields)
        self.lake.create_table("t", SCHEMA, self.primary_key, self.partition_by, options=options)
        self.tables = [self.lake.table("t") for _ in range(2)]
        self.arrived: list[Event] = []
        self.past: dict[int, list[str]] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(writer=st.integers(0, 1), batch=st.lists(events, max_size=8))
    def write(self, writer: int, batch: list[Event]) -> None:
        result = self.tables[writer].write(arrow(batch))
        assert (result.snapshot_id is None) == (not batch)
        self.arrived += batch
        if result.snapshot_id is not None:
            self.past[result.snapshot_id] = self.expected()

    @rule(writer=st.integers(0, 1), key=keys)
    def delete(self, writer: int, key: tuple[str, int]) -> None:
        self.write(writer, [Event(*key, 99, 99.0, None, "-D")])

    @rule(writer=st.integers(0, 1))
    def reopen(self, writer: int) -> None:
        self.tables[writer] = self.lake.table("t")

    @precondition(lambda self: self.past)
    @rule(data=st.data(), reader=st.integers(0, 1))
    def travel(self, data: st.DataObject, reader: int) -> None:
        snapshot_id = data.draw(st.sampled_from(sorted(self.past)))
        found = rows_of(self.tables[reader].scan(snapshot_id=snapshot_id))
        assert found == self.past[snapshot_id]

    @rule(reader=st.integers(0, 1), key=keys)
    def get(self, reader: int, key: tuple[str, int]) -> None:
        row = self.tables[reader].get(dict(zip(("a", "b"), key, strict=True)))
        found = [] if row is None else [repr(tuple(row.values()))]
        start = f"({key[0]!r}, {key[1]},"
        assert found == [text for text in self.expected() if text.startswith(start)]

    @rule(reader=st.integers(0, 1), limit=st.integers(-1, 2))
    def filter(self, reader: int, limit: int) -> None:
        found = rows_of(self.tables[reader].scan(where=f"b <= {limit} and s > 0"))
        everything = self.tables[reader].scan().to_pylist()
        assert found == sorted(
            repr(tuple(row.values()))
            for row in everything
            if row["b"] <= limit and row["s"] is not None and row["s"] > 0
        )

    @invariant()
    def every_reader_sees_the_model(self) -> None:
        for table in (*self.tables, self.lake.table("t")):
            assert rows_of(table.scan()) == self.expected()

    def expected(self) -> list[str]:
        return table_of(self.arrived, self.fields)


class SequencedHistory(History):
    """The same with sequence fields and several buckets."""

    fields = ("s", "r")
    buckets = 3


class PartitionedHistory(History):
    """The same with partitions."""

    partition_by = ("a",)
    buckets = 2


HISTORIES = settings(
    max_examples=max(1, settings.default.max_examples // 5), stateful_step_count=12
)
TestHistory = History.TestCase
TestHistory.settings = HISTORIES
TestSequencedHistory = SequencedHistory.TestCase
TestSequencedHistory.settings = HISTORIES
TestPartitionedHistory = PartitionedHistory.TestCase
TestPartitionedHistory.settings = HISTORIES
