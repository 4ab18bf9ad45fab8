"""Bloom filters and the files they lie in, byte by byte as Paimon's Java writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.errors import DataError
from keytide.format.file_index import (
    bloom_filter,
    decode_file_index,
    encode_file_index,
    may_hold,
    value_hashes,
)
from type_values import kind_of

DIGITS = "0123456789abcdef"

# Printed by FastHash of paimon-bundle 1.3.1; numbers of DATE, TIME and TIMESTAMP are units.
HASHES = [
    ("STRING", "", 0xEF46DB3751D8E999), ("STRING", "a", 0xD24EC4F1A98C6E5B),
    ("STRING", "abc", 0x44BC2CF5AD770999), ("STRING", "abcd", 0xDE0327B0D25D92CC),
    ("STRING", "abcdefg", 0x1860940E2902822D), ("STRING", "abcdefgh", 0x3AD351775B4634B7),
    ("STRING", "abcdefghi", 0x27F1A34FDBB95E13), ("STRING", "abcdefghijkl", 0x4B09B7D3A233D4B3),
    ("STRING", 2 * DIGITS, 0x642A94958E71E6C5), ("STRING", 2 * DIGITS + "X", 0xCE5A102349511ECE),
    ("STRING", "äöü€😀", 0x40E6D014032167FA),
    ("STRING", 7 * DIGITS + DIGITS[:12], 0xC90958AAEE898104),
    ("BYTES", b"\x00\xff\x80", 0x432ED2376781F717),
    ("BIGINT", 0, 0), ("BIGINT", 1, 0x5BCA7C69B794F8CE), ("BIGINT", -1, 0x5BCA868437950D03),
    ("BIGINT", 42, 0x0F3DB82F1E7B6F7A), ("BIGINT", 2**63 - 1, 0x81AD52718398E837),
    ("BIGINT", -(2**63), 0x3BE7D0F7780DE548), ("BIGINT", 1 << 40, 0x539D165267021515),
    ("INT", 1, 0x5BCA7C69B794F8CE), ("INT", -1, 0x5BCA868437950D03),
    ("INT", -(2**31), 0x111EC0FD6AA8626C), ("TINYINT", -7, 0x828A41E6051483A6),
    ("SMALLINT", -300, 0x9BEB365BB7D66659), ("DATE", -1, 0x5BCA868437950D03),
    ("TIME(3)", 86_399_999, 0x0697DB4671336CB5),
    ("FLOAT", 0.0, 0), ("FLOAT", -0.0, 0x111EC0FD6AA8626C), ("FLOAT", 1.5, 0xAD39E1C6B4E29348),
    ("FLOAT", float("nan"), 0x67C27C6D9936AE63), ("FLOAT", -2.0, 0x2CC4D09BB5543100),
    ("DOUBLE", -0.0, 0x3BE7D0F7780DE548), ("DOUBLE", 1.5, 0x3DDDFF49A005B9C8),
    ("DOUBLE", float("nan"), 0x13D2D3F2CC0E846E), ("DOUBLE", -2.0, 0x1DF3E87BBC06F2A4),
    ("TIMESTAMP(3)", -1, 0x5BCA868437950D03), ("TIMESTAMP(6)", -1, 0x5BCA868437950D03),
    ("TIMESTAMP(9)", -1, 0x5BCA868437950D03), ("TIMESTAMP_LTZ(6)", 1_234_567, 0xF815136BEFC3C4E4),
]  # fmt: skip

# Two columns of 20 values, 'items' = 20 and 'fpp' = 0.05, by the same release.
FILTERS = {
    "s": bytes.fromhex("00000004ac8f0a9a4c4d5105574c68bfe3b0e1a2"),
    "größe": bytes.fromhex("0000000499b09af3b5c2cae3a3462f3f13450f8c"),
}
INDEX_FILE = bytes.fromhex(
    "00054e4ed01a35ae00000001000000580000000200017300000001000c626c6f6f6d2d66696c746572000000580000"
    "001400076772c3b6c39f6500000001000c626c6f6f6d2d66696c7465720000006c0000001400000000"
    "00000004ac8f0a9a4c4d5105574c68bfe3b0e1a20000000499b09af3b5c2cae3a3462f3f13450f8c"
)


@pytest.mark.parametrize(("text", "value", "expected"), HASHES)
def test_values_have_the_hashes_of_the_format(text: str, value: Any, expected: int) -> None:
    kind = kind_of(text)
    if text.startswith(("DATE", "TIME")):
        wide = text.startswith("TIMESTAMP")
        plain = pa.array([None, value, value], pa.int64() if wide else pa.int32())
        column = plain.cast(kind.to_arrow())
    else:
        column = pa.array([None, value, value], kind.to_arrow())
    assert value_hashes(column, kind).tolist() == [expected, expected]


def test_filters_are_those_of_other_engines() -> None:
    texts = pa.array([*(f"key-{i}" for i in range(20)), None])
    numbers = pa.array([i * i - 7 for i in range(20)])
    found = {
        "s": bloom_filter(value_hashes(texts, kind_of("STRING")), 20, 0.05),
        "größe": bloom_filter(value_hashes(numbers, kind_of("BIGINT")), 20, 0.05),
    }
    assert found == FILTERS


@pytest.mark.parametrize(
    ("items", "fpp", "size", "functions"),
    [
        (1, 0.1, 5, 6), (1, 0.01, 6, 11), (1, 0.9, 5, 6), (7, 0.1, 9, 4), (7, 0.9, 5, 1),
        (100, 0.01, 124, 7), (1000, 0.1, 604, 3), (1000, 0.001, 1802, 10),
        (1_000_000, 0.1, 599_071, 3), (1_000_000, 0.5, 180_341, 1),
    ],
)  # fmt: skip
def test_filters_are_as_large_as_those_of_other_engines(
    items: int, fpp: float, size: int, functions: int
) -> None:
    made = bloom_filter(np.array([], np.uint64), items, fpp)
    assert (len(made), made[3]) == (size, functions)


def test_index_file_of_another_engine_is_read() -> None:
    found = decode_file_index(INDEX_FILE, "x.index")
    assert found == {name: {"bloom-filter": data} for name, data in FILTERS.items()}
    for column, value in (("s", "key-7"), ("größe", 93)):
        kind = kind_of("STRING" if column == "s" else "BIGINT")
        assert may_hold(found[column]["bloom-filter"], value_hashes(pa.array([value]), kind))


@given(st.sets(st.text() | st.text("ab", max_size=80), max_size=60), st.text())
def test_filter_never_denies_what_it_holds(values: set[str], other: str) -> None:
    kind = kind_of("STRING")
    made = bloom_filter(value_hashes(pa.array(values, pa.string()), kind), max(1, len(values)), 0.1)
    for value in values:
        assert may_hold(made, value_hashes(pa.array([other, value]), kind))


def test_filter_takes_few_others_for_its_own() -> None:
    kind = kind_of("BIGINT")
    hashes = value_hashes(pa.array(range(10_000)), kind)
    made = bloom_filter(hashes, 10_000, 0.01)
    others = value_hashes(pa.array(range(10_000, 20_000)), kind)
    assert 20 < sum(may_hold(made, others[i : i + 1]) for i in range(10_000)) < 300


names = st.text(max_size=5)


@given(st.dictionaries(names, st.dictionaries(names, st.binary(min_size=1), max_size=2)))
def test_index_file_is_read_as_it_was_written(indexes: dict[str, dict[str, bytes]]) -> None:
    found = decode_file_index(encode_file_index(indexes), "x.index")
    assert found == {column: kinds for column, kinds in indexes.items() if kinds}


def test_damage_to_an_index_file_is_noticed_or_does_no_harm() -> None:
    indexes = {name: {"bloom-filter": body} for name, body in FILTERS.items()}
    whole = encode_file_index(indexes)
    noticed = 0
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert decode_file_index(bytes(flipped), "x.index") == indexes
        except DataError as error:
            noticed += "file index x.index" in str(error)
    assert noticed > len(whole) * 7  # all but some bits of the seal itself and of its place
    for end in range(len(whole)):
        with pytest.raises(DataError, match=r"file index x\.index"):
            decode_file_index(whole[:end], "x.index")
