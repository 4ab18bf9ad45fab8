"""Versions of keys merged into rows, in memory of a bounded size.

The rows of a source are in no order of keys. While they fit in memory they are merged at once: of
keys that occur once nothing is sorted. Else they are cut by the hash of the key into parts, which
are spilled to local disk and merged one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import polars as pl

from keytide.errors import DataError
from keytide.external.cut import KeyCut
from keytide.external.ties import TieOrder, refuse_ties, undecided_keys
from keytide.external.versions import SourceVersions
from keytide.lazily import cached_property
from keytide.merge.engine import MergeEngine
from keytide.merge.order import IS_ADD, MergeOrder, is_searchable
from keytide.merge.touched import without_keys
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
_TIMES_STORED = 8
_CUTS_MIN, _CUTS_UNKNOWN, _CUTS_MAX = 4, 64, 256


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
    """Some columns of the rows that versions become, of those that meet a condition. Pickles.

    Rows with equal watermarks that came in no order are told apart by all of their columns. Few of
    them do so, and most queries want few columns, so whole rows are read only of keys that need it,
    unless it `compares_rows` at once.
    """

    versions: SourceVersions
    columns: tuple[str, ...]
    condition: Predicate | None = None
    compares_rows: bool = False

    @property
    def view(self) -> TableView:
        """The table as its definition says."""
        return self.versions.view

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, in frames that together with their making fit in about `memory_bytes`."""
        return map(self._shown, self.outcomes(memory_bytes))

    def outcomes(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """What each key became, deletes among them, likewise; the condition is not asked.

        Frames hold the columns and `_VALUE_KIND`, perhaps others.
        """
        undecided: list[pl.DataFrame] = []
        key = self.order.key
        for rows in self.merged(memory_bytes, undecided):
            yield without_keys(rows, undecided, key)
        if undecided:
            some = replace(self.versions, keys=pl.concat(undecided))
            whole = replace(self, versions=some, compares_rows=True)
            yield from whole.merged(memory_bytes, [])

    def merged(self, memory_bytes: int, undecided: list[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """What each key became: a row, or a delete.

        Keys of which whole rows have to be compared are put into `undecided`, and come with any of
        the rows that are as good, unless whole rows are read.
        """
        budget = memory_bytes // _COPIES
        held: list[pl.DataFrame] = []
        held_bytes = 0
        coming = prefetched(self.versions.frames(self._read, self._rows_in(budget)))
        for frame in coming:
            held.append(frame)
            held_bytes += int(frame.estimated_size())
            if held_bytes > budget:
                with closing(self._cut(held, held_bytes, budget)) as cut:
                    for more in coming:
                        cut.add(more)
                    for part in cut.parts():
                        yield from self._of_part(part, budget, undecided)
                return
        if held:
            yield from self._merged(pl.concat(held), undecided)

    def _shown(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Of merged rows those that are shown."""
        live = rows.filter(IS_ADD)
        if self._check is not None:
            live = live.filter(self._check)
        self._refuse_nulls(live)
        return live.select(self.columns)

    def _merged(self, versions: pl.DataFrame, undecided: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """One row for each key; together they are all of them, in no order."""
        occurs_again = _occurs_again(versions, self.order.key)
        if not occurs_again.any():
            return [versions]
        lone, several = versions.filter(~occurs_again), versions.filter(occurs_again)
        order, sorted_ = self.order, self.order.sort(several)
        if self._refuses_ties:
            assert isinstance(order, TieOrder)
            refuse_ties(sorted_, order, self.view.name)
        elif isinstance(order, TieOrder) and not self._reads_whole_rows:
            tied = undecided_keys(sorted_, order)
            undecided += [tied] if tied.height else []
        with self.view.reading():
            return [lone, self.engine.merge(sorted_, in_key_order=False)]

    # -- by parts on disk --------------------------------------------------------------------------

    def _cut(self, held: list[pl.DataFrame], held_bytes: int, budget: int) -> KeyCut:
        """The versions so far, cut by their key, with room for those to come; none stays held."""
        rows = sum(frame.height for frame in held)
        cut = KeyCut(self.order.key, self._cuts(held_bytes, rows, budget), budget)
        while held:
            cut.add(held.pop(0))
        return cut

    def _of_part(
        self, frames: Iterator[pl.DataFrame], budget: int, undecided: list[pl.DataFrame]
    ) -> Iterator[pl.DataFrame]:
        """The rows of a part; of one that is too large the versions so far are merged, then more.

        Merging is associative, so rows stand for the versions that they were made of.
        """
        held: list[pl.DataFrame] = []
        for frame in frames:
            held.append(frame)
            if sum(each.estimated_size() for each in held) > budget and not self._refuses_ties:
                held = self._merged(pl.concat(held), undecided)
        if held:
            yield from self._merged(pl.concat(held), undecided)

    def _cuts(self, held_bytes: int, held_rows: int, budget: int) -> int:
        """How many parts to cut into, so that each fits."""
        rows = [part.rows for part in self.versions.parts]
        stored = [part.stored_bytes for part in self.versions.parts]
        if None not in rows:
            estimated = sum(n or 0 for n in rows) * held_bytes // max(1, held_rows)
        elif None not in stored:
            estimated = _TIMES_STORED * sum(n or 0 for n in stored)
        else:
            return _CUTS_UNKNOWN
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
            self.view.schema.names if self._compares_whole_rows else self._needed,
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

    @property
    def _compares_whole_rows(self) -> bool:
        """Whether all columns are read, however few are wanted, as ties may depend on them.

        So it is of queries: asked a second time they may tell of another state.
        """
        parts = self.versions.parts
        asks = any(part.stored_bytes is None and not part.is_in_order for part in parts)
        return self.compares_rows or self._refuses_ties or asks

    @property
    def _reads_whole_rows(self) -> bool:
        return {*self._read} == {*self.view.schema.names}

    @cached_property
    def _needed(self) -> tuple[str, ...]:
        """What is wanted and what decides, but between versions that tie."""
        wanted = self.view.engine.columns((*self.columns, *sorted(columns_of(self.condition))))
        return tuple(dict.fromkeys((*wanted, *self.view.options.tombstone_key)))

    @property
    def _read(self) -> tuple[str, ...]:
        """The columns to read."""
        return self.view.schema.names if self._compares_whole_rows else self._needed

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
