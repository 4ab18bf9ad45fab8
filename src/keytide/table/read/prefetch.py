"""Working ahead of a generator's caller, so that reading and merging keep all cores busy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeVar

from keytide.threads import begin

__all__ = ["prefetched"]

T = TypeVar("T")


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """The same items; the next one is made in a thread while the caller works on this one.

    One item more is held in memory. An error is raised where its item would have come. A
    caller that stops early does not wait for the item that is being made.
    """
    end = object()
    make = partial(next, items, end)
    coming = begin(make)
    while (item := coming.result()) is not end:
        coming = begin(make)
        yield item
