"""Reads parts of a source in order, with small ones in parallel.

A remote part takes time to fetch, and a local one can be decoded while another one is read. The
total amount is limited to what is read from one large part at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from keytide.base.threads import side_by_side
from keytide.sources.source import SourcePart

__all__ = ["read_in_order"]

T = TypeVar("T")

_AT_ONCE = 16
# Estimated stored size of a row, if the number of rows is unknown.
_ROW_BYTES = 8


def read_in_order(
    parts: Sequence[SourcePart], read: Callable[[int], Iterator[T]], rows_max: int
) -> Iterator[tuple[int, T]]:
    """The results of `read` for each part, with its index, in order.

    About `rows_max` rows are read ahead.
    """
    for together in _groups(parts, rows_max):
        if len(together) == 1:
            yield from ((together[0], batch) for batch in read(together[0]))
            continue
        whole = side_by_side([partial(_all, read, place) for place in together], _AT_ONCE)
        for place, batches in zip(together, whole, strict=True):
            yield from ((place, batch) for batch in batches)


def _all(read: Callable[[int], Iterator[T]], place: int) -> list[T]:
    return list(read(place))


def _groups(parts: Sequence[SourcePart], rows_max: int) -> Iterator[list[int]]:
    """The indexes of consecutive parts with at most `rows_max` rows, or of a single part."""
    group: list[int] = []
    rows = 0
    for place, part in enumerate(parts):
        own = _rows_of(part, rows_max)
        if group and (rows + own > rows_max or len(group) == _AT_ONCE):
            yield group
            group, rows = [], 0
        group.append(place)
        rows += own
    if group:
        yield group


def _rows_of(part: SourcePart, rows_max: int) -> int:
    """The number of rows of a part. A part of unknown size counts as large."""
    if part.rows is not None:
        return part.rows
    return rows_max if part.stored_bytes is None else part.stored_bytes // _ROW_BYTES
