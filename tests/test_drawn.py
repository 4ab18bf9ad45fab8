"""Of cases that take turns each one has its day."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from drawn import TURNS, drawn, left_out


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
        return None

    def iter_markers_with_node(self, name: str) -> Iterator[tuple[Node, str]]:
        for node in filter(None, (self, self.parent)):
            if node.marked:
                yield node, name


def test_long_tests_and_files_that_are_marked_as_a_whole_take_turns() -> None:
    together = Node("test_connect.py", marked=True)
    whole = [Node(f"test_connect.py::test_{n}", False, together) for n in range(4)]
    alone = [Node(f"test_a.py::test_{n}", marked=True) for n in range(5)]
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
