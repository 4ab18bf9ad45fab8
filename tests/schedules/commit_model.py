"""The commit protocol as a state machine: every step that an actor can make, one at a time.

A world is what a store has and what each actor knows. `steps` gives all worlds that can follow, and
`wrong` says what must never be seen.

The table has one key. A file is one version of its row, with a sequence number, and the row that is
shown is that of the highest number. So a result is right if it is that of the operations one after
the other, in the order of their snapshots: the story that each snapshot carries, which no actor
looks at.

An actor reads the ids after the snapshot that it knows until there is no more, decides, writes its
file and creates the next snapshot. Manifests and caches never decide, so they are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

__all__ = ["Rules", "Setting", "World", "steps", "told", "wrong"]

# -- the state -------------------------------------------------------------------------------------


class File(NamedTuple):
    """A version of the row: None as value deletes it."""

    name: str
    number: int
    value: str | None


Files = frozenset[File]
NOTHING: Files = frozenset()


class Snapshot(NamedTuple):
    """A snapshot. `by` is its identity: the id can come again after a rollback."""

    id: int
    by: str
    live: Files
    added: Files
    removed: Files
    base: str
    story: tuple[str, ...]
    """The operations that led to it: `A write`. `?` if the id before it was not there."""
    dead: Files = NOTHING
    """With deletion vectors: files whose row is not shown any more."""
    raised: Files = NOTHING
    """With deletion vectors: files above level 0. Only these are shown."""


class Actor(NamedTuple):
    """An actor: what it does, where it is, and what it knows."""

    name: str
    operation: str
    at: str = "open"
    known: Snapshot | None = None
    live: Files = NOTHING
    """The live files as it has put them together from the snapshots that it read."""
    source: Snapshot | None = None
    """What its change was computed from."""
    inputs: Files = NOTHING
    made: File | None = None
    attempt: int = 0
    tried: frozenset[str] = frozenset()
    tried_id: int = 0
    ids: tuple[int, ...] = ()
    is_last: bool = False
    """Of a writer, whether it created its snapshot after all rollbacks. Of a rollback, whether it
    removes the last snapshot.
    """

    @property
    def is_over(self) -> bool:
        """Whether it makes no more steps."""
        return self.at in ("done", "refused", "unknown", "dead")

    @property
    def identity(self) -> str:
        """The identity of the snapshot that it tries to create."""
        return f"{self.name}{self.attempt}"


class World(NamedTuple):
    """What the store has, and the actors."""

    snapshots: tuple[Snapshot, ...]
    files: Files
    actors: tuple[Actor, ...]
    crashes: int = 0
    lost: int = 0
    """How many more actors may die, and how many more answers may be lost."""
    hint: int = 2
    """The id that the file LATEST names. It is written late, and may be wrong."""

    def at(self, number: int) -> Snapshot | None:
        """The snapshot with an id."""
        return next((each for each in self.snapshots if each.id == number), None)

    def follows(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot was made from the one before it, or is the oldest."""
        before = self.at(snapshot.id - 1)
        return snapshot == self.snapshots[0] if before is None else snapshot.base == before.by

    @property
    def line(self) -> list[Snapshot]:
        """The snapshots that follow each other, from the oldest."""
        return [*itertools.takewhile(self.follows, self.snapshots)]

    def having(self, actor: Actor) -> World:
        """The world after an actor has changed."""
        actors = tuple(actor if each.name == actor.name else each for each in self.actors)
        return self._replace(actors=actors)

    def storing(self, *added: Snapshot, removed: int | None = None) -> World:
        """The world with other snapshots."""
        gone = {each.id for each in added} | {removed}
        kept = [each for each in self.snapshots if each.id not in gone]
        return self._replace(snapshots=tuple(sorted([*kept, *added], key=lambda each: each.id)))


class Rules(NamedTuple):
    """What the store and the actors do. Each can be switched off, to see what it is good for."""

    creates_if_absent: bool = True
    """The store creates a file only if there is none with the name."""
    restamps: bool = True
    """A file gets a higher number than all before it, at each attempt."""
    knows_own: bool = True
    """An author looks for its own snapshot before it tries again."""
    rows_conflict: bool = True
    """A change that was computed from rows is computed again if they have changed."""
    inputs_conflict: bool = True
    """A compaction is given up if a file that it has read is no longer live."""
    vectors_conflict: bool = True
    """A compaction is given up if another one has marked rows since it began."""
    checks_base: bool = True
    """An author looks, after the creation, whether the snapshot that it is based on is there."""
    names_base: bool = True
    """A snapshot says which one it was made from. If that is not the one before it, it is not part
    of the table.
    """
    spares_young: bool = True
    """Files that an actor may still be about to commit are no garbage."""
    keeps_shared: bool = True
    """Expiry deletes no file that a later snapshot has."""


class Setting(NamedTuple):
    """Actors by name with their operations, what may happen to them, and the rules."""

    actors: Mapping[str, str]
    rules: Rules = Rules()
    crashes: int = 0
    lost: int = 0
    has_vectors: bool = False

    def world(self) -> World:
        """A table with two snapshots, each of a write."""
        one, two = File("o", 1, "o"), File("p", 2, "p")
        first, second = frozenset([one]), frozenset([two])
        raised = first | second if self.has_vectors else NOTHING
        dead = first if self.has_vectors else NOTHING
        snapshots = (
            Snapshot(1, "o", first, first, NOTHING, "", ("o write",), NOTHING, raised & first),
            Snapshot(2, "p", raised or first | second, second, NOTHING, "o",
                     ("o write", "p write"), dead, raised),
        )  # fmt: skip
        actors = tuple(Actor(name, operation) for name, operation in self.actors.items())
        return World(snapshots, first | second, actors, self.crashes, self.lost)


# -- what is right ---------------------------------------------------------------------------------


def told(story: tuple[str, ...]) -> str | None:
    """The row after some operations, one after the other."""
    value: str | None = None
    for line in story:
        name, operation = line.split()
        if operation == "write":
            value = name
        elif operation == "delete":
            value = None
        elif operation == "update" and value is not None:
            value += "+" + name
    return value


def shown(snapshot: Snapshot, *, has_vectors: bool) -> list[str | None]:
    """The rows that a reader sees: [None] if the row is deleted."""
    if has_vectors:
        return [file.value for file in snapshot.raised - snapshot.dead]
    highest = max(file.number for file in snapshot.live)
    return [file.value for file in snapshot.live if file.number == highest]


def wrong(world: World, setting: Setting) -> str | None:
    """What must never be seen. None if there is nothing."""
    snapshots = world.line if setting.rules.names_base else world.snapshots
    for snapshot in snapshots:
        if snapshot.live - world.files:
            return f"snapshot {snapshot.id} lacks a file"
    latest = snapshots[-1]
    is_looked_at = any(latest.by in each.tried and not each.is_over for each in world.actors)
    is_rolling = any(each.operation == "rollback" and not each.is_over for each in world.actors)
    if is_looked_at or is_rolling:
        return None  # it may still go
    if "?" in latest.story:
        return f"snapshot {latest.id} follows no other"
    lines = [line for line in latest.story if not line.endswith("compact")]
    if len(lines) > len({*lines}):
        return f"a commit is there twice: {', '.join(lines)}"
    rows = shown(latest, has_vectors=setting.has_vectors)
    is_raised = not setting.has_vectors or latest.raised == latest.live
    if len(rows) > 1 or (is_raised and rows != [told(latest.story)]):
        return f"rows {rows} after {', '.join(latest.story)}"
    is_rolled_back = "rollback" in setting.actors.values()
    for actor in world.actors:
        is_acknowledged = actor.at == "done" and actor.made is not None
        line = f"{actor.name} {actor.operation}"
        if is_acknowledged and line not in latest.story and (actor.is_last or not is_rolled_back):
            return f"{line} was acknowledged and is not there"
    return None


# -- what can happen -------------------------------------------------------------------------------


Step = tuple[str, World]


def steps(world: World, setting: Setting) -> Iterator[Step]:
    """Every step that is possible, by name, with the world after it."""
    for actor in world.actors:
        if actor.is_over:
            continue
        for what, after in _STEPS[actor.at](world, actor, setting):
            yield f"{actor.name} {what}", after
        if world.crashes:
            dead = world.having(actor._replace(at="dead"))
            yield f"{actor.name} dies", dead._replace(crashes=world.crashes - 1)


def _open(world: World, actor: Actor, setting: Setting) -> Iterator[Step]:
    """Begin with the snapshot that the hint names, or with the latest one that is listed."""
    found = world.at(world.hint) or world.snapshots[-1]
    while setting.rules.names_base and not world.follows(found):
        found = [each for each in world.snapshots if each.id < found.id][-1]
    opened = actor._replace(at=_FIRST.get(actor.operation, "look"), known=found, live=found.live)
    yield f"opens {found.id}", world.having(opened)


def _look(world: World, actor: Actor, setting: Setting) -> Iterator[Step]:
    """Read the known id and the one after it. If there is none, decide and write a file."""
    known = _known(actor)
    following, rules = world.at(known.id + 1), setting.rules
    if world.at(known.id) != known:  # it has expired, or was rolled back
        yield "sees that it is gone", world.having(actor._replace(at="open"))
    elif following is None or (rules.names_base and following.base != known.by):
        yield f"sees {known.id} to be the latest", _decided(world, actor, setting)
    else:
        yield f"reads {following.id}", world.having(_following(actor, following, rules))


def _following(actor: Actor, snapshot: Snapshot, rules: Rules) -> Actor:
    """An actor that has read one more snapshot, perhaps its own."""
    live = actor.live - snapshot.removed | snapshot.added
    known = actor._replace(known=snapshot, live=live)
    return known._replace(at="done") if rules.knows_own and snapshot.by in actor.tried else known


def _known(actor: Actor) -> Snapshot:
    assert actor.known is not None
    return actor.known


# -- decisions -------------------------------------------------------------------------------------


def _decided(world: World, actor: Actor, setting: Setting) -> World:
    """The world after an actor has decided what to commit on top of what it knows."""
    known, rules, source = _known(actor), setting.rules, actor.source
    if rules.knows_own and actor.tried:
        known_line = world.line if rules.names_base else world.snapshots
        if any(each.by in actor.tried for each in known_line):
            return world.having(actor._replace(at="done"))
        # What it has created beside a rollback is not part of the table.
        own = next((each.id for each in world.snapshots if each.by in actor.tried), None)
        world = world.storing(removed=own)
        if actor.tried_id < world.snapshots[0].id:
            return world.having(actor._replace(at="unknown"))  # it may have been expired
    if actor.operation == "compact":
        return _compacting(world, actor, setting)
    number = max(file.number for file in actor.live) + 1
    if actor.made is not None and not rules.restamps:
        number = actor.made.number
    value: str | None = actor.name
    if actor.operation != "write":
        is_new = source is None or (rules.rows_conflict and _rows(source) != _rows(known))
        before = _row(known, actor.live) if is_new or source is None else _row(source, source.live)
        source = known if is_new else source
        if before is None:  # there is no row to change
            return _without(world, actor, "done")
        value = f"{before}+{actor.name}" if actor.operation == "update" else None
    made = File(f"{actor.name}{actor.attempt}", number, value)
    cleared = _without(world, actor)
    at_work = actor._replace(at="create", made=made, source=source)
    return cleared.having(at_work)._replace(files=cleared.files | {made})


def _compacting(world: World, actor: Actor, setting: Setting) -> World:
    """The world after a compaction was decided on. It is given up where it no longer fits."""
    known, rules, source = _known(actor), setting.rules, actor.source
    if setting.has_vectors:
        new = actor.live - known.raised if source is None else actor.inputs
        if not new:
            return _without(world, actor, "done")
        if source is not None and rules.vectors_conflict and source.dead != known.dead:
            return _without(world, actor, "refused")
        return world.having(actor._replace(at="create", inputs=new, source=source or known))
    inputs = actor.inputs or actor.live
    if len(inputs) < 2:
        return _without(world, actor, "done")
    if rules.inputs_conflict and not inputs <= actor.live:
        return _without(world, actor, "refused")
    newest = max(inputs, key=lambda file: file.number)
    made = File(f"{actor.name}{actor.attempt}", newest.number, newest.value)
    at_work = actor._replace(at="create", inputs=inputs, made=made, source=source or known)
    cleared = _without(world, actor)
    return cleared.having(at_work)._replace(files=cleared.files | {made})


def _without(world: World, actor: Actor, at: str | None = None) -> World:
    """The world without the file of an actor's last attempt."""
    files = world.files - ({actor.made} if actor.made is not None else NOTHING)
    ended = world._replace(files=files)
    return ended if at is None else ended.having(actor._replace(at=at, made=None))


def _row(snapshot: Snapshot, live: Files) -> str | None:
    return max(live, key=lambda file: file.number).value


def _rows(snapshot: Snapshot) -> list[str]:
    """The changes of rows up to a snapshot."""
    return [line for line in snapshot.story if not line.endswith("compact")]


# -- commits ---------------------------------------------------------------------------------------


def _create(world: World, actor: Actor, setting: Setting) -> Iterator[Step]:
    """Create the next snapshot, if nobody else has."""
    known, rules = _known(actor), setting.rules
    number, tried = known.id + 1, actor.tried | {actor.identity}
    if rules.creates_if_absent and world.at(number) is not None:
        lost = actor._replace(at="look", attempt=actor.attempt + 1)
        yield f"finds {number} taken", world.having(lost)
        return
    created = world.storing(_snapshot(world, actor, setting))
    at = "check" if rules.checks_base else "done"
    rolling = any(each.operation == "rollback" and not each.is_over for each in world.actors)
    actor = actor._replace(tried=tried, tried_id=number, is_last=not rolling)
    yield f"creates {number}", created.having(actor._replace(at="hint" if at == "check" else at))
    if world.lost:
        unsure = actor._replace(at="look", attempt=actor.attempt + 1)
        after = created.having(unsure)._replace(lost=world.lost - 1)
        yield f"creates {number} and gets no answer", after


def _snapshot(world: World, actor: Actor, setting: Setting) -> Snapshot:
    known = _known(actor)
    added = NOTHING if actor.made is None else frozenset([actor.made])
    removed = actor.inputs if not setting.has_vectors else NOTHING
    before = world.at(known.id)
    story = (*(("?",) if before is None else before.story), f"{actor.name} {actor.operation}")
    live, dead, raised = actor.live - removed | added, known.dead, known.raised
    if actor.operation == "compact" and setting.has_vectors and actor.source is not None:
        # Its rows replace those of all files that it has seen.
        seen = actor.source.raised | actor.inputs
        newest = max(seen, key=lambda file: file.number)
        dead, raised = seen - {newest}, raised | actor.inputs
    return Snapshot(
        known.id + 1, actor.identity, live, added, removed, known.by, story, dead, raised
    )


def _hint(world: World, actor: Actor, setting: Setting) -> Iterator[Step]:
    """Tell others where to begin."""
    number = _known(actor).id + 1
    yield f"hints {number}", world._replace(hint=number).having(actor._replace(at="check"))


def _check(world: World, actor: Actor, setting: Setting) -> Iterator[Step]:
    """Look whether the base is still there: it may have expired, but not been rolled back."""
    known = _known(actor)
    base, own, ids = world.at(known.id), world.at(known.id + 1), [s.id for s in world.snapshots]
    following = world.at(known.id + 2)
    if base is not None:
        stays = base == known and (not setting.rules.names_base or world.follows(base))
    elif min(ids) < known.id:
        stays = False
    elif own is None or own.by != actor.identity:
        stays = True
    else:
        stays = max(ids) == own.id or (following is not None and following.base == own.by)
    what = "sees its base" if stays else "misses its base"
    yield what, world.having(actor._replace(at="done" if stays else "withdraw"))


def _withdraw(world: World, actor: Actor, setting: Setting) -> Iterator[Step]:
    """Remove the snapshot that it has created, and begin again."""
    number = _known(actor).id + 1
    there = world.at(number)
    if there is not None and there.by == actor.identity:
        world = world.storing(removed=number)
    tried = actor.tried - {actor.identity}
    again = actor._replace(at="open", tried=tried, attempt=actor.attempt + 1)
    yield f"withdraws {number}", world.having(again)


# -- expiry, rollback and the removal of garbage ---------------------------------------------------


def _expire(world: World, actor: Actor, setting: Setting) -> Iterator[Step]:
    """Remove the oldest snapshots one by one, and then the files that only they have."""
    known = _known(actor)
    old = [each for each in world.snapshots if each.id < known.id]
    if old:
        inputs = actor.inputs | old[0].live
        after = world.storing(removed=old[0].id).having(actor._replace(inputs=inputs))
        yield f"removes {old[0].id}", after
        return
    kept = known.live if setting.rules.keeps_shared else NOTHING
    after = world._replace(files=world.files - (actor.inputs - kept))
    yield "removes their files", after.having(actor._replace(at="done"))


def _roll_back(world: World, actor: Actor, setting: Setting) -> Iterator[Step]:
    """List what is later than the first snapshot, and remove it, the latest first."""
    later = tuple(each.id for each in world.snapshots if each.id > 1)
    if len(later) > 1:
        hinted = world._replace(hint=1)
        yield f"lists {later}", hinted.having(actor._replace(at="remove", ids=later[1:]))
    elif later:
        yield f"lists {later}", world.having(actor._replace(at="remove", ids=later, is_last=True))
    else:
        yield "has nothing to remove", world.having(actor._replace(at="done"))


def _remove(world: World, actor: Actor, setting: Setting) -> Iterator[Step]:
    if actor.ids:
        *rest, number = actor.ids
        after = world.storing(removed=number)
        yield f"removes {number}", after.having(actor._replace(ids=tuple(rest)))
    elif not actor.is_last:
        yield from _roll_back(world, actor, setting)
    else:
        # From now on, snapshots follow the first one without a gap. Those after a gap go too.
        ids = [each.id for each in world.snapshots]
        gap = next((number for number in ids if number > 2 and number - 1 not in ids), None)
        parted = tuple(number for number in ids if gap is not None and number >= gap)
        if setting.rules.names_base:
            parted = tuple(each.id for each in world.snapshots if each not in world.line)
        if parted:
            yield f"lists {parted}", world.having(actor._replace(ids=parted))
        else:
            yield "is done", world._replace(hint=1).having(actor._replace(at="done"))


def _sweep(world: World, actor: Actor, setting: Setting) -> Iterator[Step]:
    """List the files that no snapshot has and nobody is about to commit."""
    young = {each.made for each in world.actors if not each.is_over}
    used = {file for snapshot in world.snapshots for file in snapshot.live}
    free = world.files - used - (young if setting.rules.spares_young else NOTHING)
    yield "lists garbage", world.having(actor._replace(at="clear", inputs=frozenset(free)))


def _clear(world: World, actor: Actor, setting: Setting) -> Iterator[Step]:
    after = world._replace(files=world.files - actor.inputs)
    yield "removes garbage", after.having(actor._replace(at="done"))


_FIRST = {"expire": "expire", "rollback": "roll back", "sweep": "sweep"}
_STEPS = {
    "open": _open, "look": _look, "create": _create, "hint": _hint,
    "check": _check, "withdraw": _withdraw, "expire": _expire, "roll back": _roll_back,
    "remove": _remove, "sweep": _sweep, "clear": _clear,
}  # fmt: skip
