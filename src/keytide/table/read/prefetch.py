"""Working ahead of a generator's caller, so that reading and merging keep all cores busy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from keytide.table.runner import unawaited_threads

__all__ = ["prefetched"]

T = TypeVar("T")


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """The same items; the next one is made in a thread while the caller works on this one.

    One item more is held in memory. An error is raised where its item would have come. A
    caller that stops early does not wait for the item that is being made.
    """
    end = object()
    # A pool of its own that nobody waits for: a caller may stop in the middle of an item.
    with unawaited_threads(1) as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]  # the end marker has been ruled out
