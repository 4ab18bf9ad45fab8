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

__all__ = ["cut_at_gaps"]

# A gap is wide if it is at least this part of the range of keys, so a run has at most three.
_WIDE = 1 / 4
# Files of fewer rows would cost readers more than a merge.
_ROWS_MIN = 10_000


def cut_at_gaps(run: pa.Table, key: str) -> list[pa.Table]:
    """The rows of a run, cut where the next key is far away.

    Only integers, dates and timestamps have a distance here. Every part has many rows.
    REQUIRES: the rows are sorted by `key` first, which has no nulls.
    """
    if run.num_rows < 2 * _ROWS_MIN or not _has_distance(run.schema.field(key).type):
        return [run]
    # Distances of 64-bit numbers can exceed 64 bits.
    numbers = pc.cast(run.column(key), pa.int64()).to_numpy().astype(np.float64)
    distances = np.diff(numbers)
    wide = np.flatnonzero(distances > (numbers[-1] - numbers[0]) * _WIDE) + 1
    places = [0]
    for place in wide.tolist():
        if min(place - places[-1], run.num_rows - place) >= _ROWS_MIN:
            places.append(place)
    return [run.slice(a, b - a) for a, b in itertools.pairwise([*places, run.num_rows])]


def _has_distance(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_)
    )
