"""Sequence auto-padding gives the numbers of the releases that had it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

import keytide as kt
from keytide.errors import InvalidError
from keytide.merge.order import padded_sequence
from new_tables import fields_of

EPOCH = datetime(1970, 1, 1)
SECOND = EPOCH + timedelta(milliseconds=1685548953000)
MILLI = EPOCH + timedelta(milliseconds=1685548953123)


def padded(value: Any, dtype: Any, kind: str, padding: str, counter: int = 0) -> int:
    result = padded_sequence(
        pl.Series("seq", [value], dtype=dtype),
        pl.Series([kind in ("+I", "+U")]),
        pl.Series([counter]),
        tuple(padding.split(",")) if padding else (),
    )
    assert result.dtype == pl.Int64
    return int(result[0])


@pytest.mark.parametrize(
    ("value", "dtype", "kind", "padding", "counter", "expected"),
    [
        (1, pl.Int64, "+I", "row-kind-flag", 0, 3),
        (1, pl.Int64, "+U", "row-kind-flag", 0, 3),
        (1, pl.Int64, "-U", "row-kind-flag", 0, 2),
        (1, pl.Int64, "-D", "row-kind-flag", 0, 2),
        (95617584000000000, pl.Int64, "+I", "row-kind-flag", 0, 191235168000000001),
        (1, pl.Int64, "+I", "millis-to-micro,row-kind-flag", 20, 2041),
        (1, pl.Int64, "-U", "millis-to-micro,row-kind-flag", 30, 2060),
        (1, pl.Int32, "+I", "second-to-micro", 5, 1000005),
        (Decimal("1.0"), pl.Decimal(3, 1), "+I", "second-to-micro", 5, 1000005),
        (1685548953, pl.Int32, "+I", "second-to-micro", 5, 1685548953000005),
        (2, pl.Int8, "+I", "second-to-micro", 5, 2000005),
        (3, pl.Int16, "+I", "second-to-micro", 5, 3000005),
        (SECOND, pl.Datetime("ms"), "+I", "second-to-micro", 5, 1685548953000005),
        (
            SECOND.replace(tzinfo=timezone.utc),
            pl.Datetime("ms", "UTC"),
            "+I",
            "second-to-micro",
            5,
            1685548953000005,
        ),
        (4000000000000, pl.Int64, "+I", "millis-to-micro", 5, 4000000000000005),
        (1685548953000, pl.Int64, "+I", "millis-to-micro", 5, 1685548953000005),
        (2.81, pl.Float32, "+I", "millis-to-micro", 5, 2005),
        (3.678, pl.Float64, "+I", "millis-to-micro", 5, 3005),
        ("1", pl.String, "+I", "millis-to-micro", 5, 1005),
        ("3", pl.String, "+I", "millis-to-micro", 5, 3005),
        (EPOCH.date() + timedelta(days=375), pl.Date, "+I", "millis-to-micro", 5, 375005),
        (MILLI, pl.Datetime("ms"), "+I", "millis-to-micro", 5, 1685548953123005),
        (MILLI, pl.Datetime("us"), "+I", "millis-to-micro", 5, 1685548953123005),
        (2.81, pl.Float32, "+I", "", 0, 2),
        (3.678, pl.Float64, "+I", "", 0, 3),
        (EPOCH.date() + timedelta(days=375), pl.Date, "+I", "", 0, 375),
        (MILLI, pl.Datetime("us"), "+I", "", 0, 1685548953123),
        (None, pl.Int64, "+I", "second-to-micro", 5, -(2**63)),
    ],
)
def test_padding_gives_the_number_that_the_format_stored(
    value: Any, dtype: Any, kind: str, padding: str, counter: int, expected: int
) -> None:
    assert padded(value, dtype, kind, padding, counter) == expected


@pytest.mark.parametrize("dtype", [pl.Boolean, pl.Binary, pl.Time, pl.List(pl.Int64)])
def test_a_type_without_a_number_is_refused_by_name(dtype: Any) -> None:
    with pytest.raises(InvalidError, match="'seq'"):
        padded(None, dtype, "+I", "row-kind-flag")


def test_a_text_that_is_no_number_is_refused_with_the_text() -> None:
    with pytest.raises(InvalidError, match="'soon'"):
        padded("soon", pl.String, "+I", "row-kind-flag")


def test_with_row_kind_flag_an_add_beats_a_delete_of_the_same_sequence(lake: kt.Lake) -> None:
    table = lake.create_table(
        "t",
        fields_of("k INT, ts BIGINT, v STRING"),
        primary_key=["k"],
        options={"sequence.field": "ts", "sequence.auto-padding": "row-kind-flag"},
    )
    table.write([{"k": 1, "ts": 5, "v": "a", "_row_kind": "+U"}])
    table.write([{"k": 1, "ts": 5, "v": None, "_row_kind": "-D"}])

    assert table.scan().to_pylist() == [{"k": 1, "ts": 5, "v": "a"}]


def test_with_second_to_micro_the_later_row_of_a_second_wins(lake: kt.Lake) -> None:
    table = lake.create_table(
        "t",
        fields_of("k INT, ts TIMESTAMP(0), v INT"),
        primary_key=["k"],
        options={"sequence.field": "ts", "sequence.auto-padding": "second-to-micro"},
    )
    for value in range(3):
        table.write([{"k": 1, "ts": SECOND, "v": value}])

    assert [row["v"] for row in table.scan().to_pylist()] == [2]
