"""Copies on local disk: bounded, checked, shared by processes, and never in a read's way."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.errors import KeytideWarning
from keytide.store import CacheFolder

MIB = 1 << 20


def key(name: object) -> str:
    return sha256(str(name).encode()).hexdigest()


def content(name: object, size: int = 100_000) -> bytes:
    return Random(str(name)).randbytes(size)


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(str(tmp_path / "cache"), MIB)


def files(folder: CacheFolder) -> list[Path]:
    return [path for path in Path(folder.root).rglob("*") if path.is_file()]


def entry(folder: CacheFolder, name: object) -> Path:
    return Path(folder.root, "keytide-1", key(name)[:2], key(name))


def used(folder: CacheFolder) -> int:
    """What the files take of a disk with blocks of 4 KiB, without the count of bytes itself."""
    sizes = (path.stat().st_size for path in files(folder) if path.name != "lock")
    return sum(-(-size // 4096) * 4096 for size in sizes)


def run(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# -- entries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x", content("large", 300_000)], ids=len)
def test_what_is_kept_is_served(folder: CacheFolder, data: bytes) -> None:
    assert (folder.load(key("a")), folder.path(key("a"))) == (None, None)
    folder.keep(key("a"), memoryview(data))
    assert folder.load(key("a")) == data
    path = folder.path_to_map(key("a"))
    assert path is not None
    assert Path(path).read_bytes() == data
    folder.drop(key("a"))
    assert (folder.load(key("a")), folder.path(key("a")), used(folder)) == (None, None, 0)


def test_entry_that_is_there_stays(folder: CacheFolder) -> None:
    folder.keep(key("a"), b"one")
    folder.keep(key("a"), b"two")
    assert folder.load(key("a")) == b"one"


def test_use_leaves_the_version_of_a_file_alone(folder: CacheFolder) -> None:
    folder.keep(key("a"), b"one")
    before = entry(folder, "a").stat()
    time.sleep(0.01)
    assert folder.path_to_map(key("a")) is not None
    after = entry(folder, "a").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert after.st_atime_ns > before.st_atime_ns


def test_nobody_else_may_look_into_it(folder: CacheFolder) -> None:
    mask = os.umask(0)
    try:
        folder.keep(key("a"), b"one")
    finally:
        os.umask(mask)
    found = [Path(folder.root), *Path(folder.root).rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}


def test_other_files_of_the_folder_are_left_alone(folder: CacheFolder) -> None:
    mine = Path(folder.root, "aa", key("mine"))
    mine.parent.mkdir(parents=True)
    mine.write_bytes(content("mine", 2 * MIB))
    for number in range(40):
        folder.keep(key(number), content(number))
    assert mine.read_bytes() == content("mine", 2 * MIB)
    assert folder.load(key(39)) == content(39)


# -- the bound -------------------------------------------------------------------------------------


def test_least_recently_used_goes_first(folder: CacheFolder) -> None:
    for name in range(9):
        folder.keep(key(name), content(name))
    assert folder.load(key(0)) is not None
    folder.keep(key(9), content(9))
    assert [name for name in range(10) if entry(folder, name).exists()] == [0, *range(2, 10)]


def test_entry_that_is_mapped_by_a_reader_stays(folder: CacheFolder) -> None:
    for name in range(9):
        folder.keep(key(name), content(name))
    assert folder.path_to_map(key(0)) is not None
    for name in range(9, 40):
        folder.keep(key(name), content(name))
    assert folder.load(key(0)) == content(0)
    assert used(folder) <= folder.bytes_max


def test_nothing_is_kept_where_all_is_mapped(folder: CacheFolder) -> None:
    for name in range(9):
        folder.keep(key(name), content(name))
        assert folder.path_to_map(key(name)) is not None
    folder.keep(key(9), content(9))
    assert folder.load(key(9)) is None
    assert [folder.load(key(name)) for name in range(9)] == [content(name) for name in range(9)]


def test_entry_larger_than_the_bound_is_not_kept(folder: CacheFolder) -> None:
    folder.keep(key("small"), b"small")
    folder.keep(key("large"), bytes(MIB))
    assert (folder.load(key("large")), folder.load(key("small"))) == (None, b"small")


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from([0, 1, 5_000, 200_000, 400_000]))))
def test_bound_holds_after_every_step(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    folder = CacheFolder(str(tmp_path_factory.mktemp("cache")), MIB)
    for name, size in steps:
        known = folder.load(key((name, size)))
        assert known in (None, content(name, size))
        folder.keep(key((name, size)), content(name, size))
        assert folder.load(key((name, size))) == content(name, size)
        assert used(folder) <= folder.bytes_max


def test_smaller_bound_of_another_process_makes_room(folder: CacheFolder) -> None:
    for name in range(9):
        folder.keep(key(name), content(name))
    small = CacheFolder(folder.root, MIB // 2)
    small.keep(key(9), content(9))
    assert small.load(key(9)) == content(9)
    assert used(small) <= small.bytes_max


@pytest.mark.parametrize(
    "text", ["", "many", "-1", "99999999999999999999", "0000000000", f"{0:020} 00000000"]
)
def test_wrong_count_of_bytes_is_counted_anew(folder: CacheFolder, text: str) -> None:
    for name in range(12):
        folder.keep(key(name), content(name))
        Path(folder.root, "keytide-1", "lock").write_text(text)
        assert folder.load(key(name)) == content(name)
        assert used(folder) <= folder.bytes_max


# -- damage ----------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("way", ["load", "path", "path_to_map"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: flip(path),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(b""),
        lambda path: Path(f"{path}.sum").unlink(),
        lambda path: Path(f"{path}.sum").write_bytes(b""),
        lambda path: Path(f"{path}.sum").write_bytes(b"100000 zz"),
        lambda path: flip(Path(f"{path}.sum")),
    ],
    ids=["bit", "short", "long", "empty", "no sum", "empty sum", "odd sum", "bit of the sum"],
)
def test_damaged_entry_is_thrown_away(folder: CacheFolder, way: str, damage: object) -> None:
    folder.keep(key("a"), content("a"))
    elsewhere = CacheFolder(f"{folder.root}-moved", MIB)
    os.rename(folder.root, elsewhere.root)  # this process has checked nothing there
    damage(entry(elsewhere, "a"))  # type: ignore[operator]
    assert getattr(elsewhere, way)(key("a")) is None
    assert not entry(elsewhere, "a").exists()
    elsewhere.keep(key("a"), content("a"))
    assert elsewhere.load(key("a")) == content("a")


def test_damage_after_the_check_is_found(folder: CacheFolder) -> None:
    folder.keep(key("a"), content("a"))
    assert folder.load(key("a")) == content("a")
    flip(entry(folder, "a"))
    assert folder.load(key("a")) is None


# -- trouble ---------------------------------------------------------------------------------------


def warned(folder: CacheFolder) -> list[str]:
    """What is warned of by three reads of files that are not in the cache."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in range(3):
            assert folder.load(key(name)) is None
            assert folder.path_to_map(key(name)) is None
            folder.keep(key(name), b"some")
            assert folder.load(key(name)) is None
            folder.drop(key(name))
    assert {each.category for each in caught} <= {KeytideWarning}
    return [str(each.message) for each in caught]


def test_folder_that_cannot_be_made_is_told_once() -> None:
    (message,) = warned(CacheFolder("/proc/no-folder", MIB))
    assert message.startswith("the cache /proc/no-folder cannot be used (")
    assert "read directly from the store" in message


def test_folder_whose_place_a_file_has_is_told_once(folder: CacheFolder) -> None:
    Path(folder.root).write_text("mine")
    assert len(warned(folder)) == 1
    assert Path(folder.root).read_text() == "mine"


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_folder_that_others_may_have_filled_is_not_served(folder: CacheFolder, mode: int) -> None:
    for name in range(3):
        folder.keep(key(name), b"planted")
    os.chmod(f"{folder.root}/keytide-1", mode)
    (message,) = warned(folder)
    assert "is writable for other users" in message


def test_folder_that_is_a_link_to_another_one_is_not_served(folder: CacheFolder) -> None:
    other = CacheFolder(f"{folder.root}-other", MIB)
    for name in range(3):
        other.keep(key(name), b"planted")
    Path(folder.root).mkdir()
    Path(folder.root, "keytide-1").symlink_to(f"{other.root}/keytide-1")
    assert len(warned(folder)) == 1


def test_folder_that_is_removed_meanwhile_is_made_anew(folder: CacheFolder) -> None:
    folder.keep(key("a"), b"one")
    os.rename(folder.root, f"{folder.root}-gone")
    assert folder.load(key("a")) is None
    folder.keep(key("a"), b"two")
    assert folder.load(key("a")) == b"two"


FULL_DISK = """
import resource, sys, warnings
from keytide.store import CacheFolder

folder = CacheFolder(sys.argv[1], 1 << 30)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    folder.keep("aa", b"fits")
    folder.keep("bb", bytes(100_000))
    folder.keep("cc", b"after")
print(len(caught), folder.load("aa"), folder.load("bb"), folder.load("cc"))
"""


def test_full_disk_is_told_once_and_leaves_nothing_half_written(folder: CacheFolder) -> None:
    out, _ = run(FULL_DISK, folder.root).communicate(timeout=60)
    assert out == "1 b'fits' None None\n"
    assert sorted(path.name for path in files(folder)) == ["aa", "aa.sum", "lock"]


# -- several at once -------------------------------------------------------------------------------

FILLER = """
import sys
from hashlib import sha256
from random import Random
from keytide.store import CacheFolder

root, bound, first, last, size = sys.argv[1], *map(int, sys.argv[2:])
folder = CacheFolder(root, bound)
for number in range(first, last):
    key, data = sha256(str(number).encode()).hexdigest(), Random(str(number)).randbytes(size)
    known = folder.load(key)
    if known not in (None, data):
        sys.exit(f"{number} is not what was kept")
    folder.keep(key, data)
    print(number, flush=True)
"""


@pytest.mark.one_in(14)
@pytest.mark.parametrize("attempt", range(6))
def test_writer_that_is_killed_in_the_middle_leaves_nothing_that_is_served(
    tmp_path: Path, attempt: int
) -> None:
    folder, size = CacheFolder(str(tmp_path / "cache"), 64 * MIB), 3 * MIB
    filler = run(FILLER, folder.root, folder.bytes_max, 0, 10**6, size)
    assert filler.stdout is not None
    for _ in range(attempt + 1):
        filler.stdout.readline()
    time.sleep(0.003 * attempt)
    os.kill(filler.pid, signal.SIGKILL)
    filler.wait()
    filler.stdout.close()
    found = {number: folder.load(key(number)) for number in range(40)}
    assert all(data in (None, content(n, size)) for n, data in found.items())
    assert found[0] is not None
    Path(folder.root, "keytide-1", "lock").write_text("")  # counts, and removes what is left over
    folder.keep(key("after"), b"after")
    assert not [*Path(folder.root, "keytide-1", "new").iterdir()]
    assert folder.load(key("after")) == b"after"


KILLED_BY_THE_KERNEL = """
import os, resource, signal, sys
from keytide.store import CacheFolder

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
CacheFolder(sys.argv[1], 1 << 20).keep("ab" * 32, bytes(600_000))
"""


def test_file_of_a_dead_writer_makes_room(folder: CacheFolder) -> None:
    dead = run(KILLED_BY_THE_KERNEL, folder.root)
    dead.communicate(timeout=60)
    assert dead.returncode == -signal.SIGXFSZ
    assert folder.load("ab" * 32) is None
    for name in range(20):
        folder.keep(key(name), content(name))
        assert folder.load(key(name)) == content(name)
        assert used(folder) <= folder.bytes_max
    assert not [*Path(folder.root, "keytide-1", "new").iterdir()]


@pytest.mark.takes_turns
def test_processes_that_fill_one_folder_keep_its_bound_and_see_whole_entries(
    folder: CacheFolder,
) -> None:
    arguments = (folder.root, folder.bytes_max, 0, 150, 60_000)
    fillers = [run(FILLER, *arguments) for _ in range(3)]
    seen = []
    while any(filler.poll() is None for filler in fillers):
        seen.append(used_now(folder))
        time.sleep(0.01)
    assert [filler.wait() for filler in fillers] == [0, 0, 0]
    for filler in fillers:
        filler.communicate()
    assert max(seen) <= folder.bytes_max
    assert any(folder.load(key(number)) for number in range(140, 150))


def used_now(folder: CacheFolder) -> int:
    """As `used`, while no entry comes or goes."""
    try:
        descriptor = os.open(Path(folder.root, "keytide-1", "lock"), os.O_RDWR)
    except FileNotFoundError:
        return 0
    with open(descriptor, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        while True:
            with suppress(FileNotFoundError):  # a writer that waited for too long gives up
                return used(folder)


def test_file_that_is_given_up_goes_while_nobody_counts(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.keep(key("a"), b"a")
    before, could_count = used(folder), []

    def unlink(path: str, remove: Callable[[str], None] = os.unlink) -> None:
        with Path(folder.root, "keytide-1", "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                could_count.append(path)
            except BlockingIOError:
                remove(path)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(TypeError):  # from the middle of writing
        folder.keep(key("b"), memoryview(bytes(100))[::2])
    assert could_count == []
    assert used(folder) == before


def test_threads_that_fill_one_folder_see_whole_entries(folder: CacheFolder) -> None:
    def work(number: int) -> bool:
        folder.keep(key(number % 30), content(number % 30))
        return folder.load(key(number % 30)) in (None, content(number % 30))

    with warnings.catch_warnings(), ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("error")
        assert all(pool.map(work, range(300)))
    assert used(folder) <= folder.bytes_max


def test_path_that_is_given_away_can_be_opened(folder: CacheFolder) -> None:
    given, opened = 0, 0
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as pool:
        warnings.simplefilter("error")
        filling = pool.submit(lambda: [folder.keep(key(n), bytes(50_000)) for n in range(600)])
        number = 0
        while not filling.done():
            number = (number + 7) % 600
            path = folder.path_to_map(key(number)) if number % 5 == 0 else None
            if path is not None:
                given += 1
                opened += Path(path).read_bytes() == bytes(50_000)
        filling.result()
    assert opened == given
    assert used(folder) <= folder.bytes_max
