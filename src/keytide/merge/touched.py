"""Merge only what was touched.

Most keys of a table occur in one run only. They pass through as they are; the rest, found by
looking the small runs' keys up in the largest, is sorted and merged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.merge.engine import MergeEngine
from keytide.merge.order import MergeOrder, is_searchable

__all__ = ["merge_runs"]


def merge_runs(
    runs: Sequence[pl.DataFrame],
    order: MergeOrder,
    engine: MergeEngine,
    *,
    arrival_decides: bool = False,
) -> list[pl.DataFrame]:
    """Merge sorted runs of one key range; the pieces together hold one row per key.

    REQUIRES: each run is sorted by key with one row per key; runs come oldest first.
    Rows of kind -U and -D are kept. One piece is in key order, the keys of two are in no order.
    """
    filled = [run for run in runs if run.height]
    if len(filled) <= 1:
        return filled
    largest = max(range(len(filled)), key=lambda i: filled[i].height)
    others = [run for i, run in enumerate(filled) if i != largest]
    base = filled[largest]
    touched = _touched(base, others, order.key)
    if arrival_decides and engine.newest_decides and largest == 0:
        again = base.clear()  # older than all that touches it, so nothing of it is needed
    else:
        again = base.filter(touched)
    versions = pl.concat([*filled[:largest], again, *filled[largest + 1 :]])
    versions = order.sort(versions, arrival_decides=arrival_decides)
    is_all = bool(touched.all())
    merged = engine.merge(versions, in_key_order=is_all)
    if is_all:
        return [merged]
    return [base.filter(~touched), merged]


def _touched(base: pl.DataFrame, others: Sequence[pl.DataFrame], key: tuple[str, ...]) -> pl.Series:
    """Which rows of `base` have their key in one of the others."""
    if len(key) == 1 and is_searchable(base[key[0]]):
        values = base[key[0]].to_physical().to_numpy()
        mask = np.zeros(len(values), dtype=bool)
        for other in others:
            _mark(mask, values, other[key[0]].to_physical().to_numpy())
        return pl.Series(mask)
    wanted = pl.concat([other.select(key) for other in others]).unique()
    positions = base.select(key).with_row_index("_POSITION")
    hits = positions.join(wanted, on=list(key), how="semi", nulls_equal=True)["_POSITION"]
    mask = np.zeros(base.height, dtype=bool)
    mask[hits.to_numpy()] = True
    return pl.Series(mask)


def _mark(
    mask: npt.NDArray[np.bool_], values: npt.NDArray[np.int64], keys: npt.NDArray[np.int64]
) -> None:
    # Both sides are sorted, so the binary searches walk through memory in order.
    positions = np.searchsorted(values, keys)
    inside = positions < len(values)
    positions, keys = positions[inside], keys[inside]
    mask[positions[values[positions] == keys]] = True
