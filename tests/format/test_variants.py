"""Shredded VARIANT values are whole again, byte by byte as Java encodes them."""

from __future__ import annotations

import contextlib
import datetime as dt
from decimal import Decimal
from io import BytesIO
from itertools import islice
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.errors import DataError, UnsupportedError
from keytide.format.data_file.detached_values import assembled, whole_variants
from keytide.format.variant_encoding import keys_of
from keytide.types import Field, parse_sql_type
from variant_model import Encoder, group_of, rebuilt, shredded

NAMES = st.sampled_from(["a", "b", "ab", "", "é", "\ufffd", "\U0001f600", "n" * 300])
UTC = dt.timezone.utc
SCALARS = st.one_of(
    st.none(), st.booleans(), st.floats(), st.text(max_size=5), st.binary(max_size=5),
    st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-200, 200), st.dates(),
    st.sampled_from(["x" * 63, "x" * 64, "é" * 40, "y" * 70_000]),
    st.datetimes(), st.datetimes(timezones=st.just(UTC)),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**7),
                max_value=10**7),
    st.sampled_from([Decimal("1e-20"), Decimal(10**17), Decimal(-(10**9)), Decimal(10**37)]),
).map(lambda value: value if not isinstance(value, Decimal) else Decimal(f"{value:f}"))  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)
KINDS = st.sampled_from([
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.bool_(), pa.float64(), pa.large_string(),
    pa.large_binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
    pa.decimal128(9, 2), pa.decimal128(38, 20), pa.decimal128(18, 0), pa.decimal128(38, 0), None,
])  # fmt: skip
SCHEMAS = st.recursive(
    KINDS,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=1)
        | st.dictionaries(NAMES, inner, min_size=1, max_size=4)
    ),
    max_leaves=6,
).filter(lambda schema: schema is not None)
ROWS = st.lists(st.none() | st.tuples(VALUES), max_size=8)


def column_of(rows: list[Any], schema: Any) -> pa.Array:
    return pa.array([shredded(row, schema) for row in rows], group_of(schema))


@given(ROWS, SCHEMAS)
def test_shredded_values_are_whole_again(rows: list[Any], schema: Any) -> None:
    found = assembled(column_of(rows, schema)).to_pylist()
    assert found == [rebuilt(row, schema) for row in rows]


NESTINGS = st.lists(st.sampled_from(["ROW", "ARRAY", "MAP"]), max_size=3)


@given(ROWS, SCHEMAS, st.integers(0, 4), NESTINGS, st.data())
def test_values_at_any_depth_of_a_file_are_whole(
    rows: list[Any], schema: Any, skipped: int, nestings: list[str], data: st.DataObject
) -> None:
    kind, types = group_of(schema), "VARIANT"
    stored = [shredded(row, schema) for row in rows]
    wholes = [rebuilt(row, schema) for row in rows]
    for nesting in nestings:
        kind, types = within(nesting, kind, types)
        # Of several values each NULL, empty, and the next ones that there are.
        sizes = data.draw(st.lists(st.none() | st.integers(0, 2), max_size=6))
        stored, wholes = nested(nesting, stored, sizes), nested(nesting, wholes, sizes)
    whole, file = pa.array(wholes, whole_of(kind)), BytesIO()
    pq.write_table(pa.table({"x": pa.array(stored, kind)}), file, row_group_size=3)
    frame = pl.scan_parquet(BytesIO(file.getvalue()))
    fields = [Field(0, "x", parse_sql_type(types))]
    plan, told = whole_variants((frame.slice(skipped), frame.collect_schema()), fields, "f")
    assert plan.collect_schema() == told
    found = plan.collect().to_arrow(compat_level=pl.CompatLevel.oldest())["x"]
    assert found.to_pylist() == whole.to_pylist()[skipped:]


def within(nesting: str, kind: pa.DataType, types: str) -> tuple[pa.DataType, str]:
    """The type of values within others, in a file and in SQL."""
    if nesting == "ROW":
        return pa.struct([("n", pa.int64()), ("f", kind)]), f"ROW<n BIGINT, f {types}>"
    if nesting == "ARRAY":
        return pa.list_(kind), f"ARRAY<{types}>"
    return pa.map_(pa.string(), kind), f"MAP<STRING, {types}>"


def nested(nesting: str, values: list[Any], sizes: list[int | None]) -> list[Any]:
    """The values, as many in each row as its size tells. One or none in a ROW."""
    rest, found = iter(values), []
    for size in sizes:
        members = [] if size is None else list(islice(rest, size))
        if nesting == "ROW":
            found.append(None if size is None else {"n": size, "f": next(iter(members), None)})
        elif nesting == "ARRAY":
            found.append(None if size is None else members)
        else:
            entries = [(f"k{number}", each) for number, each in enumerate(members)]
            found.append(None if size is None else entries)
    return found


def whole_of(kind: pa.DataType) -> pa.DataType:
    """The type of whole values where a file has them in parts."""
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, whole_of(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(whole_of(kind.value_type))
    if pa.types.is_struct(kind) and kind.get_field_index("metadata") < 0:
        return pa.struct([(f.name, whole_of(f.type)) for f in kind])
    binary = pa.large_binary()
    return (
        pa.struct([("value", binary), ("metadata", binary)]) if pa.types.is_struct(kind) else kind
    )


@pytest.mark.takes_turns
def test_many_fields_and_elements_need_wider_numbers() -> None:
    many = {f"{n:05}": n for n in range(70_000)}
    rows = [(many,), ({"x": many, "a": [*range(300)]},), ([many],)]
    schema = {"a": [pa.int64()], "00007": pa.int32()}
    assert assembled(column_of(rows, schema)).to_pylist() == [rebuilt(r, schema) for r in rows]


def group(*, metadata: bytes = b"\1\1\0\1a", **parts: Any) -> dict[str, Any]:
    return {"metadata": metadata, **parts}


EMPTY: dict[str, Any] = {"l": {}}
OBJECT = Encoder().value({"a": 1})
DAMAGED = {
    "nothing": (group(), "a value is missing"),
    "an element of nothing": (
        group(typed_value={"a": {}, "l": {"typed_value": [{}]}}),
        "is missing",
    ),
    "a field twice": (
        group(value=OBJECT, typed_value={"a": {"typed_value": 1}, "l": {}}),
        "key twice",
    ),
    "a field beside a number": (
        group(value=b"\x0c\1", typed_value={"a": {}, "l": {}}),
        "not an object",
    ),
    "another version": (group(value=OBJECT, metadata=b"\2\0\0"), "version"),
    "metadata that is cut off": (group(value=OBJECT, metadata=b"\1\5\0"), "cut off"),
    "a key that is not there": (group(value=OBJECT, metadata=b"\1\0\0"), "lacks a key"),
    "an unknown kind": (group(value=bytes([63 << 2])), "unknown kind"),
    "a text that is cut off": (group(value=b"\x40\xff\xff\xff\xff"), "cut off"),
    "an array that is cut off": (group(value=b"\x1f\xff\xff\xff\xff"), "cut off"),
    "an object of no bytes": (group(value=b""), "cut off"),
    "a field that is not there": (group(typed_value={"a": {}}), "is missing"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_value_names_its_file_and_column(name: str) -> None:
    row, told = DAMAGED[name]
    column = pa.array([row], group_of({"a": pa.int32(), "l": [pa.int32()]}))
    frame = pl.DataFrame({"x": pl.Series(column)})
    fields = [Field(0, "x", parse_sql_type("VARIANT"))]
    plan, _ = whole_variants((frame.lazy(), frame.schema), fields, "a-file")
    with pytest.raises(DataError, match=f"a-file: column 'x'.*{told}"):
        plan.collect()


@given(VALUES, SCHEMAS, st.data())
def test_damaged_bytes_give_another_value_or_an_error(
    value: Any, schema: Any, data: st.DataObject
) -> None:
    row = shredded((value,), schema)
    part = "value" if row.get("value") else "metadata"
    damaged = bytearray(row[part])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    row[part] = bytes(damaged)
    with contextlib.suppress(ValueError, IndexError):
        assembled(pa.array([row], group_of(schema)))


def test_part_of_an_unknown_type_is_refused_by_name() -> None:
    column = pa.array([group(typed_value=dt.time(1))], group_of(pa.time64("us")))
    frame = pl.DataFrame({"x": pl.Series(column)})
    fields = [Field(0, "x", parse_sql_type("VARIANT"))]
    plan, _ = whole_variants((frame.lazy(), frame.schema), fields, "a-file")
    with pytest.raises(UnsupportedError, match=r"a-file: column 'x'.*time64"):
        plan.collect()


def test_keys_of_metadata_are_found() -> None:
    encoder = Encoder()
    encoder.value({"b": {"a": 1}, "c": 2})
    keys, counts = keys_of(pa.array([encoder.metadata(), b"\1\0\0"], pa.large_binary()))
    assert (keys.to_pylist(), counts.tolist()) == ([b"b", b"a", b"c"], [3, 0])
