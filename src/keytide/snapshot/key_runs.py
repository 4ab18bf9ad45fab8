"""The key index of a bucket for lookups: its metadata is read once and cached.

From runs on local disk, a lookup reads only the pages that it touches. From large remote runs, it
fetches only the ranges that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from keytide.errors import DataError
from keytide.format import paths
from keytide.format.cache import FILES
from keytide.format.deletion_vector import VectorRange
from keytide.format.index_manifest import IndexFile
from keytide.key_index.entries import Entries
from keytide.key_index.far_run import FarRun
from keytide.key_index.hashes import KeyHashes
from keytide.key_index.head import Head
from keytide.key_index.run import TAIL_BYTES, Block, Run, blocks_of
from keytide.snapshot.kept_runs import kept_run, known_run
from keytide.snapshot.key_index import Found, found_by, load_head, looks
from keytide.store import Store
from keytide.store.base import disk_errors

__all__ = ["StoredKeys", "open_ahead", "open_keys"]

# A request takes about as long as the transfer of this many bytes. Smaller runs are fetched as a
# whole.
_WHOLE_BYTES_MAX = 8 << 20
_AHEAD_MAX = 16
# A run that needs a larger part of the cache would evict everything else.
_PART_OF_KEPT = 8
_BLOCKS_BYTES = 4 << 10

Range: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True)
class StoredKeys:
    """The stored index of a bucket: its head, and its runs, oldest first."""

    store: Store
    head: Head
    runs: tuple[Run | FarRun, ...]

    def find(self, hashes: KeyHashes) -> tuple[npt.NDArray[np.bool_], Entries]:
        """See `KeyIndex`. Remote runs are searched in parallel.

        Raises `DataError` for damaged runs.
        """
        return found_by(hashes, self._looks, self.head)

    def _looks(self, probes: KeyHashes) -> Iterable[Found]:
        near = [run for run in self.runs if isinstance(run, Run)]
        if len(near) == len(self.runs):
            return looks(near, probes)
        return self.store.together([partial(run.find, probes) for run in reversed(self.runs)])


def open_keys(store: Store, file: IndexFile, kept_bytes_max: int) -> StoredKeys:
    """Open the index of a bucket. `kept_bytes_max` limits the cache.

    Raises `DataError` for a file that is missing or damaged, and `UnsupportedError` for one of a
    newer release.
    """
    places = file.ranges or ()
    runs = store.begin(
        lambda: store.together([partial(_opened, store, p, kept_bytes_max) for p in places])
    )
    head = load_head(store, paths.index_path(file.file_name))
    opened = tuple(runs.result())
    if [run.name for run in head.runs] != [place.data_file_name for place in places]:
        raise DataError(
            f"{store.uri_of(paths.index_path(file.file_name))}: the key index has other runs "
            "than the index manifest lists"
        )
    return StoredKeys(store, head, opened)


def open_ahead(store: Store, files: Sequence[IndexFile], kept_bytes_max: int) -> None:
    """Start to open remote indexes that will be needed, if they are few, in parallel with other
    requests.

    Errors appear when the indexes are used.
    """
    if len(files) <= _AHEAD_MAX:
        for file in files:
            store.begin(partial(open_keys, store, file, kept_bytes_max))


def _opened(store: Store, place: VectorRange, kept_bytes_max: int) -> Run | FarRun:
    name, size = place.data_file_name, place.length
    path = paths.index_path(name)
    if store.local_path(path) is not None or size <= _WHOLE_BYTES_MAX:
        return kept_run(store, name, size, kept_bytes_max)
    whole = known_run(store, name)  # cached by a writer
    if whole is not None:
        return whole
    uri = store.uri_of(path)
    blocks: tuple[Block, ...] | None = FILES.find((uri, "blocks"))
    if blocks is None:
        with disk_errors("read", uri):
            blocks = _far_blocks(store, path, size)
        FILES.keep((uri, "blocks"), blocks, _BLOCKS_BYTES, kept_bytes_max)
    # Uses the store of the caller, because credentials of an earlier store may have expired.
    return FarRun(partial(_fetched, store, path, kept_bytes_max), uri, blocks)


def _far_blocks(store: Store, path: str, size: int) -> tuple[Block, ...]:
    """The blocks of a run. One request is enough unless there are very many blocks."""
    uri, wanted = store.uri_of(path), TAIL_BYTES
    while True:
        (tail,) = store.read_ranges(path, [(max(0, size - wanted), size)])
        found = blocks_of(np.frombuffer(tail, np.uint8), uri)
        if not isinstance(found, int):
            return found
        if found <= wanted or wanted > size:
            raise DataError(f"{uri}: this is not a key index, or it is damaged")
        wanted = found


def _fetched(store: Store, path: str, kept_bytes_max: int, ranges: Sequence[Range]) -> list[bytes]:
    key = (store.uri_of(path), tuple(ranges))
    kept: list[bytes] | None = FILES.find(key)
    if kept is None:
        kept = store.read_ranges(path, ranges)
        held = sum(map(len, kept))
        if held * _PART_OF_KEPT <= kept_bytes_max:
            FILES.keep(key, kept, held, kept_bytes_max)
    return kept
