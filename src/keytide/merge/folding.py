"""Replacement of stored versions by merged ones.

Law: with any stored older versions, and any later writes including late versions, a table in which
merged versions replaced others has the same rows as without the replacement. Engines say when this
is true (`why_kept_apart`, `needs_oldest`). What depends on the given versions is checked when they
are merged.
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
    """Versions cannot be merged without older versions of their key, which are not available."""


class Merging(Protocol):
    """The part of an engine that merging runs needs."""

    @property
    def newest_decides(self) -> bool:
        """See `MergeEngine`."""
        ...

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """See `MergeEngine`."""
        ...


@dataclass(frozen=True)
class Standing:
    """Merges versions above older ones into versions that have the same effect on these."""

    engine: MergeEngine

    @property
    def newest_decides(self) -> bool:
        """See `MergeEngine`."""
        return self.engine.newest_decides

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """See `MergeEngine`. Raises `OlderNeededError` if one version cannot replace several."""
        starts = self.engine.layer_starts(versions)
        if starts is not None and starts.any():
            raise OlderNeededError
        return self.engine.merge(versions, in_key_order=in_key_order)


def one_place(order: MergeOrder, what_depends: str) -> str | None:
    """Why versions with sequence fields are kept separately, if their order matters."""
    if not order.sequence:
        return None
    return (
        f"with '{keys.SEQUENCE_FIELD}' = '{','.join(order.sequence)}' a late row can belong "
        f"between existing rows, {what_depends}, and a merged row has only one position in the "
        "order"
    )


def depending_on_order(columns: Sequence[str]) -> str:
    """A message that the functions of some columns depend on the order."""
    return f"the function of {', '.join(map(repr, columns))} depends on the order"
