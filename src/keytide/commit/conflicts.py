"""Conflicts of commits: whether a change fits with what others have committed. Values only.

A change fits on top of the live files, fits if its rows get higher sequence numbers, or conflicts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from keytide.base.dataclass import dataclass
from keytide.commit.change import NOTHING_DEAD, Change, MovedKeys, moved_files
from keytide.format.manifest_entry import FileKind
from keytide.format.snapshot import CommitKind
from keytide.snapshot.live_files import BucketId, DeadRows, LiveFiles, number_after


@dataclass(frozen=True)
class Fits:
    """The change can be made as it is."""


@dataclass(frozen=True)
class Restamp:
    """The change can be made after some files get higher sequence numbers.

    `numbers` has the first number of each of these files, by its index in the entries.
    """

    numbers: Mapping[int, int]


@dataclass(frozen=True)
class Conflict:
    """The change cannot be made. `reason` says why and what to do.

    If it is final, making the change again does not help.
    """

    reason: str
    is_final: bool = False


Decision: TypeAlias = "Fits | Restamp | Conflict"


def decide(
    change: Change,
    live: LiveFiles,
    moved: Iterable[MovedKeys] = (),
    dead_rows: Mapping[BucketId, DeadRows] = MappingProxyType({}),
) -> Decision:
    """Whether a change fits with the live files. Pure: the same values give the same result.

    - An append fits on top of anything. If the numbers in its buckets are not below its own, it is
      restamped.
    - Rows that were made from stored ones conflict with every change to the files of their buckets
      since then.
    - A compaction conflicts only with changes above level 0, where another one may have written to
      the level that this one chose.
    - A change that deletes a file conflicts if the file is gone.
    - A change that adds files conflicts if the partition now has another number of buckets.
    - With dynamic buckets, it conflicts if a key is now in another bucket. `moved` describes the
      partitions whose index is not the one that the change was based on.
    - A change that is based on the deletion vectors of a bucket conflicts if these are now in other
      index files. If it depends on some files only, it conflicts if rows of these files died in the
      meantime. `dead_rows` has the present ones.
    - It conflicts if a file is gone in which it marks rows, or if a file must come back that is
      live under another identity.
    - A conversion conflicts with every other commit.
    """
    conflicts = itertools.chain(
        _conflicting_files(change, live), _conflicting_rows(change, live, moved, dead_rows)
    )
    for reason in conflicts:
        return Conflict(reason)
    # A compaction keeps the numbers of its rows: higher ones would put them above rows written
    # since then.
    if change.kind is not CommitKind.APPEND or not change.renumbers:
        return Fits()

    # The first number for each entry whose bucket has already reached its numbers. All files of a
    # bucket move by the same amount, because later rows of one write have higher numbers.
    lowest: dict[tuple[bytes, int], int] = {}
    added = [(place, e) for place, e in enumerate(change.entries) if e.kind is FileKind.ADD]
    for _, entry in added:
        bucket = (entry.partition, entry.bucket)
        number = entry.file.min_sequence_number
        lowest[bucket] = min(lowest.get(bucket, number), number)
    shifts = {
        bucket: number_after(live.bucket(bucket).max_sequence_number, bucket) - low
        for bucket, low in lowest.items()
    }
    numbers = {
        place: entry.file.min_sequence_number + shift
        for place, entry in added
        for shift in [shifts[(entry.partition, entry.bucket)]]
        if shift > 0
    }
    return Restamp(numbers) if numbers else Fits()


def _conflicting_files(change: Change, live: LiveFiles) -> Iterator[str]:
    """What happened to the files that a change deletes, marks, moves or adds."""
    if change.converts and (change.source is None or change.source.snapshot != live.snapshot):
        yield "another commit changed the table while it was converted; run the conversion again"
    deleted = {entry.identity for entry in change.entries if entry.kind is FileKind.DELETE}
    marked = {entry.identity for entry in change.marked_files}
    present = live.present(deleted | marked)
    replaced = change.replaces or (lambda _: False)
    for entry in change.entries:
        if entry.kind is FileKind.DELETE:
            if entry.identity not in present:
                yield (
                    f"another commit replaced file {entry.file.file_name} of bucket "
                    f"{entry.bucket}, which this commit replaces too; run the operation again on "
                    "the latest snapshot"
                )
        # Postponed rows fit any number of buckets, and a replaced partition gets a new number.
        elif entry.bucket >= 0 and not replaced(entry.partition):
            found = live.partition_buckets.get(entry.partition, entry.total_buckets)
            if found != entry.total_buckets:
                yield (
                    f"Try to write partition/table with a new bucket num {entry.total_buckets}, "
                    f"but the previous bucket num is {found}; another writer created the partition "
                    "meanwhile. Run the write again"
                )
    if not marked <= present:
        yield (
            "this commit marks rows of a file as deleted, but another commit replaced the file; "
            "run the operation again on the latest snapshot"
        )
    if change.restored.files and moved_files(change.restored.files, live):
        yield (
            "another commit moved a file that is restored to another level; run the operation "
            "again on the latest snapshot"
        )


def _conflicting_rows(
    change: Change,
    live: LiveFiles,
    moved: Iterable[MovedKeys],
    dead_rows: Mapping[BucketId, DeadRows],
) -> Iterator[str]:
    """What happened to the rows that a change was made from, to the keys that it places, and to
    dead rows.
    """
    source = change.source
    if source is not None and source.snapshot != live.snapshot:
        # Files that were added to or removed from a bucket of the change, or a partition that it
        # watches. Files are never changed, so every change of rows adds or removes files.
        buckets = {(entry.partition, entry.bucket) for entry in change.entries}
        watched = change.watched_partitions or (lambda _: False)
        before, now = source.by_identity, live.by_identity
        others = (before.get(identity) or now[identity] for identity in before.keys() ^ now.keys())
        lowest = 1 if change.kind is CommitKind.COMPACT else 0
        if any(
            ((entry.partition, entry.bucket) in buckets or watched(entry.partition))
            and entry.file.level >= lowest
            for entry in others
        ):
            yield (
                "another writer changed rows that this commit is based on; run the operation again"
            )
    if any(each.is_conflict() for each in moved):
        yield (
            "another writer put keys of this commit into other buckets, or replaced the rows of "
            "their partition; run the operation again on the latest snapshot"
        )
    replaced = change.replaces or (lambda _: False)
    dead = [each for each in change.result.dead.items() if not replaced(each[0][0])]
    if any(rows.is_outdated(dead_rows.get(bucket, NOTHING_DEAD)) for bucket, rows in dead):
        yield (
            "another commit changed a deletion vector that this commit also changes; run the "
            "operation again on the latest snapshot"
        )
