"""Bitmaps as bytes: Java's layout of 64-bit ones, and equal bytes for equal sets of either."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from keytide.merge.functions.roaring import decode_bitmap64, encode_bitmap32, encode_bitmap64

SETS = {
    "nothing": [],
    "one number": [2**64 - 1],
    "one container": [1, 2, 9],
    "runs": [*range(10, 70_000), 2**63 + 5],
    "bits": [n * 7 % 65_536 for n in range(20_000)],
    "numbers beyond the bits": [n * 2 for n in range(4_096)],
    "up to 4 children": [n << 40 for n in range(4)],
    "up to 16 children": [n << 40 for n in range(16)],
    "up to 48 children": [n << 40 for n in range(48)],
    "up to 256 children": [n << 40 for n in range(256)],
    "children of children": [a << 56 | b << 32 | c << 16 for a in (0, 9) for b in (0, 1, 9)
                             for c in range(20)],
}  # fmt: skip


@pytest.mark.parametrize("numbers", SETS.values(), ids=SETS)
def test_set_survives_the_way_through_bytes(numbers: Sequence[int]) -> None:
    assert decode_bitmap64(encode_bitmap64(BitMap64(numbers))) == BitMap64(numbers)


@given(numbers=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 2**18)))
def test_any_set_survives_the_way_through_bytes(numbers: list[int]) -> None:
    data = encode_bitmap64(BitMap64(numbers))
    assert decode_bitmap64(data) == BitMap64(numbers)
    assert encode_bitmap64(decode_bitmap64(data)) == data


# Runs of one, two or many numbers, about as long as the same numbers one by one.
RUNS = st.lists(st.tuples(st.integers(0, 80), st.sampled_from([1, 2, 3, 4, 4_000])), max_size=6)


@pytest.mark.parametrize(
    ("kind", "encode"), [(BitMap, encode_bitmap32), (BitMap64, encode_bitmap64)], ids=["32", "64"]
)
@given(runs=RUNS, singles=st.integers(0, 5_000))
def test_equal_sets_have_equal_bytes_however_they_were_made(
    kind: type[BitMap | BitMap64],
    encode: Callable[[BitMap | BitMap64], bytes],
    runs: list[tuple[int, int]],
    singles: int,
) -> None:
    numbers = [n for first, count in runs for n in range(first * 9, first * 9 + count)]
    numbers += range(0, 2 * singles, 2)
    optimized_between = kind()
    for number in range(0, len(numbers), 7):
        optimized_between.update(numbers[number : number + 7])
        optimized_between.run_optimize()
    data = encode(kind(numbers))
    assert encode(optimized_between) == data
    assert kind is BitMap64 or BitMap.deserialize(data) == BitMap(numbers)


def test_bytes_are_those_of_the_layout() -> None:
    written = encode_bitmap64(BitMap64([1, 2, 1 << 16]))
    assert written.hex(" ") == (
        "01 02 00 00 00 00 00 00 00"  # not empty, two keys
        " 00 02 00 05 00 00 00 00 00 00 00 01 00"  # a node of two children, a prefix of five bytes
        " 04 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"  # leaves
        " 04 00 00 00 00 00 00 00 00 01 01 00 00 00 00 00 00 00"
        " 01 00 00 00 fe 02 00 00 00"  # one array of two containers
        " 01 02 02 00 00 00 01 00 02 00 01 02 01 00 00 00 00 00"  # 1 and 2; 0
        " 02 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00"
    )


def test_container_whose_kind_does_not_suit_its_cardinality_is_read() -> None:
    numbers = encode_bitmap64(BitMap64([3, 5]))
    head, tail = numbers[: numbers.index(b"\xfe") + 5], numbers[-16:]
    bits = ((1 << 3) | (1 << 5)).to_bytes(8192, "little")
    as_bits = head + b"\x01\x01\x02\x00\x00\x00" + bits + tail
    assert decode_bitmap64(as_bits) == BitMap64([3, 5])
    many = b"".join(n.to_bytes(2, "little") for n in range(5_000))
    as_numbers = head + b"\x01\x02" + (5_000).to_bytes(4, "little") + many + tail
    assert decode_bitmap64(as_numbers) == BitMap64(range(5_000))


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x00\xff", b"\x07" * 40, BitMap64([1]).serialize()]
)
def test_bytes_that_are_no_set_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_bitmap64(data)


def test_cut_set_is_refused_wherever_it_is_cut() -> None:
    whole = encode_bitmap64(BitMap64([1, 1 << 16, 1 << 40]))
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r"."):
            decode_bitmap64(whole[:length])
