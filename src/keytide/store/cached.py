"""A store whose files that never change are kept near the reader, once they have been read.

What is kept:

- a file that is read as a whole, or opened and no larger than `WHOLE_BYTES_MAX`: as it is, and from
  then on it is a file on local disk, which readers map;
- of a larger one that is opened, the blocks that reads touch, of `BLOCK_BYTES` each: whoever wants
  a few columns of it waits for no more than these.

Everything else (names that are written twice, listings, sizes, whether a file is there, writes) is
the store's own answer. Writes do not fill the cache: most of what is written is merged away before
it is read.
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

from keytide.process import refuse_forked_child
from keytide.store.base import ObjectInfo, Store
from keytide.store.cache_folder import CacheFolder
from keytide.store.seekable import SeekableReader

__all__ = ["BLOCK_BYTES", "WHOLE_BYTES_MAX", "CachedStore"]

T = TypeVar("T")

WHOLE_BYTES_MAX = 64 << 20
"""Up to here a file that is opened is fetched whole: about what comes in a second."""

BLOCK_BYTES = 1 << 20
"""Of larger ones, what is fetched at least. A request takes about as long as so many bytes."""


@dataclass(frozen=True)
class CachedStore(Store):
    """The store `beneath`, with a copy on local disk of what was read of it.

    `never_changes` says of the full name of a file whether it has the same bytes for ever, by
    whomever and whenever it is asked; it travels with a pickle. Copies are found by a hash of the
    full name, which holds no credentials, and neither does the folder. What the store has lost or
    deleted may still be read here: whoever wants to know what is stored asks `uncached`.
    """

    beneath: Store
    cache: CacheFolder
    never_changes: Callable[[str], bool]

    @property
    def uri(self) -> str:
        """The store's beneath."""
        return self.beneath.uri

    @property
    def identity(self) -> Hashable:
        """The store's beneath: it has the same files."""
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
        """The whole files, in the order of `paths`; what is not here is fetched side by side."""
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
        """What some calls give, side by side where the store does so."""
        return self.beneath.together(calls)

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """A call that may be under way where the store does so."""
        return self.beneath.begin(call)

    def uploading(self) -> tuple[Store, Callable[[], None]]:
        """The store as one whose new files may be under way, and what waits for them."""
        beneath, settle = self.beneath.uploading()
        return replace(self, beneath=beneath), settle

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file: on local disk once it was read, else in memory or fetched by blocks."""
        name = self._name(path)
        if name is None:
            return self.beneath.open_input(path)
        # One thread fetches, and the others find what it has kept.
        with _FETCHING[hash(name) % len(_FETCHING)]:
            return self._opened(name) or self._fetched(name, path)

    def local_path(self, path: str) -> Path | None:
        """The copy on local disk if there is one, for whoever maps it within some minutes."""
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
        """Storage options with which Polars reads `uri_of` a file by itself, past the cache."""
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
        """Give a file of the store one more name."""
        self.beneath.copy(path, to)
        self.forget([to])

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file to the store if the name is free."""
        return self.beneath.create(path, data)

    def hint(self, path: str, data: bytes) -> None:
        """Replace a file of the store that readers can do without."""
        self.beneath.hint(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files from the store, and their copies from this cache."""
        gone = [*paths]
        self.beneath.delete(gone)
        self.forget(gone)

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files that nobody names from the store, as far as that can be done."""
        gone = [*paths]
        self.beneath.discard(gone)
        self.forget(gone)

    def delete_tree(self, directory: str) -> None:
        """Remove a directory from the store; copies of its files go as they grow old."""
        self.beneath.delete_tree(directory)

    def forget(self, paths: Iterable[str]) -> None:
        """Remove the copies of files, so that the next read fetches them anew."""
        for name in map(self._name, paths):
            if name is None:
                continue
            noted = self.cache.load(_size_key(name))
            blocks = 0 if noted is None else -(-int(noted) // BLOCK_BYTES)
            for key in (_key(name), _size_key(name), *(_block_key(name, b) for b in range(blocks))):
                self.cache.drop(key)

    # -- helpers --------------------------------------------------------------------------------

    def _name(self, path: str) -> str | None:
        """The full name of a file that never changes, else None."""
        refuse_forked_child()
        name = self.beneath.uri_of(path)
        return name if self.never_changes(name) else None

    def _opened(self, name: str) -> pa.NativeFile | None:
        """What was kept of a file, all of it or blocks, as a file."""
        local = self.cache.path(_key(name))
        if local is not None:
            with suppress(OSError):  # it has just made room for another one
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
    """A seekable view of a large file, whose blocks come from the cache or else from the store.

    Blocks that lack side by side are one request. `far` is the store's own file, where it has been
    opened; else it is opened by the first read that lacks something.
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
        """The block that was read last: readers of footers go on with its neighbours."""

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
        """The blocks from `first` up to `end`, by one request."""
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


# No path has a NUL character in it.
def _size_key(name: str) -> str:
    return _key(f"{name}\0size")


def _block_key(name: str, number: int) -> str:
    return _key(f"{name}\0{number}")


_FETCHING = tuple(Lock() for _ in range(1024))
