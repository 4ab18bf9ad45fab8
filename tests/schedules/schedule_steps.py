"""Schedules: whose request to a store comes next, and what happens to it.

Actors run real calls, each in a thread and over a view of one store. Every request of an actor is a
step. A schedule is a line of text that says how many steps each actor makes until it is the turn of
another: `A3 B* A*` are three steps of A, all of B, and the rest of A. A mark after a number is the
fate of the step after these: `A3! B*` means that A dies at its fourth step, `A3?` that the step is
done but its answer is lost, `A3-` that it fails. `A3~ B* A*` is a request that A takes for failed,
and that the store carries out after all, when the next turn is over: here after all of B. And
`A3 B* A0< A*` is a listing of A that lags: it lacks the files that others have created since the
step of A before it. Before the step of `A3^`, the clock of all jumps ahead by hours, and before
that of `A3v` back by as many.

The same schedule gives the same steps: an actor makes one request after the other, whatever its
threads, and names that are random are different each time but mean the same.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Condition, Thread
from typing import BinaryIO, TypeVar
from unittest.mock import patch

import keytide as kt
from keytide.store.faults import Crash, FaultyStore
from keytide.store.interface import Store, buffered

__all__ = ["HARMLESS", "WHOLE", "Outcome", "Schedule", "Step", "Turn", "run"]

T = TypeVar("T")
WHOLE = 1 << 30
"""The steps of a turn that has no end."""
_FATES = {
    "!": "crash", "?": "lost-response", "-": "fail", "~": "late", "<": "lag",
    "^": "clock ahead", "v": "clock back",
}  # fmt: skip
HARMLESS = frozenset(("", "lag", "clock ahead", "clock back"))
"""Fates after which the actor has its answer, and does not know of them."""
_JUMP_NS = 5 * 3_600 * 10**9
"""Shorter than the age at which files may be orphans, and snapshots expire."""
_CREATES = ("create", "put", "output", "hint")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=-)[0-9a-f]{12}\b")
_WAIT_SECONDS = 60


@dataclass(frozen=True)
class Turn:
    """So many steps of one actor, and the fate of the next one if it has one."""

    actor: str
    steps: int = WHOLE
    fate: str = ""

    def __str__(self) -> str:
        return f"{self.actor}{'*' if self.steps == WHOLE else self.steps}{self.fate}"


@dataclass(frozen=True)
class Schedule:
    """Turns, one after the other. After them, each actor makes the rest of its steps."""

    turns: tuple[Turn, ...] = ()

    @classmethod
    def of(cls, text: str) -> Schedule:
        """The schedule of a line of text."""
        found = []
        for word in text.split():
            actor, steps, fate = re.fullmatch(r"([A-Z])(\*|\d+)([!?~<^v-]?)", word).groups()  # type: ignore[union-attr]  # or the text is wrong
            found.append(Turn(actor, WHOLE if steps == "*" else int(steps), fate))
        return cls(tuple(found))

    def __str__(self) -> str:
        return " ".join(map(str, self.turns))


@dataclass(frozen=True)
class Step:
    """A request of an actor."""

    actor: str
    operation: str
    path: str
    fate: str = ""

    def __str__(self) -> str:
        return f"{self.actor}  {self.operation:7} {self.path}{'  ' * bool(self.fate)}{self.fate}"

    @property
    def does_change(self) -> bool:
        """Whether it changes the store."""
        return self.operation in (*_CREATES, "delete")

    @property
    def folder(self) -> str | None:
        """The beginning of all paths that a listing can contain. None if it is no listing."""
        return f"{self.path}/".lstrip("/") if self.operation == "list" else None

    def meets(self, other: Step) -> bool:
        """Whether it matters which of the two comes first."""
        if not (self.does_change or other.does_change):
            return False
        if self.folder is not None or other.folder is not None:
            return self.path.startswith(other.folder or "?") or other.path.startswith(
                self.folder or "?"
            )
        return self.path == other.path


@dataclass(frozen=True)
class Outcome:
    """The steps that were made, and how each actor ended: with a value or an error."""

    steps: tuple[Step, ...]
    values: Mapping[str, object]
    errors: Mapping[str, BaseException]

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))

    @property
    def named(self) -> tuple[Step, ...]:
        """The steps with names that are the same each time: `A2` for the second new name of A."""
        names, own = dict[str, str](), Counter[str]()
        for step in self.steps:
            for uuid in _UUID.findall(step.path) if step.operation in _CREATES else ():
                if uuid not in names:
                    own[step.actor] += 1
                    names[uuid] = f"{step.actor}{own[step.actor]}"
        return tuple(
            replace(step, path=_UUID.sub(lambda found: names.get(found[0], found[0]), step.path))
            for step in self.steps
        )

    @property
    def trace(self) -> str:
        """What all schedules have in common that differ in the order of independent steps only.

        It is the steps of each actor, and for each place the order of the steps that meet there. So
        the state of the store at the end is the same, but for names and times.
        """
        meetings: dict[str, list[tuple[bool, str]]] = {}
        steps: dict[str, list[str]] = {}
        named = self.named
        folders = {step.folder for step in named if step.folder is not None}
        for step in named:
            what = str(step)
            steps.setdefault(step.actor, []).append(what)
            place = step.path if step.folder is None else step.folder
            meetings.setdefault(place, []).append((step.does_change, what))
            for folder in folders if step.does_change else ():
                if step.path.startswith(folder):
                    meetings.setdefault(folder, []).append((True, what))
        ordered = sorted((place, _ordered(place, met)) for place, met in meetings.items())
        return repr((sorted(steps.items()), ordered))


def _ordered(place: str, met: Iterable[tuple[bool, str]]) -> list[tuple[bool, list[str]]]:
    """The order of reads among changes. Reads, and changes in a folder, have none among each
    other.
    """
    found = []
    for does_change, some in itertools.groupby(met, key=lambda each: each[0]):
        what = [each for _, each in some]
        is_folder = place.endswith("/") or not place
        found.append((does_change, sorted(what) if is_folder or not does_change else what))
    return found


def run(
    schedule: Schedule, store: Store, actors: Mapping[str, Callable[[kt.Table], object]]
) -> Outcome:
    """Run actors on the table in `store` by a schedule."""
    conductor = _Conductor([*actors], [*schedule.turns])
    threads = [
        Thread(target=conductor.play, args=(name, store, call)) for name, call in actors.items()
    ]
    with conductor.clock():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        conductor.carry_out(whatever=True)
    return Outcome(tuple(conductor.steps), conductor.values, conductor.errors)


@dataclass
class _Conductor:
    """Lets one actor at a time make a step."""

    names: Sequence[str]
    turns: list[Turn]
    steps: list[Step] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    made: int = 0
    """The steps of the present turn."""
    is_busy: bool = False
    """Whether a step is being made."""
    late: list[tuple[int, Callable[[], object]]] = field(default_factory=list)
    """Requests that the store carries out later, each once so many turns are left."""
    new: dict[str, set[str]] = field(default_factory=dict)
    """By actor: the files that others have created since its latest step."""
    moved: Condition = field(default_factory=Condition)
    ahead_ns: int = 0
    """How far the clock has jumped."""

    @contextmanager
    def clock(self) -> Iterator[None]:
        """The wall clock as all actors see it. Times of files are those of the store."""
        now_ns, now = time.time_ns, time.time
        with (
            patch("time.time_ns", lambda: now_ns() + self.ahead_ns),
            patch("time.time", lambda: now() + self.ahead_ns / 1e9),
        ):
            yield

    def play(self, name: str, store: Store, call: Callable[[kt.Table], object]) -> None:
        """Run an actor to its end."""
        try:
            with self.moved:
                self._wait(name)  # it looks at no clock before
            self.values[name] = call(kt.connect("", store=_Stage(store, name, self)).table("t"))
        except BaseException as error:
            self.errors[name] = error
        with self.moved:
            self.over.add(name)
            self.moved.notify_all()

    @contextmanager
    def step(self, name: str, operation: str, path: str) -> Iterator[str]:
        """A step of an actor, in its turn: what it does meanwhile, and its fate."""
        with self.moved:
            if name in self.dead:
                raise Crash(f"{operation} {path} after the crash")
            self._wait(name)
            fate = ""
            if self.turns and self.turns[0].actor == name:
                self.made += 1
                if self.made > self.turns[0].steps:
                    fate = _FATES[self.turns[0].fate]
                    self._end_turn()
            self.steps.append(Step(name, operation, path, fate))
            if fate.startswith("clock"):
                self.ahead_ns += _JUMP_NS if fate == "clock ahead" else -_JUMP_NS
            if fate != "lag":
                self.new[name] = set()
            if operation in _CREATES:
                for other in {*self.names} - {name}:
                    self.new.setdefault(other, set()).add(path)
            self.is_busy = True
            if fate == "crash":
                self.dead.add(name)
        try:
            yield fate
        finally:
            with self.moved:
                self.is_busy = False
                self.moved.notify_all()

    def _wait(self, name: str) -> None:
        if not self.moved.wait_for(lambda: self._next() == name, _WAIT_SECONDS):
            raise AssertionError(f"{name} waits for {self._next()}, which makes no step")

    def _next(self) -> str | None:
        if self.is_busy:
            return None
        while self.turns:
            turn = self.turns[0]
            if turn.actor not in self.over and (self.made < turn.steps or turn.fate):
                return turn.actor
            self._end_turn()
        return next((name for name in self.names if name not in self.over), None)

    def _end_turn(self) -> None:
        self.turns.pop(0)
        self.made = 0
        self.carry_out()

    def carry_out(self, *, whatever: bool = False) -> None:
        """Carry out the late requests that are due, or all. Nobody waits for their answers."""
        due = [do for left, do in self.late if whatever or len(self.turns) <= left]
        self.late = [each for each in self.late if each[1] not in due]
        for do in due:
            with suppress(kt.KeytideError):
                do()


class _Stage(FaultyStore):
    """The store as one actor sees it: at an address of its own, so that it shares no cache."""

    def __init__(self, inner: Store, name: str, conductor: _Conductor) -> None:
        super().__init__(inner)
        self._name, self._conductor = name, conductor

    @property
    def uri(self) -> str:
        """An address that only this actor has."""
        return f"{self.inner.uri}#{self._name}"

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """A new file, stored in one step at the end."""
        data = bytearray()
        with buffered(data.extend) as file:
            yield file
        self._perform("output", path, lambda: self.inner.put(path, bytes(data)))

    def _perform(
        self,
        operation: str,
        path: str,
        do: Callable[[], T],
        tear: Callable[[], object] | None = None,
    ) -> T:
        with self._conductor.step(self._name, operation, self._prefix + path) as fate:
            if fate in (*HARMLESS, "lost-response"):
                found = do()
            if fate == "lag":
                return self._lagging(path, found)
            if fate in HARMLESS:
                return found
            if fate == "late":
                self._conductor.late.append((len(self._conductor.turns) - 1, do))
                raise self._failure("fail", operation, path)
            raise self._failure(fate, operation, path)  # type: ignore[arg-type]  # an action

    def _lagging(self, directory: str, found: T) -> T:
        """What is listed, without what others have just created."""
        hidden = self._conductor.new.get(self._name, set())
        if isinstance(found, list):
            place = (self._prefix + directory).strip("/")
            shown = [name for name in found if f"{place}/{name}" not in hidden]
        elif isinstance(found, Iterator):
            shown = iter([i for i in found if self._prefix + i.path not in hidden])  # type: ignore[assignment]
        else:
            raise AssertionError(f"a {type(found).__name__} is no listing")
        return shown  # type: ignore[return-value]  # of the same type
