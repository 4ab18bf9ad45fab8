"""Rows that arrive in a bucket with a key index, and the current rows of their keys."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from keytide.base.process import cached_property
from keytide.key_index.keys import NOTHING, Entries, KeyHashes, Numbers, behind
from keytide.read.rebuilding import largest_before
from keytide.read.row_keys import Flags

__all__ = [
    "Arrivals",
    "Current",
    "Judged",
    "Kept",
    "floors",
    "judge",
]


@dataclass(frozen=True)
class Current:
    """The current row of each key, including deleted ones.

    `at` says which of `rows` is the current row for each arriving row, -1 if its key is new. `rows`
    have the needed columns, or none if the index contains enough. `lives` says which of `rows` are
    live.
    """

    rows: pl.DataFrame
    at: Numbers
    lives: Flags

    @property
    def is_known(self) -> Flags:
        """Which arriving rows have a current row."""
        known: Flags = self.at >= 0
        return known

    def take(self, places: Numbers) -> Current:
        """The current rows for the arriving rows at some positions."""
        return replace(self, at=self.at[places])


@dataclass(frozen=True)
class Arrivals:
    """Rows of one bucket in order of arrival.

    - `entries` are the index entries of those keys that the index knows.
    - `fresh` are the comparison values of each row, and `stored` those of its key: one number for
      each compared column.
    - `says` tells in which of these columns a row has a value to compare.
    - A row below its `floor` is late, whatever its key.
    """

    rows: pl.DataFrame
    hashes: KeyHashes
    entries: Entries
    current: Current
    fresh: Numbers
    stored: Numbers
    says: Flags
    floor: Numbers

    @cached_property
    def is_too_old(self) -> Flags:
        """Which rows are late, whatever their keys."""
        old: Flags = self.fresh[0] < self.floor
        return old

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, places: Numbers) -> Arrivals:
        """The rows at some positions."""
        return Arrivals(
            self.rows[pl.Series(places)],
            self.hashes.take(places),
            self.entries.take(places),
            self.current.take(places),
            self.fresh[:, places],
            self.stored[:, places],
            self.says[:, places],
            self.floor[places],
        )

    @cached_property
    def come_again(self) -> Numbers:
        """The rows whose key head occurs in another row too, as is the case for rows with the same
        key.
        """
        heads = self.hashes.ordered.heads
        is_same = np.concatenate([[False], heads[1:] == heads[:-1], [False]])
        again = np.flatnonzero(is_same[1:] | is_same[:-1])
        return np.sort(self.hashes.order[again])


@dataclass(frozen=True)
class Judged:
    """Which rows are late, which are the current rows of their keys, and the new comparison values.

    A row is late if an earlier row of its key, stored or in the same write, has a larger comparison
    value, or if it is too old. For equal values, the later row wins. `freshest` are the comparison
    values of a key after a row that is not late, one number for each column.
    """

    is_late: Flags
    is_current: Flags
    freshest: Numbers


def floors(fresh: Numbers, mark: int, lateness_max: int | None) -> Numbers:
    """The value below which each row is too old: a fixed distance behind the largest earlier value,
    or `mark`.
    """
    if lateness_max is None:
        return np.full(len(fresh), NOTHING)
    before = np.concatenate([[mark], fresh[:-1]])[: len(fresh)]
    return behind(np.maximum.accumulate(before), lateness_max)


def judge(arrivals: Arrivals) -> Judged:
    """Judge rows in the order in which they arrive."""
    before = arrivals.stored
    again = arrivals.come_again
    if len(again):
        before = before.copy()
        before[:, again] = _before_each(arrivals, again)
    is_late: Flags = np.any((arrivals.fresh < before) & arrivals.says, axis=0)
    is_late |= arrivals.is_too_old
    is_current = ~is_late
    kept = again[~is_late[again]]
    is_current[kept] = False
    is_current[_last_of_each(arrivals.hashes.take(kept), kept)] = True
    return Judged(is_late, is_current, np.maximum(before, arrivals.fresh))


def _before_each(arrivals: Arrivals, rows: Numbers) -> Numbers:
    """The comparison value of each row's key when the row arrives."""
    # The value of a late row is not larger than earlier ones, so it may be counted, unless it is
    # too old.
    fresh = np.where(arrivals.is_too_old, NOTHING, arrivals.fresh)[:, rows]
    earlier = largest_before(arrivals.hashes.take(rows), fresh)
    return np.maximum(earlier, arrivals.stored[:, rows])


def _last_of_each(hashes: KeyHashes, rows: Numbers) -> Numbers:
    frame = pl.DataFrame({"head": hashes.heads, "check": hashes.checks, "row": rows})
    last: Numbers = frame.group_by("head", "check").agg(pl.col("row").last())["row"].to_numpy()
    return last


@dataclass(frozen=True)
class Kept:
    """The rows to store, the position of each among the arriving rows, and which are current."""

    rows: pl.DataFrame
    source: Numbers
    is_current: Flags
