"""A footer whose seal is damaged is refused, before anything believes what it says."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt
from keytide.format.checksum import BLOCKS_KEY, SEAL_KEY, check_footer


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A data file."""
    folder = tmp_path_factory.mktemp("lake")
    table = kt.connect(folder).create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    table.write([{"k": 1}])
    (path,) = folder.rglob("data-*.parquet")
    return path.read_bytes()


def opened(data: bytes) -> pa.NativeFile:
    return pa.BufferReader(data)


def places_of(data: bytes, text: str) -> range:
    start = data.rindex(text.encode())
    return range(start, start + len(text))


def test_any_bit_of_a_seal_that_flips_is_noticed(stored: bytes) -> None:
    check_footer(opened(stored))
    seal = places_of(stored, SEAL_KEY)
    for place in range(seal.start, seal.stop + len("\x18\x16keytide-crc32:00000000")):
        for bit in range(8):
            damaged = bytearray(stored)
            damaged[place] ^= 1 << bit
            with pytest.raises(OSError, match="checksum of its footer does not match"):
                check_footer(opened(bytes(damaged)))


def test_file_of_another_writer_has_no_seal_and_passes() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"k": [1]}), sink)
    assert BLOCKS_KEY.encode() not in check_footer(opened(sink.getvalue()))


def test_file_of_another_writer_may_hold_the_words_of_a_seal() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"k": [BLOCKS_KEY, SEAL_KEY]}), sink)
    assert BLOCKS_KEY.encode() in check_footer(opened(sink.getvalue()))
