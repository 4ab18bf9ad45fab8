"""Storage for the files of a warehouse: a local directory or an object store, opened by its URI."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote

from keytide.errors import InvalidError
from keytide.store.cache_folder import CacheFolder
from keytide.store.cached import CachedStore
from keytide.store.interface import (
    ObjectInfo,
    PassingStore,
    SeekableReader,
    Store,
    check_path,
    created,
)
from keytide.store.local import LocalStore
from keytide.store.object_store import ObjectStore, open_object_store

__all__ = [
    "CacheFolder",
    "CachedStore",
    "LocalStore",
    "ObjectInfo",
    "ObjectStore",
    "PassingStore",
    "SeekableReader",
    "Store",
    "created",
    "is_inside",
    "is_stored_inside",
    "open_store",
    "store_of_file",
    "takes_options",
]


def open_store(location: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Store:
    """The store at `location`. Nothing is read or written yet.

    A plain path or `file:` URI is a local directory, which may not exist yet. `s3://`, `gs://`,
    `az://` and `abfss://` are object stores, configured by obstore's `options` or environment
    variables. `memory://name` exists as long as the process.

    Raises `InvalidError` for an unknown scheme, an option that the store does not know, and for
    credentials inside the URI, because these would appear in messages.
    """
    text = os.fspath(location)
    scheme, separator, rest = text.partition("://")
    if text.startswith("file:") or not separator:
        return _local(_local_path(text), options or {})
    if scheme not in _OBJECT_SCHEMES:
        known = ", ".join(f"{name}://" for name in ("file", *_OBJECT_SCHEMES))
        raise InvalidError(
            f"unknown scheme {scheme}://; use a path, or a URI that starts with one of {known}"
        )
    host, _, path = rest.partition("/")
    names_container = scheme in ("abfs", "abfss")
    if "?" in rest or ":" in host or ("@" in host and not names_container):
        raise InvalidError(
            f"The {scheme}:// URI contains credentials or a query: pass them as options or in "
            "the environment instead, so that messages do not show them"
        )
    if "\0" in unquote(rest):
        raise InvalidError(f"the {scheme}:// URI contains a NUL character, which is not allowed")
    if not host and scheme != "memory":
        raise InvalidError(f"{scheme}://{rest} contains no bucket: use {scheme}://bucket/path")
    prefix = path.strip("/")
    if prefix:
        check_path(prefix)
    return open_object_store(f"{scheme}://{host}", prefix, options or {})


def takes_options(location: str) -> bool:
    """Whether the store at a location accepts options. Only object stores do."""
    return "://" in location and not location.startswith("file:")


def is_inside(location: str, folder: str) -> bool:
    """Whether a location is below a folder, wherever links lead on local disk.

    Both are paths or URIs as `open_store` accepts them. Nothing is below an empty `folder`. In an
    object store, a location with parts such as `..` or with escapes is below none.
    """
    if not folder:
        return False
    if takes_options(folder) or takes_options(location):
        rest = location.removeprefix(f"{folder.rstrip('/')}/")
        parts = rest.rstrip("/").split("/")
        return rest != location and "%" not in rest and not {"", ".", ".."} & {*parts}
    place, around = (os.path.realpath(_local_path(each)) for each in (location, folder))
    return place.startswith(around.rstrip("/") + "/")


def is_stored_inside(uri: str, folder: str) -> bool:
    """Whether a file is below a folder, wherever links lead on local disk.

    Both are in the form that the table format stores, in which a percent sign is not an escape. A
    local path that is not absolute is below no folder.
    """
    place, around = _stored_local(uri), _stored_local(folder)
    if place is None or around is None:
        rest = uri.removeprefix(f"{folder.rstrip('/')}/")
        is_below = place is around is None and "://" in folder and rest != uri
        return is_below and not {"", ".", ".."} & {*rest.split("/")} and "\0" not in rest
    if not place.startswith("/") or not around.startswith("/") or "\0" in place + around:
        return False
    around = os.path.realpath(around)
    return os.path.realpath(place).startswith(around.rstrip("/") + "/")


def _stored_local(uri: str) -> str | None:
    """The local path of a URI in the form that the table format stores. None if it has none."""
    if uri.startswith("file:"):
        return "/" + re.sub("^file:(//[^/]*)?/*", "", uri)
    return None if "://" in uri else uri


def _local_path(location: str) -> str:
    if not location.startswith("file:"):
        return os.path.expanduser(location)
    path = location.removeprefix("file:")
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        if host not in ("", "localhost"):
            named = "another host" if "@" in host or ":" in host else f"the host {host!r}"
            raise InvalidError(f"a file: URI contains {named}: use file:///path for this machine")
        path = slash + path
    return unquote(path)


def store_of_file(uri: str, near: Store) -> tuple[Store, str]:
    """The store of the folder that contains a file, and the file's name in it.

    `uri` is in the form that the table format stores, in which a percent sign is not an escape. If
    the file is in the bucket of the store `near`, it gets that store's options. In any object store
    it gets that store's cache. Raises as `open_store`.
    """
    folder, _, name = uri.rpartition("/")
    local = _stored_local(folder)
    if local is not None and folder.startswith("file:"):
        return _local(local, {}), name
    options, store = {}, near.uncached()
    if isinstance(store, ObjectStore) and uri.startswith(f"{store.bucket}/"):
        options = dict(store.options)
    opened = open_store(folder, options)
    if isinstance(store, ObjectStore) and isinstance(opened, ObjectStore) and options:
        opened = replace(opened, lender=store.lender)
    if isinstance(near, CachedStore) and isinstance(opened, ObjectStore):
        return replace(near, beneath=opened), name
    return opened, name


def _local(path: str, options: Mapping[str, str]) -> Store:
    if options:
        raise InvalidError(
            f"The local directory {path} has no storage options, found {sorted(options)}: remove "
            "them, or use the URI of an object store"
        )
    if not path:
        raise InvalidError("The path of the store is empty: give a directory or a URI")
    if "\0" in path:
        raise InvalidError(f"the path {path!r} contains a NUL character, which is not allowed")
    return LocalStore(os.path.abspath(path))


_OBJECT_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "memory")
