"""A folder on local disk with copies of bytes that never change, for all processes of one account.

::

    keytide-1/lock             the bytes of all entries together, held while entries come and go
    keytide-1/<aa>/<key>       an entry: the bytes, and nothing else, so that readers can map it
    keytide-1/<aa>/<key>.sum   their number and CRC-32; no entry is served without
    keytide-1/new/<key>.<uuid> an entry that is being written, by the process that has it locked

An entry appears by a rename, behind its sum: whoever dies before leaves nothing that is served, and
what it leaves is known by its lock, which is free. Nothing is synced, for after a loss of power
the sums tell. The time of last access of an entry says when it was used last, and the time of its
sum when its path was given away last: such an entry stays for some minutes, because its reader has
yet to open it.

Nothing here raises for the disk: a read must not fail for want of a cache. After trouble the folder
is left alone for a minute, and the first time in a process a `KeytideWarning` says what it was.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from uuid import uuid4

from keytide.callers import warn_caller

__all__ = ["CacheFolder", "Piece"]

Piece = bytes | memoryview
"""Bytes to keep."""


@dataclass(frozen=True)
class CacheFolder:
    """Entries below the folder `root` that take `bytes_max` of the disk at most.

    Only what lies in its own folder there is ever touched, and only where that belongs to this
    account and nobody else may write to it. Keys are texts of hexadecimal digits. Safe to use from
    many threads and processes.
    """

    root: str
    bytes_max: int

    def takes(self, size: int) -> bool:
        """Whether it is worth a try to keep so many bytes."""
        return _cost(size) <= self.bytes_max and not _HEALTH.rests(self.root)

    def load(self, key: str) -> bytes | None:
        """The bytes of an entry, checked; None where there is no such entry."""
        found = self._found(key)
        if found is None:
            return None
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                data: bytes = file.readall()
        except OSError:  # it has just made room for another one
            return None
        if found.is_checked and len(data) == found.size:
            return data
        return data if self._checks(key, found, len(data), zlib.crc32(data)) else None

    def path(self, key: str) -> str | None:
        """Where the bytes of an entry lie, checked; None where there is no such entry.

        They may make room for others at any time; see `path_to_map`.
        """
        found = self._found(key)
        if found is None or found.is_checked:
            return None if found is None else self._path(key)
        try:
            size, checksum = _summed(self._path(key))
        except OSError:
            return None
        return self._path(key) if self._checks(key, found, size, checksum) else None

    def path_to_map(self, key: str) -> str | None:
        """The same, of an entry that stays for some minutes: its reader will open it."""
        path = self.path(key)
        if path is None:
            return None
        try:
            os.utime(_sum_of(path))  # see `_remove_unmapped`
        except OSError:
            return None  # it has just made room, or could do so unseen
        return path

    def keep(self, key: str, data: Piece) -> None:
        """Make an entry, as far as that can be done; the one that there is, if any, stays."""
        cost = _cost(len(data))
        if not self.takes(len(data)):
            return
        with self._troubles():
            self._make_folders(key)
            temporary = self._reserve(key, cost)
            if temporary is not None:
                self._publish(key, temporary, data, cost)

    def drop(self, key: str) -> None:
        """Remove an entry, if it is there."""
        path = self._path(key)
        if not os.path.lexists(path):
            return
        with self._troubles():
            if self._is_ours():
                self._drop(path)

    def _drop(self, path: str) -> None:
        with self._locked() as total:
            # Without the lock the count of bytes stays too high until entries are counted again.
            freed = _remove(path)
            if total is not None and freed:
                total.add(-freed)

    # -- finding --------------------------------------------------------------------------------

    def _found(self, key: str) -> _Found | None:
        path = self._path(key)
        with self._troubles():
            if not self._is_ours():
                return None
            try:
                found = os.stat(path)
            except FileNotFoundError:
                return None
            version = _version(found)
            with suppress(OSError):  # where nothing can be written, nothing makes room either
                os.utime(path, ns=(time.time_ns(), found.st_mtime_ns))
            return _Found(version, found.st_size, _CHECKED.has(path, version))
        return None

    def _checks(self, key: str, found: _Found, size: int, checksum: int) -> bool:
        """Whether an entry is what was kept; else it is thrown away."""
        path = self._path(key)
        if _noted(path) == (size, checksum):
            _CHECKED.note(path, found.version)
            return True
        self.drop(key)
        return False

    def _is_ours(self) -> bool:
        """Whether there is a folder; raises OSError for one that others may have filled."""
        try:
            found = os.lstat(self._folder)
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(found.st_mode):
            raise OSError(f"{self._folder} is no folder")
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(f"{self._folder} belongs to another account, or others may write to it")
        return True

    # -- making ---------------------------------------------------------------------------------

    def _make_folders(self, key: str) -> None:
        if not self._is_ours():
            os.makedirs(self.root, _FOLDER_MODE, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(self._folder, _FOLDER_MODE)
            self._is_ours()
        for folder in (os.path.dirname(self._path(key)), self._new):
            with suppress(FileExistsError):
                os.mkdir(folder, _FOLDER_MODE)

    def _reserve(self, key: str, cost: int) -> _Temporary | None:
        """An empty file that stands for the bytes to come; None where there is no place for them.

        It has their length at once, so that whoever counts meanwhile counts all of them.
        """
        with self._locked() as total:
            if total is None or os.path.exists(self._path(key)):
                return None
            if total.value is None or total.value + cost > self.bytes_max:
                total.set(self._make_room(cost))
                if total.value is None or total.value + cost > self.bytes_max:
                    _HEALTH.rest(self.root, _FULL_S)
                    return None
            temporary = _Temporary(os.path.join(self._new, f"{key}.{uuid4()}"), cost)
            total.add(cost)
            return temporary

    def _publish(self, key: str, temporary: _Temporary, data: Piece, cost: int) -> None:
        path, is_there = self._path(key), False
        with closing(temporary):
            try:
                temporary.write(data)
                with self._locked() as total:
                    if total is None or os.path.exists(path):
                        return
                    _write_sum(path, len(data), zlib.crc32(data))
                    os.rename(temporary.path, path)
                    is_there = True
                _CHECKED.note(path, temporary.version)
            finally:
                if not is_there:
                    self._give_up(temporary.path, cost)

    def _give_up(self, path: str, cost: int) -> None:
        # Under the lock: whoever counted between the two would not see the file, and its bytes
        # would be taken off once more.
        with self._locked() as total:
            with suppress(OSError):
                os.unlink(path)
            if total is not None:
                total.add(-cost)

    # -- room -----------------------------------------------------------------------------------

    def _make_room(self, cost: int) -> int:
        """Remove what was used longest ago, and what dead writers left; gives what is left."""
        entries, total = [], 0
        for folder in os.scandir(self._folder):
            if folder.is_dir(follow_symlinks=False):
                is_new = folder.path == self._new
                for entry in _left_over(folder.path) if is_new else _entries(folder.path):
                    total += entry.cost
                    entries += [] if is_new else [entry]
        if total + cost <= self.bytes_max:
            return total
        # Counting takes long where entries are many: so it is done for a tenth of them at a time.
        goal = min(self.bytes_max - cost, self.bytes_max * 9 // 10)
        recently_s = time.time() - _MAPPED_S
        for entry in sorted(entries, key=lambda each: each.used_ns):
            if total <= goal:
                break
            if entry.mapped_s < recently_s:
                total -= _remove_unmapped(entry.path, recently_s)
        return total

    @contextmanager
    def _locked(self) -> Iterator[_Total | None]:
        """The count of bytes, for this process alone; None where others hold it for too long."""
        with open(os.open(self._lock, os.O_RDWR | os.O_CREAT, _FILE_MODE), "r+b", 0) as file:
            if not _lock(file.fileno()):
                yield None
                return
            yield _Total(file.fileno())

    # -- trouble --------------------------------------------------------------------------------

    @contextmanager
    def _troubles(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _HEALTH.rest(self.root, _TROUBLE_S)
            if _HEALTH.is_first(self.root):
                warn_caller(
                    f"the cache {self.root} cannot be used ({error.strerror or error}): files are "
                    f"read from the store, as without it. Free some space there, or give a folder "
                    f"that this account can write to and no other one can"
                )

    # -- places ---------------------------------------------------------------------------------

    @property
    def _folder(self) -> str:
        # A folder of its own: people may give one in which they keep other things.
        return os.path.join(self.root, "keytide-1")

    @property
    def _new(self) -> str:
        return os.path.join(self._folder, "new")

    @property
    def _lock(self) -> str:
        return os.path.join(self._folder, "lock")

    def _path(self, key: str) -> str:
        return os.path.join(self._folder, key[:2], key)


@dataclass(frozen=True)
class _Found:
    """An entry as it was found, and whether this process has checked it as it is."""

    version: tuple[int, int, int]
    size: int
    is_checked: bool


@dataclass(frozen=True)
class _Entry:
    """What an entry takes of the disk, when it was used last and its path was given away last."""

    path: str
    cost: int
    used_ns: int
    mapped_s: float


class _Temporary:
    """A file that is being written, locked for as long as its writer lives."""

    def __init__(self, path: str, cost: int) -> None:
        self.path = path
        self._file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _FILE_MODE), "r+b", 0)  # noqa: SIM115  # closed by `close`
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.truncate(cost)
        except BaseException:
            self._file.close()
            os.unlink(path)
            raise

    def write(self, data: Piece) -> None:
        rest = memoryview(data).cast("B")
        self._file.truncate(len(rest))
        while rest:
            rest = rest[self._file.write(rest) :]

    @property
    def version(self) -> tuple[int, int, int]:
        return _version(os.fstat(self._file.fileno()))

    def close(self) -> None:
        self._file.close()


class _Total:
    """How many bytes all entries take, as the lock file says; None where nobody knows."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        text = os.pread(descriptor, 32, 0)
        self.value = int(text) if text.isdigit() else None

    def add(self, change: int) -> None:
        if self.value is not None:
            self.set(max(0, self.value + change))

    def set(self, value: int) -> None:
        self.value = value
        os.pwrite(self._descriptor, b"%020d" % value, 0)


class _Checked:
    """Which entries this process has found to be what was kept, as they are now."""

    def __init__(self) -> None:
        self._versions: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        self._lock = Lock()

    def has(self, path: str, version: tuple[int, int, int]) -> bool:
        return self._versions.get(path) == version

    def note(self, path: str, version: tuple[int, int, int]) -> None:
        with self._lock:
            self._versions[path] = version
            self._versions.move_to_end(path)
            if len(self._versions) > _CHECKED_MAX:
                self._versions.popitem(last=False)


class _Health:
    """Which folders had trouble, so that this process leaves them alone for a while."""

    def __init__(self) -> None:
        self._rest_until: dict[str, float] = {}
        self._told: set[str] = set()
        self._lock = Lock()

    def rests(self, root: str) -> bool:
        return time.monotonic() < self._rest_until.get(root, 0.0)

    def rest(self, root: str, seconds: float) -> None:
        self._rest_until[root] = time.monotonic() + seconds

    def is_first(self, root: str) -> bool:
        with self._lock:
            is_first = root not in self._told
            self._told.add(root)
            return is_first


def _cost(size: int) -> int:
    """What an entry takes of a disk that gives out whole blocks, its sum included."""
    return -(-size // _DISK_BLOCK_BYTES) * _DISK_BLOCK_BYTES + _DISK_BLOCK_BYTES


def _version(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _sum_of(path: str) -> str:
    return f"{path}{_SUM}"


def _write_sum(path: str, size: int, checksum: int) -> None:
    name = _sum_of(path)
    with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE), "wb", 0) as file:
        file.write(b"%d %08x" % (size, checksum))
    os.utime(name, (0, 0))  # its path was never given away


def _noted(path: str) -> tuple[int, int] | None:
    """The size and the checksum that an entry has to have."""
    try:
        with open(_sum_of(path), "rb", buffering=0) as file:
            size, _, checksum = file.read(64).partition(b" ")
            return int(size), int(checksum, 16)
    except (OSError, ValueError):
        return None


def _summed(path: str) -> tuple[int, int]:
    size = checksum = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_SUMMED_BYTES):
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
    return size, checksum


def _entries(folder: str) -> Iterator[_Entry]:
    """The entries of one folder. What belongs to none is removed: somebody died over it."""
    names = {each.name for each in os.scandir(folder)}
    for name in names:
        path = os.path.join(folder, name)
        has_other = name.removesuffix(_SUM) if name.endswith(_SUM) else f"{name}{_SUM}"
        with suppress(FileNotFoundError):  # dropped meanwhile
            if has_other not in names:
                os.unlink(path)
            elif not name.endswith(_SUM):
                found, mapped_s = os.stat(path), os.stat(_sum_of(path)).st_mtime
                yield _Entry(path, _cost(found.st_size), found.st_atime_ns, mapped_s)


def _left_over(folder: str) -> Iterator[_Entry]:
    """The files that are being written; those whose writers died are removed."""
    for each in os.scandir(folder):
        with suppress(FileNotFoundError), open(each.path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(each.path)
            except BlockingIOError:
                yield _Entry(each.path, _cost(os.stat(each.path).st_size), 0, 0.0)


def _remove(path: str) -> int:
    """Remove an entry, the bytes first; gives what it took of the disk."""
    try:
        freed = _cost(os.stat(path).st_size)
        os.unlink(path)
    except FileNotFoundError:
        freed = 0
    with suppress(FileNotFoundError):
        os.unlink(_sum_of(path))
    return freed


def _remove_unmapped(path: str, recently_s: float) -> int:
    """The same, unless the path was given away at this very moment.

    Whoever gives it away touches the sum: either that is seen here, or the sum is not there any
    more, and no path is given away.
    """
    name = _sum_of(path)
    aside = f"{name}.old"
    try:
        os.rename(name, aside)
    except FileNotFoundError:  # dropped meanwhile
        return _remove(path)
    if os.stat(aside).st_mtime >= recently_s:
        os.rename(aside, name)
        return 0
    freed = _remove(path)
    os.unlink(aside)
    return freed


def _lock(descriptor: int) -> bool:
    """Lock an open file; False where others hold it for longer than a read should wait."""
    deadline = time.monotonic() + _LOCK_S
    while not _is_locked_now(descriptor):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOCK_AGAIN_S)
    return True


def _is_locked_now(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_SUM = ".sum"
_DISK_BLOCK_BYTES = 4096
_SUMMED_BYTES = 1 << 20
_LOCK_S = 1.0
_LOCK_AGAIN_S = 0.002
_TROUBLE_S = 60.0
# When all that there is has been mapped just now, counting again at once would find the same.
_FULL_S = 10.0
# From the moment when a reader learns a path up to its opening the file: a plan lies in between.
_MAPPED_S = 300.0
# A long-lived process must not remember every file that it ever read.
_CHECKED_MAX = 100_000
_CHECKED = _Checked()
_HEALTH = _Health()
