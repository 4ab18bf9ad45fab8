"""Wide gaps in the keys of a sorted run, at which it is cut into files.

Spark packs the ends of several input files into one task. If these files are sorted, the run of the
task has few keys, which are far apart. As one file, it would overlap with everything between them,
and readers would have to merge that. As several files, it overlaps with nothing.
"""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["DIVISIBLE_ROWS", "lengths_between_gaps"]

# A gap is wide if it is at least this part of the range of keys, so a run has at most three.
_WIDE = 1 / 4
# Files of fewer rows would cost readers more than a merge.
_ROWS_MIN = 10_000
DIVISIBLE_ROWS = 2 * _ROWS_MIN
"""Runs with fewer rows are never cut."""


def lengths_between_gaps(keys: pa.ChunkedArray) -> list[int]:
    """The numbers of rows of the parts of a run, which is cut where the next key is far away.

    Only integers, dates and timestamps have a distance here. Every part has many rows. REQUIRES:
    `keys` are the first key column of the run, in ascending order and without nulls.
    """
    count = len(keys)
    if count < DIVISIBLE_ROWS or not _has_distance(keys.type):
        return [count]
    # Distances of 64-bit numbers can exceed 64 bits.
    numbers = pc.cast(keys, pa.int64()).to_numpy().astype(np.float64)
    wide = np.flatnonzero(np.diff(numbers) > (numbers[-1] - numbers[0]) * _WIDE) + 1
    cuts = [0]
    for cut in wide.tolist():
        if min(cut - cuts[-1], count - cut) >= _ROWS_MIN:
            cuts.append(cut)
    return [end - start for start, end in itertools.pairwise([*cuts, count])]


def _has_distance(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_)
    )
