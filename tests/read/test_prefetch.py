"""Working ahead: the same items, errors in their place, and no wait for those who stop early."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from keytide.read.runs import prefetched

SECONDS_MAX = 30


def test_items_come_in_order() -> None:
    assert list(prefetched(iter(range(5)))) == [0, 1, 2, 3, 4]


def test_an_error_comes_where_its_item_would_have_come() -> None:
    items = prefetched(int(text) for text in ("1", "2", "x", "4"))
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(ValueError, match="'x'"):
        next(items)


def blocked(until: threading.Event) -> Iterator[int]:
    yield 1
    until.wait(SECONDS_MAX)
    yield 2


def test_who_stops_early_does_not_wait_for_the_next_item() -> None:
    until = threading.Event()
    items = prefetched(blocked(until))
    assert next(items) == 1
    closing = threading.Thread(target=items.close)  # type: ignore[attr-defined]  # a generator
    closing.start()
    closing.join(SECONDS_MAX / 3)
    still_waits = closing.is_alive()
    until.set()
    assert not still_waits
