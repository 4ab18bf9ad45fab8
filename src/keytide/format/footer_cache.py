"""What a process keeps of stored files for the next read: footers, file indexes, keys."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from keytide.store import Store

__all__ = ["KEPT", "Kept", "version_of"]


class Kept:
    """Values by key, those used last, bounded by the bytes that they hold together."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> Any:
        """The value of a key; None where none is kept."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def keep(self, key: Hashable, value: Any, size: int, bytes_max: int) -> None:
        """Keep a value that holds `size` bytes, and of all others as much as fits beside it.

        Not one that is larger than the bound. A key keeps the value that it was given first.
        """
        with self._lock:
            if size > bytes_max or key in self._values:
                return
            while self._bytes + size > bytes_max:
                _, (_, dropped) = self._values.popitem(last=False)
                self._bytes -= dropped
            self._values[key] = (value, size)
            self._bytes += size

    def forget(self) -> None:
        """Keep nothing, as a process that has just begun."""
        with self._lock:
            self._values.clear()
            self._bytes = 0


KEPT = Kept()
"""Of all tables: tables are many, and a process has one memory."""


def version_of(store: Store, path: str) -> tuple[Hashable, ...]:
    """What tells a file from any other, the one that takes its place on a local disk too.

    Raises OSError where a local file is not there.
    """
    local = store.local_path(path)
    if local is None:
        return (store.uri_of(path),)  # names are unique
    found = local.stat()
    return (local, found.st_ino, found.st_size, found.st_mtime_ns)
