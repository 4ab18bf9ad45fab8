"""Rollback and fast-forward as somebody asks for them: the change, and what follows it.

What somebody went back to is to stay as it is: no commit follows, and no older state goes. The next
write keeps the table in shape again.
"""

from __future__ import annotations

from keytide.table.history import branches, rollback
from keytide.table.history.branches import FastForwardResult
from keytide.table.history.rollback import RollbackResult
from keytide.table.state.stored import StoredTable
from keytide.table.upkeep.afterwards import follow_newest

__all__ = ["fast_forward", "roll_back"]


def roll_back(
    table: StoredTable, to: int | str | None = None, as_of_ms: int | None = None,
    watermark: int | None = None, *, dry_run: bool = False,
) -> RollbackResult:  # fmt: skip
    """Roll a table back, as `Table.rollback_to` says."""
    done = rollback.roll_back(table.metadata, to, as_of_ms, watermark, dry_run=dry_run)
    if not dry_run:
        follow_newest(table, "the table is rolled back", leaves_upkeep=True)
    return done


def fast_forward(table: StoredTable, name: str, *, dry_run: bool = False) -> FastForwardResult:
    """Make a table what a branch of it is, as `Table.fast_forward` says."""
    done = branches.fast_forward(table, name, dry_run=dry_run)
    if not dry_run:
        follow_newest(table, "the table is fast-forwarded", leaves_upkeep=True)
    return done
