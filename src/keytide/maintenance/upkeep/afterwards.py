"""Everything that follows a change of a table.

Code that has changed a table reports it here. Errors in what follows do not make the call fail:
they become warnings, and a later change tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from keytide.base.callers import warn_caller
from keytide.maintenance.expiry.expiry import expire_due
from keytide.maintenance.expiry.partition_expiry import expire_due_partitions
from keytide.maintenance.history.tags import tags_after_commit
from keytide.publish.publish import publish_after
from keytide.snapshot.looks import Looks
from keytide.snapshot.pinned import StoredTable
from keytide.snapshot.state import TableView

__all__ = ["FOLLOWERS", "Follower", "Made", "as_warning", "follow", "follow_newest"]


@dataclass(frozen=True)
class Made:
    """A committed change of a table.

    `newest_id` is its snapshot or a later one, and `done` says what was done.
    """

    table: StoredTable
    view: TableView
    newest_id: int
    done: str
    is_batch: bool = False
    """Whether it is a write of rows that do not belong to a stream."""
    leaves_upkeep: bool = False
    """Whether it leaves the maintenance of the table to others, as writers of write-only tables
    do.
    """
    compact: Callable[[], int] | None = None
    """Compacts what the change made due, and returns the latest snapshot. None: nothing is due."""


@dataclass(frozen=True)
class Follower:
    """Something that follows changes. `act` returns a newer snapshot if it created one."""

    name: str
    instead: str
    """What the user can do if it failed, instead of waiting for a later write."""
    act: Callable[[Made], int | None]
    is_upkeep: bool = True
    """Whether it is maintenance, which a change may leave to others."""


def follow(made: Made) -> None:
    """Run all followers, one after the other. Failures become warnings."""
    for follower in FOLLOWERS:
        if follower.is_upkeep and made.leaves_upkeep:
            continue
        with as_warning(made.table, made.done, follower.name, follower.instead):
            made = replace(made, newest_id=follower.act(made) or made.newest_id)


def follow_newest(table: StoredTable, done: str, *, leaves_upkeep: bool = False) -> None:
    """The same for a change that led to the present latest snapshot, if there is one."""
    with as_warning(table, done, "the operations after it", "Table.compact"):
        newest_id = table.metadata.latest_snapshot_id()
        if newest_id is not None:
            view = table.view(table.schema)
            follow(Made(table, view, newest_id, done, leaves_upkeep=leaves_upkeep))


def _compact(made: Made) -> int | None:
    return None if made.compact is None else made.compact()


def _make_tags(made: Made) -> None:
    tags_after_commit(made.table.metadata, made.view.options, is_batch=made.is_batch)


def _expire_partitions(made: Made) -> int | None:
    seconds = made.view.options.partition_expiration_interval_ms / 1000
    has_lifetime = made.view.options.partition_lifetime_ms is not None
    if has_lifetime and _LOOKS.is_time(made.table.uri, seconds):
        return expire_due_partitions(made.table, made.view)
    return None


def _publish(made: Made) -> None:
    publish_after(made.table, made.view, made.newest_id)


def _expire_snapshots(made: Made) -> None:
    expire_due(made.table, made.view, made.newest_id)


_LOOKS = Looks()

FOLLOWERS = [
    Follower("the compaction after it", "Table.compact", _compact),
    Follower("creating automatic tags", "CALL sys.trigger_tag_automatic_creation", _make_tags),
    Follower("expiring partitions", "Table.expire_partitions", _expire_partitions),
    Follower("publishing it", "Table.publish", _publish, is_upkeep=False),
    Follower("expiring snapshots", "Table.expire_snapshots", _expire_snapshots),
]
"""In order: expiry comes last, so that new snapshots are published before old ones expire."""


@contextmanager
def as_warning(table: StoredTable, done: str, what: str, instead: str) -> Iterator[None]:
    """A block after something is `done`. If `what` fails there, the warning suggests `instead`.

    The warning points at the line that called Keytide.
    """
    try:
        yield
    except Exception as error:
        warn_caller(
            f"table {table.name}: {done}, but {what} failed. A later write or {instead} will do "
            f"it: {error}"
        )
