"""The places of rows in the files of a key index, each as one number, and sorted by file."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from keytide.key_index.keys import Numbers

__all__ = ["by_name", "place_numbers", "split_places"]

_POSITION_BITS = 40


def place_numbers(files: Numbers, positions: Numbers) -> Numbers:
    """The number of each place. It sorts by file, and in a file by position."""
    return files << _POSITION_BITS | positions


def split_places(places: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers of the files, and the positions in them."""
    return places >> _POSITION_BITS, places & ((1 << _POSITION_BITS) - 1)


def by_name(files: Numbers, positions: Numbers, names: Mapping[int, str]) -> dict[str, Numbers]:
    """The positions in each file, ascending. Files are in the order of their numbers."""
    files, positions = split_places(np.sort(place_numbers(files, positions)))
    starts = np.flatnonzero(np.diff(files, prepend=-1))
    spans = pairwise([*starts.tolist(), len(files)])
    return {names[int(files[start])]: positions[start:end] for start, end in spans}
