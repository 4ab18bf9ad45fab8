"""Durability, atomicity and honest errors on a local disk."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keytide.errors import DataError
from keytide.store import LocalStore, Store, open_store


def files_below(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


@pytest.fixture
def disk(root: Path) -> Store:
    return open_store(root)


@pytest.fixture
def trace(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reaches the disk, in order; names of temporary files shortened."""
    calls: list[str] = []

    def short(path: str | Path) -> str:
        relative = os.path.relpath(path, root)
        directory, name = os.path.split(relative)
        return os.path.join(directory, "tmp") if name.endswith(".tmp") else relative

    def recorded(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            paths = [short(path) for path in arguments if isinstance(path, (str, Path))]
            calls.append(" ".join([name, *paths]))
            real(*arguments)

        return call

    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        calls.append(f"sync {short(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("link", "replace", "unlink", "mkdir"):
        monkeypatch.setattr(os, name, recorded(name, getattr(os, name)))
    return calls


def test_create_syncs_the_file_before_its_name_and_then_the_directory(
    root: Path, disk: Store, trace: list[str]
) -> None:
    (root / "t/snapshot").mkdir(parents=True)
    trace.clear()
    assert disk.create("t/snapshot/snapshot-1", b"{}")
    assert trace == [
        "sync t/snapshot/tmp",
        "link t/snapshot/tmp t/snapshot/snapshot-1",
        "unlink t/snapshot/tmp",
        "sync t/snapshot",
    ]


def test_put_all_syncs_every_file_and_each_directory_once(
    root: Path, disk: Store, trace: list[str]
) -> None:
    (root / "t/manifest").mkdir(parents=True)
    trace.clear()
    disk.put_all({"t/manifest/a": b"1", "t/manifest/b": b"2"})
    assert [call for call in trace if not call.startswith("unlink")] == [
        "sync t/manifest/tmp",
        "sync t/manifest/tmp",
        "replace t/manifest/tmp t/manifest/a",
        "replace t/manifest/tmp t/manifest/b",
        "sync t/manifest",
    ]


def test_output_syncs_the_file_and_its_directory_once(
    root: Path, disk: Store, trace: list[str]
) -> None:
    (root / "t").mkdir(parents=True)
    trace.clear()
    with disk.open_output("t/data") as file:
        file.write(b"1")
        file.close()
    assert trace == ["sync t/data", "sync t"]


def test_new_directories_are_synced_into_the_ones_above_them(disk: Store, trace: list[str]) -> None:
    disk.put("db/t/data", b"1")
    assert [call for call in trace if "tmp" not in call] == [
        "mkdir .",
        "mkdir db",
        "mkdir db/t",
        "sync ..",
        "sync .",
        "sync db",
        "sync db/t",
    ]


def test_many_files_are_synced_before_their_names_and_then_every_directory(
    root: Path, disk: Store, trace: list[str]
) -> None:
    disk.put_all({f"t/p={i}/bucket-0/data": b"1" for i in range(600)})
    assert len(files_below(root)) == 600
    named, synced = set(), set()
    for call in trace:
        what, *names = call.split(" ")
        if what == "sync":
            synced.add(names[0])
        elif what == "replace":
            assert names[0] in synced
            named.add(names[1])
    directories = {os.path.dirname(name) for name in named}
    above = {os.path.dirname(name) for name in directories}
    assert len(named) == 600
    assert directories | above | {"t"} <= synced


@pytest.mark.parametrize("broken", ["fsync", "replace", "mkdir"])
def test_many_files_that_cannot_be_written_leave_no_temporary_files(
    root: Path, disk: Store, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = getattr(os, broken), iter(range(1000))

    def fails_at_the_twentieth(*arguments: Any) -> Any:
        if next(calls) == 20:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, broken, fails_at_the_twentieth)
    with pytest.raises(DataError, match="Free some space"):
        disk.put_all({f"p={i}/data": b"1" for i in range(100)})
    assert not [name for name in files_below(root) if name.endswith(".tmp")]


def test_hint_waits_for_no_disk(disk: Store, trace: list[str]) -> None:
    disk.put("t/a", b"")
    trace.clear()
    disk.hint("t/LATEST", b"7")
    assert not [call for call in trace if call.startswith("sync")]


def test_nothing_but_the_named_file_is_left_behind(root: Path, disk: Store) -> None:
    disk.put("a/put", b"1")
    disk.create("a/created", b"1")
    disk.create("a/created", b"2")
    disk.hint("a/hint", b"1")
    assert files_below(root) == ["a/created", "a/hint", "a/put"]


def test_files_get_the_usual_permissions(root: Path, disk: Store) -> None:
    disk.put("put", b"")
    disk.create("created", b"")
    with disk.open_output("output"):
        pass
    (root / "usual").write_bytes(b"")
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in root.iterdir()}
    assert len(set(modes.values())) == 1, modes


def test_output_refuses_a_name_that_is_taken(disk: Store) -> None:
    disk.put("a", b"first")
    with pytest.raises(DataError, match="a: File exists"), disk.open_output("a"):
        pass
    assert disk.read("a") == b"first"


def test_create_counts_as_won_when_the_link_was_made_but_its_answer_was_lost(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_link = os.link

    def link_and_lose_the_answer(source: str, target: str) -> None:
        real_link(source, target)
        real_link(source, target)

    monkeypatch.setattr(os, "link", link_and_lose_the_answer)
    assert disk.create("a", b"1") is True
    monkeypatch.undo()
    assert disk.create("a", b"2") is False


def test_create_without_hard_links_says_where_to_go(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: str, target: str) -> None:
        raise PermissionError(1, "Operation not permitted", target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(DataError, match=r"not support hard links.*another file system"):
        disk.create("a", b"1")
    assert list(disk.list()) == []


def test_directory_in_the_place_of_a_file_is_a_data_error(root: Path, disk: Store) -> None:
    (root / "a").mkdir(parents=True)
    for call in (lambda: disk.read("a"), lambda: disk.put("a", b""), lambda: disk.delete(["a"])):
        with pytest.raises(DataError, match=str(root / "a")):
            call()
    assert files_below(root) == []


def test_file_in_the_place_of_a_directory_is_a_data_error(root: Path, disk: Store) -> None:
    disk.put("a", b"")
    for call in (lambda: disk.put("a/b", b""), lambda: disk.create("a/b", b"")):
        with pytest.raises(DataError, match=str(root / "a")) as caught:
            call()
        assert isinstance(caught.value.__cause__, OSError)


def test_hint_that_cannot_be_written_is_ignored(root: Path, disk: Store) -> None:
    disk.put("a", b"")
    disk.hint("a/LATEST", b"1")
    assert files_below(root) == ["a"]


SMALL_FILES_ONLY = """
import resource, sys
import polars as pl, pyarrow as pa, pyarrow.parquet as pq
from keytide.errors import DataError
from keytide.store import open_store

store = open_store(sys.argv[1])
numbers = pa.table({"k": pa.array(range(200_000))})
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

def output_bytes():
    with store.open_output("t/output") as file:
        file.write(bytes(100_000))

def output_pyarrow():
    with store.open_output("t/pyarrow") as file, pq.ParquetWriter(file, numbers.schema) as writer:
        writer.write_table(numbers)

def output_polars():
    with store.open_output("t/polars") as file:
        pl.DataFrame(numbers).write_parquet(file)

for call in (
    lambda: store.put("t/put", bytes(100_000)),
    lambda: store.create("t/create", bytes(100_000)),
    output_bytes, output_pyarrow, output_polars,
):
    try:
        call()
        print("written")
    except DataError as error:
        print(error, type(error.__cause__).__name__)
store.hint("t/hint", bytes(100_000))
"""


def test_full_disk_is_a_data_error_and_leaves_no_file(root: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SMALL_FILES_ONLY, str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    way_out = "File too large. Increase the limit on file sizes (ulimit -f), then try again OSError"
    assert run.stdout.splitlines() == [
        f"Cannot write {root}/t/put: {way_out}",
        f"Cannot create {root}/t/create: {way_out}",
        f"Cannot write {root}/t/output: {way_out}",
        f"Cannot write {root}/t/pyarrow: {way_out}",
        f"Cannot write {root}/t/polars: {way_out}",
    ], run.stderr
    assert run.returncode == 0, run.stderr
    assert files_below(root) == []


RACER = """
import sys, time
from pathlib import Path
from keytide.store import open_store

root, me, other, meeting = sys.argv[1:]
store = open_store(root)
for number in range(100):
    (Path(meeting) / f"{me}-{number}").touch()
    while not (Path(meeting) / f"{other}-{number}").exists():
        time.sleep(0)
    if store.create(f"snapshot/snapshot-{number}", me.encode()):
        print(number)
"""


def test_create_raced_by_two_processes_has_one_winner(
    root: Path, disk: Store, tmp_path: Path
) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(root), *names, str(meeting)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for names in (("one", "two"), ("two", "one"))
    ]
    won_one, won_two = (racer.communicate()[0].split() for racer in racers)
    assert won_one
    assert won_two
    assert sorted(map(int, won_one + won_two)) == list(range(100))
    contents = {number: disk.read(f"snapshot/snapshot-{number}") for number in range(100)}
    assert sorted(n for n, content in contents.items() if content == b"one") == sorted(
        map(int, won_one)
    )
    assert len(files_below(root)) == 100


def test_local_store_is_a_plain_value() -> None:
    assert LocalStore("/warehouse") == open_store("/warehouse/")
    assert repr(open_store("file:///ware%20house")) == "LocalStore(root='/ware house')"
