"""The `first-row` engine: the first version of a key is the row.

Laws: idempotent and associative; arrival alone decides, so there is no sequence field to make
it commutative. NULL in the first version means NULL. There is nothing to take back: a retract
that meets another version of its key is an error, or, with `ignore-delete`, as if never written
(Paimon behaviour 2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from keytide.errors import InvalidError
from keytide.merge.order import IS_ADD, MergeOrder
from keytide.merge.refusal import WITHOUT_KEY, Refusal, retracts_of
from keytide.merge.slices import KeySlices, Marks, merge_repeated

__all__ = ["FirstRow"]


@dataclass(frozen=True)
class FirstRow:
    """Keeps the first version of each key."""

    newest_decides: ClassVar[bool] = False
    picks_a_version: ClassVar[bool] = True
    way_out: ClassVar[str] = WITHOUT_KEY
    order: MergeOrder
    ignore_delete: bool = False
    """Retracts stored before the option was set are skipped as well."""

    def columns(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Nothing beyond the order's own columns is looked at."""
        return tuple(dict.fromkeys((*self.order.columns, *wanted)))

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        """All retracts, unless they are skipped."""
        if not self.ignore_delete:
            yield Refusal(retracts_of(rows), _REFUSED)

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """The first row of each key; `InvalidError` when a key has a retract among its versions."""
        if self.ignore_delete:
            versions = versions.filter(IS_ADD)
        return merge_repeated(versions, self.order.key, _first, in_key_order=in_key_order)

    def layer_starts(self, versions: pl.DataFrame) -> Marks | None:
        """None: one version is the row, whatever older ones there are."""
        return None


def _first(versions: pl.DataFrame, slices: KeySlices) -> pl.DataFrame:
    if not versions.select(IS_ADD.all()).item():
        raise InvalidError(_REFUSED)
    return versions[pl.Series(slices.starts)]


_REFUSED = (
    "By default, First row merge engine can not accept DELETE/UPDATE_BEFORE records. "
    "Set 'ignore-delete' = 'true' to skip them, or 'ignore-update-before' = 'true' for "
    "a feed whose only retracts are -U"
)
