"""What this process has published, or seen to be published, last."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Any

from cachetools import LRUCache

from keytide.store import Store

__all__ = ["forget", "forget_publications", "recall", "remember"]

# Of all tables together; each takes some hundred bytes.
_FILES_MAX = 500_000

_SEEN: LRUCache[Hashable, Any] = LRUCache(_FILES_MAX, lambda version: 1 + len(version.by_name))
_LOCK = Lock()


def recall(store: Store, form: str) -> Any:
    """The version of a form that this process made or saw last; None for none."""
    with _LOCK:
        return _SEEN.get((store.identity, form))


def remember(store: Store, form: str, version: Any) -> None:
    """Keep a version in mind, unless it has more files than there is room for."""
    with _LOCK:
        if len(version.by_name) < _FILES_MAX:
            _SEEN[store.identity, form] = version
        else:
            _SEEN.pop((store.identity, form), None)


def forget(store: Store, form: str) -> None:
    """Know of no version any more."""
    with _LOCK:
        _SEEN.pop((store.identity, form), None)


def forget_publications() -> None:
    """Know of no version of any table, as a process that has just begun."""
    with _LOCK:
        _SEEN.clear()
