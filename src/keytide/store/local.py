"""Files in a local directory, and folders that several processes use.

For durability, the order is always: the file's bytes, its name, then the directory that contains
the name. Each is synced once.

A `create` links a complete temporary file to its final name, which fails if the name exists. This
works between threads and between processes. Temporary files are named `.name.uuid.tmp`. A crash can
leave one behind, and readers ignore them.

A process can find out whether it sees the same folder as others. A directory that was pickled knows
where it was seen. Another process that does not find it, or does not find a file in another
directory of the same name, reports that the folder is not shared. It would otherwise report lost
data, or write files that the first process never sees.
"""

from __future__ import annotations

import builtins
import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from uuid import uuid4

import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.base.process import refuse_forked_child, side_by_side, this_host
from keytide.errors import DataError, SetupError
from keytide.store.interface import ObjectInfo, Store, Uploads, buffered, check_path, disk_errors

# -- shared folders --------------------------------------------------------------------------------


HOW_TO_SHARE = (
    "All hosts must see the same folder: put the warehouse on a file system that each of them "
    "mounts at the same path, or in an object store."
)


@dataclass(frozen=True)
class Origin:
    """Where a directory was seen: the host, and the numbers of the directory and those above it.

    A number consists of a device, which means something on one host only, and of an inode.
    """

    root: str
    host: str
    numbers: tuple[tuple[int, int], ...]

    def check(self) -> None:
        """Raise `SetupError` if the directory does not exist here, unless it was deleted there."""
        if os.path.isdir(self.root):
            return
        seen = zip(_upwards(self.root), self.numbers, strict=True)
        above, number = next((path, number) for path, number in seen if os.path.isdir(path))
        if self.host == this_host() and number == _number(above):
            return
        raise SetupError(
            f"{self.root} exists for the driver on {self.host}, but not for a task on "
            f"{this_host()}, unless it was deleted in the meantime. {HOW_TO_SHARE}"
        )

    def check_file(self, path: str) -> None:
        """Raise `SetupError` if a missing file should be in another directory of this name."""
        there, here = self.numbers[0], _number(self.root)
        if there[1] == here[1] and (there[0] == here[0] or self.host != this_host()):
            return
        raise SetupError(
            f"{path} does not exist for a task on {this_host()}, and {self.root} seems to be "
            f"another folder than for the driver on {self.host}. {HOW_TO_SHARE}"
        )


def _upwards(path: str) -> Iterator[str]:
    """A directory, and those above it."""
    yield path
    while (above := os.path.dirname(path)) != path:
        yield above
        path = above


def _number(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


# -- files of a directory --------------------------------------------------------------------------


T = TypeVar("T")

# Maximum number of files that `put_all` keeps open. On most systems a process can open 1024 files.
_OPEN_FILES_MAX = 256
# Syncing is waiting and not computing, so this is independent of the number of cores.
_SYNC_THREADS = 8
# For fewer syncs, starting threads takes longer than syncing one after the other.
_SIDE_BY_SIDE_MIN = 8


@lru_cache(maxsize=1 << 12)  # a lookup needs a dozen of them, and parsing one takes 10 us
def _path(full: str) -> Path:
    return Path(full)


@dataclass(frozen=True)
class LocalStore(Store):
    """A directory, given as an absolute path. The first write creates it.

    In a process that got it from another one, every method raises `SetupError` if the directory
    existed there, but does not exist here.
    """

    root: str
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """Where another process has seen it."""

    def __getstate__(self) -> dict[str, Any]:
        origin = self.origin
        if origin is None and os.path.isdir(self.root):
            origin = Origin(self.root, this_host(), tuple(map(_number, _upwards(self.root))))
        return {"root": self.root, "origin": origin}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def uri(self) -> str:
        """The directory's path."""
        return self.root

    def read(self, path: str) -> bytes:
        """The whole file."""
        full = self._full(path)
        with self._reading(full), open(full, "rb", buffering=0) as file:
            return file.readall()

    def uploading(self) -> tuple[Store, Callable[[], None]]:
        """The same directory, but `put_all` returns before the disk has finished."""
        uploads = Uploads()
        return _UploadingStore(self.root, self.origin, uploads), uploads.settle

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file for Parquet readers."""
        full = self._full(path)
        with self._reading(full):
            return pa.OSFile(full, "rb")

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """A new file, written in place and synced with its directory at a clean exit."""
        full = self._full(path)
        with disk_errors("write", full):
            target = _create_file(full)

        def write(piece: memoryview) -> None:
            with disk_errors("write", full):
                _write(target, piece)

        try:
            with target:
                with buffered(write) as file:
                    yield file
                with disk_errors("write", full):
                    os.fsync(target.fileno())
            _sync_directory(os.path.dirname(full))
        except BaseException:
            with suppress(OSError):
                os.unlink(full)
            raise

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file, durable on return."""
        self.put_all({path: data})

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Write several whole files, durable on return. Each directory is synced once."""
        by_name = [(self._full(path), data) for path, data in files.items()]
        for start in range(0, len(by_name), _OPEN_FILES_MAX):
            some = by_name[start : start + _OPEN_FILES_MAX]
            # Parent names are synced first, because a file is not durable if its directory's name
            # can be lost.
            directories = {os.path.dirname(full) for full, _ in some}
            _side_by_side(_sync_directory, _make_directories(directories))
            with ExitStack() as temporaries:
                written = []
                for full, data in some:
                    with disk_errors("write", full):
                        file = temporaries.enter_context(_temporary(full))
                        _write(file, data)
                    written.append((file, full))
                _side_by_side(_sync_file, written)
                # Renamed only when all bytes are on disk, because no name may refer to bytes that a
                # crash could lose.
                for file, full in written:
                    with disk_errors("write", full):
                        os.replace(file.name, full)
        _side_by_side(_sync_directory, {os.path.dirname(full) for full, _ in by_name})

    def copy(self, path: str, to: str) -> None:
        """Give a file a second name as a hard link.

        This is safe because files never change in place.
        """
        old, new = self._full(path), self._full(to)
        with disk_errors("copy", old):
            os.link(old, new)
            _sync_directory(os.path.dirname(new))

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file if the name is free, durable on return."""
        full = self._full(path)
        with disk_errors("create", full):
            with _temporary(full) as file:
                _write(file, data)
                os.fsync(file.fileno())
                created = _link(file.name, full)
            if created:
                _sync_directory(os.path.dirname(full))
        return created

    def hint(self, path: str, data: bytes) -> None:
        """Replace a file without syncing it. Disk errors are ignored."""
        # Not synced, because a reader that finds an old hint, or none, lists the directory. The
        # parent directory is not created either: if it was renamed, nobody reads here.
        full = self._full(path)
        if not os.path.isdir(os.path.dirname(os.path.dirname(full))):
            return
        with suppress(OSError), _temporary(full) as file:
            _write(file, data)
            os.replace(file.name, full)

    def exists(self, path: str) -> bool:
        """Whether a file (not a directory) has this name."""
        return os.path.isfile(self._full(path))

    def size(self, path: str) -> int:
        """Length of the file in bytes."""
        full = self._full(path)
        with self._reading(full):
            return os.stat(full).st_size

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All files below `prefix`, including temporary files of unfinished writes."""
        directories = [prefix.strip("/")]
        while directories:
            directory = directories.pop()
            for entry in self._entries(directory):
                path = f"{directory}/{entry.name}" if directory else entry.name
                if entry.is_dir():
                    directories.append(path)
                else:
                    with suppress(FileNotFoundError):
                        found = entry.stat()
                        yield ObjectInfo(path, found.st_size, found.st_mtime_ns // 1_000_000)

    def list_names(self, directory: str = "") -> builtins.list[str]:
        """Sorted names of the files and directories directly below `directory`."""
        return sorted(entry.name for entry in self._entries(directory.strip("/")))

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files. A file that does not exist is no error."""
        for path in paths:
            full = self._full(path)
            with disk_errors("delete", full), suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(full)

    def delete_tree(self, directory: str) -> None:
        """Remove a directory and everything below it."""
        full = self._full(directory)
        with disk_errors("delete", full):
            for is_last in (*[False] * _DELETIONS, True):
                try:
                    shutil.rmtree(full)
                except OSError as error:
                    # Others may delete files there too, or still write some.
                    if is_last or error.errno not in _CHANGED_MEANWHILE:
                        raise
                if not os.path.lexists(full):
                    return

    def delete_empty(self, directory: str) -> None:
        """Remove a directory and those below it, except directories that contain files."""
        full = self._full(directory)
        for each, _, _ in os.walk(full, topdown=False):
            with suppress(OSError):  # not empty, or already removed
                os.rmdir(each)

    def rename_tree(self, directory: str, to: str) -> bool:
        """Rename a directory atomically, durable on return. False if the new name is taken."""
        old, new = self._full(directory), self._full(to)
        with disk_errors("rename", old):
            _side_by_side(_sync_directory, _make_directories([os.path.dirname(new)]))
            try:
                os.rename(old, new)
            except OSError as error:
                if error.errno in _NAME_IS_TAKEN:
                    return False
                raise
            for parent in {os.path.dirname(old), os.path.dirname(new)}:
                _sync_directory(parent)
        return True

    def local_path(self, path: str) -> Path:
        """The file itself."""
        return _path(self._full(path))

    def sub(self, prefix: str) -> LocalStore:
        """The same directory tree, rooted at `prefix`."""
        return LocalStore(self._full(prefix), self.origin)

    @property
    def _folder(self) -> str:
        refuse_forked_child()
        if self.origin is not None:
            self.origin.check()
        return self.root

    def _full(self, path: str) -> str:
        return os.path.join(self._folder, check_path(path))

    @contextmanager
    def _reading(self, full: str) -> Iterator[None]:
        """A block that reads a file. Errors name it."""
        with disk_errors("read", full):
            try:
                yield
            except FileNotFoundError:
                if self.origin is not None and os.path.isdir(self.origin.root):
                    self.origin.check_file(full)
                raise

    def _entries(self, directory: str) -> builtins.list[os.DirEntry[str]]:
        full = self._full(directory) if directory else self._folder
        with disk_errors("list", full):
            try:
                with os.scandir(full) as entries:
                    return [*entries]
            except (FileNotFoundError, NotADirectoryError):
                return []


@dataclass(frozen=True)
class _UploadingStore(LocalStore):
    """A directory whose files are written in the background."""

    uploads: Uploads = field(default_factory=Uploads, repr=False, compare=False)

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Start writing several whole files."""
        self.uploads.begin(partial(LocalStore(self.root).put_all, files))

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files, once no write is in progress."""
        self.uploads.wait()
        super().delete(paths)


@contextmanager
def _temporary(full: str) -> Iterator[FileIO]:
    """A new file in the same directory as `full`, removed at the exit unless it was renamed."""
    directory, name = os.path.split(full)
    file = _create_file(os.path.join(directory, f".{name}.{uuid4().hex}.tmp"))
    try:
        with file:
            yield file
    finally:
        with suppress(FileNotFoundError):
            os.unlink(file.name)


def _create_file(full: str) -> FileIO:
    try:
        return FileIO(full, "xb")
    except FileNotFoundError:
        # Directories are created when the first file needs them. A check for each write would cost
        # more.
        _side_by_side(_sync_directory, _make_directories([os.path.dirname(full)]))
        return FileIO(full, "xb")


def _make_directories(directories: Iterable[str]) -> Collection[str]:
    """Create directories and their parents. Returns the directories that must be synced.

    If another writer created one first, its name may not be durable yet.
    """
    changed: dict[str, None] = {}
    for directory in directories:
        missing = []
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for each in reversed(missing):
            with disk_errors("write", each), suppress(FileExistsError):
                os.mkdir(each)
            changed[os.path.dirname(each)] = None
    return changed.keys()


def _side_by_side(sync: Callable[[T], None], items: Collection[T]) -> None:
    """Sync many items in parallel, because a disk handles waiting syncs together."""
    if len(items) < _SIDE_BY_SIDE_MIN:
        for item in items:
            sync(item)
        return
    side_by_side([partial(sync, item) for item in items], _SYNC_THREADS)


def _sync_file(written: tuple[FileIO, str]) -> None:
    file, full = written
    with disk_errors("write", full):
        os.fsync(file.fileno())


def _write(file: FileIO, data: bytes | memoryview) -> None:
    # A raw file may accept only a part. It is raw so that closing it has nothing left to write.
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _link(temporary: str, full: str) -> bool:
    """Give the complete file its final name. False if the name is taken."""
    try:
        os.link(temporary, full)
    except FileExistsError:
        # A network file system can do the link, lose the response and try again.
        return os.path.samefile(temporary, full)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise DataError(
            f"Cannot create {full}: this file system does not support hard links, which atomic "
            "commits require. Put the warehouse on another file system or in an object store"
        ) from error
    return True


def _sync_directory(directory: str) -> None:
    with disk_errors("write", directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_NAME_IS_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
_CHANGED_MEANWHILE = frozenset({errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST})
# How often a folder is deleted again that others change meanwhile.
_DELETIONS = 20
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS})
