"""Space-filling curves: map points in several dimensions to numbers, close points to close numbers.

Morton's Z-order interleaves the bits of the dimensions. Hilbert's curve never jumps: consecutive
points on it are neighbors. Its numbers are computed as in J. Skilling, "Programming the Hilbert
curve" (AIP Conference Proceedings 707, 2004).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["BITS_MAX", "hilbert", "z_order"]

Places = npt.NDArray[np.uint64]

BITS_MAX = 63
"""The maximum number of bits of a number, for all dimensions together."""


def z_order(dimensions: Sequence[Places], bits: int) -> Places:
    """The number of each point along the Z-order curve. Coordinates are below 2 ** bits."""
    number = np.zeros_like(dimensions[0])
    for bit in reversed(range(bits)):
        for dimension in dimensions:
            number = (number << np.uint64(1)) | ((dimension >> np.uint64(bit)) & np.uint64(1))
    return number


def hilbert(dimensions: Sequence[Places], bits: int) -> Places:
    """The number of each point along Hilbert's curve. Coordinates are below 2 ** bits."""
    axes = [dimension.copy() for dimension in dimensions]
    _unrotate(axes, bits)
    for one, other in itertools.pairwise(axes):
        other ^= one
    flips = np.zeros_like(axes[0])
    for bit in reversed(range(1, bits)):
        flips ^= np.where(_has(axes[-1], bit), np.uint64((1 << bit) - 1), np.uint64(0))
    return z_order([axis ^ flips for axis in axes], bits)


def _unrotate(axes: list[Places], bits: int) -> None:
    """Undo the rotations of the curve, from the coarsest cube to the finest."""
    first = axes[0]
    for bit in reversed(range(1, bits)):
        below = np.uint64((1 << bit) - 1)
        for axis in axes:
            has_bit = _has(axis, bit)
            exchanged = np.where(has_bit, np.uint64(0), (first ^ axis) & below)
            first ^= np.where(has_bit, below, exchanged)
            axis ^= exchanged


def _has(axis: Places, bit: int) -> npt.NDArray[np.bool_]:
    has_bit: npt.NDArray[np.bool_] = (axis >> np.uint64(bit)) & np.uint64(1) == 1
    return has_bit
