"""Builds the files of a commit: its manifest, two manifest lists, and the snapshot itself.

Everything is built in memory, so that the commit can be stored in one step.

What a commit changes in each partition, for catalogs that maintain counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import polars as pl

from keytide.commit.change import Change, of_unknown_keys
from keytide.commit.manifests import ManifestMerger, MergeRules, pick, pick_all
from keytide.format import paths
from keytide.format.binary_row import decode_rows
from keytide.format.entry_columns import Entries
from keytide.format.index_files import (
    IndexFile,
    IndexKey,
    encode_index_manifest,
    replace_index_files,
)
from keytide.format.manifest import (
    FileKind,
    ManifestEntry,
    ManifestFileMeta,
    encode_manifest,
    encode_manifest_list,
    summarize,
)
from keytide.format.partition import partition_values
from keytide.format.paths import FileNames, MetadataFile
from keytide.format.snapshot import Snapshot
from keytide.snapshot.commits import PartitionChange
from keytide.snapshot.live_files import BucketIndex, EncodedIndex, LiveFiles
from keytide.snapshot.metadata import TableMetadata, sized_indexes, sized_list, sized_manifest
from keytide.snapshot.state import TableView

# -- builds the files of a commit ------------------------------------------------------------------


_WRITER_VERSION = "keytide"


def wall_clock_ms() -> int:
    """The time of the machine's clock."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class NewSnapshot:
    """A snapshot to create, the `files` that it names, and the entries that it changes.

    `documents` has the decoded form of those files that readers decode.
    """

    snapshot: Snapshot
    files: Mapping[str, bytes]
    changed: tuple[ManifestEntry, ...]
    documents: Mapping[Hashable, tuple[Any, int]]
    indexes: Sequence[Callable[[], None]] = ()
    """Callbacks that cache the stored indexes in this process, after they are stored."""


@dataclass(frozen=True)
class _Changelog:
    """What a snapshot says about its changelog. Empty if it has none."""

    name: str | None = None
    size: int | None = None
    rows: int | None = None


class _Files(dict[str, bytes]):
    """Files of a snapshot by path, and the documents that this process caches."""

    def __init__(self, metadata: TableMetadata) -> None:
        super().__init__()
        self.documents: dict[Hashable, tuple[Any, int]] = {}
        self.indexes: list[Callable[[], None]] = []
        self._metadata = metadata

    def note(self, path: str, data: bytes, document: tuple[Any, int]) -> None:
        """Add a file that is read as a document."""
        self[path] = data
        self.documents[self._metadata.store.uri_of(path)] = document


class SnapshotBuilder:
    """Builds the snapshots that one commit tries. Each has files with new names."""

    def __init__(
        self, metadata: TableMetadata, view: TableView, clock_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        self._metadata = metadata
        self._view = view
        self._clock_ms = clock_ms
        self._names = FileNames()

    def build(self, change: Change, latest: Snapshot | None, live: LiveFiles) -> NewSnapshot:
        """The snapshot that follows `latest`, whose live files are `live`."""
        files = _Files(self._metadata)
        entries = change.changed(live)
        if change.converts:
            base, entries = self._converted(entries, live, files)
        else:
            base = self._base(change, latest, files)
        delta = [self._manifest(entries, files)] if entries else []
        base_name, base_size = self._manifest_list(base, files)
        delta_name, delta_size = self._manifest_list(delta, files)
        changelog = self._changelog(change, files)
        rows = sum(e.file.row_count if e.kind is FileKind.ADD else -e.file.row_count
                   for e in entries)  # fmt: skip
        schema_id = self._view.schema.id
        snapshot = Snapshot(
            uuid=paths.new_uuid(),
            id=1 if latest is None else latest.id + 1,
            # A writer that began before an alteration must not set the table back to the older
            # schema.
            schema_id=schema_id if latest is None else max(latest.schema_id, schema_id),
            base_manifest_list=base_name,
            base_manifest_list_size=base_size,
            delta_manifest_list=delta_name,
            delta_manifest_list_size=delta_size,
            changelog_manifest_list=changelog.name,
            changelog_manifest_list_size=changelog.size,
            changelog_record_count=changelog.rows,
            index_manifest=self._index_manifest(change, latest, files),
            commit_user=change.author.user,
            writer_version=_WRITER_VERSION,
            commit_identifier=change.author.identifier,
            commit_kind=change.kind,
            time_millis=self._time_millis(latest),
            total_record_count=(latest.total_record_count if latest else 0) + rows,
            delta_record_count=rows,
            watermark=None if latest is None else latest.watermark,
            # Statistics belong to the columns of one schema.
            statistics=self._carried_statistics(latest),
            properties=_properties(change, latest),
            next_row_id=0 if latest is None else latest.next_row_id or 0,
            operation=change.operation,
        )
        return NewSnapshot(snapshot, files, entries, files.documents, files.indexes)

    def _time_millis(self, latest: Snapshot | None) -> int:
        # Time travel searches by time, so times must not decrease even if clocks do.
        now = self._clock_ms()
        return now if latest is None else max(now, latest.time_millis)

    def _carried_statistics(self, latest: Snapshot | None) -> str | None:
        if latest is None or latest.schema_id != self._view.schema.id:
            return None
        return latest.statistics

    def _base(
        self, change: Change, latest: Snapshot | None, files: _Files
    ) -> list[ManifestFileMeta]:
        if latest is None:
            return []
        manifests = self._metadata.manifests(latest)
        picked = pick_all if change.merges_manifests else pick
        rewrite = picked(manifests, MergeRules.of(self._view.options))
        merger = ManifestMerger(self._metadata, self._view, self._names)
        return merger.rewritten(manifests, rewrite, files) if rewrite.places else manifests

    def _converted(
        self, entries: Sequence[ManifestEntry], live: LiveFiles, files: _Files
    ) -> tuple[list[ManifestFileMeta], tuple[ManifestEntry, ...]]:
        """The manifests with which a conversion deletes the earlier files, and its own entries."""
        schema = self._view.schema
        before = of_unknown_keys(live.entries, schema)
        gone = (entry for entry in entries if entry.kind is FileKind.DELETE)
        came = (entry for entry in entries if entry.kind is FileKind.ADD)
        base = [self._manifest(before, files)] if before else []
        return base, (*of_unknown_keys(gone, schema), *came)

    def _manifest(self, entries: Sequence[ManifestEntry], files: _Files) -> ManifestFileMeta:
        name = self._names.metadata(MetadataFile.MANIFEST)
        data = encode_manifest(entries)
        files.note(paths.manifest_path(name), data, sized_manifest(Entries.of(entries)))
        types = [f.type for f in self._view.schema.partition_fields()]
        return summarize(entries, name, len(data), self._view.schema.id, types)

    def _changelog(self, change: Change, files: _Files) -> _Changelog:
        if not change.changelog:
            return _Changelog()
        name, size = self._manifest_list([self._manifest(change.changelog, files)], files)
        return _Changelog(name, size, sum(entry.file.row_count for entry in change.changelog))

    def _index_manifest(self, change: Change, latest: Snapshot | None, files: _Files) -> str | None:
        """The name of the index manifest: that of the previous snapshot, unless an index
        changed.
        """
        name = None if latest is None else latest.index_manifest
        made = {key: index for key, index in change.made.indexes.items() if index.has_changed}
        back = change.restored
        has_new = made or back.has_indexes
        if not has_new and (name is None or change.replaces is None):
            return name
        known = [] if latest is None else self._metadata.index_files(latest)
        # Indexes of replaced rows are not valid for the new ones.
        replaced = change.replaces or (lambda _: False)
        kept = [file for file in known if not replaced(file.partition)]
        if len(kept) == len(known) and not has_new:
            return name
        new = self._index_files({**made, **back.anew}, kept, files)
        # An index that has ended has no new file.
        left = [file for file in kept if file.key not in made]
        name = self._names.metadata(MetadataFile.INDEX_MANIFEST)
        indexes = replace_index_files(left, [*new, *back.indexes])
        data = encode_index_manifest(indexes)
        files.note(paths.manifest_path(name), data, sized_indexes(indexes, data))
        return name

    def _index_files(
        self,
        made: Mapping[IndexKey, BucketIndex],
        known: Iterable[IndexFile],
        files: _Files,
    ) -> Iterator[IndexFile]:
        """New index files, each on top of the known files of the same index."""
        before: dict[IndexKey, list[IndexFile]] = {}
        for file in known:
            before.setdefault(file.key, []).append(file)
        for key, index in made.items():
            encoded = index.encoded(self._view.store, before.get(key, ()), self._view.name)
            if encoded is not None:
                name = self._names.metadata(MetadataFile.INDEX)
                files[paths.index_path(name)] = encoded.data
                for beside, data in encoded.beside.items():
                    files[paths.index_path(beside)] = data
                files.indexes += self._remembering(encoded, paths.index_path(name))
                size = len(encoded.data)
                yield IndexFile(*key, name, size, encoded.row_count, encoded.ranges)

    def _remembering(self, encoded: EncodedIndex, path: str) -> list[Callable[[], None]]:
        store, kept_bytes_max = self._metadata.store, self._view.options.lookup_cache_bytes_max
        if encoded.remember is None or store.local_path(path) is not None:
            return []  # on local disk, a file is mapped and found by the name in its folder
        return [partial(encoded.remember, store, path, kept_bytes_max)]

    def _manifest_list(
        self, manifests: Sequence[ManifestFileMeta], files: _Files
    ) -> tuple[str, int]:
        name = self._names.metadata(MetadataFile.MANIFEST_LIST)
        data = encode_manifest_list(manifests)
        files.note(paths.manifest_path(name), data, sized_list(manifests))
        return name, len(data)


def _properties(change: Change, latest: Snapshot | None) -> Mapping[str, str] | None:
    """The properties of the previous snapshot, updated with the progress of the feed."""
    before = None if latest is None else latest.properties
    if change.progress is None:
        return before
    return {**(before or {}), **change.progress.after}


# -- what a commit changes in each partition, for catalogs that maintain counts --------------------


def partition_changes(view: TableView, entries: Sequence[ManifestEntry]) -> list[PartitionChange]:
    """The changes of manifest entries. For a table without partitions, there is one."""
    counted = _counted(Entries.of(entries))
    values = _values(view, counted["_PARTITION"].to_list())
    return [
        PartitionChange(
            each,
            row["rows"],
            row["files"],
            row["file_bytes"],
            _epoch_ms(row["newest"]),
            row["_TOTAL_BUCKETS"],
        )
        for each, row in zip(values, counted.iter_rows(named=True), strict=True)
    ]


def _counted(entries: Entries) -> pl.DataFrame:
    names = "_KIND", "_PARTITION", "_TOTAL_BUCKETS", "_ROW_COUNT", "_FILE_SIZE", "_CREATION_TIME"
    sign = pl.when(pl.col("_KIND") == FileKind.ADD.value).then(1).otherwise(-1)
    return (
        entries.columns(*names)
        .group_by("_PARTITION", maintain_order=True)
        .agg(
            pl.col("_TOTAL_BUCKETS").last(),
            rows=(sign * pl.col("_ROW_COUNT")).sum(),
            files=sign.sum(),
            file_bytes=(sign * pl.col("_FILE_SIZE")).sum(),
            newest=pl.col("_CREATION_TIME").max(),
        )
    )


def _values(view: TableView, partitions: Sequence[bytes]) -> list[dict[str, str]]:
    fields = view.schema.partition_fields()
    if not fields or not partitions:
        return [{} for _ in partitions]
    columns = decode_rows(partitions, [field.type for field in fields])
    options = view.options
    return partition_values(
        columns,
        fields,
        legacy=options.partition_legacy_name,
        default_name=options.partition_default_name,
    )


def _epoch_ms(wall_clock_ms: int | None) -> int:
    """Convert a wall-clock time, as the format stores it for a file, to epoch milliseconds. 0 if
    there is none.
    """
    if wall_clock_ms is None:
        return 0
    told = datetime(1970, 1, 1) + timedelta(milliseconds=wall_clock_ms)
    return round(told.timestamp() * 1000)
