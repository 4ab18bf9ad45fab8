"""A follower tells every snapshot once, in order, and goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from keytide.format.checksum import SEAL_KEY
from new_tables import empty_table
from table_rows import reopened

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def new_table(**options: str) -> kt.Table:
    return empty_table(SCHEMA, ["k"], options=options)


def write(table: kt.Table, *texts: str) -> None:
    """Write rows such as `1a`, or `-1` for a delete, in one commit."""
    rows = [
        {"k": int(t[1:]), "v": None, "_row_kind": "-D"}
        if t[0] == "-"
        else {"k": int(t[0]), "v": t[1:], "_row_kind": "+I"}
        for t in texts
    ]
    table.write(rows)


def change_lines(batches: Any) -> list[str]:
    """Changes as texts such as `2 -U 1a`, the snapshot before the kind."""
    return [
        f"{batch.schema.metadata[b'keytide.snapshot_id'].decode()} {row['_row_kind']} "
        f"{row['k']}{row['v']}"
        for batch in batches
        for row in batch.to_pylist()
    ]


def now(table: kt.Table, *arguments: Any, **named: Any) -> list[str]:
    """All that there is to tell."""
    return change_lines(table.follow(*arguments, timeout_seconds=0, **named))


FROM_0 = ["1 +I 1a", "1 +I 2b", "2 -U 1a", "2 +U 1c", "3 -D 2b"]


def filled(**options: str) -> kt.Table:
    table = new_table(**options)
    write(table, "1a", "2b")
    write(table, "1c")
    write(table, "-2")
    return table


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, FROM_0),
        (1, FROM_0[2:]),
        (3, []),
        ("latest", []),
        ("full", ["3 +I 1c"]),
        (None, ["3 +I 1c"]),
    ],
)
def test_follower_begins_where_it_is_told_to(start: Any, expected: list[str]) -> None:
    assert now(filled(), start) == expected


def test_follower_begins_at_a_time() -> None:
    table = filled()
    times = [snapshot.time_millis for snapshot in table.snapshots()]
    assert now(table, as_of=times[-1]) == []
    assert now(table, as_of=times[0] - 1) == FROM_0
    with pytest.raises(kt.InvalidError, match="as_of is 'noon', which is not an ISO time"):
        table.follow(as_of="noon")


def test_modes_tell_what_changes_of_them_tell() -> None:
    table = filled(**{"changelog-producer": "input"})
    written = ["1 +I 1a", "1 +I 2b", "2 +I 1c", "3 -D 2None"]
    assert now(table, 0, "delta") == now(table, 0, "changelog") == written


def test_follower_goes_on_with_what_others_write_until_it_is_stopped() -> None:
    table, stop, seen = filled(), Event(), []
    has_begun, has_gone_on = Event(), Event()

    def read() -> None:
        for batch in table.follow(stop=stop, poll_seconds=0.01):
            seen.extend(change_lines([batch]))
            (has_gone_on if has_begun.is_set() else has_begun).set()

    reader = Thread(target=read)
    reader.start()
    try:
        assert has_begun.wait(30)
        write(reopened(table), "7x")
        assert has_gone_on.wait(30)
    finally:
        stop.set()
        reader.join(30)
    assert not reader.is_alive()
    assert seen == ["3 +I 1c", "4 +I 7x"]


def test_a_batch_has_the_columns_of_its_snapshot() -> None:
    from keytide.definition.schema_evolution import AddColumn

    table = filled()
    table.alter(AddColumn(("n",), kt.parse_sql_type("INT")))
    table.write([{"k": 5, "v": "x", "n": 1}])
    names = [batch.schema.names for batch in table.follow(2, timeout_seconds=0)]
    assert names == [["_row_kind", "k", "v"], ["_row_kind", "k", "v", "n"]]


# -- consumers -------------------------------------------------------------------------------------


def consumer_file(table: kt.Table, name: str = "c") -> dict[str, int]:
    """What is stored of a consumer, without the checksum."""
    found = json.loads(table.metadata.store.read(f"consumer/consumer-{name}"))
    return {member: value for member, value in found.items() if member != SEAL_KEY}


@pytest.mark.parametrize("mode", ["diff", "delta"])
def test_consumer_goes_on_behind_the_last_snapshot_that_was_told_in_whole(mode: str) -> None:
    table = filled()
    batches = table.follow(0, mode, consumer="c", timeout_seconds=0)
    assert any(text.startswith("2 ") for batch in batches for text in change_lines([batch]))
    # The second one is in hand; it counts when what comes after it is asked for.
    assert now(table, "latest", mode, consumer="c")[0].startswith("2 ")
    assert now(table, 0, mode, consumer="c") == []
    write(table, "9z")
    assert now(table, "full", mode, consumer="c") == ["4 +I 9z"]


AGAIN: dict[str, Callable[[kt.Table], object]] = {
    "rolled back": lambda table: table.rollback_to(1),
    "dropped": lambda table: lake_of(table).drop_table("t"),
}


def lake_of(table: kt.Table) -> kt.Lake:
    return kt.connect(table.uri.rsplit("/default.db", 1)[0])


@pytest.mark.one_in(14)
@pytest.mark.parametrize("more", [0, 1, 2])
@pytest.mark.parametrize(
    ("how", "kept"), [("rolled back", False), ("rolled back", True), ("dropped", False)]
)
def test_snapshot_with_the_id_of_one_that_was_emitted_is_not_taken_for_it(
    tmp_path: Path, how: str, more: int, kept: bool
) -> None:
    lake = kt.connect(str(tmp_path))

    def create() -> kt.Table:
        return lake.create_table("t", SCHEMA, ["k"], options={"write-only": "true"})

    table = create()
    for value in ("1a", "2b", "3c"):
        write(table, value)
    consumer = "c" if kept else None
    changes = table.follow(start=0, timeout_seconds=0, consumer=consumer)
    assert sum(1 for _ in (next(changes), next(changes), next(changes))) == 3
    if kept:
        assert [*changes] == []
    AGAIN[how](table)
    table = create() if how == "dropped" else table
    for n in range(3 + more):
        write(table, f"{n + 4}d")
    with pytest.raises(kt.ConflictError, match="no longer part of the table"):
        [*(table.follow(timeout_seconds=0, consumer="c") if kept else changes)]


def test_consumer_keeps_what_it_has_still_to_read() -> None:
    table = filled()
    now(table, 0, consumer="c")
    now(table, 0, "delta", consumer="d")
    told = {"toldSnapshot": 3, "toldCommit": table.metadata.snapshot(3).identity}
    assert consumer_file(table, "c") == {"nextSnapshot": 3, **told}
    assert consumer_file(table, "d") == {"nextSnapshot": 4, **told}
    write(table, "9z")
    # A place is the same for every mode.
    assert now(table, mode="delta", consumer="c") == now(table, consumer="d") == ["4 +I 9z"]


def test_place_of_a_consumer_of_another_engine_is_understood() -> None:
    table = filled()
    table.metadata.store.put("consumer/consumer-flink", b'{"nextSnapshot": 2}')
    assert now(table, consumer="flink") == FROM_0[2:]


def test_full_start_counts_when_its_rows_were_read() -> None:
    table = filled()
    assert change_lines([next(table.follow("full", consumer="c"))]) == ["3 +I 1c"]
    assert now(table, "full", consumer="c") == ["3 +I 1c"]
    assert now(table, "full", consumer="c") == []


# -- what cannot be followed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named", "error", "message"),
    [
        (("newest",), {}, kt.InvalidError, "start is 'newest'; expected 'latest', 'full'"),
        ((-1,), {}, kt.InvalidError, "start is -1"),
        ((9,), {}, kt.NotFoundError, "no snapshot 9; snapshots 1 to 3 exist"),
        ((0, "dif"), {}, kt.InvalidError, "mode is 'dif'; expected one of"),
        ((0,), {"as_of": 1}, kt.InvalidError, "start is 0, but as_of also selects a snapshot"),
        ((0,), {"poll_seconds": 0}, kt.InvalidError, "poll_seconds is 0"),
        ((0,), {"timeout_seconds": -1}, kt.InvalidError, "timeout_seconds is -1"),
        ((0,), {"consumer": "a/b"}, kt.InvalidError, "consumer name 'a/b' cannot be a file name"),
        ((0,), {"stop": True}, kt.InvalidError, "stop is True of type bool"),
    ],
)
def test_following_that_cannot_be_is_refused_at_once(
    arguments: Any, named: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        filled().follow(*arguments, **named)


def test_table_that_was_rolled_back_is_noticed() -> None:
    table = filled()
    batches = table.follow(2, timeout_seconds=5, poll_seconds=0.01)
    assert change_lines([next(batches)]) == ["3 -D 2b"]
    store = table.metadata.store
    write(table, "8y")
    assert change_lines([next(batches)]) == ["4 +I 8y"]
    store.delete(["snapshot/snapshot-4", "snapshot/LATEST"])
    with pytest.raises(kt.ConflictError, match="changes up to snapshot 4 were emitted"):
        next(batches)


# -- tables whose compactions make the changelog ---------------------------------------------------


LOOKUP = {"changelog-producer": "lookup", "changelog-producer.row-deduplicate": "true"}
VECTORS = {**LOOKUP, "deletion-vectors.enabled": "true"}
FULL = {
    "changelog-producer": "full-compaction",
    "changelog-producer.row-deduplicate": "true",
    "full-compaction.delta-commits": "2",
}
MADE = {"lookup": LOOKUP, "vectors": VECTORS, "full-compaction": FULL}
TOLD = {
    "lookup": ["2 +I 1a", "2 +I 2b", "4 -U 1a", "4 +U 1c", "6 -D 2b"],
    "vectors": ["2 +I 1a", "2 +I 2b", "4 -U 1a", "4 +U 1c", "6 -D 2b"],
    "full-compaction": ["3 +I 1c", "3 +I 2b"],
}


@pytest.mark.takes_turns
@pytest.mark.parametrize("producer", MADE)
def test_changelog_of_compactions_is_followed(producer: str) -> None:
    table, told_of = filled(**MADE[producer]), TOLD[producer]
    assert now(table, 0, "changelog") == told_of
    assert now(table, 3, "changelog") == [text for text in told_of if int(text[0]) > 3]
    assert now(table, "latest", "changelog") == []
    before = table.snapshots()[0].time_millis - 1
    assert now(table, mode="changelog", as_of=before) == told_of
    assert now(table, 0, "changelog", consumer="c") == told_of
    assert now(table, 0, "changelog", consumer="c") == []
    write(table, "1d", "3e")
    assert [text.split(" ", 1)[1] for text in now(table, 0, "changelog", consumer="c")] == {
        "full-compaction": ["-U 1c", "+U 1d", "-D 2b", "+I 3e"]
    }.get(producer, ["-U 1c", "+U 1d", "+I 3e"])


@pytest.mark.parametrize("producer", MADE)
def test_rows_that_were_not_told_yet_are_not_among_those_that_a_changelog_begins_with(
    producer: str,
) -> None:
    table = filled(**MADE[producer])
    table.alter(SetOption("write-only", "true"))
    write(table, "1z", "4y", "-2")
    first = now(table, "full", "changelog", consumer="c")
    newest = table.snapshots()[-1].id
    told = ["1c", "2b"] if producer == "full-compaction" else ["1c"]
    assert first == [f"{newest} +I {row}" for row in told]
    table.compact(full=True)
    after = [text.split(" ", 1)[1] for text in now(table, "full", "changelog", consumer="c")]
    deleted = ["-D 2b"] if producer == "full-compaction" else []
    assert after == ["-U 1c", "+U 1z", *deleted, "+I 4y"]


@pytest.mark.parametrize("mode", ["delta", "changelog"])
def test_expired_snapshot_is_named_with_the_earliest_one(mode: str) -> None:
    table = filled(**LOOKUP)
    table.expire_snapshots(retain_max=1, retain_min=1)
    with pytest.raises(kt.NotFoundError, match=r"no snapshot 1; snapshots 6 to 6 exist"):
        now(table, 1, mode)
    with pytest.raises(kt.NotFoundError, match=r"no snapshot 1; snapshots 6 to 6 exist"):
        now(table, 0, mode)
