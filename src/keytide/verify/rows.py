"""Verification of rows: laws of visible rows, steps between snapshots, and hash indexes.

The laws are: one row per key, and no deleted row. Each snapshot must follow from the previous one.
Each key in dynamic buckets must be in the bucket whose index has its hash.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import scratch
from keytide.base.row_kind import RETRACTS
from keytide.base.text import counted
from keytide.format import paths
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.bucket import row_hashes
from keytide.format.data_file import VALUE_KIND, FileReader
from keytide.format.index_files import HASH, IndexFile
from keytide.format.manifest import ManifestFileMeta, live_entries
from keytide.format.manifest_entry import FileKind, Identity, ManifestEntry
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.read.runs import StoredVersions
from keytide.read.scan import Scan
from keytide.read.sections import decoded, key_ranks
from keytide.snapshot.live_files import BucketId
from keytide.types import arrow_schema
from keytide.verify.finding import REWRITE, Findings
from keytide.verify.metadata import Branch, Manifests

# -- steps between snapshots -----------------------------------------------------------------------


Live = Mapping[Identity, ManifestEntry]


@dataclass(frozen=True)
class SnapshotFiles:
    """A snapshot with its live files. `added` are those that the previous one did not have.

    `path` is the file of the snapshot. It `follows` if the snapshot that was processed before it is
    its predecessor.
    """

    path: str
    snapshot: Snapshot
    live: Live
    added: tuple[ManifestEntry, ...]
    follows: bool = False


@dataclass(frozen=True)
class _Lists:
    """The live files after a snapshot, the manifests that describe them, and the files that these
    delete.
    """

    snapshot: Snapshot
    live: Live
    manifests: frozenset[str]
    deleted: frozenset[Identity]


@dataclass(frozen=True)
class _Start:
    """The start of a snapshot: its live files, and what its base manifests delete."""

    live: Live
    deleted: frozenset[Identity]


def history_of(branch: Branch, manifests: Manifests, findings: Findings) -> Iterator[SnapshotFiles]:
    """The snapshots of a branch, oldest first, then its tags, as far as they can be read."""
    walk = _Walk(branch, manifests, findings)
    before: _Lists | None = None
    for number, snapshot in branch.snapshots.items():
        path = branch.path(paths.snapshot_path(number))
        is_next = before is not None and before.snapshot.id == number - 1
        known = before if is_next else None
        before = walk.step(path, snapshot, known)
        if before is not None:
            old = {} if known is None else known.live
            added = tuple(entry for name, entry in before.live.items() if name not in old)
            yield SnapshotFiles(path, snapshot, before.live, added, known is not None)
    for name, tag in branch.tags.items():
        if branch.snapshots.get(tag.snapshot.id) == tag.snapshot:
            continue
        path = branch.path(paths.tag_path(name))
        lists = walk.step(path, tag.snapshot, None)
        if lists is not None:
            yield SnapshotFiles(path, tag.snapshot, lists.live, tuple(lists.live.values()))


@dataclass(frozen=True)
class _Walk:
    branch: Branch
    manifests: Manifests
    findings: Findings

    def step(self, path: str, snapshot: Snapshot, before: _Lists | None) -> _Lists | None:
        """The live files of a snapshot, checked against it and against the previous one."""
        if snapshot.schema_id not in self.branch.schemas:
            self.findings.add(
                self.branch.path(f"{paths.schema_dir()}/schema-{snapshot.schema_id}"),
                "missing or damaged",
                f"the schema that {path} names",
            )
        base = self.manifests.listed(snapshot.base_manifest_list, snapshot.base_manifest_list_size)
        delta = self.manifests.listed(
            snapshot.delta_manifest_list, snapshot.delta_manifest_list_size
        )
        changes = self.manifests.entries(delta)
        start = self._before(path, base, before)
        if start is None or changes is None or base is None or delta is None:
            return None
        self._check_changes(path, changes, start)
        names = frozenset(meta.file_name for meta in (*base, *delta))
        if before is not None and not delta and names == before.manifests:
            self._check_idle(path, snapshot, before)

        changed = list(changes)
        added = {e.identity: e for e in changed if e.kind is FileKind.ADD}
        gone = {e.identity for e in changed if e.kind is FileKind.DELETE}
        live = {i: e for i, e in {**start.live, **added}.items() if i not in gone}
        self._check_counts(path, snapshot, changes, live, before)
        self._check_layout(path, live, None if before is None else changes)
        return _Lists(snapshot, live, names, start.deleted | _deleted_by(changes))

    def _check_idle(self, path: str, snapshot: Snapshot, before: _Lists) -> None:
        """Check a snapshot with the same manifests as the one before it.

        If a compaction has lost its list of files that move to another level, no count is wrong. A
        conversion to another kind of table changes the schema. Compactions of other engines, which
        name no base, may change an index alone.
        """
        last = before.snapshot
        is_possible = (
            snapshot.commit_kind is not CommitKind.COMPACT
            or snapshot.schema_id != last.schema_id
            or (snapshot.base is None and snapshot.index_manifest != last.index_manifest)
        )
        if before.live and not is_possible:
            self.findings.add(
                path,
                "it is a compaction without changes of files",
                "a list of the files that it replaced and created",
                "Compact the table again",
            )

    def _before(
        self, path: str, base: list[ManifestFileMeta] | None, before: _Lists | None
    ) -> _Start | None:
        """The live files before a snapshot's own changes, according to its base list."""
        names = frozenset(meta.file_name for meta in base or ())
        if base is not None and before is not None and names == before.manifests:
            # The same manifests have the same content, but each list describes them again.
            known = _Start(before.live, before.deleted)
            return known if self.manifests.entries(base) is not None else None
        entries = self.manifests.entries(base)
        if entries is None:
            return None
        found = live_entries(entries)
        if before is not None and found.keys() != before.live.keys():
            lost = len(before.live.keys() - found.keys())
            more = len(found.keys() - before.live.keys())
            self.findings.add(
                path,
                f"its base lacks {counted(lost, 'file')} of snapshot {before.snapshot.id} and "
                f"has {counted(more, 'file')} that were not in it",
                f"the files of snapshot {before.snapshot.id}",
                REWRITE,
            )
        return _Start(found, _deleted_by(entries))

    def _check_changes(self, path: str, changes: Iterable[ManifestEntry], start: _Start) -> None:
        seen: set[tuple[FileKind, Identity]] = set()
        for entry in changes:
            name = entry.file.file_name
            if entry.kind is FileKind.DELETE and entry.identity not in start.live:
                self.findings.add(
                    path, f"it deletes {name}, which was not live", "deletions of live files only"
                )
            if entry.kind is FileKind.ADD and entry.identity in start.live:
                self.findings.add(
                    path, f"it adds {name}, which was already live", "additions of new files only"
                )
            elif entry.kind is FileKind.ADD and entry.identity in start.deleted:
                # Readers that come from the previous snapshot see the file, all others do not.
                self.findings.add(
                    path,
                    f"it adds {name}, which one of its manifests also deletes, so that readers "
                    "do not see its rows",
                    "each file once, with a unique name",
                    "Restore the latest snapshot that shows the rows, before it expires",
                )
            if (entry.kind, entry.identity) in seen:
                self.findings.add(path, f"it lists {name} twice", "each file once")
            seen.add((entry.kind, entry.identity))

    def _check_counts(
        self,
        path: str,
        snapshot: Snapshot,
        changes: Iterable[ManifestEntry],
        live: Live,
        before: _Lists | None,
    ) -> None:
        added = sum(
            e.file.row_count if e.kind is FileKind.ADD else -e.file.row_count for e in changes
        )
        total = sum(e.file.row_count for e in live.values())
        if snapshot.delta_record_count != added:
            self.findings.add(
                path,
                f"deltaRecordCount is {snapshot.delta_record_count}",
                f"{added}, the rows of the files it adds minus those it deletes",
            )
        if snapshot.total_record_count != total:
            self.findings.add(
                path,
                f"totalRecordCount is {snapshot.total_record_count}",
                f"{total}, the rows of its files",
            )
        if snapshot.changelog_manifest_list is not None:
            entries = self.manifests.entries(
                self.manifests.listed(
                    snapshot.changelog_manifest_list, snapshot.changelog_manifest_list_size
                )
            )
            rows = None if entries is None else sum(e.file.row_count for e in entries)
            if rows is not None and rows != (snapshot.changelog_record_count or 0):
                self.findings.add(
                    path,
                    f"changelogRecordCount is {snapshot.changelog_record_count}",
                    f"{rows}, the rows of its changelog files",
                )

    # -- buckets --------------------------------------------------------------------------------

    def _check_layout(self, path: str, live: Live, changes: Iterable[ManifestEntry] | None) -> None:
        """Check levels and numbers of buckets.

        If the changes are known, only where something changed.
        """
        touched = None if changes is None else {(e.partition, e.bucket) for e in changes}
        buckets: dict[BucketId, list[ManifestEntry]] = {}
        for entry in live.values():
            bucket = (entry.partition, entry.bucket)
            if touched is None or bucket in touched:
                buckets.setdefault(bucket, []).append(entry)
        totals: dict[bytes, int] = {}
        for (partition, number), files in buckets.items():
            for entry in files:
                total = entry.total_buckets
                if number < 0 or total < 1:
                    continue  # dynamic and postponed buckets have no fixed number
                known = totals.setdefault(partition, total)
                if number >= total or total != known:
                    self.findings.add(
                        path,
                        f"{entry.file.file_name} is in bucket {number} of {total}",
                        f"a bucket below {known}, the number of buckets of its partition",
                        REWRITE,
                    )
        for files in buckets.values():
            self._check_levels(path, files)

    def _check_levels(self, path: str, files: Iterable[ManifestEntry]) -> None:
        upper = [entry for entry in files if entry.file.level > 0]
        if len(upper) < 2:
            return
        view = self.branch.view(upper[0].file.schema_id)
        key = () if view is None else view.schema.trimmed_primary_key_fields()
        if not key:
            return
        with self.findings.reading(path, "keys of the primary key's types"):
            ends = [*(e.file.min_key for e in upper), *(e.file.max_key for e in upper)]
            ranks = key_ranks(decoded(ends, key))
            placed = zip(upper, ranks[: len(upper)], ranks[len(upper) :], strict=True)
            # If a writer sorts NaN first, the ends do not bound the file.
            bounded = [(e.file.level, low, high, e) for e, low, high in placed if low <= high]
            by_level = sorted(bounded, key=lambda each: each[:3])
            for one, other in itertools.pairwise(by_level):
                (level, _, high, lower), (next_level, low, _, upper_file) = one, other
                if level == next_level and high >= low:
                    self.findings.add(
                        path,
                        f"{lower.file.file_name} and {upper_file.file.file_name} overlap on "
                        f"level {level} of bucket {lower.bucket}",
                        "files of a level above 0 that share no key",
                        "Compact the bucket with the engine that wrote the files, or read an "
                        "older snapshot",
                    )


def _deleted_by(entries: Iterable[ManifestEntry]) -> frozenset[Identity]:
    return frozenset(entry.identity for entry in entries if entry.kind is FileKind.DELETE)


# -- laws of visible rows --------------------------------------------------------------------------


_HASH, _COUNT = map(scratch, ("hash", "count"))
# About how many copies of a hash are in memory while duplicates are searched.
_COPIES = 6


def check_one_row_per_key(scan: Scan, path: str, findings: Findings) -> None:
    """Search for a key that two rows of a scan have. `path` is the file of its snapshot.

    REQUIRES: the columns of the scan are the key. Keys are compared by 8-byte hashes. If these do
    not fit in the memory for reading, the rows are read several times, each time for a part of the
    hashes.
    """
    rows = sum(entry.file.row_count for entry in scan.live.entries)
    passes = 1 + rows * 8 * _COPIES // scan.view.options.read_memory_bytes
    of_key = pl.struct(scan.columns).hash().alias(_HASH)
    with findings.reading(path):
        for part in range(passes):
            hashes = [
                frame.select(of_key).filter(pl.col(_HASH) % passes == part)
                for frame in _frames(scan)
            ]
            repeated = pl.concat(hashes).filter(pl.col(_HASH).is_duplicated()) if hashes else None
            if repeated is not None and repeated.height:
                alike = of_key.is_in(repeated[_HASH].unique().implode())

                # Report a duplicate key, if the keys are equal and not only their hashes.
                keys = pl.concat(frame.filter(alike) for frame in _frames(scan))
                twice = keys.group_by(keys.columns).len(_COUNT).filter(pl.col(_COUNT) > 1)
                for row in twice.head(1).iter_rows(named=True):
                    spelled = ", ".join(
                        f"{name} = {value!r}" for name, value in row.items() if name != _COUNT
                    )
                    findings.add(
                        path,
                        f"{counted(row[_COUNT], 'row')} with the key {spelled}",
                        "one row per key",
                        REWRITE,
                    )
                return


def check_deletes_are_marked(scan: Scan, path: str, findings: Findings) -> None:
    """Search for deletes above level 0 that no deletion vector marks and no manifest counts.

    Other engines read such a file without a merge, and show the deletes as rows.
    """
    view = scan.view
    if not view.options.deletion_vectors_enabled:
        return
    with findings.reading(path):
        for bucket in scan.plan.buckets:
            stored = StoredVersions(view, bucket.partition, (VALUE_KIND,))
            for file in bucket.files:
                if file.may_retract or not file.has_kinds:
                    continue
                # Readers that merge also receive marked deletes. Here, only the marks count.
                shown = stored.of_file(replace(file, keeps_retracts=False))
                count = int(shown[VALUE_KIND].is_in(list(RETRACTS)).sum())
                if count:
                    findings.add(
                        view.shown_path(file.entry),
                        f"{counted(count, 'delete')} visible in {path}",
                        "each of them marked as deleted by a deletion vector",
                        REWRITE,
                    )


def _frames(scan: Scan) -> Iterator[pl.DataFrame]:
    return (from_arrow(pa.Table.from_batches([batch])) for batch in scan.to_batches())


# -- hash indexes ----------------------------------------------------------------------------------


Hashes = npt.NDArray[np.int32]

_WAY_OUT = f"{REWRITE}; this recreates the index"


def check_hashes(
    branch: Branch, seen: SnapshotFiles, indexes: Iterable[IndexFile], findings: Findings
) -> None:
    """Check the hash indexes of a snapshot against each other and against the keys of its files."""
    by_bucket = {(i.partition, i.bucket): i for i in indexes if i.index_type == HASH}
    known: dict[BucketId, Hashes] = {}
    for bucket, index in by_bucket.items():
        path = paths.index_path(index.file_name)
        with findings.reading(path):
            known[bucket] = np.frombuffer(branch.store.read(path), ">i4").astype(np.int32)
    # A hash that is in two buckets of a partition could be that of a key that is in both.
    held: dict[bytes, Hashes] = {}
    for (partition, number), hashes in known.items():
        before = held.get(partition, np.empty(0, np.int32))
        twice = np.intersect1d(before, hashes)
        if len(twice):
            findings.add(
                paths.index_path(by_bucket[partition, number].file_name),
                f"{counted(len(twice), 'hash value')} that are in another bucket too",
                "each hash in one bucket of a partition",
                _WAY_OUT,
            )
        held[partition] = np.concatenate([before, hashes])
    for entry in seen.live.values():
        bucket = (entry.partition, entry.bucket)
        if bucket in known:
            _check_file(branch, entry, known[bucket], by_bucket[bucket], findings)


def _check_file(
    branch: Branch, entry: ManifestEntry, hashes: Hashes, index: IndexFile, findings: Findings
) -> None:
    view = branch.view(entry.file.schema_id)
    if view is None:
        return
    key = view.schema.trimmed_primary_key_fields()
    path = view.shown_path(entry)
    with findings.reading(path):
        reader = FileReader(*view.data_file(entry), view.schema, key)
        for span in reader.spans(1 << 18):
            keys = to_arrow(reader.read(*span), arrow_schema(key))
            strange = ~np.isin(row_hashes(keys.columns, [f.type for f in key]), hashes)
            if strange.any():
                findings.add(
                    path,
                    f"{counted(int(strange.sum()), 'row')} with keys that are not in "
                    f"{index.file_name}",
                    "keys whose hashes are in the index of their bucket",
                    _WAY_OUT,
                )
