"""What of a table is compacted: values only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from keytide.format.data_file import local_wall_clock_ms
from keytide.format.manifest import ManifestEntry
from keytide.merge.engines import compacts_by_lookup
from keytide.options import keys
from keytide.table.state.live_files import BucketId, LiveFiles
from keytide.table.state.view import TableView
from keytide.table.upkeep.picking import (
    Rules,
    SortedRun,
    Unit,
    pick,
    pick_all,
    pick_new,
    sorted_runs,
)

__all__ = ["Planner", "why_not_compacted"]


def why_not_compacted(view: TableView) -> str | None:
    """Why the files of a table stay as they are; None where they can be compacted."""
    producer = view.options.changelog_producer
    if not view.kind.has_key:
        return None
    if producer == "lookup":
        return (
            f"'{keys.CHANGELOG_PRODUCER}' = '{producer}' asks compactions for changelog files, "
            f"which those of this release do not write; compact it with the engine that reads them"
        )
    kept = view.engine.why_kept_apart
    return None if kept is None else f"{kept}. Leave its files as they are"


@dataclass(frozen=True)
class Planner:
    """Finds what to compact of a table; in the buckets of `marked` some rows are dead."""

    view: TableView
    marked: Collection[BucketId] = ()

    def due(self, live: LiveFiles, buckets: Collection[BucketId] | None = None) -> list[Unit]:
        """What is due, of some buckets or of all."""
        now_ms = local_wall_clock_ms()
        found = (self._due_of(sorted_runs(f), now_ms) for f in _by_bucket(live, buckets))
        return [unit for unit in found if unit is not None]

    def whole(self, live: LiveFiles, buckets: Collection[BucketId] | None = None) -> list[Unit]:
        """All runs of each bucket that has something to gain."""
        found = (
            pick_all(sorted_runs(files), self._rules, again=self._has_more_to_gain(files))
            for files in _by_bucket(live, buckets)
        )
        return [unit for unit in found if unit is not None]

    def in_full(self, live: LiveFiles) -> list[Unit]:
        """All runs of each bucket that has more than what its last full compaction left."""
        found = (pick_all(sorted_runs(f), self._rules) for f in _by_bucket(live, None))
        return [unit for unit in found if unit is not None]

    def may_be_due(self, live: LiveFiles, buckets: Iterable[BucketId]) -> set[BucketId]:
        """The buckets that have runs enough; it takes no look at their files."""
        least = 2 if self._rules.has_early_rules else self._rules.trigger_runs
        states = {bucket: live.bucket(bucket) for bucket in buckets}
        return {
            bucket
            for bucket, state in states.items()
            if state.runs >= least or (self._raises_new and state.level_files.get(0))
        }

    def are_too_many(self, live: LiveFiles, buckets: Iterable[BucketId]) -> bool:
        """Whether a bucket has more runs than a write may leave there."""
        stop = self.view.options.stop_trigger_runs
        return any(live.bucket(bucket).runs > stop for bucket in buckets)

    def hides(self, live: LiveFiles, entries: Iterable[ManifestEntry]) -> bool:
        """Whether rows of some files are not shown before a compaction, and it has not come yet."""
        if not self._raises_new:
            return False
        return bool(live.present({e.identity for e in entries if e.file.level == 0}))

    @property
    def _raises_new(self) -> bool:
        """Whether all of level 0 is always due, because most readers do not look there."""
        return self.view.options.deletion_vectors_enabled

    def _due_of(self, runs: Sequence[SortedRun], now_ms: int) -> Unit | None:
        unit = pick(runs, self._rules, now_ms)
        return pick_new(runs, self._rules) if unit is None and self._raises_new else unit

    def _has_more_to_gain(self, files: Sequence[ManifestEntry]) -> bool:
        """Whether there may be something to leave out of a bucket that is one run already."""
        bucket = (files[0].partition, files[0].bucket)
        return bucket in self.marked or self._may_forget(files)

    def _may_forget(self, files: Iterable[ManifestEntry]) -> bool:
        """Whether there may be tombstones to forget, where nothing else is to be gained."""
        view, retention_ms = self.view, self.view.options.tombstone_retention_ms
        if not view.engine.tombstones or (view.needs_tombstones and retention_ms is None):
            return False
        return any(entry.file.delete_row_count != 0 for entry in files)

    @cached_property
    def _rules(self) -> Rules:
        options = self.view.options
        only_whole = self.view.engine.needs_oldest or compacts_by_lookup(options)
        # With deletion vectors the older version of a key is looked up, wherever it lies.
        return Rules.of(options, only_whole=only_whole and not self._raises_new)


def _by_bucket(
    live: LiveFiles, buckets: Collection[BucketId] | None
) -> Iterable[list[ManifestEntry]]:
    """The files of each bucket; postponed rows, which are in none, are left out."""
    files: dict[BucketId, list[ManifestEntry]] = {}
    for entry in live.entries:
        bucket = (entry.partition, entry.bucket)
        if entry.bucket >= 0 and (buckets is None or bucket in buckets):
            files.setdefault(bucket, []).append(entry)
    return files.values()
