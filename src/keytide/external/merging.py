"""Versions of keys merged into rows, in memory of a bounded size.

The rows of a source are in no order of keys. While they fit in memory they are merged at once: of
keys that occur once nothing is sorted. Else they are cut by the hash of the key into parts, which
are spilled to local disk and merged one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import polars as pl

from keytide.errors import DataError
from keytide.external.cut import KeyCut
from keytide.external.ties import TieOrder, refuse_ties
from keytide.external.versions import SourceVersions
from keytide.lazily import cached_property
from keytide.merge.engine import MergeEngine
from keytide.merge.order import IS_ADD, MergeOrder, is_searchable
from keytide.table.conditions.matching import row_filter
from keytide.table.conditions.predicate import Predicate, columns_of, conjunction, conjuncts
from keytide.table.read.prefetch import prefetched
from keytide.table.state.view import TableView

__all__ = ["Merging", "split_condition"]

# What is merged is held as versions, as what is sorted of them, and as rows.
_COPIES = 4
_BATCH_ROWS = 4 << 10, 1 << 20
_VALUE_BYTES = 32
"""About what a value takes, where nothing is known of it."""
_CUTS_MIN, _CUTS_MAX = 4, 256


def split_condition(
    predicate: Predicate | None, key: Sequence[str]
) -> tuple[Predicate | None, Predicate | None]:
    """The terms of a condition that hold for all versions of a key or none, and the other ones.

    Only the first may be asked before versions are merged (rule R17 of docs/semantics.md).
    """
    terms = conjuncts(predicate)
    about_key = [term for term in terms if columns_of(term) <= {*key}]
    return conjunction(about_key), conjunction(t for t in terms if t not in about_key)


@dataclass(frozen=True)
class Merging:
    """Some columns of the rows that versions become, of those that meet a condition. Pickles."""

    versions: SourceVersions
    columns: tuple[str, ...]
    condition: Predicate | None = None

    @property
    def view(self) -> TableView:
        """The table as its definition says."""
        return self.versions.view

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, in frames that together with their making fit in about `memory_bytes`."""
        for rows in self.merged(memory_bytes):
            live = rows.filter(IS_ADD)
            if self._check is not None:
                live = live.filter(self._check)
            self._refuse_nulls(live)
            yield live.select(self.columns)

    def merged(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """What each key became: a row, or a delete."""
        budget = memory_bytes // _COPIES
        held: list[pl.DataFrame] = []
        held_bytes = 0
        coming = prefetched(self.versions.frames(self._read, self._rows_in(budget)))
        for frame in coming:
            held.append(frame)
            held_bytes += frame.estimated_size()
            if held_bytes > budget:
                yield from self._cut(held, coming, budget, held_bytes)
                return
        if held:
            yield from self._merged(pl.concat(held))

    # -- in memory ---------------------------------------------------------------------------------

    def _merged(self, versions: pl.DataFrame) -> list[pl.DataFrame]:
        """One row for each key; together they are all of them, in no order."""
        occurs_again = _occurs_again(versions, self.order.key)
        if not occurs_again.any():
            return [versions]
        lone, several = versions.filter(~occurs_again), versions.filter(occurs_again)
        sorted_ = self.order.sort(several)
        if self._refuses_ties:
            assert isinstance(self.order, TieOrder)
            refuse_ties(sorted_, self.order, self.view.name)
        with self.view.reading():
            return [lone, self.engine.merge(sorted_, in_key_order=False)]

    # -- by parts on disk --------------------------------------------------------------------------

    def _cut(
        self,
        held: list[pl.DataFrame],
        coming: Iterator[pl.DataFrame],
        budget: int,
        held_bytes: int,
    ) -> Iterator[pl.DataFrame]:
        """The same of more versions than fit, of which some are held and others are to come."""
        count = self._cuts(held_bytes, sum(frame.height for frame in held), budget)
        with closing(KeyCut(self.order.key, count, budget)) as cut:
            while held:
                cut.add(held.pop(0))
            for frame in coming:
                cut.add(frame)
            for part in cut.parts():
                yield from self._of_part(part, budget)

    def _of_part(self, frames: Iterator[pl.DataFrame], budget: int) -> Iterator[pl.DataFrame]:
        """The rows of a part; of one that is too large the versions so far are merged, then more.

        Merging is associative, so rows stand for the versions that they were made of.
        """
        held: list[pl.DataFrame] = []
        for frame in frames:
            held.append(frame)
            if sum(each.estimated_size() for each in held) > budget and not self._refuses_ties:
                held = self._merged(pl.concat(held))
        if held:
            yield from self._merged(pl.concat(held))

    def _cuts(self, held_bytes: int, held_rows: int, budget: int) -> int:
        """How many parts to cut into, so that each fits."""
        rows = [part.rows for part in self.versions.parts]
        if None in rows:
            stored = sum(part.stored_bytes or 0 for part in self.versions.parts)
            estimated = 8 * stored
        else:
            estimated = sum(n or 0 for n in rows) * held_bytes // max(1, held_rows)
        return min(_CUTS_MAX, max(_CUTS_MIN, 2 * estimated // max(1, budget)))

    # -- what is read ------------------------------------------------------------------------------

    @cached_property
    def order(self) -> MergeOrder:
        """The order of versions: that of the definition, and what decides between equal ones."""
        order, policy = self.view.order, self._on_tie
        if policy is None and self.versions.are_in_order:
            return order
        return TieOrder(
            order.key,
            order.sequence,
            order.descending,
            order.padded,
            self.view.schema.names,
            tombstone_wins=policy == "tombstone-wins",
        )

    @cached_property
    def engine(self) -> MergeEngine:
        """The engine of the definition, in that order."""
        return self.view.engine_in(self.order)

    @property
    def _on_tie(self) -> str | None:
        policy = self.view.options.on_tie
        return None if policy == "last-write" else policy

    @property
    def _refuses_ties(self) -> bool:
        return self._on_tie == "error"

    @cached_property
    def _read(self) -> tuple[str, ...]:
        """What is wanted and what decides, which is all where whole rows are compared."""
        if isinstance(self.order, TieOrder):
            return self.view.schema.names
        wanted = self.engine.columns((*self.columns, *sorted(columns_of(self.condition))))
        return tuple(dict.fromkeys((*wanted, *self.view.options.tombstone_key)))

    def _rows_in(self, budget: int) -> int:
        least, most = _BATCH_ROWS
        return max(least, min(most, budget // 4 // (_VALUE_BYTES * len(self._read))))

    @cached_property
    def _check(self) -> pl.Expr | None:
        if self.condition is None:
            return None
        return row_filter(
            self.condition, self.view.schema.select(sorted(columns_of(self.condition)))
        )

    def _refuse_nulls(self, rows: pl.DataFrame) -> None:
        """Refuse a row that is shown and has NULL where the definition says NOT NULL."""
        for field in self.view.schema.select(self.columns):
            if not field.type.nullable and rows[field.name].null_count():
                raise DataError(
                    f"table {self.view.name}: column {field.name!r} is {field.type.sql()} by its "
                    f"definition, and a row has NULL there; define it without NOT NULL, or have "
                    f"whoever keeps the rows mend it"
                )


def _occurs_again(versions: pl.DataFrame, key: Sequence[str]) -> pl.Series:
    """Which versions are not the only one of their key; NULL is equal to NULL (rule R12)."""
    first = versions[key[0]]
    if len(key) > 1 or not is_searchable(first):
        return versions.select(key).is_duplicated()
    # To sort whole numbers takes a third of the time of hashing them.
    values = first.to_physical()
    ordered = values.sort()
    return values.is_in(ordered.filter(ordered == ordered.shift(1)).unique().implode())
