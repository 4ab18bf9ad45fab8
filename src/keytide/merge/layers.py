"""What a write stores of the versions that it brings: layers, to be merged one after the other.

A run stands for its rows in every later merge, below which older versions may turn up. Mostly one
row a key can do that. Where it cannot, because a version does something to the older ones that its
fold with others would forget (a -D that removes the row, followed by an add; a retract of what only
older versions hold), the versions are stored in several layers. Each is a sorted run of its own,
and any engine of the format merges them in their order.

Where versions have to stay apart, for one that comes late may belong between them, a layer has one
version of each key, of those that a row still needs.

Law: whatever is stored already, merging the layers of some versions on top of it gives what
merging the versions themselves gives.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from keytide.merge.engine import MergeEngine
from keytide.merge.slices import KeySlices, Marks

__all__ = ["layers"]


def layers(versions: pl.DataFrame, engine: MergeEngine, key: tuple[str, ...]) -> list[pl.DataFrame]:
    """The layers of some versions, lowest first, each in key order with one row per key at most.

    As a rule there is one. REQUIRES what `engine.merge` requires. Raises what it raises.
    """
    if engine.why_kept_apart is None:
        return list(_layers(versions, engine, key))
    few, whole = engine.thinned(versions)
    # Of keys that need all their versions a write stores as few as it can: there may be any number.
    return [*_one_by_one(few, key), *(_layers(whole, engine, key) if whole.height else ())]


def _layers(
    versions: pl.DataFrame, engine: MergeEngine, key: tuple[str, ...]
) -> Iterator[pl.DataFrame]:
    while (starts := engine.layer_starts(versions)) is not None and starts.any():
        # All keys at once: a layer has the versions of each key up to its first mark, and what is
        # left is looked at again, for marks hold only for a merge that begins there.
        lowest = _before_first(starts, KeySlices.of(versions, key))
        yield engine.merge(versions.filter(pl.Series(lowest)))
        versions = versions.filter(pl.Series(~lowest))
    yield engine.merge(versions)


def _before_first(starts: Marks, slices: KeySlices) -> Marks:
    """The versions of each key before the first marked one, all where none is marked."""
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
