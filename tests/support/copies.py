"""Stores in memory that begin with the same files: made once, and copied for each test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from keytide.store import Store
from new_tables import empty_store


def copies_of(make: Callable[[Store], object]) -> Callable[[], Store]:
    """A function that gives a store of its own to each caller, with what `make` writes into one."""

    @cache
    def files() -> dict[str, bytes]:
        store = empty_store()
        make(store)
        return {file.path: store.read(file.path) for file in store.list("")}

    def copy() -> Store:
        store = empty_store()
        store.put_all(files())
        return store

    return copy
