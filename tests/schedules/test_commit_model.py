"""The model of the commit protocol: every world of it, and the real code beside it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from commit_model import Rules, Setting, World, steps, told
from model_search import Explored, explore, walk
from schedule_steps import Outcome, Schedule, Step, Turn, run

import keytide as kt
from keytide.store import open_store
from keytide.store.interface import Store

RULES = Rules()
SAFE = {
    "two writers": Setting({"A": "write", "B": "write"}, crashes=1, lost=1),
    "three writers": Setting({"A": "write", "B": "write", "C": "write"}, crashes=1),
    "changes of rows": Setting({"A": "update", "B": "delete", "C": "write"}),
    "an update": Setting({"A": "write", "B": "update"}, crashes=1, lost=1),
    "two compactions": Setting({"A": "write", "B": "compact", "C": "compact"}, crashes=1),
    "a delete and a compaction": Setting({"A": "delete", "B": "compact", "C": "write"}, lost=1),
    "expiry": Setting({"A": "write", "B": "compact", "C": "expire"}, crashes=1, lost=1),
    "garbage": Setting({"A": "write", "B": "sweep", "C": "compact"}, crashes=1),
    "deletion vectors": Setting(
        {"A": "write", "B": "compact", "C": "compact"}, crashes=1, has_vectors=True
    ),
    "a rollback": Setting({"A": "write", "B": "rollback"}, crashes=1, lost=1),
    "a rollback and two writers": Setting({"A": "write", "B": "rollback", "C": "write"}),
    "a rollback and a compaction": Setting({"A": "write", "B": "rollback", "C": "compact"}),
    "a rollback and changes": Setting({"A": "update", "B": "rollback", "C": "delete"}),
}
"""What is explored to the end without anything wrong."""
WRONG = {
    "a store that overwrites": (
        Setting({"A": "write", "B": "write"}, RULES._replace(creates_if_absent=False)),
        "acknowledged and is not there",
    ),
    "numbers that stay": (
        Setting({"A": "write", "B": "write"}, RULES._replace(restamps=False)),
        "rows ['",
    ),
    "an author that forgets its commit": (
        Setting({"A": "write", "B": "write"}, RULES._replace(knows_own=False), lost=1),
        "lacks a file",
    ),
    "rows that others changed": (
        Setting({"A": "write", "B": "update"}, RULES._replace(rows_conflict=False)),
        "rows ['p+B'] after o write, p write, A write, B update",
    ),
    "inputs that are gone": (
        Setting({"A": "compact", "B": "compact"}, RULES._replace(inputs_conflict=False)),
        "rows ['p', 'p']",
    ),
    "marks of another compaction": (
        Setting(
            {"A": "write", "B": "compact", "C": "compact", "D": "write"},
            RULES._replace(vectors_conflict=False),
            has_vectors=True,
        ),
        "rows ['",
    ),
    "a base that nobody looks at": (
        Setting({"A": "write", "B": "rollback"}, RULES._replace(checks_base=False)),
        "acknowledged and is not there",
    ),
    "garbage that is young": (
        Setting({"A": "write", "B": "sweep"}, RULES._replace(spares_young=False)),
        "lacks a file",
    ),
    "files that later snapshots have": (
        Setting({"A": "write", "B": "expire"}, RULES._replace(keeps_shared=False)),
        "lacks a file",
    ),
    "bases that nobody names": (
        Setting({"A": "write", "B": "rollback", "C": "write"}, RULES._replace(names_base=False)),
        "follows no other",
    ),
    "a writer that dies, and bases that nobody names": (
        Setting({"A": "write", "B": "rollback"}, RULES._replace(names_base=False), crashes=1),
        "follows no other",
    ),
}
"""What is expected to go wrong with a rule less."""


@cache
def explored(name: str) -> Explored:
    return explore(SAFE[name] if name in SAFE else WRONG[name][0])


@pytest.mark.parametrize("name", SAFE)
def test_nothing_is_wrong_in_any_world(name: str) -> None:
    found = explored(name)
    assert found.wrong is None, str(found)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_expected_to_go_wrong_does(name: str) -> None:
    assert WRONG[name][1] in str(explored(name).wrong), str(explored(name))


# -- the real code ---------------------------------------------------------------------------------


def row(name: str) -> pa.Table:
    return pa.table({"k": [1], "s": [name]}, pa.schema([("k", pa.int64()), ("s", pa.string())]))


def operation(name: str, kind: str) -> Callable[[kt.Table], object]:
    """An operation of the model as a call."""
    calls: dict[str, Callable[[kt.Table], object]] = {
        "write": lambda table: table.write(row(name)),
        "update": lambda table: table.update({"s": f"s || '+{name}'"}, "k = 1"),
        "delete": lambda table: table.delete("k = 1"),
        "compact": lambda table: table.compact(full=True),
        "expire": lambda table: table.expire_snapshots(retain_max=1),
        "rollback": lambda table: table.rollback_to(1),
    }
    return calls[kind]


def new_store() -> Store:
    """A table with the snapshots with which the model begins."""
    store = open_store(f"memory://{uuid4().hex}")
    options = {
        "bucket": "1", "compaction.background": "false", "snapshot.num-retained.min": "1",
        "num-sorted-run.compaction-trigger": "100",
    }  # fmt: skip
    table = kt.connect("", store=store).create_table("t", row("o").schema, ["k"], options=options)
    table.write(row("o"))
    table.write(row("p"))
    return store


def shown(store: Store) -> str | None:
    found = [each["s"] for each in kt.connect("", store=store).table("t").scan()]
    assert len(found) < 2
    return found[0] if found else None


_MARKS = {"creates": "create", "finds": "create", "removes": "delete"}


def replayed(way: Sequence[str], setting: Setting) -> tuple[Outcome, Store]:
    """The real calls, with the same requests that others can see in the same order."""
    actors = {name: operation(name, kind) for name, kind in setting.actors.items()}
    turns: list[Turn] = []
    for line in way:
        name, verb, *rest = line.split()
        decides = "to be the latest" in line
        if not decides and (verb not in _MARKS or not rest[0].isdigit()):
            continue
        # As many steps as this actor needs to the next request of that kind.
        ahead = run(Schedule((*turns, Turn(name))), new_store(), actors).steps
        made = sum(turn.steps for turn in turns)
        operation_, number = ("create", int(rest[0]) + 1) if decides else (_MARKS[verb], rest[0])
        wanted = [
            count
            for count, step in enumerate(ahead[made:])
            if step.operation == operation_ and step.path.endswith(f"/snapshot-{number}")
        ]
        if wanted:  # otherwise there is nothing to commit
            turns.append(Turn(name, wanted[0] + (not decides)))
    store = new_store()
    return run(Schedule(tuple(turns)), store, actors), store


REAL = [
    Setting({"A": "write", "B": "write"}),
    Setting({"A": "write", "B": "update"}),
    Setting({"A": "update", "B": "delete", "C": "write"}),
    Setting({"A": "write", "B": "compact"}),
    Setting({"A": "delete", "B": "compact", "C": "write"}),
    Setting({"A": "write", "B": "expire"}),
]


@pytest.mark.parametrize("setting", REAL, ids=lambda each: " ".join(each.actors.values()))
@pytest.mark.parametrize("seed", range(3))
def test_real_code_ends_as_the_model_does(setting: Setting, seed: int) -> None:
    way, world = walk(setting, random.Random(seed))
    outcome, store = replayed(way, setting)
    assert not outcome.errors, way
    assert shown(store) == told(world.line[-1].story), "\n".join([*way, str(outcome)])


def visible(steps_: Iterable[Step], ids: set[int]) -> list[str]:
    """The requests that change which snapshots there are, in the words of the model."""
    found = []
    for step in steps_:
        number = re.search(r"/snapshot/snapshot-(\d+)$", step.path)
        if number is None or step.operation not in ("create", "delete"):
            continue
        snapshot = int(number[1])
        if step.operation == "delete":
            found.append(f"{step.actor} removes {snapshot}")
            ids.discard(snapshot)
        else:
            is_taken = snapshot in ids
            found.append(f"{step.actor} {'finds' if is_taken else 'creates'} {snapshot}")
            ids.add(snapshot)
    return found


def follows_model(lines: Sequence[str], setting: Setting) -> str | None:
    """The first line that the model cannot make after those before it. None if it can make all."""
    worlds = {setting.world()}
    for line in lines:
        waiting, seen, after = [*worlds], {*worlds}, set[World]()
        while waiting:
            world = waiting.pop()
            for name, following in steps(world, setting):
                words = name.replace("withdraws", "removes").split()
                is_visible = words[1] in _MARKS and words[2].isdigit()
                if is_visible and " ".join(words[:3]) == line:
                    after.add(following)
                elif not is_visible and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        if not after:
            return line
        worlds = after
    return None


@pytest.mark.parametrize("setting", [*REAL, Setting({"A": "write", "B": "rollback", "C": "write"})],
                         ids=lambda each: " ".join(each.actors.values()))  # fmt: skip
@pytest.mark.parametrize("seed", range(4))
def test_what_the_real_code_does_is_possible_in_the_model(setting: Setting, seed: int) -> None:
    chance = random.Random(seed)
    actors = {name: operation(name, kind) for name, kind in setting.actors.items()}
    turns = tuple(Turn(chance.choice([*actors]), chance.randrange(1, 30)) for _ in range(4))
    outcome = run(Schedule(turns), new_store(), actors)
    lines = visible(outcome.steps, {1, 2})
    refused = follows_model(lines, setting)
    assert refused is None, f"{refused} in {lines} of {' '.join(map(str, turns))}\n{outcome}"
    assert lines


def test_steps_that_the_model_does_not_have_are_named() -> None:
    setting = SAFE["two writers"]
    assert follows_model(["A creates 3", "B creates 4"], setting) is None
    assert follows_model(["A creates 3", "B creates 3"], setting) == "B creates 3"
    assert follows_model(["A creates 4"], setting) == "A creates 4"
    assert follows_model(["A creates 3", "B removes 3"], setting) == "B removes 3"


# -- the page --------------------------------------------------------------------------------------


PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def test_page_says_what_was_explored() -> None:
    for name, setting in SAFE.items():
        actors, worlds = ", ".join(setting.actors.values()), explored(name).worlds
        line = f"| {name} | {actors} | {setting.crashes} | {setting.lost} | {worlds:,} |"
        assert line in PAGE


def test_page_says_what_goes_wrong() -> None:
    for name in WRONG:
        assert f"| {name} | {len(explored(name).way)} | " in PAGE
