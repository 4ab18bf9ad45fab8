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

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import refuse_forked_child
from keytide.store.cache_folder import CacheFolder
from keytide.store.interface import PassingStore, SeekableReader, Store

WHOLE_BYTES_MAX = 64 << 20
"""A file up to this size is fetched as a whole when it is opened. This takes about a second."""

BLOCK_BYTES = 1 << 20
"""The smallest part fetched of a larger file.

A request takes about as long as transferring this.
"""


@dataclass(frozen=True)
class CachedStore(PassingStore):
    """The store `beneath`, with local copies of what was read.

    `never_changes` says whether the file with a given full name is immutable, for all readers and
    forever. It is pickled with the store. The name of a copy is a hash of the full name, so the
    folder contains no credentials. A copy can outlive a file that was lost or deleted in the store.
    Use `uncached` to find out what is really stored. Copies of what `delete_tree` removes are
    evicted later. What asks for names, sizes or Polars' own options goes to the store, without the
    cache.
    """

    cache: CacheFolder
    never_changes: Callable[[str], bool]

    def uncached(self) -> Store:
        """The store beneath."""
        return self.beneath.uncached()

    # -- reading --------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """The whole file."""
        (data,) = self.read_all([path])
        return data

    def read_all(self, paths: Sequence[str]) -> list[bytes]:
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

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file: the copy on local disk, or otherwise in memory or fetched in blocks."""
        name = self._name(path)
        if name is None:
            return self.beneath.open_input(path)
        # One thread fetches, and the others find the copy.
        with _FETCHING[hash(name) % len(_FETCHING)]:
            local = self.cache.path(_key(name))
            if local is not None:
                with suppress(OSError):  # it was evicted just now
                    return pa.OSFile(local, "rb")
            return self._fetched(name, path)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Bytes of a file, from its copy or its blocks."""
        return Store.read_ranges(self, path, ranges)

    def local_path(self, path: str) -> Path | None:
        """The copy on local disk if there is one. The caller must map it within some minutes."""
        name = self._name(path)
        if name is None:
            return self.beneath.local_path(path)
        local = self.cache.path_to_map(_key(name))
        return None if local is None else Path(local)

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

    def _fetched(self, name: str, path: str) -> pa.NativeFile:
        noted = self.cache.load(_size_key(name))
        if noted is not None:
            return pa.PythonFile(_BlockReader(self, path, name, int(noted), None), mode="r")
        file = self.beneath.open_input(path)
        size = file.size()
        if size > WHOLE_BYTES_MAX and self.cache.takes(BLOCK_BYTES):
            self.cache.keep(_size_key(name), b"%d" % size)
            return pa.PythonFile(_BlockReader(self, path, name, size, file), mode="r")
        if size > WHOLE_BYTES_MAX or not self.cache.takes(size):
            return file
        with file:
            data = file.read_buffer(size)
        if len(data) == size:
            self.cache.keep(_key(name), memoryview(data))
        return pa.BufferReader(data)


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

    def _blocks(self, first: int, last: int) -> list[bytes]:
        last_number, last_block = self._last
        found: dict[int, bytes | None] = {
            number: last_block
            if number == last_number
            else self._store.cache.load(_block_key(self._name, number))
            for number in range(first, last + 1)
        }
        number = first
        while number <= last:
            end = number
            while end <= last and found[end] is None:
                end += 1
            if end > number:
                # The blocks from `number` up to `end`, in one request.
                if self._far is None:
                    self._far = self._store.beneath.open_input(self._path)
                begin = number * BLOCK_BYTES
                self._far.seek(begin)
                wanted = min(end * BLOCK_BYTES, self.size) - begin
                data = self._far.read(wanted)
                for place in range(number, end):
                    start = place * BLOCK_BYTES - begin
                    block = found[place] = data[start : start + BLOCK_BYTES]
                    if len(data) == wanted:
                        self._store.cache.keep(_block_key(self._name, place), block)
            number = end + 1
        blocks = [block for block in found.values() if block is not None]
        self._last = (last, blocks[-1])
        return blocks


def _key(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


# A path cannot contain a NUL character.
def _size_key(name: str) -> str:
    return _key(f"{name}\0size")


def _block_key(name: str, number: int) -> str:
    return _key(f"{name}\0{number}")


_FETCHING = tuple(Lock() for _ in range(1024))
