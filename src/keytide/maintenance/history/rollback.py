"""Rollback: returns a table to its state at a snapshot, and deletes everything that came later.

Snapshots are deleted one by one, latest first. So wherever this stops, the latest remaining
snapshot is a state that the table once had, and a repeated call continues from there. Later tags
are deleted only after all of them are gone. Data files stay: readers may be using them, and orphan
removal finds them.

Commits of others in the meantime are rolled back as well, as if they had come before: the lowest of
the later snapshots is deleted last, when no other is left. A writer that began before, and commits
on top of a deleted snapshot, detects that itself and commits again (`table.commit.publish`).
Snapshots that other engines leave after a gap are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keytide.base.callers import warn_caller
from keytide.base.record import Record
from keytide.base.text import moment_text
from keytide.errors import ConflictError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.snapshot import Consumer, Snapshot
from keytide.snapshot.metadata import TableMetadata
from keytide.store import created

__all__ = [
    "Rollback",
    "RollbackResult",
    "numbered",
    "roll_back",
    "warn_of_consumers",
]

# Each round deletes what has been committed since the previous round.
_ROUNDS_MAX = 100


@dataclass(frozen=True)
class RollbackResult(Record):
    """What a rollback did or, in a dry run, what it would do.

    - `previous_snapshot_id` and `current_snapshot_id` are the latest snapshot before and after.
    - `snapshots` and `changelogs` are the numbers of removed later ones, and `tags` names the
      removed tags.
    - `consumers` names the consumers that had already read removed snapshots. They should start
      again from the beginning.
    """

    previous_snapshot_id: int
    current_snapshot_id: int
    snapshots: int
    changelogs: int
    tags: tuple[str, ...]
    consumers: tuple[str, ...]


def roll_back(
    metadata: TableMetadata,
    to: int | str | None = None,
    as_of_ms: int | None = None,
    watermark: int | None = None,
    *,
    dry_run: bool = False,
) -> RollbackResult:
    """Roll a table back, see `rollback_to`."""
    newest = metadata.latest_snapshot()
    if newest is None:
        raise NotFoundError(
            f"table {metadata.name} has no snapshots, so there is nothing to roll back to"
        )
    target = _target(metadata, to, as_of_ms, watermark)
    rollback = Rollback(metadata, target)
    result = RollbackResult(
        newest.id,
        target.id,
        len(rollback.later_snapshots()),
        len(rollback.later_changelogs()),
        tuple(rollback.later_tags()),
        tuple(rollback.consumers_ahead()),
    )
    if dry_run:
        return result
    keeper = metadata.commits.keeper
    if keeper is None:
        rollback.run()
    else:
        keeper.roll_back(metadata.store, newest.id, target.id, rollback.keeping_tag())
    warn_of_consumers(metadata, result.consumers)
    return result


def warn_of_consumers(metadata: TableMetadata, consumers: Sequence[str]) -> None:
    """Warn about consumers that have already read deleted snapshots."""
    if consumers:
        warn_caller(
            f"table {metadata.name}: it was rolled back to before changes that "
            f"{', '.join(consumers)} had already read; restart these consumers"
        )


# -- target ----------------------------------------------------------------------------------------


def _target(
    metadata: TableMetadata, to: int | str | None, as_of_ms: int | None, watermark: int | None
) -> Snapshot:
    if sum(place is not None for place in (to, as_of_ms, watermark)) != 1:
        raise InvalidError(
            f"table {metadata.name}: give exactly one of a snapshot, a tag, a time and a "
            "watermark to roll back to"
        )
    if watermark is not None:
        return _watermarked(metadata, watermark)
    if as_of_ms is not None:
        return metadata.snapshot_as_of(as_of_ms)
    return _tagged(metadata, to) if isinstance(to, str) else numbered(metadata, int(to or 0))


def _watermarked(metadata: TableMetadata, watermark: int) -> Snapshot:
    """The latest snapshot with this watermark or an earlier one."""
    known = [(told, each) for each in metadata.snapshots()
             if (told := each.told_watermark) is not None]  # fmt: skip
    for told, snapshot in reversed(known):
        if told <= watermark:
            return snapshot
    oldest = f"the earliest is {known[0][0]}" if known else "no snapshot has a watermark"
    raise NotFoundError(
        f"table {metadata.name} has no snapshot with the watermark {watermark} or an earlier "
        f"one; {oldest}"
    )


def numbered(metadata: TableMetadata, snapshot_id: int) -> Snapshot:
    """The snapshot with that id, even if only a tag keeps it.

    Raises `NotFoundError`, which names the oldest existing snapshot.
    """
    try:
        return metadata.snapshot(snapshot_id)
    except NotFoundError as error:
        for tag in metadata.tags().values():
            if tag.snapshot.id == snapshot_id:
                return tag.snapshot
        raise NotFoundError(
            f"table {metadata.name} has no snapshot {snapshot_id} to roll back to; "
            f"{_kept(metadata)}"
        ) from error


def _kept(metadata: TableMetadata) -> str:
    """Which snapshots exist."""
    tagged = sorted({tag.snapshot.id for tag in metadata.tags().values()})
    tags = f"tags keep {', '.join(map(str, tagged)) or 'no others'}"
    ids = metadata.snapshot_ids()
    if not ids:
        return tags
    oldest = metadata.snapshot(ids[0])
    return (
        f"the oldest is {oldest.id}, of {moment_text(oldest.time_millis)}, the latest {ids[-1]}; "
        f"{tags}"
    )


def _tagged(metadata: TableMetadata, name: str) -> Snapshot:
    tagged = metadata.tag(name)
    try:
        stored = metadata.snapshot(tagged.id)
    except NotFoundError:
        return tagged  # it has expired
    if _lists(stored) != _lists(tagged):
        raise ConflictError(
            f"table {metadata.name}: tag {name!r} keeps a snapshot {tagged.id} that was rolled "
            "back, and another snapshot has this id now; restore from the tag instead"
        )
    return stored


def _lists(snapshot: Snapshot) -> tuple[str, str]:
    return snapshot.base_manifest_list, snapshot.delta_manifest_list


# -- later snapshots -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rollback:
    """Deletes everything later than `target`, which is or was a snapshot of the table."""

    metadata: TableMetadata
    target: Snapshot

    def later_snapshots(self) -> list[int]:
        """The ids of later snapshots, ascending."""
        found = [number for number in self.metadata.snapshot_ids() if number > self.target.id]
        # A listing that lags lacks the latest, and may begin after some of them.
        first = found[0] if found else self.target.id
        while first - 1 > self.target.id and self.metadata.has_snapshot(first - 1):
            first -= 1
        return [*range(first, found[0]), *found] if found else []

    def later_changelogs(self) -> list[int]:
        """The ids of later changelogs that have outlived their snapshots."""
        names = self.metadata.store.list_names(paths.changelog_dir())
        numbers = map(paths.parse_changelog_name, names)
        return sorted(number for number in numbers if number and number > self.target.id)

    def later_tags(self) -> list[str]:
        """The names of tags of later snapshots."""
        tags = self.metadata.tags().items()
        return [name for name, tag in tags if tag.snapshot.id > self.target.id]

    def consumers_ahead(self) -> list[str]:
        """The names of consumers that have read a later snapshot."""
        store, found = self.metadata.store, []
        for name in store.list_names(paths.consumer_dir()):
            consumer = paths.parse_consumer_name(name)
            if consumer is not None:
                path = paths.consumer_path(consumer)
                if Consumer.from_json(store.read(path), store.uri_of(path)).told > self.target.id:
                    found.append(consumer)
        return found

    def keeping_tag(self) -> str | None:
        """A tag of the target, if its snapshot has expired."""
        if self.metadata.has_snapshot(self.target.id):
            return None
        tags = self.metadata.tags().items()
        return next((name for name, tag in tags if tag.snapshot == self.target), None)

    # -- execution ------------------------------------------------------------------------------

    def run(self) -> None:
        """Delete what is later."""
        self._keep_target()
        self._delete_snapshots()
        self.metadata.hint_latest(self.target.id)
        self._delete_changelogs()
        for name in self.later_tags():
            self.metadata.store.delete([paths.tag_path(name)])

    def _keep_target(self) -> None:
        """Ensure that the target snapshot exists. It may have expired and be kept only by a tag."""
        if self._is_back():
            earliest = paths.snapshot_hint_path(paths.Hint.EARLIEST)
            self.metadata.store.hint(earliest, paths.encode_hint(self.target.id))

    def _is_back(self) -> bool:
        """Restore the snapshot if it does not exist.

        In a table without snapshots, this is a commit.
        """
        if self.metadata.latest_snapshot_id() is None:
            return self.metadata.create(self.target)
        path = paths.snapshot_path(self.target.id)
        return created(self.metadata.store, path, self.target.to_json())

    def _delete_snapshots(self) -> None:
        later = self.later_snapshots()
        if later:
            # Readers that use a hint continue from there as long as snapshots follow each other: to
            # the latest of them, until it is deleted. Expiry uses it too, see there.
            is_next = later[0] == self.target.id + 1
            self.metadata.hint_latest(self.target.id if is_next else later[0])
        for _ in range(_ROUNDS_MAX):
            self.metadata.remove(later[1:])
            before, later = later, self.later_snapshots()
            if later == before[:1]:
                self._delete_last(later)
                return
        raise ConflictError(
            f"table {self.metadata.name}: other writers keep committing during the rollback; "
            "stop them and try again"
        )

    def _delete_last(self, later: Sequence[int]) -> None:
        # If expiry has removed the target in the meantime, there is nothing to go back to.
        self.metadata.snapshot(self.target.id)
        self.metadata.remove(later)
        # From here on, writers start from the target, and their snapshots follow it without a gap.
        later = self.later_snapshots()
        # A listing may lack what a writer has just added, so the gap is looked at.
        gap = (n for n in later if n - 1 > self.target.id and not self.metadata.has_snapshot(n - 1))
        parted = next(gap, None)
        self.metadata.remove([n for n in later if parted is not None and n >= parted])

    def _delete_changelogs(self) -> None:
        later = self.later_changelogs()
        if later:
            hint = paths.join(paths.changelog_dir(), paths.Hint.LATEST.value)
            self.metadata.store.delete([hint])
        for number in reversed(later):
            self.metadata.store.delete([paths.changelog_path(number)])
