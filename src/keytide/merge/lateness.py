"""Detection of out-of-order rows: older, by the sequence fields, than what arrived before."""

from __future__ import annotations

import polars as pl

from keytide.base.scratch import scratch
from keytide.merge.joined import joined
from keytide.merge.order import MergeOrder

__all__ = ["RANK", "STORED_RANK", "is_late", "with_ranks"]

RANK, STORED_RANK = scratch("rank"), scratch("stored_rank")


def with_ranks(rows: pl.DataFrame, stored: pl.DataFrame, order: MergeOrder) -> pl.DataFrame:
    """The rows with the rank of their sequence, and that of their key's stored version.

    Ranks increase with the sequence. -1 means no stored version. `stored` has at most one version
    of each key, with the columns of `order`. Rows keep their order.
    """
    fields = list(order.sequence)
    # Ranks replace sequences of several fields by single numbers.
    versions = pl.concat([rows.select(fields), stored.select(fields)])
    places = _places(_terms(versions, order), order.descending)
    ranked = rows.with_columns(places.head(rows.height).alias(RANK))
    before = stored.select(order.key).with_columns(places.slice(rows.height).alias(STORED_RANK))
    both = joined(ranked, before, order.key, "left", keeps_order=True)
    return both.with_columns(pl.col(STORED_RANK).fill_null(-1))


def is_late(order: MergeOrder) -> pl.Expr:
    """For rows with ranks, in arrival order: whether a newer version of the key arrived before."""
    highest_before = pl.col(RANK).cum_max().shift(1).over(list(order.key)).fill_null(-1)
    return pl.col(RANK) < pl.max_horizontal(highest_before, pl.col(STORED_RANK))


def _terms(frame: pl.DataFrame, order: MergeOrder) -> pl.DataFrame:
    terms = order.sequence_terms(frame.schema)
    return frame.select(term.alias(f"term_{i}") for i, term in enumerate(terms))


def _places(terms: pl.DataFrame, descending: bool) -> pl.Series:
    """The rank of each row, the same for equal rows."""
    names = terms.columns
    ordered = terms.with_row_index("at").sort(names, descending=descending, nulls_last=False)
    grows = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in names)
    return ordered.select("at", grows.cast(pl.Int64).cum_sum().alias(RANK)).sort("at")[RANK]
