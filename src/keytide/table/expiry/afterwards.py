"""What a table needs after a commit.

The commit is made by then, so nothing that goes wrong here makes the call fail: it is a warning,
and a later one tries again.
"""

from __future__ import annotations

import itertools
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from keytide.errors import KeytideWarning
from keytide.table.expiry.partition_expiry import expire_due_partitions
from keytide.table.expiry.snapshot_expiry import expire_due
from keytide.table.history.automatic_tags import tags_after_commit
from keytide.table.state.looks import Looks
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView

__all__ = ["as_warning", "look_after"]

_LOOKS = Looks()


def look_after(
    table: StoredTable, view: TableView, newest_id: int, done: str, *, is_batch: bool
) -> None:
    """What time asks for: tags of periods, the end of old partitions and of old snapshots.

    `newest_id` is a recent snapshot, and `done` says what was done before.
    """
    options = view.options
    with as_warning(table, done, "the making of tags", _MAKE_TAGS):
        tags_after_commit(table.metadata, options, is_batch=is_batch)
    seconds = options.partition_expiration_interval_ms / 1000
    if options.partition_lifetime_ms is not None and _LOOKS.is_time(table.uri, seconds):
        with as_warning(table, done, "the expiry of partitions", "Table.expire_partitions"):
            newest_id = expire_due_partitions(table, view) or newest_id
    with as_warning(table, done, "the expiry of snapshots", "Table.expire_snapshots"):
        expire_due(table, view, newest_id)


_MAKE_TAGS = "CALL sys.trigger_tag_automatic_creation"
"""What makes the tags that are due, when it is asked to."""


@contextmanager
def as_warning(table: StoredTable, done: str, what: str, instead: str) -> Iterator[None]:
    """A block after something that is `done`: where `what` fails there, `instead` makes up for it.

    The warning is about the line that called Keytide.
    """
    try:
        yield
    except Exception as error:
        warnings.warn(
            f"table {table.name}: {done}, and {what} failed, which a later write or {instead} "
            f"makes up for: {error}",
            KeytideWarning,
            stacklevel=_frames_of_ours() + 1,
        )


def _frames_of_ours() -> int:
    """How many frames there are, from the caller's on, to the one that called Keytide."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    names = (str(frame.f_globals.get("__name__")) for frame in frames)
    return sum(1 for _ in itertools.takewhile(_is_ours, names))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("keytide", "contextlib")
