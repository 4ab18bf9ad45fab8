"""Joins by key with key semantics: NULL equals NULL, and NaN equals NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import polars as pl

from keytide.base.scratch import scratch

__all__ = ["joined"]


def joined(
    left: pl.DataFrame,
    right: pl.DataFrame,
    key: Sequence[str],
    how: Literal["inner", "left"] = "inner",
    *,
    suffix: str = "_right",
    keeps_order: bool = False,
) -> pl.DataFrame:
    """The rows of both with equal keys. With 'left', also the left rows without a match.

    `keeps_order` keeps the order of the left rows.
    """
    if len(key) == 1 and left.schema[key[0]].is_float():
        # For a single sorted column Polars loses NaN. For several columns it compares rows.
        same = pl.lit(0, pl.Int8).alias(_SAME)
        left, right, key = left.with_columns(same), right.with_columns(same), (*key, _SAME)
    return left.join(
        right,
        on=list(key),
        how=how,
        suffix=suffix,
        nulls_equal=True,
        maintain_order="left" if keeps_order else "none",
    ).drop(_SAME, strict=False)


_SAME = scratch("same")
