from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any

import pytest

from feeds import batch, decoded, feed, lines, ordered_feed
from keytide.cdc import FeedSpec, SequenceSource, debezium_encoding, decode, infer_columns
from keytide.errors import InvalidError
from keytide.types import AtomicType

PLACEHOLDER = "__debezium_unavailable_value"
ID_AND_V = feed("debezium-json", "id INT; v STRING")


def change(op: str, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 7}


def with_schema(columns: list[dict[str, Any]], payload: Any) -> dict[str, Any]:
    image = {"type": "struct", "fields": columns, "optional": True}
    members = [{**image, "field": "before"}, {**image, "field": "after"}]
    return {"schema": {"type": "struct", "fields": members}, "payload": payload}


def test_each_operation_becomes_its_row_kind() -> None:
    assert lines(
        ID_AND_V,
        change("r", after={"id": 1, "v": "a"}),
        change("c", after={"id": 2, "v": None}),
        change("u", {"id": 1, "v": "a"}, {"id": 1, "v": "b"}),
        change("d", {"id": 2, "v": "x"}),
    ) == ["0 +I id=1 v=a", "1 +I id=2 v=None", "2 +U id=1 v=b", "3 -D id=2 v=x"]


def test_update_without_before_image_is_one_row() -> None:
    assert lines(ID_AND_V, change("u", None, {"id": 1, "v": "b"})) == ["0 +U id=1 v=b"]


def test_before_images_asked_for_precede_the_update() -> None:
    spec = feed("debezium-json", "id INT; v STRING", before_images=True)
    assert lines(
        spec,
        change("u", {"id": 1, "v": "a"}, {"id": 1, "v": "b"}),
        change("u", None, {"id": 1, "v": "c"}),
    ) == ["0 -U id=1 v=a", "0 +U id=1 v=b", "1 +U id=1 v=c"]


def test_changed_key_deletes_the_old_row_and_inserts_the_new_at_the_same_position() -> None:
    spec = ordered_feed(
        "debezium-json",
        "id INT; v STRING",
        SequenceSource("source.lsn", "_lsn", AtomicType("BIGINT")),
    )
    moved = change("u", {"id": 1, "v": "a"}, {"id": 2, "v": "b"}, lsn=9)
    assert lines(spec, moved) == ["0 -D id=1 v=a _lsn=9", "0 +I id=2 v=b _lsn=9"]


def test_changed_part_of_a_composite_key_moves_the_row() -> None:
    spec = feed("debezium-json", "a INT; b STRING; v INT", key="a b")
    before, after = {"a": 1, "b": "x", "v": 1}, {"a": 1, "b": "y", "v": 1}
    assert lines(spec, change("u", before, after)) == ["0 -D a=1 b=x v=1", "0 +I a=1 b=y v=1"]


def test_null_messages_and_empty_payloads_are_tombstones() -> None:
    result = decoded(ID_AND_V, None, "null", {"schema": None, "payload": None})
    assert (result.tombstones, result.rows.num_rows, result.rejected.num_rows) == (3, 0, 0)


def test_logical_message_is_control_and_truncate_is_rejected() -> None:
    result = decoded(ID_AND_V, change("m"), change("t"))
    assert result.control == 1
    assert result.rejected["ordinal"].to_pylist() == [1]
    assert "truncate" in result.rejected["reason"][0].as_py()


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("STRING", PLACEHOLDER),
        ("BYTES", base64.b64encode(PLACEHOLDER.encode()).decode()),
        ("ARRAY<STRING>", [PLACEHOLDER]),
        ("ARRAY<INT>", list(PLACEHOLDER.encode())),
        ("MAP<STRING, STRING>", {PLACEHOLDER: PLACEHOLDER}),
    ],
)
def test_unavailable_value_of_each_type_is_left_out_and_not_null(type: str, value: Any) -> None:
    spec = feed("debezium-json", f"id INT; v {type}")
    assert lines(
        spec, change("u", None, {"id": 1, "v": value}), change("u", None, {"id": 1, "v": None})
    ) == ["0 +U id=1 v?", "1 +U id=1 v=None"]


def test_unavailable_value_is_taken_from_the_before_image_that_has_it() -> None:
    before, after = {"id": 1, "v": "long"}, {"id": 2, "v": PLACEHOLDER}
    assert lines(ID_AND_V, change("u", before, after)) == ["0 -D id=1 v=long", "0 +I id=2 v=long"]


def test_null_before_image_of_an_unavailable_value_is_not_believed() -> None:
    before, after = {"id": 1, "v": None}, {"id": 1, "v": PLACEHOLDER}
    assert lines(ID_AND_V, change("u", before, after)) == ["0 +U id=1 v?"]


def test_unavailable_value_of_a_not_null_column_is_accepted() -> None:
    spec = feed("debezium-json", "id INT; v STRING NOT NULL")
    assert lines(spec, change("u", None, {"id": 1, "v": PLACEHOLDER})) == ["0 +U id=1 v?"]


def test_placeholder_of_a_deleted_row_is_null_and_not_listed() -> None:
    assert lines(ID_AND_V, change("d", {"id": 1, "v": PLACEHOLDER})) == ["0 -D id=1 v=None"]


def test_configured_placeholder_replaces_the_default_one() -> None:
    spec = feed("debezium-json", "id INT; v STRING", unavailable_value="?!")
    assert lines(
        spec,
        change("u", None, {"id": 1, "v": "?!"}),
        change("u", None, {"id": 1, "v": PLACEHOLDER}),
    ) == ["0 +U id=1 v?", f"1 +U id=1 v={PLACEHOLDER}"]


def test_column_missing_from_an_update_keeps_its_value_and_from_an_insert_is_null() -> None:
    assert lines(ID_AND_V, change("u", None, {"id": 1}), change("c", None, {"id": 2})) == [
        "0 +U id=1 v?",
        "1 +I id=2 v=None",
    ]


def test_schema_of_each_message_decides_how_its_values_read() -> None:
    def decimal(scale: int) -> list[dict[str, Any]]:
        name = "org.apache.kafka.connect.data.Decimal"
        parameters = {"scale": str(scale)}
        return [
            {"field": "id", "type": "int32"},
            {"field": "v", "type": "bytes", "name": name, "parameters": parameters},
        ]

    spec = feed("debezium-json", "id INT; v DECIMAL(8, 3)")
    assert lines(
        spec,
        with_schema(decimal(2), change("c", after={"id": 1, "v": "AfQ="})),
        change("c", after={"id": 2, "v": "1.5"}),
        with_schema(decimal(3), change("c", after={"id": 3, "v": "AfQ="})),
        with_schema(decimal(2), change("c", after={"id": 4, "v": "/w=="})),
    ) == ["0 +I id=1 v=5.000", "1 +I id=2 v=1.500", "2 +I id=3 v=0.500", "3 +I id=4 v=-0.010"]


@pytest.mark.parametrize(
    ("semantic", "value", "type", "expected"),
    [
        ("io.debezium.time.Date", 20000, "DATE", "2024-10-04"),
        ("io.debezium.time.Time", 1500, "TIME(3)", "00:00:01.500000"),
        ("io.debezium.time.MicroTime", 1500000, "TIME(3)", "00:00:01.500000"),
        ("io.debezium.time.NanoTime", 1500000000, "TIME(3)", "00:00:01.500000"),
        ("io.debezium.time.Timestamp", 1500, "TIMESTAMP(6)", "1970-01-01 00:00:01.500000"),
        ("io.debezium.time.MicroTimestamp", 1500000, "TIMESTAMP(3)", "1970-01-01 00:00:01.500000"),
        ("io.debezium.time.NanoTimestamp", 1500, "TIMESTAMP(9)", "1970-01-01 00:00:00.000001500"),
        ("io.debezium.time.MicroTimestamp", 86400000000, "DATE", "1970-01-02"),
        ("io.debezium.time.ZonedTime", "01:02:03Z", "TIME(0)", "01:02:03"),
        (
            "io.debezium.time.ZonedTimestamp",
            "2026-11-20T14:41:48.5+02:00",
            "TIMESTAMP_LTZ(3)",
            "2026-11-20 12:41:48.500000+00:00",
        ),
        ("io.debezium.time.Year", 2026, "INT", "2026"),
        ("org.apache.kafka.connect.data.Date", 20000, "DATE", "2024-10-04"),
        ("org.apache.kafka.connect.data.Time", 1500, "TIME(3)", "00:00:01.500000"),
        (
            "org.apache.kafka.connect.data.Timestamp",
            1500,
            "TIMESTAMP(6)",
            "1970-01-01 00:00:01.500000",
        ),
        ("io.debezium.data.Json", '{"a": 1}', "STRING", '{"a": 1}'),
        ("io.debezium.data.Enum", "red", "STRING", "red"),
        ("io.debezium.data.Bits", "Aw==", "STRING", "Aw=="),
        (None, "AfQ=", "BYTES", "b'\\x01\\xf4'"),
        (
            "io.debezium.data.VariableScaleDecimal",
            {"scale": 3, "value": "AfQ="},
            "DECIMAL(6, 2)",
            "0.50",
        ),
    ],
)
def test_semantic_types_of_the_schema_read_exactly(
    semantic: str | None, value: Any, type: str, expected: str
) -> None:
    spec = feed("debezium-json", f"id INT; v {type}")
    columns = [{"field": "id", "type": "int32"}, {"field": "v", "name": semantic}]
    result = decoded(spec, with_schema(columns, change("c", after={"id": 1, "v": value})))
    assert result.rejected.to_pylist() == []
    assert str(result.rows["v"][0].as_py()) == expected


@pytest.mark.parametrize(
    ("settings", "type", "value", "expected"),
    [
        ({}, "TIMESTAMP(3)", 1500, "1970-01-01 00:00:01.500000"),
        ({}, "TIMESTAMP(6)", 1500, "1970-01-01 00:00:00.001500"),
        ({}, "TIME(3)", 1500, "00:00:01.500000"),
        ({"time_precision_mode": "connect"}, "TIMESTAMP(6)", 1500, "1970-01-01 00:00:01.500000"),
        (
            {"time_precision_mode": "adaptive_time_microseconds"},
            "TIME(3)",
            1500000,
            "00:00:01.500000",
        ),
        ({"decimal_handling_mode": "precise"}, "DECIMAL(6, 2)", "AfQ=", "5.00"),
        ({"decimal_handling_mode": "precise"}, "DECIMAL(9, 2)", "1234", "-26588.24"),
        ({"decimal_handling_mode": "string"}, "DECIMAL(9, 2)", "1234", "1234.00"),
        ({"binary_handling_mode": "hex"}, "BYTES", "01f4", "b'\\x01\\xf4'"),
        ({"binary_handling_mode": "base64-url-safe"}, "BYTES", "_w==", "b'\\xff'"),
    ],
)
def test_connector_settings_decide_where_messages_have_no_schema(
    settings: dict[str, str], type: str, value: Any, expected: str
) -> None:
    encoding = debezium_encoding(**settings)
    spec = feed("debezium-json", f"id INT; v {type}", encoding=encoding)
    result = decoded(spec, change("c", after={"id": 1, "v": value}))
    assert result.rejected.to_pylist() == []
    assert str(result.rows["v"][0].as_py()) == expected


def test_unknown_connector_setting_is_refused() -> None:
    with pytest.raises(InvalidError, match="decimal_handling_mode: found 'exact', expected one of"):
        debezium_encoding(decimal_handling_mode="exact")


def test_columns_whose_names_look_like_paths_are_found() -> None:
    spec = feed("debezium-json", 'id INT; a.b STRING; a/b STRING; a~b STRING; $."x STRING')
    row = {"id": 1, "a.b": "dot", "a/b": "slash", "a~b": "tilde", '$."x': "quote"}
    [found] = decoded(spec, change("c", after=row)).rows.to_pylist()
    assert {name: found[name] for name in row} == row


def test_empty_text_is_null_only_in_the_columns_named() -> None:
    spec = feed("debezium-json", "id INT; v STRING; w STRING", empty_as_null=frozenset({"v"}))
    assert lines(spec, change("c", after={"id": 1, "v": "", "w": ""})) == ["0 +I id=1 v=None w="]


def test_missing_ordering_value_is_null() -> None:
    lsn = SequenceSource("source.lsn", "_lsn", AtomicType("BIGINT"))
    spec = ordered_feed("debezium-json", "id INT", lsn)
    assert lines(
        spec, change("r", after={"id": 1}), json.dumps({"op": "c", "after": {"id": 2}})
    ) == [
        "0 +I id=1 _lsn=None",
        "1 +I id=2 _lsn=None",
    ]


def test_update_of_the_key_that_omits_a_value_is_rejected_as_a_whole() -> None:
    moved = change("u", {"id": 1}, {"id": 9, "v": PLACEHOLDER})
    assert lines(ID_AND_V, change("c", after={"id": 1, "v": "a"}), moved) == [
        "0 +I id=1 v=a",
        "1 ! an update of the key omits v, which only the row of the old key has",
    ]


def _member(field: str, type: str, name: str, **parameters: str) -> dict[str, Any]:
    return {"field": field, "type": type, "optional": True, "name": name, "parameters": parameters}


_DECIMAL = "org.apache.kafka.connect.data.Decimal"


@pytest.mark.parametrize(
    ("member", "value", "type", "expected"),
    [
        (_member("v", "bytes", _DECIMAL, scale="2",
                 **{"connect.decimal.precision": "50"}), "AJY=", "STRING", "1.50"),
        (_member("v", "bytes", _DECIMAL, scale="2", **{"connect.decimal.precision": "50"}),
         base64.b64encode((-(10**45)).to_bytes(20, "big", signed=True)).decode(), "STRING",
         "-" + "1" + "0" * 43 + ".00"),
        (_member("v", "bytes", _DECIMAL, scale="x"), "AJY=", "DECIMAL(38, 0)", 150),
        (_member("v", "int64", "io.debezium.time.MicroTime"), 48_000_123_456, "STRING",
         "13:20:00.123456"),
        (_member("v", "int64", "io.debezium.time.MicroTime"), -3_020_399_000_000, "STRING",
         "-838:59:59"),
        (_member("v", "int64", "io.debezium.time.NanoTime"), 100, "STRING", "00:00:00.0000001"),
        (_member("v", "int32", "io.debezium.time.Time"), 1_000, "TIME(3)", dt.time(0, 0, 1)),
        (_member("v", "string", "io.debezium.time.ZonedTimestamp"),
         "2018-07-11T13:19:59.1234567+02:00", "STRING", "2018-07-11T13:19:59.1234567+02:00"),
    ],
)  # fmt: skip
def test_inferred_type_holds_the_true_value_and_no_other_column_loses_its_own(
    member: dict[str, Any], value: Any, type: str, expected: Any
) -> None:
    day = _member("day", "int32", "io.debezium.time.Date")
    id_ = {"field": "id", "type": "int64"}
    payload = change("c", after={"id": 1, "v": value, "day": 20454}, connector="sqlserver")
    message = with_schema([id_, member, day], payload)
    columns = infer_columns(batch([message]), "debezium-json")
    assert [c.type.sql() for c in columns] == ["BIGINT NOT NULL", type, "DATE"]
    [row] = decode(batch([message]), FeedSpec("debezium-json", columns, ("id",))).rows.to_pylist()
    assert (row["v"], row["day"]) == (expected, dt.date(2026, 1, 1))
