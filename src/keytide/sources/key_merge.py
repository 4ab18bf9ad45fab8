"""Merging of unordered versions by key, with bounded memory.

If the versions fit in memory they are merged together, and keys that occur once are not sorted.
Otherwise they are divided by a hash of the key into parts, which are spilled to local disk and
merged one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

import polars as pl

from keytide.base.lazily import cached_property
from keytide.base.scratch import scratch
from keytide.merge.engine import MergeEngine
from keytide.merge.order import IS_ADD, MergeOrder, is_searchable
from keytide.snapshot.view import TableView
from keytide.sources.cut import KeyCut
from keytide.sources.ties import TieOrder, are_freshest, refuse_ties, undecided_keys

__all__ = ["CUTS_MAX", "CUTS_MIN", "PLACE", "Cuts", "KeyMerge", "SortedOut", "budget_of"]

Cuts: TypeAlias = Callable[[int, int, int], int]
"""The number of parts, given the bytes and rows in memory, and the available bytes."""

CUTS_MIN, CUTS_MAX = 4, 256
PLACE = scratch("place")
"""The column that identifies versions by their position."""

# Data is in memory as versions, as sorted versions, and as rows.
_COPIES = 4


def budget_of(memory_bytes: int) -> int:
    """The maximum size of versions that can be merged together with this memory."""
    return memory_bytes // _COPIES


@dataclass(frozen=True)
class SortedOut:
    """Versions by position: those that lost, and the latest ones that tie.

    For the latter, whole rows decide which one wins.
    """

    lost: pl.Series
    tied: pl.Series


@dataclass(frozen=True)
class KeyMerge:
    """How versions become rows. Can be pickled.

    If an order compares values and `has_whole_rows` is false, some keys stay undecided.
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
        """The result for each key: a row or a delete.

        Keys for which whole rows must be compared are added to `undecided`. Their result is any of
        the tied rows.
        """
        budget = budget_of(memory_bytes)
        for group in _groups(frames, self.order.key, budget, cuts):
            yield from self._of_group(group, budget, undecided)

    def sorted_out(
        self, frames: Iterable[pl.DataFrame], memory_bytes: int, cuts: Cuts
    ) -> Iterator[SortedOut]:
        """The versions that lost, determined without the values of rows.

        REQUIRES: versions have a column `PLACE`, which identifies them. The row of a key is its
        latest version.
        """
        budget = budget_of(memory_bytes)
        for group in _groups(frames, self.order.key, budget, cuts):
            yield from self._sorted_out(group, budget)

    @cached_property
    def engine(self) -> MergeEngine:
        """The engine of the definition with this order."""
        return self.view.engine_in(self.order)

    def _of_group(
        self, frames: Iterator[pl.DataFrame], budget: int, undecided: list[pl.DataFrame]
    ) -> Iterator[pl.DataFrame]:
        """The rows of a group. If it is too large, versions are merged step by step.

        Merging is associative, so rows can replace the versions that they were merged from.
        """
        held: list[pl.DataFrame] = []
        for frame in frames:
            held.append(frame)
            if _bytes_of(held) > budget and not self.refuses_ties:
                held = self._merged(pl.concat(held), undecided)
        if held:
            yield from self._merged(pl.concat(held), undecided)

    def _sorted_out(self, frames: Iterator[pl.DataFrame], budget: int) -> Iterator[SortedOut]:
        """Like `_of_group`. The latest version so far replaces all others."""
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
        """The latest versions of each key that tie by number, and the other versions.

        If the numbers decide, this is one version.
        """
        occurs_again = _occurs_again(versions, self.order.key)
        sorted_ = self.order.sort(versions.filter(occurs_again))
        fresh = are_freshest(sorted_, self.order, numbers_decide=not self.refuses_ties)
        return pl.concat([versions.filter(~occurs_again), sorted_.filter(fresh)]), sorted_.filter(
            ~fresh
        )

    def _merged(self, versions: pl.DataFrame, undecided: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """One row for each key, in several frames without an order."""
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
    """Frames in groups, each with all versions of its keys: one if they fit, or parts on disk."""
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
    """Which versions are not the only one of their key. NULL equals NULL (rule R12)."""
    first = versions[key[0]]
    if len(key) > 1 or not is_searchable(first):
        return versions.select(key).is_duplicated()
    # Sorting integers takes a third of the time of hashing them.
    values = first.to_physical()
    ordered = values.sort()
    return values.is_in(ordered.filter(ordered == ordered.shift(1)).unique().implode())
