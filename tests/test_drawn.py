"""Of cases that take turns each one has its day."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from drawn import FORTNIGHT, TURNS, drawn, left_out, promises_that_take_turns, selected

CHECK_ALL = Path(__file__).parents[1] / "scripts" / "check-all.sh"


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("share", [1, 2, 4, 6])
def test_each_case_runs_once_in_so_many_days(share: int, count: int) -> None:
    names = [f"test[{number}]" for number in range(count)]
    days = [drawn(names, share, day) for day in range(min(share, count))]
    assert sorted(name for day in days for name in day) == sorted(names)


@pytest.mark.parametrize("share", [1, 2, 4, 6])
def test_no_day_is_without_a_case(share: int) -> None:
    assert all(drawn(["a", "b", "c"], share, day) for day in range(738_000, 738_020))


@dataclass(frozen=True)
class Node:
    """What of a test is looked at: its name, and the marks of it and of its file."""

    nodeid: str
    marked: bool
    parent: Node | None = None

    def get_closest_marker(self, name: str) -> Any:
        return self.marked if name == "takes_turns" else None

    def iter_markers_with_node(self, name: str) -> Iterator[tuple[Node, str]]:
        for node in filter(None, (self, self.parent)):
            if node.marked:
                yield node, name


def test_long_tests_and_files_that_are_marked_as_a_whole_take_turns() -> None:
    together = Node("test_connect.py", marked=True)
    whole = [Node(f"test_connect.py::test_{n}", False, together) for n in range(4)]
    alone = [Node(f"test_a.py::test_{n}", marked=True) for n in range(TURNS - 1)]
    always = [Node(f"test_b.py::test_{n}", marked=False) for n in range(3)]
    items = [*whole, *alone, *always]
    ran = []
    for day in range(738_000, 738_000 + TURNS):
        left = left_out(cast("list[pytest.Item]", items), day)
        ran.append({item.nodeid for item in items if item not in left})
        assert ran[-1] >= {item.nodeid for item in always}
        assert len({item in left for item in whole}) == 1, "some of a file that runs as a whole"
    for item in [*whole, *alone]:
        assert sum(item.nodeid in today for today in ran) == 1


def test_cases_of_a_test_that_takes_turns_have_their_days_too() -> None:
    names = [f"test[{n}]" for n in range(FORTNIGHT)]
    days = [
        day
        for day in range(FORTNIGHT * TURNS)
        if drawn([str(n) for n in range(TURNS)], TURNS, day) == {"0"}
    ]
    assert {name for day in days for name in drawn(names, FORTNIGHT, day)} == {*names}


def test_what_one_day_leaves_out_is_what_the_others_run() -> None:
    nodes = [Node(f"test_a.py::test_{n}", marked=n % 2 == 0) for n in range(40)]
    items = cast("list[pytest.Item]", nodes)
    for day in range(738_000, 738_000 + TURNS):
        today, others = selected(items, str(day), 0), selected(items, f"not-{day}", 0)
        assert today | others == selected(items, "all", 0) == set(items)
        assert not today & others
        assert others == selected(items, "others", day)
        assert others


@pytest.mark.parametrize(
    "name",
    [
        "tests/merge/test_merge_laws.py::test_a",
        "tests/commit/test_faults.py::test_a",
        "tests/sql/test_one_look.py::test_a",
        "tests/table/test_request_budget.py::test_a",
        "tests/test_data_ways.py::test_a",
        "tests/maintenance/test_tags.py::test_wherever_it_stops_all_is_whole",
        "tests/maintenance/test_tags.py::test_tag_that_fails_anywhere_is_told",
    ],
)
def test_tests_that_guard_promises_take_no_turns(name: str) -> None:
    nodes = [Node(f"{name}[1]", marked=True), Node("tests/test_a.py::test_a", marked=True)]
    assert promises_that_take_turns(cast("list[pytest.Item]", nodes)) == [name]


@pytest.mark.parametrize("red", ["", "test", "test-others"])
def test_a_change_passes_only_if_the_cases_of_the_day_and_the_others_do(
    tmp_path: Path, red: str
) -> None:
    make = tmp_path / "make"
    make.write_text(
        f'#!/bin/sh\necho "$1 $KEYTIDE_CASES"; echo "1 passed in 1.0s"\n[ "$1" != "{red}" ]\n'
    )
    make.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", CHECK_ALL], env=env, capture_output=True, text=True, check=False)
    (target, day), _, (others, not_day), *_ = (
        line.split(" ", 1) for line in done.stdout.split("\n")
    )
    assert (target, others, not_day) == ("test", "test-others", f"not-{day}")
    assert day.isdecimal()
    assert (done.returncode == 0) is (red == "")
