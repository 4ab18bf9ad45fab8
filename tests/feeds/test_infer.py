from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from feeds import Message, batch
from keytide.cdc import (
    FeedSpec,
    SequenceSource,
    decode,
    default_sequence,
    infer_columns,
    infer_primary_key,
)
from keytide.errors import InvalidError
from keytide.feeds import inference
from keytide.feeds.decode import Documents, read_events
from keytide.feeds.inference import Sample
from keytide.types import STRING, AtomicType, Field


def columns(format: str, *messages: Message) -> str:
    return "; ".join(f"{f.name} {f.type.sql()}" for f in infer_columns(batch(messages), format))


def type_of(*values: Any) -> str:
    messages = [{"op": "c", "after": {"v": value}} for value in values]
    return columns("debezium-json", *messages).removeprefix("v ")


def sequence(format: str, *messages: Message) -> str:
    sources = default_sequence(batch(messages), format)
    return "; ".join(f"{s.column} {s.type.sql()}" for s in sources)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([None], "STRING"),
        ([True, None], "BOOLEAN"),
        ([1, 2**63 - 1], "BIGINT"),
        ([1, 2**63], "DECIMAL(38, 0)"),
        ([1, 1.5], "DOUBLE"),
        (["007"], "STRING"),
        (["2026-11-20"], "DATE"),
        (["2026-11-20", "soon"], "STRING"),
        (["2026-11-20 01:02:03.5"], "TIMESTAMP(6)"),
        (["2026-11-20T00:00:00Z", None], "TIMESTAMP(6) WITH LOCAL TIME ZONE"),
        (["2026-11-20 01:02:03.1234567"], "STRING"),
        ([1, "a"], "STRING"),
        ([[1]], "STRING"),
        ([{"a": 1}], "STRING"),
        (["__debezium_unavailable_value", 5], "BIGINT"),
        (["__debezium_unavailable_value"], "STRING"),
    ],
)
def test_values_without_schema_take_the_narrowest_type(values: list[Any], expected: str) -> None:
    assert type_of(*values) == expected


def test_columns_come_from_every_image_in_order_of_appearance() -> None:
    assert (
        columns(
            "debezium-json",
            {"op": "c", "after": {"id": 1, "a": "x"}},
            {"op": "u", "after": {"id": 1, "b": True}},
            {"op": "d", "before": {"id": 1, "c": 1.5}},
            "broken",
            None,
        )
        == "id BIGINT; a STRING; b BOOLEAN; c DOUBLE"
    )


def test_debezium_schema_gives_exact_types_and_nullability() -> None:
    decimal = {
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2", "connect.decimal.precision": "12"},
    }
    members: list[dict[str, Any]] = [
        {"field": "id", "type": "int64"},
        {"field": "n", "type": "int16", "optional": True},
        {"field": "a", "type": "bytes", "optional": True, **decimal},
        {"field": "d", "type": "int32", "optional": True, "name": "io.debezium.time.Date"},
        {
            "field": "t",
            "type": "int64",
            "optional": True,
            "name": "io.debezium.time.MicroTimestamp",
        },
        {
            "field": "z",
            "type": "string",
            "optional": True,
            "name": "io.debezium.time.ZonedTimestamp",
        },
        {"field": "j", "type": "string", "optional": True, "name": "io.debezium.data.Json"},
        {"field": "f", "type": "float", "optional": True},
        {"field": "l", "type": "array", "optional": True, "items": {"type": "int32"}},
        {"field": "b", "type": "bytes", "optional": True},
    ]
    after = {"field": "after", "type": "struct", "fields": members}
    message = {
        "schema": {"type": "struct", "fields": [after]},
        "payload": {"op": "c", "after": dict.fromkeys(m["field"] for m in members)},
    }
    assert columns("debezium-json", message) == (
        "id BIGINT NOT NULL; n SMALLINT; a DECIMAL(12, 2); d DATE; t TIMESTAMP(6);"
        " z TIMESTAMP(6) WITH LOCAL TIME ZONE; j STRING; f FLOAT; l ARRAY<INT NOT NULL>; b BYTES"
    )


def test_canal_states_mysql_types_and_the_primary_key() -> None:
    message = {
        "type": "INSERT",
        "data": [{"id": "1", "a": "1.5", "t": None, "n": "1", "u": "1", "e": "x", "h": "1"}],
        "pkNames": ["id", "n"],
        "mysqlType": {
            "id": "bigint(20)",
            "a": "decimal(12,2)",
            "t": "datetime(6)",
            "n": "VARCHAR(20)",
            "u": "bigint(20) unsigned",
            "e": "enum('x','y')",
            "h": "decimal(65,2)",
        },
    }
    assert columns("canal-json", message) == (
        "id BIGINT; a DECIMAL(12, 2); t TIMESTAMP(6); n VARCHAR(20); u DECIMAL(20, 0);"
        " e STRING; h STRING"
    )
    assert infer_primary_key(batch([None, message]), "canal-json") == ("id", "n")


def test_primary_key_is_unknown_where_the_feed_does_not_name_it() -> None:
    message = {"op": "c", "after": {"id": 1}}
    assert infer_primary_key(batch([message]), "debezium-json") == ()


def test_dms_flat_rows_lose_their_op_column() -> None:
    assert columns("dms-json", {"Op": "I", "id": 1, "at": "2026-01-02"}) == "id BIGINT; at DATE"


def test_sample_without_rows_is_refused() -> None:
    with pytest.raises(InvalidError, match="sample of 2 messages contains no row"):
        infer_columns(batch([None, {"op": "m"}]), "debezium-json")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"lsn": 5, "ts_ms": 1}, "_epoch INT; _commit_lsn BIGINT; _lsn BIGINT"),
        (
            {"file": "b.1", "pos": 4, "row": 0, "ts_ms": 1},
            "_epoch INT; _file BIGINT; _pos BIGINT; _row BIGINT",
        ),
        (
            {"commit_lsn": "0:1", "change_lsn": None, "ts_ms": 1},
            "_epoch INT; _commit_lsn STRING; _change_lsn STRING; _event_serial_no BIGINT",
        ),
        (
            {"scn": "12"},
            "_epoch INT; _commit_scn DECIMAL(38, 0); _scn DECIMAL(38, 0); _rs_id STRING;"
            " _ssn BIGINT",
        ),
        ({"ts_ms": 1}, "_source_ts_ms BIGINT; _ts_ms BIGINT"),
        ({}, ""),
    ],
)
def test_debezium_order_follows_the_connector(source: dict[str, Any], expected: str) -> None:
    message = {"op": "c", "after": {"id": 1}, "source": source}
    assert sequence("debezium-json", None, message) == expected


@pytest.mark.parametrize(
    ("format", "message", "expected"),
    [
        ("canal-json", {"type": "INSERT", "data": [{}], "ts": 1, "id": 2}, ["ts", "id"]),
        ("dms-json", {"Op": "I", "id": 1, "AR_H_CHANGE_SEQ": "20"}, ["change_seq"]),
        ("dms-json", {"Op": "I", "id": 1}, []),
    ],
)
def test_other_formats_order_by_their_own_metadata(
    format: str, message: dict[str, Any], expected: list[str]
) -> None:
    assert [s.path for s in default_sequence(batch([message]), format)] == expected


def test_maxwell_without_positions_has_no_order_of_commits() -> None:
    message = {"type": "insert", "data": {}, "ts": 1, "xid": 5, "commit": True}
    with pytest.raises(InvalidError, match="output_binlog_position=true"):
        default_sequence(batch([message]), "maxwell-json")


@pytest.mark.parametrize(
    ("values", "type"), [([1, 2], "BIGINT"), ([1, "x"], "STRING"), ([None], "STRING")]
)
def test_member_that_orders_changes_takes_the_type_of_its_values(
    values: list[Any], type: str
) -> None:
    messages = [{"op": "c", "after": {"id": 1}, "source": {"tick": value}} for value in values]
    found = Sample(batch(messages), "debezium-json", ("source.tick",)).source("source.tick")
    assert (found.path, found.column, found.type.sql()) == ("source.tick", "_tick", type)


def test_sample_that_answers_everything_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(documents: Documents, *given: Any) -> Any:
        read.append(len(documents.text))
        return read_events(documents, *given)

    monkeypatch.setattr(inference, "read_events", counted)
    message = {"type": "INSERT", "data": [{"id": "1"}], "pkNames": ["id"], "ts": 5, "id": 7, "n": 9}
    sample = Sample(batch([message]), "canal-json", ("n",))
    assert [f.name for f in sample.columns()] == ["id"]
    assert sample.primary_key() == ("id",)
    assert [s.column for s in sample.sequence()] == ["_ts", "_id"]
    assert sample.source("n") == SequenceSource("n", "_n", AtomicType("BIGINT"))
    assert read == [1]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("numbers", "type"),
    [
        (["0.5", "1.25"], "DOUBLE"),
        (["0.30000000000000004"], "DOUBLE"),
        (["999999999999.999998"], "DECIMAL(38, 6)"),
        (["0.5", "9007199254740993.5"], "DECIMAL(38, 1)"),
        (["123456789012345678e1"], "DECIMAL(38, 0)"),
        (["1e-45"], "DOUBLE"),
        (["9" * 41], "STRING"),
        (["0." + "1" * 40], "STRING"),
    ],
)
def test_numbers_keep_all_their_digits(numbers: list[str], type: str) -> None:
    messages = [f'{{"op":"c","after":{{"id":{i},"v":{n}}}}}' for i, n in enumerate(numbers)]
    columns_ = infer_columns(batch(messages), "debezium-json")
    assert columns_[1].type.sql() == type
    rows = decode(batch(messages), FeedSpec("debezium-json", columns_, ("id",))).rows
    assert [Decimal(str(v)) for v in rows["v"].to_pylist()] == [Decimal(n) for n in numbers]


def test_string_shows_a_number_as_it_was_written() -> None:
    columns_ = (Field(-1, "id", AtomicType("BIGINT")), Field(-1, "v", STRING))
    written = ["1.10", "1e3", '"1.10"', '{"a":1.10,"b":"2.50"}', "[1.0,2]"]
    messages = [f'{{"op":"c","after":{{"id":1,"v":{text}}}}}' for text in written]
    rows = decode(batch(messages), FeedSpec("debezium-json", columns_, ("id",))).rows
    assert rows["v"].to_pylist() == ["1.10", "1e3", "1.10", written[3], written[4]]
