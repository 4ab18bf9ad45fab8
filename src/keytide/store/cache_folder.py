"""A cache folder on local disk for immutable bytes, shared by all processes of one account.

::

    keytide-1/lock             total size of the entries; locked while entries are added or removed
    keytide-1/<aa>/<key>       an entry: only the bytes, so that readers can map it
    keytide-1/<aa>/<key>.sum   its size and CRC-32; an entry without this file is not used
    keytide-1/new/<key>.<uuid> an entry being written, locked by the process that writes it

An entry appears by a rename, after its sum. A process that dies before the rename leaves nothing
that is used, and its leftovers are recognized by their free lock. Nothing is synced, because after
a power loss the sums detect damage. The access time of an entry is the time of its last use. The
modification time of its sum is the time when its path was last returned to a reader. Such an entry
stays for some minutes, because the reader has not opened it yet.

No function raises an error for a disk problem, because a read must not fail because of the cache.
After a problem the folder is not used for a minute. The first problem in a process causes a
`KeytideWarning`.
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
from threading import Lock
from uuid import uuid4

from keytide.base.arguments import warn_caller
from keytide.base.dataclass import dataclass

Piece = bytes | memoryview
"""Bytes to store."""


@dataclass(frozen=True)
class CacheFolder:
    """Entries below the folder `root`, with a limit of `bytes_max` on disk.

    Only files in a subfolder of its own are touched, and only if the subfolder belongs to this
    account and nobody else can write to it. Keys are strings of hexadecimal digits. Safe to use
    from several threads and processes.
    """

    root: str
    bytes_max: int

    def takes(self, size: int) -> bool:
        """Whether storing this many bytes makes sense."""
        return _cost(size) <= self.bytes_max and not _HEALTH.rests(self.root)

    def load(self, key: str) -> bytes | None:
        """The bytes of an entry, checked. None if there is no such entry."""
        found = self._found(key)
        if found is None:
            return None
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                data: bytes = file.readall()
        except OSError:  # it was evicted just now
            return None
        if found.is_checked and len(data) == found.size:
            return data
        return data if self._checks(key, found, len(data), zlib.crc32(data)) else None

    def path(self, key: str) -> str | None:
        """The file of an entry, checked. None if there is no such entry.

        The entry can be evicted at any time, see `path_to_map`.
        """
        found = self._found(key)
        if found is None or found.is_checked:
            return None if found is None else self._path(key)
        size = checksum = 0
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                while piece := file.read(_SUMMED_BYTES):
                    size += len(piece)
                    checksum = zlib.crc32(piece, checksum)
        except OSError:
            return None
        return self._path(key) if self._checks(key, found, size, checksum) else None

    def path_to_map(self, key: str) -> str | None:
        """The file of an entry that stays for some minutes, so that the reader can open it."""
        path = self.path(key)
        if path is None:
            return None
        try:
            os.utime(_sum_of(path))  # see `_remove_unmapped`
        except OSError:
            return None  # it was evicted just now, or could be, unnoticed
        return path

    def keep(self, key: str, data: Piece) -> None:
        """Add an entry, on a best-effort basis. An existing entry is kept."""
        cost = _cost(len(data))
        if not self.takes(len(data)):
            return
        with self._troubles():
            if not self._is_ours():
                os.makedirs(self.root, _FOLDER_MODE, exist_ok=True)
                with suppress(FileExistsError):
                    os.mkdir(self._folder, _FOLDER_MODE)
                self._is_ours()
            for folder in (os.path.dirname(self._path(key)), self._new):
                with suppress(FileExistsError):
                    os.mkdir(folder, _FOLDER_MODE)
            temporary = self._reserve(key, cost)
            if temporary is not None:
                self._publish(key, temporary, data, cost)

    def drop(self, key: str) -> None:
        """Remove an entry, if it is there."""
        path = self._path(key)
        if not os.path.lexists(path):
            return
        with self._troubles():
            if not self._is_ours():
                return
            with self._locked() as total:
                # Without the lock, the total size stays too high until entries are counted again.
                freed = _remove(path)
                if total is not None and freed:
                    total.add(-freed)

    # -- finding --------------------------------------------------------------------------------

    def _found(self, key: str) -> _FoundEntry | None:
        path = self._path(key)
        with self._troubles():
            if not self._is_ours():
                return None
            try:
                found = os.stat(path)
            except FileNotFoundError:
                return None
            version = _version(found)
            with suppress(OSError):  # in a read-only folder nothing is evicted either
                os.utime(path, ns=(time.time_ns(), found.st_mtime_ns))
            return _FoundEntry(version, found.st_size, _CHECKED.has(path, version))
        return None

    def _checks(self, key: str, found: _FoundEntry, size: int, checksum: int) -> bool:
        """Whether an entry has its original content. If not, it is deleted."""
        path = self._path(key)
        try:
            with open(_sum_of(path), "rb", buffering=0) as file:
                noted_size, _, noted_sum = file.read(64).partition(b" ")
                is_whole = (int(noted_size), int(noted_sum, 16)) == (size, checksum)
        except (OSError, ValueError):
            is_whole = False
        if is_whole:
            _CHECKED.note(path, found.version)
            return True
        self.drop(key)
        return False

    def _is_ours(self) -> bool:
        """Whether the folder exists. Raises OSError if others may have written to it."""
        try:
            found = os.lstat(self._folder)
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(found.st_mode):
            raise OSError(f"{self._folder} is not a folder")
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(f"{self._folder} belongs to another user, or is writable for other users")
        return True

    # -- adding entries -------------------------------------------------------------------------

    def _reserve(self, key: str, cost: int) -> _Temporary | None:
        """An empty file that reserves space for the bytes, None if there is no space.

        It has its final length from the start, so that a concurrent count includes all of it.
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
                    name = _sum_of(path)
                    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                    with open(os.open(name, flags, _FILE_MODE), "wb", 0) as file:
                        file.write(b"%d %08x" % (len(data), zlib.crc32(data)))
                    os.utime(name, (0, 0))  # its path was never returned
                    os.rename(temporary.path, path)
                    is_there = True
                _CHECKED.note(path, _version(os.fstat(temporary.file.fileno())))
            finally:
                if not is_there:
                    # This needs the lock. A count between the two steps would miss the file, and
                    # its size would be subtracted twice.
                    with self._locked() as total:
                        with suppress(OSError):
                            os.unlink(temporary.path)
                        if total is not None:
                            total.add(-cost)

    # -- eviction -------------------------------------------------------------------------------

    def _make_room(self, cost: int) -> int:
        """Evict the least recently used entries and leftovers of dead writers.

        Returns the total left.
        """
        entries, total = [], 0
        for folder in os.scandir(self._folder):
            if folder.is_dir(follow_symlinks=False):
                is_new = folder.path == self._new
                for entry in _left_over(folder.path) if is_new else _entries(folder.path):
                    total += entry.cost
                    entries += [] if is_new else [entry]
        if total + cost <= self.bytes_max:
            return total
        # Counting takes long when there are many entries, so each eviction frees a tenth of the
        # space.
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
        """Lock the total size for this process. None if others hold the lock for too long."""
        path, deadline = os.path.join(self._folder, "lock"), time.monotonic() + _LOCK_S
        with open(os.open(path, os.O_RDWR | os.O_CREAT, _FILE_MODE), "r+b", 0) as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    is_late = time.monotonic() > deadline
                if is_late:
                    yield None
                    return
                time.sleep(_LOCK_AGAIN_S)
            yield _Total(file.fileno())

    # -- errors ---------------------------------------------------------------------------------

    @contextmanager
    def _troubles(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _HEALTH.rest(self.root, _TROUBLE_S)
            if _HEALTH.is_first(self.root):
                warn_caller(
                    f"the cache {self.root} cannot be used ({error.strerror or error}), so files "
                    "are read directly from the store. Free some space, or use a folder that "
                    "only this user can write to"
                )

    # -- locations ------------------------------------------------------------------------------

    @property
    def _folder(self) -> str:
        # A subfolder of its own, because users can name a folder that contains other files.
        return os.path.join(self.root, "keytide-1")

    @property
    def _new(self) -> str:
        return os.path.join(self._folder, "new")

    def _path(self, key: str) -> str:
        return os.path.join(self._folder, key[:2], key)


@dataclass(frozen=True)
class _FoundEntry:
    """An entry as it was found, and whether this process has already checked it."""

    version: tuple[int, int, int]
    size: int
    is_checked: bool


@dataclass(frozen=True)
class _Entry:
    """The disk space of an entry, its last use, and when its path was last returned."""

    path: str
    cost: int
    used_ns: int
    mapped_s: float


class _Temporary:
    """A file being written, locked as long as its writer lives."""

    def __init__(self, path: str, cost: int) -> None:
        self.path = path
        self.file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _FILE_MODE), "r+b", 0)  # noqa: SIM115  # closed by `close`
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.file.truncate(cost)
        except BaseException:
            self.file.close()
            os.unlink(path)
            raise

    def write(self, data: Piece) -> None:
        rest = memoryview(data).cast("B")
        self.file.truncate(len(rest))
        while rest:
            rest = rest[self.file.write(rest) :]

    def close(self) -> None:
        self.file.close()


class _Total:
    """The total size of all entries in the lock file. None if it is unknown."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        number, _, checksum = os.pread(descriptor, 64, 0).partition(b" ")
        # A damaged total could be too low for ever. The entries are counted again instead.
        self.value = (
            int(number) if number.isdigit() and checksum == (b"%08x" % zlib.crc32(number)) else None
        )

    def add(self, change: int) -> None:
        if self.value is not None:
            self.set(max(0, self.value + change))

    def set(self, value: int) -> None:
        self.value = value
        number = b"%020d" % value
        os.pwrite(self._descriptor, b"%s %s" % (number, (b"%08x" % zlib.crc32(number))), 0)


class _Checked:
    """The entries that this process has checked, and that have not changed since."""

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
    """Folders that had problems, which this process does not use for a while."""

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
    """The disk space of an entry and its sum, in whole blocks."""
    return -(-size // _DISK_BLOCK_BYTES) * _DISK_BLOCK_BYTES + _DISK_BLOCK_BYTES


def _version(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _sum_of(path: str) -> str:
    return f"{path}{_SUM}"


def _entries(folder: str) -> Iterator[_Entry]:
    """The entries of one folder. Files without an entry are removed: their writer died."""
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
    """The files being written. Those whose writers died are removed."""
    for each in os.scandir(folder):
        with suppress(FileNotFoundError), open(each.path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(each.path)
            except BlockingIOError:
                yield _Entry(each.path, _cost(os.stat(each.path).st_size), 0, 0.0)


def _remove(path: str) -> int:
    """Remove an entry, bytes first. Returns the freed disk space."""
    try:
        freed = _cost(os.stat(path).st_size)
        os.unlink(path)
    except FileNotFoundError:
        freed = 0
    with suppress(FileNotFoundError):
        os.unlink(_sum_of(path))
    return freed


def _remove_unmapped(path: str, recently_s: float) -> int:
    """Remove an entry unless its path was returned to a reader very recently.

    Returning a path also touches the sum. Either this function sees that, or the sum no longer
    exists and no path is returned.
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


_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_SUM = ".sum"
_DISK_BLOCK_BYTES = 4096
_SUMMED_BYTES = 1 << 20
_LOCK_S = 1.0
_LOCK_AGAIN_S = 0.002
_TROUBLE_S = 60.0
# If all entries were mapped recently, counting again immediately would give the same result.
_FULL_S = 10.0
# Time from when a reader gets a path until it opens the file, which includes planning.
_MAPPED_S = 300.0
# A long-running process must not remember every file that it ever read.
_CHECKED_MAX = 100_000
_CHECKED = _Checked()
_HEALTH = _Health()
