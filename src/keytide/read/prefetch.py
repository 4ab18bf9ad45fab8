"""Computes the next item of a generator in the background, so that all cores are used."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeVar

from keytide.base.process import begin

__all__ = ["prefetched"]

T = TypeVar("T")


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """The same items. A thread computes the next one while the caller works on the current one.

    One additional item is in memory. An error is raised at the position of its item. A caller that
    stops early does not wait for the item that is being computed.
    """
    end = object()
    make = partial(next, items, end)
    coming = begin(make)
    while (item := coming.result()) is not end:
        coming = begin(make)
        yield item
