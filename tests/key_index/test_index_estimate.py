"""Sizes of indexes of keys, told before there is one."""

from __future__ import annotations

import io

import numpy as np
import pytest

import keytide as kt
from keytide.key_index.indexed_keys import Entries, KeyHashes, sizes_of
from keytide.key_index.sorted_runs import Run, write_run


@pytest.mark.parametrize(("keys", "files", "spread"), [(300, 1, 0), (70_000, 300, 1 << 20)])
def test_estimate_is_what_a_run_takes(keys: int, files: int, spread: int) -> None:
    rng = np.random.default_rng(1)
    heads = np.sort(rng.integers(0, 1 << 64, keys, np.uint64))
    count = np.arange(keys)
    hashes = KeyHashes(heads, np.zeros(keys, np.uint32))
    entries = Entries(hashes, count % files, count, count * spread // keys)
    output = io.BytesIO()
    write_run([entries], output)
    (estimated, *_) = sizes_of(keys, 1, files, (spread.bit_length() + 7) // 8)
    run = Run.of(np.frombuffer(output.getvalue(), np.uint8), "run")
    (block,) = run.blocks
    assert abs(block.end - block.start - estimated.bytes) < 8 * 5


def test_estimate_of_pinot_is_its_own() -> None:
    """Its test: a key of 16 bytes and its default comparison, ten thousand times."""
    assert sizes_of(10_000, 1, 1, 8, key_bytes=16)[-1].bytes == 1_080_000


@pytest.mark.parametrize(
    ("given", "expected"),
    [((0, 1, 1, 8), "keys is 0"), ((1, 0, 1, 8), "buckets is 0"), ((1, 1, 1, 9), "8 or less")],
)
def test_number_that_no_table_has_is_refused(given: tuple[int, ...], expected: str) -> None:
    with pytest.raises(kt.InvalidError, match=expected):
        sizes_of(*given)
