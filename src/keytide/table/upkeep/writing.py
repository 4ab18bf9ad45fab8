"""Writes, and what a table needs after each of them.

The write is made by then, so nothing that goes wrong here makes it fail: it is a warning, and a
later write tries again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from keytide.errors import KeytideWarning
from keytide.table.commit.author import Author
from keytide.table.commit.publish import Committed
from keytide.table.commit.transaction import Transaction
from keytide.table.runner import TaskRunner
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView
from keytide.table.upkeep.compaction import compact_due, local_runner
from keytide.table.upkeep.planning import Planner, why_not_compacted

__all__ = ["writing"]

# How often a write tries to get below the stop trigger, beside other compactions.
_ROUNDS_MAX = 10


@contextmanager
def writing(
    table: StoredTable, view: TableView, author: Author | None = None,
    runner: TaskRunner | None = None,
) -> Iterator[Transaction]:  # fmt: skip
    """A transaction that writes, as `Transaction.begin` gives it; whoever writes rows has one.

    After its commit the buckets that it touched are compacted where enough runs have come together,
    unless the table says `write-only`.
    """
    with Transaction.begin(table, view, author) as transaction:
        yield transaction
    committed = transaction.committed
    if committed is None or not committed.is_new or view.options.write_only:
        return
    with _as_warning(table, "the compaction after that failed", "Table.compact"):
        if why_not_compacted(view) is None:
            _keep_up(table, Planner(view), committed, runner or local_runner())


@contextmanager
def _as_warning(table: StoredTable, what: str, instead: str) -> Iterator[None]:
    """A block after a commit: whatever goes wrong there, the rows are written."""
    try:
        yield
    except Exception as error:
        warnings.warn(
            f"table {table.name}: the rows are written, and {what}, which a later write or "
            f"{instead} makes up for: {error}",
            KeytideWarning,
            stacklevel=8,  # whoever called Table.write
        )


def _keep_up(
    table: StoredTable, planner: Planner, committed: Committed, runner: TaskRunner
) -> None:
    """Compact what a write has touched, until no bucket has more runs than it may have.

    Where another compaction comes first, it is left to do the work unless there are too many.
    """
    touched = {(entry.partition, entry.bucket) for entry in committed.change.entries}
    live = committed.live
    for _ in range(_ROUNDS_MAX):
        crowded = planner.may_be_due(live, touched)
        if not crowded:
            return
        result = compact_due(table, crowded, runner)
        live = table.newest_files()
        is_idle = result.snapshot_id is None and not result.overtaken
        if is_idle or not planner.are_too_many(live, touched):
            return
