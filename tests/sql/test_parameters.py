"""Values in the places of `?` and `:name`."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.errors import InvalidError
from keytide.sql.engine_text import with_parameters

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
ZONE = timezone(timedelta(hours=2))

VALUES: dict[str, Any] = {
    "an int": 7,
    "a negative int": -7,
    "a large int": 2**62,
    "a float": 0.1,
    "a negative float": -2.5e-300,
    "an infinite float": -math.inf,
    "a decimal": Decimal("-12.340"),
    "a whole decimal": Decimal("5"),
    "a small decimal": Decimal("0.001"),
    "a text": "it's -- a \\ 'test' /* ? :k */",
    "an empty text": "",
    "true": True,
    "null": None,
    "bytes": b"\x00'\xff",
    "a date": date(2024, 2, 29),
    "a time": time(23, 59, 58, 123456),
    "a timestamp": datetime(2024, 2, 29, 1, 2, 3, 456789),
}


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    lake = kt.connect(warehouse)
    table = lake.create_table("t", SCHEMA, ["k"], options={"bucket": "1"})
    table.write([{"k": k, "v": f"v{k}"} for k in range(4)])
    return lake


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_as_it_was_given(lake: kt.Lake, value: Any) -> None:
    by_place = lake.sql("SELECT ? AS given, ':k ?' AS text", [value]).to_pylist()
    by_name = lake.sql("SELECT :x AS given, ':k ?' AS text", {"x": value}).to_pylist()
    assert by_place == by_name == [{"given": value, "text": ":k ?"}]


@pytest.mark.parametrize("text", ["", "\n", "-- nothing"])
def test_values_for_a_text_without_a_statement_are_refused(lake: kt.Lake, text: str) -> None:
    with pytest.raises(kt.InvalidError):
        lake.sql(text, parameters=[1])


def test_a_moment_is_the_same_moment_in_any_zone(lake: kt.Lake) -> None:
    moment = datetime(2024, 2, 29, 1, 2, 3, tzinfo=ZONE)
    (row,) = lake.sql("SELECT ? AS given", [moment]).to_pylist()
    assert row["given"] == moment


def test_numbers_of_numpy_are_numbers(lake: kt.Lake) -> None:
    given = [np.int32(3), np.float64(0.5), np.bool_(True)]
    assert lake.sql("SELECT ? AS a, ? AS b, ? AS c", given).to_pylist() == [
        {"a": 3, "b": 0.5, "c": True}
    ]


def test_all_kinds_of_statements_take_values(lake: kt.Lake) -> None:
    lake.sql("INSERT INTO t VALUES (?, ?), (?, ?)", [8, "it's", -9, None])
    lake.sql("UPDATE t SET v = :v WHERE k = :k", {"k": 0, "v": "new"})
    lake.sql("DELETE FROM t WHERE k IN (?, ?)", [1, 2])
    lake.sql(
        "MERGE INTO t USING (SELECT :k AS k) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = :v",
        {"k": 3, "v": ":k"},
    )
    found = lake.sql("SELECT * FROM t WHERE k < ? ORDER BY k LIMIT ?", [100, 9]).to_pylist()
    assert [(row["k"], row["v"]) for row in found] == [
        (-9, None), (0, "new"), (3, ":k"), (8, "it's"),
    ]  # fmt: skip


def test_a_name_may_have_several_places(lake: kt.Lake) -> None:
    assert lake.sql("SELECT :a + :a AS b, :a::STRING AS c", {"a": 2}).to_pylist() == [
        {"b": 4, "c": "2"}
    ]


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        ("SELECT ?", [], "has 1 placeholder, but 0 values were given"),
        ("SELECT ?", [1, 2], "has 1 placeholder, but 2 values were given"),
        (
            "SELECT ?",
            {"a": 1},
            r"line 1, column 8: the parameters are a dict, but the placeholders are :n",
        ),
        (
            "SELECT :a",
            [1],
            r"line 1, column 8: the parameters are a list, but the placeholders are \?",
        ),
        ("SELECT :a", {}, "there is no parameter 'a'; give it a value"),
        ("SELECT 1", {"a": 1}, "the parameter 'a' is not used; write :a where its value belongs"),
        ("SELECT ?", [[1]], "parameter 1 is .1. of type list; expected a number"),
        ("SELECT :a", {"a": {}}, "parameter :a is {} of type dict; expected a number"),
        ("SELECT ?", [Decimal("1e40")], "the decimal 1E.40 has more than 38 digits"),
    ],
)
def test_what_does_not_fit_is_refused(
    lake: kt.Lake, text: str, parameters: Any, message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        lake.sql(text, parameters)


def test_a_text_for_the_parameters_is_refused(lake: kt.Lake) -> None:
    parameters: Any = "a"
    with pytest.raises(InvalidError, match="parameters is 'a' of type str"):
        lake.sql("SELECT ?", parameters)


@given(st.text(alphabet="'\"\\?:;-/*$`a \n", max_size=12))
@settings(max_examples=60, deadline=None)
def test_no_text_is_ever_taken_for_sql(text: str) -> None:
    made = with_parameters("SELECT ?, 1", [text])
    literal = made.removeprefix("SELECT ").removesuffix(", 1")
    assert literal == "'" + text.replace("'", "''") + "'"
    # What has places for values within a value has none of its own.
    assert with_parameters(made, []) == made
