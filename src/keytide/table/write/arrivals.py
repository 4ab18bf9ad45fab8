"""Rows that arrive in a bucket with an index of keys, and what is current there of their keys."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.format.arrow import to_arrow
from keytide.index.comparison import NOTHING, Numbers, behind
from keytide.index.entries import Entries
from keytide.index.hashes import KeyHashes
from keytide.lazily import cached_property
from keytide.types import Field, arrow_schema

__all__ = ["Arrivals", "Current", "Flags", "Judged", "Kept", "exact", "floors", "judge"]

Flags = npt.NDArray[np.bool_]


def exact(rows: pl.DataFrame, fields: tuple[Field, ...]) -> pa.Table:
    """Some columns of rows, in the table's types."""
    if not fields:
        return pa.table({"": pa.nulls(rows.height)})
    return to_arrow(rows.select(f.name for f in fields), arrow_schema(fields))


@dataclass(frozen=True)
class Current:
    """The current row of each of some keys, the deleted ones too.

    `at` says which of `rows` that of each arriving row is, -1 where its key is new; `rows` have
    the columns that are needed, none where the index says enough. `lives` is of `rows`.
    """

    rows: pl.DataFrame
    at: Numbers
    lives: Flags

    @property
    def is_known(self) -> Flags:
        """Which arriving rows have one."""
        known: Flags = self.at >= 0
        return known

    def take(self, places: Numbers) -> Current:
        """That of arriving rows at some places."""
        return replace(self, at=self.at[places])


@dataclass(frozen=True)
class Arrivals:
    """Rows of one bucket in order of arrival.

    `entries` are what the index says of those whose key it knows. `fresh` is what each row is
    compared by, `stored` what its key is, a number for each column of the comparison; `says` tells
    in which of them a row is compared. A row below its `floor` is late whatever its key.
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
        """Which rows are late whatever their keys."""
        old: Flags = self.fresh[0] < self.floor
        return old

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, places: Numbers) -> Arrivals:
        """Those at some places."""
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
        """The rows whose key's head another row has too, as those of one key do."""
        heads = self.hashes.ordered.heads
        is_same = np.concatenate([[False], heads[1:] == heads[:-1], [False]])
        again = np.flatnonzero(is_same[1:] | is_same[:-1])
        return np.sort(self.hashes.order[again])


@dataclass(frozen=True)
class Judged:
    """Which rows come late, which are the current ones of their keys, and how fresh keys get.

    A row is late where an earlier one of its key, in the table or of the write, is fresher, or
    where it is too old; of those that are as fresh the later one counts. `freshest` is what a key
    is compared by after a row that is not late, a number for each column.
    """

    is_late: Flags
    is_current: Flags
    freshest: Numbers


def floors(fresh: Numbers, mark: int, lateness_max: int | None) -> Numbers:
    """Below what each of some rows is too old: so far behind the greatest before it, or `mark`."""
    if lateness_max is None:
        return np.full(len(fresh), NOTHING)
    before = np.concatenate([[mark], fresh[:-1]])[: len(fresh)]
    return behind(np.maximum.accumulate(before), lateness_max)


def judge(arrivals: Arrivals) -> Judged:
    """Judge rows in the order in which they come."""
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
    """How fresh the key of each of some rows is when it comes."""
    names = [f"column_{n}" for n in range(len(arrivals.fresh))]
    hashes = arrivals.hashes.take(rows)
    # A late row is no fresher than those before it, so it may be counted, unless it is too old.
    fresh = np.where(arrivals.is_too_old, NOTHING, arrivals.fresh)[:, rows]
    columns = dict(zip(names, fresh, strict=True))
    frame = pl.DataFrame({"head": hashes.heads, "check": hashes.checks, **columns})
    earlier = frame.select(
        pl.col(name).shift(1, fill_value=NOTHING).cum_max().over("head", "check") for name in names
    )
    before: Numbers = np.maximum(earlier.to_numpy().T, arrivals.stored[:, rows])
    return before


def _last_of_each(hashes: KeyHashes, rows: Numbers) -> Numbers:
    frame = pl.DataFrame({"head": hashes.heads, "check": hashes.checks, "row": rows})
    last: Numbers = frame.group_by("head", "check").agg(pl.col("row").last())["row"].to_numpy()
    return last


@dataclass(frozen=True)
class Kept:
    """The rows to store, the place of each among the arriving ones, and which are current."""

    rows: pl.DataFrame
    source: Numbers
    is_current: Flags
