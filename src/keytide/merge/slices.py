"""The versions of each key as slices of a sorted frame.

A merge selects versions with marks, one flag per version. The slices return, for all keys together,
the position of the first or the last marked version. Values are then gathered by position, whole
columns at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.base.lazily import cached_property
from keytide.base.scratch import is_scratch
from keytide.base.value_text import held_by_python
from keytide.errors import InvalidError

__all__ = ["KeySlices", "Marks", "Positions", "merge_repeated", "rows_with", "take", "take_columns"]

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
            told = [name for name in key if not is_scratch(name)]
            values = held_by_python(versions.select(told).head(1)).row(0, named=True)
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
