from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from vectors import GOLDEN

from keytide.errors import DataError, InvalidError, NotFoundError, UnsupportedError
from keytide.format.schema import (
    KEY_FIELD_ID_START,
    TableSchema,
    assign_field_ids,
    highest_field_id,
    validate_schema,
)
from keytide.types import Field, RowType, arrow_schema
from new_tables import fields_of

STORED = GOLDEN["json_documents"]["schema"].encode()
SAMPLES = sorted((Path(__file__).parents[1] / "data" / "samples").rglob("schema/schema-*"))


def schema_of(
    ddl: str = "k INT, p STRING, v INT", keys: str = "k", partitions: str = ""
) -> TableSchema:
    return TableSchema.create(
        fields_of(ddl), primary_keys=keys.split(), partition_keys=partitions.split()
    )


def stored_with(**members: Any) -> bytes:
    document = json.loads(STORED) | members
    return json.dumps({k: v for k, v in document.items() if v is not ...}).encode()


def ids_of(fields: tuple[Field, ...]) -> str:
    """Names and ids in reading order, nested members in brackets."""
    parts = []
    for each in fields:
        inner = getattr(each.type, "element", each.type)
        nested = f"[{ids_of(inner.fields)}]" if isinstance(inner, RowType) else ""
        parts.append(f"{each.name}{each.id}{nested}")
    return " ".join(parts)


def test_stored_schema_is_read_and_written_byte_for_byte() -> None:
    schema = TableSchema.from_json(STORED)
    assert schema.names == ("id", "n", "d", "a", "m")
    assert schema.primary_keys == ("id",)
    assert schema.options == {"bucket": "2"}
    assert schema.field("d").default_value == "1.5"
    assert list(json.loads(schema.to_json()).items())[:-1] == list(json.loads(STORED).items())
    assert schema.to_json().startswith(STORED.removesuffix(b"\n}"))


def test_comment_stands_between_options_and_time() -> None:
    schema = replace(TableSchema.from_json(STORED), comment="né")
    assert list(json.loads(schema.to_json()))[-4:-1] == ["options", "comment", "timeMillis"]
    assert TableSchema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: "/".join(path.parts[-3:]))
def test_sample_schema_survives_a_round_trip(path: Path) -> None:
    schema = TableSchema.from_json(path.read_bytes(), str(path))
    assert TableSchema.from_json(schema.to_json()) == schema
    validate_schema(schema)


@pytest.mark.parametrize(
    ("version", "options"),
    [
        (..., {"bucket": "1", "file.format": "orc"}),
        (1, {"bucket": "1", "file.format": "orc"}),
        (2, {"file.format": "orc"}),
        (3, {}),
    ],
)
def test_older_version_gets_the_defaults_of_its_time(version: Any, options: Any) -> None:
    assert TableSchema.from_json(stored_with(version=version, options={})).options == options


def test_older_versions_defaults_give_way_to_options() -> None:
    given_options = {"bucket": "4", "file.format": "parquet"}
    stored = stored_with(version=1, options=given_options)
    assert TableSchema.from_json(stored).options == given_options


def test_missing_time_is_zero_and_null_comment_is_none() -> None:
    schema = TableSchema.from_json(stored_with(timeMillis=..., comment=None))
    assert schema.time_millis == 0
    assert schema.comment is None


@pytest.mark.parametrize("keys", ["primaryKeys", "partitionKeys"])
def test_keys_that_are_no_columns_are_damage(keys: str) -> None:
    fields = fields_of("k INT, p INT")
    schema = TableSchema.create(fields, primary_keys=["k", "p"], partition_keys=["p"])
    document = json.loads(schema.to_json())
    document[keys] = [name.upper() for name in document[keys]]
    with pytest.raises(DataError, match=r"the-file: the keys .* are not columns"):
        TableSchema.from_json(json.dumps(document).encode(), "the-file")


def test_newer_version_is_unsupported_and_names_the_file() -> None:
    with pytest.raises(UnsupportedError, match=r"db/t/schema/schema-0: schema version 4"):
        TableSchema.from_json(stored_with(version=4), "db/t/schema/schema-0")


@pytest.mark.parametrize(
    ("data", "gist"),
    [
        (STORED[:-9], "not a complete JSON document"),
        (b"[]", "expected a JSON object"),
        (stored_with(fields=...), "member 'fields' must be a list"),
        (stored_with(fields=[{"id": 0, "name": "a", "type": "ARRAY<INT>"}]), "unsupported type"),
        (stored_with(fields=[{"id": 0, "type": "INT"}]), "'name' is missing"),
    ],
)
def test_broken_schema_file_is_named(data: bytes, gist: str) -> None:
    with pytest.raises(DataError, match="schema-7") as raised:
        TableSchema.from_json(data, "schema-7")
    assert gist in str(raised.value)


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("a INT, b INT", "a0 b1"),
        ("a ROW<x INT, y INT>, b INT", "a0[x1 y2] b3"),
        ("a ARRAY<ROW<x INT>>, b INT", "a0[x1] b2"),
        # Inside nested types a member is numbered after its own members.
        ("a ROW<x ROW<y INT, z INT>, w INT>, b INT", "a0[x3[y1 z2] w4] b5"),
    ],
)
def test_ids_of_a_new_table_follow_javas_order(ddl: str, expected: str) -> None:
    assert ids_of(assign_field_ids(fields_of(ddl))) == expected


def test_ids_of_map_go_through_key_then_value() -> None:
    (numbered,) = assign_field_ids(fields_of("m MAP<ROW<a INT>, MULTISET<ROW<b INT>>>"))
    assert '"id": 1, "name": "a"' in json.dumps(numbered.to_json())
    assert highest_field_id([numbered]) == 2


def test_added_column_takes_the_ids_after_the_highest() -> None:
    added = assign_field_ids(fields_of("r ROW<x INT>"), first_id=8)
    assert ids_of(added) == "r8[x9]"


def test_highest_field_id_counts_nested_members() -> None:
    assert highest_field_id(assign_field_ids(fields_of("a ARRAY<ROW<x INT, y INT>>"))) == 2
    assert highest_field_id([]) == -1


def test_new_schema_numbers_columns_and_makes_keys_not_null() -> None:
    schema = schema_of("v INT, k INT, r ROW<x INT>", keys="k")
    assert ids_of(schema.fields) == "v0 k1 r2[x3]"
    assert schema.highest_field_id == 3
    assert schema.arrow_schema() == pa.schema(
        [
            pa.field("v", pa.int32()),
            pa.field("k", pa.int32(), nullable=False),
            pa.field("r", pa.struct([pa.field("x", pa.int32())])),
        ]
    )


def test_trimmed_key_leaves_out_partition_columns_and_keeps_the_keys_order() -> None:
    schema = schema_of("a INT, p STRING, b STRING", keys="b p a", partitions="p")
    assert schema.trimmed_primary_keys == ("b", "a")
    assert [each.name for each in schema.partition_fields()] == ["p"]
    assert not schema.is_cross_partition


def test_key_fields_carry_prefix_and_reserved_ids() -> None:
    keys = schema_of("a INT, b STRING", keys="b a").key_fields()
    assert [(each.id, each.name) for each in keys] == [
        (KEY_FIELD_ID_START + 1, "_KEY_b"),
        (KEY_FIELD_ID_START, "_KEY_a"),
    ]
    assert [each.nullable for each in arrow_schema(keys)] == [False, False]


@pytest.mark.parametrize(("keys", "expected"), [("k", True), ("k p", False), ("", False)])
def test_key_without_a_partition_column_is_cross_partition(keys: str, expected: bool) -> None:
    assert schema_of(keys=keys, partitions="p").is_cross_partition is expected


def test_unknown_column_names_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="No column 'amuont'; did you mean amount"):
        schema_of("k INT, amount INT").field("amuont")


@pytest.mark.parametrize(
    ("ddl", "keys", "partitions", "gist"),
    [
        ("", "", "", "at least one column"),
        ("k INT, k STRING", "k", "", "the table has duplicate names: [k] in [k, k]"),
        ("k INT", "x", "", "the primary key [x] names columns that do not exist: [x]"),
        ("k INT", "k", "p", "the partition key [p] names columns that do not exist: [p]"),
        ("k INT", "k k", "", "the primary key has duplicate names: [k]"),
        ("k INT, p INT", "k", "p p", "the partition key has duplicate names: [p]"),
        ("k INT, p INT", "p", "p", "the primary key [p] consists of partition columns only"),
        ("k INT", "k", "k", "each partition of [k] would have one row"),
        ("k ARRAY<INT>", "k", "", "the primary key names column 'k' of type ARRAY"),
        ("k VARIANT", "k", "", "the primary key names column 'k' of type VARIANT"),
        ("k INT, p ROW<x INT>", "k", "p", "the partition key names column 'p' of type ROW"),
        ("_KEY_v INT", "", "", "column '_KEY_v' begins with '_KEY_'"),
        ("rowkind STRING", "", "", "column 'rowkind': the names ["),
        ("_SEQUENCE_NUMBER INT", "", "", "column '_SEQUENCE_NUMBER': the names ["),
        ("_ROW_ID INT", "", "", "column '_ROW_ID': the names ["),
    ],
)
def test_unsound_schema_is_refused(ddl: str, keys: str, partitions: str, gist: str) -> None:
    with pytest.raises(InvalidError) as raised:
        schema_of(ddl, keys, partitions)
    assert gist in str(raised.value)


def test_table_without_primary_key_is_sound() -> None:
    assert schema_of(keys="").trimmed_primary_keys == ()
