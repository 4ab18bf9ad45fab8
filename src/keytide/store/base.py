"""A store keeps the files of a warehouse under '/'-separated paths, relative to its root.

Stores have few abilities, chosen so that a commit needs nothing else:

- files appear whole or under a name that nobody reads yet, and are durable on return;
- `create` gives a name to exactly one of many racing callers: that is the commit;
- everything else (`put`, `open_output`) writes names that no other writer uses.

Directories are only what paths have in common: writing makes them, and a directory without
files need not be there at all.

A store is a small picklable value. Opened files, connections and credentials that come from the
environment do not travel with it.
"""

from __future__ import annotations

import builtins
import errno
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa

from keytide.errors import DataError, InvalidError, KeytideError, UnsupportedError

__all__ = [
    "ObjectInfo",
    "Store",
    "buffered",
    "check_path",
    "created",
    "disk_errors",
    "storage_error",
]


T = TypeVar("T")


@dataclass(frozen=True)
class ObjectInfo:
    """One stored file: its path in the store, size in bytes, and time of last change."""

    path: str
    size: int
    modified_ms: int


class Store(ABC):
    """Files under one root.

    Every method raises `DataError` when the storage fails or a file that must exist is missing
    (then caused by `FileNotFoundError`), and `InvalidError` for a path that leaves the root.
    Safe to use from many threads; a pickled copy works in another process, except for the
    in-memory store, whose files stay in their process.
    """

    @property
    @abstractmethod
    def uri(self) -> str:
        """The root, as people and `open_store` write it. Holds no credentials."""

    @property
    def identity(self) -> Hashable:
        """What tells the store from any other: equal for stores that have the same files.

        For keys in memory alone: credentials may be among it.
        """
        return self.uri

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole file."""

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        """What some calls give, in their order; they run side by side where a request is slow.

        Raises what the first of them raises, once those that have begun have ended.
        """
        return [call() for call in calls]

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """A call that may be under way when this returns, where a request is slow, or is done."""
        future: Future[T] = Future()
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        return future

    def uploading(self) -> tuple[Store, Callable[[], None]]:
        """The store as one whose new files may be under way, and what waits until none is.

        Other than `put`, `put_all` and `open_output` may return before a file is durable, or is
        known to have failed: the call that waits raises that. Does not pickle.
        """
        return self, lambda: None

    def read_all(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """The whole files, in the order of `paths`; side by side where a request is slow."""
        return self.together([partial(self.read, path) for path in paths])

    def read_present(self, paths: Sequence[str]) -> builtins.list[bytes | None]:
        """As `read_all`, with None in the place of a file that is not there."""
        return self.together([partial(_read_if_there, self, path) for path in paths])

    @abstractmethod
    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file for Parquet readers; close it after use."""

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """Bytes of a file, from the begin to the end of each range; fewer where the file ends.

        Side by side where a request is slow.
        """
        with disk_errors("read", self.uri_of(path)), self.open_input(path) as file:
            return [_range(file, begin, end) for begin, end in ranges]

    @abstractmethod
    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file, durable after a clean exit, gone after an exception.

        REQUIRES: nobody else uses the name. Readers may see the file half written (local disk)
        or not at all (object stores) until the exit. Writers may close the file themselves.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a whole file, durable on return. Replaces a file of that name in one step."""

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Write several whole files, all durable on return; cheaper than one `put` for each.

        After an error any of them may be there or not.
        """
        for path, data in files.items():
            self.put(path, data)

    @abstractmethod
    def copy(self, path: str, to: str) -> None:
        """Give a file one more name, durable on return; what becomes of one leaves the other alone.

        The content does not pass through this process. REQUIRES: nobody uses the new name.
        """

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file if the name is free: True for exactly one of many racing callers.

        The file is never visible half written, and durable when the result is True. False: the
        name is taken. After a `DataError` the outcome is unknown: read the name back.
        """

    @abstractmethod
    def hint(self, path: str, data: bytes) -> None:
        """Replace a file that readers can do without. A failing storage is ignored.

        Where the directory above its own is not there, nor does anybody need it.
        """

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether a file (not a directory) has this name."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Length of the file in bytes."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All files below the directory `prefix`, at any depth, in no promised order.

        Files that come or go meanwhile may or may not be included.
        """

    @abstractmethod
    def list_names(self, directory: str = "") -> builtins.list[str]:
        """Sorted names of the files and directories directly below `directory`."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Remove files. A file that is already gone is no error."""

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files that nobody names, as far as that can be done.

        What is left over harms nobody; orphan cleaning finds it.
        """
        try:
            self.delete(paths)
        except DataError:
            return

    @abstractmethod
    def delete_tree(self, directory: str) -> None:
        """Remove a directory with all that is below it. No error when it is already gone."""

    def delete_empty(self, directory: str) -> None:  # noqa: B027  # most stores know no directories
        """Remove a directory, and those below it, as far as there are no files in them."""

    def rename_tree(self, directory: str, to: str) -> bool:
        """Give a directory another name, in one step for all that is below it; durable on return.

        False: something has the name. Raises `UnsupportedError` for a store that has no such step.
        """
        raise UnsupportedError(
            f"Cannot rename {self.uri_of(directory)}: an object store knows no folders and renames "
            f"nothing, each file would have to be copied, and whoever reads or writes meanwhile "
            f"would see a part of them; copy the rows into a new table"
        )

    @abstractmethod
    def local_path(self, path: str) -> Path | None:
        """The file on local disk, for readers that map files themselves; else None."""

    def polars_options(self) -> Mapping[str, str] | None:
        """Storage options with which Polars reads `uri_of` a file by itself.

        Credentials may be among them. None: it cannot, and the bytes must come through here.
        """
        return None

    def uncached(self) -> Store:
        """The store itself, for whoever wants to know what is stored: no copies near the reader."""
        return self

    def forget(self, paths: Iterable[str]) -> None:  # noqa: B027  # most stores have none
        """Remove copies near the reader, if any, so that the next read of these files is anew."""

    @abstractmethod
    def sub(self, prefix: str) -> Store:
        """The same store, rooted at the directory `prefix`."""

    def uri_of(self, path: str) -> str:
        """The full name of a file, for messages and for other engines."""
        return f"{self.uri.rstrip('/')}/{path}"


def _range(file: pa.NativeFile, begin: int, end: int) -> bytes:
    file.seek(min(begin, file.size()))
    found: bytes = file.read(end - begin)
    return found


def _read_if_there(store: Store, path: str) -> bytes | None:
    try:
        return store.read(path)
    except DataError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def created(store: Store, path: str, data: bytes) -> bool:
    """As `Store.create`, and after an error the name is read back to learn the outcome.

    Then True where it holds these bytes: whoever wrote them said the same. Raises the `DataError`
    of the creation where it holds others or none.
    """
    try:
        return store.create(path, data)
    except DataError:
        if store.exists(path) and store.read(path) == data:
            return True
        raise


def check_path(path: str) -> str:
    """Return `path` when it names something inside a store, else raise `InvalidError`."""
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidError(
            f"{path!r} is not a path inside a store; give names separated by single '/', "
            "without '.', '..' and NUL, relative to the store's root"
        )
    return path


def storage_error(action: str, uri: str, cause: OSError) -> DataError:
    """The error to raise, from `cause`, when `action` on `uri` failed."""
    if isinstance(cause, FileNotFoundError):
        return DataError(
            f"Cannot {action} {uri}: it does not exist. Check the path; if a table's metadata "
            "names this file, the snapshot has expired since: read a newer one"
        )
    reason = cause.strerror or str(cause)
    way_out = _WAYS_OUT.get(cause.errno or 0, "Check the disk and the path, then try again")
    return DataError(f"Cannot {action} {uri}: {reason}. {way_out}")


@contextmanager
def disk_errors(action: str, uri: str) -> Iterator[None]:
    """Turn any `OSError` of the body into the `DataError` for `action` on `uri`."""
    try:
        yield
    except KeytideError:
        raise
    except OSError as error:
        raise storage_error(action, uri, error) from error


@contextmanager
def buffered(write: Callable[[memoryview], object]) -> Iterator[BinaryIO]:
    """A file whose content goes to `write` in large pieces, the last one at a clean exit.

    A piece is valid only during the call. What `write` raises is raised by the `with` statement,
    even where the code that uses the file wraps or swallows it, as Parquet writers do.
    """
    sink = _Sink(write)
    file = io.BufferedWriter(sink, _BUFFER_BYTES)
    try:
        yield file
        file.close()
    except Exception:
        if sink.failure is None:
            raise
    finally:
        # After an exception the rest of the buffer must not follow, not even at collection.
        sink.close()
    if sink.failure is not None:
        raise sink.failure


class _Sink(io.RawIOBase):
    """The raw end of `buffered`."""

    def __init__(self, write: Callable[[memoryview], object]) -> None:
        self.failure: BaseException | None = None
        self._write = write
        self._position_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position_bytes

    def write(self, data: Any, /) -> int:
        try:
            with memoryview(data) as piece:
                self._write(piece)
                self._position_bytes += piece.nbytes
                return piece.nbytes
        except BaseException as error:
            self.failure = self.failure or error
            raise


# Parquet's writer hands over many small pieces; a disk or a request should see few large ones.
_BUFFER_BYTES = 1 << 18

_PERMISSION = "Give this user the right to read and write there"
_WAYS_OUT = {
    errno.ENOSPC: "Free some space, then try again",
    errno.EDQUOT: "Free some space or raise the quota, then try again",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f), then try again",
    errno.EMFILE: "Raise the limit on open files (ulimit -n), then try again",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "The file system is mounted read-only: choose another directory",
    errno.ENAMETOOLONG: "Choose shorter names",
}
