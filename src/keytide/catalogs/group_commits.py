"""Group commits: writes of several threads to one table share a commit.

While one thread writes to a table, others that come wait for it. Then one of them writes the rows
of all that wait, as if they were one write: in the order in which they came, so the outcome is that
of writing them one after the other. Each still gets a result or an error of its own. A thread that
is alone waits for nobody.

Threads that would commit separately compete for the same snapshot. Each commit then costs the
others a repetition, so that eight threads write less per second than one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from threading import Event, Lock, get_ident
from typing import Any, TypeAlias

from keytide.base.dataclass import dataclass, field
from keytide.commit.transaction import WriteResult
from keytide.errors import DataError

Outcome: TypeAlias = "WriteResult | Exception"
Place: TypeAlias = "tuple[Hashable, ...]"

# A commit with more writes would make the first of them wait longer than they gain.
_TOGETHER_MAX = 64


class CannotShareError(Exception):
    """These writes cannot share a commit. This error never leaves a write."""


@dataclass(eq=False)
class _Write:
    """A write that waits: its rows, and its outcome."""

    data: Any
    is_told: Event = field(default_factory=lambda: Event())
    """Set once the write has an outcome, or has to write for a group."""
    group: Sequence[_Write] = ()
    """The writes that this one's thread has to do, itself among them. Empty for the others."""
    is_over: bool = False
    """Whether its thread has handed on what came later."""
    outcome: Outcome | None = None


class GroupCommits:
    """The writes of a process that wait for another one to the same table, by its place.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start again without writes, because a fork does not copy threads."""
        self._lock = Lock()
        self._waiting: dict[Place, list[_Write]] = {}
        """What waits, for each table to which a thread writes at the moment."""
        self._writers: dict[Place, int] = {}
        """Which thread that is."""

    def write(
        self, place: Place, data: Any, commit: Callable[[Sequence[Any]], Sequence[Outcome]]
    ) -> WriteResult:
        """The result of writing `data`, alone or with what others write to the table at `place`.

        The address of the table is the first member of its place.

        `commit` writes several data and returns the outcome of each. Raises its errors, and the
        error of this write. Raises `DataError` if another thread was stopped while it wrote `data`.
        """
        own, is_within = _Write(data), False
        with self._lock:
            if place not in self._waiting:
                self._waiting[place], own.group = [], [own]
            elif self._writers.get(place) == get_ident():
                is_within = True  # it must not wait for itself
            else:
                self._waiting[place].append(own)
        try:
            if is_within:
                (own.outcome,) = commit([data])
            elif not own.group:
                own.is_told.wait()
            if own.group:
                self._write_group(place, own.group, commit)
        except BaseException:  # Ctrl-C
            with self._lock:
                if own in self._waiting.get(place, ()):
                    self._waiting[place].remove(own)
                elif own.group and not own.is_over:  # another thread writes for the others
                    self._hand_on(place, [each for each in own.group if each is not own])
            raise
        if isinstance(own.outcome, WriteResult):
            return own.outcome
        raise own.outcome or DataError(
            f"{place[0]}: the thread that wrote these rows with its own was stopped, so it is "
            "unknown whether they are written; read the table before you write them again"
        )

    def _write_group(
        self,
        place: Place,
        group: Sequence[_Write],
        commit: Callable[[Sequence[Any]], Sequence[Outcome]],
    ) -> None:
        self._writers[place] = get_ident()
        try:
            outcomes = commit([write.data for write in group])
            for write, outcome in zip(group, outcomes, strict=True):
                write.outcome = outcome
        except Exception as error:
            for write in group:
                write.outcome = error
        finally:
            for write in group[1:]:
                write.is_told.set()
            with self._lock:
                group[0].is_over = True
                self._writers.pop(place, None)
                self._hand_on(place, [])

    def _hand_on(self, place: Place, first: list[_Write]) -> None:
        """Let the next of the waiting writes begin. Those of `first` come before the others."""
        waiting = [*first, *self._waiting[place]]
        if not waiting:
            del self._waiting[place]
            return
        group, self._waiting[place] = waiting[:_TOGETHER_MAX], waiting[_TOGETHER_MAX:]
        group[0].group = group
        group[0].is_told.set()


GROUPS = GroupCommits()
os.register_at_fork(after_in_child=GROUPS.forget)
