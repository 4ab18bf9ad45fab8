"""Caches the versions that this process has published or seen last."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Any

from cachetools import LRUCache

from keytide.store import Store

__all__ = ["forget", "forget_publications", "recall", "remember"]

# For all tables together. Each takes some hundred bytes.
_FILES_MAX = 500_000

_SEEN: LRUCache[Hashable, Any] = LRUCache(_FILES_MAX, lambda version: 1 + len(version.by_name))
_LOCK = Lock()


def recall(store: Store, form: str) -> Any:
    """The version of a format that this process created or saw last. None if there is none."""
    with _LOCK:
        return _SEEN.get((store.identity, form))


def remember(store: Store, form: str, version: Any) -> None:
    """Cache a version, unless it has too many files."""
    with _LOCK:
        if len(version.by_name) < _FILES_MAX:
            _SEEN[store.identity, form] = version
        else:
            _SEEN.pop((store.identity, form), None)


def forget(store: Store, form: str) -> None:
    """Remove a version from the cache."""
    with _LOCK:
        _SEEN.pop((store.identity, form), None)


def forget_publications() -> None:
    """Clear the cache, as in a new process."""
    with _LOCK:
        _SEEN.clear()
