from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vectors import GOLDEN, scalar_types

from keytide.base.row_kind import RowKind
from keytide.errors import InvalidError
from keytide.types import (
    BYTES,
    STRING,
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    MultisetType,
    RowType,
    VectorType,
    arrow_schema,
    parse_field,
    parse_sql_type,
    parse_type,
    type_from_arrow,
)

VECTORS: list[dict[str, Any]] = GOLDEN["type_json"]
VALID = [vector for vector in VECTORS if "out" in vector]
REFUSED = [vector for vector in VECTORS if "error" in vector]


def any_types() -> st.SearchStrategy[DataType]:
    nullable = st.booleans()
    scalars = st.builds(lambda kind, null: kind.with_nullable(null), scalar_types(), nullable)
    return st.recursive(scalars, _nested_types, max_leaves=6)


def _nested_types(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    nullable = st.booleans()
    names = st.text("ab`: '", min_size=1, max_size=4)
    comments = st.none() | st.text("x' ", max_size=4)
    members = st.builds(Field, st.just(-1), names, inner, comments)
    return st.one_of(
        st.builds(ArrayType, inner, nullable),
        st.builds(MultisetType, inner, nullable),
        st.builds(MapType, inner, inner, nullable),
        st.builds(VectorType, inner, st.integers(1, 9), nullable),
        st.builds(RowType, st.lists(members, max_size=3).map(tuple), nullable),
    )


@pytest.mark.parametrize("vector", VALID, ids=lambda vector: str(vector["in"])[:40])
def test_stored_type_has_javas_text(vector: dict[str, Any]) -> None:
    parsed = parse_type(vector["in"])
    assert parsed.to_json() == vector["out"]
    assert parsed.sql() == vector["sql"]


@pytest.mark.parametrize("vector", REFUSED, ids=lambda vector: vector["in"])
def test_stored_text_of_nested_type_is_refused_but_sql_takes_it(vector: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="unsupported type"):
        parse_type(vector["in"])
    assert parse_sql_type(vector["in"]).is_nested


@pytest.mark.parametrize(
    ("text", "gist"),
    [
        ("", "at the end: unsupported type nothing"),
        ("POINT", "at position 0: unsupported type POINT"),
        ("INT INT", "at position 4: unexpected 'INT'"),
        ("DECIMAL(x)", "at position 8: expected a number, found 'x'"),
        ("DECIMAL(10,", "at the end"),
        ("TIMESTAMP(3) WITH TIME ZONE", "expected 'LOCAL TIME ZONE'"),
        ("DECIMAL(39, 2)", "between 1 and 38, found 39"),
        ("DECIMAL(5, 6)", "between 0 and 5, found 6"),
        ("VARCHAR(0)", "between 1 and 2147483647, found 0"),
        ("TIMESTAMP(10)", "between 0 and 9, found 10"),
    ],
)
def test_broken_stored_text_names_place_and_cause(text: str, gist: str) -> None:
    with pytest.raises(InvalidError) as raised:
        parse_type(text)
    assert gist in str(raised.value)


@pytest.mark.parametrize(
    ("value", "gist"),
    [
        ({"type": "ARRAY"}, "'element' is missing"),
        ({"type": "MAP", "key": "INT"}, "'value' is missing"),
        ({"element": "INT"}, "'type' is missing"),
        ({"type": "TREE", "element": "INT"}, "TREE is not a nested type"),
        ({"type": "ROW", "fields": ["INT"]}, "must be a JSON object"),
        (7, "must be a string or a JSON object"),
    ],
)
def test_broken_type_object_names_what_is_wrong(value: Any, gist: str) -> None:
    with pytest.raises(InvalidError) as raised:
        parse_type(value)
    assert gist in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int", "INT"),
        ("array<int not null>", "ARRAY<INT NOT NULL>"),
        ("MAP<STRING,INT> NOT NULL", "MAP<STRING, INT> NOT NULL"),
        ("ROW<a INT, b STRING>", "ROW<`a` INT, `b` STRING>"),
        ("ROW(a INT)", "ROW<`a` INT>"),
        ("ROW<>", "ROW<>"),
        ("STRUCT<a: INT, b: ARRAY<LONG>>", "ROW<`a` INT, `b` ARRAY<BIGINT>>"),
        ("ROW<`a b` INT COMMENT 'it''s' DEFAULT 7>", "ROW<`a b` INT COMMENT 'it''s' DEFAULT 7>"),
        ("MULTISET<VARCHAR(3)>", "MULTISET<VARCHAR(3)>"),
        ("VECTOR<FLOAT, 4>", "VECTOR<FLOAT, 4>"),
        ("timestamp_ltz(3)", "TIMESTAMP(3) WITH LOCAL TIME ZONE"),
        ("TIMESTAMP_NTZ", "TIMESTAMP(6)"),
        ("double precision", "DOUBLE"),
        ("text", "STRING"),
    ],
)
def test_sql_type_is_read(text: str, expected: str) -> None:
    assert parse_sql_type(text).sql() == expected


@given(any_types())
def test_sql_text_survives_a_round_trip(kind: DataType) -> None:
    assert parse_sql_type(kind.sql()) == kind


@given(any_types())
def test_stored_form_survives_a_round_trip(kind: DataType) -> None:
    assert parse_type(kind.to_json()) == kind


@given(any_types())
def test_arrow_type_survives_a_round_trip(kind: DataType) -> None:
    once = type_from_arrow(kind.to_arrow())
    assert type_from_arrow(once.to_arrow()) == once


@pytest.mark.parametrize(
    ("arrow_type", "expected"),
    [
        (pa.int8(), "TINYINT"),
        (pa.uint8(), "SMALLINT"),
        (pa.uint16(), "INT"),
        (pa.uint32(), "BIGINT"),
        (pa.uint64(), "DECIMAL(20, 0)"),
        (pa.float16(), "FLOAT"),
        (pa.large_string(), "STRING"),
        (pa.string_view(), "STRING"),
        (pa.large_binary(), "BYTES"),
        (pa.binary(16), "BINARY(16)"),
        (pa.uuid(), "BINARY(16)"),
        (pa.date64(), "DATE"),
        (pa.time32("s"), "TIME(0)"),
        (pa.time32("ms"), "TIME(3)"),
        (pa.timestamp("s"), "TIMESTAMP(0)"),
        (pa.timestamp("ns"), "TIMESTAMP(9)"),
        (pa.timestamp("us", "Europe/Oslo"), "TIMESTAMP(6) WITH LOCAL TIME ZONE"),
        (pa.decimal256(30, 4), "DECIMAL(30, 4)"),
        (pa.dictionary(pa.int8(), pa.string()), "STRING"),
        (pa.large_list(pa.int32()), "ARRAY<INT>"),
        (pa.list_(pa.float32(), 4), "ARRAY<FLOAT>"),
        (pa.map_(pa.string(), pa.int32()), "MAP<STRING, INT>"),
        (pa.struct([pa.field("a", pa.int64(), nullable=False)]), "ROW<`a` BIGINT NOT NULL>"),
    ],
    ids=str,
)
def test_arrow_type_becomes_narrowest_table_type(arrow_type: pa.DataType, expected: str) -> None:
    assert type_from_arrow(arrow_type).sql() == expected
    assert type_from_arrow(arrow_type, nullable=False).sql() == f"{expected} NOT NULL"


@pytest.mark.parametrize(
    ("arrow_type", "way_out"),
    [
        (pa.null(), "cast it to the intended type"),
        (pa.time64("us"), "pa.time32('ms')"),
        (pa.time64("ns"), "pa.time32('ms')"),
        (pa.duration("s"), "int64"),
        (pa.month_day_nano_interval(), "integer columns"),
        (pa.decimal256(40, 2), "between 1 and 38"),
    ],
    ids=str,
)
def test_arrow_type_without_table_type_names_the_way_out(
    arrow_type: pa.DataType, way_out: str
) -> None:
    with pytest.raises(InvalidError) as raised:
        type_from_arrow(arrow_type)
    assert way_out in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TIMESTAMP(0)", pa.timestamp("ms")),
        ("TIMESTAMP(3)", pa.timestamp("ms")),
        ("TIMESTAMP(4)", pa.timestamp("us")),
        ("TIMESTAMP(7)", pa.timestamp("ns")),
        ("TIMESTAMP_LTZ(6)", pa.timestamp("us", tz="UTC")),
        ("TIME(0)", pa.time32("ms")),
        ("DECIMAL(5, 2)", pa.decimal128(5, 2)),
        ("CHAR(3)", pa.string()),
        ("BINARY(3)", pa.binary()),
        ("MULTISET<STRING>", pa.map_(pa.string(), pa.int32())),
        ("VECTOR<FLOAT, 2>", pa.list_(pa.float32(), 2)),
        ("GEOMETRY", pa.binary()),
    ],
)
def test_table_type_becomes_arrow_type(text: str, expected: pa.DataType) -> None:
    assert parse_sql_type(text).to_arrow() == expected


def test_arrow_schema_keeps_nullability() -> None:
    fields = [Field(0, "k", parse_type("INT NOT NULL")), Field(1, "v", STRING)]
    expected = pa.schema([pa.field("k", pa.int32(), nullable=False), pa.field("v", pa.string())])
    assert arrow_schema(fields) == expected


def test_field_ignores_unknown_members_and_leaves_out_absent_ones() -> None:
    stored = {"id": 4, "name": "v", "type": "INT", "nullable": True}
    assert parse_field(stored) == Field(4, "v", AtomicType("INT"))
    assert parse_field(stored).to_json() == {"id": 4, "name": "v", "type": "INT"}


@pytest.mark.parametrize(
    ("root", "parameters", "gist"),
    [
        ("INT", {"length": 4}, "takes no length"),
        ("VARCHAR", {}, "needs a length"),
        ("DECIMAL", {"precision": 4}, "needs a scale"),
        ("STRING", {}, "Unknown type 'STRING'"),
    ],
)
def test_type_with_foreign_or_missing_parameter_is_refused(
    root: str, parameters: dict[str, int], gist: str
) -> None:
    with pytest.raises(InvalidError) as raised:
        AtomicType(root, **parameters)  # type: ignore[arg-type]
    assert gist in str(raised.value)


def test_string_and_bytes_are_the_longest_varchar_and_varbinary() -> None:
    assert parse_type("VARCHAR(2147483647)") == STRING
    assert parse_type("VARBINARY(2147483647)") == BYTES


@pytest.mark.parametrize(
    ("kind", "short"),
    [
        (RowKind.INSERT, "+I"),
        (RowKind.UPDATE_BEFORE, "-U"),
        (RowKind.UPDATE_AFTER, "+U"),
        (RowKind.DELETE, "-D"),
    ],
)
def test_row_kind_is_read_in_either_case(kind: RowKind, short: str) -> None:
    assert kind.short == short
    assert RowKind.parse(short) is kind
    assert RowKind.parse(short.lower()) is kind


def test_unknown_row_kind_names_the_known_ones() -> None:
    with pytest.raises(InvalidError, match=r"Unsupported short string 'I' .*'\+I', '-U'"):
        RowKind.parse("I")
