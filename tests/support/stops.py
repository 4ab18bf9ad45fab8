"""Where something that works on a store may be stopped, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def stops_of(log: Iterable[tuple[str, str]], *kinds: str) -> list[tuple[str, int]]:
    """Each operation of a log as its kind and its number among those, kind by kind.

    `kinds` are the wanted ones, all by default. Their order is one of its own: threads come to a
    store in any order, and every process of a test run has to find the same tests.
    """
    counts = Counter(kind for kind, _ in log if not kinds or kind in kinds)
    return [(kind, nth + 1) for kind in sorted(counts) for nth in range(counts[kind])]


def faults_of(stops: Iterable[tuple[str, int]], *actions: str) -> list[tuple[str, int, str]]:
    """Each stop with each action, once: those that do what another one does are left out.

    A crash at a read leaves what a crash at the next change leaves, and a read without a response
    has failed. Of a hint nobody waits for the response.
    """
    return [
        (kind, nth, action)
        for kind, nth in stops
        for action in actions
        if action not in _ALIKE.get(kind, ())
    ]


_ALIKE = {
    **dict.fromkeys(
        ("read", "input", "exists", "size", "list"), ("crash", "lost-response", "torn", "disk-full")
    ),
    "hint": ("lost-response",),
}
