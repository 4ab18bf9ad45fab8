"""The interface of stores, which keep files under '/'-separated paths, relative to their root.

Stores have few operations, and a commit needs no others:

- A file becomes visible as a whole, or under a name that nobody reads yet. It is durable on return.
- `create` gives a name to exactly one of several racing callers. This is the commit.
- All other writes (`put`, `open_output`) use names that no other writer uses.

Directories are only common prefixes of paths. Writing a file creates them, and a directory without
files may not exist.

A store is a small value that can be pickled. Open files, connections and credentials from the
environment are not pickled.

Seekable files can be on top of any function that reads byte ranges.

Exactly one of several writers creates an object, with conditional puts. The response to a
successful put can be lost. The next attempt then finds that the name is taken, by its own object.
Therefore a failed attempt leaves the outcome open until the content of the object is read. Writers
that must be distinguished from each other must write different content.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import begin
from keytide.errors import DataError, InvalidError, KeytideError, UnsupportedError

# -- the interface ---------------------------------------------------------------------------------


T = TypeVar("T")
_RESULTS_MAX = 256


@dataclass(frozen=True)
class ObjectInfo:
    """One stored file: its path in the store, size in bytes, and time of last change."""

    path: str
    size: int
    modified_ms: int


class Store(ABC):
    """Files under one root.

    Every method raises `DataError` when the storage fails or when a required file is missing (then
    caused by `FileNotFoundError`), and `InvalidError` for a path outside the root. Safe to use from
    several threads. A pickled copy works in another process, except for the in-memory store, whose
    files stay in their process.
    """

    @property
    @abstractmethod
    def uri(self) -> str:
        """The root, in the form that people and `open_store` use. Contains no credentials."""

    @property
    def identity(self) -> Hashable:
        """Identifies the files of a store: equal for stores that have the same files.

        It is only used for in-memory keys, because it can contain credentials.
        """
        return self.uri

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole file."""

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        """Run several calls, and return their results in order.

        They run in parallel if requests to the store are slow. Raises the error of the first call
        that fails, once all started calls have ended.
        """
        return [call() for call in calls]

    def each(self, calls: Iterable[Callable[[], T]]) -> Iterator[T]:
        """As `together`, for any number of calls: at most 256 results are in memory at a time."""
        left = iter(calls)
        while some := list(islice(left, _RESULTS_MAX)):
            yield from self.together(some)

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Run a call. If requests to the store are slow, it can still be running on return."""
        future: Future[T] = Future()
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        return future

    def uploading(self) -> tuple[Store, Callable[[], None]]:
        """A view of the store that uploads in the background, and a function that waits for
        uploads.

        Unlike in other stores, `put`, `put_all` and `open_output` can return before a file is
        durable or before an error is known. The waiting function raises that error. Cannot be
        pickled.
        """
        return self, lambda: None

    def read_all(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """The whole files, in the order of `paths`. Read in parallel if requests are slow."""
        return self.together([partial(self.read, path) for path in paths])

    def read_present(self, paths: Sequence[str]) -> builtins.list[bytes | None]:
        """Like `read_all`, with None for a file that does not exist."""
        return self.together([partial(_read_if_there, self, path) for path in paths])

    @abstractmethod
    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file for Parquet readers. The caller must close it."""

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """The bytes of a file from the start to the end of each range, fewer at the end of the
        file.

        Read in parallel if requests are slow.
        """
        with disk_errors("read", self.uri_of(path)), self.open_input(path) as file:
            found: builtins.list[bytes] = []
            for start, end in ranges:
                file.seek(min(start, file.size()))
                found.append(file.read(end - start))
            return found

    @abstractmethod
    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file, durable after a clean exit, and removed after an exception.

        REQUIRES: nobody else uses the name. Before the exit, readers may see a part of the file
        (local disk) or no file (object stores). Writers may close the file themselves.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a whole file, durable on return. Replaces an existing file atomically."""

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Write several whole files, all durable on return. Cheaper than one `put` for each.

        After an error, each of them may or may not exist.
        """
        for path, data in files.items():
            self.put(path, data)

    @abstractmethod
    def copy(self, path: str, to: str) -> None:
        """Give a file a second name, durable on return. Deleting one of them does not affect the
        other.

        The content does not pass through this process. REQUIRES: nobody uses the new name.
        """

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file if the name is free. True for exactly one of several racing callers.

        The file is never visible in part, and is durable when the result is True. False means that
        the name is taken. After a `DataError` the outcome is unknown: read the file to find out.
        """

    @abstractmethod
    def hint(self, path: str, data: bytes) -> None:
        """Replace a file that readers do not depend on. Errors of the storage are ignored.

        Nothing is written if the parent of the file's directory does not exist.
        """

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether a file (not a directory) has this name."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Length of the file in bytes."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All files below the directory `prefix`, at any depth, in no particular order.

        Files that are created or deleted meanwhile may or may not be included.
        """

    @abstractmethod
    def list_names(self, directory: str = "") -> builtins.list[str]:
        """Sorted names of the files and directories directly below `directory`."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Remove files. A file that does not exist is no error."""

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files that nothing refers to, on a best-effort basis.

        Remaining files do no harm, and orphan cleaning finds them.
        """
        try:
            self.delete(paths)
        except DataError:
            return

    @abstractmethod
    def delete_tree(self, directory: str) -> None:
        """Remove a directory and everything below it. No error if it does not exist."""

    def delete_empty(self, directory: str) -> None:  # noqa: B027  # most stores know no directories
        """Remove a directory and those below it, except directories that contain files."""

    def rename_tree(self, directory: str, to: str) -> bool:
        """Rename a directory atomically with everything below it, durable on return.

        False if the new name is taken. Raises `UnsupportedError` for a store that cannot rename
        atomically.
        """
        raise UnsupportedError(
            f"Cannot rename {self.uri_of(directory)}: an object store cannot rename folders; "
            "every file would have to be copied, and concurrent readers and writers would see "
            "only some of them. Copy the rows to a new table"
        )

    @abstractmethod
    def local_path(self, path: str) -> Path | None:
        """The file on local disk, for readers that map it into memory, otherwise None."""

    def polars_options(self) -> Mapping[str, str] | None:
        """Storage options with which Polars reads `uri_of` a file directly.

        They can contain credentials. None means that Polars cannot, and must get the bytes from
        this store.
        """
        return None

    def uncached(self) -> Store:
        """The store without local copies, to find out what is really stored."""
        return self

    def forget(self, paths: Iterable[str]) -> None:  # noqa: B027  # most stores have none
        """Remove local copies of files, if any, so that the next read fetches them again."""

    @abstractmethod
    def sub(self, prefix: str) -> Store:
        """The same store with the directory `prefix` as its root."""

    def uri_of(self, path: str) -> str:
        """The full name of a file, for messages and for other engines."""
        return f"{self.uri.rstrip('/')}/{path}"


@dataclass(frozen=True)
class PassingStore(Store):
    """A store that passes on to the store `beneath` what it does not do in another way."""

    beneath: Store

    def _path(self, path: str) -> str:
        """The path in the store beneath."""
        return path

    def _changed(self, path: str) -> str:
        """The same for a file that is written or deleted. May raise `UnsupportedError`."""
        return self._path(path)

    @property
    def uri(self) -> str:
        """The address of the store beneath."""
        return self.beneath.uri

    @property
    def identity(self) -> Hashable:
        """The identity of the store beneath, which has the same files."""
        return self.beneath.identity

    def uri_of(self, path: str) -> str:
        """The full name of a file."""
        return self.beneath.uri_of(path)

    def read(self, path: str) -> bytes:
        """The whole file."""
        return self.beneath.read(self._path(path))

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        """Run several calls, in parallel if the store beneath does so."""
        return self.beneath.together(calls)

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Run a call, which can still be running on return if the store beneath does so."""
        return self.beneath.begin(call)

    def uploading(self) -> tuple[Store, Callable[[], None]]:
        """A view that uploads in the background, and a function that waits for the uploads."""
        beneath, settle = self.beneath.uploading()
        return replace(self, beneath=beneath), settle

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file."""
        return self.beneath.open_input(self._path(path))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """Bytes of a file."""
        return self.beneath.read_ranges(self._path(path), ranges)

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file."""
        return self.beneath.open_output(self._changed(path))

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        self.beneath.put(self._changed(path), data)

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Write several whole files."""
        self.beneath.put_all({self._changed(path): data for path, data in files.items()})

    def copy(self, path: str, to: str) -> None:
        """Give a file a second name."""
        self.beneath.copy(self._path(path), self._changed(to))

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file if the name is free."""
        return self.beneath.create(self._changed(path), data)

    def hint(self, path: str, data: bytes) -> None:
        """Replace a file that readers do not depend on."""
        self.beneath.hint(self._path(path), data)

    def exists(self, path: str) -> bool:
        """Whether a file has this name."""
        return self.beneath.exists(self._path(path))

    def size(self, path: str) -> int:
        """Length of the file in bytes."""
        return self.beneath.size(self._path(path))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All files below `prefix`."""
        return self.beneath.list(self._path(prefix))

    def list_names(self, directory: str = "") -> builtins.list[str]:
        """Sorted names directly below `directory`."""
        return self.beneath.list_names(self._path(directory))

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files."""
        self.beneath.delete([self._changed(path) for path in paths])

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files that nothing refers to, on a best-effort basis."""
        self.beneath.discard([self._changed(path) for path in paths])

    def delete_tree(self, directory: str) -> None:
        """Remove a directory and everything below it."""
        self.beneath.delete_tree(self._changed(directory))

    def local_path(self, path: str) -> Path | None:
        """The file on local disk, otherwise None."""
        return self.beneath.local_path(self._path(path))

    def polars_options(self) -> Mapping[str, str] | None:
        """Storage options with which Polars reads `uri_of` a file directly."""
        return self.beneath.polars_options()

    def uncached(self) -> Store:
        """The same without local copies."""
        beneath = self.beneath.uncached()
        return self if beneath is self.beneath else replace(self, beneath=beneath)

    def forget(self, paths: Iterable[str]) -> None:
        """Remove local copies."""
        self.beneath.forget([self._path(path) for path in paths])

    def sub(self, prefix: str) -> Store:
        """The folder below."""
        return self.beneath.sub(self._path(prefix))


def _read_if_there(store: Store, path: str) -> bytes | None:
    try:
        return store.read(path)
    except DataError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def created(store: Store, path: str, data: bytes) -> bool:
    """Like `Store.create`, but after an error, read the file to find out the outcome.

    Returns True if it contains these bytes, whoever wrote them. Otherwise raises the `DataError` of
    the creation.
    """
    try:
        return store.create(path, data)
    except DataError:
        if store.exists(path) and store.read(path) == data:
            return True
        raise


def check_path(path: str) -> str:
    """Return `path` if it names something inside a store, otherwise raise `InvalidError`."""
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidError(
            f"{path!r} is not a valid path inside a store; use names separated by single '/', "
            "without '.', '..' and NUL, relative to the store's root"
        )
    return path


def storage_error(action: str, uri: str, cause: OSError) -> DataError:
    """The error for an `action` on `uri` that failed because of `cause`."""
    if isinstance(cause, FileNotFoundError):
        return DataError(
            f"Cannot {action} {uri}: it does not exist. Check the path. If a table's metadata "
            "refers to this file, the snapshot has expired: read a newer one"
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
    """A file that passes its content to `write` in large pieces, the last one at a clean exit.

    A piece is valid only during the call. The `with` statement raises what `write` raises, even if
    the code that uses the file wraps or hides the error, as Parquet writers do.
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
        # After an exception the rest of the buffer must not be written, not even by garbage
        # collection.
        sink.close()
    if sink.failure is not None:
        raise sink.failure


class _Sink(io.RawIOBase):
    """The raw file below `buffered`."""

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


# Parquet's writer passes many small pieces, but a disk or a request should get few large ones.
_BUFFER_BYTES = 1 << 18

_PERMISSION = "Give this user read and write permission"
_WAYS_OUT = {
    errno.ENOSPC: "Free some space, then try again",
    errno.EDQUOT: "Free some space or increase the quota, then try again",
    errno.EFBIG: "Increase the limit on file sizes (ulimit -f), then try again",
    errno.EMFILE: "Increase the limit on open files (ulimit -n), then try again",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "The file system is mounted read-only: choose another directory",
    errno.ENAMETOOLONG: "Use shorter names",
}


# -- seekable files --------------------------------------------------------------------------------


class SeekableReader(io.RawIOBase):
    """A file of `size` bytes for readers that seek. Not safe for several threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._position = 0

    @abstractmethod
    def bytes_at(self, position: int, length: int) -> bytes:
        """`length` bytes, at least one and none beyond the end. Fewer if the file is truncated."""

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position of the next read. It cannot be negative."""
        origin = (0, self._position, self.size)[whence]
        self._position = max(0, origin + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Bytes from the position, up to the end of the file."""
        left = max(0, self.size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        found = self.bytes_at(self._position, length) if length else b""
        self._position += len(found)
        return found

    def readinto(self, target: Any, /) -> int:
        """Read into a buffer."""
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)


# -- creation by one of several writers ------------------------------------------------------------


# Errors that another attempt would only repeat.
_DEFINITE = (
    InvalidPathError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    FileNotFoundError,
    PermissionError,
)
_TAKEN = (AlreadyExistsError, FileExistsError)


def claim(
    put: Callable[[], object],
    read: Callable[[], bytes | None],
    data: bytes,
    pauses: Iterator[float],
    wait: Callable[[float], None],
) -> bool:
    """Whether this caller got the name. `put` writes `data` if there is no object, otherwise
    raises.

    `read` returns the existing object. A failed put is repeated after each of `pauses`, in seconds,
    and the last failure is raised. If a put is refused although there is no object, it met another
    put in progress, or an object that was deleted since. It is also repeated.
    """
    is_in_doubt = False
    while True:
        try:
            put()
            return True
        except _TAKEN as refused:
            found = read()
            if found is not None:
                return is_in_doubt and found == data
            error: Exception = refused
        except _DEFINITE:
            raise
        except (BaseError, OSError) as failed:
            is_in_doubt = True
            error = failed
        pause = next(pauses, None)
        if pause is None:
            raise error
        wait(pause)


def honours_claims(put: Callable[[], object]) -> bool:
    """Whether a service refuses a second object with the same name, which `put` writes.

    Some services with the S3 protocol ignore the condition or do not know it. See `claim`.
    """
    try:
        put()
        put()
    except _TAKEN:
        return True
    except (BaseError, OSError) as error:
        if _NOT_IMPLEMENTED in str(error):
            return False
        raise
    return False


_NOT_IMPLEMENTED = "501 Not Implemented"


# Each holds at most one part of an upload in memory.
_UNDER_WAY_MAX = 16


class Uploads:
    """Writes in threads, with a limit on how many run in parallel.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._begun: list[Future[None]] = []
        self._room = BoundedSemaphore(_UNDER_WAY_MAX)
        self._lock = Lock()

    def begin(self, write: Callable[[], None]) -> None:
        """Start a write, once fewer than the maximum are running."""
        self._room.acquire()
        future = begin(write)
        future.add_done_callback(lambda _: self._room.release())
        with self._lock:
            self._begun.append(future)

    def wait(self) -> None:
        """Wait until no write is running."""
        with self._lock:
            begun = list(self._begun)
        wait(begun)

    def settle(self) -> None:
        """Wait for all writes. Raises the error of the first one that failed, once."""
        with self._lock:
            begun, self._begun = self._begun, []
        wait(begun)
        for future in begun:
            future.result()
