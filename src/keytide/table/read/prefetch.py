"""Working ahead of a generator's caller, so that reading and merging keep all cores busy."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["prefetched", "unawaited_threads"]

T = TypeVar("T")


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """The same items; the next one is made in a thread while the caller works on this one.

    One item more is held in memory. An error is raised where its item would have come. Who
    stops early does not wait for the item that is being made.
    """
    end = object()
    with unawaited_threads(1) as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]  # the end marker has been ruled out


@contextmanager
def unawaited_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for a generator; work begun is not waited for when the block is left.

    An abandoned generator may be closed by the garbage collector in the midst of anything, even
    of the start of a thread, and there a wait for threads never ends.
    """
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
