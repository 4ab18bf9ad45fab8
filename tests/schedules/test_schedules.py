"""Whatever the order of the requests of several writers: the result is that of some serial order.

`make schedules` runs many more schedules.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterable

import pytest
from schedule_search import Case
from schedule_steps import Schedule, run
from schedule_worlds import KINDS, OPERATIONS, contents, new_world, rows, supports

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from keytide.store.interface import Store

EACH, SHARE_S = 3, 45
"""So many cases and schedules of each, and no further one when these seconds are over."""


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_result_of_any_schedule_is_that_of_some_order(kind: str) -> None:
    chance = random.Random(os.environ.get("KEYTIDE_SEED", "0") + kind)
    possible = [name for name in OPERATIONS if supports(kind, name)]
    ends_at = time.monotonic() + SHARE_S
    for _ in range(EACH):
        case = Case(kind, tuple(chance.choices(possible, k=2)))
        schedules = itertools.chain(case.schedules(2), case.faults("!?~<^v-"))
        for schedule in chance.sample([*schedules], EACH):
            finding = case.check(schedule)
            assert finding is None, str(finding)
            if time.monotonic() > ends_at:
                return


REQUESTS_MAX = 120
"""A fast-forward of a published table makes the most, about a hundred."""


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_operation_that_nobody_disturbs_is_done_or_refused_at_once(kind: str) -> None:
    possible = [name for name in OPERATIONS if supports(kind, name)]
    chance = random.Random(os.environ.get("KEYTIDE_SEED", "0") + kind)
    # Operations on rows of a table that must be rescaled first are all refused.
    some = possible if kind == "other buckets" else chance.sample(possible, 6)
    requests = {name: len(Case(kind, (name,)).steps_alone("A")) for name in some}
    assert {name: n for name, n in requests.items() if n > REQUESTS_MAX} == {}


def test_a_schedule_gives_the_same_steps_each_time() -> None:
    actors = {"A": OPERATIONS["write"], "B": OPERATIONS["delete"]}

    def steps() -> list[tuple[str, str, str]]:
        made = run(Schedule.of("A5 B9 A*"), new_world("latest"), actors).steps
        return [(step.actor, step.operation, step.path.split("-")[0]) for step in made]

    assert steps() == steps()
    assert [actor for actor, _, _ in steps()][:14] == ["A"] * 5 + ["B"] * 9


@pytest.mark.parametrize(
    "text", ["A3 B*", "A0! B*", "B2? A* B*", "A12- B3 A*", "A3~ B*", "A2 B* A0< A*", "A1^ B2v A*"]
)
def test_schedule_is_a_line_of_text(text: str) -> None:
    assert str(Schedule.of(text)) == text


def test_crash_ends_an_actor_at_its_step() -> None:
    store = new_world("latest")
    made = run(Schedule.of("A4!"), store, {"A": OPERATIONS["write"]})
    assert len(made.steps) == 5
    assert type(made.errors["A"]).__name__ == "Crash"
    assert contents(kt.connect("", store=store).table("t")) == [(1, 1, "o"), (4, 1, "p")]


def test_late_request_is_carried_out_when_the_next_turn_is_over() -> None:
    steps = run(Schedule(), new_world("latest"), {"A": OPERATIONS["write"]}).steps
    created = [step.operation for step in steps].index("create")
    store = new_world("latest")
    made = run(
        Schedule.of(f"A{created}~ B* A*"),
        store,
        {"A": OPERATIONS["write"], "B": lambda table: contents(table)},
    )
    assert made.values["B"] == [(1, 1, "o"), (4, 1, "p")]
    assert "A" not in made.errors
    assert [step.operation for step in made.steps if step.actor == "A"].count("create") == 1
    assert (1, 3, "w") in contents(kt.connect("", store=store).table("t"))


def test_listing_that_lags_lacks_what_others_have_just_created() -> None:
    def names(table: kt.Table) -> list[str]:
        return table.stored.store.list_names("tag")

    before = len(run(Schedule(), new_world("latest"), {"A": names}).steps) - 1
    for fate, listed in (("", ["tag-tagged"]), ("<", [])):
        made = run(
            Schedule.of(f"A{before} B* A0{fate} A*"),
            new_world("latest"),
            {"A": names, "B": OPERATIONS["tag"]},
        )
        assert made.values["A"] == listed


@pytest.mark.parametrize(("fate", "hours"), [("", 0), ("v", -5), ("^", 5)])
def test_clock_that_jumps_is_the_clock_of_what_follows(fate: str, hours: int) -> None:
    def hours_since(table: kt.Table, began: float = time.time()) -> int:
        table.snapshots()
        return round((time.time() - began) / 3_600)

    made = run(Schedule.of(f"A0{fate} A*"), new_world("latest"), {"A": hours_since})
    assert made.values["A"] == hours


FOUND = [
    Case("two buckets", ("restore", "expire")), "A10 B34 A* B*",
    Case("published", ("write later", "fast-forward")), "B33 A30 B* A*",
    Case("other buckets", ("restore", "fast-forward")), "A17 B* A*",
]  # fmt: skip
"""Schedules that gave a wrong result once."""


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@pytest.mark.parametrize(("case", "schedule"), zip(FOUND[::2], FOUND[1::2], strict=True))
def test_schedule_that_was_wrong_once_is_right(case: Case, schedule: str) -> None:
    finding = case.check(Schedule.of(schedule))
    assert finding is None, str(finding)


# -- ids that come again: commits after a rollback have the ids of those before it -----------------


@pytest.mark.parametrize("commits", [1, 2, 3])
@pytest.mark.parametrize("operation", ["write", "compact", "expire", "roll back"])
def test_operation_that_a_rollback_overtakes_takes_away_no_later_commit(
    operation: str, commits: int
) -> None:
    """Wherever it stands while others roll the table back and commit under the same ids."""

    def write(table: kt.Table) -> None:
        for key in range(commits):
            table.write(rows(f"+I {7 + key} 7 x"))

    def world() -> Store:
        store = new_world("latest")
        kt.connect("", store=store).table("t").write(rows("+I 5 5 z"))
        return store

    called = OPERATIONS[operation] if operation != "roll back" else lambda t: t.rollback_to(2)
    actors = {"A": called, "B": OPERATIONS["roll back"], "C": write}
    for stop, step in enumerate(run(Schedule(), world(), {"A": called}).steps):
        # Stores cannot delete a file only if it is still the one that was just looked at.
        if step.operation in ("read", "list", "delete"):
            continue
        store = world()
        made = run(Schedule.of(f"A{stop} B* C* A*"), store, actors)
        assert "C" not in made.errors, made.errors
        found = [key for key, *_ in contents(kt.connect("", store=store).table("t"))]
        # A rollback to the second snapshot may be the last of all.
        least = 1 if operation == "roll back" else commits
        assert [key for key in found if key >= 7] >= [*range(7, 7 + least)], (
            f"A{stop}: {made.errors}\n{made}"
        )


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_rollback_to_a_snapshot_that_expires_meanwhile_leaves_a_table_that_can_be_read() -> None:
    case = Case("latest", ("roll back", "expire"))
    for schedule in case.schedules(1):
        finding = case.check(schedule)
        assert finding is None, str(finding)


def test_writer_builds_on_no_commit_that_a_rollback_has_overtaken() -> None:
    """One writer stands after its creation, or after its hint, while another one commits."""
    case = Case("latest", ("write", "roll back", "write later"))
    created = [step.operation for step in case.steps_alone("A")].index("create")
    for further in (1, 2, 3):
        finding = case.check(Schedule.of(f"A{created} B* A{further} C* A*"))
        assert finding is None, str(finding)


def test_commit_that_was_left_beside_a_rollback_is_named_and_can_be_removed() -> None:
    writing, store = OPERATIONS["write"], new_world("latest")
    alone = run(Schedule(), new_world("latest"), {"A": writing}).steps
    created = [step.operation for step in alone].index("create")
    made = run(
        Schedule.of(f"A{created} B* A1!"), store, {"A": writing, "B": OPERATIONS["roll back"]}
    )
    assert type(made.errors["A"]).__name__ == "Crash"

    table = kt.connect("", store=store).table("t")
    table.alter(SetOption("commit.max-retries", "1"))
    assert contents(table) == [(1, 1, "o"), (4, 0, "o")]
    table.write(rows("+I 7 7 x"))
    with pytest.raises(kt.ConflictError, match=r"snapshot 3 is not part of .*rollback_to\(2\)"):
        table.write(rows("+I 8 8 y"))
    table.expire_snapshots(retain_max=1)
    assert [snapshot.id for snapshot in table.snapshots()] == [2]
    assert contents(table) == [(1, 1, "o"), (4, 0, "o"), (7, 7, "x")]
    table.rollback_to(2)
    table.write(rows("+I 8 8 y"))
    assert contents(table) == [(1, 1, "o"), (4, 0, "o"), (7, 7, "x"), (8, 8, "y")]


def test_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that takes a lost race for a success loses its rows."""
    from keytide.snapshot.authority import FolderCommits

    real = FolderCommits.create

    def create(self: FolderCommits, *given: object, **named: object) -> bool:
        real(self, *given, **named)  # type: ignore[arg-type]
        return True

    monkeypatch.setattr(FolderCommits, "create", create)
    case = Case("latest", ("write", "write later"))
    found = [finding for each in case.schedules(1) if (finding := case.check(each))]
    assert found
    assert "are those of no order" in str(found[0])


def test_changes_that_are_missing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kt.Table, "changes", lambda *given: ())
    finding = Case("latest", ("write", "scan")).check(Schedule())
    assert finding is not None
    assert "a follower has" in finding.what


# -- what is left out: schedules that only swap steps that do not meet -----------------------------


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@pytest.mark.parametrize("operations", [("write", "compact"), ("expire", "tag the first")])
def test_no_order_of_steps_that_meet_is_left_out(operations: tuple[str, str]) -> None:
    case = Case("latest", operations)
    stops = [(name, n) for name in "AB" for n in range(1, len(case.steps_alone(name)))]
    others = {"A": "B", "B": "A"}
    every = [Schedule.of(f"{name}{n} {others[name]}* {name}*") for name, n in stops]
    few = [*case.schedules(1)]
    assert len(few) < len(every) / 2

    def traces(schedules: list[Schedule]) -> set[str]:
        return {run(each, new_world("latest"), case.calls).trace for each in schedules}

    assert traces(every) <= traces(few)


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_who_dies_at_a_read_leaves_what_it_leaves_at_a_change() -> None:
    case = Case("latest", ("delete", "write"))

    def left(schedules: Iterable[Schedule]) -> set[str]:
        found = set()
        for schedule in schedules:
            store = new_world("latest")
            run(schedule, store, case.calls)
            found.add(str(contents(kt.connect("", store=store).table("t"))))
        return found

    few = [*case.faults("!")]
    every = [
        Schedule.of(text.format(f"{name}{step}!"))
        for name, text in (("A", "{} B*"), ("A", "B* {}"), ("B", "{} A*"), ("B", "A* {}"))
        for step in range(len(case.steps_alone(name)))
    ]
    assert len(few) < len(every) / 2
    assert left(few) >= left(every)


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_schedules_with_one_trace_have_one_result() -> None:
    case = Case("by commits", ("drop", "update all"))
    results: dict[str, set[str]] = {}
    for schedule in case.schedules(1):
        store = new_world(case.kind)
        made = run(schedule, store, case.calls)
        rows_left = contents(kt.connect("", store=store).table("t"))
        ends = {name: type(error) for name, error in made.errors.items()}
        results.setdefault(made.trace, set()).add(f"{rows_left} {ends}")
    assert {len(found) for found in results.values()} == {1}
    assert len(results) > 5


def test_rows_that_are_twice_in_a_table_without_a_key_are_followed() -> None:
    assert Case("without a key", ("write", "write")).check(Schedule()) is None
