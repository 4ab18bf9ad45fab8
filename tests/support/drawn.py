"""Which cases of a large test run today, `pytest.mark.one_in(share)`, and which long tests,
`pytest.mark.takes_turns`.

Tests that stop at each request, or try each pair of kinds, have hundreds of cases, and most of them
tell what their neighbours tell. One in so many runs, another one each day, so that all of them have
run after as many days, which are a fortnight at most. `KEYTIDE_CASES=all` runs all, and so does
whoever names a test. Of a test that is to run some case runs each day. Long tests without cases
take turns with each other: one in thirteen of them runs each day. A file that is marked as a whole
runs as a whole.

`KEYTIDE_CASES=others` runs what is left out today, and `not-738000` what is left out on that day.

What guards a promise takes no turns: budgets of requests, ways of the data, laws, faults and the
one look of a statement. `promises_that_take_turns` finds those that do.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from zlib import crc32

import pytest

__all__ = ["ALL", "drawn", "left_out", "promises_that_take_turns", "selected"]

FORTNIGHT = 14
TURNS = FORTNIGHT - 1
"""No common divisor with a fortnight: a test with both marks has another case at each turn."""
ALL, OTHERS, NOT = "all", "others", "not-"
_PROMISES = re.compile(
    r"/test_\w*(?:_laws|faults|one_look|budget|data_ways)\w*\.py|::test_\w*(?:anywhere|wherever_it_)"
)


def selected(items: Collection[pytest.Item], cases: str, today: int) -> set[pytest.Item]:
    """The cases that run if `cases` is the value of KEYTIDE_CASES."""
    if cases == ALL:
        return set(items)
    others = cases == OTHERS or cases.startswith(NOT)
    day = today if cases == OTHERS else int(cases.removeprefix(NOT))
    left = left_out(items, day)
    return left if others else set(items) - left


def promises_that_take_turns(items: Iterable[pytest.Item]) -> list[str]:
    """Tests that guard a promise, but do not run each day."""
    marks = ("one_in", "takes_turns")
    return sorted(
        {
            item.nodeid.partition("[")[0]
            for item in items
            if _PROMISES.search(item.nodeid) and any(map(item.get_closest_marker, marks))
        }
    )


def left_out(items: Iterable[pytest.Item], day: int) -> set[pytest.Item]:
    """The cases that do not run on a day."""
    groups: defaultdict[tuple[object, ...], dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        if mark := item.get_closest_marker("one_in"):
            groups[_group(item, *mark.args, **mark.kwargs)][item.name] = item
    turns: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        for node, _ in itertools.islice(item.iter_markers_with_node("takes_turns"), 1):
            turns[node.nodeid].append(item)
    left = {item for name in turns.keys() - drawn(turns, TURNS, day) for item in turns[name]}
    for (share, *_), group in groups.items():
        left |= {group[name] for name in group.keys() - drawn(group, share, day)}
    return left


def _group(item: pytest.Item, share: int, of_each: str | None = None) -> tuple[int, object, object]:
    assert isinstance(item, pytest.Function)
    assert share <= FORTNIGHT, item.nodeid
    value = None if of_each is None else id(item.callspec.params[of_each])
    return share, item.nodeid.partition("[")[0], value


def drawn(names: Collection[str], share: int, day: int) -> set[str]:
    """One in so many names, and at least one: all of them on so many days in a row."""
    # In an order that has nothing to do with that of arguments, or one of them would stand still.
    mixed = sorted(names, key=lambda name: (crc32(name.encode()), name))
    days = min(share, len(mixed))
    return {name for place, name in enumerate(mixed) if (place + day) % days == 0}
