"""The `deduplicate` engine: the last version of a key is the row.

Laws: idempotent, associative and, with sequence fields that tell versions apart, commutative.
A retract that comes last hides the key; NULL in the last version means NULL (Paimon behaviour
2.1; watermark rules R4, R5, R14).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from keytide.merge.order import IS_ADD, MergeOrder
from keytide.merge.refusal import WITHOUT_KEY, Refusal
from keytide.merge.slices import Marks

__all__ = ["Deduplicate"]


@dataclass(frozen=True)
class Deduplicate:
    """Keeps the last version of each key, its kind included."""

    picks_a_version: ClassVar[bool] = True
    way_out: ClassVar[str] = WITHOUT_KEY
    order: MergeOrder
    ignore_delete: bool = False
    """Retracts stored before the option was set are skipped as well."""

    @property
    def newest_decides(self) -> bool:
        """True unless sequence fields or skipped retracts let an older version win."""
        return not self.order.sequence and not self.ignore_delete

    def columns(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Nothing beyond the order's own columns is looked at."""
        return tuple(dict.fromkeys((*self.order.columns, *wanted)))

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        """None: every row can be the last one."""
        yield from ()

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """The last row of each key."""
        if self.ignore_delete:
            versions = versions.filter(IS_ADD)
        return versions.filter(self.order.last_of_key())

    def layer_starts(self, versions: pl.DataFrame) -> Marks | None:
        """None: one version is the row, whatever older ones there are."""
        return None
