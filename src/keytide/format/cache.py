"""The in-memory cache of a process: stored content that cannot change is read and decoded once.

There is one cache in two parts. `METADATA` has documents and deletion vectors. `FILES` has what
lookups keep of data files, limited by each reader according to its table. File names are unique
except for those of schemas and snapshots, which are reused after a drop, a rollback or a
fast-forward. For those, the cache key must say which one is meant, as `version_of` does for files
on local disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

from cachetools import LRUCache

from keytide.store import Store

T = TypeVar("T")


class Share:
    """Values by key, with the approximate bytes of each. The most recently used stay.

    Safe to share between threads. Values are shared, so they must not be changed.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._values: LRUCache[Hashable, tuple[Any, int]] = LRUCache(
            bytes_max, lambda value: value[1]
        )
        self._lock = Lock()

    def find(self, key: Hashable) -> Any:
        """The value of a key. None if it is not cached."""
        with self._lock:
            found = self._values.get(key)
        return None if found is None else found[0]

    def keep(self, key: Hashable, value: Any, size: int, bytes_max: int | None = None) -> None:
        """Cache a value of `size` bytes, and evict others that no longer fit.

        `bytes_max` is the caller's own limit. A larger value is not cached, and an existing value
        stays.
        """
        bound = self._bytes_max if bytes_max is None else min(bytes_max, self._bytes_max)
        with self._lock:
            if size > bound or key in self._values:
                return
            while self._values.currsize + size > bound:
                self._values.popitem()
            self._values[key] = (value, size)

    def load(self, key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """The value of a key. If it is not cached, `load` returns it with its bytes.

        Raises the errors of `load`.
        """
        with self._lock:
            found = self._values.get(key)
        if found is None:
            # Not under the lock: a slow store must not block lookups of other keys. Two threads may
            # load the same value, and get the same result.
            found = load()
            self.keep(key, *found)
        value: T = found[0]
        return value

    def drop(self, key: Hashable) -> None:
        """Remove a value, if it is cached."""
        with self._lock:
            self._values.pop(key, None)

    def forget(self) -> None:
        """Clear the cache, as in a new process."""
        with self._lock:
            self._values.clear()


class HashedOnce(tuple[Hashable, ...]):
    """A tuple whose hash is computed once: the part of a key that is the same in many lookups."""

    def __hash__(self) -> int:
        found: int | None = vars(self).get("_hash")
        if found is None:
            found = self._hash = super().__hash__()
        return found


METADATA = Share(512 << 20)
FILES = Share(1 << 62)  # there are many tables, and each sets the limit for all of them


def forget_files() -> None:
    """Clear all caches of files, as in a new process."""
    METADATA.forget()
    FILES.forget()


def version_of(store: Store, path: str) -> tuple[Hashable, ...]:
    """Identifies a file, also if another file replaces it on a local disk.

    Raises OSError if a local file does not exist.
    """
    local = store.local_path(path)
    if local is None:
        return (store.uri_of(path),)  # names are unique
    name = str(local)  # a string is hashed much faster than a path
    found = os.stat(name)
    return (name, found.st_ino, found.st_size, found.st_mtime_ns)
