"""Rollback and fast-forward on request: the change, and what follows it.

The state that a user goes back to must stay unchanged: no commit follows, and no older state is
deleted. The next write does the maintenance.
"""

from __future__ import annotations

from keytide.base.text import Moment, epoch_ms
from keytide.maintenance.history import fast_forward as forward
from keytide.maintenance.history import rollback
from keytide.maintenance.history.fast_forward import FastForwardResult
from keytide.maintenance.history.rollback import RollbackResult
from keytide.maintenance.upkeep.afterwards import follow_newest
from keytide.maintenance.upkeep.behind import BEHIND
from keytide.snapshot.pinned import StoredTable

__all__ = ["fast_forward", "rollback_to"]


def rollback_to(
    table: StoredTable,
    to: int | str | None = None,
    *,
    as_of: Moment | None = None,
    watermark: int | None = None,
    dry_run: bool = False,
) -> RollbackResult:
    """Return the table to its state at a snapshot, and delete what came later.

    `to` is the id of a snapshot or the name of a tag, and `as_of` a time as in `scan`. `watermark`
    means the latest snapshot with that watermark of a stream, or an earlier one. Later snapshots,
    changelogs and tags are deleted, including what others commit in the meantime. The columns and
    options do not change, and data files are left for orphan removal. A write that began before and
    ends later counts as written after the rollback. If it depends on rows that are gone, it is made
    again, or raises a `ConflictError`. Other engines should not write in the meantime, because they
    do not check this. The maintenance that follows other changes (compactions, tags, expiry) is
    left to the next write. `dry_run` reports what would be done.

    Until it is done, readers see older and older snapshots. After an interruption, the table is in
    one of these states, and a repeated call continues. Raises:

    - `NotFoundError` for an unknown tag, and for a snapshot that does not exist, with the oldest
      existing one.
    - `InvalidError` unless exactly one target is given.
    - `ConflictError` if other writers do not stop committing.
    - `DataError` if the store fails.
    """
    BEHIND.settle(table.uri)
    moment = None if as_of is None else epoch_ms(as_of, table.name)
    done = rollback.roll_back(table.metadata, to, moment, watermark, dry_run=dry_run)
    if not dry_run:
        follow_newest(table, "the table is rolled back", leaves_upkeep=True)
    return done


def fast_forward(
    table: StoredTable, name: str, *, discard: bool = False, dry_run: bool = False
) -> FastForwardResult:
    """Replace the state of this table with that of a branch: its schemas, snapshots and tags.

    Compactions, tags and schemas that the table has after the last common snapshot are deleted, see
    `rollback_to`. If rows were committed to the table since then, this is refused, because they
    would be lost: only `discard` deletes them. The branch does not change. If the table is itself a
    branch, that branch is replaced. `dry_run` reports what `discard` would do.

    After an interruption, the table is in a state that it or the branch had, and a repeated call
    continues. Raises:

    - `NotFoundError` for an unknown branch.
    - `InvalidError` for a branch without snapshots, or for the table itself.
    - `UnsupportedError` if columns or options differed before the first different snapshot.
    - `ConflictError` if other writers interfere, if the branch begins after the end of the table,
      and without `discard`, if the table has commits of rows that the branch does not have.
    - `DataError` if the store fails.
    """
    BEHIND.settle(table.uri)
    done = forward.fast_forward(table, name, discard=discard, dry_run=dry_run)
    if not dry_run:
        follow_newest(table, "the table is fast-forwarded", leaves_upkeep=True)
    return done
