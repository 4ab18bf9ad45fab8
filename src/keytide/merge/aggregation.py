"""The `aggregation` engine: each column of a key is an aggregate of its versions.

Every column has a function, by default `last_non_null_value`. Sequence fields and the key have
none. Functions process versions in merge order, so order-dependent functions follow the sequence
fields. A merged version only remembers the place of the latest version in it. If the other places
matter too, versions are stored separately.

Laws: merging can be split up as the functions allow, and always from the oldest version on. A
retract is applied column by column and keeps the row. A retract without any other version is stored
as a retract until another version arrives. With `aggregation.remove-record-on-delete`, a -D removes
the row and its content permanently, and the next add starts a new row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import polars as pl

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.row_kind import RowKind
from keytide.merge.engine import (
    MergeEngine,
    NeededVersions,
    SequenceGroup,
    check_functions,
    conflicting,
)
from keytide.merge.functions.inputs import AggregatedColumn, AggregateFunction, Inputs
from keytide.merge.functions.registry import (
    DEFAULT_FUNCTION,
    FUNCTION_OPTIONS,
    NO_FUNCTIONS,
    aggregated_columns,
    function_names,
)
from keytide.merge.functions.user import MergeFunction
from keytide.merge.layers import depending_on_order, one_place
from keytide.merge.order import IS_ADD, VALUE_KIND, MergeOrder
from keytide.merge.refusal import (
    AFTER_DELETE,
    WITHOUT_COLUMN,
    Refusal,
    check_not_null,
    deletes_of,
    retracts_of,
)
from keytide.merge.windows import KeySlices, Marks, merge_repeated, rows_with, take
from keytide.options import TableOptions, keys
from keytide.types import Field


@dataclass(frozen=True)
class Aggregation(MergeEngine):
    """Aggregates each column of a key's versions with its function."""

    meaning: ClassVar[str] = "Each column is aggregated by its function."
    options: ClassVar[tuple[str, ...]] = (
        *FUNCTION_OPTIONS,
        keys.AGGREGATION_REMOVE_RECORD_ON_DELETE,
    )
    order: MergeOrder
    folds: Mapping[str, AggregatedColumn] = field()  # no default, unlike in other engines
    """By column. A column without a function comes from the last version."""
    not_null: frozenset[str] = frozenset()
    """NOT NULL columns.

    If there is one, retracts alone stay a retract, because a row would have NULLs.
    """
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
            not_null=frozenset(f.name for f in folded if not f.type.nullable),
            remove_record_on_delete=options.aggregation_remove_record_on_delete,
        )

    @classmethod
    def check(
        cls, columns: Mapping[str, Field], primary_keys: Sequence[str], options: TableOptions
    ) -> None:
        """Refuse functions that do not fit, and retracts that are both ignored and applied."""
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
        """Suggests to omit the column or the key, or a -D if that removes the row."""
        return AFTER_DELETE if self.remove_record_on_delete else WITHOUT_COLUMN

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        """Retracts and values that a column's function cannot process."""
        retracts = retracts_of(rows)
        adds = ~retracts
        if self.remove_record_on_delete:
            retracts &= ~deletes_of(rows)
        for name, fold in self.folds.items():
            is_not_null = name in self.not_null
            yield from fold.refusals(rows[name], adds, retracts, is_not_null=is_not_null)

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """The aggregated row of each key.

        Raises `InvalidError`, naming column and function, for a retract that cannot be applied, a
        result that does not fit, and NULL in a NOT NULL column.
        """
        return merge_repeated(versions, self.order.key, self._fold, in_key_order=in_key_order)

    def layer_starts(self, versions: pl.DataFrame) -> Marks | None:
        """Versions that start a removed row again, and retracts that need older versions."""
        is_add = versions.select(IS_ADD).to_series().to_numpy()
        # The common case, which needs no look at keys: adds only, which can be aggregated anywhere.
        if is_add.all() and all(fold.function.folds_adds for fold in self.folds.values()):
            return None
        slices = KeySlices.of(versions, self.order.key)
        # Versions to store separately, because a function may need older versions for some column.
        alone = np.zeros(versions.height, dtype=bool)
        for name in (name for name in versions.columns if name in self.folds):
            alone |= self.folds[name].needs_older(Inputs(versions[name], slices, is_add, ~is_add))
        if not self.remove_record_on_delete:
            return slices.around(alone)
        last_delete = slices.last_where((versions[VALUE_KIND] == RowKind.DELETE).to_numpy())
        first_add = slices.first_where(is_add & (slices.rows > last_delete[slices.keys]))
        # It is unknown whether a -U without a preceding add meets an existing or a removed row.
        alone |= ~is_add & (slices.rows < first_add[slices.keys])
        alone |= ~is_add & (first_add < 0)[slices.keys]
        alone &= (last_delete < 0)[slices.keys]
        return slices.around(alone) | slices.marks(np.where(last_delete < 0, -1, first_add))

    @property
    def why_kept_apart(self) -> str | None:
        """Sequence fields together with order-dependent functions or deletes."""
        if self.remove_record_on_delete:
            return one_place(self.order, "a -D removes everything before it")
        ordered = [n for n, fold in self.folds.items() if not fold.function.stands_anywhere]
        return one_place(self.order, depending_on_order(ordered)) if ordered else None

    @property
    def why_all_stay(self) -> str | None:
        """A function that needs all of its inputs in order."""
        named = []
        for name, fold in self.folds.items():
            function = fold.function
            if self.remove_record_on_delete:
                # A late -D removes what precedes it, and nothing else.
                is_thinned = function.goes_by_later
            elif type(function).deciding is not AggregateFunction.deciding:
                is_thinned = True
            else:
                # The value moves to the latest version, and the others get NULL.
                is_nullable = name not in self.not_null
                is_thinned = function.stands_anywhere and function.ignores_null and is_nullable
            if not is_thinned:
                named.append(name)
        if not named:
            return None
        needed = "needs all versions in order"
        if self.remove_record_on_delete:
            needed = "needs all versions, because a late -D can remove any of them"
        return f"the function of {', '.join(map(repr, named))} {needed}"

    def thinned(self, versions: pl.DataFrame) -> NeededVersions:
        """The last version, and the versions that determine each column.

        If a function is order-independent, the last version gets the aggregate of all, and the
        others get NULL. Keys with retracts, which apply to preceding versions, keep all versions.
        """
        slices = KeySlices.of(versions, self.order.key)
        if slices.count == versions.height:
            return NeededVersions(versions, versions.clear())
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
        few, whole = versions.filter(pl.Series(~is_whole)), versions.filter(pl.Series(is_whole))
        if not few.height:
            return NeededVersions(few, whole)

        # The other keys have no retracts, except a -D as their first version.
        slices = KeySlices.of(few, self.order.key)
        is_add = few.select(IS_ADD).to_series().to_numpy()
        is_last = slices.marks(slices.lasts)
        kept, columns = is_last | ~is_add, []
        for name, fold in self.folds.items():
            inputs = Inputs(few[name], slices, is_add, np.zeros_like(is_add))
            deciding = fold.function.deciding(inputs)
            if deciding is not None:
                kept |= deciding
                continue
            folded = take(fold.function.fold(inputs), np.where(is_last, slices.keys, -1))
            stays = pl.Series(~is_add | (slices.lengths == 1)[slices.keys])
            columns.append(few[name].zip_with(stays, folded).alias(name))
        return NeededVersions(few.with_columns(columns).filter(pl.Series(kept)), whole)

    @property
    def tombstones(self) -> frozenset[RowKind]:
        """A -D that removes the row. Other retracts still apply to later versions."""
        return frozenset({RowKind.DELETE} if self.remove_record_on_delete else ())

    @property
    def refuses_delete(self) -> str | None:
        """A -D is applied column by column, unless the table lets it remove the row."""
        if self.remove_record_on_delete:
            return None
        return f"set '{keys.AGGREGATION_REMOVE_RECORD_ON_DELETE}' = 'true'"

    @property
    def removes_rows(self) -> bool:
        """Whether the table lets a -D remove the row."""
        return self.remove_record_on_delete

    def tracing(
        self, folds: Mapping[str, AggregatedColumn], groups: tuple[SequenceGroup, ...]
    ) -> Aggregation:
        """The engine with other functions."""
        return replace(self, folds=folds, not_null=frozenset())

    def _fold(self, versions: pl.DataFrame, slices: KeySlices) -> pl.DataFrame:
        is_add = versions.select(IS_ADD).to_series().to_numpy()
        # The versions that count, and the -D that removes each key, if any.
        counts, removing = np.ones(versions.height, dtype=bool), np.full(slices.count, -1)
        if self.remove_record_on_delete:
            last_delete = slices.last_where((versions[VALUE_KIND] == RowKind.DELETE).to_numpy())
            after = slices.rows > last_delete[slices.keys]
            first_add = slices.first_where(is_add & after)
            # A retract of a removed row has no effect.
            begun = (slices.rows >= first_add[slices.keys]) & (first_add >= 0)[slices.keys]
            counts = after & (begun | (last_delete < 0)[slices.keys])
            # A -D remains for the key only until an add starts the row again.
            removing = np.where(first_add < 0, last_delete, -1)
        is_removed = removing >= 0
        lasts = np.where(is_removed, removing, slices.lasts)
        # A version that starts a removed row again is unchanged, like any single version. A merge
        # that only has the versions after the removal gives the same.
        stands = slices.count_where(counts) < 2 if self.remove_record_on_delete else None
        adds, retracts = counts & is_add, counts & ~is_add
        are_retracts = np.zeros(slices.count, dtype=bool)
        # A row from retracts alone would have NULLs. If there is a NOT NULL column, it stays a
        # retract until an add arrives.
        if self.not_null and retracts.any():
            are_retracts = ~is_removed & ~slices.any_where(adds)
        # Not a -D, which would remove the row in such a table although nobody deleted it.
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
