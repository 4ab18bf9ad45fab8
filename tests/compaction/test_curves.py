"""Curves through several dimensions: every place once, and near places near."""

from __future__ import annotations

import numpy as np
import pytest

from keytide.compaction.append_tables import hilbert, z_order


def every_place(dimensions: int, bits: int) -> list[np.ndarray]:
    grid = np.indices([1 << bits] * dimensions, np.uint64)
    return [axis.ravel() for axis in grid]


@pytest.mark.parametrize("curve", [z_order, hilbert])
@pytest.mark.parametrize(("dimensions", "bits"), [(1, 5), (2, 4), (3, 3), (4, 2), (2, 1)])
def test_curve_passes_every_place_once(curve, dimensions: int, bits: int) -> None:
    numbers = curve(every_place(dimensions, bits), bits)
    assert sorted(numbers.tolist()) == list(range(1 << (dimensions * bits)))


@pytest.mark.parametrize(("dimensions", "bits"), [(2, 4), (3, 3), (4, 2)])
def test_hilberts_curve_never_jumps(dimensions: int, bits: int) -> None:
    places = every_place(dimensions, bits)
    along = np.argsort(hilbert(places, bits))
    steps = sum(abs(np.diff(axis[along].astype(np.int64))) for axis in places)
    assert set(steps.tolist()) == {1}


def test_z_order_takes_turns_in_bits() -> None:
    one, other = np.array([0b10, 0b01], np.uint64), np.array([0b01, 0b11], np.uint64)
    assert z_order([one, other], 2).tolist() == [0b1001, 0b0111]
