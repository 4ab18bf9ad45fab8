"""The local cache of stored files, as users configure it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from keytide.base.arguments import shown
from keytide.errors import InvalidError
from keytide.format import paths
from keytide.options.values import size
from keytide.store import CachedStore, CacheFolder, Store, open_store

__all__ = ["CACHE_BYTES", "cache_folder", "near", "open_near"]

CACHE_BYTES = 10 << 30
"""The default maximum size of a cache."""

# A smaller cache could not hold the manifests of one table.
_CACHE_BYTES_MIN = 1 << 20


def open_near(
    location: str, options: Mapping[str, str] | None = None, cache: CacheFolder | None = None
) -> Store:
    """The same as `open_store`, with a cache if given.

    Raises the errors of `open_store` and `near`.
    """
    return near(open_store(location, options), cache)


def near(store: Store, cache: CacheFolder | None) -> Store:
    """The store, with a cache for files that never change.

    Raises `InvalidError` for a store on local disk: a cache would only duplicate it.
    """
    if cache is None:
        return store
    if store.local_path("any") is not None:
        raise InvalidError(
            f"cache: {store.uri} is on the local disk, where files need no cache; remove the "
            "argument, which is only for object stores such as s3://"
        )
    return CachedStore(store, cache, paths.never_changes)


def cache_folder(
    cache: str | Path | None, cache_bytes: int | str | None, names: tuple[str, str]
) -> CacheFolder | None:
    """The cache in a folder, with a maximum size such as '10 gb'. None if neither is given.

    `names` are the names of the two settings in messages. Raises `InvalidError` if the folder is
    not usable, if the size is invalid, and for a size without a folder.
    """
    name, name_of_bytes = names
    if cache is None:
        if cache_bytes is None:
            return None
        raise InvalidError(
            f"{name_of_bytes} is {shown(cache_bytes)}, but {name} is not set; set it to a local "
            "folder for the cache, or remove both"
        )
    bytes_max = CACHE_BYTES if cache_bytes is None else _bytes(cache_bytes, name_of_bytes)
    return CacheFolder(_folder(str(cache), name), bytes_max)


def _bytes(given: int | str, name: str) -> int:
    try:
        found: int = size(_CACHE_BYTES_MIN).parse(str(given))
    except ValueError as error:
        raise InvalidError(f"{name} is {shown(given)}; expected {error}") from None
    return found


def _folder(given: str, name: str) -> str:
    expected = "expected a local folder, which is created if it does not exist"
    if not given.strip() or "\0" in given or "://" in given:
        raise InvalidError(f"{name} is {shown(given)}; {expected}")
    folder = os.path.abspath(os.path.expanduser(given))
    there = folder
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise InvalidError(f"{name} is {shown(given)}, and {there} is not a folder; {expected}")
    return folder
