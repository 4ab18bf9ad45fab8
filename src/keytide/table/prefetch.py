"""Looking one item ahead, so that reading and merging keep different cores busy."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["prefetched"]

T = TypeVar("T")


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """The same items; the next one is made in a thread while the caller works on this one.

    One item more is held in memory. An error is raised where its item would have come.
    """
    end = object()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]  # the end marker has been ruled out
