"""Look-ups by an index of keys: the rows are those of a scan, and little else is read.

A dict is the model, and a scan without a condition, which asks no index, the judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.write.test_key_index import ROWS, Model, new_table, rows_of, write

import keytide as kt
from copies import copies_of
from keytide.format.cache import forget_files
from keytide.key_index.indexed_keys import Entries, KeyHashes
from keytide.key_index.sorted_runs import RemoteRun, Run, write_run
from keytide.snapshot.lineage import forget_lineages
from keytide.store import Store
from keytide.store.faults import FaultyStore
from new_tables import empty_store, empty_table, table_in

KEYS = range(7)


def by_key(table: kt.Table) -> dict[int, tuple[Any, Any]]:
    """What each way to look a key up gives: the same, once."""
    one = {k: row for k in KEYS if (row := table.get(k)) is not None}
    many = {row["k"]: row for row in table.get_many([*KEYS, None]).to_pylist()}
    where = [row for k in KEYS for row in table.scan(where=f"k = {k}").to_pylist()]
    among = table.scan(where=f"k in ({', '.join(map(str, KEYS))})").to_pylist()
    assert one == many == {row["k"]: row for row in where} == {row["k"]: row for row in among}
    assert len(where) == len(among) == len(one)
    return {k: (row["ts"], row["v"]) for k, row in one.items()}


def asks_the_index(table: kt.Table, where: str = "k = 1") -> bool:
    return "key index" in [s.stage for s in table.scan(where=where).explain().funnel.stages]


STEPS = st.one_of(
    st.lists(ROWS, min_size=1, max_size=6),
    st.sampled_from(["compact", "compact in full"]),
    st.tuples(st.just("delete"), st.integers(0, 5)),
)


@pytest.mark.takes_turns
@pytest.mark.parametrize("buckets", ["1", "3"])
@given(steps=st.lists(STEPS, min_size=1, max_size=6))
def test_any_history_is_looked_up_as_it_is_scanned(buckets: str, steps: list[Any]) -> None:
    table, model = new_table(bucket=buckets), Model()
    for step in steps:
        if isinstance(step, list):
            write(table, *step)
            model.take(step)
        elif isinstance(step, str):
            table.compact(full=step == "compact in full")
        else:
            row = model.shown().get(step[1])
            table.delete(f"k = {step[1]}")
            model.take([] if row is None else [("-D", step[1], *row)])
        assert by_key(table) == model.shown()


TWO_COLUMNS = pa.schema(
    [pa.field("p", pa.string(), False), pa.field("k", pa.int32(), False), ("v", pa.int64())]
)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("partitions", [(), ("p",)])
@pytest.mark.parametrize("function", ["none", "murmur3", "uuid"])
def test_keys_of_several_columns_are_found_in_their_partitions_and_buckets(
    partitions: tuple[str, ...], function: str
) -> None:
    buckets = "1" if function == "uuid" else "3"
    options = {"upsert.mode": "full", "bucket": buckets, "upsert.hash-function": function}
    table = empty_table(TWO_COLUMNS, ["p", "k"], partition_by=partitions, options=options)
    rows = [{"p": p, "k": k, "v": 10 * k} for p in ("a", "", "ß") for k in range(5)]
    table.write(rows)
    table.write([{"p": "a", "k": 1, "v": -1}])
    expected = {(r["p"], r["k"]): r for r in [*rows, {"p": "a", "k": 1, "v": -1}]}
    for key in [*expected, ("a", 9), ("z", 1)]:
        assert table.get(key) == expected.get(key)
    wanted = [("z", 1), *reversed(expected), ("a", 1)]
    assert table.get_many(wanted).to_pylist() == [*reversed(expected.values())]
    explained = table.scan(where="p = 'a' and k = 1").explain().funnel.stages
    assert [(s.stage, s.files) for s in explained][-1] == ("statistics", 1)


@pytest.mark.parametrize(
    ("type_", "values", "asked"),
    [
        (pa.float64(), [0.0, 1.5, float("inf")], [-0.0, 1.5, float("inf"), 2.5]),
        (pa.string(), ["", "a", "a "], ["", "a", "a ", "A"]),
        (pa.date32(), ["1969-12-31", "2024-02-29"], ["1969-12-31", "2024-02-29", "2024-03-01"]),
        (pa.decimal128(9, 2), ["-1.50", "3.00"], ["-1.50", "3.00", "3.01"]),
        (pa.bool_(), [True], [True, False]),
        (pa.timestamp("us"), ["2024-01-01 00:00:00.000001"], ["2024-01-01 00:00:00.000001"]),
    ],
    ids=str,
)
def test_keys_of_any_type_are_looked_up(type_: Any, values: list[Any], asked: list[Any]) -> None:
    schema = pa.schema([pa.field("k", type_, False), ("v", pa.int64())])
    table = empty_table(schema, ["k"], options={"upsert.mode": "full"})
    stored = pa.array(values).cast(type_) if isinstance(values[0], str) else pa.array(values, type_)
    table.write(pa.table([stored, pa.array(range(len(values)))], schema=schema))
    keys = (
        pa.array(asked).cast(type_) if isinstance(asked[0], str) else pa.array(asked)
    ).to_pylist()
    every = {row["k"]: row for row in table.scan().to_pylist()}
    assert [table.get(k) for k in keys] == [every.get(k) for k in keys]
    assert table.get_many(keys).to_pylist() == [every[k] for k in keys if k in every]


# -- what is read ----------------------------------------------------------------------------------


def data_files(store: FaultyStore) -> list[str]:
    return [path for _, path in store.log if "/bucket-" in path]


def test_look_up_reads_the_file_of_its_row_alone() -> None:
    store = empty_store()
    table = new_table(store, **{"num-sorted-run.compaction-trigger": "100"})
    for n in range(6):
        write(table, ("+I", n, 1, "a"), ("+I", 6, n, "b"))
    seen = FaultyStore(store)
    table = table_in(seen)
    table.metadata.latest_snapshot_id()
    for key in range(6):
        forget_files()
        seen.log.clear()
        assert table.get(key) is not None
        assert len(set(data_files(seen))) == 1
    seen.log.clear()
    assert table.get(9) is None
    assert not data_files(seen)


def test_explanation_says_what_the_index_left() -> None:
    table = new_table()
    for n in range(4):
        write(table, ("+I", n, 1, "a"))
    stages = {s.stage: s.files for s in table.scan(where="k = 1").explain().funnel.stages}
    assert (stages["bucket"], stages["key index"]) == (4, 1)
    assert not asks_the_index(table, "ts = 1")


# -- trust, but check ------------------------------------------------------------------------------


def fill(store: Store) -> None:
    table = new_table(store)
    write(table, *rows_of("+I 1 5 a", "+I 2 5 a", "+I 3 5 a", "+I 4 5 a"))
    write(table, *rows_of("+I 2 6 b", "-D 3 6 b"))


filled = copies_of(fill)
SHOWN = {1: (5, "a"), 2: (6, "b"), 4: (5, "a")}


def opened(store: Store) -> kt.Table:
    forget_files()
    forget_lineages()
    return table_in(store)


@contextmanager
def another_engine(store: Store) -> Iterator[kt.Table]:
    """The table as an engine sees it that knows no index."""
    path = "default.db/t/schema/schema-0"
    stored = store.read(path)
    plain = json.loads(stored)
    plain["options"] = {k: v for k, v in plain["options"].items() if not k.startswith("upsert.")}
    store.put(path, json.dumps(plain).encode())
    yield opened(store)
    store.put(path, stored)


def test_rows_that_another_engine_appended_are_found() -> None:
    store = filled()
    with another_engine(store) as table:
        table.write([{"k": 5, "ts": 1, "v": "other"}])
    table = opened(store)
    assert not asks_the_index(table)
    assert by_key(table) == SHOWN | {5: (1, "other")}


def test_rows_that_another_engine_deleted_are_gone() -> None:
    store = filled()
    with another_engine(store) as table:
        table.delete("k = 1")
    table = opened(store)
    assert asks_the_index(table)
    assert by_key(table) == {2: SHOWN[2], 4: SHOWN[4]}


def test_rows_that_another_engine_compacted_are_found() -> None:
    store = filled()
    with another_engine(store) as table:
        table.compact(full=True)
    assert by_key(opened(store)) == SHOWN


@pytest.mark.one_in(14)
@pytest.mark.parametrize("harm", ["gone", "torn", "flipped", "newer", "another"])
@pytest.mark.parametrize("part", ["head", "run"])
def test_index_that_cannot_be_read_is_not_asked(harm: str, part: str) -> None:
    store = filled()
    for name in store.list_names("default.db/t/index"):
        path = f"default.db/t/index/{name}"
        data = store.read(path)
        if (b"KTKEYIDX" if part == "run" else b'"runs"') in data:
            store.delete([path])
            if harm == "torn":
                store.put(path, data[:-3])
            elif harm == "flipped":
                store.put(path, data[:9] + bytes([data[9] ^ 1]) + data[10:])
            elif harm == "newer":
                store.put(path, data.replace(b'"version": 1', b'"version": 9'))
            elif harm == "another":
                store.put(path, data + b"x")
    assert by_key(opened(store)) == SHOWN


def test_place_of_another_key_is_no_row_of_this_one() -> None:
    """As of two keys that have one hash."""
    store = filled()
    table = opened(store)
    scan = table.scan(where="k = 1")
    (file,) = scan.plan.buckets[0].files
    every = replace(file, places=np.arange(file.meta.row_count))
    (task,) = scan.tasks()
    section = replace(task.bucket.sections[0], runs=((every,),))
    task = replace(task, bucket=replace(task.bucket, sections=(section,)))
    assert [row["k"] for t in task.tables(1 << 20) for row in t.to_pylist()] == [1]


# -- time travel, and who wants more than the current row ------------------------------------------


def test_earlier_snapshots_are_looked_up_by_their_own_index() -> None:
    table = opened(filled())
    scan = table.scan(where="k = 2", snapshot_id=1)
    assert [(r["ts"], r["v"]) for r in scan.to_pylist()] == [(5, "a")]
    assert "key index" in [s.stage for s in scan.explain().funnel.stages]


def test_every_stored_row_of_a_key_is_told() -> None:
    table = opened(filled())
    assert table.why(2).versions["v"].to_pylist() == ["a", "b"]


def test_changes_are_found_by_key() -> None:
    table = opened(filled())
    table.update({"v": "'new'"}, "k = 2")
    table.delete("k = 1")
    assert by_key(table) == {2: (6, "new"), 4: (5, "a")}


# -- runs that lie far away ------------------------------------------------------------------------


def run_of(heads: np.ndarray) -> tuple[Run, bytes]:
    import io

    count = np.arange(len(heads))
    checks = (count % 7).astype(np.uint32)
    entries = Entries(KeyHashes(heads, checks), count % 3, count, count - 5)
    output = io.BytesIO()
    write_run([entries], output, block_entries=600)
    data = output.getvalue()
    return Run.of(np.frombuffer(data, np.uint8), "run"), data


EVEN = np.sort(np.random.default_rng(5).integers(0, 1 << 64, 30_000, np.uint64))
CROWDED = np.sort(np.concatenate([EVEN[:100], np.arange(20_000, dtype=np.uint64) + (1 << 60)]))


@pytest.mark.parametrize("heads", [EVEN, CROWDED, EVEN[:601]], ids=["even", "crowded", "few"])
@pytest.mark.parametrize("count", [1, 5, 900])
def test_far_run_finds_what_a_near_one_finds(heads: np.ndarray, count: int) -> None:
    run, data = run_of(heads)
    rng = np.random.default_rng(count)
    at = rng.integers(0, len(heads), count)
    asked = np.concatenate([heads[at], rng.integers(0, 1 << 64, 3, np.uint64), heads[[0, -1]]])
    order = np.argsort(asked)
    checks = np.concatenate([at % 7, [0, 0, 0, 0, (len(heads) - 1) % 7]]).astype(np.uint32)
    probes = KeyHashes(asked[order], checks[order])
    far = RemoteRun(lambda ranges: [data[a:b] for a, b in ranges], "run", run.blocks)
    (near_places, near), (far_places, found) = run.find(probes), far.find(probes)
    assert sorted(far_places) == sorted(near_places)
    assert len(near_places) >= count
    assert sorted(found.positions) == sorted(near.positions)
    assert sorted(found.comparisons) == sorted(near.comparisons)


def test_far_run_is_asked_once_and_for_little() -> None:
    run, data = run_of(EVEN)
    rounds: list[int] = []

    def fetch(ranges: Any) -> list[bytes]:
        rounds.append(sum(b - a for a, b in ranges))
        return [data[a:b] for a, b in ranges]

    far = RemoteRun(fetch, "run", run.blocks)
    far.find(KeyHashes(EVEN[[17_000]], np.array([17_000 % 7], np.uint32)))
    assert len(rounds) == 1
    assert rounds[0] < len(data) / 10
