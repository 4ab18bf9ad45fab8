"""A store that keeps local copies of immutable files that were read.

What is copied:

- A file that is read as a whole, or opened and not larger than `WHOLE_BYTES_MAX`. From then on it
  is a file on local disk, which readers map.
- The blocks of `BLOCK_BYTES` that were read from a larger file. A reader that needs a few columns
  waits only for these.

Everything else (files that can be overwritten, listings, sizes, existence checks, writes) goes to
the store. Writes do not fill the cache, because most written files are compacted away before they
are read.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import BinaryIO, TypeVar

import pyarrow as pa

from keytide.base.process import refuse_forked_child
from keytide.store.cache_folder import CacheFolder
from keytide.store.interface import ObjectInfo, SeekableReader, Store

T = TypeVar("T")

WHOLE_BYTES_MAX = 64 << 20
"""A file up to this size is fetched as a whole when it is opened. This takes about a second."""

BLOCK_BYTES = 1 << 20
"""The smallest part fetched of a larger file.

A request takes about as long as transferring this.
"""


@dataclass(frozen=True)
class CachedStore(Store):
    """The store `beneath`, with local copies of what was read.

    `never_changes` says whether the file with a given full name is immutable, for all readers and
    forever. It is pickled with the store. The name of a copy is a hash of the full name, so the
    folder contains no credentials. A copy can outlive a file that was lost or deleted in the store.
    Use `uncached` to find out what is really stored.
    """

    beneath: Store
    cache: CacheFolder
    never_changes: Callable[[str], bool]

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

    def uncached(self) -> Store:
        """The store beneath."""
        return self.beneath.uncached()

    # -- reading --------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """The whole file."""
        (data,) = self.read_all([path])
        return data

    def read_all(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """The whole files, in the order of `paths`. Missing copies are fetched in parallel."""
        names = [self._name(path) for path in paths]
        found = [None if name is None else self.cache.load(_key(name)) for name in names]
        lacking = [number for number, data in enumerate(found) if data is None]
        fetched = self.beneath.read_all([paths[number] for number in lacking]) if lacking else []
        for number, data in zip(lacking, fetched, strict=True):
            found[number], name = data, names[number]
            if name is not None:
                self.cache.keep(_key(name), data)
        return [data for data in found if data is not None]

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
        """A seekable file: the copy on local disk, or otherwise in memory or fetched in blocks."""
        name = self._name(path)
        if name is None:
            return self.beneath.open_input(path)
        # One thread fetches, and the others find the copy.
        with _FETCHING[hash(name) % len(_FETCHING)]:
            return self._opened(name) or self._fetched(name, path)

    def local_path(self, path: str) -> Path | None:
        """The copy on local disk if there is one. The caller must map it within some minutes."""
        name = self._name(path)
        if name is None:
            return self.beneath.local_path(path)
        local = self.cache.path_to_map(_key(name))
        return None if local is None else Path(local)

    def exists(self, path: str) -> bool:
        """Whether the store has a file of this name."""
        return self.beneath.exists(path)

    def size(self, path: str) -> int:
        """Length of the file in the store, in bytes."""
        return self.beneath.size(path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All files of the store below `prefix`."""
        return self.beneath.list(prefix)

    def list_names(self, directory: str = "") -> builtins.list[str]:
        """Sorted names of the store's files and directories directly below `directory`."""
        return self.beneath.list_names(directory)

    def polars_options(self) -> Mapping[str, str] | None:
        """Storage options with which Polars reads `uri_of` a file directly, without the cache."""
        return self.beneath.polars_options()

    def sub(self, prefix: str) -> CachedStore:
        """The same store and cache, rooted at the directory `prefix`."""
        return replace(self, beneath=self.beneath.sub(prefix))

    # -- writing --------------------------------------------------------------------------------

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file of the store."""
        self.forget([path])
        return self.beneath.open_output(path)

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file to the store."""
        self.beneath.put(path, data)
        self.forget([path])

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Write several whole files to the store."""
        self.beneath.put_all(files)
        self.forget(files)

    def copy(self, path: str, to: str) -> None:
        """Give a file of the store a second name."""
        self.beneath.copy(path, to)
        self.forget([to])

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file to the store if the name is free."""
        return self.beneath.create(path, data)

    def hint(self, path: str, data: bytes) -> None:
        """Replace a file of the store that readers do not depend on."""
        self.beneath.hint(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files from the store, and their copies from this cache."""
        gone = [*paths]
        self.beneath.delete(gone)
        self.forget(gone)

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files that nothing refers to from the store, on a best-effort basis."""
        gone = [*paths]
        self.beneath.discard(gone)
        self.forget(gone)

    def delete_tree(self, directory: str) -> None:
        """Remove a directory from the store. Copies of its files are evicted later."""
        self.beneath.delete_tree(directory)

    def forget(self, paths: Iterable[str]) -> None:
        """Remove local copies, so that the next read fetches the files again."""
        for name in map(self._name, paths):
            if name is None:
                continue
            noted = self.cache.load(_size_key(name))
            blocks = 0 if noted is None else -(-int(noted) // BLOCK_BYTES)
            for key in (_key(name), _size_key(name), *(_block_key(name, b) for b in range(blocks))):
                self.cache.drop(key)

    # -- helpers --------------------------------------------------------------------------------

    def _name(self, path: str) -> str | None:
        """The full name of an immutable file, otherwise None."""
        refuse_forked_child()
        name = self.beneath.uri_of(path)
        return name if self.never_changes(name) else None

    def _opened(self, name: str) -> pa.NativeFile | None:
        """The copy of a file, complete or as blocks, as an open file."""
        local = self.cache.path(_key(name))
        if local is not None:
            with suppress(OSError):  # it was evicted just now
                return pa.OSFile(local, "rb")
        return None

    def _fetched(self, name: str, path: str) -> pa.NativeFile:
        noted = self.cache.load(_size_key(name))
        if noted is not None:
            return _by_blocks(self, path, name, int(noted), None)
        file = self.beneath.open_input(path)
        size = file.size()
        if size > WHOLE_BYTES_MAX and self.cache.takes(BLOCK_BYTES):
            self.cache.keep(_size_key(name), b"%d" % size)
            return _by_blocks(self, path, name, size, file)
        if size > WHOLE_BYTES_MAX or not self.cache.takes(size):
            return file
        with file:
            data = file.read_buffer(size)
        if len(data) == size:
            self.cache.keep(_key(name), memoryview(data))
        return pa.BufferReader(data)


def _by_blocks(
    store: CachedStore, path: str, name: str, size: int, far: pa.NativeFile | None
) -> pa.NativeFile:
    return pa.PythonFile(_BlockReader(store, path, name, size, far), mode="r")


class _BlockReader(SeekableReader):
    """A seekable view of a large file, whose blocks come from the cache or from the store.

    Adjacent missing blocks are fetched in one request. `far` is the store's file if it is already
    open. Otherwise the first missing block opens it.
    """

    def __init__(
        self, store: CachedStore, path: str, name: str, size: int, far: pa.NativeFile | None
    ) -> None:
        super().__init__(size)
        self._store = store
        self._path = path
        self._name = name
        self._far = far
        self._last = (-1, b"")
        """The last block that was read, because readers of footers continue with adjacent bytes."""

    def bytes_at(self, position: int, length: int) -> bytes:
        first, last = position // BLOCK_BYTES, (position + length - 1) // BLOCK_BYTES
        start = position - first * BLOCK_BYTES
        return b"".join(self._blocks(first, last))[start : start + length]

    def close(self) -> None:
        if self._far is not None:
            self._far.close()
        super().close()

    def _blocks(self, first: int, last: int) -> builtins.list[bytes]:
        found = {number: self._kept(number) for number in range(first, last + 1)}
        number = first
        while number <= last:
            end = number
            while end <= last and found[end] is None:
                end += 1
            if end > number:
                found.update(zip(range(number, end), self._fetch(number, end), strict=True))
            number = end + 1
        blocks = [block for block in found.values() if block is not None]
        self._last = (last, blocks[-1])
        return blocks

    def _kept(self, number: int) -> bytes | None:
        if self._last[0] == number:
            return self._last[1]
        return self._store.cache.load(_block_key(self._name, number))

    def _fetch(self, first: int, end: int) -> builtins.list[bytes]:
        """The blocks from `first` up to `end`, in one request."""
        if self._far is None:
            self._far = self._store.beneath.open_input(self._path)
        self._far.seek(first * BLOCK_BYTES)
        wanted = min(end * BLOCK_BYTES, self.size) - first * BLOCK_BYTES
        data = self._far.read(wanted)
        blocks = [
            data[start : start + BLOCK_BYTES]
            for start in range(0, (end - first) * BLOCK_BYTES, BLOCK_BYTES)
        ]
        for number, block in enumerate(blocks, start=first):
            if len(data) == wanted:
                self._store.cache.keep(_block_key(self._name, number), block)
        return blocks


def _key(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


# A path cannot contain a NUL character.
def _size_key(name: str) -> str:
    return _key(f"{name}\0size")


def _block_key(name: str, number: int) -> str:
    return _key(f"{name}\0{number}")


_FETCHING = tuple(Lock() for _ in range(1024))
