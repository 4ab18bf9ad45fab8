"""Raises files that no commit references yet to the highest level, where all readers see them.

Most readers of deletion vectors do not read level 0, which later compactions raise. What replaces
the rows of whole buckets must be visible with its own commit. Otherwise readers would see neither
the old rows nor the new ones until then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from keytide.commit.snapshot_files import wall_clock_ms
from keytide.commit.transaction import Transaction
from keytide.compaction.compact import local_runner, memory_of
from keytide.compaction.picking import Rules, pick_all, sorted_runs
from keytide.compaction.rewriting import Compacted, CompactTask
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableView
from keytide.tasks.runner import TaskRunner
from keytide.write.task import Written

__all__ = ["raise_quietly", "raise_replacement"]


def raise_replacement(transaction: Transaction, runner: TaskRunner | None = None) -> None:
    """Raise what a transaction has collected to replace whole partitions, if it would be hidden.

    The changelog emits the rows, as it would after a later compaction. Rows without a bucket stay
    as they are. Raises the errors of a compaction.
    """
    view, parts = transaction.view, transaction.taken
    if view.options.merges_on_read or not view.kind.keeps_versions:
        return
    hidden = [entry for part in parts for entry in part.entries if entry.bucket >= 0]
    left = [tuple(entry for entry in part.entries if entry.bucket < 0) for part in parts]
    transaction.settle()
    raised: list[Written] = []
    transaction.taken = raised
    raise_files(view, hidden, runner or local_runner(), raised.append)
    kept = (replace(part, entries=rest) for part, rest in zip(parts, left, strict=True))
    transaction.taken = [*kept, *raised]


def raise_quietly(
    view: TableView, files: Sequence[ManifestEntry], runner: TaskRunner,
    take: Callable[[Written], None],
) -> None:  # fmt: skip
    """As `raise_files`, but the changelog does not emit the rows."""
    options = replace(view.options, changelog_producer="none")
    raise_files(replace(view, options=options), files, runner, take)


def raise_files(
    view: TableView, files: Sequence[ManifestEntry], runner: TaskRunner,
    take: Callable[[Written], None],
) -> None:  # fmt: skip
    """Merge new files, which are all of their buckets, on the highest level.

    `take` gets the results. Files that they do not contain are deleted, also after an error.
    """
    buckets: dict[BucketId, list[ManifestEntry]] = {}
    for entry in files:
        buckets.setdefault((entry.partition, entry.bucket), []).append(entry)
    kept: set[str] = set()

    def take_made(compacted: Compacted) -> None:
        assert compacted.written is not None, "all runs are read, so no older files are needed"
        made = [e for e in compacted.written.entries if e.kind is FileKind.ADD]
        kept.update(entry.file.file_name for entry in made)
        take(Written(tuple(made), changelog=compacted.written.changelog))

    try:
        if buckets:
            runner.each(_tasks(view, list(buckets.values())), take_made)
    finally:
        passed = (entry for entry in files if entry.file.file_name not in kept)
        view.store.discard([path for entry in passed for path in view.stored_paths(entry)])


def _tasks(view: TableView, buckets: list[list[ManifestEntry]]) -> list[CompactTask]:
    """Tasks that merge the files of buckets on the highest level. New files have no dead rows."""
    plain = replace(view, options=replace(view.options, deletion_vectors_enabled=False))
    memory, now_ms, rules = (
        memory_of(view, len(buckets)),
        wall_clock_ms(),
        Rules.of(view.options, only_whole=False, moves=False),
    )
    units = (pick_all(sorted_runs(files), rules) for files in buckets)
    return [CompactTask(plain, unit, now_ms, memory) for unit in units if unit is not None]
