"""Comparison of two versions of a key by a table's sequence fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from keytide.snapshot.view import TableView

__all__ = ["Rows", "is_older", "orders_of"]

Rows: TypeAlias = "pa.RecordBatch | pl.DataFrame"


def orders_of(view: TableView) -> Sequence[tuple[str, ...]]:
    """The columns that order versions, or one list per producer if each has its own."""
    order = view.options.sequence_field
    if view.kind.has_key_index:
        return [(name,) for name in order]
    return [order] if order else []


def is_older(new: Rows, old: Rows, order: Sequence[str], *, descends: bool) -> pl.Series:
    """Which rows precede others in an order of several columns, in which NULL is lowest."""
    comes_before, is_decided = pl.repeat(False, len(pl.Series(new[order[0]])), eager=True), None
    for name in order:
        one, other = pl.Series(new[name]), pl.Series(old[name])
        higher, lower = (other, one) if descends else (one, other)
        before = (higher < lower).fill_null(False) | (one.is_null() & other.is_not_null())
        after = (lower < higher).fill_null(False) | (other.is_null() & one.is_not_null())
        open_ = ~is_decided if is_decided is not None else pl.repeat(True, len(one), eager=True)
        comes_before |= before & open_
        is_decided = before | after if is_decided is None else is_decided | before | after
    return comes_before
