"""Starts work before it is known whether the table is still in the last known state.

Reading the latest state from a remote store takes time. If a process found a table as it had left
it, this will most often be true again. So the work starts on the known state, in parallel with the
read. If the read returns another state, the work was in vain, and it is repeated on that state.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from keytide.base.process import refuse_forked_child
from keytide.errors import KeytideError
from keytide.format import paths
from keytide.format.snapshot import Snapshot
from keytide.snapshot.metadata import Look
from keytide.snapshot.pinned import PinnedMetadata
from keytide.snapshot.state import TableState
from keytide.snapshot.stored import PinnedTable, StoredTable
from keytide.snapshot.view import TableView

__all__ = ["as_expected"]

T = TypeVar("T")


class _OvertakenError(Exception):
    """The table is not in the expected state. This error never leaves `as_expected`."""


def as_expected(table: StoredTable, act: Callable[[PinnedTable], T]) -> T:
    """Return what `act` returns for the current table. `act` may start before the table is read.

    So `act` may be called twice, and the result of the first call is then dropped. `act` must
    change nothing except through a `Transaction` on the table that it receives. The transaction
    commits only after the read confirms the expected state. Otherwise `act` must call `confirm`
    before it uses the `live` table. Raises the errors of `act` and of the read.
    """
    expected = _expected(table)
    if expected is None:
        return act(table.pinned())
    try:
        given = act(expected)
        if expected.is_so():
            return given
    except _OvertakenError:
        pass
    except KeytideError:
        # If the table has changed, an error about its earlier state does not matter.
        if expected.is_so():
            raise
    return act(expected.as_it_is())


def _expected(table: StoredTable) -> _ExpectedTable | None:
    """The last known state.

    None if a read needs no waiting time, or may return more information.
    """
    if isinstance(table, PinnedTable) or table.store.local_path(paths.snapshot_dir()) is not None:
        return None
    refuse_forked_child()  # the read would do this too, but in another thread
    look = table.metadata.expected_look()
    return None if look is None else _ExpectedTable(table, look)


class _ExpectedTable(PinnedTable):
    """The last known state of a table, with a running read that checks whether it is current."""

    def __init__(self, live: StoredTable, expected: Look) -> None:
        super().__init__(live, _pinned_at(live, expected))
        self._look: Future[Look] = live.store.begin(live.metadata.look_alone)

    def __reduce__(self) -> Any:
        raise TypeError("a table that is looked at stays in its process")

    def is_so(self) -> bool:
        """Whether the table is in the expected state. Waits for the read and raises its errors."""
        return self._look.result() == self.metadata.seen

    def as_it_is(self) -> PinnedTable:
        """The table in the state that was read. Raises the errors of the read."""
        return PinnedTable(self.live, _pinned_at(self.live, self._look.result()))

    def confirm(self) -> None:
        """See `StoredTable`."""
        if not self.is_so():
            raise _OvertakenError

    def begin_check(self, snapshot: Snapshot | None) -> Future[bool]:
        """See `StoredTable`. While the first read is running, no other one is needed."""
        if not self._look.done():
            return self.store.begin(self._is_overtaken)
        self.confirm()
        return super().begin_check(snapshot)

    def _is_overtaken(self) -> bool:
        self.confirm()
        return False

    def state_to_write(self, view: TableView) -> TableState:
        """The state at the last known snapshot: for any other snapshot, the view is not
        confirmed.
        """
        return self.state_on(self.newest_files(), view)


def _pinned_at(table: StoredTable, look: Look) -> PinnedMetadata:
    metadata = table.metadata
    return PinnedMetadata(metadata.store, metadata.name, metadata.commits, seen=look)
