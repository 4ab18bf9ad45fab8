"""What a process remembers of a table's documents: each is read and decoded once.

Documents are never changed. Names of manifests, lists and index files are unique; those of schemas
and snapshots come back after a drop, a rollback or a fast-forward, so whoever remembers one of
these says in its key which of them it means.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from threading import Lock
from typing import Any, TypeVar

from cachetools import LRUCache

__all__ = ["document", "forget_documents", "remember_documents"]

T = TypeVar("T")

_BYTES_MAX = 512 << 20

_DOCUMENTS: LRUCache[Hashable, tuple[Any, int]] = LRUCache(_BYTES_MAX, getsizeof=lambda v: v[1])
_LOCK = Lock()


def document(key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
    """The document of a key, which `load` reads where it is not remembered.

    `load` gives the document and about how many bytes it holds in memory. Raises what it raises.
    """
    with _LOCK:
        found = _DOCUMENTS.get(key)
    if found is None:
        # Not under the lock: a slow store must not keep those waiting who look for something else.
        # Two may load the same document, and get the same.
        found = load()
        remember_documents({key: found})
    value: T = found[0]
    return value


def remember_documents(documents: Mapping[Hashable, tuple[Any, int]]) -> None:
    """Remember documents, such as those that this process wrote itself, with their bytes."""
    with _LOCK:
        for key, value in documents.items():
            if value[1] <= _BYTES_MAX:
                _DOCUMENTS[key] = value


def forget_documents() -> None:
    """Remember nothing, as a process that has just begun."""
    with _LOCK:
        _DOCUMENTS.clear()
