"""Hash index files: sets of hashes, sorted when they are read, whatever their order in the file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.errors import DataError
from keytide.format.index_files import Hashes, decode_hashes, encode_hashes, with_hashes

LEAST, MOST = -(1 << 31), (1 << 31) - 1
sets = st.lists(st.sampled_from([LEAST, MOST, 0, -1]) | st.integers(LEAST, MOST), max_size=12)


def array(hashes: list[int]) -> Hashes:
    return np.array(hashes, np.int32)


@given(known=sets, new=sets)
def test_hashes_are_united_and_sorted(known: list[int], new: list[int]) -> None:
    together = with_hashes(array(sorted(set(known))), array(new))
    assert together.tolist() == sorted({*known, *new})


@given(hashes=sets)
def test_file_of_any_order_is_read_as_a_sorted_set(hashes: list[int]) -> None:
    data = encode_hashes(array(hashes))
    assert len(data) == 4 * len(hashes)
    assert decode_hashes(data, "index-1", len(hashes)).tolist() == sorted(set(hashes))


def test_torn_file_is_named() -> None:
    with pytest.raises(
        DataError, match=r"index-1: expected 8 bytes for an index of 2 keys, found 7"
    ):
        decode_hashes(b"1234567", "index-1", 2)
