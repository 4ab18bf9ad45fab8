"""Runs of a key index that are read or mapped once and cached for the next lookup or write."""

from __future__ import annotations

import numpy as np

from keytide.errors import DataError
from keytide.format import paths
from keytide.format.cache import FILES, version_of
from keytide.key_index.run import Run
from keytide.store import Store
from keytide.store.base import disk_errors

__all__ = ["keep_run", "kept_run", "known_run", "read_run"]

# A mapped file stays on disk although it was deleted, and a process can map a limited number of
# files. So a mapping counts as more than the memory that it uses.
_PART_OF_MAPPED, _MAPPED_BYTES_MIN = 16, 64 << 10


def known_run(store: Store, name: str) -> Run | None:
    """The cached run, or None. Raises `DataError` if a local file is gone."""
    path = paths.index_path(name)
    with disk_errors("read", store.uri_of(path)):
        found: Run | None = FILES.find((*version_of(store, path), "run"))
    return found


def kept_run(store: Store, name: str, size: int, kept_bytes_max: int) -> Run:
    """The same as `read_run`, but the run is cached for the next time.

    It is not cached if it is too large for `kept_bytes_max`, the limit of the cache for all files.
    """
    run = known_run(store, name)
    if run is None:
        run = read_run(store, name, size)
        path = paths.index_path(name)
        is_far = store.local_path(path) is None
        held = size if is_far else max(size // _PART_OF_MAPPED, _MAPPED_BYTES_MIN)
        with disk_errors("read", store.uri_of(path)):
            FILES.keep((*version_of(store, path), "run"), run, held, kept_bytes_max)
    return run


def keep_run(store: Store, name: str, data: bytes, kept_bytes_max: int) -> None:
    """Cache a run that was just written to a remote store."""
    path = paths.index_path(name)
    run = Run.of(np.frombuffer(data, np.uint8), store.uri_of(path))
    FILES.keep((*version_of(store, path), "run"), run, len(data), kept_bytes_max)


def read_run(store: Store, name: str, size: int) -> Run:
    """Read a run of `size` bytes: it is mapped on local disk, and in memory if it is remote.

    Raises `DataError` if it is missing, damaged or has another size, and `UnsupportedError` if a
    newer release wrote it.
    """
    path = paths.index_path(name)
    uri, local = store.uri_of(path), store.local_path(path)
    with disk_errors("read", uri):
        if local is None:
            data = np.frombuffer(store.read(path), np.uint8)
        elif local.stat().st_size:
            data = np.asarray(np.memmap(local, np.uint8, "r"))
        else:
            data = np.empty(0, np.uint8)  # an empty file cannot be mapped
    if len(data) != size:
        raise DataError(f"{uri}: {len(data):,} bytes found, but {size:,} recorded")
    return Run.of(data, uri)
