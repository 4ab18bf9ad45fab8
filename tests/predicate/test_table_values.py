"""A value means the same wherever a user gives it: what a write of it stores, or an error."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.predicate.value_columns import stored_column
from keytide.types import Field
from type_values import SCALARS, column_of, kind_of

EXTRA: dict[str, list[Any]] = {
    "FLOAT": [-0.0, 0.1, -1.5],
    "DOUBLE": [-0.0, 1e22, -1e-7],
    "CHAR(3)": [" ", "a  ", " a", "'", '"', "\\", "%", "\n"],
    "VARCHAR(5)": ["a  ", "a\\b", "'", "''", '"', "`", "--", "/*"],
    "BYTES": [b"'", b"a\\x00"],
    "DECIMAL(38, 18)": [Decimal("-99999999999999999999.999999999999999999"), Decimal("-1E-18")],
    "TIMESTAMP(9)": [-1, 123_456_789],
}
VALUES = {
    text: [*SCALARS.get(text, []), *EXTRA.get(text, [])]
    for text in dict.fromkeys((*SCALARS, *EXTRA))
}


def literal_of(value: pa.Scalar, text: str) -> str:
    """How the grammar of conditions writes a value."""
    kind = value.type
    if pa.types.is_boolean(kind):
        return str(value.as_py()).upper()
    if pa.types.is_integer(kind):
        return str(value.as_py())
    if pa.types.is_decimal(kind):
        return format(value.as_py(), "f")
    if pa.types.is_floating(kind):
        number = value.as_py()
        shortest = str(np.float32(number)) if text == "FLOAT" else repr(number)
        return shortest if np.isfinite(number) else f"'{number}'"
    if pa.types.is_binary(kind):
        return f"X'{value.as_py().hex()}'"
    if pa.types.is_string(kind):
        return "'" + value.as_py().replace("'", "''") + "'"
    return f"'{value.as_py() if pa.types.is_time(kind) else value.cast(pa.string()).as_py()}'"


def same_key(text: str) -> Callable[[Any], Any]:
    """What makes keys equal (rules R27 and R28 of docs/semantics.md)."""
    if text.startswith("CHAR"):
        return lambda value: value.rstrip(" ")
    if text in ("FLOAT", "DOUBLE"):
        return lambda value: "nan" if value != value else value + 0.0
    return lambda value: value


def ordered(text: str) -> Callable[[Any], Any]:
    same = same_key(text)
    if text in ("FLOAT", "DOUBLE"):
        return lambda value: (same(value) == "nan", 0.0 if same(value) == "nan" else same(value))
    if "CHAR" in text or text == "STRING":
        return lambda value: same(value).encode()
    return same


@pytest.mark.one_in(14)
@pytest.mark.parametrize("layout", ["buckets", "partitions", "a file each", "value"])
@pytest.mark.parametrize("text", VALUES)
def test_every_value_finds_its_row(warehouse: str, text: str, layout: str) -> None:
    options = {"bucket": {"buckets": "2", "a file each": "7"}.get(layout, "1")}
    keys = ["i"] if layout == "value" else ["v", "i"] if layout == "partitions" else ["v"]
    table = kt.connect(warehouse).create_table(
        "t",
        [Field(-1, "v", kind_of(text)), Field(-1, "i", kind_of("INT"))],
        keys,
        ["v"] if layout == "partitions" else [],
        options=options,
    )
    column = column_of(VALUES[text], kind_of(text))
    rows = pa.table({"v": column, "i": pa.array(range(len(column)), pa.int32())})
    step = 1 if layout == "a file each" else len(rows)
    for start in range(0, len(rows), step):
        table.write(rows.slice(start, step))
    same, rank = same_key(text), ordered(text)
    # Of equal keys the later row stays; the values in the rows are ticks where times have them.
    stored = dict(enumerate(VALUES[text]))
    if layout not in ("value", "partitions"):
        stored = dict({same(v): (i, v) for i, v in stored.items()}.values())

    def found(where: str) -> set[int]:
        return set(table.scan(columns=["i"], where=where).to_arrow().column("i").to_pylist())

    for number, (value, scalar) in enumerate(zip(VALUES[text], column, strict=True)):
        literal = literal_of(scalar, text)
        equal = {i for i, v in stored.items() if same(v) == same(value)}
        assert found(f"v = {literal}") == equal, literal
        others = {
            "!=": set(stored) - equal,
            "<=": {i for i, v in stored.items() if rank(v) <= rank(value)},
            ">=": {i for i, v in stored.items() if rank(v) >= rank(value)},
        }
        # Each operator meets every third value, which keeps the test short.
        operator = list(others)[number % len(others)]
        assert found(f"v {operator} {literal}") == others[operator], literal
        if keys == ["v"]:
            assert {table.get(scalar)["i"]} == equal
    literals = [literal_of(scalar, text) for scalar in column]
    for some in (slice(0, None, 2), slice(0, None)):
        equals = {same(value) for value in VALUES[text][some]}
        listed = {i for i, value in stored.items() if same(value) in equals}
        assert found(f"v IN ({', '.join(literals[some])})") == listed
        assert found(f"v NOT IN ({', '.join(literals[some])})") == set(stored) - listed


# -- values of other types, or too fine or long for theirs -----------------------------------------

OTHERS: list[Any] = [
    1, 1.5, 2**70, -1, True, "1", "a", "abcdef", b"a", b"abcdef", Decimal("1"), Decimal("1.5"),
    Decimal("1e30"), float("nan"), date(2024, 1, 1), datetime(2024, 1, 1, 7), time(1, 2, 3, 456789),
    datetime(2024, 1, 1, tzinfo=timezone.utc), datetime(2024, 1, 1, 0, 0, 0, 123_456), "\udc80",
    [1], {"a": 1}, object(), np.int64(1), np.float32(0.1), np.datetime64("2024-01-01"),
    pa.scalar(1), pa.scalar(1.5), pa.scalar("a"),
]  # fmt: skip


def outcome(act: Callable[[], Any]) -> Any:
    """What an act returns, or the class of its error, which has to name the column."""
    try:
        return act()
    except kt.InvalidError as error:
        return kt.InvalidError if "'p'" in str(error) else error


TYPES = [
    "BOOLEAN", "TINYINT", "BIGINT", "DOUBLE", "CHAR(3)", "BINARY(3)", "DECIMAL(9, 2)", "DATE",
    "TIME(0)", "TIMESTAMP(0)", "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP(3) WITH LOCAL TIME ZONE",
]  # fmt: skip


@pytest.mark.one_in(14)
@pytest.mark.parametrize("text", TYPES)
def test_key_and_partition_are_what_a_write_would_store_or_refused(
    lake: kt.Lake, text: str
) -> None:
    fields = [Field(-1, "p", kind_of(text)), Field(-1, "k", kind_of("INT"))]
    for number, value in enumerate(OTHERS):
        table = lake.create_table(f"t{number}", fields, ["p", "k"], ["p"], options={"bucket": "3"})
        rows: Any = [{"p": value, "k": 1}]
        if isinstance(value, pa.Scalar):
            rows = pa.table({"p": pa.array([value], value.type), "k": [1]})
        written = outcome(lambda t=table, r=rows: t.write(r).rows)
        found = outcome(lambda t=table, v=value: t.get((v, 1)) is not None)
        replaced = outcome(lambda t=table, v=value: t.overwrite([], {"p": v}).snapshot_id)
        if written is kt.InvalidError:
            assert (found, replaced) == (kt.InvalidError, kt.InvalidError), repr(value)
        else:
            assert (written, found, replaced) == (1, True, 2), repr(value)


def test_key_with_more_digits_than_python_has_is_found(lake: kt.Lake) -> None:
    table = lake.create_table(
        "t", [Field(-1, "k", kind_of("TIMESTAMP(9)"))], ["k"], options={"bucket": "5"}
    )
    table.write(pa.table({"k": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))}))
    moment = np.datetime64("2023-11-14T22:13:20.123456789")
    assert table.get(moment) is not None
    assert table.scan(where="k = '2023-11-14 22:13:20.123456789'").count() == 1
    assert table.scan(where="k < '2023-11-14 22:13:20.123456789'").count() == 0


@pytest.mark.parametrize("bucket", ["1", "16"])
def test_chars_that_differ_in_blanks_are_one_key(lake: kt.Lake, bucket: str) -> None:
    table = lake.create_table(
        "t",
        [Field(-1, "k", kind_of("CHAR(3)")), Field(-1, "v", kind_of("INT"))],
        ["k"],
        options={"bucket": bucket},
    )
    for v, k in enumerate(["a", "a ", "a  ", "b"]):
        table.write([{"k": k, "v": v}])
    assert table.scan(where="v < 3").to_pylist() == [{"k": "a", "v": 2}]
    for spelling in ("a", "a ", "a  "):
        assert table.get(spelling) == {"k": "a", "v": 2}
        assert table.scan(where=f"k = '{spelling}'").to_pylist() == [{"k": "a", "v": 2}]
    table.write([{"k": "a ", "_row_kind": "-D"}])
    assert table.get("a") is None


LISTS = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view, lambda kind: pa.list_(kind, 2)]


@pytest.mark.parametrize("layout", LISTS)
@given(
    values=st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), min_size=2, max_size=2)),
    cut=st.integers(0, 3),
)
def test_lists_of_every_layout_of_arrow_are_stored_as_they_are(
    layout: Callable[[pa.DataType], pa.DataType], values: list[Any], cut: int
) -> None:
    whole = pa.array(values, layout(pa.int64()))
    column = pa.chunked_array([whole.slice(cut), whole], layout(pa.int64()))
    stored = stored_column(column, Field(0, "v", kt.parse_sql_type("ARRAY<INT>")), "t")
    stored.validate(full=True)
    assert stored.to_pylist() == values[cut:] + values


@given(st.lists(st.none() | st.lists(st.integers(0, 9))), st.integers(0, 3))
def test_views_of_lists_of_any_length_are_stored_as_they_are(values: list[Any], cut: int) -> None:
    column = pa.chunked_array([pa.array(values, pa.list_view(pa.int64())).slice(cut)])
    stored = stored_column(column, Field(0, "v", kt.parse_sql_type("ARRAY<INT>")), "t")
    stored.validate(full=True)
    assert stored.to_pylist() == values[cut:]
