"""The `aggregation` engine: each column of a key is a fold of its versions.

Every column has a function, `last_non_null_value` unless the options name another; sequence
fields and the key itself have none. Functions fold versions in merge order, so those that care
follow the sequence fields. Of versions that were folded before only the place of the newest is
remembered, so where more of them matters, versions stay apart.

Laws: merging may be split up wherever the functions say so, and from the oldest version on
always. A retract is taken back column by column and leaves the row; a lone retract is kept as a
retract until another version comes. With `aggregation.remove-record-on-delete` a -D removes the
row and what was in it for good: the next add begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import polars as pl

from keytide.merge.checks import check_functions, conflicting
from keytide.merge.engine import MergeEngine, Thinned
from keytide.merge.folding import depending_on_order, one_place
from keytide.merge.functions.inputs import AggregatedColumn, AggregateFunction, Inputs
from keytide.merge.functions.registry import (
    DEFAULT_FUNCTION,
    FUNCTION_OPTIONS,
    NO_FUNCTIONS,
    aggregated_columns,
    function_names,
)
from keytide.merge.functions.user import MergeFunction
from keytide.merge.not_null import check_not_null, not_null_names
from keytide.merge.order import IS_ADD, VALUE_KIND, MergeOrder
from keytide.merge.refusal import AFTER_DELETE, WITHOUT_COLUMN, Refusal, deletes_of, retracts_of
from keytide.merge.sequence_group import SequenceGroup
from keytide.merge.slices import KeySlices, Marks, Positions, merge_repeated, rows_with, take
from keytide.options import TableOptions, keys
from keytide.row_kind import RowKind
from keytide.types import Field

__all__ = ["Aggregation"]


@dataclass(frozen=True)
class Aggregation(MergeEngine):
    """Folds each column of a key's versions with its function."""

    meaning: ClassVar[str] = "Each column is aggregated by its function."
    options: ClassVar[tuple[str, ...]] = (
        *FUNCTION_OPTIONS,
        keys.AGGREGATION_REMOVE_RECORD_ON_DELETE,
    )
    order: MergeOrder
    folds: Mapping[str, AggregatedColumn] = field()  # no default, unlike that of other engines
    """By column; a column without a fold comes from the last version."""
    not_null: frozenset[str] = frozenset()
    """Columns that are NOT NULL. With one, retracts alone stay a retract: no row could hold it."""
    remove_record_on_delete: bool = False

    @classmethod
    def of(
        cls,
        order: MergeOrder,
        fields: tuple[Field, ...],
        options: TableOptions,
        functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
    ) -> Aggregation:
        """The engine for a table. Raises `InvalidError` for functions that do not fit."""
        folded = [f for f in fields if f.name not in order.columns]
        names = function_names([f.name for f in folded], options, DEFAULT_FUNCTION)
        return cls(
            order=order,
            folds=aggregated_columns(folded, names, options, functions),
            not_null=not_null_names(folded),
            remove_record_on_delete=options.aggregation_remove_record_on_delete,
        )

    @classmethod
    def check(
        cls, columns: Mapping[str, Field], primary_keys: Sequence[str], options: TableOptions
    ) -> None:
        """Refuse functions that do not fit, and retracts that are both ignored and obeyed."""
        if options.aggregation_remove_record_on_delete:
            for name, value in options.by_columns(keys.IGNORE_RETRACT).items():
                if value.lower() == "true":
                    ignored = keys.key_of(keys.IGNORE_RETRACT, name)
                    raise conflicting(keys.AGGREGATION_REMOVE_RECORD_ON_DELETE, ignored)
        unfolded = {*primary_keys, *options.sequence_field}
        names = function_names([n for n in columns if n not in unfolded], options, DEFAULT_FUNCTION)
        check_functions(columns, names, options)

    @property
    def way_out(self) -> str:
        """Leaving the column or the key out, and a -D where that removes the row."""
        return AFTER_DELETE if self.remove_record_on_delete else WITHOUT_COLUMN

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        """Retracts and values that a column's function cannot fold."""
        retracts = retracts_of(rows)
        adds = ~retracts
        if self.remove_record_on_delete:
            retracts &= ~deletes_of(rows)
        for name, fold in self.folds.items():
            is_not_null = name in self.not_null
            yield from fold.refusals(rows[name], adds, retracts, is_not_null=is_not_null)

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """The folded row of each key.

        Raises `InvalidError` naming column and function for a retract that cannot be taken back,
        a result that does not fit, and NULL for a NOT NULL column.
        """
        return merge_repeated(versions, self.order.key, self._fold, in_key_order=in_key_order)

    def layer_starts(self, versions: pl.DataFrame) -> Marks | None:
        """What begins a removed row anew; a retract that needs what older versions hold."""
        is_add = versions.select(IS_ADD).to_series().to_numpy()
        # The common case, told without a look at keys: nothing but adds, which fold anywhere.
        if is_add.all() and all(fold.function.folds_adds for fold in self.folds.values()):
            return None
        slices = KeySlices.of(versions, self.order.key)
        # What has to be stored apart: a function may need what older versions hold, for one column.
        alone = np.zeros(versions.height, dtype=bool)
        for name in (name for name in versions.columns if name in self.folds):
            alone |= self.folds[name].needs_older(Inputs(versions[name], slices, is_add, ~is_add))
        if not self.remove_record_on_delete:
            return slices.around(alone)
        last_delete = slices.last_where((versions[VALUE_KIND] == RowKind.DELETE).to_numpy())
        first_add = slices.first_where(is_add & (slices.rows > last_delete[slices.keys]))
        # Nobody knows whether a -U that no add precedes finds a row or one that was removed.
        alone |= ~is_add & (slices.rows < first_add[slices.keys])
        alone |= ~is_add & (first_add < 0)[slices.keys]
        alone &= (last_delete < 0)[slices.keys]
        return slices.around(alone) | slices.marks(np.where(last_delete < 0, -1, first_add))

    @property
    def why_kept_apart(self) -> str | None:
        """Sequence fields beside functions, or deletes, that depend on the order."""
        if self.remove_record_on_delete:
            return one_place(self.order, "a -D removes what comes before it")
        ordered = [n for n, fold in self.folds.items() if not fold.function.stands_anywhere]
        return one_place(self.order, depending_on_order(ordered)) if ordered else None

    @property
    def why_all_stay(self) -> str | None:
        """A function that needs all of its inputs in their order."""
        named = [name for name, fold in self.folds.items() if not self._thins(name, fold)]
        if not named:
            return None
        needed = "needs all versions in their order"
        if self.remove_record_on_delete:
            needed = "needs all versions, any of which a late -D may remove"
        return f"the function of {', '.join(map(repr, named))} {needed}"

    def _thins(self, name: str, fold: AggregatedColumn) -> bool:
        """Whether few versions decide about a column."""
        function = fold.function
        if self.remove_record_on_delete:
            # A -D that comes late takes away what is before it, and nothing else.
            return function.goes_by_later
        if type(function).deciding is not AggregateFunction.deciding:
            return True
        # A value goes to the newest version, and the others have NULL instead.
        return function.stands_anywhere and function.ignores_null and name not in self.not_null

    def thinned(self, versions: pl.DataFrame) -> Thinned:
        """The last version, and of each column those that decide about it.

        Where order means nothing to a function the last version has the fold of all, and the others
        NULL. Keys with retracts, which take back from what comes before them, keep all versions.
        """
        slices = KeySlices.of(versions, self.order.key)
        if slices.count == versions.height:
            return Thinned(versions, versions.clear())
        is_add = versions.select(IS_ADD).to_series().to_numpy()
        if self.remove_record_on_delete:
            deletes = (versions[VALUE_KIND] == RowKind.DELETE).to_numpy()
            kept = slices.rows >= slices.last_where(deletes)[slices.keys]
            if not kept.all():
                return self.thinned(versions.filter(pl.Series(kept)))
            is_add |= deletes
        is_whole = slices.any_where(~is_add)[slices.keys]
        if self.why_all_stay is not None:
            is_whole[:] = True
        few = versions.filter(pl.Series(~is_whole))
        return Thinned(self._few(few), versions.filter(pl.Series(is_whole)))

    def _few(self, versions: pl.DataFrame) -> pl.DataFrame:
        """The versions to keep of keys that have no retracts but, as the first one, a -D."""
        if not versions.height:
            return versions
        slices = KeySlices.of(versions, self.order.key)
        is_add = versions.select(IS_ADD).to_series().to_numpy()
        is_last = slices.marks(slices.lasts)
        kept, columns = is_last | ~is_add, []
        for name, fold in self.folds.items():
            inputs = Inputs(versions[name], slices, is_add, np.zeros_like(is_add))
            deciding = fold.function.deciding(inputs)
            if deciding is not None:
                kept |= deciding
                continue
            folded = take(fold.function.fold(inputs), np.where(is_last, slices.keys, -1))
            stays = pl.Series(~is_add | (slices.lengths == 1)[slices.keys])
            columns.append(versions[name].zip_with(stays, folded).alias(name))
        return versions.with_columns(columns).filter(pl.Series(kept))

    @property
    def tombstones(self) -> frozenset[RowKind]:
        """A -D that removes the row; others are still to be taken back from what comes."""
        return frozenset({RowKind.DELETE} if self.remove_record_on_delete else ())

    @property
    def refuses_delete(self) -> str | None:
        """A -D is taken back column by column, unless the table has it remove the row."""
        if self.remove_record_on_delete:
            return None
        return f"set '{keys.AGGREGATION_REMOVE_RECORD_ON_DELETE}' = 'true'"

    @property
    def removes_rows(self) -> bool:
        """Whether the table has a -D remove the row."""
        return self.remove_record_on_delete

    def tracing(
        self, folds: Mapping[str, AggregatedColumn], groups: tuple[SequenceGroup, ...]
    ) -> Aggregation:
        """The same with other functions."""
        return replace(self, folds=folds, not_null=frozenset())

    def _fold(self, versions: pl.DataFrame, slices: KeySlices) -> pl.DataFrame:
        is_add = versions.select(IS_ADD).to_series().to_numpy()
        counts, removing = self._counting(versions, slices, is_add)
        is_removed = removing >= 0
        lasts = np.where(is_removed, removing, slices.lasts)
        # A version that begins a removed row anew stands as it is, like any lone version: that is
        # how it looks to a merge that has only what came after the removal.
        stands = slices.count_where(counts) < 2 if self.remove_record_on_delete else None
        adds, retracts = counts & is_add, counts & ~is_add
        are_retracts = np.zeros(slices.count, dtype=bool)
        # A row made of retracts alone would have NULLs. Where a column may have none, it stays a
        # retract until an add comes.
        if self.not_null and retracts.any():
            are_retracts = ~is_removed & ~slices.any_where(adds)
        # Not a -D: in a table where that removes the row, it would remove one that nobody deleted.
        kinds = np.where(are_retracts, RowKind.UPDATE_BEFORE, RowKind.INSERT)
        kinds = np.where(is_removed, RowKind.DELETE, kinds)
        columns = [pl.Series(VALUE_KIND, kinds, dtype=versions.schema[VALUE_KIND])]
        for name in (name for name in versions.columns if name in self.folds):
            inputs = Inputs(versions[name], slices, adds, retracts)
            column = self.folds[name].fold(inputs, are_retracts)
            if stands is not None:
                column = take(versions[name], lasts).zip_with(pl.Series(stands), column)
            columns.append(column.alias(name))
        rows = rows_with(versions, lasts, columns)
        check_not_null(rows, self.not_null)
        return rows

    def _counting(
        self, versions: pl.DataFrame, slices: KeySlices, is_add: Marks
    ) -> tuple[Marks, Positions]:
        """Which versions count, and the -D that removes each key, if one does."""
        if not self.remove_record_on_delete:
            return np.ones(versions.height, dtype=bool), np.full(slices.count, -1)
        deletes = (versions[VALUE_KIND] == RowKind.DELETE).to_numpy()
        last_delete = slices.last_where(deletes)
        after = slices.rows > last_delete[slices.keys]
        first_add = slices.first_where(is_add & after)
        # What is taken back from a removed row was not in it any more.
        begun = (slices.rows >= first_add[slices.keys]) & (first_add >= 0)[slices.keys]
        counts = after & (begun | (last_delete < 0)[slices.keys])
        # A -D is what remains of the key only until an add begins the row anew.
        return counts, np.where(first_add < 0, last_delete, -1)
