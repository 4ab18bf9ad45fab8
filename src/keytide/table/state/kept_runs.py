"""Runs of an index of keys that are read or mapped once and kept for the next look-up or write."""

from __future__ import annotations

import numpy as np

from keytide.errors import DataError
from keytide.format import paths
from keytide.format.cache import FILES, version_of
from keytide.index.run import Run
from keytide.store import Store
from keytide.store.base import disk_errors

__all__ = ["keep_run", "kept_run", "known_run", "read_run"]

# The disk keeps what is mapped although its file was deleted, and a process may map only so many
# files: so a mapping counts for more than the memory that it takes.
_PART_OF_MAPPED, _MAPPED_BYTES_MIN = 16, 64 << 10


def known_run(store: Store, name: str) -> Run | None:
    """A run that is kept; None where it is not. Raises `DataError` where a local file is gone."""
    path = paths.index_path(name)
    with disk_errors("read", store.uri_of(path)):
        found: Run | None = FILES.find((*version_of(store, path), "run"))
    return found


def kept_run(store: Store, name: str, size: int, kept_bytes_max: int) -> Run:
    """A run as `read_run` gives it, kept for the next time.

    Not so where `kept_bytes_max`, the bound of what is kept of all files, is too small for it.
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
    """Keep a far run that was stored just now."""
    path = paths.index_path(name)
    run = Run.of(np.frombuffer(data, np.uint8), store.uri_of(path))
    FILES.keep((*version_of(store, path), "run"), run, len(data), kept_bytes_max)


def read_run(store: Store, name: str, size: int) -> Run:
    """A run of so many bytes: mapped on local disk, in memory if it is far.

    Raises `DataError` for one that is missing, of another size or torn, and `UnsupportedError` for
    one of a newer release.
    """
    path = paths.index_path(name)
    uri, local = store.uri_of(path), store.local_path(path)
    with disk_errors("read", uri):
        if local is None:
            data = np.frombuffer(store.read(path), np.uint8)
        elif local.stat().st_size:
            data = np.asarray(np.memmap(local, np.uint8, "r"))
        else:
            data = np.empty(0, np.uint8)  # of nothing there is no mapping
    if len(data) != size:
        raise DataError(f"{uri}: {len(data):,} bytes, where {size:,} are recorded")
    return Run.of(data, uri)
