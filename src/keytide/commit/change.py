"""What a commit changes, for whom, and whether that fits with what others have committed.

Apart from the search for earlier commits of an author, there are only values here. A change fits on
top of the live files, fits if its rows get higher sequence numbers, or conflicts.

The progress of a feed is stored in the properties of the snapshot that contains its rows. Rows and
progress are one commit. So a reader that continues from the stored progress skips nothing and
repeats nothing. A rollback takes the progress back with the rows.

After a conversion, a commit has manifest entries for the files of the previous kind of table, with
keys. Some engines decode the keys of all files in a manifest, including deleted ones, with the
present key of the table, and fail if a file has none.

In tables with dynamic buckets, a key may be in another bucket by the time of a commit.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.errors import DataError, InvalidError, NotFoundError
from keytide.format.binary_row import encode_rows
from keytide.format.index_files import Hashes, IndexFile, IndexKey
from keytide.format.json_document import INTEGER
from keytide.format.manifest_entry import FileKind, ManifestEntry
from keytide.format.schema import TableSchema
from keytide.format.snapshot import BATCH_COMMIT_IDENTIFIER, CommitKind, Operation, Snapshot
from keytide.snapshot.dynamic_buckets import UNKNOWN, HashFiles, KeyPlaces, load_places
from keytide.snapshot.live_files import (
    BucketId,
    BucketIndex,
    DeadRows,
    LiveFiles,
    by_index_key,
    number_after,
)
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableView
from keytide.write.task import TaskResult

# -- the author of a commit ------------------------------------------------------------------------


@dataclass(frozen=True)
class Author:
    """A commit user, and an identifier for one of its commits.

    The pair makes a commit idempotent: the second time, it changes nothing. The identifiers of a
    user only increase: a lower one that no snapshot has is refused.
    """

    user: str
    identifier: int = BATCH_COMMIT_IDENTIFIER
    operation: Operation | None = field(default=None, compare=False)
    """The statement that made the commit. None: the kind of the commit says enough."""

    @classmethod
    def of(cls, user: str | None, identifier: int | None) -> Author | None:
        """The author that a caller names, or None.

        Raises `InvalidError` for one without the other, and for values that cannot be stored.
        """
        if user is None:
            if identifier is not None:
                raise InvalidError(
                    f"commit_identifier is {identifier!r}, but commit_user is missing; set both "
                    "or neither"
                )
            return None
        if identifier is None:
            raise InvalidError(
                f"commit_user is {user!r}, but commit_identifier is missing: a second write "
                "would look like a retry of the first; number the writes of the user, or set "
                "neither"
            )
        if not isinstance(user, str) or not user or not _is_utf8(user):
            raise InvalidError(f"commit_user is {user!r}; expected a non-empty string")
        if not INTEGER.fits(identifier):
            raise InvalidError(f"commit_identifier is {identifier!r}; expected {INTEGER.name}")
        return cls(user, identifier)

    @classmethod
    def fresh(cls, prefix: str = "") -> Author:
        """A new commit user whose name begins with the prefix."""
        return cls(f"{prefix}{uuid.uuid4()}")

    def own(
        self, metadata: TableMetadata, newest: Snapshot | None, kind: CommitKind, after_id: int = 0
    ) -> Snapshot | None:
        """The author's commit with this identifier, in the snapshots after `after_id`.

        Searches back from `newest`, and stops at a commit of the user with a lower identifier, or
        where snapshots expired. Raises `InvalidError` if the user has committed a higher
        identifier, and no snapshot has this one.
        """
        higher: Snapshot | None = None
        for snapshot_id in range(0 if newest is None else newest.id, after_id, -1):
            try:
                snapshot = metadata.cached_snapshot(snapshot_id)
            # Expired: commits this old are unknown. Writers that retry do so soon.
            except NotFoundError:
                break
            # The kind counts too: a user's overwrite may have the same number as its append.
            if snapshot.commit_user != self.user or snapshot.commit_kind is not kind:
                continue
            if snapshot.commit_identifier == self.identifier:
                return snapshot
            if snapshot.commit_identifier < self.identifier:
                break
            higher = snapshot
        if higher is not None:
            raise InvalidError(
                f"table {metadata.name}: commit_identifier is {self.identifier}, but commit_user "
                f"{self.user!r} has committed {higher.commit_identifier} as snapshot {higher.id}, "
                f"and no snapshot has {self.identifier}. Use a higher identifier, or another "
                "commit_user for each job whose runs can overtake each other"
            )
        return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- the progress of a feed ------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """Properties that a commit sets, and the values that they must have before. None: not set."""

    before: Mapping[str, str | None]
    after: Mapping[str, str]
    stands_alone: bool = True
    """Whether it is worth a commit without rows."""


def current_progress(
    metadata: TableMetadata, newest: Snapshot | None, names: Collection[str]
) -> dict[str, str]:
    """The latest values of those properties that are set.

    Every commit of Keytide carries them on. Other engines do not, so earlier snapshots are searched
    too, as far as they exist.
    """
    progress: dict[str, str] = {}
    for snapshot_id in range(0 if newest is None else newest.id, 0, -1):
        try:
            snapshot = metadata.cached_snapshot(snapshot_id)
        except NotFoundError:
            break
        found = snapshot.properties or {}
        progress = {**{name: found[name] for name in names if name in found}, **progress}
        if len(progress) == len(names):
            break
    return progress


# -- keys in other buckets -------------------------------------------------------------------------


@dataclass(frozen=True)
class MovedKeys:
    """One partition whose index changed while rows of it were written.

    `previous` has the keys of the buckets that got rows, as the write found them, or None if that
    is no longer known. `placed` are those that the write placed. `current` is the present index.
    """

    previous: KeyPlaces | None
    placed: Mapping[int, Hashes]
    current: KeyPlaces

    def is_conflict(self) -> bool:
        """Whether a key is not in the bucket that the write assumed."""
        if self.previous is None:
            return True
        # Known keys must still be in the index. Otherwise nobody would find their rows.
        stays = all(
            bool(np.all(self.current.buckets_of(hashes) == bucket))
            for bucket, hashes in self.previous.hashes.items()
        )
        return not stays or any(
            not np.all(np.isin(self.current.buckets_of(hashes), (UNKNOWN, bucket)))
            for bucket, hashes in self.placed.items()
        )


def moved_keys(
    view: TableView, made: TaskResult, before: HashFiles, now: HashFiles
) -> list[MovedKeys]:
    """The partitions of a write whose index has changed.

    Raises `DataError` for an index that cannot be read.
    """
    buckets: dict[bytes, set[int]] = {}
    for entry in made.entries:
        buckets.setdefault(entry.partition, set()).add(entry.bucket)
    found = []
    for partition, touched in buckets.items():
        known, present = before.get(partition, {}), now.get(partition, {})
        if known == present:
            continue
        try:
            files = [file for bucket, file in known.items() if bucket in touched]
            previous = load_places(view.store, files, view.name)
        except DataError:  # expired with the snapshots that named them
            previous = None
        placed = {bucket: hashes for (where, bucket), hashes in made.placed.items()
                  if where == partition}  # fmt: skip
        current = load_places(view.store, present.values(), view.name)
        found.append(MovedKeys(previous, placed, current))
    return found


# -- changes ---------------------------------------------------------------------------------------


NOTHING_DEAD = DeadRows()
_OPERATIONS = {
    CommitKind.APPEND: Operation.WRITE.value,
    CommitKind.OVERWRITE: Operation.OVERWRITE.value,
}


@dataclass(frozen=True)
class RestoredFiles:
    """Stored files and indexes that come back in the partitions that a change replaces.

    `files` and `indexes` also belong to other snapshots, so they are never deleted, whatever the
    outcome of the change. `rewritten_indexes` are the indexes that must be stored again.
    """

    files: tuple[ManifestEntry, ...] = ()
    indexes: tuple[IndexFile, ...] = ()
    rewritten_indexes: Mapping[IndexKey, BucketIndex] = field(default_factory=dict)


NOTHING_RESTORED = RestoredFiles()


@dataclass(frozen=True)
class Change:
    """What a commit must do with the results of tasks, and for which author."""

    result: TaskResult
    author: Author
    kind: CommitKind = CommitKind.APPEND
    replaces: Callable[[bytes], bool] | None = None
    """The partitions that lose all files that they have when the commit is made. None for none."""
    source: LiveFiles | None = None
    """The files, of their buckets, whose rows the new rows were made from.

    None for rows that were not made from stored rows. Another commit to one of these buckets is a
    conflict, because the new rows would undo it. For a compaction, only a commit that changed files
    above level 0 is a conflict: the rows do not change, and rows that are appended in the meantime
    are on top of them.
    """
    watched_partitions: Callable[[bytes], bool] | None = None
    """Partitions in which another commit to any bucket is a conflict too."""
    indexed: HashFiles = field(default_factory=dict)
    """The index by which keys were assigned to dynamic buckets."""
    renumbers: bool = True
    """Whether the sequence numbers of its rows only say that they came later, so that new numbers
    can be assigned. False if the numbers come from the rows.
    """

    restored: RestoredFiles = NOTHING_RESTORED
    """What comes back to the partitions that it replaces."""

    marked_files: tuple[ManifestEntry, ...] = ()
    """The files that stay, but get dead rows."""

    converts: bool = False
    """Whether it converts the whole of `source` to another kind of table.

    It fits on no other snapshot.
    """

    progress: Progress | None = None
    """The progress of the feed that the rows come from.

    A commit with progress is made even without rows.
    """

    merges_manifests: bool = False
    """Whether the manifests of earlier commits are merged as far as possible, due or not.

    At least one of them is rewritten.
    """

    @property
    def entries(self) -> tuple[ManifestEntry, ...]:
        """The files that are added, and those that are deleted by name."""
        return self.result.entries

    @property
    def changelog(self) -> tuple[ManifestEntry, ...]:
        """The files of its changelog. Their sequence numbers never change."""
        return self.result.changelog

    def onto(self, present: Mapping[BucketId, DeadRows]) -> Change:
        """The same change on top of the present dead rows of the buckets that it depends on."""
        dead = {bucket: rows.onto(present[bucket]) for bucket, rows in self.result.dead.items()}
        indexes = {**self.result.indexes, **by_index_key(dead)}
        return replace(self, result=replace(self.result, indexes=indexes)) if dead else self

    @property
    def operation(self) -> str | None:
        """The operation to record in the snapshot. None if the rows do not change."""
        operation = _OPERATIONS.get(self.kind)
        return (
            operation
            if operation is None or self.author.operation is None
            else self.author.operation.value
        )

    def changed(self, live: LiveFiles) -> tuple[ManifestEntry, ...]:
        """The entries, plus entries that delete what is live in the partitions to replace."""
        # Computed again at each attempt, so what another writer added in the meantime is replaced
        # too.
        if self.replaces is None:
            return self.entries
        partitions = live.files.column("_PARTITION")
        gone = [partition for partition in partitions.unique() if self.replaces(partition)]
        back = {entry.identity for entry in self.restored.files}
        there = live.present(back)
        # Deletes come before adds, which is natural to read. Readers need no order.
        deletes = tuple(
            replace(entry, kind=FileKind.DELETE)
            for entry in live.files.filter(partitions.is_in(gone))
            if entry.identity not in there
        )
        adds = (entry for entry in self.restored.files if entry.identity not in there)
        return (*deletes, *self.entries, *adds)


def new_data_files(entries: Iterable[ManifestEntry]) -> list[ManifestEntry]:
    """The entries of files that are new. A file that only moves to another level is not new."""
    moved = {_place(entry) for entry in entries if entry.kind is FileKind.DELETE}
    return [entry for entry in entries if entry.kind is FileKind.ADD and _place(entry) not in moved]


def moved_files(files: Iterable[ManifestEntry], live: LiveFiles) -> list[ManifestEntry]:
    """Those files that are live under another identity, for example on another level."""
    by_place = {_place(entry): entry for entry in files}
    names = {name for _, _, name in by_place}
    there = live.files.filter(live.files.column("_FILE_NAME").is_in(names))
    found = ((by_place.get(_place(entry)), entry) for entry in there)
    return [was for was, now in found if was is not None and was.identity != now.identity]


def _place(entry: ManifestEntry) -> tuple[bytes, int, str]:
    return entry.partition, entry.bucket, entry.file.file_name


# -- files of the previous kind of table -----------------------------------------------------------


def of_unknown_keys(
    entries: Iterable[ManifestEntry], schema: TableSchema
) -> tuple[ManifestEntry, ...]:
    """Entries that name the same files, with keys that are NULL in each key column."""
    types = [field.type for field in schema.trimmed_primary_key_fields()]
    nulls = [pa.nulls(1, each.to_arrow()) for each in types]
    (key,) = encode_rows(nulls, types)
    return tuple(
        replace(entry, file=replace(entry.file, min_key=key, max_key=key)) for entry in entries
    )


# -- conflicts -------------------------------------------------------------------------------------


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
