"""Where copies of stored files lie near the reader, as users say it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from keytide.arguments import shown
from keytide.errors import InvalidError
from keytide.format import paths
from keytide.options.value_types import size
from keytide.store import CachedStore, CacheFolder, Store, open_store

__all__ = ["CACHE_BYTES", "cache_folder", "near", "open_near"]

CACHE_BYTES = 10 << 30
"""What copies take of the disk unless somebody says otherwise."""

# Less does not hold the manifests of one table.
_CACHE_BYTES_MIN = 1 << 20


def open_near(
    location: str, options: Mapping[str, str] | None = None, cache: CacheFolder | None = None
) -> Store:
    """As `open_store`, with a cache if there is one. Raises as that, and as `near`."""
    return near(open_store(location, options), cache)


def near(store: Store, cache: CacheFolder | None) -> Store:
    """The store, of which a cache keeps the files that never change.

    Raises `InvalidError` for a store on local disk: a cache would only double it.
    """
    if cache is None:
        return store
    if store.local_path("any") is not None:
        raise InvalidError(
            f"cache: {store.uri} lies on local disk, whose files are read where they are; leave "
            f"the cache out, which is for object stores such as s3://"
        )
    return CachedStore(store, cache, paths.never_changes)


def cache_folder(
    cache: str | Path | None, cache_bytes: int | str | None, names: tuple[str, str]
) -> CacheFolder | None:
    """The cache of a folder and a bound such as '10 gb'; None where neither is given.

    `names` are what messages call the two. Raises `InvalidError` for what is no folder and cannot
    become one, for what is no size, and for a bound without a folder.
    """
    name, name_of_bytes = names
    if cache is None:
        if cache_bytes is None:
            return None
        raise InvalidError(
            f"{name_of_bytes} is {shown(cache_bytes)}, and there is no {name}: name the folder on "
            f"local disk for the copies, or leave both out"
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
    expected = "expected a folder on local disk, which need not exist"
    if not given.strip() or "\0" in given or "://" in given:
        raise InvalidError(f"{name} is {shown(given)}; {expected}")
    folder = os.path.abspath(os.path.expanduser(given))
    there = folder
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise InvalidError(f"{name} is {shown(given)}, and {there} is no folder; {expected}")
    return folder
