"""Merged versions in the place of those that they were made of.

Law: whatever is stored below, and whatever is written later, late versions among it, a table in
which merged versions took the place of others has the rows that it had without. Engines say where
that holds (`why_kept_apart`, `needs_oldest`); what depends on the versions at hand is seen when
they are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from keytide.merge.engine import MergeEngine
from keytide.merge.order import MergeOrder
from keytide.options import keys

__all__ = ["Merging", "OlderNeededError", "Standing", "depending_on_order", "one_place"]


class OlderNeededError(Exception):
    """Versions cannot be merged without the older ones of their key, which are not at hand."""


class Merging(Protocol):
    """What merging runs asks of an engine."""

    @property
    def newest_decides(self) -> bool:
        """See `MergeEngine`."""
        ...

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """See `MergeEngine`."""
        ...


@dataclass(frozen=True)
class Standing:
    """Merges versions that older ones lie below, into what stands for them on top of these."""

    engine: MergeEngine

    @property
    def newest_decides(self) -> bool:
        """See `MergeEngine`."""
        return self.engine.newest_decides

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """See `MergeEngine`. Raises `OlderNeededError` where one version cannot stand for them."""
        starts = self.engine.layer_starts(versions)
        if starts is not None and starts.any():
            raise OlderNeededError
        return self.engine.merge(versions, in_key_order=in_key_order)


def one_place(order: MergeOrder, what_depends: str) -> str | None:
    """Why versions stay apart that sequence fields order, where the outcome depends on it."""
    if not order.sequence:
        return None
    return (
        f"'{keys.SEQUENCE_FIELD}' = '{','.join(order.sequence)}' lets a late row belong between "
        f"rows that are there, {what_depends}, and a merged row has one place in the order"
    )


def depending_on_order(columns: Sequence[str]) -> str:
    """That the functions of some columns depend on the order."""
    return f"the function of {', '.join(map(repr, columns))} depends on the order"
