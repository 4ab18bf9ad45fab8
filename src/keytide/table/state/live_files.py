"""The live files of one snapshot, as a value that the next snapshot can be derived from.

A snapshot's files are the ADD entries of its manifests without the deleted ones. Walking every
manifest costs time in the number of files; going from one snapshot to the next costs only what that
commit changed, so commits and repeated scans of a growing table stay flat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from keytide.errors import NotFoundError
from keytide.format.manifest import FileKind, Identity, ManifestEntry, live_entries
from keytide.format.snapshot import Snapshot
from keytide.table.state.metadata import TableMetadata

__all__ = ["NO_FILES", "BucketId", "BucketState", "LiveFiles", "load_live_files"]

BucketId: TypeAlias = "tuple[bytes, int]"
"""Serialized partition row and bucket number."""

# More steps, each of them a snapshot and a manifest to read, take longer than one whole load.
_STEPS_MAX = 64


@dataclass(frozen=True, slots=True)
class BucketState:
    """What a writer has to know of a bucket."""

    max_sequence_number: int = -1
    total_buckets: int | None = None
    level_files: Mapping[int, int] = field(default_factory=dict)
    """How many files each level has."""

    @property
    def runs(self) -> int:
        """How many sorted runs there are: the files of level 0, and the levels above it."""
        return sum(
            count if level == 0 else min(count, 1) for level, count in self.level_files.items()
        )

    def after(self, entry: ManifestEntry) -> BucketState:
        """The state once a file was added or deleted."""
        level, change = entry.file.level, 1 if entry.kind is FileKind.ADD else -1
        return BucketState(
            max(self.max_sequence_number, entry.file.max_sequence_number),
            entry.total_buckets,
            {**self.level_files, level: self.level_files.get(level, 0) + change},
        )


@dataclass(frozen=True)
class LiveFiles:
    """The files of `snapshot`, oldest first; `snapshot` is None for a table never written to."""

    snapshot: Snapshot | None
    by_identity: Mapping[Identity, ManifestEntry]
    buckets: Mapping[BucketId, BucketState]
    partition_buckets: Mapping[bytes, int] = field(default_factory=dict)
    """The number of buckets that each partition's files were written with."""

    @property
    def entries(self) -> tuple[ManifestEntry, ...]:
        """The files in the order in which they were committed."""
        return tuple(self.by_identity.values())

    def bucket(self, bucket: BucketId) -> BucketState:
        """The state of a bucket; the empty state when it has no files."""
        return self.buckets.get(bucket, _EMPTY)

    def advance(self, snapshot: Snapshot, delta: Iterable[ManifestEntry]) -> LiveFiles:
        """The files after a commit that changed `delta`.

        Sequence numbers of deleted files still count, so a writer never reuses one.
        """
        changes = list(delta)
        by_identity = dict(self.by_identity)
        for entry in changes:
            if entry.kind is FileKind.ADD:
                by_identity[entry.identity] = entry
        for entry in changes:
            if entry.kind is FileKind.DELETE:
                by_identity.pop(entry.identity, None)
        # A partition without files is laid out anew by whoever writes to it next.
        buckets, partitions = dict(self.buckets), dict(self.partition_buckets)
        _note_buckets(buckets, partitions, changes)
        deleted_from = {entry.partition for entry in changes if entry.kind is FileKind.DELETE}
        if deleted_from:
            for emptied in deleted_from - {entry.partition for entry in by_identity.values()}:
                partitions.pop(emptied, None)
        return LiveFiles(snapshot, by_identity, buckets, partitions)


_EMPTY = BucketState()
NO_FILES = LiveFiles(None, {}, {})


def load_live_files(
    metadata: TableMetadata, snapshot: Snapshot | None, known: LiveFiles = NO_FILES
) -> LiveFiles:
    """The live files of `snapshot`, derived from `known` where that is an ancestor close by.

    Raises `DataError` naming the manifest that is missing or torn.
    """
    if snapshot is None:
        return NO_FILES
    if known.snapshot is not None and known.snapshot == snapshot:
        return known
    stepped = _step(metadata, snapshot, known)
    return stepped if stepped is not None else _load(metadata, snapshot)


def _step(metadata: TableMetadata, target: Snapshot, known: LiveFiles) -> LiveFiles | None:
    base = known.snapshot
    if base is None or not 0 < target.id - base.id <= _STEPS_MAX:
        return None
    try:
        if metadata.snapshot(base.id) != base:
            return None  # dropped and made anew, or rolled back: ids came back
        # The target is passed in: it was read already, and reading it again could give another one
        # of that id.
        for snapshot_id in range(base.id + 1, target.id):
            known = _advance(metadata, known, metadata.snapshot(snapshot_id))
    except NotFoundError:
        return None
    return _advance(metadata, known, target)


def _advance(metadata: TableMetadata, known: LiveFiles, snapshot: Snapshot) -> LiveFiles:
    delta = metadata.delta_manifests(snapshot)
    return known.advance(snapshot, metadata.entries(delta))


def _load(metadata: TableMetadata, snapshot: Snapshot) -> LiveFiles:
    manifests = [
        *metadata.base_manifests(snapshot),
        *metadata.delta_manifests(snapshot),
    ]
    live = live_entries(metadata.entries(manifests))
    buckets: dict[BucketId, BucketState] = {}
    partitions: dict[bytes, int] = {}
    _note_buckets(buckets, partitions, live.values())
    return LiveFiles(snapshot, live, buckets, partitions)


def _note_buckets(
    buckets: dict[BucketId, BucketState],
    partitions: dict[bytes, int],
    entries: Iterable[ManifestEntry],
) -> None:
    for entry in entries:
        key = (entry.partition, entry.bucket)
        # Deleted files too: a number that was used once must not come back, or an older version
        # could.
        buckets[key] = buckets.get(key, _EMPTY).after(entry)
        if entry.kind is FileKind.ADD:
            partitions[entry.partition] = entry.total_buckets
