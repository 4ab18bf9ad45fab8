"""The files of a snapshot: its manifest, its manifest lists, and the counts of its partitions.

Everything is built in memory, so that the commit can be stored in one step.

Manifests of earlier commits are merged into fewer ones, with their entries copied in encoded form.
Merging does not change the meaning of an entry, only its place. So a snapshot means the same with
other groups of entries. The changes of a commit itself are never merged with earlier ones, because
readers of changes look for them separately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import polars as pl

from keytide.base.dataclass import dataclass, replace
from keytide.commit.change import Change, of_unknown_keys
from keytide.format import paths
from keytide.format.avro import EncodedRecords
from keytide.format.binary_row import decode_rows
from keytide.format.index_files import (
    IndexFile,
    IndexKey,
    encode_index_manifest,
    replace_index_files,
)
from keytide.format.manifest import (
    ManifestFileMeta,
    copy_manifest,
    encode_manifest,
    encode_manifest_list,
    summarize,
    summarize_encoded,
)
from keytide.format.manifest_entry import Entries, FileKind, ManifestEntry, without_pairs
from keytide.format.partition import partition_values
from keytide.format.paths import FileNames, MetadataFile
from keytide.format.snapshot import BASE_PROPERTY, CommitKind, Snapshot
from keytide.options import TableOptions
from keytide.snapshot.authority import PartitionChange
from keytide.snapshot.live_files import BucketIndex, LiveFiles
from keytide.snapshot.metadata import TableMetadata, sized_indexes, sized_list, sized_manifest
from keytide.snapshot.state import TableView

# -- the choice of manifests to merge --------------------------------------------------------------


@dataclass(frozen=True)
class MergeRules:
    """When manifests are merged, according to the options of a table.

    `count_min` manifests are merged however small they are. Manifests that reach `target_bytes`
    together are merged however few they are. When all manifests that are small or delete files
    reach `full_bytes`, all of them are merged.
    """

    count_min: int = 30
    target_bytes: int = 8 << 20
    full_bytes: int = 16 << 20

    @classmethod
    def of(cls, options: TableOptions) -> MergeRules:
        """The rules of a table."""
        return cls(
            options.manifest_merge_min_count,
            options.manifest_target_bytes,
            options.manifest_full_merge_bytes,
        )


@dataclass(frozen=True)
class Rewrite:
    """The indexes of the manifests to rewrite, ascending.

    A full rewrite leaves no deletes: no manifest mentions a deleted file any more.
    """

    places: tuple[int, ...] = ()
    is_full: bool = False


def pick(manifests: Sequence[ManifestFileMeta], rules: MergeRules) -> Rewrite:
    """What to rewrite of a snapshot's manifests, given oldest first. Empty if it can wait."""
    everything = pick_all(manifests, rules)
    size = sum(manifests[place].file_size for place in everything.places)
    if everything.places and size >= rules.full_bytes:
        return everything
    return Rewrite(tuple(_minor(manifests, rules)))


def pick_all(manifests: Sequence[ManifestFileMeta], rules: MergeRules) -> Rewrite:
    """All manifests that are small or delete files. Empty if merging would not help."""
    places = tuple(
        place
        for place, manifest in enumerate(manifests)
        if manifest.num_deleted_files or manifest.file_size < rules.target_bytes
    )
    has_gain = any(stop - start > 1 for start, stop in runs_of(places)) or any(
        manifests[place].num_deleted_files for place in places
    )
    return Rewrite(places, is_full=True) if has_gain else Rewrite()


def runs_of(places: Sequence[int]) -> list[tuple[int, int]]:
    """Adjacent indexes as ranges, with exclusive ends."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


def _minor(manifests: Sequence[ManifestFileMeta], rules: MergeRules) -> list[int]:
    """Adjacent manifests that reach the target size together, and the newest ones when there are
    `count_min` of one size class.

    Classes grow by the factor `count_min`. A merge takes the newest manifests that are smaller than
    the limit of their class, and may fill the next class in turn. So an entry is rewritten only a
    logarithmic number of times, and the list of manifests stays short.
    """
    found: list[int] = []
    group: list[int] = []
    for place, manifest in enumerate(manifests):
        if manifest.file_size >= rules.target_bytes:
            group = []  # files stay in the order of their commits
            continue
        group.append(place)
        if len(group) > 1 and sum(manifests[p].file_size for p in group) >= rules.target_bytes:
            found += group
            group = []
    sizes = [manifests[p].num_added_files + manifests[p].num_deleted_files for p in group]
    start, limit = len(group), rules.count_min
    while start > 0:
        newer = start
        while start > 0 and sizes[start - 1] < limit:
            start -= 1
        if newer - start >= rules.count_min:
            return found + group[start:]
        limit *= rules.count_min
    return found


# -- merging of manifests --------------------------------------------------------------------------


# Pieces compress differently. A manifest below the target size would be merged again repeatedly.
_ROOM = 1.25


@dataclass(frozen=True)
class ManifestMerger:
    """Rewrites manifests of a table under new, unique `names`."""

    metadata: TableMetadata
    view: TableView
    names: FileNames

    def rewritten(
        self, manifests: Sequence[ManifestFileMeta], rewrite: Rewrite, files: dict[str, bytes]
    ) -> list[ManifestFileMeta]:
        """All manifests of a snapshot after the rewrite. Files to store are added to `files`.

        The old manifests stay for the snapshots that name them. Raises `DataError`, which names the
        manifest, if one is missing or damaged.
        """
        opened = self._opened(manifests, rewrite.places)
        if rewrite.is_full:
            # Those of the other manifests that add a file which the opened ones delete.
            entries = _entries_of(opened.values())
            unmatched = entries.filter(without_pairs(entries))
            is_delete = unmatched.column("_KIND") == FileKind.DELETE
            names = unmatched.filter(is_delete).column("_FILE_NAME")
            others = [place for place in range(len(manifests)) if place not in opened]
            for place, records in self._opened(manifests, others if len(names) else ()).items():
                if records.columns.select(_NAME.is_in(names.implode()).any()).item():
                    opened[place] = records

        # Matching adds and deletes in any of them cancel out.
        places = sorted(opened)
        entries = _entries_of(opened[place] for place in places)
        stays, first = without_pairs(entries, forget=rewrite.is_full), 0
        remaining = []
        for start, stop in runs_of(places):
            run = EncodedRecords.together([opened[place] for place in range(start, stop)])
            remaining.append((start, stop, run.filter(stays[first : first + len(run)])))
            first += len(run)
        merged = list(manifests)
        for start, stop, left in reversed(remaining):
            merged[start:stop] = self._new_manifests(left, files) if len(left) else []
        return merged

    def _opened(
        self, manifests: Sequence[ManifestFileMeta], places: Collection[int]
    ) -> dict[int, EncodedRecords]:
        opened = self.metadata.open_manifests([manifests[place] for place in places])
        return dict(zip(places, opened, strict=True))

    def _new_manifests(
        self, entries: EncodedRecords, files: dict[str, bytes]
    ) -> list[ManifestFileMeta]:
        """The entries as manifests of at least the target size, except for a single one."""
        whole = copy_manifest(entries)
        count = int(len(whole) / (_ROOM * self.view.options.manifest_target_bytes))
        types = [f.type for f in self.view.schema.partition_fields()]
        made = []
        for piece in [entries] if count < 2 else entries.pieces(count):
            data = whole if count < 2 else copy_manifest(piece)
            name = self.names.metadata(MetadataFile.MANIFEST)
            files[paths.manifest_path(name)] = data
            made.append(summarize_encoded(piece, name, len(data), self.view.schema.id, types))
        return made


_NAME = pl.col("_FILE").struct.field("_FILE_NAME")


def _entries_of(opened: Iterable[EncodedRecords]) -> Entries:
    return Entries.stored(pl.concat([records.columns for records in opened]))


# -- the files of a commit -------------------------------------------------------------------------


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
    changed_entries: tuple[ManifestEntry, ...]
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
            # Time travel searches by time, so times must not decrease even if clocks do.
            time_millis=max(self._clock_ms(), latest.time_millis if latest else 0),
            total_record_count=(latest.total_record_count if latest else 0) + rows,
            delta_record_count=rows,
            watermark=None if latest is None else latest.watermark,
            # Statistics belong to the columns of one schema.
            statistics=latest.statistics if latest and latest.schema_id == schema_id else None,
            properties=_properties(change, latest, delta_name),
            next_row_id=0 if latest is None else latest.next_row_id or 0,
            operation=change.operation,
        )
        return NewSnapshot(snapshot, files, entries, files.documents, files.indexes)

    def _base(
        self, change: Change, latest: Snapshot | None, files: _Files
    ) -> list[ManifestFileMeta]:
        if latest is None:
            return []
        manifests = self._metadata.manifests(latest)
        picked = pick_all if change.merges_manifests else pick
        rules = MergeRules.of(self._view.options)
        if change.kind is CommitKind.COMPACT:
            # Earlier than a write, which somebody waits for.
            rules = replace(rules, count_min=max(2, rules.count_min * 2 // 3))
        rewrite = picked(manifests, rules)
        if change.merges_manifests and not rewrite.places:
            # A compaction that has the manifests of the snapshot before it looks as if its list of
            # changes were damaged.
            rewrite = Rewrite(tuple(range(len(manifests))[-1:]))
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
        made = {key: index for key, index in change.result.indexes.items() if index.has_changed}
        back = change.restored
        has_new = made or back.indexes or back.rewritten_indexes
        if not has_new and (name is None or change.replaces is None):
            return name
        known = [] if latest is None else self._metadata.index_files(latest)
        # Indexes of replaced rows are not valid for the new ones.
        replaced = change.replaces or (lambda _: False)
        kept = [file for file in known if not replaced(file.partition)]
        if len(kept) == len(known) and not has_new:
            return name
        new = self._index_files({**made, **back.rewritten_indexes}, kept, files)
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
        store, kept_bytes_max = self._metadata.store, self._view.options.lookup_cache_bytes_max
        for key, index in made.items():
            encoded = index.encoded(self._view.store, before.get(key, ()), self._view.name)
            if encoded is not None:
                name = self._names.metadata(MetadataFile.INDEX)
                path = paths.index_path(name)
                files[path] = encoded.data
                for beside, data in encoded.more_files.items():
                    files[paths.index_path(beside)] = data
                # On local disk, a file is mapped and found by the name in its folder.
                if encoded.remember is not None and store.local_path(path) is None:
                    remember = partial(encoded.remember, store, path, kept_bytes_max)
                    files.indexes.append(remember)
                size = len(encoded.data)
                yield IndexFile(*key, name, size, encoded.row_count, encoded.ranges)

    def _manifest_list(
        self, manifests: Sequence[ManifestFileMeta], files: _Files
    ) -> tuple[str, int]:
        name = self._names.metadata(MetadataFile.MANIFEST_LIST)
        data = encode_manifest_list(manifests)
        files.note(paths.manifest_path(name), data, sized_list(manifests))
        return name, len(data)


def _properties(change: Change, latest: Snapshot | None, identity: str) -> Mapping[str, str] | None:
    """The properties of the previous snapshot, updated with the progress of the feed, and with the
    snapshot that this one is made from.
    """
    after = {} if change.progress is None else change.progress.after
    if latest is None:
        return after or None
    return {**(latest.properties or {}), **after, BASE_PROPERTY: f"{identity} {latest.identity}"}


# -- counts of partitions, for catalogs that maintain them -----------------------------------------


def partition_changes(view: TableView, entries: Sequence[ManifestEntry]) -> list[PartitionChange]:
    """The changes of manifest entries. For a table without partitions, there is one."""
    names = "_KIND", "_PARTITION", "_TOTAL_BUCKETS", "_ROW_COUNT", "_FILE_SIZE", "_CREATION_TIME"
    sign = pl.when(pl.col("_KIND") == FileKind.ADD.value).then(1).otherwise(-1)
    by_partition = Entries.of(entries).columns(*names).group_by("_PARTITION", maintain_order=True)
    counted = by_partition.agg(
        pl.col("_TOTAL_BUCKETS").last(),
        rows=(sign * pl.col("_ROW_COUNT")).sum(),
        files=sign.sum(),
        file_bytes=(sign * pl.col("_FILE_SIZE")).sum(),
        newest=pl.col("_CREATION_TIME").max(),
    )
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
    moment = datetime(1970, 1, 1) + timedelta(milliseconds=wall_clock_ms)
    return round(moment.timestamp() * 1000)
