"""Several processes on one table: no key twice, nothing lost, the later commit wins; and a writer
that is killed at any moment loses nothing that it had been told was committed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, RLock

import behind_writers
import pyarrow as pa
import pytest

import keytide as kt
from keytide.commit import committer
from keytide.format.snapshot import CommitKind, Snapshot
from table_rows import rows

SCHEMA = pa.schema([("k", pa.int64()), ("writer", pa.string()), ("n", pa.int64())])
KEYS = range(8)

WRITER = """
    import sys
    import keytide as kt

    path, writer, first, count, keys = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    table = kt.open_table(path)
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(first, first + count):
        rows = [{"k": k, "writer": writer, "n": n} for k in range(keys)]
        result = table.write(rows, commit_user=writer, commit_identifier=n)
        print(n, result.snapshot_id, flush=True)
"""


@contextmanager
def writer(table: kt.Table, name: str, first: int, count: int) -> Iterator[subprocess.Popen[str]]:
    """A process that commits `count` times, one line per commit once it has been told to go."""
    code = textwrap.dedent(WRITER)
    arguments = [table.uri, name, str(first), str(count), str(len(KEYS))]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def environment() -> dict[str, str]:
    source = str(Path(kt.__file__).parents[1])
    path = behind_writers.python_path(source)
    return {**os.environ, "PYTHONPATH": path, "POLARS_MAX_THREADS": "1"}


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def new_table(warehouse: str, **options: str) -> kt.Table:
    return kt.connect(warehouse).create_table("t", SCHEMA, ["k"], options=options)


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("buckets", "commits"), [("1", 30), ("3", 20), ("-1", 15)])
def test_two_processes_writing_the_same_keys_never_show_one_twice_and_lose_nothing(
    warehouse: str, buckets: str, commits: int
) -> None:
    target = {"dynamic-bucket.target-row-num": "3"} if buckets == "-1" else {}
    table = new_table(warehouse, bucket=buckets, **target)
    with writer(table, "a", 0, commits) as a, writer(table, "b", 0, commits) as b:
        go(a)
        go(b)
        polls = poll_until_done(table, a, b)
        told = [("a", *line) for line in lines_of(a)] + [("b", *line) for line in lines_of(b)]
        assert (a.wait(), b.wait()) == (0, 0)
    assert polls > 3
    assert_each_commit_once(table, told, 2 * commits)
    assert_the_newest_commit_wins(table)


def test_threads_of_a_process_lose_no_race_against_each_other(
    warehouse: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = new_table(warehouse, bucket="1")

    def write(n: int) -> int:
        made = table.write(
            [{"k": n, "writer": "a", "n": n}], commit_user=f"{n}", commit_identifier=0
        )
        return made.snapshot_id or 0

    with caplog.at_level("INFO", "keytide.commit"), ThreadPoolExecutor(4) as threads:
        snapshots = [*threads.map(write, range(40))]
    assert "came first" not in caplog.text
    assert len({*snapshots}) == table.scan().count() == 40


def test_commit_waits_only_a_moment_for_a_thread_that_hangs(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "_TURN_S", 0.01)
    table = new_table(warehouse)
    hangs, ends = Event(), Event()

    turn = committer._TURNS.setdefault(table.uri, RLock())

    def hang() -> None:
        with turn:
            hangs.set()
            ends.wait()

    with ThreadPoolExecutor() as threads:
        threads.submit(hang)
        hangs.wait()
        try:
            assert table.write([{"k": 1, "writer": "a", "n": 1}]).rows == 1
        finally:
            ends.set()


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("write_only", ["true", "false"], ids=["one compacts", "all compact"])
def test_two_processes_writing_while_one_compacts_lose_nothing(
    warehouse: str, write_only: str
) -> None:
    table = new_table(warehouse, **{"write-only": write_only})
    compacted = 0
    with writer(table, "a", 0, 25) as a, writer(table, "b", 0, 25) as b:
        go(a)
        go(b)
        while a.poll() is None or b.poll() is None:
            done = table.compact(full=True)
            compacted += done.snapshot_id is not None
            found = rows(table.scan())
            assert len({row[1:] for row in found}) <= 1
        told = [("a", *line) for line in lines_of(a)] + [("b", *line) for line in lines_of(b)]
        assert (a.wait(), b.wait()) == (0, 0)
    assert compacted > 0
    assert_each_commit_once(table, told, 50)
    assert_the_newest_commit_wins(table)
    named = {e.file.file_name for s in table.snapshots()
             for e in table.scan(snapshot_id=s.id).live.entries}  # fmt: skip
    assert {path.name for path in Path(table.uri).glob("bucket-*/data-*")} == named


@pytest.mark.takes_turns
def test_processes_that_mark_rows_of_the_same_files_show_what_they_told(warehouse: str) -> None:
    table = new_table(warehouse, **{"deletion-vectors.enabled": "true"})
    with writer(table, "a", 0, 12) as a, writer(table, "b", 0, 12) as b:
        go(a)
        go(b)
        while a.poll() is None or b.poll() is None:
            found = rows(kt.open_table(table.uri).scan())
            assert [row[0] for row in found] in ([], list(KEYS))
            assert len({row[1:] for row in found}) <= 1
        told = [("a", *line) for line in lines_of(a)] + [("b", *line) for line in lines_of(b)]
        assert (a.wait(), b.wait()) == (0, 0)
    assert_each_commit_once(table, told, 24)
    last = writes(table)[-1]
    shown = rows(kt.open_table(table.uri).scan())
    assert shown == [(k, last.commit_user, last.commit_identifier) for k in KEYS]
    assert not table.verify().findings


def poll_until_done(table: kt.Table, *processes: subprocess.Popen[str]) -> int:
    """Read over and over while they write; every read is a sound state, newer than the last."""
    polls, newest = 0, 0
    reader = kt.open_table(table.uri)
    while any(process.poll() is None for process in processes):
        scan = reader.scan()
        found = rows(scan)
        assert [row[0] for row in found] == (list(KEYS) if scan.snapshot else [])
        assert len({row[1:] for row in found}) <= 1  # all rows of one commit, never of two
        assert scan.snapshot is None or scan.snapshot.id >= newest
        newest = scan.snapshot.id if scan.snapshot else 0
        polls += 1
        time.sleep(0.05)
    return polls


def lines_of(process: subprocess.Popen[str]) -> list[tuple[int, int]]:
    assert process.stdout is not None
    return [acknowledgement(line) for line in process.stdout]


def acknowledgement(line: str) -> tuple[int, int]:
    """The number of a commit and the snapshot that it became."""
    number, snapshot_id = map(int, line.split())
    return number, snapshot_id


def writes(table: kt.Table) -> list[Snapshot]:
    """The snapshots that writers made; the others are compactions."""
    return [s for s in table.snapshots() if s.commit_kind is CommitKind.APPEND]


def assert_each_commit_once(table: kt.Table, told: list[tuple[str, int, int]], count: int) -> None:
    made = [(s.commit_user, s.commit_identifier, s.id) for s in writes(table)]
    assert sorted(made) == sorted(told)
    assert len(made) == count
    ids = [snapshot.id for snapshot in table.snapshots()]
    assert ids == list(range(1, len(ids) + 1))


def assert_the_newest_commit_wins(table: kt.Table) -> None:
    """Every snapshot shows the rows of its own commit, for each commit writes every key."""
    reader = kt.open_table(table.uri)
    snapshots = writes(table)
    for snapshot in [*snapshots[:: len(snapshots) // 6], snapshots[-1]]:
        shown = {row[1:] for row in rows(reader.scan(snapshot_id=snapshot.id))}
        assert shown == {(snapshot.commit_user, snapshot.commit_identifier)}


@pytest.mark.takes_turns
def test_threads_that_share_one_table_object_lose_nothing(warehouse: str) -> None:
    table = new_table(warehouse)

    def write_all(name: str) -> list[int | None]:
        return [table.write([{"k": 1, "writer": name, "n": n}]).snapshot_id for n in range(10)]

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(write_all, "abcd"))
    # Writes that wait for each other share a commit, but never two of one thread.
    told = {number for numbers in made for number in numbers}
    assert sorted(told) == [snapshot.id for snapshot in writes(table)]
    assert all(numbers == sorted(set(numbers)) and len(numbers) == 10 for numbers in made)
    assert table.scan().count() == 1


@pytest.mark.takes_turns
def test_sequence_numbers_of_racing_commits_follow_their_order(warehouse: str) -> None:
    """Other engines order versions by these numbers alone."""
    table = new_table(warehouse, **{"write-only": "true"})
    with writer(table, "a", 0, 30) as a, writer(table, "b", 0, 30) as b:
        go(a)
        go(b)
        assert (a.wait(), b.wait()) == (0, 0)
    files = [entry.file for entry in table.stored.newest_files().entries]
    numbers = [(file.min_sequence_number, file.max_sequence_number) for file in files]
    assert len(numbers) == 60
    assert numbers == sorted(set(numbers))
    assert all(low == high for low, high in numbers)


@pytest.mark.takes_turns
def test_killed_writer_loses_no_acknowledged_commit_and_leaves_a_sound_table(
    warehouse: str,
) -> None:
    table = new_table(warehouse)
    chance = random.Random(5)
    told: list[tuple[int, int]] = []
    while len(told) < 70:
        first = told[-1][0] + 1 if told else 0
        with writer(table, "a", first, 100) as process:
            go(process)
            told += told_until_killed(process, chance.randint(1, 20), chance.uniform(0, 0.03))
        assert_nothing_told_is_lost(kt.open_table(table.uri), told)
    table.write([{"k": k, "writer": "after", "n": 0} for k in KEYS])
    assert {row[1] for row in rows(table.scan())} == {"after"}


def told_until_killed(
    process: subprocess.Popen[str], lines: int, more_seconds: float
) -> list[tuple[int, int]]:
    """What a writer said that was killed somewhere in the commits after some lines."""
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(lines)]
    time.sleep(more_seconds)
    process.kill()
    said += process.stdout.readlines()
    process.communicate()  # alone it would not give what has been read ahead
    return [acknowledgement(line) for line in said if line.endswith("\n")]


def assert_nothing_told_is_lost(table: kt.Table, told: list[tuple[int, int]]) -> None:
    made = [(s.commit_identifier, s.id) for s in writes(table)]
    numbers = [number for number, _ in made]
    assert numbers == list(range(len(made)))  # in order, none twice
    # A commit may have been made just before the kill, without time to tell; the next process
    # then finds it and tells of it.
    assert set(told) <= set(made)
    assert len(made) <= len(set(told)) + 1
    found = rows(table.scan())
    assert found == ([(k, "a", numbers[-1]) for k in KEYS] if made else [])
