"""The merge of a source's versions into rows, with bounded memory.

If the versions fit in memory they are merged together, and keys that occur once are not sorted.
Otherwise they are divided by a hash of the key into parts, which are spilled to local disk and
merged one after the other.

Versions of a key with equal watermarks are ordered by rules R2 and R3 of docs/semantics.md. If
commits and rows have an order, `_SEQUENCE_NUMBER` contains it. Rows without an order have the same
number. Of those a tombstone is the last, otherwise the row whose columns, in table order, are
larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TypeAlias

import polars as pl

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property, scratch
from keytide.dml.fragments import Spool
from keytide.errors import InvalidError
from keytide.format.arrow import from_arrow
from keytide.merge.engine import MergeEngine
from keytide.merge.explanation import shown
from keytide.merge.layers import without_keys
from keytide.merge.order import IS_ADD, SEQUENCE_NUMBER, MergeOrder, is_searchable
from keytide.options import keys
from keytide.predicate.predicate import Predicate, columns_of, conjunction, conjuncts
from keytide.read.runs import prefetched
from keytide.snapshot.state import TableView
from keytide.sources.versions import SourceVersions, VisibleRows

# -- ties: versions with equal watermarks ----------------------------------------------------------


@dataclass(frozen=True)
class TieOrder(MergeOrder):
    """The order of versions if some have no order of arrival.

    `compared` names the columns that decide then: all columns of the table, so that the order is
    the same for every reader. If `tombstone_wins`, a delete is the last of versions with equal
    watermarks, even if it was committed before them.
    """

    compared: tuple[str, ...] = ()
    tombstone_wins: bool = False

    @property
    def settles_ties(self) -> str:
        """See `MergeOrder`."""
        return "they have no order: a delete wins, otherwise the one with the larger values"

    def sort(self, versions: pl.DataFrame, *, arrival_decides: bool = False) -> pl.DataFrame:
        """See `MergeOrder`."""
        number, is_delete = pl.col(SEQUENCE_NUMBER), ~IS_ADD
        between = [is_delete, number] if self.tombstone_wins else [number, is_delete]
        by = [*map(pl.col, self.key), *self.sequence_terms(versions.schema), *between,
              *canonical(versions, self.compared)]  # fmt: skip
        descending = [False] * len(by)
        descending[len(self.key) : len(self.key) + len(self.sequence)] = [self.descending] * len(
            self.sequence
        )
        return versions.sort(by, descending=descending, nulls_last=False, maintain_order=True)


def canonical(rows: pl.DataFrame, columns: Sequence[str]) -> list[pl.Expr]:
    """The columns as sort terms. Nested ones are converted to strings."""
    terms = []
    for name in columns:
        if rows.schema[name].is_nested():
            terms.append(pl.struct(pl.col(name)).struct.json_encode())
        else:
            terms.append(pl.col(name) + 0.0 if rows.schema[name].is_float() else pl.col(name))
    return terms


def _tied_keys(
    versions: pl.DataFrame, order: TieOrder, deciding: Sequence[pl.Expr]
) -> pl.DataFrame:
    """Keys with versions that tie with the last one but differ in compared columns.

    REQUIRES: `versions` are sorted by the order.
    """
    key, compared = list(order.key), canonical(versions, order.compared)
    tie_columns = _tie_columns(versions, order, deciding, compared)
    if not _has_repeats(tie_columns, order):
        return tie_columns.select(key).clear()
    found = tie_columns.filter(_are_as_the_last(tie_columns, order)).unique().select(key)
    return found.filter(found.is_duplicated()).unique()


def _tie_columns(
    versions: pl.DataFrame,
    order: MergeOrder,
    deciding: Sequence[pl.Expr],
    compared: Sequence[pl.Expr] = (),
) -> pl.DataFrame:
    """The key, the deciding columns, and the compared columns."""
    return versions.select(
        *order.key,
        *(term.alias(f"{_DECIDES}{place}") for place, term in enumerate(deciding)),
        *(term.alias(f"{_COMPARED}{place}") for place, term in enumerate(compared)),
    )


def _has_repeats(tie_columns: pl.DataFrame, order: MergeOrder) -> bool:
    """Whether a version ties with the next one of the same key."""
    names = [name for name in tie_columns.columns if not name.startswith(_COMPARED)]
    repeats = [each.eq_missing(each.shift(-1)) for each in map(pl.col, names)]
    return bool(tie_columns.select(pl.all_horizontal(repeats).any()).item())


def _are_as_the_last(tie_columns: pl.DataFrame, order: MergeOrder) -> pl.Expr:
    """Whether a version ties with the last one of its key."""
    decides = [pl.col(name) for name in tie_columns.columns if name.startswith(_DECIDES)]
    freshest = [each.eq_missing(each.last().over(list(order.key))) for each in decides]
    return pl.all_horizontal(pl.repeat(value=True, n=pl.len()), *freshest)


_DECIDES, _COMPARED = scratch("decides_"), scratch("compared_")


# -- partitions by a hash of the key ---------------------------------------------------------------


_PART = scratch("part")
_ON_DISK = 0


def cut_by_key(
    rows: pl.DataFrame, key: Sequence[str], count: int, seed: int
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Divide rows into at most `count` parts, with their numbers. Rows with equal keys are in one
    part.

    NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0. Parts keep the order of rows. Parts
    created with one seed can be divided again with another seed. The result is the same in every
    process.
    """
    parts = rows.select(key).hash_rows(seed=seed) % count
    cut = rows.with_columns(parts.alias(_PART)).partition_by(_PART, include_key=False, as_dict=True)
    yield from ((int(part), some) for (part,), some in cut.items())


class KeyCut:
    """`count` parts of frames with the same columns, divided as by `cut_by_key`.

    About `memory_bytes` of all parts are in memory. The rest is in temporary files, which `close`
    removes.
    """

    def __init__(self, key: Sequence[str], count: int, memory_bytes: int) -> None:
        self._key = list(key)
        self._spools = [Spool(memory_bytes // count) for _ in range(count)]

    def add(self, rows: pl.DataFrame) -> None:
        """Take some rows."""
        for part, some in cut_by_key(rows, self._key, len(self._spools), _ON_DISK):
            for batch in some.to_arrow().combine_chunks().to_batches():
                self._spools[part].add(batch)

    def parts(self) -> Iterator[Iterator[pl.DataFrame]]:
        """The frames of each part, one part after the other, each once.

        Nothing can be added then.
        """
        for spool in self._spools:
            yield (from_arrow(table) for table in spool.tables())
            spool.close()

    def close(self) -> None:
        """Discard everything. Can be called repeatedly."""
        for spool in self._spools:
            spool.close()


# -- the merge by key ------------------------------------------------------------------------------


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
class MergeOutcome:
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
            # The rows of a group. If it is too large, versions are merged step by step. Merging is
            # associative, so rows can replace the versions that they were merged from.
            held: list[pl.DataFrame] = []
            for frame in group:
                held.append(frame)
                if _bytes_of(held) > budget and not self.refuses_ties:
                    held = self._merged(pl.concat(held), undecided)
            if held:
                yield from self._merged(pl.concat(held), undecided)

    def outcomes_by_position(
        self, frames: Iterable[pl.DataFrame], memory_bytes: int, cuts: Cuts
    ) -> Iterator[MergeOutcome]:
        """The versions that lost, determined without the values of rows.

        REQUIRES: versions have a column `PLACE`, which identifies them. The row of a key is its
        latest version.
        """
        budget = budget_of(memory_bytes)
        for group in _groups(frames, self.order.key, budget, cuts):
            # As for rows, step by step. The latest version so far replaces all others.
            held: list[pl.DataFrame] = []
            for frame in group:
                held.append(frame)
                if _bytes_of(held) > budget:
                    kept, older = self._parted(pl.concat(held))
                    held = [kept]
                    yield MergeOutcome(older[PLACE], kept[PLACE].clear())
            if held:
                kept, older = self._parted(pl.concat(held))
                is_add = kept.select(IS_ADD).to_series()
                tied = _occurs_again(kept, self.order.key)
                if not self.refuses_ties:
                    tied = tied & is_add
                lost = pl.concat([older[PLACE], kept.filter(~tied & ~is_add)[PLACE]])
                yield MergeOutcome(lost, kept.filter(tied)[PLACE])

    @cached_property
    def engine(self) -> MergeEngine:
        """The engine of the definition with this order."""
        return self.view.engine_in(self.order)

    def _parted(self, versions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The latest versions of each key that tie by number, and the other versions.

        If the numbers decide, this is one version.
        """
        occurs_again = _occurs_again(versions, self.order.key)
        sorted_ = self.order.sort(versions.filter(occurs_again))

        # Which versions tie with the last one of their key, except for compared columns. Without
        # `numbers_decide`, only the sequence fields are compared. REQUIRES: `versions` are sorted
        # by the order.
        order = self.order
        numbers_decide = not self.refuses_ties
        deciding = order.sequence_terms(sorted_.schema)
        if numbers_decide:
            deciding += [pl.col(SEQUENCE_NUMBER), IS_ADD]
        columns = _tie_columns(sorted_, order, deciding)
        if not _has_repeats(columns, order):
            fresh = sorted_.select(order.last_of_key()).to_series()
        else:
            fresh = columns.select(_are_as_the_last(columns, order)).to_series()
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
            many = _tied_keys(sorted_, order, order.sequence_terms(sorted_.schema))
            if many.height:
                named = zip(order.key, many.row(0), strict=True)
                key = ", ".join(f"{name} = {shown(value)}" for name, value in named)
                raise InvalidError(
                    f"table {self.view.name}: key {key} has different versions with the same "
                    f"watermark, and '{keys.UPSERT_ON_TIE}' is 'error'; use a "
                    f"'{keys.WATERMARK_KEY}' that distinguishes them, or define the table with "
                    f"another '{keys.UPSERT_ON_TIE}'"
                )
        elif isinstance(order, TieOrder) and not self.has_whole_rows:
            # The keys whose latest versions tie, but differ in the compared columns. Without
            # duplicates, as a frame of the key columns. REQUIRES: `versions` are sorted by the
            # order.
            deciding = [*order.sequence_terms(sorted_.schema), pl.col(SEQUENCE_NUMBER), IS_ADD]
            tied = _tied_keys(sorted_, order, deciding)
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


# -- the merge of a source -------------------------------------------------------------------------


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
    key_condition = [term for term in terms if columns_of(term) <= {*key}]
    return conjunction(key_condition), conjunction(t for t in terms if t not in key_condition)


def rows_at_once(memory_bytes: int, columns: int) -> int:
    """The number of rows to read at a time for a merge with this memory."""
    least, most = _BATCH_ROWS
    fitting = budget_of(memory_bytes) // 4 // (VALUE_BYTES * columns)
    return max(least, min(most, fitting))


@dataclass(frozen=True)
class SourceMerge:
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
        """The same without values, for `KeyMerge.outcomes_by_position`."""
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
    def shown(self) -> VisibleRows:
        """The selection of rows."""
        return VisibleRows(self.view, self.columns, self.condition)

    @cached_property
    def order(self) -> MergeOrder:
        """The order of versions: that of the definition, and a rule for ties."""
        order, policy = self.view.order, self.view.options.on_tie
        if policy in (None, "last-write") and self.versions.are_in_order:
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
    def refuses_ties(self) -> bool:
        """Whether different versions with equal watermarks are an error."""
        return self.view.options.on_tie == "error"

    # -- columns to read ---------------------------------------------------------------------------

    @cached_property
    def columns_read(self) -> tuple[str, ...]:
        """The columns to read, in table order. All columns if ties need them from the start.

        This is so for queries, because a second query may see another state. Otherwise these are
        the wanted columns and those that decide, except for ties. In another order, the same
        columns would decide differently.
        """
        parts = self.versions.parts
        asks = any(part.stored_bytes is None and not part.is_in_order for part in parts)
        if self.compares_rows or self.refuses_ties or asks:
            return self.view.schema.names
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
