"""Work that begins before it is known whether a table still is what this process saw last.

A look at a far store is a wait. Where a process has found a table as it had left it, it most often
will again: so work begins on that, and the look goes beside it. Only where the look tells of
something else was the work in vain, and is done anew on what the look saw.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from keytide.errors import KeytideError
from keytide.format import paths
from keytide.format.snapshot import Snapshot
from keytide.process import refuse_forked_child
from keytide.table.state.metadata import Look
from keytide.table.state.pinned import PinnedMetadata
from keytide.table.state.state import TableState
from keytide.table.state.stored import PinnedTable, StoredTable
from keytide.table.state.view import TableView

__all__ = ["as_expected"]

T = TypeVar("T")


class _OvertakenError(Exception):
    """The table is not what it was expected to be. Leaves no call of `as_expected`."""


def as_expected(table: StoredTable, act: Callable[[PinnedTable], T]) -> T:
    """What `act` gives of the table as it is now: one look, beside which `act` has begun perhaps.

    So it may be called twice, and what comes of the first time is dropped: it changes nothing but
    by a `Transaction` on the table that it is given, which commits once the look has told that the
    table is as expected, and goes on with the `live` table only after `confirm`. Raises what `act`
    and the look raise.
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
        # An error that is about what the table was before is none.
        if expected.is_so():
            raise
    return act(expected.as_it_is())


def _expected(table: StoredTable) -> _ExpectedTable | None:
    """The table as it was seen last; None where a look costs no wait, or may tell of more."""
    if isinstance(table, PinnedTable) or table.store.local_path(paths.snapshot_dir()) is not None:
        return None
    refuse_forked_child()  # the look would, in a thread of its own
    look = table.metadata.expected_look()
    return None if look is None else _ExpectedTable(table, look)


class _ExpectedTable(PinnedTable):
    """A table as this process saw it last, beside a look that tells whether it still is."""

    def __init__(self, live: StoredTable, expected: Look) -> None:
        super().__init__(live, _pinned_at(live, expected))
        self._look: Future[Look] = live.store.begin(live.metadata.look_alone)

    def __reduce__(self) -> Any:
        raise TypeError("a table that is looked at stays in its process")

    def is_so(self) -> bool:
        """Whether the table is as expected, once the look has told. Raises what the look raises."""
        return self._look.result() == self.metadata.seen

    def as_it_is(self) -> PinnedTable:
        """The table as the look saw it. Raises what the look raises."""
        return PinnedTable(self.live, _pinned_at(self.live, self._look.result()))

    def confirm(self) -> None:
        """See `StoredTable`."""
        if not self.is_so():
            raise _OvertakenError

    def begin_check(self, snapshot: Snapshot | None) -> Future[bool]:
        """See `StoredTable`. While the first look is under way, no other one is needed."""
        if not self._look.done():
            return self.store.begin(self._is_overtaken)
        self.confirm()
        return super().begin_check(snapshot)

    def _is_overtaken(self) -> bool:
        self.confirm()
        return False

    def state_to_write(self, view: TableView) -> TableState:
        """The snapshot that was seen last: of another one nobody has confirmed the view."""
        return self.state_on(self.newest_files(), view)


def _pinned_at(table: StoredTable, look: Look) -> PinnedMetadata:
    metadata = table.metadata
    return PinnedMetadata(metadata.store, metadata.name, metadata.commits, seen=look)
