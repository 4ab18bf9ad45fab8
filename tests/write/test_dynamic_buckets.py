"""Tables with `bucket = -1`: an index says which bucket a key is in, and buckets come as they are
needed; no key is ever in two, however many write at once."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import RemoveOption, SetOption
from keytide.format.bucket import row_hashes
from keytide.snapshot.dynamic_buckets import KeyPlaces, hash_files, load_places
from keytide.store.faults import Crash, Fault, FaultyStore
from new_tables import empty_table
from overtaking import overtaken
from table_rows import lines, parsed, write_lines

SCHEMA = pa.schema([("p", pa.int32()), ("k", pa.int32()), ("v", pa.string())])
KINDS = ("+I", "+U", "-U", "-D")


def new_table(**options: Any) -> kt.Table:
    """A table whose buckets are full with three keys, unless the options say otherwise."""
    settings = {"bucket": "-1", "dynamic-bucket.target-row-num": "3"}
    given = {name.replace("_", "-"): str(value) for name, value in options.items()}
    settings |= {f"dynamic-bucket.{name}": value for name, value in given.items()}
    return empty_table(SCHEMA, ["p", "k"], ["p"], options=settings)


def some(partition: int, keys: Iterable[int], value: str = "a") -> list[dict[str, Any]]:
    return parsed(SCHEMA, *(f"{partition} {key} {value}" for key in keys))


def places(table: kt.Table) -> dict[tuple[int, int], set[int]]:
    """The buckets in whose files the rows of each key are, deleted ones too."""
    found: dict[tuple[int, int], set[int]] = {}
    scan = table.scan()
    for task in scan.tasks():
        for frame in task.outcomes(1 << 20):
            for p, k in frame.select("p", "k").iter_rows():
                found.setdefault((p, k), set()).add(task.bucket.bucket)
    return found


def bucket_sizes(table: kt.Table) -> dict[int, int]:
    """How many keys are in each bucket, of all partitions."""
    sizes: dict[int, int] = {}
    for buckets in places(table).values():
        for bucket in buckets:
            sizes[bucket] = sizes.get(bucket, 0) + 1
    return dict(sorted(sizes.items()))


def index(table: kt.Table) -> list[KeyPlaces]:
    """The index of each partition, as it is stored."""
    snapshot = table.metadata.latest_snapshot()
    assert snapshot is not None
    found = hash_files(table.metadata.index_files(snapshot))
    return [load_places(table.metadata.store, files.values(), "t") for files in found.values()]


def assert_index_is_whole(table: kt.Table) -> None:
    """Every key is in one bucket, and the index says in which."""
    snapshot = table.metadata.latest_snapshot()
    files = hash_files(table.metadata.index_files(snapshot)) if snapshot else {}
    view = table.scan().view
    for task in table.scan().tasks():
        known = load_places(view.store, files[task.bucket.partition].values(), "t")
        for frame in task.outcomes(1 << 20):
            keys = pa.array(frame["k"].to_list(), pa.int32())
            hashes = row_hashes([keys], [f.type for f in view.bucket_fields])
            assert set(known.buckets_of(hashes).tolist()) <= {task.bucket.bucket}
    assert all(len(buckets) == 1 for buckets in places(table).values())


# -- filling buckets -------------------------------------------------------------------------------


def test_key_goes_to_the_first_bucket_with_room_and_stays_there() -> None:
    table = new_table()
    table.write(some(1, range(5)))
    assert bucket_sizes(table) == {0: 3, 1: 2}
    before = places(table)
    table.write(some(1, range(5), "b"))
    assert places(table) == before
    table.write(some(1, range(5, 9)))
    assert bucket_sizes(table) == {0: 3, 1: 3, 2: 3}
    assert {key: places(table)[key] for key in before} == before
    assert lines(table)[0] == "1 0 b"
    assert_index_is_whole(table)


def test_each_partition_has_buckets_of_its_own() -> None:
    table = new_table()
    table.write([*some(1, range(4)), *some(2, range(2))])
    assert places(table)[(2, 0)] == {0}
    assert bucket_sizes(table) == {0: 5, 1: 1}


def test_deleted_key_keeps_its_place() -> None:
    table = new_table()
    table.write(some(1, range(3)))
    write_lines(table, "-D 1 0", "-D 1 1", "-D 1 2")
    table.write([*some(1, [3]), *some(1, [0], "back")])
    assert lines(table) == ["1 0 back", "1 3 a"]
    assert bucket_sizes(table) == {0: 3, 1: 1}


@pytest.mark.parametrize(
    ("options", "count", "sizes"),
    [
        ({"max_buckets": 2}, 20, {0: 10, 1: 10}),
        ({"max_buckets": 4, "target_row_num": 5}, 20, {0: 5, 1: 5, 2: 5, 3: 5}),
        ({"max_buckets": 1}, 5, {0: 5}),
        ({"max_buckets": -1}, 7, {0: 3, 1: 3, 2: 1}),
        ({"target_row_num": 2**63 - 1}, 20, {0: 20}),
    ],
    ids=["two", "four", "one", "no limit", "endless bucket"],
)
def test_buckets_share_what_comes_when_no_more_are_allowed(
    options: dict[str, int], count: int, sizes: dict[int, int]
) -> None:
    table = new_table(**options)
    table.write(some(1, range(count)))
    assert bucket_sizes(table) == sizes
    assert_index_is_whole(table)


def test_first_buckets_share_the_keys_by_their_hash() -> None:
    table = new_table(initial_buckets=4, target_row_num=100)
    table.write(some(1, range(40)))
    assert set(bucket_sizes(table)) == {0, 1, 2, 3}
    assert_index_is_whole(table)


def test_index_is_stored_as_the_format_has_it() -> None:
    table = new_table()
    table.write(some(1, [7, 8]))
    view, snapshot = table.scan().view, table.metadata.latest_snapshot()
    assert snapshot is not None
    [file] = table.metadata.index_files(snapshot)
    assert (file.index_type, file.bucket, file.row_count, file.file_size) == ("HASH", 0, 2, 8)
    data = view.store.read(f"index/{file.file_name}")
    hashes = row_hashes([pa.array([7, 8], pa.int32())], [f.type for f in view.bucket_fields])
    assert sorted(np.frombuffer(data, ">i4").tolist()) == sorted(hashes.tolist())
    assert {e.total_buckets for e in table.stored.newest_files().entries} == {-1}


def test_commit_that_places_no_key_carries_the_index_on() -> None:
    table = new_table()
    table.write(some(1, range(2)))
    table.write(some(1, range(2), "b"))
    one, two = table.snapshots()
    assert one.index_manifest == two.index_manifest is not None


# -- replacing and altering ------------------------------------------------------------------------


def test_overwritten_partition_is_laid_out_anew() -> None:
    table = new_table()
    table.write([*some(1, range(9)), *some(2, range(9))])
    table.overwrite(some(1, [8]), partition={"p": 1})
    assert places(table)[(1, 8)] == {0}
    assert sorted(sorted(each.hashes) for each in index(table)) == [[0], [0, 1, 2]]
    table.truncate()
    assert index(table) == []
    table.write(some(2, [5]))
    assert places(table) == {(2, 5): {0}}
    assert_index_is_whole(table)


def test_update_and_delete_find_their_buckets() -> None:
    table = new_table()
    table.write(some(1, range(7)))
    write_lines(table, "-D 1 6", "1 4 new")
    assert lines(table) == ["1 0 a", "1 1 a", "1 2 a", "1 3 a", "1 4 new", "1 5 a"]
    assert table.get({"p": 1, "k": 4}) == {"p": 1, "k": 4, "v": "new"}
    assert table.get({"p": 1, "k": 6}) is None


# -- several writers -------------------------------------------------------------------------------


def test_key_that_two_writers_bring_at_once_is_in_one_bucket() -> None:
    table = new_table()
    table.write(some(1, range(2)))
    # The other one fills the bucket that key 9 was meant for, and puts 9 into the next.
    slow = overtaken(table, lambda: table.write(some(1, [5, 9], "fast")))
    slow.write(some(1, [9], "slow"))
    assert places(table)[(1, 9)] == {1}
    assert "1 9 slow" in lines(table)
    assert_index_is_whole(table)


def test_writers_of_different_keys_do_not_redo_each_other() -> None:
    table = new_table(target_row_num=100)
    # One try is lost to the other writer, so there is none left to make the write again.
    table.alter(SetOption("commit.max-retries", "1"))
    slow = overtaken(table, lambda: table.write(some(1, range(5), "fast")))
    slow.write(some(1, range(5, 9), "slow"))
    assert len(lines(table)) == 9
    assert sum(len(each.hashes[0]) for each in index(table)) == 9
    assert_index_is_whole(table)


@pytest.mark.parametrize("others", [1, 3])
def test_write_is_made_again_when_its_partition_was_overwritten(others: int) -> None:
    table = new_table()
    table.write(some(1, range(9)))

    def overwrite() -> None:
        table.overwrite(some(1, [7]), partition={"p": 1})

    overtaken(table, *[overwrite] * others).write(some(1, [7, 8], "after"))
    assert lines(table) == ["1 7 after", "1 8 after"]
    assert places(table) == {(1, 7): {0}, (1, 8): {0}}
    assert_index_is_whole(table)


def test_write_that_others_always_overtake_is_refused_and_leaves_nothing() -> None:
    table = new_table()
    table.alter(SetOption("commit.max-retries", "1"))
    table.write(some(1, range(9)))
    acts = [lambda: table.overwrite(some(1, range(2)), partition={"p": 1})] * 5
    with pytest.raises(kt.ConflictError, match="into other buckets, or replaced"):
        overtaken(table, *acts).write(some(1, [7, 8]))
    named = {e.file.file_name for s in table.snapshots()
             for e in table.stored.live_files(s).entries}  # fmt: skip
    stored = {i.path.split("/")[-1] for i in table.metadata.store.list() if "data-" in i.path}
    assert stored <= named
    assert_index_is_whole(table)


# -- faults and refusals ---------------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.parametrize("action", ["fail", "torn", "lost-response", "crash"])
def test_write_that_fails_at_any_step_leaves_the_index_whole(action: Any) -> None:
    table = new_table()
    table.write(some(1, range(4)))
    keys, failed = 4, True
    for step in itertools.count(1):
        store = FaultyStore(table.metadata.store, [Fault("write", nth=step, action=action)])
        try:
            kt.Table(store, "t").write(some(1, range(keys - 1, keys + 2)))
            failed = False
        except (kt.DataError, Crash):
            failed = True
        assert_index_is_whole(table)
        keys = len(lines(table))
        if not failed and len(store.log) and step > 12:
            break
    assert lines(table) == [f"1 {key} a" for key in sorted(range(keys), key=str)]


def test_torn_index_is_named_and_nothing_is_written() -> None:
    table = new_table()
    table.write(some(1, range(4)))
    snapshot = table.metadata.latest_snapshot()
    assert snapshot is not None
    file = table.metadata.index_files(snapshot)[0]
    table.metadata.store.put(f"index/{file.file_name}", b"abcde")
    with pytest.raises(kt.DataError, match=f"{file.file_name}.*an index of 3 keys"):
        table.write(some(1, [1]))
    assert len(table.snapshots()) == 1


def test_bucket_without_an_index_is_refused_until_it_is_overwritten() -> None:
    table = new_table()
    table.write(some(1, range(4)))
    strip_index(table)
    with pytest.raises(kt.UnsupportedError, match="no index of its keys"):
        table.write(some(1, [9]))
    table.overwrite(table.scan().to_arrow())
    table.write(some(1, [9]))
    assert len(lines(table)) == 5
    assert_index_is_whole(table)


def strip_index(table: kt.Table) -> None:
    """Take the index from the newest snapshot, as an engine would leave it that keeps none."""
    snapshot = table.metadata.latest_snapshot()
    assert snapshot is not None
    path = f"snapshot/snapshot-{snapshot.id}"
    table.metadata.store.put(path, replace(snapshot, index_manifest=None).to_json())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bucket": "-1", "bucket-key": "k"}, "needs a fixed number of buckets"),
        ({"bucket": "0"}, "a table has at least 1 bucket"),
        ({"bucket": "-3"}, "a table has at least 1 bucket"),
        ({"bucket": "-1", "dynamic-bucket.max-buckets": "0"}, "integer from 1"),
        ({"bucket": "-1", "dynamic-bucket.target-row-num": "0"}, "integer from 1"),
        ({"bucket": "-1", "index-file-in-data-file-dir": "true"}, "index-file-in-data-file-dir"),
    ],
)
def test_definition_that_cannot_work_is_refused(
    lake: kt.Lake, options: dict[str, str], message: str
) -> None:
    with pytest.raises(kt.KeytideError, match=message):
        lake.create_table("t", SCHEMA, ["p", "k"], ["p"], options=options)
    assert lake.tables() == []


@pytest.mark.parametrize(
    ("before", "change", "message"),
    [
        ("-1", SetOption("bucket", "4"), "Cannot change bucket when it is -1"),
        ("2", SetOption("bucket", "-1"), "Cannot change bucket to -1"),
        ("2", RemoveOption("bucket"), "Cannot reset bucket"),
    ],
)
def test_bucket_mode_cannot_change(lake: kt.Lake, before: str, change: Any, message: str) -> None:
    table = lake.create_table("t", SCHEMA, ["p", "k"], ["p"], options={"bucket": before})
    table.write(some(1, [1]))
    with pytest.raises(kt.InvalidError, match=message):
        table.alter(change)


def test_sample_of_another_engine_goes_on(warehouse: str) -> None:
    sample = Path(__file__).parents[1] / "data/samples/wh/spec.db/dynamic_bucket"
    copy = Path(warehouse) / "spec.db/dynamic_bucket"
    shutil.copytree(sample, copy)
    table = kt.open_table(str(copy))
    before = {(row["id"], row["p"]): row["v"] for row in table.scan().to_pylist()}
    table.write([{"id": i, "p": p, "v": "new"} for i, p in [*before, (1000, 0), (1001, 1)]])
    after = {(row["id"], row["p"]): row["v"] for row in table.scan().to_pylist()}
    assert after == dict.fromkeys([*before, (1000, 0), (1001, 1)], "new")


# -- the laws --------------------------------------------------------------------------------------

writes = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 7), st.sampled_from(KINDS)), max_size=8
)


@given(
    history=st.lists(st.tuples(writes, writes | st.none(), st.booleans()), max_size=5),
    target=st.integers(1, 4),
    initial=st.none() | st.integers(1, 4),
    most=st.sampled_from([-1, 1, 3]),
)
def test_any_history_gives_the_rows_of_a_dict_and_no_key_two_buckets(
    history: list[tuple[Any, ...]], target: int, initial: int | None, most: int
) -> None:
    sizes = {"target_row_num": target, "max_buckets": most}
    table = new_table(**sizes, **({"initial_buckets": initial} if initial else {}))
    oracle: dict[tuple[int, int], str] = {}
    for number, (first, second, replaces) in enumerate(history):
        if replaces and first:
            table.overwrite(frame_of(first, f"{number}o", kinds=False))
            for p in {p for p, *_ in first}:
                oracle = {key: value for key, value in oracle.items() if key[0] != p}
            learn(oracle, first, f"{number}o", kinds=False)
            continue
        # The second commits while the first is about to.
        acts = [lambda s=second, n=number: table.write(frame_of(s, f"{n}f"))] if second else []
        overtaken(table, *acts).write(frame_of(first, f"{number}s"))
        if first or not second:
            learn(oracle, second or [], f"{number}f") if first else None
            learn(oracle, first, f"{number}s")
    assert lines(table) == sorted(f"{p} {k} {v}" for (p, k), v in oracle.items())
    assert_index_is_whole(table)


def frame_of(found: list[tuple[Any, ...]], value: str, kinds: bool = True) -> pa.Table:
    schema = SCHEMA.append(pa.field("_row_kind", pa.string()))
    given = [
        {"p": p, "k": k, "v": value, "_row_kind": kind if kinds else "+I"} for p, k, kind in found
    ]
    return pa.Table.from_pylist(given, schema)


def learn(
    oracle: dict[tuple[int, int], str],
    found: list[tuple[Any, ...]],
    value: str,
    kinds: bool = True,
) -> None:
    for p, k, kind in found:
        if kinds and kind[0] == "-":
            oracle.pop((p, k), None)
        else:
            oracle[(p, k)] = value
