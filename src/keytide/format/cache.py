"""What a process remembers of stored files: what cannot change is read and decoded once.

One cache in two shares. `METADATA` has documents and deletion vectors; `FILES` what look-ups keep
of data files, which each reader bounds as its table says. Names of files are unique but for those
of schemas and snapshots, which come back after a drop, a rollback or a fast-forward: whoever
remembers one of these says in its key which of them it means, as `version_of` does for files on
local disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from threading import Lock
from typing import Any, TypeVar

from cachetools import LRUCache

from keytide.store import Store

__all__ = ["FILES", "METADATA", "Share", "forget_files", "version_of"]

T = TypeVar("T")


class Share:
    """Values by key with about how many bytes each holds; those used last stay.

    Safe between threads. Values are shared, so nobody changes one.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._values: LRUCache[Hashable, tuple[Any, int]] = LRUCache(bytes_max, _size)
        self._lock = Lock()

    def find(self, key: Hashable) -> Any:
        """The value of a key; None where none is kept."""
        with self._lock:
            found = self._values.get(key)
        return None if found is None else found[0]

    def keep(self, key: Hashable, value: Any, size: int, bytes_max: int | None = None) -> None:
        """Keep a value that holds `size` bytes, and of all others as much as fits beside it.

        `bytes_max` is a bound of the caller's own. A value that is larger is not kept, and one that
        is kept already stays.
        """
        bound = self._bytes_max if bytes_max is None else min(bytes_max, self._bytes_max)
        with self._lock:
            if size > bound or key in self._values:
                return
            while self._values.currsize + size > bound:
                self._values.popitem()
            self._values[key] = (value, size)

    def keep_all(self, values: Mapping[Hashable, tuple[Any, int]]) -> None:
        """Keep values, such as those that this process wrote itself, each with its bytes."""
        for key, (value, size) in values.items():
            self.keep(key, value, size)

    def load(self, key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """The value of a key, which `load` gives with its bytes where none is kept.

        Raises what `load` raises.
        """
        with self._lock:
            found = self._values.get(key)
        if found is None:
            # Not under the lock: a slow store must not keep those waiting who look for something
            # else. Two may load the same value, and get the same.
            found = load()
            self.keep(key, *found)
        value: T = found[0]
        return value

    def forget(self) -> None:
        """Keep nothing, as a process that has just begun."""
        with self._lock:
            self._values.clear()


def _size(value: tuple[Any, int]) -> int:
    return value[1]


METADATA = Share(512 << 20)
FILES = Share(1 << 62)  # tables are many, and each says what may be kept of all


def forget_files() -> None:
    """Remember nothing of any file, as a process that has just begun."""
    METADATA.forget()
    FILES.forget()


def version_of(store: Store, path: str) -> tuple[Hashable, ...]:
    """What tells a file from any other, the one that takes its place on a local disk too.

    Raises OSError where a local file is not there.
    """
    local = store.local_path(path)
    if local is None:
        return (store.uri_of(path),)  # names are unique
    name = str(local)  # which is hashed in a fraction of the time
    found = os.stat(name)
    return (name, found.st_ino, found.st_size, found.st_mtime_ns)
