"""Feeds that bring more than their table takes: which columns, of which types."""

from __future__ import annotations

import json
from itertools import islice, permutations
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.cdc import FeedSpec
from keytide.feeds.inference import Sample, combined_columns, feed_growth
from keytide.types import Field, parse_sql_type


def fields(**types: str) -> tuple[Field, ...]:
    return tuple(Field(-1, name, parse_sql_type(type)) for name, type in types.items())


def as_text(found: Any) -> dict[str, str]:
    return {f.name: f.type.with_nullable(True).sql() for f in found}


SPEC = FeedSpec("debezium-json", fields(id="BIGINT", qty="INT", name="STRING"), ("id",))


def bare(**row: Any) -> str:
    return json.dumps({"op": "c", "before": None, "after": {"id": 1, **row}, "source": {"lsn": 1}})


def with_schema(types: dict[str, str], **row: Any) -> str:
    members = [
        {"field": n, "type": t, "optional": True} for n, t in {"id": "int64", **types}.items()
    ]
    image = {"type": "struct", "fields": members, "optional": True}
    envelope = [{"field": "before", **image}, {"field": "after", **image}]
    schema = {"type": "struct", "fields": envelope, "name": "server.t.Envelope"}
    return json.dumps({"schema": schema, "payload": json.loads(bare(**row))})


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([bare(qty=1, name="a")], {}),
        ([bare(qty=1, city="Oslo"), bare(age=3)], {"city": "STRING", "age": "BIGINT"}),
        ([bare(city=None)], {}),
        ([bare(qty=1 << 40)], {"qty": "BIGINT"}),
        ([bare(qty=1.5)], {"qty": "DOUBLE"}),
        ([bare(name=5)], {}),
        ([bare(_ordinal=5, _row_kind="x")], {}),
        ([with_schema({"qty": "int32", "age": "int16"}, qty=1, age=None)], {"age": "SMALLINT"}),
        ([with_schema({"qty": "int64"}, qty=1)], {"qty": "BIGINT"}),
        ([json.dumps({"op": "x"}), "garbled"], {}),
    ],
)
def test_what_messages_bring(messages: list[str], expected: dict[str, str]) -> None:
    found = Sample(pa.array(messages), "debezium-json").needed_columns(SPEC)
    assert as_text(f for f in found if f.name != "id") == expected


def test_looks_at_parts_of_a_feed_make_one_answer_in_any_order() -> None:
    looks = [
        *fields(a="BIGINT", b="DATE", c="BIGINT", d="TIMESTAMP(6)"),
        *fields(a="DOUBLE", b="STRING", c="DECIMAL(38, 0)", d="TIMESTAMP_LTZ(6)"),
        *fields(a="BIGINT", e="INT"),
    ]
    answers = [
        as_text(combined_columns(order)) for order in islice(permutations(looks), 0, None, 9973)
    ]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0] == {
        "a": "DOUBLE", "b": "STRING", "c": "DECIMAL(38, 0)",
        "d": parse_sql_type("TIMESTAMP_LTZ(6)").sql(), "e": "INT",
    }  # fmt: skip


def test_a_table_grows_only_where_both_types_have_one_in_common(warehouse: str) -> None:
    columns = fields(id="INT", qty="INT", name="STRING", due="DATE")
    schema = kt.connect(warehouse).create_table("t", columns, ["id"]).table_schema
    brought = fields(id="BIGINT", qty="BIGINT", name="INT", due="TIMESTAMP(6)", new="INT NOT NULL")
    changes = feed_growth(schema, brought)
    assert [(c.path, c.type.sql()) for c in changes] == [(("qty",), "BIGINT"), (("new",), "INT")]  # type: ignore[union-attr]
