"""Layers of versions: merging of keys in several runs, and what a write stores of each key.

Most keys of a table occur in one run only, and pass through unchanged. The others are found by
looking up the keys of the small runs in the largest one. Only they are sorted and merged.

A write stores its versions in layers, to be merged one after the other. A run replaces its rows in
every later merge, in which older versions can appear below it. Usually one row per key can do that.
It cannot if a version has an effect on older ones that an aggregate would lose (a -D that removes
the row, followed by an add, or a retract of something that only older versions contain). Then the
versions are stored in several layers. Each one is a sorted run, and any engine of the format merges
them in order.

If versions must be kept separately, because a late one may belong between them, a layer has one
version of each key, out of those that are needed for a row.

Law: for any stored versions, merging the layers on top of them gives the same result as merging the
versions themselves.

The second law is about the replacement of stored versions by merged ones. Law: with any stored
older versions, and any later writes including late versions, a table in which merged versions
replaced others has the same rows as without the replacement. Engines say when this is true
(`why_kept_apart`, `needs_oldest`). What depends on the given versions is checked when they are
merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from keytide.base.dataclass import dataclass
from keytide.base.process import scratch
from keytide.merge.engine import MergeEngine
from keytide.merge.order import MergeOrder, is_searchable, physical
from keytide.merge.windows import KeySlices
from keytide.options import keys

# -- layers of a write -----------------------------------------------------------------------------


def layers(versions: pl.DataFrame, engine: MergeEngine, key: tuple[str, ...]) -> list[pl.DataFrame]:
    """The layers of some versions, lowest first, each in key order with at most one row per key.

    Usually there is one. REQUIRES what `engine.merge` requires. Raises what it raises.
    """
    if engine.why_kept_apart is None:
        return list(_layers(versions, engine, key))
    few, whole = engine.thinned(versions)
    # The first version of each key, then the second one, and so on.
    slices = KeySlices.of(few, key)
    places = slices.rows - slices.starts[slices.keys]
    count = int(slices.lengths.max(initial=0))
    single = [few.filter(pl.Series(places == place)) for place in range(count)]
    # For keys that need all their versions, as few layers as possible, because there can be many
    # versions.
    return [*single, *(_layers(whole, engine, key) if whole.height else ())]


def _layers(
    versions: pl.DataFrame, engine: MergeEngine, key: tuple[str, ...]
) -> Iterator[pl.DataFrame]:
    while (starts := engine.layer_starts(versions)) is not None and starts.any():
        # A layer has the versions of each key up to its first mark, or all if none is marked. The
        # rest is checked again, because marks are valid only for a merge that begins there.
        slices = KeySlices.of(versions, key)
        first = slices.first_where(starts)
        ends = np.where(first < 0, slices.ends, first)
        lowest = slices.rows < ends[slices.keys]
        yield engine.merge(versions.filter(pl.Series(lowest)))
        versions = versions.filter(pl.Series(~lowest))
    yield engine.merge(versions)


# -- replacement of stored versions ----------------------------------------------------------------


class OlderVersionsNeededError(Exception):
    """Versions cannot be merged without older versions of their key, which are not available."""


@dataclass(frozen=True)
class PartialMerge:
    """Merges versions above older ones into versions that have the same effect on these."""

    engine: MergeEngine

    @property
    def newest_decides(self) -> bool:
        """See `MergeEngine`."""
        return self.engine.newest_decides

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """See `MergeEngine`. Raises `OlderVersionsNeededError` if one version cannot replace
        several.
        """
        starts = self.engine.layer_starts(versions)
        if starts is not None and starts.any():
            raise OlderVersionsNeededError
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


# -- merging of keys in several runs ---------------------------------------------------------------


# With up to this many flags per row, of one byte each, the flags take less memory than the rows.
_RANGE_TIMES_ROWS_MAX = 16


def merge_runs(
    runs: Sequence[pl.DataFrame],
    order: MergeOrder,
    engine: MergeEngine | PartialMerge,
    *,
    arrival_decides: bool = False,
) -> list[pl.DataFrame]:
    """Merge sorted runs of one key range. Together, the returned pieces have one row per key.

    REQUIRES: each run is sorted by key with one row per key, and runs are ordered from oldest to
    newest. Rows of kind -U and -D are kept. A single piece is in key order, but two pieces have no
    key order between them.
    """
    filled = [run for run in runs if run.height]
    if len(filled) <= 1:
        return filled
    if arrival_decides and engine.newest_decides:
        newest = _newest(filled, order.key)
        if newest is not None:
            return newest
    # The largest run is the one that a level already contains. Newer runs are small in comparison.
    largest = max(range(len(filled)), key=lambda i: (filled[i].height, i))
    others = [run for i, run in enumerate(filled) if i != largest]
    base = filled[largest]
    if arrival_decides and engine.newest_decides and base is filled[-1]:
        # Any other run with its keys is older, so it passes through unchanged.
        older = [without_keys(run, [base], order.key) for run in others]
        return [*merge_runs(older, order, engine, arrival_decides=True), base]
    # Rows of the largest run whose key is in no other run are not copied, sorted or merged.
    touched = _rows_with_keys_in(base, others, order.key)
    if arrival_decides and engine.newest_decides and largest == 0:
        again = base.clear()  # older than all touched keys, so nothing of it is needed
    else:
        again = base.filter(touched)
    # In one chunk, because rows are looked up in it.
    versions = pl.concat([*filled[:largest], again, *filled[largest + 1 :]], rechunk=True)
    versions = order.sort(versions, arrival_decides=arrival_decides)
    is_all = bool(touched.all())
    merged = engine.merge(versions, in_key_order=is_all)
    if is_all:
        return [merged]
    return [base.filter(~touched), merged]


def _newest(runs: Sequence[pl.DataFrame], key: tuple[str, ...]) -> list[pl.DataFrame] | None:
    """The rows of each run whose key is in no later run, without a sort or lookup.

    None for keys that are not plain integers, or in a range much larger than the runs.
    """
    columns = [run[key[0]] for run in runs]
    if len(key) > 1 or not all(map(is_searchable, columns)):
        return None
    values = [physical(column).to_numpy() for column in columns]
    low = min(int(each[0]) for each in values)
    high = max(int(each[-1]) for each in values)
    if high - low > _RANGE_TIMES_ROWS_MAX * sum(map(len, values)):
        return None

    # A flag for each offset in the range says whether a later run has its key.
    offsets = [np.subtract(each, low, dtype=np.int64, casting="unsafe") for each in values]
    seen = np.zeros(high - low + 1, dtype=bool)
    pieces = []
    for number in reversed(range(len(runs))):
        run, places = runs[number], offsets[number]
        outlived = seen[places]
        pieces.append(run.filter(pl.Series(~outlived)) if outlived.any() else run)
        if number:  # nothing is older than the first
            seen[places] = True
    return [piece for piece in reversed(pieces) if piece.height]


def without_contained(
    runs: Sequence[pl.DataFrame], containing: Sequence[int], key: tuple[str, ...]
) -> list[pl.DataFrame]:
    """The runs without versions that are already included in a version of another run.

    `containing` are positions of runs: the first of them that has a key includes the values of
    later runs for that key.
    """
    counted = list(runs)
    for place, run in enumerate(containing):
        before = [runs[other] for other in containing[:place] if runs[other].height]
        if before and counted[run].height:
            counted[run] = counted[run].filter(~_rows_with_keys_in(counted[run], before, key))
    return counted


def without_outlived(
    runs: Sequence[pl.DataFrame], upper: Sequence[int], key: tuple[str, ...], is_dead: str
) -> list[pl.DataFrame]:
    """The runs without deletes that are hidden and no longer count.

    Column `is_dead` marks versions that are hidden from readers. If their key has a visible version
    above level 0, that version came later. `upper` are the positions of these runs.
    """
    hidden = [run.filter(pl.col(is_dead)) for run in (runs[place] for place in upper)]
    if not any(rows.height for rows in hidden):
        return list(runs)
    wanted = pl.concat([rows.select(key) for rows in hidden if rows.height])
    shown = [with_keys(runs[place].filter(~pl.col(is_dead)).select(key), wanted) for place in upper]
    if not any(rows.height for rows in shown):
        return list(runs)
    counted = list(runs)
    for place, rows in zip(upper, hidden, strict=True):
        if rows.height:
            is_outlived = pl.col(is_dead) & _rows_with_keys_in(runs[place], shown, key)
            counted[place] = runs[place].filter(~is_outlived)
    return counted


def with_keys(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """The rows whose key is among `keys`, which are frames of the key columns, in order."""
    return (
        rows.filter(_rows_with_keys_in(rows, [keys], tuple(keys.columns))) if rows.height else rows
    )


def without_keys(
    rows: pl.DataFrame, others: Sequence[pl.DataFrame], key: tuple[str, ...]
) -> pl.DataFrame:
    """The rows whose key is in none of the others."""
    filled = [other for other in others if other.height]
    return rows.filter(~_rows_with_keys_in(rows, filled, key)) if rows.height and filled else rows


def _rows_with_keys_in(
    base: pl.DataFrame, others: Sequence[pl.DataFrame], key: tuple[str, ...]
) -> pl.Series:
    """Which rows of `base` have their key in one of the others."""
    wanted = pl.concat([other[[*key]] for other in others])
    if len(key) == 1:
        return base[key[0]].is_in(wanted[key[0]].implode(), nulls_equal=True)
    positions = base.select(key).with_row_index(_POSITION)
    hits = positions.join(wanted.unique(), on=list(key), how="semi", nulls_equal=True)[_POSITION]
    mask = np.zeros(base.height, dtype=bool)
    mask[hits.to_numpy()] = True
    return pl.Series(mask)


_POSITION = scratch("position")
