"""The layers in which a write stores its versions, to be merged one after the other.

A run replaces its rows in every later merge, in which older versions can appear below it. Usually
one row per key can do that. It cannot if a version has an effect on older ones that an aggregate
would lose (a -D that removes the row, followed by an add, or a retract of something that only older
versions contain). Then the versions are stored in several layers. Each one is a sorted run, and any
engine of the format merges them in order.

If versions must be kept separately, because a late one may belong between them, a layer has one
version of each key, out of those that are needed for a row.

Law: for any stored versions, merging the layers on top of them gives the same result as merging the
versions themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from keytide.merge.engine import MergeEngine
from keytide.merge.windows import KeySlices, Marks

__all__ = ["layers"]


def layers(versions: pl.DataFrame, engine: MergeEngine, key: tuple[str, ...]) -> list[pl.DataFrame]:
    """The layers of some versions, lowest first, each in key order with at most one row per key.

    Usually there is one. REQUIRES what `engine.merge` requires. Raises what it raises.
    """
    if engine.why_kept_apart is None:
        return list(_layers(versions, engine, key))
    few, whole = engine.thinned(versions)
    # For keys that need all their versions, as few layers as possible, because there can be many
    # versions.
    return [*_one_by_one(few, key), *(_layers(whole, engine, key) if whole.height else ())]


def _layers(
    versions: pl.DataFrame, engine: MergeEngine, key: tuple[str, ...]
) -> Iterator[pl.DataFrame]:
    while (starts := engine.layer_starts(versions)) is not None and starts.any():
        # A layer has the versions of each key up to its first mark. The rest is checked again,
        # because marks are valid only for a merge that begins there.
        lowest = _before_first(starts, KeySlices.of(versions, key))
        yield engine.merge(versions.filter(pl.Series(lowest)))
        versions = versions.filter(pl.Series(~lowest))
    yield engine.merge(versions)


def _before_first(starts: Marks, slices: KeySlices) -> Marks:
    """The versions of each key before the first marked one, or all if none is marked."""
    first = slices.first_where(starts)
    ends = np.where(first < 0, slices.ends, first)
    before: Marks = slices.rows < ends[slices.keys]
    return before


def _one_by_one(versions: pl.DataFrame, key: tuple[str, ...]) -> Iterator[pl.DataFrame]:
    """The first version of each key, then the second one, and so on."""
    slices = KeySlices.of(versions, key)
    places = slices.rows - slices.starts[slices.keys]
    for place in range(int(slices.lengths.max(initial=0))):
        yield versions.filter(pl.Series(places == place))
