"""What follows a change of a table: the one place that knows all of it.

Whoever changed a table says so here once the change is made. Nothing that goes wrong by then makes
the call fail: it is a warning, and a later change tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from keytide.callers import warn_caller
from keytide.table.expiry.partition_expiry import expire_due_partitions
from keytide.table.expiry.snapshot_expiry import expire_due
from keytide.table.history.automatic_tags import tags_after_commit
from keytide.table.publishing.publish import publish_after
from keytide.table.state.looks import Looks
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView

__all__ = ["FOLLOWERS", "Follower", "Made", "as_warning", "follow", "follow_newest"]


@dataclass(frozen=True)
class Made:
    """A change that is part of a table by now.

    `newest_id` is the snapshot that it led to or a later one, and `done` says what was done.
    """

    table: StoredTable
    view: TableView
    newest_id: int
    done: str
    is_batch: bool = False
    """Whether it is a write of rows that belong to no stream."""
    leaves_upkeep: bool = False
    """Whether it leaves the upkeep of the table to others, as writers do where it is write-only."""
    compact: Callable[[], int] | None = None
    """Compacts what it made due, and gives the newest snapshot then; None: it made nothing due."""


@dataclass(frozen=True)
class Follower:
    """Something that follows changes: `act` gives a newer snapshot where it made one."""

    name: str
    instead: str
    """What makes up for it where it failed, besides a later write."""
    act: Callable[[Made], int | None]
    is_upkeep: bool = True
    """Whether it keeps the table in shape, which a change may leave to others."""


def follow(made: Made) -> None:
    """Have all followers act, one after the other. What fails is a warning."""
    for follower in FOLLOWERS:
        if follower.is_upkeep and made.leaves_upkeep:
            continue
        with as_warning(made.table, made.done, follower.name, follower.instead):
            made = replace(made, newest_id=follower.act(made) or made.newest_id)


def follow_newest(table: StoredTable, done: str, *, leaves_upkeep: bool = False) -> None:
    """The same of a change that led to what is the newest snapshot now, if there is one."""
    with as_warning(table, done, "what follows that", "Table.compact"):
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
    Follower("the compaction after that", "Table.compact", _compact),
    Follower("the making of tags", "CALL sys.trigger_tag_automatic_creation", _make_tags),
    Follower("the expiry of partitions", "Table.expire_partitions", _expire_partitions),
    Follower("publishing it", "Table.publish", _publish, is_upkeep=False),
    Follower("the expiry of snapshots", "Table.expire_snapshots", _expire_snapshots),
]
"""In their order: the ends of old things come last, and what was made before is published then."""


@contextmanager
def as_warning(table: StoredTable, done: str, what: str, instead: str) -> Iterator[None]:
    """A block after something that is `done`: where `what` fails there, `instead` makes up for it.

    The warning is about the line that called Keytide.
    """
    try:
        yield
    except Exception as error:
        warn_caller(
            f"table {table.name}: {done}, and {what} failed, which a later write or {instead} "
            f"makes up for: {error}"
        )
