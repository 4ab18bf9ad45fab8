"""Settles which row of each key lives where other engines added files to a table with a key index.

Other engines append rows and replace none, so a key can have several live rows until the next write
into its bucket. Readers see the row that this write will keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from keytide.errors import DataError, UnsupportedError
from keytide.format import paths
from keytide.format.cache import METADATA
from keytide.format.index_files import IndexFile
from keytide.format.manifest import ManifestEntry
from keytide.read.rebuilding import settled
from keytide.snapshot.key_index import key_files_by_bucket, load_head
from keytide.snapshot.live_files import (
    BucketId,
    held_vectors,
    load_dead_rows,
    vector_files_by_bucket,
)
from keytide.snapshot.state import TableState, TableView

__all__ = ["settled_state", "unsettled_buckets"]

_HELD_BYTES = 1 << 10


def settled_state(state: TableState) -> TableState:
    """The state for readers: each key has at most one live row, whoever wrote the files.

    Only the vectors of buckets with files that their index does not cover differ. To find them, the
    rows of these buckets are read, once in a process. Raises `DataError` for damaged files.
    """
    found = [*unsettled_buckets(state)]
    if not found:
        return state
    vectors = vector_files_by_bucket(state.vector_files)
    buckets = {bucket for bucket, _, _ in found}
    kept = [file for file in state.vector_files if (file.partition, file.bucket) not in buckets]
    new = [
        _settled(state.view, bucket, entries, known, vectors.get(bucket, ()))
        for bucket, entries, known in found
    ]
    return replace(state, vector_files=(*kept, *new))


def unsettled_buckets(
    state: TableState,
) -> Iterator[tuple[BucketId, Sequence[ManifestEntry], frozenset[str]]]:
    """The buckets with files that their index does not cover, their files, and those covered."""
    if not state.view.kind.has_key_index:
        return
    by_bucket: dict[BucketId, list[ManifestEntry]] = {}
    for entry in state.live.entries:
        by_bucket.setdefault((entry.partition, entry.bucket), []).append(entry)
    heads = key_files_by_bucket(state.key_files)
    needed = [heads[bucket] for bucket in by_bucket if bucket in heads]
    names = [file.file_name for file in needed]
    covered = dict(zip(names, _covered(state.view, needed), strict=True))
    for bucket, entries in by_bucket.items():
        known = covered[heads[bucket].file_name] if bucket in heads else frozenset()
        if any(e.file.file_name not in known for e in entries):
            yield bucket, entries, known


def _covered(view: TableView, heads: Sequence[IndexFile]) -> list[frozenset[str]]:
    """The files that each index covers: none if it is damaged or of a newer release."""

    def covered_by(file: IndexFile) -> frozenset[str]:
        try:
            head = load_head(view.store, paths.index_path(file.file_name))
        except (DataError, UnsupportedError):
            return frozenset()
        return frozenset(file.name for file in head.files)

    return view.store.together([partial(covered_by, file) for file in heads])


def _settled(
    view: TableView,
    bucket: BucketId,
    entries: Sequence[ManifestEntry],
    known: frozenset[str],
    vectors: tuple[IndexFile, ...],
) -> IndexFile:
    def load() -> tuple[IndexFile, int]:
        dead = load_dead_rows(view.store, vectors, view.name)
        held = held_vectors(bucket, settled(view, entries, dead, known).dead)
        return held, _HELD_BYTES + held.file_size

    names = (*(e.file.file_name for e in entries), *(file.file_name for file in vectors))
    return METADATA.load((view.store.uri_of(""), view.schema.id, bucket, known, names), load)
