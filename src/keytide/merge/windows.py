"""Windows of keys: overlapping sorted runs, cut into ranges that fit in memory, and their slices.

One batch of each run is in memory. The smallest of the batches' last keys is the bound of a window:
no run can have another key up to the bound, so everything up to it can be merged. A run that is
known to have ended does not limit the window. Memory depends on the size of the batches and not of
the runs.

A slice of a sorted frame has the versions of one key. A merge selects versions with marks, one flag
per version. The slices return, for all keys together, the position of the first or the last marked
version. Values are then gathered by position, whole columns at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.base.dataclass import dataclass
from keytide.base.process import cached_property, is_scratch, side_by_side
from keytide.base.text import held_by_python
from keytide.errors import InvalidError
from keytide.merge.order import is_searchable, physical

# -- key-range windows -----------------------------------------------------------------------------


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
        open_ended = [c.batch for c in waiting if c.batch is not None and not c.holds_the_last]
        bound = None
        if open_ended:
            lasts = pl.concat([batch.select(key).tail(1) for batch in open_ended])
            bound = lasts.sort(list(key), nulls_last=False).head(1)
        yield [cursor.take(bound) for cursor in cursors]


def with_whole_keys(run: Iterator[Batch], key: tuple[str, ...]) -> Iterator[Batch]:
    """A run that can have several rows of a key, in batches that share no keys.

    Such batches can also be cut into windows. REQUIRES: the run is sorted by key. Holds the rows of
    one more key than a batch has.
    """
    held: pl.DataFrame | None = None
    for rows, is_last in run:
        rows = rows if held is None else pl.concat([held, rows])
        count = rows.height
        if not is_last:
            in_last_key = (pl.col(name).eq_missing(pl.col(name).last()) for name in key)
            count -= int(rows.select(pl.all_horizontal(*in_last_key).sum()).item())
        held = None if is_last else rows.slice(count)
        yield Batch(rows.head(count), is_last)
    if held is not None:
        yield Batch(held, is_last=True)


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

    def take(self, bound: pl.DataFrame | None) -> pl.DataFrame:
        """The rows in memory whose key is at most `bound`, or all of them without a bound."""
        if self.batch is None:
            return self._shape if self._shape is not None else pl.DataFrame()
        count = self.batch.height
        if bound is not None:
            column, limit = self.batch[self._key[0]], bound[self._key[0]]
            if len(self._key) == 1 and is_searchable(column) and is_searchable(limit):
                count = int(physical(column).search_sorted(physical(limit)[0], side="right"))
            else:
                count = int(self.batch.select(_at_most(bound, self._key).sum()).item())
        taken, rest = self.batch.head(count), self.batch.slice(count)
        self.batch = rest if rest.height else None
        return taken


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


# -- slices of versions ----------------------------------------------------------------------------


Marks = npt.NDArray[np.bool_]
"""One flag per version, or per key."""

Positions = npt.NDArray[np.int64]
"""Row numbers. -1 means none."""

_Merge: TypeAlias = "Callable[[pl.DataFrame, KeySlices], pl.DataFrame]"


@dataclass(frozen=True)
class KeySlices:
    """The start and end of each key's versions. Every key has at least one."""

    starts: Positions
    ends: Positions

    @classmethod
    def of(cls, versions: pl.DataFrame, key: tuple[str, ...]) -> KeySlices:
        """REQUIRES: `versions` is sorted by `key`. NULL equals NULL."""
        if not versions.height:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64))
        differs = [pl.col(name).ne_missing(pl.col(name).shift(1)) for name in key]
        is_first = pl.any_horizontal(*differs, pl.int_range(pl.len()) == 0)
        starts = np.flatnonzero(versions.select(is_first).to_series().to_numpy())
        return cls(starts, np.append(starts[1:], versions.height))

    @property
    def count(self) -> int:
        """The number of keys."""
        return len(self.starts)

    @cached_property
    def lengths(self) -> Positions:
        """The number of versions of each key."""
        return self.ends - self.starts

    @cached_property
    def keys(self) -> Positions:
        """The key number of each version."""
        return np.repeat(np.arange(self.count), self.lengths)

    @cached_property
    def rows(self) -> Positions:
        """The position of each version."""
        return np.arange(len(self.keys))

    @property
    def lasts(self) -> Positions:
        """The position of each key's last version."""
        return self.ends - 1

    def last_where(self, marks: Marks) -> Positions:
        """The last marked version of each key."""
        return self._last_of(np.flatnonzero(marks))

    def first_where(self, marks: Marks) -> Positions:
        """The first marked version of each key."""
        return self._last_of(np.flatnonzero(marks)[::-1])

    def any_where(self, marks: Marks) -> Marks:
        """Whether each key has a marked version."""
        found = np.zeros(self.count, dtype=bool)
        found[self.keys[marks]] = True
        return found

    def count_where(self, marks: Marks) -> Positions:
        """The number of marked versions of each key."""
        found: Positions = np.add.reduceat(marks, self.starts, dtype=np.int64)
        return found

    def greatest(self, numbers: Positions) -> Positions:
        """The largest of each key's numbers."""
        found: Positions = np.maximum.reduceat(numbers, self.starts)
        return found

    def marks(self, rows: Positions) -> Marks:
        """Marks for the given versions, at most one for each key."""
        marked = np.zeros(len(self.keys), dtype=bool)
        marked[rows[rows >= 0]] = True
        return marked

    def around(self, marks: Marks) -> Marks:
        """The marked versions and those directly after them, except first versions of a key."""
        found: Marks = marks.copy()
        found[1:] |= marks[:-1]
        found[self.starts] = False
        return found

    def _last_of(self, rows: Positions) -> Positions:
        """The last of the given versions of each key. Of repeated assignments the last one wins."""
        found = np.full(self.count, -1)
        found[self.keys[rows]] = rows
        return found

    def only(self, keys: Marks) -> KeySlices:
        """The slices of the marked keys, after the versions of other keys were filtered out."""
        ends = np.cumsum(self.lengths[keys])
        return KeySlices(ends - self.lengths[keys], ends)


def merge_repeated(
    versions: pl.DataFrame,
    key: tuple[str, ...],
    merge: _Merge,
    *,
    in_key_order: bool,
) -> pl.DataFrame:
    """Merge the keys that have several versions. A single version is its key's row unchanged.

    `merge` returns one row per slice, in order. The result is in key order if requested. An
    `InvalidError` of `merge` is raised again with the first key that it cannot merge.
    """
    slices = KeySlices.of(versions, key)
    repeated = slices.lengths > 1
    if not repeated.any():
        return versions
    if repeated.all():
        return _merged(versions, slices, key, merge)
    in_repeated = pl.Series(np.repeat(repeated, slices.lengths))
    lone = versions.filter(~in_repeated)
    merged = _merged(versions.filter(in_repeated), slices.only(repeated), key, merge)
    if not in_key_order:
        return pl.concat([lone, merged])
    places = np.where(repeated, lone.height + np.cumsum(repeated), np.cumsum(~repeated)) - 1
    return pl.concat([lone, merged])[pl.Series(places)]


def _merged(
    versions: pl.DataFrame, slices: KeySlices, key: tuple[str, ...], merge: _Merge
) -> pl.DataFrame:
    try:
        return merge(versions, slices)
    except InvalidError as error:
        if slices.count == 1:
            names = [name for name in key if not is_scratch(name)]
            values = held_by_python(versions.select(names).head(1)).row(0, named=True)
            named = ", ".join(f"{name} = {value!r}" for name, value in values.items())
            raise InvalidError(f"the versions with {named} cannot be merged: {error}") from error
        half = slices.count // 2
        # The message should name a key, but `merge` works on all of them together. Bisection finds
        # the first one that fails.
        middle = int(slices.ends[half - 1])
        front = KeySlices(slices.starts[:half], slices.ends[:half])
        back = KeySlices(slices.starts[half:] - middle, slices.ends[half:] - middle)
        _merged(versions.head(middle), front, key, merge)
        _merged(versions.slice(middle), back, key, merge)
        raise  # each half can be merged alone, so the original error remains


def rows_with(
    versions: pl.DataFrame, positions: Positions, columns: Iterable[pl.Series]
) -> pl.DataFrame:
    """The versions at some positions, with some columns replaced."""
    given = {column.name: column for column in columns}
    kept = [name for name in versions.columns if name not in given]
    rows = versions.select(kept)[pl.Series(positions)].with_columns(given.values())
    return rows.select(versions.columns)


def take(values: pl.Series, positions: Positions) -> pl.Series:
    """The values at some positions, NULL where there is none."""
    return values.gather(_indices(positions))


def take_columns(
    versions: pl.DataFrame, names: Sequence[str], positions: Positions
) -> list[pl.Series]:
    """The same for several columns."""
    if not names:
        return []
    return versions.select(pl.col(names).gather(_indices(positions))).get_columns()


def _indices(positions: Positions) -> pl.Series:
    indices = pl.Series(positions.astype(np.int64, copy=False))
    missing = positions < 0
    if missing.any():
        indices = indices.set(pl.Series(missing), None)
    return indices
