"""Writes of rows whose order is unknown: nothing may depend on it.

Not every engine that passes on rows keeps their order. Then two rows of one key can be written
together only if sequence fields say which one is newer. All others are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import polars as pl

from keytide.base.text import counted
from keytide.errors import UnsupportedError
from keytide.merge.refusal import named_rows
from keytide.options import keys
from keytide.snapshot.state import TableView

__all__ = ["Order", "refuse_ties", "tie_columns"]


class Order(Enum):
    """What the parts of a write know of the order of its rows."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    """All rows of a key are in one part, which refuses those between which order would decide."""
    UNKNOWN_TO_PARTS = "unknown to parts"
    """Rows of a key can be in any parts, so these only tell which places their rows have."""


def tie_columns(rows: pl.DataFrame, view: TableView) -> tuple[pl.DataFrame, ...]:
    """The columns that say whether rows tie, in one frame: keys, and values that order versions.

    Nothing for tables without a key, whose rows never tie.
    """
    if not view.kind.has_key:
        return ()
    terms = enumerate(view.order.sequence_terms(rows.schema))
    order = (term.alias(f"${number}") for number, term in terms)
    return (rows.select(*map(pl.col, view.schema.primary_keys), *order),)


def refuse_ties(view: TableView, places: Iterable[pl.DataFrame]) -> None:
    """Raise `UnsupportedError` if two rows of a write have the same place."""
    held = list(places)
    if not held:
        return
    rows = pl.concat(held)
    tied = rows.filter(rows.is_duplicated())
    if tied.height:
        key = view.schema.primary_keys
        by = " and ".join(["key", *view.order.sequence])
        raise UnsupportedError(
            f"table {view.name}: {counted(tied.height, 'row')} of this write have the same {by} as "
            f"another one, the first with {named_rows(tied.head(1), key)}. This Spark Connect "
            "server does not keep the order of rows, so none of them is the later one. Write one "
            f"row per key, set '{keys.SEQUENCE_FIELD}' to a column that orders the rows, or sort "
            "the DataFrame and write df.toArrow()"
        )
