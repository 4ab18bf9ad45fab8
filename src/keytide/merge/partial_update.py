"""The `partial-update` engine: versions of a key fill one another's gaps.

Without sequence groups, a column of the row is the last value that is not NULL; sequence fields
are taken together from the last version. Retracts are refused, unless they are ignored or -D is
told to remove the row.

Laws: idempotent; merging may be split up, for adds anywhere, with a -D that removes rows only
from the oldest version on. A -D removes what came before it for good: nothing of it shows in the
row that a later add begins. With a sequence field the order of arrival does not matter among
versions merged together, but a merged row remembers only the newest version's place; sequence
groups remember one per group (Paimon behaviour 2.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import numpy as np
import polars as pl

from keytide.errors import InvalidError
from keytide.merge.functions.registry import NO_FUNCTIONS, aggregated_columns, function_names
from keytide.merge.functions.user import MergeFunction
from keytide.merge.not_null import not_null_names
from keytide.merge.order import IS_ADD, VALUE_KIND, MergeOrder
from keytide.merge.refusal import WITHOUT_KEY, Refusal, retracts_of
from keytide.merge.sequence_groups import SequenceGroups, sequence_groups_of
from keytide.merge.slices import KeySlices, Marks, merge_repeated, rows_with, take
from keytide.options import TableOptions
from keytide.row_kind import RowKind
from keytide.types import Field

__all__ = ["OnRetract", "PartialUpdate", "partial_update"]


class OnRetract(Enum):
    """What a table without sequence groups does about retracts."""

    REFUSE = "refuse"
    IGNORE = "ignore-delete"
    REMOVE_ROW = "partial-update.remove-record-on-delete"
    """-D removes the row; -U is ignored."""


@dataclass(frozen=True)
class PartialUpdate:
    """Fills the gaps of each key's versions."""

    newest_decides: ClassVar[bool] = False
    picks_a_version: ClassVar[bool] = False
    way_out: ClassVar[str] = WITHOUT_KEY
    order: MergeOrder
    filled: frozenset[str]
    """Columns to fill; others come from the last version."""
    on_retract: OnRetract = OnRetract.REFUSE

    def columns(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Nothing beyond the order's own columns is looked at."""
        return tuple(dict.fromkeys((*self.order.columns, *wanted)))

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        """All retracts, unless an option gives them a meaning."""
        if self.on_retract is OnRetract.REFUSE:
            yield Refusal(retracts_of(rows), _REFUSED)

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """The filled row of each key; `InvalidError` when a retract is refused."""
        if self.on_retract is OnRetract.IGNORE:
            versions = versions.filter(IS_ADD)
        elif self.on_retract is OnRetract.REMOVE_ROW:
            versions = versions.filter(pl.col(VALUE_KIND) != RowKind.UPDATE_BEFORE)
        return merge_repeated(versions, self.order.key, self._fill, in_key_order=in_key_order)

    def layer_starts(self, versions: pl.DataFrame) -> Marks | None:
        """What begins a removed row anew."""
        if self.on_retract is not OnRetract.REMOVE_ROW or versions.select(IS_ADD.all()).item():
            return None
        slices = KeySlices.of(versions, self.order.key)
        is_add = versions.select(IS_ADD).to_series().to_numpy()
        last_delete = slices.last_where((versions[VALUE_KIND] == RowKind.DELETE).to_numpy())
        first_add = slices.first_where(is_add & (slices.rows > last_delete[slices.keys]))
        return slices.marks(np.where(last_delete < 0, -1, first_add))

    def _fill(self, versions: pl.DataFrame, slices: KeySlices) -> pl.DataFrame:
        deletes = ~versions.select(IS_ADD).to_series().to_numpy()
        if self.on_retract is OnRetract.REFUSE and deletes.any():
            raise InvalidError(_REFUSED)
        last_delete = slices.last_where(deletes)
        counts = slices.rows > last_delete[slices.keys]
        is_removed = last_delete == slices.lasts
        kinds = np.where(is_removed, RowKind.DELETE, RowKind.INSERT)
        columns = [pl.Series(VALUE_KIND, kinds, dtype=versions.schema[VALUE_KIND])]
        for name in (name for name in versions.columns if name in self.filled):
            last = slices.last_where(versions[name].is_not_null().to_numpy() & counts)
            columns.append(take(versions[name], np.where(is_removed, slices.lasts, last)))
        return rows_with(versions, slices.lasts, columns)


def partial_update(
    order: MergeOrder,
    fields: tuple[Field, ...],
    options: TableOptions,
    functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
) -> PartialUpdate | SequenceGroups:
    """The engine for a table, with or without sequence groups; `functions` are those of users."""
    groups = sequence_groups_of(fields, options)
    if not groups:
        filled = frozenset(f.name for f in fields) - set(order.columns)
        return PartialUpdate(order, filled, _on_retract(options))
    protected = {name for group in groups for name in group.protected}
    names = function_names(protected, options)
    return SequenceGroups(
        order=order,
        groups=groups,
        folds=aggregated_columns(fields, names, options, functions),
        filled=frozenset(f.name for f in fields) - set(order.columns),
        not_null=not_null_names(fields) - set(order.columns),
        ignore_delete=options.ignore_delete,
    )


def _on_retract(options: TableOptions) -> OnRetract:
    if options.ignore_delete:
        return OnRetract.IGNORE
    return OnRetract.REMOVE_ROW if options.remove_record_on_delete else OnRetract.REFUSE


_REFUSED = (
    "By default, Partial update can not accept delete records, you can choose one of the "
    "following solutions: 1. set 'ignore-delete' = 'true' to skip -U and -D; 2. set "
    "'partial-update.remove-record-on-delete' = 'true' to remove the row on -D; 3. define "
    "'fields.<column>.sequence-group' to retract the columns of a group"
)
