"""Overwriting a table or some partitions: one commit, whatever other writers do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from keytide.format.snapshot import CommitKind
from keytide.store import Store
from keytide.store.faults import Action, Crash, Fault, FaultyStore
from new_tables import empty_store
from overtaking import overtaken
from table_rows import reopened

SCHEMA = pa.schema([("d", pa.string()), ("h", pa.int32()), ("k", pa.int64()), ("v", pa.string())])
OLD = "a1:1=old a1:2=old a2:1=old b1:1=old"

KEYS = ["d", "h", "k"]


def parsed(text: str) -> list[dict[str, Any]]:
    """Rows of `a1:7=x`: partition d=a, h=1, key 7, value x; `-` before it means a delete."""
    found = []
    for word in text.split():
        head, value = word.lstrip("-").split("=")
        partition, key = head.split(":")
        row = {"d": partition[0], "h": int(partition[1:]), "k": int(key), "v": value}
        found.append(row | {"_row_kind": "-D" if word[0] == "-" else "+I"})
    return found


def words_of(table: kt.Table, **travel: Any) -> str:
    """What a reader sees who has seen nothing before."""
    fresh = reopened(table)
    rows = fresh.scan(**travel).to_pylist()
    return " ".join(sorted(f"{r['d']}{r['h']}:{r['k']}={r['v']}" for r in rows))


def new_table(*partition_by: str, store: Store | None = None, **options: str) -> kt.Table:
    store = store or empty_store()
    table = kt.connect("", store=store).create_table("t", SCHEMA, KEYS, partition_by, options)
    table.write(parsed(OLD))
    return table


# -- what is replaced ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition_by", "partition", "data", "after"),
    [
        ([], None, "a1:3=new", "a1:3=new"),
        ([], None, "", ""),
        (["d"], None, "a1:3=new", "a1:3=new b1:1=old"),
        (["d"], None, "a1:3=new c1:1=new", "a1:3=new b1:1=old c1:1=new"),
        (["d"], None, "", OLD),
        (["d", "h"], None, "a1:3=new", "a1:3=new a2:1=old b1:1=old"),
        (["d"], {"d": "a"}, "a1:3=new", "a1:3=new b1:1=old"),
        (["d"], {"d": "a"}, "", "b1:1=old"),
        (["d"], {"d": "c"}, "c1:3=new", f"{OLD} c1:3=new"),
        (["d", "h"], {"d": "a"}, "a1:3=new", "a1:3=new b1:1=old"),
        (["d", "h"], {"h": 1}, "b1:3=new", "a2:1=old b1:3=new"),
        (["d", "h"], {"h": 1, "d": "a"}, "a1:3=new", "a1:3=new a2:1=old b1:1=old"),
    ],
)
def test_overwrite_replaces_the_table_or_the_partitions_meant(
    partition_by: list[str], partition: dict[str, Any] | None, data: str, after: str
) -> None:
    table = new_table(*partition_by)
    result = table.overwrite(parsed(data), partition)
    assert words_of(table) == after
    assert words_of(table, snapshot_id=1) == OLD
    assert result.snapshot_id == (None if after == OLD else 2)
    assert (result.rows, result.rows_stored) == (len(data.split()),) * 2


def test_without_dynamic_overwrite_the_whole_table_is_replaced() -> None:
    table = new_table("d", **{"dynamic-partition-overwrite": "false"})
    table.overwrite(parsed("a1:3=new"))
    assert words_of(table) == "a1:3=new"


def test_overwrite_is_one_commit_that_deletes_and_adds_files() -> None:
    table = new_table("d")
    table.write(parsed("a1:1=newer"))
    table.overwrite(parsed("a1:3=new a1:4=new"))
    snapshot = table.snapshots()[-1]
    assert (snapshot.id, snapshot.commit_kind, snapshot.operation) == (
        3,
        CommitKind.OVERWRITE,
        "OVERWRITE",
    )
    entries = table.metadata.entries(table.metadata.delta_manifests(snapshot))
    assert [entry.kind.name for entry in entries] == ["DELETE", "DELETE", "ADD"]
    assert (snapshot.total_record_count, snapshot.delta_record_count) == (3, -2)


def test_rows_of_a_static_partition_may_leave_its_columns_out() -> None:
    table = new_table("d", "h")
    table.overwrite([{"k": 9, "v": "new"}], {"d": "a", "h": 1})
    table.overwrite(pa.table({"k": [8], "h": [2], "v": ["new"]}), {"d": "b"})
    assert words_of(table) == "a1:9=new a2:1=old b2:8=new"


def test_versions_in_an_overwrite_are_merged_and_deletes_delete() -> None:
    table = new_table()
    result = table.overwrite(parsed("a1:1=x a1:1=y a1:2=x -a1:2=x"))
    assert words_of(table) == "a1:1=y"
    assert (result.rows, result.rows_stored) == (4, 2)
    table.write(parsed("a1:2=back"))
    assert words_of(table) == "a1:1=y a1:2=back"


def test_truncated_table_is_empty_and_can_be_written() -> None:
    table = new_table("d")
    result = table.truncate()
    assert (result.snapshot_id, words_of(table), table.scan().count()) == (2, "", 0)
    assert table.truncate().snapshot_id is None
    table.write(parsed("a1:1=new"))
    assert words_of(table) == "a1:1=new"
    assert words_of(table, snapshot_id=1) == OLD


def test_overwrite_lays_partitions_out_with_the_new_number_of_buckets() -> None:
    table = new_table("d")
    table.alter(SetOption("bucket", "3"))
    with pytest.raises(kt.InvalidError, match="new bucket num 3, but the previous bucket num is 1"):
        table.write(parsed("a1:1=new"))
    table.overwrite(parsed(" ".join(f"a1:{n}=new" for n in range(20))))
    table.write(parsed("a1:1=newer"))
    assert {e.total_buckets for e in table.stored.newest_files().entries} == {1, 3}
    assert len({e.bucket for e in table.stored.newest_files().entries}) == 3
    assert "a1:1=newer" in words_of(table)
    assert table.get({"d": "a", "h": 1, "k": 7}) is not None
    table.overwrite([], {"d": "b"})
    table.write(parsed("b1:1=new"))  # nothing of the old layout is left
    assert words_of(table).endswith("b1:1=new")


@pytest.mark.parametrize(
    ("partition", "data", "message"),
    [
        ({"k": 1}, "a1:1=x", "names 'k'; the partition columns are d, h"),
        ({}, "a1:1=x", "names no column"),
        ({"h": "x"}, "a1:1=x", "'h' is INT NOT NULL, found 'x'"),
        ({"d": None}, "a1:1=x", "'d' is STRING NOT NULL, found NULL"),
        ({"d": "a"}, "a1:1=x b1:1=x", "1 of 2 rows are not in the partition.*should be 'a'"),
        ({"d": "a", "h": 1}, "a2:1=x", "'h' should be 1, found 2"),
    ],
)
def test_rows_outside_the_partition_and_wrong_partitions_are_refused(
    partition: dict[str, Any], data: str, message: str
) -> None:
    table = new_table("d", "h")
    with pytest.raises(kt.InvalidError, match=message):
        table.overwrite(parsed(data), partition)
    assert words_of(table) == OLD


def test_partition_of_a_table_without_partitions_is_refused() -> None:
    with pytest.raises(kt.InvalidError, match="do not give a partition"):
        new_table().overwrite(parsed("a1:1=x"), {"d": "a"})


STEPS = st.tuples(
    st.sampled_from(["write", "overwrite", "overwrite a", "truncate"]),
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.integers(0, 3)),
        st.integers(0, 9).map(str),
        max_size=4,
    ),
)


@given(steps=st.lists(STEPS, max_size=8), partition_by=st.sampled_from([[], ["d"], ["d", "h"]]))
def test_any_writes_and_overwrites_agree_with_a_model(
    steps: list[tuple[str, dict[tuple[str, int, int], str]]], partition_by: list[str]
) -> None:
    table = new_table(*partition_by)
    model = {(r["d"], r["h"], r["k"]): r["v"] for r in parsed(OLD)}
    for step, rows in steps:
        if step == "overwrite a" and not partition_by:
            continue
        given_rows = {key: v for key, v in rows.items() if step != "overwrite a" or key[0] == "a"}
        text = " ".join(f"{d}{h}:{k}={v}" for (d, h, k), v in given_rows.items())
        if step == "write":
            table.write(parsed(text or "a1:0=x"))
            given_rows = given_rows or {("a", 1, 0): "x"}
        elif step == "truncate":
            table.truncate()
            model, given_rows = {}, {}
        elif step == "overwrite a":
            table.overwrite(parsed(text), {"d": "a"})
            model = {key: v for key, v in model.items() if key[0] != "a"}
        else:
            table.overwrite(parsed(text))
            depth = len(partition_by)
            touched = {key[:depth] for key in given_rows}
            model = {key: v for key, v in model.items() if depth and key[:depth] not in touched}
        model |= given_rows
        assert words_of(table) == " ".join(
            sorted(f"{d}{h}:{k}={v}" for (d, h, k), v in model.items())
        )


# -- races ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition_by", "faster", "overwrite", "after"),
    [
        ([], "a1:9=late", "a1:3=new", "a1:3=new"),
        (["d"], "a1:9=late b1:9=late", "a1:3=new", "a1:3=new b1:1=old b1:9=late"),
        (["d"], "c1:9=late", "a1:3=new", "a1:3=new b1:1=old c1:9=late"),
    ],
)
def test_overwrite_replaces_what_was_committed_just_before_it(
    partition_by: list[str], faster: str, overwrite: str, after: str
) -> None:
    table = new_table(*partition_by)
    overtaken(table, lambda: table.write(parsed(faster))).overwrite(parsed(overwrite))
    assert words_of(table) == after
    assert [s.commit_kind.value for s in table.snapshots()] == ["APPEND", "APPEND", "OVERWRITE"]


def test_of_two_overwrites_at_once_the_later_one_stays_alone() -> None:
    table = new_table()
    overtaken(table, lambda: table.overwrite(parsed("a1:1=first a1:2=first"))).overwrite(
        parsed("a1:2=second")
    )
    assert words_of(table) == "a1:2=second"
    assert words_of(table, snapshot_id=2) == "a1:1=first a1:2=first"


def test_overwrite_of_a_table_truncated_meanwhile_only_adds() -> None:
    table = new_table()
    overtaken(table, table.truncate).overwrite(parsed("a1:3=new"))
    assert words_of(table) == "a1:3=new"
    assert table.snapshots()[-1].delta_record_count == 1


def test_write_that_an_overwrite_overtakes_lands_on_top() -> None:
    table = new_table()
    overtaken(table, lambda: table.overwrite(parsed("a1:1=over a1:2=over"))).write(
        parsed("a1:1=written")
    )
    assert words_of(table) == "a1:1=written a1:2=over"


def test_write_in_the_old_layout_that_a_rescaling_overwrite_overtakes_is_a_conflict() -> None:
    table = new_table()

    def rescale() -> None:
        table.alter(SetOption("bucket", "3"))
        table.overwrite(parsed("a1:1=over"))

    with pytest.raises(kt.ConflictError, match="created the partition meanwhile"):
        overtaken(table, rescale).write(parsed("a1:1=written"))
    assert words_of(table) == "a1:1=over"
    data = [info.path for info in table.metadata.store.list() if "/data-" in info.path]
    assert len(data) == 2  # of the first write and of the overwrite, none of the conflict


def test_overwrites_and_writes_in_any_number_keep_one_row_per_key() -> None:
    table = new_table()
    acts: list[Callable[[], object]] = [
        lambda n=n: (
            table.write(parsed(f"a1:{n}=w{n} a1:0=w{n}"))  # type: ignore[misc]
            if n % 2
            else table.overwrite(parsed(f"a1:0=o{n}"))
        )
        for n in range(6)
    ]
    overtaken(table, *acts).overwrite(parsed("a1:0=last a1:9=last"))
    assert words_of(table) == "a1:0=last a1:9=last"
    assert len(table.snapshots()) == 8


# -- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["crash", "fail", "lost-response", "torn"])
@pytest.mark.parametrize("nth", range(1, 6))
def test_overwrite_that_fails_anywhere_leaves_the_old_or_the_new_state(
    nth: int, action: Action
) -> None:
    table = new_table("d")
    store = FaultyStore(table.metadata.store, [Fault("write", nth=nth, action=action)])
    with suppress(kt.DataError, Crash):
        kt.Table(store, "t").overwrite(parsed("a1:3=new"))
    assert words_of(table) in (OLD, "a1:3=new b1:1=old")
    table.overwrite(parsed("a1:4=again"), {"d": "a"})
    assert words_of(table) == "a1:4=again b1:1=old"
