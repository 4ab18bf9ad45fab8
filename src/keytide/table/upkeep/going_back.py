"""Rollback and fast-forward as somebody asks for them: the change, and what follows it.

What somebody went back to is to stay as it is: no commit follows, and no older state goes. The next
write keeps the table in shape again.
"""

from __future__ import annotations

from keytide.moments import Moment, epoch_ms
from keytide.table.history import branches, rollback
from keytide.table.history.branches import FastForwardResult
from keytide.table.history.rollback import RollbackResult
from keytide.table.state.stored import StoredTable
from keytide.table.upkeep.afterwards import follow_newest
from keytide.table.upkeep.behind import BEHIND

__all__ = ["fast_forward", "rollback_to"]


def rollback_to(
    table: StoredTable,
    to: int | str | None = None,
    *,
    as_of: Moment | None = None,
    watermark: int | None = None,
    dry_run: bool = False,
) -> RollbackResult:
    """Make the table what it was at a snapshot; what came later is gone.

    `to` is the id of a snapshot or the name of a tag, `as_of` a time as in `scan`; `watermark`
    means the newest snapshot with that watermark of a stream, or an earlier one. Later
    snapshots, changelogs and tags are deleted, what others commit meanwhile among them; the
    columns and options stay those of today, and data files stay for orphan cleaning. A write
    that began before and ends later counts as written after the rollback; one that goes by rows
    that are gone is made anew, or is a `ConflictError`. Other engines should not write
    meanwhile: they do not look. The upkeep that follows other changes (compactions, tags,
    expiry) is left to the next write. `dry_run` tells what would be done.

    Readers see older and older snapshots until it is done. After a stop the table is one of
    these, and the same call goes on. Raises `NotFoundError` for an unknown tag, and for a
    snapshot that is not there, naming the oldest; `InvalidError` unless one place is given;
    `ConflictError` while others go on committing; `DataError` when the store fails.
    """
    BEHIND.settle(table.uri)
    moment = None if as_of is None else epoch_ms(as_of, table.name)
    done = rollback.roll_back(table.metadata, to, moment, watermark, dry_run=dry_run)
    if not dry_run:
        follow_newest(table, "the table is rolled back", leaves_upkeep=True)
    return done


def fast_forward(table: StoredTable, name: str, *, dry_run: bool = False) -> FastForwardResult:
    """Make this table what a branch of it is: its schemas, snapshots and tags.

    What the table has beyond the snapshot where the two part is gone then, see `rollback_to`;
    where nothing was committed to it since, nothing is lost. The branch stays as it is. Of a
    table that is itself a branch that one goes forward. `dry_run` tells what would be done.

    After a stop the table is in a state that it or the branch had, and the same call goes on.
    Raises `NotFoundError` for an unknown branch, `InvalidError` for one without snapshots or
    the table itself, `UnsupportedError` where columns or options parted before rows did,
    `ConflictError` when other writers come between or the branch begins later than the table
    ends; `DataError` when the store fails.
    """
    BEHIND.settle(table.uri)
    done = branches.fast_forward(table, name, dry_run=dry_run)
    if not dry_run:
        follow_newest(table, "the table is fast-forwarded", leaves_upkeep=True)
    return done
