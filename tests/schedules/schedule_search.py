"""Searches the schedules of some operations on a kind of table for one with a wrong result.

A result is right if some order of the operations gives it, one after the other. An operation that
was refused because of a conflict is not part of it. One that crashed or failed may be.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache, lru_cache
from typing import Any

from schedule_steps import HARMLESS, WHOLE, Outcome, Schedule, Step, Turn, run
from schedule_worlds import (
    COMPACTED,
    NOT_LATE,
    OPERATIONS,
    READS,
    STEPWISE,
    contents,
    new_world,
)

import keytide as kt
from keytide.store.faults import Crash
from keytide.store.interface import Store

__all__ = ["Case", "Finding"]

_NAMES, _LAG, _CLOCKS = "ABC", "<", "^v"
_CHANGED = "!?"
"""Fates that are only told apart at a change."""
_LATE, _CHANGES = "~", ("create", "put", "output", "delete", "hint")


@dataclass(frozen=True)
class Finding:
    """A schedule with a wrong result."""

    case: Case
    schedule: Schedule
    what: str
    outcome: Outcome

    def __str__(self) -> str:
        ends = "\n".join(f"{n}: {e!r}" for n, e in self.outcome.errors.items())
        return f"{self.case}: {self.schedule}\n{self.what}\n{ends}\n{self.outcome}"


@dataclass(frozen=True)
class Case:
    """Operations on one table at the same time."""

    kind: str
    operations: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' | '.join(self.operations)} on {self.kind}"

    # -- schedules ------------------------------------------------------------------------------

    def schedules(self, preemptions: int) -> Iterator[Schedule]:
        """All schedules with at most so many preemptions, without those that only swap steps that
        do not meet.
        """
        found = self.serial
        yield from found
        for _ in range(preemptions):
            found = [later for each in found for later in _explored(self).preempted(each)]
            yield from found

    @property
    def serial(self) -> list[Schedule]:
        """The schedules in which each actor makes all of its steps at once."""
        return [Schedule(tuple(map(Turn, order))) for order in itertools.permutations(self.actors)]

    @property
    def is_atomic(self) -> bool:
        """Whether others may not come in between."""
        stepwise = [operation for operation in self.operations if operation in STEPWISE]
        return len(stepwise) > 1 or bool(stepwise and {*self.operations} & READS)

    def faults(self, fates: str) -> Iterator[Schedule]:
        """Each step of each actor with each fate, after which the others run, and before."""
        for name, operation in zip(self.actors, self.operations, strict=True):
            # Who dies in the midst of a rollback leaves a state that others see, but no clock does.
            possible = [f for f in fates if f in _CLOCKS or operation not in STEPWISE]
            others = tuple(Turn(other) for other in self.actors if other != name)
            for number, step in enumerate(self.steps_alone(name)):
                # A late deletion can hit what a rollback counts on: no store knows what it deletes.
                is_lost = step.operation == "delete" and {*self.operations} & STEPWISE
                is_late = step.operation in _CHANGES and operation not in NOT_LATE and not is_lost
                # Who dies at a read leaves what it leaves at the next change. A read whose answer
                # is lost has failed.
                futile = () if step.does_change else _CHANGED
                for fate in (each for each in possible if each not in futile):
                    if fate == _LAG and step.operation == "list":
                        yield Schedule((Turn(name, number), *others, Turn(name, 0, _LAG)))
                    if fate != _LAG and (fate != _LATE or is_late):
                        yield Schedule((Turn(name, number, fate), *others))
                        yield Schedule((*others, Turn(name, number, fate)))
                    if fate == _LATE and is_late:
                        yield Schedule((Turn(name, number, _LATE), Turn(name), *others))

    @property
    def actors(self) -> str:
        """The name of each operation's actor."""
        return _NAMES[: len(self.operations)]

    @property
    def calls(self) -> dict[str, Callable[[kt.Table], Any]]:
        """What each actor does."""
        return dict(zip(self.actors, map(OPERATIONS.__getitem__, self.operations), strict=True))

    def steps_alone(self, name: str) -> tuple[Step, ...]:
        """The steps of an operation if it is the first one."""
        return _alone(self.kind, name, self.operations[self.actors.index(name)])

    # -- results --------------------------------------------------------------------------------

    def check(self, schedule: Schedule) -> Finding | None:
        """Run a schedule. None if its result is right."""
        store = new_world(self.kind)
        outcome = run(schedule, store, self.calls)
        # A trace does not say when a late request was carried out, since when a listing lags, or
        # who made steps after the clock jumped.
        is_whole = not any(turn.fate in (_LATE, _LAG, *_CLOCKS) for turn in schedule.turns)
        traces, trace = _right_traces(self), hash(outcome.trace)
        if is_whole and trace in traces:
            return None
        what = self._wrong(outcome, store)
        if what is not None:
            return Finding(self, schedule, what, outcome)
        traces.add(trace)
        return None

    def _wrong(self, outcome: Outcome, store: Store) -> str | None:
        faulty = {step.actor for step in outcome.steps if step.fate not in HARMLESS}
        refused, unsure, ends = set[int](), set[int](), list[str | None]()
        for number, name in enumerate(self.actors):
            error = outcome.errors.get(name)
            if name in faulty and isinstance(error, Crash | kt.KeytideError):
                unsure.add(number)
            elif isinstance(error, kt.ConflictError):
                refused.add(number)
            elif error is not None and not isinstance(error, kt.KeytideError):
                return f"{name} failed: {type(error).__name__}: {error}"
            is_open = number in unsure | refused
            end = _end(self.operations[number], outcome.values.get(name), error)
            ends.append(None if is_open else end)
        try:
            table = kt.connect("", store=store).table("t")
            if self.kind in COMPACTED and faulty:
                table.compact()
            found = contents(table)
        except kt.KeytideError as error:
            return f"the table cannot be read: {error}"
        is_half_done = any(
            operation in STEPWISE and name in outcome.errors
            for name, operation in zip(self.actors, self.operations, strict=True)
        )
        if not is_half_done and not any(
            repr(found) == rows and all(a in (None, b) for a, b in zip(ends, seen, strict=True))
            for rows, seen in _serial(
                self.kind, self.operations, frozenset(refused), frozenset(unsure)
            )
        ):
            return f"rows {found} and ends {ends} are those of no order"
        try:
            table.remove_orphan_files(older_than=datetime.now(timezone.utc), dry_run=False)
        except kt.KeytideError as error:
            return f"orphan files cannot be found: {error}"
        again = kt.connect("", store=store).table("t")
        if contents(again) != found:
            return f"removing orphan files left {contents(again)} of {found}"
        findings = again.verify().findings
        if findings:
            return f"verify: {findings}"
        followed = _followed(again)
        return None if followed == found else f"a follower has {followed}, and the table {found}"


def _followed(table: kt.Table) -> list[tuple[int, Any, Any]]:
    """The rows of the oldest snapshot, and the changes since then."""
    ids = [snapshot.id for snapshot in table.snapshots()]
    seen = Counter(contents(table, ids[0]))
    for change in table.changes(ids[0], ids[-1]) if len(ids) > 1 else ():
        row = (change["k"], change["v"], change["s"])
        if change["_row_kind"] in ("-D", "-U"):
            seen[row] -= 1
            continue
        for other in [each for each in seen if table.primary_key and each[0] == row[0]]:
            del seen[other]
        seen[row] += 1
    return sorted(seen.elements())


@lru_cache(maxsize=8)
def _right_traces(case: Case) -> set[int]:
    """The hashes of the traces whose result is right. Filled as they are found."""
    return set()


@cache
def _alone(kind: str, name: str, operation: str) -> tuple[Step, ...]:
    return run(Schedule(), new_world(kind), {name: OPERATIONS[operation]}).named


@dataclass(frozen=True)
class _Explored:
    """The steps of schedules of a case, and all that were met."""

    case: Case
    steps: dict[Schedule, tuple[Step, ...]] = field(default_factory=dict)
    met: set[Step] = field(default_factory=set)

    def preempted(self, schedule: Schedule) -> list[Schedule]:
        """The same with one preemption more, in the first turn that is none yet: before each step
        that the step of another actor meets.
        """
        place = sum(turn.steps < WHOLE for turn in schedule.turns)
        before, whole, rest = (
            schedule.turns[:place], schedule.turns[place], schedule.turns[place + 1 :]
        )  # fmt: skip
        if self.case.is_atomic or not rest:
            return []
        earlier = sum(turn.steps for turn in before if turn.actor == whole.actor)
        own = [step for step in self.of(schedule) if step.actor == whole.actor][earlier:]
        others = [step for step in self.met if step.actor != whole.actor]
        stops = [n for n, step in enumerate(own) if n and any(map(step.meets, others))]
        return [Schedule((*before, Turn(whole.actor, n), *rest, whole)) for n in stops]

    def of(self, schedule: Schedule) -> tuple[Step, ...]:
        """The steps of a schedule."""
        if schedule not in self.steps:
            made = run(schedule, new_world(self.case.kind), self.case.calls).named
            self.steps[schedule] = made
            self.met.update(made)
        return self.steps[schedule]


@lru_cache(maxsize=8)
def _explored(case: Case) -> _Explored:
    """All schedules with at most one preemption."""
    explored, known = _Explored(case), -1
    while known < (known := len(explored.steps)):
        for schedule in case.serial:
            for each in (schedule, *explored.preempted(schedule)):
                explored.of(each)
    return explored


@cache
def _serial(
    kind: str, operations: tuple[str, ...], refused: frozenset[int], unsure: frozenset[int]
) -> frozenset[tuple[str, tuple[str | None, ...]]]:
    """The rows, and the end of each operation, for every order of those that may be done."""
    found = set()
    certain = [n for n in range(len(operations)) if n not in refused | unsure]
    for count in range(len(unsure) + 1):
        for more in itertools.combinations(sorted(unsure), count):
            for order in itertools.permutations([*certain, *more]):
                store, seen = new_world(kind), dict[int, str]()
                for number in order:
                    value, error = None, None
                    try:
                        table = kt.connect("", store=store).table("t")
                        value = OPERATIONS[operations[number]](table)
                    except kt.KeytideError as problem:
                        error = problem
                    seen[number] = _end(operations[number], value, error)
                rows = repr(contents(kt.connect("", store=store).table("t")))
                found.add((rows, tuple(seen.get(n) for n in range(len(operations)))))
    return frozenset(found)


def _end(operation: str, value: object, error: BaseException | None) -> str:
    """How an operation ended, as others can tell: the rows that it read, or the kind of error."""
    if error is not None:
        return type(error).__name__
    return repr(value) if operation in READS else "done"
