from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vectors import GOLDEN, columns_of

from keytide.errors import InvalidError
from keytide.format.binary_row import encode_rows
from keytide.format.partition import (
    escape_path_name,
    partition_path,
    partition_paths,
    unescape_path_name,
)
from keytide.types import Field, parse_sql_type

VECTORS: list[dict[str, Any]] = GOLDEN["partition_paths"]


def fields_of(names: list[str], types: list[str]) -> list[Field]:
    kinds = map(parse_sql_type, types)
    return [Field(i, name, kind) for i, (name, kind) in enumerate(zip(names, kinds, strict=True))]


def path_of(value: Any, kind: str, *, legacy: bool = True) -> str:
    return partition_path([value], fields_of(["p"], [kind]), legacy=legacy)


@pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "non_legacy"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_path_is_javas(vector: dict[str, Any], legacy: bool) -> None:
    fields = fields_of(vector["names"], vector["types"])
    columns = columns_of(vector, [each.type for each in fields])
    expected = vector["java"]["legacy" if legacy else "non_legacy"]
    assert partition_paths(columns, fields, legacy=legacy) == [expected.removesuffix("/")]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_partition_row_is_javas(vector: dict[str, Any]) -> None:
    types = [parse_sql_type(text) for text in vector["types"]]
    (row,) = encode_rows(columns_of(vector, types), types)
    assert row.hex() == vector["java"]["hex"]


@pytest.mark.parametrize(
    ("value", "kind", "legacy", "full"),
    [
        (date(2024, 1, 1), "DATE", "p=19723", "p=2024-01-01"),
        (Decimal("-0.00000001"), "DECIMAL(20, 8)", "p=-0.00000001", "p=-0.00000001"),
        (45_296_000, "TIME(3)", "p=45296000", "p=12%3A34%3A56.0"),
        (45_296_000, "TIME(0)", "p=45296000", "p=12%3A34%3A56"),
        (0, "TIMESTAMP(0)", "p=1970-01-01T00%3A00", "p=1970-01-01 00%3A00%3A00"),
        (-1, "TIMESTAMP(9)", *[f"p=1969-12-31{c}23%3A59%3A59.999999999" for c in "T "]),
        (0, "TIMESTAMP_LTZ(3)", "p=1970-01-01T00%3A00", "p=1970-01-01 00%3A00%3A00.000"),
        (b"ab", "BYTES", "p=ab", "p=ab"),
    ],
)
def test_value_text_follows_the_legacy_option(
    value: Any, kind: str, legacy: str, full: str
) -> None:
    assert path_of(value, kind, legacy=True) == legacy
    assert path_of(value, kind, legacy=False) == full


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1e-3, "0.001"),
        (9.999e-4, "9.999E-4"),
        (9999999.0, "9999999.0"),
        (5e-324, "4.9E-324"),
        (1e7, "1.0E7"),
        (1.25e-10, "1.25E-10"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_floats_have_javas_text(value: float, text: str) -> None:
    assert path_of(value, "DOUBLE") == f"p={text}"


def test_float_has_the_digits_of_its_own_width() -> None:
    assert path_of(0.1, "FLOAT") == "p=0.1"
    assert path_of(1e-45, "FLOAT") == "p=1.4E-45"


@pytest.mark.parametrize("value", [None, "", " ", "\t\n", "\u2003"])
def test_null_and_blank_share_the_default_directory(value: str | None) -> None:
    fields = fields_of(["p"], ["STRING"])
    assert partition_path([value], fields) == "p=__DEFAULT_PARTITION__"
    assert partition_path([value], fields, default_name="none/") == "p=none%2F"


def test_no_break_space_is_not_blank() -> None:
    assert path_of("\u00a0", "STRING") == "p=\u00a0"


def test_unpartitioned_table_has_the_empty_path() -> None:
    assert partition_path([], []) == ""


def test_paths_of_many_partitions_keep_their_order() -> None:
    fields = fields_of(["dt", "hour"], ["STRING", "INT"])
    columns = [pa.array(["b", "a", None]), pa.array([1, None, 3], pa.int64())]
    assert partition_paths(columns, fields) == [
        "dt=b/hour=1",
        "dt=a/hour=__DEFAULT_PARTITION__",
        "dt=__DEFAULT_PARTITION__/hour=3",
    ]


@given(st.text())
def test_escaped_name_is_a_safe_path_and_comes_back(text: str) -> None:
    escaped = escape_path_name(text)
    assert not set(escaped) & set("/\\:*?\"'#=^\0\n")
    assert unescape_path_name(escaped) == text


def test_stray_percent_stays() -> None:
    assert unescape_path_name("100%/50%zz%2F") == "100%/50%zz/"


def test_value_that_does_not_fit_names_column_and_type() -> None:
    with pytest.raises(InvalidError, match="'x' does not fit partition column 'p' of type INT"):
        path_of("x", "INT")


def test_nested_partition_column_is_refused() -> None:
    with pytest.raises(InvalidError, match="cannot be of type ARRAY<INT>"):
        path_of([1], "ARRAY<INT>")
