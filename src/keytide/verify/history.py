"""Verifies the snapshots of a branch in order: how each follows from the previous one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from keytide.base.plural import counted
from keytide.format import paths
from keytide.format.manifest import (
    FileKind,
    Identity,
    ManifestEntry,
    ManifestFileMeta,
    live_entries,
)
from keytide.format.snapshot import Snapshot
from keytide.read.sections import key_ranks
from keytide.read.statistics import decoded
from keytide.snapshot.live_files import BucketId
from keytide.verify.branch import Branch
from keytide.verify.finding import REWRITE, Findings
from keytide.verify.manifests import Manifests

__all__ = ["Seen", "history_of"]

Live = Mapping[Identity, ManifestEntry]


@dataclass(frozen=True)
class Seen:
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


def history_of(branch: Branch, manifests: Manifests, findings: Findings) -> Iterator[Seen]:
    """The snapshots of a branch, oldest first, then its tags, as far as they can be read."""
    walk = _Walk(branch, manifests, findings)
    before: _Lists | None = None
    for number, snapshot in branch.snapshots.items():
        path = branch.path(paths.snapshot_path(number))
        is_next = before is not None and before.snapshot.id == number - 1
        known = before if is_next else None
        before = walk.step(path, snapshot, known)
        if before is not None:
            added = before.live if known is None else walk.new_in(before.live, known.live)
            yield Seen(path, snapshot, before.live, tuple(added.values()), known is not None)
    for name, tag in branch.tags.items():
        if branch.snapshots.get(tag.snapshot.id) == tag.snapshot:
            continue
        path = branch.path(paths.tag_path(name))
        lists = walk.step(path, tag.snapshot, None)
        if lists is not None:
            yield Seen(path, tag.snapshot, lists.live, tuple(lists.live.values()))


@dataclass(frozen=True)
class _Walk:
    branch: Branch
    manifests: Manifests
    findings: Findings

    def step(self, path: str, snapshot: Snapshot, before: _Lists | None) -> _Lists | None:
        """The live files of a snapshot, checked against it and against the previous one."""
        self._check_schema(path, snapshot)
        base = self.manifests.listed(snapshot.base_manifest_list, snapshot.base_manifest_list_size)
        delta = self.manifests.listed(
            snapshot.delta_manifest_list, snapshot.delta_manifest_list_size
        )
        changes = self.manifests.entries(delta)
        start = self._before(path, base, before)
        if start is None or changes is None or base is None or delta is None:
            return None
        self._check_changes(path, changes, start)
        live = _after(start.live, changes)
        self._check_counts(path, snapshot, changes, live, before)
        self._check_layout(path, live, None if before is None else changes)
        names = frozenset(meta.file_name for meta in (*base, *delta))
        return _Lists(snapshot, live, names, start.deleted | _deleted_by(changes))

    @staticmethod
    def new_in(live: Live, before: Live) -> dict[Identity, ManifestEntry]:
        """The files that were not live before."""
        return {identity: live[identity] for identity in live.keys() - before.keys()}

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

    def _check_schema(self, path: str, snapshot: Snapshot) -> None:
        if snapshot.schema_id not in self.branch.schemas:
            self.findings.add(
                self.branch.path(f"{paths.schema_dir()}/schema-{snapshot.schema_id}"),
                "missing or damaged",
                f"the schema that {path} names",
            )

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
        self._check_bucket_numbers(path, buckets)
        for files in buckets.values():
            self._check_levels(path, files)

    def _check_bucket_numbers(
        self, path: str, buckets: Mapping[BucketId, list[ManifestEntry]]
    ) -> None:
        totals: dict[bytes, int] = {}
        for (partition, bucket), files in buckets.items():
            for entry in files:
                total = entry.total_buckets
                if bucket < 0 or total < 1:
                    continue  # dynamic and postponed buckets have no fixed number
                known = totals.setdefault(partition, total)
                if bucket >= total or total != known:
                    self.findings.add(
                        path,
                        f"{entry.file.file_name} is in bucket {bucket} of {total}",
                        f"a bucket below {known}, the number of buckets of its partition",
                        REWRITE,
                    )

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
            by_level = sorted(
                (
                    (entry.file.level, low, high, entry)
                    for entry, low, high in placed
                    if low <= high
                ),
                key=lambda each: each[:3],
            )
            for (level, _, high, lower), (next_level, low, _, upper_file) in itertools.pairwise(
                by_level
            ):
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


def _after(start: Live, changes: Iterable[ManifestEntry]) -> dict[Identity, ManifestEntry]:
    changed = list(changes)
    added = {e.identity: e for e in changed if e.kind is FileKind.ADD}
    gone = {e.identity for e in changed if e.kind is FileKind.DELETE}
    return {i: e for i, e in {**start, **added}.items() if i not in gone}
