from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from vectors import GOLDEN, columns_of, columns_of_equal_length

from keytide.base.row_kind import RowKind
from keytide.errors import DataError, InvalidError, UnsupportedError
from keytide.format.binary_row import EMPTY_ROW, decode_rows, encode_rows
from keytide.types import DataType, parse_sql_type, parse_type

VECTORS: list[dict[str, Any]] = GOLDEN["binary_rows"]


def row(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_row_has_javas_bytes(vector: dict[str, Any]) -> None:
    types = [parse_type(text) for text in vector["types"]]
    kind = RowKind.parse(vector.get("row_kind", "+I"))
    encoded = encode_rows(columns_of(vector, types), types, row_kind=kind)
    assert [each.hex() for each in encoded] == [vector["bytes_hex"]]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_javas_bytes_give_the_values_back(vector: dict[str, Any]) -> None:
    types = [parse_type(text) for text in vector["types"]]
    decoded = decode_rows([row(vector["bytes_hex"])], types)
    for column in decoded:
        column.validate(full=True)
    assert [each.hex() for each in encode_rows(decoded, types)] == [
        vector["bytes_hex"][:8] + "00" + vector["bytes_hex"][10:]  # the row kind is not a value
    ]


@given(columns_of_equal_length())
def test_rows_survive_a_round_trip(drawn: tuple[list[pa.Array], list[DataType]]) -> None:
    columns, types = drawn
    decoded = decode_rows(encode_rows(columns, types), types)
    for before, after in zip(columns, decoded, strict=True):
        after.validate(full=True)
        assert after.equals(before)


@given(columns_of_equal_length())
def test_rows_encoded_together_equal_rows_encoded_alone(
    drawn: tuple[list[pa.Array], list[DataType]],
) -> None:
    columns, types = drawn
    alone = [
        encode_rows([column.slice(place, 1) for column in columns], types)[0]
        for place in range(len(columns[0]))
    ]
    assert encode_rows(columns, types) == alone


@pytest.mark.parametrize(
    ("text", "short_form"),
    [
        ("DECIMAL(20, 2)", "00000001 0001000000000000 0000000000000000"),
        ("TIMESTAMP(6)", "00000001 0001000000000000 0000000000000000"),
        ("STRING", "00000001 0001000000000000 ffffffffffffffff"),
        ("INT", "00000001 0001000000000000 ffffffffffffffff"),
        ("DECIMAL(20, 2)", "00000001 0001000000000000 ffffffffffffffff"),
        ("TIMESTAMP(9)", "00000001 0001000000000000 ffffffffffffffff"),
    ],
)
def test_slot_behind_a_null_bit_is_never_read(text: str, short_form: str) -> None:
    (column,) = decode_rows([row(short_form)], [parse_type(text)])
    assert column.to_pylist() == [None]


@pytest.mark.parametrize("text", ["ARRAY<INT>", "MAP<INT, INT>", "ROW<a INT>", "VARIANT", "BLOB"])
def test_nested_value_is_read_as_null_and_its_neighbours_as_they_are(text: str) -> None:
    nested = row("00000002 0000000000000000 0800000018000000 0700000000000000 0011223344556677")
    columns = decode_rows([nested], [parse_sql_type(text), parse_type("INT")])
    assert [column.to_pylist() for column in columns] == [[None], [7]]


def test_nested_value_is_refused_but_a_nested_null_is_written() -> None:
    kind = parse_sql_type("ARRAY<INT>")
    with pytest.raises(InvalidError, match="ARRAY<INT>"):
        encode_rows([pa.array([[1]], kind.to_arrow())], [kind])
    written = encode_rows([pa.nulls(1, kind.to_arrow())], [kind])
    assert written == [row("00000001 0001000000000000 0000000000000000")]


def test_no_columns_make_the_empty_row() -> None:
    assert encode_rows([], []) == [EMPTY_ROW]
    assert decode_rows([EMPTY_ROW], []) == []


def test_no_rows_make_no_bytes() -> None:
    types = [parse_type(text) for text in ("STRING", "DECIMAL(20, 0)", "TIMESTAMP(9)", "INT")]
    empty = [pa.array([], kind.to_arrow()) for kind in types]
    assert encode_rows(empty, types) == []
    assert [column.type for column in decode_rows([], types)] == [c.type for c in empty]


def test_column_of_a_wider_arrow_type_is_cast() -> None:
    text = pa.chunked_array([["a"], ["bcdefghij"]], pa.large_string()).dictionary_encode()
    types = [parse_type("STRING"), parse_type("INT")]
    numbers = pa.chunked_array([[1, 2]], pa.int64())
    plain = [pa.array(["a", "bcdefghij"]), pa.array([1, 2], pa.int32())]
    assert encode_rows([text, numbers], types) == encode_rows(plain, types)


def test_value_that_does_not_fit_its_type_names_both() -> None:
    with pytest.raises(InvalidError, match="int64 do not fit a column of type TINYINT"):
        encode_rows([pa.array([300])], [parse_type("TINYINT")])


@pytest.mark.parametrize(
    ("broken", "gist"),
    [
        ("00000002 0000000000000000 0100000000000000 0000000000000000", "2 fields, expected 1"),
        ("00000001 0000000000000000", "12 bytes is too short"),
        ("00", "1 bytes is too short"),
        ("00000001 0000000000000000 0800000010000000", "after its end"),
        ("00000001 0000000000000000 61626364656667ff", "more than 7 bytes"),
    ],
)
def test_corrupt_row_is_refused(broken: str, gist: str) -> None:
    with pytest.raises(DataError, match=gist):
        decode_rows([row(broken)], [parse_type("STRING")])


def test_decimal_of_too_many_bytes_is_refused() -> None:
    broken = row(f"00000001 0000000000000000 1100000010000000 {'00' * 24}")
    with pytest.raises(DataError, match="more than 16 bytes"):
        decode_rows([broken], [parse_type("DECIMAL(20, 0)")])


def test_timestamp_beyond_nanoseconds_is_unsupported() -> None:
    far = encode_rows([pa.array([1 << 60]).view(pa.timestamp("us"))], [parse_type("TIMESTAMP(6)")])
    with pytest.raises(UnsupportedError, match="ns since 1970"):
        decode_rows(far, [parse_type("TIMESTAMP(9)")])
