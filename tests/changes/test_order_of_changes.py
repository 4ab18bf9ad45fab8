"""What is told of one key comes in its order, in every mode and for every kind of table.

The law: whoever takes in changes as they come has a copy of the table. It holds across partitions,
buckets and snapshots, also where lanes are told in any order, as Spark does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.maintenance.writes import writing
from keytide.write.refusals import writable_view
from new_tables import empty_lake, empty_table

SCHEMA = pa.schema([("p", pa.int32()), ("k", pa.int32()), ("v", pa.int64())])
Row = Mapping[str, Any]

ALL, ADDS = ("+I", "+I", "-U", "+U", "-D"), ("+I", "+U")
ENGINES: Mapping[str, tuple[Sequence[str], dict[str, str]]] = {
    "deduplicate": (ALL, {}),
    "partial-update": (
        ALL,
        {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"},
    ),
    "aggregation": (
        ALL, {"merge-engine": "aggregation", "fields.default-aggregate-function": "sum"},
    ),
    "first-row": (ADDS, {"merge-engine": "first-row"}),
}  # fmt: skip
# The primary key, the partition columns, and the buckets that such a table may have.
LAYOUTS: Mapping[str, tuple[list[str], list[str], Sequence[str]]] = {
    "no partitions": (["k"], [], ("1", "3", "-1", "-2")),
    "partition in the key": (["p", "k"], ["p"], ("2", "-1", "-2")),
    "keys move": (["k"], ["p"], ("-1",)),
}
PRODUCERS: Mapping[str, tuple[str, dict[str, str]]] = {
    "diff": ("diff", {}),
    "delta": ("delta", {}),
    "input": ("changelog", {"changelog-producer": "input"}),
    "lookup": ("changelog", {"changelog-producer": "lookup"}),
    "lookup, by and by": ("changelog", {"changelog-producer": "lookup", "lookup-wait": "false"}),
    "full-compaction": ("changelog", {"changelog-producer": "full-compaction"}),
    "full-compaction, at times": (
        "changelog",
        {"changelog-producer": "full-compaction", "full-compaction.delta-commits": "3"},
    ),
}


def row_texts(table: kt.Table) -> list[str]:
    return texts(table.scan().to_pylist())


def texts(rows: Iterable[Row]) -> list[str]:
    return sorted(map(str, rows))


def as_lanes_come(changes: kt.Changes, order: random.Random) -> Iterator[Row]:
    """The rows in an order in which executors might give them: each lane in its own."""
    lanes: dict[Any, list[pl.DataFrame]] = {}
    for task in changes.tasks():
        lanes.setdefault(task.lane, []).extend(task.frames(1))
    left = list(lanes.values())
    while left:
        lane = order.choice(left)
        yield from lane.pop(0).to_dicts() if lane else ()
        left = [each for each in left if each]


def folded(changes: Sequence[Row], key: Sequence[str], held: dict[Any, Row]) -> None:
    """Take in images, each of which must meet what it says that it finds."""
    for change in changes:
        kind, row = change["_row_kind"], {n: v for n, v in change.items() if n != "_row_kind"}
        place = tuple(row[name] for name in key)
        if kind in ("-U", "-D"):
            assert held.pop(place) == row
        else:
            assert place not in held
            held[place] = row


WRITE = st.tuples(
    st.sampled_from(["write", "write", "write in runs"]),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
UPKEEP = st.tuples(st.sampled_from(["compact", "compact one", "compact in full"]))
HISTORIES = st.lists(st.one_of(WRITE, WRITE, UPKEEP), min_size=3, max_size=8)


def take(table: kt.Table, step: Sequence[Any], kinds: Sequence[str]) -> None:
    match step:
        case [name, count, dice]:
            rows = [
                {"p": dice.randrange(3), "k": dice.randrange(4), "v": dice.randrange(3)}
                for _ in range(count)
            ]
            found = [{**row, "_row_kind": dice.choice(kinds)} for row in rows]
            if name == "write in runs":
                write_in_runs(table, found)
            else:
                table.write(found)
        case ["compact one"] if table.partition_by:
            table.compact(full=True, partition={"p": 1})
        case [name]:
            table.compact(full=name == "compact in full")


def write_in_runs(table: kt.Table, rows: Sequence[Row]) -> None:
    """Write each row as a run of its own, in one commit, as Spark does with a small buffer."""
    schema = SCHEMA.append(pa.field("_row_kind", pa.string()))
    pieces = [pa.Table.from_pylist([row], schema) for row in rows]
    with writing(table.stored, writable_view(table.stored)) as transaction:
        transaction.collect(transaction.task().feed(pieces, 0))
        transaction.commit()


@dataclass
class Images:
    """A copy kept by images, each of which must meet what it says that it finds."""

    key: Sequence[str]
    held: dict[Any, Row] = field(default_factory=dict)

    def take(self, changes: Iterable[Row], schema: pa.Schema) -> None:
        for change in changes:
            kind, row = change["_row_kind"], {n: v for n, v in change.items() if n != "_row_kind"}
            place = tuple(row[name] for name in self.key)
            if kind in ("-U", "-D"):
                assert self.held.pop(place) == row
            else:
                assert place not in self.held
                self.held[place] = row

    def rows(self) -> list[str]:
        return texts(self.held.values())


@dataclass
class Written:
    """A copy kept by writing what is told, in batches, into a table that merges likewise."""

    table: kt.Table

    def take(self, changes: Iterable[Row], schema: pa.Schema) -> None:
        self.table.write(pa.Table.from_pylist(list(changes), schema))

    def rows(self) -> list[str]:
        return row_texts(self.table)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    engine=st.sampled_from(sorted(ENGINES)),
    more=st.sampled_from([{}, {"write-only": "true"}, {"num-sorted-run.compaction-trigger": "2"}]),
    history=HISTORIES,
    data=st.data(),
)
def test_changes_taken_in_as_they_come_give_a_copy_of_the_table(
    layout: str, producer: str, engine: str, more: dict[str, str], history: list[Any], data: Any
) -> None:
    (key, partitions, buckets), (kinds, merging) = LAYOUTS[layout], ENGINES[engine]
    mode, telling = PRODUCERS[producer]
    options = {"bucket": data.draw(st.sampled_from(buckets)), **merging}
    if options["bucket"] == "-1":
        options["dynamic-bucket.target-row-num"] = "2"
    lake = empty_lake()
    try:
        every = {**options, **telling, **more}
        table = lake.create_table("t", SCHEMA, key, partitions, options=every)
    except (kt.InvalidError, kt.UnsupportedError):
        return
    copy = (
        Images(key)
        if producer.startswith(("diff", "lookup", "full-compaction"))
        else Written(lake.create_table("copy", SCHEMA, key, partitions, options=options))
    )
    order, told = data.draw(st.randoms(use_true_random=False)), 0
    for step in [*history, ("compact in full",)]:
        take(table, step, kinds)
        if step == ("compact in full",) or order.random() < 0.5:
            changes = table.changes(told, mode=mode)
            told = changes.end_id
            copy.take(as_lanes_come(changes, order), changes.schema)
    assert copy.rows() == row_texts(table)


@pytest.mark.takes_turns
@given(
    buckets=st.sampled_from([{}, {"bucket": "2", "bucket-key": "k"}]),
    vectors=st.booleans(),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["write", "write", "delete", "update", "overwrite", "compact"]),
            st.integers(0, 2),
        ),
        min_size=2,
        max_size=6,
    ),
    order=st.randoms(use_true_random=False),
)
def test_rows_of_an_append_table_go_only_when_they_are_there(
    buckets: dict[str, str], vectors: bool, steps: list[Any], order: random.Random
) -> None:
    options = {**buckets, **({"deletion-vectors.enabled": "true"} if vectors else {})}
    table = empty_table(SCHEMA, [], ["p"], options=options)
    held: Counter[str] = Counter()
    told = 0
    for name, n in steps:
        rows = [{"p": p, "k": k, "v": n} for p in range(2) for k in range(3)]
        match name:
            case "write" | "overwrite":
                getattr(table, name)(rows)
            case "delete":
                table.delete(f"k = {n}")
            case "update":
                table.update({"v": "v + 1"}, f"k = {n}")
            case "compact":
                table.compact(full=True)
        if order.random() < 0.5:
            changes = table.changes(told)
            told = changes.end_id
            for row in as_lanes_come(changes, order):
                text = str({n: v for n, v in row.items() if n != "_row_kind"})
                held[text] += {"+I": 1, "-D": -1}[row["_row_kind"]]
                assert held[text] >= 0, row
            assert +held == Counter(row_texts(table))


def test_key_that_moved_to_and_fro_within_one_batch_is_where_it_ended() -> None:
    lake, options = empty_lake(), {"bucket": "-1"}
    table = lake.create_table("t", SCHEMA, ["k"], ["p"], options=options)
    for p in (1, 2, 0, 1, 2):
        table.write([{"p": p, "k": 7, "v": p}])
    told = [(r["_row_kind"], r["p"]) for r in table.changes(0, mode="delta").to_pylist()]
    assert told == [
        ("+I", 1), ("-D", 1), ("+I", 2), ("-D", 2), ("+I", 0), ("-D", 0), ("+I", 1), ("-D", 1),
        ("+I", 2),
    ]  # fmt: skip


def test_compaction_of_one_partition_tells_of_the_one_that_a_key_left() -> None:
    options = {"bucket": "-1", "changelog-producer": "full-compaction", "write-only": "true"}
    table = empty_table(SCHEMA, ["k"], ["p"], options=options)
    table.write([{"p": 1, "k": 7, "v": 0}])
    table.compact(full=True)
    table.write([{"p": 2, "k": 7, "v": 1}])
    table.compact(full=True, partition={"p": 2})
    told = table.changes(0, mode="changelog").to_pylist()
    assert [(row["_row_kind"], row["p"]) for row in told] == [("+I", 1), ("-D", 1), ("+I", 2)]


def test_lanes_are_buckets_until_an_overwrite_may_have_moved_their_keys() -> None:
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": "1"}
    table = empty_table(SCHEMA, ["p", "k"], ["p"], options=options)
    rows = [{"p": p, "k": k, "v": 0} for p in range(2) for k in range(2)]
    table.write(rows)
    table.write(rows)
    assert len({task.lane for task in table.changes(0, mode="delta").tasks()}) == 4
    table.overwrite(rows[::-1])
    assert len({task.lane for task in table.changes(0, mode="delta").tasks()}) == 2
