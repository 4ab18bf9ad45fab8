from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vectors import GOLDEN, column_of, columns_of, columns_of_equal_length

from keytide.errors import InvalidError
from keytide.format import bucket
from keytide.format.binary_row import encode_rows
from keytide.format.bucket import bucket_ids, murmur3, row_hashes
from keytide.types import DataType, parse_type

VECTORS: list[dict[str, Any]] = [v for v in GOLDEN["binary_rows"] if "row_kind" not in v]


def words_of(row: bytes) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(row, "<u4").reshape(1, -1)


def buckets_for_1_to_17(vector: dict[str, Any], function: str) -> list[int]:
    types = [parse_type(text) for text in vector["types"]]
    columns = columns_of(vector, types)
    return [int(bucket_ids(columns, types, n, function)[0]) for n in range(1, 18)]


@pytest.mark.parametrize("vector", GOLDEN["murmur_raw"], ids=lambda vector: vector["bytes_hex"])
def test_murmur_has_the_expected_hash(vector: dict[str, Any]) -> None:
    assert murmur3(words_of(bytes.fromhex(vector["bytes_hex"]))).tolist() == [vector["hash"]]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_row_has_javas_hash_and_buckets(vector: dict[str, Any]) -> None:
    types = [parse_type(text) for text in vector["types"]]
    assert row_hashes(columns_of(vector, types), types).tolist() == [vector["hash"]]
    assert buckets_for_1_to_17(vector, "default") == vector["buckets"]


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if v.get("mod_buckets")], ids=lambda vector: vector["id"]
)
def test_mod_function_has_javas_buckets(vector: dict[str, Any]) -> None:
    assert buckets_for_1_to_17(vector, "mod") == vector["mod_buckets"]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if v.get("hive_buckets")], ids=lambda vector: vector["id"]
)
def test_hive_function_has_javas_buckets(vector: dict[str, Any]) -> None:
    assert buckets_for_1_to_17(vector, "hive") == vector["hive_buckets"]


@given(columns_of_equal_length())
def test_hash_is_that_of_the_encoded_row(drawn: tuple[list[pa.Array], list[DataType]]) -> None:
    columns, types = drawn
    rows = encode_rows(columns, types)
    expected = [int(murmur3(words_of(row[4:]))[0]) for row in rows]
    assert row_hashes(columns, types).tolist() == expected


@given(st.lists(st.none() | st.text(max_size=30)), st.lists(st.integers(1, 9)))
def test_blocks_and_chunks_do_not_change_the_hash(
    texts: list[str | None], chunk_sizes: list[int]
) -> None:
    kind = parse_type("STRING")
    whole = pa.array(texts, pa.string())
    bounds = [0, *np.cumsum(chunk_sizes, dtype=int).tolist(), len(whole)]
    chunks = [whole.slice(start, max(end - start, 0)) for start, end in pairs(bounds, len(whole))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket, "BLOCK_ROWS", 4)
        by_blocks = row_hashes([pa.chunked_array(chunks, pa.string())], [kind])
    assert by_blocks.tolist() == row_hashes([whole], [kind]).tolist()


def pairs(bounds: list[int], end: int) -> list[tuple[int, int]]:
    clipped = sorted(min(bound, end) for bound in bounds)
    return list(itertools.pairwise(clipped))


def test_strings_of_very_different_lengths_hash_as_their_rows() -> None:
    kind = parse_type("STRING")
    texts = pa.array(["x" * size for size in (0, 70_000, 7, 8, 9, 4_001, 3)])
    expected = [int(murmur3(words_of(row[4:]))[0]) for row in encode_rows([texts], [kind])]
    assert row_hashes([texts], [kind]).tolist() == expected


@given(st.integers(1, 1000), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_every_bucket_function_stays_in_range(num_buckets: int, values: list[int]) -> None:
    column, kind = pa.array(values, pa.int64()), parse_type("BIGINT")
    for function in ("default", "mod", "hive"):
        buckets = bucket_ids([column], [kind], num_buckets, function)
        assert ((buckets >= 0) & (buckets < num_buckets)).all()


def test_types_matter_and_equal_small_numbers_do_not_share_a_hash() -> None:
    def hash_of(value: int, text: str) -> int:
        kind = parse_type(text)
        return int(row_hashes([column_of(str(value), kind)], [kind])[0])

    assert hash_of(1, "INT") == hash_of(1, "BIGINT")
    assert hash_of(-1, "INT") != hash_of(-1, "BIGINT")
    assert hash_of(1, "DECIMAL(18, 0)") != hash_of(1, "DECIMAL(19, 0)")


@pytest.mark.parametrize("num_buckets", [0, -1, -2])
def test_number_of_buckets_below_one_is_refused(num_buckets: int) -> None:
    with pytest.raises(InvalidError, match=f"at least 1, found {num_buckets}"):
        bucket_ids([pa.array([1])], [parse_type("BIGINT")], num_buckets)


def test_unknown_function_names_the_known_ones() -> None:
    with pytest.raises(InvalidError, match="'sha'; known are default, mod, hive"):
        bucket_ids([pa.array([1])], [parse_type("BIGINT")], 2, "sha")


@pytest.mark.parametrize("types", [["STRING"], ["INT", "INT"], []])
def test_mod_function_takes_one_integer_column_only(types: list[str]) -> None:
    kinds = [parse_type(text) for text in types]
    columns = [pa.array(["1"]).cast(kind.to_arrow()) for kind in kinds]
    with pytest.raises(InvalidError, match="one bucket-key column of type INT or BIGINT"):
        bucket_ids(columns, kinds, 2, "mod")


def test_hive_function_takes_no_timestamp() -> None:
    kind = parse_type("TIMESTAMP(3)")
    with pytest.raises(InvalidError, match=r"hash a column of type TIMESTAMP\(3\)"):
        bucket_ids([pa.array([1]).view(kind.to_arrow())], [kind], 2, "hive")
