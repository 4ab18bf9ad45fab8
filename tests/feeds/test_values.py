from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.errors import InvalidError
from keytide.feeds.conversion import Encoding, convert
from keytide.feeds.json_columns import exact_numbers, read_members
from keytide.types import parse_sql_type

UNFIT = "unfit"


MARK = "\x01number:"
BY_PRECISION = Encoding(time_unit="precision", timestamp_unit="precision")


def converted(type: str, values: list[str], encoding: Encoding | None = None) -> list[Any]:
    """Each JSON value in the type, UNFIT where the column cannot take it."""
    [column] = read_members(pa.array([f'{{"v": {value}}}' for value in values]), ["/v"])
    array = convert(column, parse_sql_type(type), encoding or BY_PRECISION)
    array.validate(full=True)
    assert array.type == parse_sql_type(type).to_arrow()
    is_null = column.text.is_null().to_list()
    return [
        UNFIT if value is None and not null else value
        for value, null in zip(array.to_pylist(), is_null, strict=True)
    ]


@pytest.mark.parametrize(
    ("type", "cases"),
    [
        ("BOOLEAN", {"true": True, '"f"': False, "1": True, "2": UNFIT, "null": None}),
        ("TINYINT", {"127": 127, "128": UNFIT, '"-128"': -128}),
        ("INT", {"5.0": 5, "5.5": UNFIT, '"x"': UNFIT, "true": UNFIT, "[1]": UNFIT, '""': UNFIT}),
        (
            "BIGINT",
            {
                "9007199254740993": 9007199254740993,
                "9223372036854775807": 2**63 - 1,
                "9223372036854775808": UNFIT,
            },
        ),
        ("FLOAT", {"0.5": 0.5, "1e39": UNFIT}),
        ("DOUBLE", {"1.1": 1.1, '"-Infinity"': float("-inf"), '"1e999"': UNFIT}),
        (
            "DECIMAL(5, 2)",
            {
                '"1.25"': Decimal("1.25"),
                "1.5": Decimal("1.50"),
                '"1.250"': Decimal("1.25"),
                '"1.255"': UNFIT,
                '"1234.5"': UNFIT,
                '"1.2E+2"': Decimal(120),
                '"12500e-4"': Decimal("1.25"),
                '"0E-8"': Decimal(0),
                '"1e-3"': UNFIT,
                '"NaN"': UNFIT,
            },
        ),
        ("DECIMAL(30, 0)", {"123456789012345678901234567890": 123456789012345678901234567890}),
        ("VARCHAR(3)", {'"äöü"': "äöü", '"abcd"': UNFIT, "12": "12", "true": UNFIT}),
        ("STRING", {'"a\\u0000b\\n"': "a\0b\n", '{"b": [1]}': '{"b":[1]}', '"null"': "null"}),
        ("VARBINARY(2)", {'"AfQ="': b"\x01\xf4", '"AfQB"': UNFIT, '"!"': UNFIT}),
        (
            "DATE",
            {
                "20000": dt.date(2024, 10, 4),
                '"2026-11-20"': dt.date(2026, 11, 20),
                '"2026-02-30"': UNFIT,
                '"20000"': UNFIT,
                '"2026-11-20 00:00:00"': dt.date(2026, 11, 20),
                '"2026-11-20 00:00:01"': UNFIT,
                '"0000-00-00"': UNFIT,
            },
        ),
        (
            "TIME(3)",
            {
                '"12:34:56.7"': dt.time(12, 34, 56, 700000),
                '"12:34:56.7891"': UNFIT,
                '"12:34:56+00"': dt.time(12, 34, 56),
                '"12:34:56+02"': UNFIT,
                "86399999": dt.time(23, 59, 59, 999000),
                "86400000": UNFIT,
                "-1": UNFIT,
            },
        ),
        (
            "TIMESTAMP(3)",
            {
                '"2026-11-20T14:41:48.235"': dt.datetime(2026, 11, 20, 14, 41, 48, 235000),
                '"2026-11-20 14:41:48.235157"': UNFIT,
                '"2026-11-20 14:41:48.235000+02"': dt.datetime(2026, 11, 20, 12, 41, 48, 235000),
                '"2026-11-20T14:41Z"': dt.datetime(2026, 11, 20, 14, 41),
                "-1": dt.datetime(1969, 12, 31, 23, 59, 59, 999000),
                '"infinity"': UNFIT,
            },
        ),
        ("TIMESTAMP(0)", {"2000": dt.datetime(1970, 1, 1, 0, 0, 2), "2001": UNFIT}),
        ("TIMESTAMP(9)", {'"2300-01-01 00:00:00"': UNFIT, '"1600-01-01 00:00:00Z"': UNFIT}),
        ("ARRAY<INT>", {"[1, null]": [1, None], '[1, "x"]': UNFIT, "[]": [], '"[2]"': [2]}),
        ("ARRAY<INT NOT NULL>", {"[1]": [1], "[null]": UNFIT}),
        ("ARRAY<ARRAY<DATE>>", {"[[0], [], null]": [[dt.date(1970, 1, 1)], [], None]}),
        ("MAP<STRING, INT>", {'{"a": 1}': [("a", 1)], '{"a": "x"}': UNFIT, "{}": [], "[]": UNFIT}),
        ("MAP<INT, INT>", {'{"1": 2}': [(1, 2)], '{"a": 2}': UNFIT}),
        (
            "ROW<a INT, b DECIMAL(3, 1)>",
            {
                '{"a": 1, "b": "2.5"}': {"a": 1, "b": Decimal("2.5")},
                "{}": {"a": None, "b": None},
                '{"a": "x"}': UNFIT,
            },
        ),
    ],
)
def test_value_is_taken_without_loss_or_not_at_all(type: str, cases: dict[str, Any]) -> None:
    assert dict(zip(cases, converted(type, list(cases)), strict=True)) == cases


def test_timestamps_with_and_without_offset_mix_in_one_batch() -> None:
    texts = [
        '"2026-01-02 03:04:05Z"',
        '"2026-01-02T03:04:05"',
        '"2026-01-02 03:04:05.5+01:30"',
        '"x Z"',
    ]
    zoned = dt.timezone.utc
    assert converted("TIMESTAMP_LTZ(6)", texts) == [
        dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=zoned),
        dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=zoned),
        dt.datetime(2026, 1, 2, 1, 34, 5, 500000, tzinfo=zoned),
        UNFIT,
    ]


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=20))
def test_base64_decimals_of_any_width_read_exactly(unscaled: list[int]) -> None:
    def coded(number: int) -> str:
        size = number.bit_length() // 8 + 1
        return json.dumps(base64.b64encode(number.to_bytes(size, "big", signed=True)).decode())

    found = converted("DECIMAL(38, 0)", [coded(n) for n in unscaled], Encoding(decimal_scale=0))
    assert found == [Decimal(number) for number in unscaled]


@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=12), max_size=20))
def test_decimals_as_text_keep_every_digit(numbers: list[Decimal]) -> None:
    fitting = [n for n in numbers if abs(n) < 10**26]
    assert converted("DECIMAL(38, 12)", [f'"{n}"' for n in fitting]) == fitting


@given(st.lists(st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)), max_size=20))
def test_iso_timestamps_and_counted_microseconds_agree(instants: list[dt.datetime]) -> None:
    texts = [json.dumps(instant.isoformat(" ")) for instant in instants]
    epoch = dt.datetime(1970, 1, 1)
    counts = [str((instant - epoch) // dt.timedelta(microseconds=1)) for instant in instants]
    assert converted("TIMESTAMP(6)", texts) == instants
    assert converted("TIMESTAMP(6)", counts) == instants


JSON_TEXT = st.text(st.sampled_from('ab"\\{}[]:,.-0123456789 e'), max_size=40)
LONG_NUMBER = st.decimals(-(10**20), 10**20, places=18, allow_nan=False)


@given(
    st.lists(st.tuples(JSON_TEXT, LONG_NUMBER, st.floats(allow_nan=False, allow_infinity=False)))
)
def test_fractions_are_marked_and_nothing_else_changes(
    rows: list[tuple[str, Decimal, float]],
) -> None:
    documents = [
        f'{{"text": {json.dumps(text)}, "n": [{number:f}, {json.dumps(text)}], "f": {number_!r}}}'
        for text, number, number_ in rows
    ]
    exact = exact_numbers(pl.Series(documents, dtype=pl.String)).to_list()
    for document, (text, number, float_) in zip(exact, rows, strict=True):
        found = json.loads(document)
        assert (found["text"], found["n"][1]) == (text, text)
        written = [str(each).removeprefix(MARK) for each in (found["n"][0], found["f"])]
        assert Decimal(written[0]) == number
        assert float(written[1]) == float_


@pytest.mark.parametrize("type", ["TIMESTAMP(6)", "TIMESTAMP(3)", "TIME(3)"])
def test_number_without_a_stated_unit_is_no_time(type: str) -> None:
    assert converted(type, ["1767225600000"], Encoding()) == [UNFIT]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"binary": "base32"}, "encoding.binary"),
        ({"timestamp_unit": "m"}, "encoding.timestamp_unit"),
        ({"time_unit": "millis"}, "encoding.time_unit"),
        ({"decimal_scale": "two"}, "encoding.decimal_scale"),
    ],
)
def test_unknown_encoding_is_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidError, match=problem):
        Encoding(**given)  # type: ignore[arg-type]
