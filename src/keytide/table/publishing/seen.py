"""What this process has published, or seen to be published, last."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Any

from cachetools import LRUCache

from keytide.store import Store

__all__ = ["forget", "forget_publications", "recall", "remember"]

_TABLES_MAX = 256

_SEEN: LRUCache[Hashable, Any] = LRUCache(_TABLES_MAX)
_LOCK = Lock()


def recall(store: Store, form: str) -> Any:
    """The version of a form that this process made or saw last; None for none."""
    with _LOCK:
        return _SEEN.get((store.identity, form))


def remember(store: Store, form: str, version: Any) -> None:
    """Keep a version in mind."""
    with _LOCK:
        _SEEN[store.identity, form] = version


def forget(store: Store, form: str) -> None:
    """Know of no version any more."""
    with _LOCK:
        _SEEN.pop((store.identity, form), None)


def forget_publications() -> None:
    """Know of no version of any table, as a process that has just begun."""
    with _LOCK:
        _SEEN.clear()
