"""Merging of a source's versions into rows: what is read, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from keytide.base.lazily import cached_property
from keytide.merge.engine import MergeEngine
from keytide.merge.order import MergeOrder
from keytide.merge.touched import without_keys
from keytide.predicate.predicate import Predicate, columns_of, conjunction, conjuncts
from keytide.read.prefetch import prefetched
from keytide.snapshot.view import TableView
from keytide.sources.key_merge import CUTS_MAX, CUTS_MIN, KeyMerge, budget_of
from keytide.sources.shown_rows import ShownRows
from keytide.sources.ties import TieOrder
from keytide.sources.versions import SourceVersions

__all__ = ["TIMES_STORED", "VALUE_BYTES", "Merging", "rows_at_once", "split_condition"]

_BATCH_ROWS = 4 << 10, 1 << 20
VALUE_BYTES = 32
"""Estimated size of a value."""
TIMES_STORED = 8
"""Estimated ratio of the size of rows in memory to their stored size."""
_CUTS_UNKNOWN = 64


def split_condition(
    predicate: Predicate | None, key: Sequence[str]
) -> tuple[Predicate | None, Predicate | None]:
    """The terms of a condition that are equal for all versions of a key, and the other terms.

    Only the former can be applied before versions are merged (rule R17 of docs/semantics.md).
    """
    terms = conjuncts(predicate)
    about_key = [term for term in terms if columns_of(term) <= {*key}]
    return conjunction(about_key), conjunction(t for t in terms if t not in about_key)


def rows_at_once(memory_bytes: int, columns: int) -> int:
    """The number of rows to read at a time for a merge with this memory."""
    least, most = _BATCH_ROWS
    fitting = budget_of(memory_bytes) // 4 // (VALUE_BYTES * columns)
    return max(least, min(most, fitting))


@dataclass(frozen=True)
class Merging:
    """Some columns of the merged rows that match a condition. Can be pickled.

    Unordered rows with equal watermarks are compared by all columns. This is rare, and most queries
    need few columns, so whole rows are read only for such keys, unless `compares_rows` requires
    them from the start.
    """

    versions: SourceVersions
    columns: tuple[str, ...]
    condition: Predicate | None = None
    compares_rows: bool = False

    @property
    def view(self) -> TableView:
        """The table's definition."""
        return self.versions.view

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, in frames that fit in about `memory_bytes` including intermediate data."""
        return map(self.shown.of, self.outcomes(memory_bytes))

    def outcomes(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The result for each key, including deletes, before the condition is applied.

        The frames have the columns and `_VALUE_KIND`, and possibly others. Memory is as in
        `frames`.
        """
        undecided: list[pl.DataFrame] = []
        key = self.order.key
        for rows in self._merged(memory_bytes, undecided):
            yield without_keys(rows, undecided, key)
        if undecided:
            some = replace(self.versions, keys=pl.concat(undecided))
            whole = replace(self, versions=some, compares_rows=True)
            yield from whole._merged(memory_bytes, [])

    def _merged(self, memory_bytes: int, undecided: list[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """See `KeyMerge.merged`."""
        rows_max = rows_at_once(memory_bytes, len(self.columns_read))
        coming = prefetched(self.versions.frames(self.columns_read, rows_max))
        return self.by_key.merged(coming, memory_bytes, self._cuts, undecided)

    @cached_property
    def by_key(self) -> KeyMerge:
        """How versions become rows."""
        is_whole = {*self.columns_read} == {*self.view.schema.names}
        return KeyMerge(self.view, self.order, is_whole, self.refuses_ties)

    @property
    def by_freshness(self) -> KeyMerge:
        """The same without values, for `KeyMerge.sorted_out`."""
        order = self.order
        if isinstance(order, TieOrder):
            order = replace(order, compared=())
        return KeyMerge(self.view, order, refuses_ties=self.refuses_ties)

    @property
    def columns_deciding(self) -> tuple[str, ...]:
        """The columns that `by_freshness` needs."""
        return tuple(
            dict.fromkeys((*self.view.engine.columns(()), *self.view.options.tombstone_key))
        )

    @cached_property
    def shown(self) -> ShownRows:
        """The selection of rows."""
        return ShownRows(self.view, self.columns, self.condition)

    @cached_property
    def order(self) -> MergeOrder:
        """The order of versions: that of the definition, and a rule for ties."""
        order, policy = self.view.order, self._on_tie
        if policy is None and self.versions.are_in_order:
            return order
        return TieOrder(
            order.key,
            order.sequence,
            order.descending,
            order.padded,
            self.columns_read,
            tombstone_wins=policy == "tombstone-wins",
        )

    @property
    def engine(self) -> MergeEngine:
        """The engine of the definition with that order."""
        return self.by_key.engine

    @property
    def _on_tie(self) -> str | None:
        policy = self.view.options.on_tie
        return None if policy == "last-write" else policy

    @property
    def refuses_ties(self) -> bool:
        """Whether different versions with equal watermarks are an error."""
        return self._on_tie == "error"

    # -- columns to read ---------------------------------------------------------------------------

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The columns to read. All columns if ties need them from the start.

        This is so for queries, because a second query may see another state.
        """
        parts = self.versions.parts
        asks = any(part.stored_bytes is None and not part.is_in_order for part in parts)
        if self.compares_rows or self.refuses_ties or asks:
            return self.view.schema.names
        return self._needed

    @cached_property
    def _needed(self) -> tuple[str, ...]:
        """The wanted columns and those that decide, except for ties, in table order.

        In another order, the same columns would decide differently.
        """
        wanted = {*self.view.engine.columns((*self.columns, *columns_of(self.condition)))}
        wanted |= {*self.view.options.tombstone_key}
        return tuple(name for name in self.view.schema.names if name in wanted)

    def _cuts(self, held_bytes: int, held_rows: int, budget: int) -> int:
        """The number of parts, so that each of them fits."""
        rows = [part.rows for part in self.versions.parts]
        stored = [part.stored_bytes for part in self.versions.parts]
        if None not in rows:
            estimated = sum(n or 0 for n in rows) * held_bytes // max(1, held_rows)
        elif None not in stored:
            estimated = TIMES_STORED * sum(n or 0 for n in stored)
        else:
            return _CUTS_UNKNOWN
        return min(CUTS_MAX, max(CUTS_MIN, 2 * estimated // max(1, budget)))
