"""Versions in no order of keys merged by key, in memory of a bounded size.

While versions fit in memory they are merged at once: of keys that occur once nothing is sorted.
Else they are cut by the hash of the key into parts, which are spilled to local disk and merged one
after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

import polars as pl

from keytide.external.cut import KeyCut
from keytide.external.ties import TieOrder, are_freshest, refuse_ties, undecided_keys
from keytide.lazily import cached_property
from keytide.merge.engine import MergeEngine
from keytide.merge.order import IS_ADD, MergeOrder, is_searchable
from keytide.scratch import scratch
from keytide.table.state.view import TableView

__all__ = ["CUTS_MAX", "CUTS_MIN", "PLACE", "Cuts", "KeyMerge", "SortedOut", "budget_of"]

Cuts: TypeAlias = Callable[[int, int, int], int]
"""How many parts to cut into: by the bytes and rows that are held, and those that may be."""

CUTS_MIN, CUTS_MAX = 4, 256
PLACE = scratch("place")
"""The column that tells versions apart, by where they lie."""

# What is merged is held as versions, as what is sorted of them, and as rows.
_COPIES = 4


def budget_of(memory_bytes: int) -> int:
    """How large the versions may be that are merged at once in so much memory."""
    return memory_bytes // _COPIES


@dataclass(frozen=True)
class SortedOut:
    """Versions by their places: those that are no rows, and the freshest ones that tie.

    Of the latter, whole rows tell which is the row of their key.
    """

    lost: pl.Series
    tied: pl.Series


@dataclass(frozen=True)
class KeyMerge:
    """How versions become rows. Pickles.

    Where an order compares values and `has_whole_rows` is false, keys may stay undecided.
    """

    view: TableView
    order: MergeOrder
    has_whole_rows: bool = True
    refuses_ties: bool = False

    def merged(
        self,
        frames: Iterable[pl.DataFrame],
        memory_bytes: int,
        cuts: Cuts,
        undecided: list[pl.DataFrame],
    ) -> Iterator[pl.DataFrame]:
        """What each key became: a row, or a delete.

        Keys of which whole rows have to be compared are put into `undecided`, and come with any of
        the rows that are as good.
        """
        budget = budget_of(memory_bytes)
        for group in _groups(frames, self.order.key, budget, cuts):
            yield from self._of_group(group, budget, undecided)

    def sorted_out(
        self, frames: Iterable[pl.DataFrame], memory_bytes: int, cuts: Cuts
    ) -> Iterator[SortedOut]:
        """Which versions are no rows, without a look at the values that rows have.

        REQUIRES: versions have a column `PLACE`, which tells them apart; the row of a key is its
        freshest version.
        """
        budget = budget_of(memory_bytes)
        for group in _groups(frames, self.order.key, budget, cuts):
            yield from self._sorted_out(group, budget)

    @cached_property
    def engine(self) -> MergeEngine:
        """The engine of the definition, in this order."""
        return self.view.engine_in(self.order)

    def _of_group(
        self, frames: Iterator[pl.DataFrame], budget: int, undecided: list[pl.DataFrame]
    ) -> Iterator[pl.DataFrame]:
        """The rows of a group; of one that is too large the versions so far are merged, then more.

        Merging is associative, so rows stand for the versions that they were made of.
        """
        held: list[pl.DataFrame] = []
        for frame in frames:
            held.append(frame)
            if _bytes_of(held) > budget and not self.refuses_ties:
                held = self._merged(pl.concat(held), undecided)
        if held:
            yield from self._merged(pl.concat(held), undecided)

    def _sorted_out(self, frames: Iterator[pl.DataFrame], budget: int) -> Iterator[SortedOut]:
        """As `_of_group`: what is the freshest so far stands for all."""
        held: list[pl.DataFrame] = []
        for frame in frames:
            held.append(frame)
            if _bytes_of(held) > budget:
                kept, older = self._parted(pl.concat(held))
                held = [kept]
                yield SortedOut(older[PLACE], kept[PLACE].clear())
        if held:
            kept, older = self._parted(pl.concat(held))
            is_add = kept.select(IS_ADD).to_series()
            tied = _occurs_again(kept, self.order.key)
            if not self.refuses_ties:
                tied = tied & is_add
            lost = pl.concat([older[PLACE], kept.filter(~tied & ~is_add)[PLACE]])
            yield SortedOut(lost, kept.filter(tied)[PLACE])

    def _parted(self, versions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The freshest versions of each key, of which no number tells which it is, and the others.

        It is one where a number does.
        """
        occurs_again = _occurs_again(versions, self.order.key)
        sorted_ = self.order.sort(versions.filter(occurs_again))
        fresh = are_freshest(sorted_, self.order, numbers_decide=not self.refuses_ties)
        return pl.concat([versions.filter(~occurs_again), sorted_.filter(fresh)]), sorted_.filter(
            ~fresh
        )

    def _merged(self, versions: pl.DataFrame, undecided: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """One row for each key; together they are all of them, in no order."""
        occurs_again = _occurs_again(versions, self.order.key)
        if not occurs_again.any():
            return [versions]
        lone, several = versions.filter(~occurs_again), versions.filter(occurs_again)
        order, sorted_ = self.order, self.order.sort(several)
        if self.refuses_ties:
            assert isinstance(order, TieOrder)
            refuse_ties(sorted_, order, self.view.name)
        elif isinstance(order, TieOrder) and not self.has_whole_rows:
            tied = undecided_keys(sorted_, order)
            undecided += [tied] if tied.height else []
        with self.view.reading():
            return [lone, self.engine.merge(sorted_, in_key_order=False)]


def _groups(
    frames: Iterable[pl.DataFrame], key: Sequence[str], budget: int, cuts: Cuts
) -> Iterator[Iterator[pl.DataFrame]]:
    """Frames in groups, each with all versions of its keys: one, if they fit, or parts on disk."""
    held: list[pl.DataFrame] = []
    held_bytes = 0
    coming = iter(frames)
    for frame in coming:
        held.append(frame)
        held_bytes += int(frame.estimated_size())
        if held_bytes > budget:
            count = cuts(held_bytes, sum(each.height for each in held), budget)
            with closing(KeyCut(key, count, budget)) as cut:
                while held:
                    cut.add(held.pop(0))
                for more in coming:
                    cut.add(more)
                yield from cut.parts()
            return
    yield iter(held)


def _bytes_of(frames: Sequence[pl.DataFrame]) -> int:
    return sum(int(frame.estimated_size()) for frame in frames)


def _occurs_again(versions: pl.DataFrame, key: Sequence[str]) -> pl.Series:
    """Which versions are not the only one of their key; NULL is equal to NULL (rule R12)."""
    first = versions[key[0]]
    if len(key) > 1 or not is_searchable(first):
        return versions.select(key).is_duplicated()
    # To sort whole numbers takes a third of the time of hashing them.
    values = first.to_physical()
    ordered = values.sort()
    return values.is_in(ordered.filter(ordered == ordered.shift(1)).unique().implode())
