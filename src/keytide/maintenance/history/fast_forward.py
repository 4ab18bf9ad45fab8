"""Fast-forward: the state of a table becomes that of one of its branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keytide.base.record import Record
from keytide.base.text import counted
from keytide.errors import ConflictError, InvalidError, UnsupportedError
from keytide.format import paths
from keytide.format.branch import branch_of
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.maintenance.history.rollback import Rollback, warn_of_consumers
from keytide.options import keys
from keytide.snapshot.branches import open_branch
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.pinned import StoredTable
from keytide.store import created

__all__ = ["FastForwardResult", "fast_forward"]


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
        _refuse_to_discard(steps, name)
    if not dry_run:
        keeper = table.metadata.commits.keeper
        if keeper is None:
            steps.take()
        else:
            keeper.fast_forward(table.store, name)
        warn_of_consumers(table.metadata, steps.result.consumers)
    return steps.result


def _refuse_to_discard(steps: _Steps, name: str) -> None:
    """Raise `ConflictError` if the table has rows that the branch was not created from."""
    first = steps.start.id + (not steps.is_replaced)
    ids = [number for number in steps.into.snapshot_ids() if number >= first]
    own = [each for each in map(steps.into.snapshot, ids) if each.commit_kind in _CHANGING_ROWS]
    if own:
        raise ConflictError(
            f"table {steps.into.name}: {counted(len(own), 'commit')} would be deleted that branch "
            f"{name} does not have: {_told(own)}. Write the rows of the branch to the table "
            "instead, or fast-forward with discard=True to delete these commits"
        )


_CHANGING_ROWS = (CommitKind.APPEND, CommitKind.OVERWRITE)
_NAMED_MAX = 3


def _told(snapshots: Sequence[Snapshot]) -> str:
    named = [f"snapshot {each.id} by {each.commit_user}" for each in snapshots[:_NAMED_MAX]]
    return ", ".join([*named, "..."] if len(snapshots) > _NAMED_MAX else named)


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
        start = _parting(into, branch, ours, theirs)
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
        rollback = Rollback(into, start)
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
        Rollback(self.into, self.start).run()
        if self.is_replaced:
            self.into.store.put(paths.snapshot_path(self.start.id), self._read(self.start.id))
        self._take_schemas()
        # Tags first, because some of them protect files that the snapshots reference.
        for tag in self.branch.tag_names():
            path = paths.tag_path(tag)
            self.into.store.put(path, self.branch.store.read(path))
        for number in self.snapshot_ids:
            self._take_snapshot(number)
        self.into.hint_latest(self.result.current_snapshot_id)

    def _take_schemas(self) -> None:
        ours, theirs = (each.newest_schema().id for each in (self.into, self.branch))
        for number in range(ours, self.schemas_alike - 1, -1):
            self.into.store.delete([paths.schema_path(number)])
        for number in range(self.schemas_alike, theirs + 1):
            self._copy(paths.schema_path(number))

    def _take_snapshot(self, number: int) -> None:
        data, path = self._read(number), paths.snapshot_path(number)
        if not self.into.commits.create(self.into.store, number, data):
            self._check_same(path, data)
        # Expiry of the branch reads the table after snapshots are deleted, and this checks
        # afterwards.
        if not self.branch.store.exists(path):
            self.into.store.delete([path])
            raise ConflictError(
                f"table {self.into.name}: snapshot {number} of {self.branch.name} expired during "
                "the fast-forward; try again"
            )

    def _copy(self, path: str) -> None:
        """Copy a file of the branch to the table, if the name is free."""
        data = self.branch.store.read(path)
        if not created(self.into.store, path, data):
            self._check_same(path, data)

    def _check_same(self, path: str, data: bytes) -> None:
        if self.into.store.read(path) != data:
            raise ConflictError(
                f"table {self.into.name}: another writer created {path} during the fast-forward "
                f"to {self.branch.name}; try again"
            )

    def _read(self, snapshot_id: int) -> bytes:
        return self.branch.store.read(paths.snapshot_path(snapshot_id))


def _parting(
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
