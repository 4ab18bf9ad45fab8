"""Rollback to a snapshot, and fast-forward to the state of a branch.

A rollback returns a table to its state at a snapshot, and deletes everything that came later.
Snapshots are deleted one by one, latest first. So wherever this stops, the latest remaining
snapshot is a state that the table once had, and a repeated call continues from there. Later tags
are deleted only after all of them are gone. Data files stay: readers may be using them, and orphan
removal finds them.

Commits of others in the meantime are rolled back as well, as if they had come before: the lowest of
the later snapshots is deleted last, when no other is left. A writer that began before, and commits
on top of a deleted snapshot, detects that itself and commits again (`keytide.commit.committer`).
Snapshots that other engines leave after a gap are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

from keytide.base.arguments import warn_caller
from keytide.base.dataclass import dataclass
from keytide.base.record import Record
from keytide.base.text import counted, moment_text
from keytide.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from keytide.format import paths
from keytide.format.paths import branch_of
from keytide.format.snapshot import CommitKind, Consumer, Snapshot
from keytide.options import keys
from keytide.snapshot.authority import may_follow
from keytide.snapshot.branch_tables import open_branch
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import StoredTable
from keytide.store import created

# -- rollback --------------------------------------------------------------------------------------


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

    if sum(place is not None for place in (to, as_of_ms, watermark)) != 1:
        raise InvalidError(
            f"table {metadata.name}: give exactly one of a snapshot, a tag, a time and a "
            "watermark to roll back to"
        )
    if watermark is not None:
        target = _watermarked(metadata, watermark)
    elif as_of_ms is not None:
        target = metadata.snapshot_as_of(as_of_ms)
    else:
        target = _tagged(metadata, to) if isinstance(to, str) else numbered(metadata, int(to or 0))
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


def _watermarked(metadata: TableMetadata, watermark: int) -> Snapshot:
    """The latest snapshot with this watermark or an earlier one."""
    known = [(mark, each) for each in metadata.snapshots()
             if (mark := each.known_watermark) is not None]  # fmt: skip
    for mark, snapshot in reversed(known):
        if mark <= watermark:
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
        tagged = sorted({tag.snapshot.id for tag in metadata.tags().values()})
        there = f"tags keep {', '.join(map(str, tagged)) or 'no others'}"
        ids = metadata.snapshot_ids()
        if ids:
            oldest = metadata.snapshot(ids[0])
            there = (
                f"the oldest is {oldest.id}, of {moment_text(oldest.time_millis)}, the latest "
                f"{ids[-1]}; {there}"
            )
        raise NotFoundError(
            f"table {metadata.name} has no snapshot {snapshot_id} to roll back to; {there}"
        ) from error


def _tagged(metadata: TableMetadata, name: str) -> Snapshot:
    tagged = metadata.tag(name)
    try:
        stored = metadata.snapshot(tagged.id)
    except NotFoundError:
        return tagged  # it has expired
    lists = [(each.base_manifest_list, each.delta_manifest_list) for each in (stored, tagged)]
    if lists[0] != lists[1]:
        raise ConflictError(
            f"table {metadata.name}: tag {name!r} keeps a snapshot {tagged.id} that was rolled "
            "back, and another snapshot has this id now; restore from the tag instead"
        )
    return stored


# -- later snapshots -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rollback:
    """Deletes everything later than `target`, which is or was a snapshot of the table."""

    metadata: TableMetadata
    target: Snapshot
    is_in_branch: bool = False
    """Whether a branch has the target too, and keeps its files."""

    def later_snapshots(self) -> list[int]:
        """The ids of later snapshots, ascending."""
        stored = self.metadata.stored_snapshot_ids()
        found = [number for number in stored if number > self.target.id]
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
                if (
                    Consumer.from_json(store.read(path), store.uri_of(path)).last_snapshot
                    > self.target.id
                ):
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
        store = self.metadata.store
        # If only a tag or a branch keeps the target, it exists again from now on. Otherwise it must
        # still be there: an expiry that has removed it is deleting its files.
        if self.is_in_branch or self.keeping_tag() is not None:
            if self.metadata.latest_snapshot_id() is None:
                is_back = self.metadata.create(self.target)  # a commit
            else:
                path = paths.snapshot_path(self.target.id)
                is_back = created(store, path, self.target.to_json())
            if is_back:
                earliest = paths.snapshot_hint_path(paths.Hint.EARLIEST)
                store.hint(earliest, paths.encode_hint(self.target.id))
        self._delete_snapshots()
        self.metadata.hint_latest(self.target.id)

        later = self.later_changelogs()
        if later:
            store.delete([paths.join(paths.changelog_dir(), paths.Hint.LATEST.value)])
        for number in reversed(later):
            store.delete([paths.changelog_path(number)])
        for name in self.later_tags():
            store.delete([paths.tag_path(name)])

    def _delete_snapshots(self) -> None:
        """Delete the later snapshots. Raises `NotFoundError` if the target is gone."""
        self.metadata.snapshot(self.target.id)
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
                break
        else:
            raise ConflictError(
                f"table {self.metadata.name}: other writers keep committing during the rollback; "
                "stop them and try again"
            )
        # If expiry has removed the target in the meantime, there is nothing to go back to.
        if self.metadata.snapshot(self.target.id) != self.target:
            raise ConflictError(
                f"table {self.metadata.name}: another rollback went further back than snapshot "
                f"{self.target.id}, and another commit has this id now; look at the snapshots, and "
                "try again"
            )
        for number in later:
            self._delete_last(number)
        # From here on, writers start from the target, and their snapshots follow it. Those that do
        # not were made from snapshots that are gone.
        later = self.later_snapshots()
        for number in later:
            # By id, because a listing may lack what a writer has just added.
            pair = [paths.snapshot_path(each) for each in (number - 1, number)]
            earlier, own = self.metadata.store.read_present(pair)
            if earlier is None or own is None or not may_follow(earlier, own):
                self.metadata.remove([each for each in later if each >= number])
                break

    def _delete_last(self, number: int) -> None:
        """Delete the only later snapshot, unless the target expires in this very moment."""
        path = paths.snapshot_path(number)
        (data,) = self.metadata.store.read_present([path])
        self.metadata.remove([number])
        if data is not None and not self.metadata.has_snapshot(self.target.id):
            created(self.metadata.store, path, data)  # expiry keeps what it needs
            self.metadata.snapshot(self.target.id)


# -- fast-forward ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FastForwardResult(Record):
    """What a fast-forward did or, in a dry run, what it would do.

    - `previous_snapshot_id` and `current_snapshot_id` are the table's latest snapshot before and
      after.
    - `removed` is the number of snapshots of the table that the branch does not have. They were
      removed, together with their `tags`.
    - `added` is the number of snapshots that came from the branch.
    - `consumers` names the consumers that had already read removed snapshots.
    """

    previous_snapshot_id: int | None
    current_snapshot_id: int
    removed: int
    added: int
    tags: tuple[str, ...]
    consumers: tuple[str, ...]


def fast_forward(
    table: StoredTable, name: str, *, discard: bool = False, dry_run: bool = False
) -> FastForwardResult:
    """Replace the state of a table with that of a branch."""
    if name == branch_of(table.store):
        raise InvalidError(
            f"table {table.name} cannot be fast-forwarded to itself; name another branch"
        )
    steps = _Steps.between(table.metadata, open_branch(table, name).metadata)
    if not (discard or dry_run):
        # Refuse if the table has rows that the branch was not created from.
        first = steps.start.id + (not steps.is_replaced)
        ids = [number for number in steps.into.snapshot_ids() if number >= first]
        own = [each for each in map(steps.into.snapshot, ids) if each.commit_kind in _CHANGING_ROWS]
        named = [f"snapshot {each.id} by {each.commit_user}" for each in own[:_NAMED_MAX]]
        if len(own) > _NAMED_MAX:
            named.append("...")
        if own:
            raise ConflictError(
                f"table {steps.into.name}: {counted(len(own), 'commit')} would be deleted that "
                f"branch {name} does not have: {', '.join(named)}. Write the rows of the branch to "
                "the table instead, or fast-forward with discard=True to delete these commits"
            )
    if not dry_run:
        keeper = table.metadata.commits.keeper
        if keeper is None:
            steps.take()
        else:
            keeper.fast_forward(table.store, name)
        warn_of_consumers(table.metadata, steps.result.consumers)
    return steps.result


_CHANGING_ROWS = (CommitKind.APPEND, CommitKind.OVERWRITE)
_NAMED_MAX = 3


@dataclass(frozen=True)
class _Steps:
    """The steps from a table to a branch: back to where they part, and forward from there.

    `start` is a snapshot of the branch. It is also one of the table, unless `is_replaced` or there
    is none with that id. The first `schemas_alike` schemas are the same, and the snapshots up to
    there need no others.
    """

    into: TableMetadata
    branch: TableMetadata
    start: Snapshot
    is_replaced: bool
    schemas_alike: int
    snapshot_ids: Sequence[int]
    result: FastForwardResult

    @classmethod
    def between(cls, into: TableMetadata, branch: TableMetadata) -> _Steps:
        """Raises `InvalidError`, `ConflictError` or `UnsupportedError` if this is impossible."""
        theirs = branch.snapshot_ids()
        if not theirs:
            raise InvalidError(
                f"branch {branch.name} has no snapshots to fast-forward to; write to it first"
            )
        ours = into.snapshot_ids()
        start = _common_snapshot(into, branch, ours, theirs)
        own = into.snapshot(start.id) if start.id in ours else None
        is_replaced = own not in (None, start)
        # A replaced snapshot must be the oldest one, because snapshots form a line.
        if ours and (ours[-1] < start.id or (is_replaced and ours[0] < start.id)):
            raise ConflictError(
                f"table {into.name} and branch {branch.name} no longer have a snapshot in common: "
                f"the oldest one of the branch is {start.id}, the latest one of the table is "
                f"{ours[-1]}. Earlier ones of the branch have expired, or the table was rolled "
                f"back. Write the rows of the branch to the table instead, with overwrite. To "
                f"keep a branch's first snapshots, raise '{keys.SNAPSHOT_NUM_RETAINED_MIN}' in it"
            )
        alike = _schemas_alike(into, branch)
        staying = [start.schema_id] if own is None else [start.schema_id, own.schema_id]
        if max(staying) >= alike:
            raise UnsupportedError(
                f"table {into.name}: its columns or options differ from those of branch "
                f"{branch.name} since before snapshot {start.id}, from which the branch was "
                "created; write the rows of the branch to the table instead"
            )
        rollback = Rollback(into, start, is_in_branch=True)
        result = FastForwardResult(
            ours[-1] if ours else None,
            theirs[-1],
            len(rollback.later_snapshots()),
            sum(number > start.id or own is None for number in theirs if number >= start.id),
            tuple(rollback.later_tags()),
            tuple(rollback.consumers_ahead()),
        )
        later = [number for number in theirs if number > start.id]
        return cls(into, branch, start, is_replaced, alike, later, result)

    def take(self) -> None:
        """Go back, then forward."""
        into, branch = self.into, self.branch
        start = into.snapshot(self.start.id) if self.is_replaced else self.start
        Rollback(into, start, is_in_branch=not self.is_replaced).run()
        if self.is_replaced:
            path = paths.snapshot_path(self.start.id)
            into.store.put(path, branch.store.read(path))

        ours, theirs = (each.newest_schema().id for each in (into, branch))
        for number in range(ours, self.schemas_alike - 1, -1):
            into.store.delete([paths.schema_path(number)])
        for number in range(self.schemas_alike, theirs + 1):
            path = paths.schema_path(number)
            data = branch.store.read(path)
            if not created(into.store, path, data):
                self._check_same(path, data)
        # Tags first, because some of them protect files that the snapshots reference.
        for tag in branch.tag_names():
            path = paths.tag_path(tag)
            into.store.put(path, branch.store.read(path))

        for number in self.snapshot_ids:
            path = paths.snapshot_path(number)
            data = branch.store.read(path)
            if not into.commits.create(into.store, number, data):
                self._check_same(path, data)
            # Expiry of the branch reads the table after snapshots are deleted, and this checks
            # afterwards.
            if not branch.store.exists(path):
                into.store.delete([path])
                raise ConflictError(
                    f"table {into.name}: snapshot {number} of {branch.name} expired during the "
                    "fast-forward; try again"
                )
        into.hint_latest(self.result.current_snapshot_id)

    def _check_same(self, path: str, data: bytes) -> None:
        if self.into.store.read(path) != data:
            raise ConflictError(
                f"table {self.into.name}: another writer created {path} during the fast-forward "
                f"to {self.branch.name}; try again"
            )


def _common_snapshot(
    into: TableMetadata, branch: TableMetadata, ours: Sequence[int], theirs: Sequence[int]
) -> Snapshot:
    """The latest snapshot that both have, or the first one of the branch."""
    for number in reversed(theirs):
        if number in ours and into.snapshot(number) == branch.snapshot(number):
            return branch.snapshot(number)
    return branch.snapshot(theirs[0])


def _schemas_alike(one: TableMetadata, other: TableMetadata) -> int:
    """How many schemas are the same, starting with the first."""
    numbers = range(min(each.newest_schema().id for each in (one, other)) + 1)
    parted = (number for number in numbers if one.schema(number) != other.schema(number))
    return next(parted, len(numbers))
