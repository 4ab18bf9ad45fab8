"""Key-range streaming: overlapping sorted runs, cut into windows that fit in memory.

One batch of each run is in memory. The smallest of the batches' last keys is the bound of a window:
no run can have another key up to the bound, so everything up to it can be merged. A run that is
known to have ended does not limit the window. Memory depends on the size of the batches and not of
the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import polars as pl

from keytide.base.threads import side_by_side
from keytide.merge.order import is_searchable, physical

__all__ = ["SIDE_BY_SIDE", "Batch", "Together", "key_windows", "with_whole_keys"]

Together: TypeAlias = Callable[[Sequence[Callable[[], bool]]], object]
"""Makes several calls, and returns when all of them are done."""

# More than the number of cores, because calls may wait for a store.
_AT_ONCE = 16

SIDE_BY_SIDE: Together = partial(side_by_side, at_once=_AT_ONCE)
"""For callers that run alone: threads, which compete with other threads for the interpreter."""


class Batch(NamedTuple):
    """Some rows of a run, following those of the previous batch."""

    rows: pl.DataFrame
    is_last: bool = False
    """Whether the run is known to end here, which saves a window at its end."""


def key_windows(
    runs: Sequence[Iterator[Batch]], key: tuple[str, ...], together: Together = SIDE_BY_SIDE
) -> Iterator[list[pl.DataFrame]]:
    """Windows of the runs: lists with one (possibly empty) frame per run, in run order.

    REQUIRES: each run yields batches of rows sorted by key, one row per key. Every key is in
    exactly one window, and windows are in key order. `together` fetches the first batches.
    """
    cursors = [_Cursor(run, key) for run in runs]
    together([cursor.fill for cursor in cursors])
    while waiting := [cursor for cursor in cursors if cursor.fill()]:
        # Each pass consumes at least the batch whose last key is the bound, so windows make
        # progress.
        open_ended = [cursor for cursor in waiting if not cursor.holds_the_last]
        bound = _smallest_last_key(open_ended, key) if open_ended else None
        yield [cursor.take(bound) for cursor in cursors]


def with_whole_keys(run: Iterator[Batch], key: tuple[str, ...]) -> Iterator[Batch]:
    """A run that can have several rows of a key, in batches that share no keys.

    Such batches can also be cut into windows. REQUIRES: the run is sorted by key. Holds the rows of
    one more key than a batch has.
    """
    held: pl.DataFrame | None = None
    for rows, is_last in run:
        rows = rows if held is None else pl.concat([held, rows])
        count = rows.height if is_last else rows.height - _count_of_last_key(rows, key)
        held = None if is_last else rows.slice(count)
        yield Batch(rows.head(count), is_last)
    if held is not None:
        yield Batch(held, is_last=True)


def _count_of_last_key(rows: pl.DataFrame, key: tuple[str, ...]) -> int:
    is_last = (pl.col(name).eq_missing(pl.col(name).last()) for name in key)
    return int(rows.select(pl.all_horizontal(*is_last).sum()).item())


class _Cursor:
    """One run's batches and the position in them."""

    def __init__(self, batches: Iterator[Batch], key: tuple[str, ...]) -> None:
        self.batch: pl.DataFrame | None = None
        self.holds_the_last = False
        """Whether the run is known to end with the current batch."""
        self._batches = batches
        self._key = key
        self._shape: pl.DataFrame | None = None

    def fill(self) -> bool:
        """Load a batch if there is another one. False at the end of the run."""
        while self.batch is None:
            batch = next(self._batches, None)
            if batch is None:
                return False
            self.holds_the_last = batch.is_last
            self._shape = batch.rows.clear()
            self.batch = batch.rows if batch.rows.height else None
        return True

    def last_key(self) -> pl.DataFrame:
        assert self.batch is not None
        return self.batch.select(self._key).tail(1)

    def take(self, bound: pl.DataFrame | None) -> pl.DataFrame:
        """The rows in memory whose key is at most `bound`, or all of them without a bound."""
        if self.batch is None:
            return self._shape if self._shape is not None else pl.DataFrame()
        held = self.batch.height
        count = held if bound is None else _count_at_most(self.batch, bound, self._key)
        taken, rest = self.batch.head(count), self.batch.slice(count)
        self.batch = rest if rest.height else None
        return taken


def _smallest_last_key(cursors: Sequence[_Cursor], key: tuple[str, ...]) -> pl.DataFrame:
    lasts = pl.concat([cursor.last_key() for cursor in cursors])
    return lasts.sort(list(key), nulls_last=False).head(1)


def _count_at_most(batch: pl.DataFrame, bound: pl.DataFrame, key: tuple[str, ...]) -> int:
    """The number of rows in a sorted batch whose key is at most `bound`."""
    column, limit = batch[key[0]], bound[key[0]]
    if len(key) == 1 and is_searchable(column) and is_searchable(limit):
        return int(physical(column).search_sorted(physical(limit)[0], side="right"))
    return int(batch.select(_at_most(bound, key).sum()).item())


def _at_most(bound: pl.DataFrame, key: tuple[str, ...]) -> pl.Expr:
    """Whether a key is lexicographically at most `bound`, NULL lowest."""
    result = pl.lit(value=True)
    for name in reversed(key):
        column, limit = pl.col(name), pl.lit(bound[name]).first()
        if bound[name][0] is None:
            result = column.is_null() & result
        else:
            # NULL is the lowest key, so it is below every bound that is not NULL itself.
            below = (column < limit).fill_null(value=True)
            equal = (column == limit).fill_null(value=False)
            result = below | (equal & result)
    return result
