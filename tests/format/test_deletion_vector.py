from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from keytide.errors import DataError, InvalidError, UnsupportedError
from keytide.format.index_files import (
    VectorPlace,
    VectorRange,
    dead_in_one,
    dead_positions,
    encode_vector,
    live_rows,
    read_vectors,
    write_vectors,
)
from new_tables import empty_store

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())
VECTORS: list[dict[str, Any]] = GOLDEN["deletion_vectors"]
INDEX_FILES: list[dict[str, Any]] = GOLDEN["index_files"]


def bitmap(vector: dict[str, Any]) -> BitMap | BitMap64:
    made = BitMap64() if vector["bitmap64"] else BitMap()
    made.update(vector.get("positions", ()))
    for start, end in vector.get("ranges_half_open", ()):
        made.add_range(start, end)
    return made


def ranges(index_file: dict[str, Any]) -> list[VectorRange]:
    return [
        VectorRange(r["f0"], r["f1"], r["f2"], r.get("_CARDINALITY"))
        for r in index_file.get("ranges", ())
    ]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_golden_vector_is_written_with_the_same_bytes(vector: dict[str, Any]) -> None:
    data, (place,) = write_vectors({"f": bitmap(vector)})
    assert data.hex() == "01" + vector["bytes_hex"]
    assert place == VectorRange("f", 1, vector["f2"], vector["cardinality"])


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
@pytest.mark.parametrize("writer", ["bytes_hex", "pypaimon_bytes_hex"])
def test_golden_vector_is_read(vector: dict[str, Any], writer: str) -> None:
    frame = bytes.fromhex(vector.get(writer, vector["bytes_hex"]))
    length = len(frame) if vector["bitmap64"] else len(frame) - 8
    read = read_vectors(b"\1" + frame, [VectorRange("f", 1, length)], "index-x")
    assert read == {"f": bitmap(vector)}
    assert isinstance(read["f"], BitMap64 if vector["bitmap64"] else BitMap)


@pytest.mark.parametrize(
    "index_file",
    [file for file in INDEX_FILES if file["index_type"] == "DELETION_VECTORS"],
    ids=lambda file: f"{file['origin']}-{file['sample_file'][-1]}",
)
def test_golden_index_file_is_read_and_written_with_the_same_bytes(
    index_file: dict[str, Any],
) -> None:
    data = bytes.fromhex(index_file["bytes_hex"])
    vectors = read_vectors(data, ranges(index_file), "index-x")
    written, places = write_vectors(vectors)
    assert len(vectors) == index_file["row_count"]
    assert written == data
    assert [(p.data_file_name, p.offset, p.length) for p in places] == [
        (r["f0"], r["f1"], r["f2"]) for r in index_file["ranges"]
    ]


def test_no_vectors_leave_a_one_byte_file() -> None:
    assert write_vectors({}) == (b"\1", ())
    assert read_vectors(b"\1", [], "index-x") == {}


vectors_of_files = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.one_of(
        st.sets(st.integers(0, 2**31 - 1)).map(BitMap),
        st.sets(st.integers(0, 2**40)).map(BitMap64),
    ),
    max_size=5,
)


@given(vectors_of_files)
def test_vectors_of_both_kinds_round_trip_in_one_file(vectors: dict[str, Any]) -> None:
    data, places = write_vectors(vectors)
    assert read_vectors(data, places, "index-x") == vectors
    assert [place.cardinality for place in places] == [len(v) for v in vectors.values()]


@given(vectors_of_files, st.data())
def test_one_vector_is_read_from_a_store_and_torn_ones_are_noticed(
    vectors: dict[str, Any], data: st.DataObject
) -> None:
    stored, ranges = write_vectors(vectors)
    store = empty_store()
    store.put("index/whole", stored)
    for found in ranges:
        dead = dead_positions(store, VectorPlace("index/whole", found))
        assert dead.tolist() == sorted(vectors[found.data_file_name])
    if ranges:
        last = VectorPlace("index/torn", ranges[-1])
        store.put("index/torn", stored[: data.draw(st.integers(0, len(stored) - 1))])
        with pytest.raises(DataError, match="index/torn"):
            dead_positions(store, last)
        with pytest.raises(DataError, match="index/gone"):
            dead_positions(store, VectorPlace("index/gone", ranges[-1]))


@given(vectors_of_files)
def test_rows_that_died_are_dead_in_one_vector_alone(vectors: dict[str, Any]) -> None:
    stored, ranges = write_vectors(vectors)
    store = empty_store()
    store.put("index/0", stored)
    places = [VectorPlace("index/0", found) for found in ranges]
    for place in places:
        dead = set(vectors[place.range.data_file_name])
        assert dead_in_one(store, place, None).tolist() == sorted(dead)
        for other in places:
            before = set(vectors[other.range.data_file_name])
            assert dead_in_one(store, place, other).tolist() == sorted(dead - before)


def test_only_asked_vectors_are_read() -> None:
    data, places = write_vectors({"a": BitMap([1]), "b": BitMap([2])})
    assert read_vectors(data, places[1:], "index-x") == {"b": BitMap([2])}


def test_writing_leaves_the_callers_bitmap_alone() -> None:
    vector = BitMap(range(100))
    before = vector.serialize()
    encode_vector(vector)
    assert vector.serialize() == before


@pytest.mark.parametrize("make", [BitMap, BitMap64])
def test_flipped_byte_fails_the_checksum(make: Any) -> None:
    data, places = write_vectors({"data-1": make([1, 2, 3])})
    broken = bytearray(data)
    broken[-6] ^= 1
    with pytest.raises(DataError, match=r"index-x: deletion vector of data-1 .* checksum"):
        read_vectors(bytes(broken), places, "index-x")


@pytest.mark.parametrize("make", [BitMap, BitMap64])
def test_every_truncation_is_noticed(make: Any) -> None:
    data, places = write_vectors({"data-1": make([1, 2, 3])})
    for length in range(len(data)):
        with pytest.raises(DataError, match="index-x"):
            read_vectors(data[:length], places, "index-x")


@pytest.mark.parametrize("offset", [-1, 0, 2, 7, 1000])
def test_wrong_offset_is_noticed(offset: int) -> None:
    data, (place,) = write_vectors({"data-1": BitMap([1, 2, 3])})
    with pytest.raises(DataError, match="data-1"):
        read_vectors(data, [VectorRange("data-1", offset, place.length)], "index-x")


def test_wrong_recorded_length_is_noticed() -> None:
    data, (place,) = write_vectors({"data-1": BitMap([1, 2, 3])})
    with pytest.raises(DataError, match=f"length {place.length}, expected {place.length + 8}"):
        read_vectors(data, [VectorRange("data-1", 1, place.length + 8)], "index-x")


def test_other_file_version_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="index-x: deletion vector file version 2"):
        read_vectors(b"\2", [], "index-x")


def test_position_beyond_32_bit_form_names_the_way_out() -> None:
    with pytest.raises(InvalidError, match="bitmap64"):
        write_vectors({"f": BitMap([2**31])})


@pytest.mark.parametrize("make", [BitMap, BitMap64])
def test_live_rows_leave_out_the_dead_ones(make: Any) -> None:
    assert live_rows(make([0, 3]), 5).tolist() == [False, True, True, False, True]
    assert live_rows(make(), 2).tolist() == [True, True]
