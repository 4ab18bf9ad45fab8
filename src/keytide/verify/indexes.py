"""Verifies index files: deletion vectors of existing rows, and numbers of hashes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from keytide.base.text import counted
from keytide.errors import DataError
from keytide.format import paths
from keytide.format.index_files import (
    DELETION_VECTORS,
    HASH,
    KEY_INDEX,
    IndexFile,
    decode_index_manifest,
    read_vectors,
)
from keytide.format.manifest import ManifestEntry
from keytide.format.snapshot import CommitKind
from keytide.key_index.runs import Head
from keytide.snapshot.key_index import LIVING_AGAIN, read_run, why_not_covered
from keytide.store import Store
from keytide.verify.finding import Findings
from keytide.verify.rows import Seen

__all__ = ["Indexes"]

_HASH_BYTES = 4


Place = tuple[bytes, int, str]
"""The partition, the bucket and the name of a data file."""


def _place_of(entry: ManifestEntry) -> Place:
    return entry.partition, entry.bucket, entry.file.file_name


@dataclass(frozen=True)
class _Dead:
    """How many rows of each data file are dead in a snapshot. None if that is not recorded."""

    snapshot_id: int
    rows: Mapping[Place, int | None]

    @classmethod
    def of(cls, seen: Seen, listed: Iterable[IndexFile]) -> _Dead:
        """According to the index manifest of a snapshot."""
        rows = {
            (index.partition, index.bucket, place.data_file_name): place.cardinality
            for index in listed
            if index.index_type == DELETION_VECTORS
            for place in index.ranges or ()
        }
        return cls(seen.snapshot.id, rows)


@dataclass
class Indexes:
    """Checks the index files of snapshots, each once for each description."""

    store: Store
    findings: Findings
    beside_data: bool = False
    """Whether there are index files in the folders of buckets, which this release does not
    check.
    """
    _checked: set[IndexFile] = field(default_factory=set)
    _before: _Dead | None = None
    _manifests: dict[str, list[IndexFile]] = field(default_factory=dict)

    def check(self, seen: Seen) -> None:
        """Check the index files of a snapshot. The snapshots of a branch are checked in order."""
        listed = self.listed(seen.snapshot.index_manifest)
        self._check_still_dead(seen, listed)
        for index in listed:
            if index.index_type == DELETION_VECTORS:
                self._check_marked(index, seen)
            if index not in self._checked:
                self._checked.add(index)
                self._check_file(index, seen)

    def listed(self, name: str | None) -> list[IndexFile]:
        """The index files in an index manifest, as far as it can be read."""
        if name is None:
            return []
        if name not in self._manifests:
            path = paths.manifest_path(name)
            self._manifests[name] = []
            with self.findings.reading(path):
                self._manifests[name] = list(decode_index_manifest(self.store.read(path), path))
        return self._manifests[name]

    def _check_still_dead(self, seen: Seen, listed: Iterable[IndexFile]) -> None:
        """Check that dead rows are still dead. Only a replacement of rows may change that."""
        before, now = self._before, _Dead.of(seen, listed)
        self._before = now
        kinds = (CommitKind.APPEND, CommitKind.COMPACT)
        if before is None or not seen.follows or seen.snapshot.commit_kind not in kinds:
            return
        there = {_place_of(entry) for entry in seen.live.values()}
        for place in sorted(there & before.rows.keys()):
            was, known = before.rows[place], now.rows.get(place, 0)
            if was is not None and known is not None and known < was:
                self.findings.add(
                    seen.path,
                    f"{counted(was - known, 'row')} of {place[2]} exist again that were deleted "
                    f"in snapshot {before.snapshot_id}",
                    f"an index manifest that marks at least {was} as deleted",
                    "Restore the file from a backup, or read a newer snapshot",
                )

    def _check_marked(self, index: IndexFile, seen: Seen) -> None:
        there = {
            entry.file.file_name
            for entry in seen.live.values()
            if (entry.partition, entry.bucket) == (index.partition, index.bucket)
        }
        for place in index.ranges or ():
            if place.data_file_name not in there:
                self.findings.add(
                    paths.index_path(index.file_name),
                    f"rows of {place.data_file_name} are marked as deleted, but this is not a "
                    f"file of bucket {index.bucket} in {seen.path}",
                    "deletion vectors of live files of the same bucket",
                )

    def _check_file(self, index: IndexFile, seen: Seen) -> None:
        path = paths.index_path(index.file_name)
        if (
            self.beside_data
            or index.external_path is not None
            or index.index_type not in (DELETION_VECTORS, HASH, KEY_INDEX)
        ):
            self.findings.skip(path, f"an index of type {index.index_type} of another engine")
            return
        with self.findings.reading(path):
            data = self.store.read(path)
            if len(data) != index.file_size:
                raise DataError(f"{len(data):,} bytes found, but {index.file_size:,} recorded")
            if index.index_type == HASH:
                self._check_hashes(path, index)
            elif index.index_type == KEY_INDEX:
                self._check_keys(Head.decode(data, self.store.uri_of(path)), index, seen)
            else:
                self._check_vectors(path, index, data, seen)

    def _check_hashes(self, path: str, index: IndexFile) -> None:
        if index.file_size != _HASH_BYTES * index.row_count:
            self.findings.add(
                path,
                f"{index.file_size:,} bytes",
                f"{_HASH_BYTES} for each of {counted(index.row_count, 'hash value')}",
            )

    def _check_keys(self, head: Head, index: IndexFile, seen: Seen) -> None:
        """Check every byte of the index, and whether it matches the existing files."""
        for run in head.runs:
            read_run(self.store, run.name, run.size).check()
        rows = {
            entry.file.file_name: entry.file.row_count
            for entry in seen.live.values()
            if (entry.partition, entry.bucket) == (index.partition, index.bucket)
        }
        reason = why_not_covered(head, rows, {})
        if reason is not None and reason != LIVING_AGAIN:
            self.findings.skip(
                paths.index_path(index.file_name),
                f"a key index that the next write rebuilds: {reason}",
            )

    def _check_vectors(self, path: str, index: IndexFile, data: bytes, seen: Seen) -> None:
        ranges = index.ranges or ()
        if index.row_count != len(ranges):
            self.findings.add(
                path, f"{counted(len(ranges), 'vector')} recorded", f"{index.row_count}"
            )
        rows = {entry.file.file_name: entry.file.row_count for entry in seen.live.values()}
        for place in ranges:
            vector = read_vectors(data, [place], path)[place.data_file_name]
            if place.cardinality is not None and place.cardinality != len(vector):
                self.findings.add(
                    path,
                    f"{counted(len(vector), 'row')} of {place.data_file_name} marked as deleted",
                    f"{place.cardinality}, as the index manifest says",
                )
            count = rows.get(place.data_file_name)
            if count is not None and vector and int(vector.max()) >= count:
                self.findings.add(
                    path,
                    f"row {int(vector.max())} of {place.data_file_name} is marked as deleted",
                    f"rows below {count}, the number of rows in the file",
                )
