"""Changes as a table takes them: keys as stored, unmergeable messages rejected as wholes."""

from __future__ import annotations

from typing import Any

import pytest

import keytide as kt
from feeds import Message, batch, feed
from keytide.cdc import decode
from keytide.feeds.feed import FeedRequest
from keytide.feeds.feed_writer import adapt_to_table
from keytide.feeds.target import feed_target
from keytide.write.refusals import writable_view

MAX = {"merge-engine": "aggregation", "fields.v.aggregate-function": "max"}
CREATED: Message = {"op": "c", "after": {"id": 1, "v": 5}}
UPDATED: Message = {"op": "u", "before": {"id": 1, "v": 5}, "after": {"id": 1, "v": 7}}
MOVED: Message = {"op": "u", "before": {"id": 1, "v": 5}, "after": {"id": 2, "v": 5}}
DELETED: Message = {"op": "d", "before": {"id": 1, "v": 7}}
FEED = (CREATED, MOVED, DELETED, UPDATED)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, []),
        ({"merge-engine": "first-row"}, [1, 2]),
        ({"merge-engine": "first-row", "ignore-delete": "true"}, []),
        ({"merge-engine": "partial-update"}, [1, 2]),
        (MAX, [1, 2]),
        ({"constraint.small": "v < 6"}, [3]),
        ({"constraint.small": "v + id < 8 AND abs(v) < 6"}, [3]),
        ({**MAX, "aggregation.remove-record-on-delete": "true"}, []),
    ],
)
def test_messages_that_cannot_be_merged_are_rejected(
    warehouse: str, options: dict[str, str], refused: list[int]
) -> None:
    spec = feed("debezium-json", "id INT; v INT")
    table = kt.connect(warehouse).create_table("t", spec.columns, ["id"], options=options)
    messages = batch(FEED)

    found = adapt_to_table(decode(messages, spec), messages, writable_view(table.stored))

    rejected: list[dict[str, Any]] = found.rejected.to_pylist()
    assert [each["ordinal"] for each in rejected] == refused
    assert [each["raw"] for each in rejected] == [messages[i].as_py().encode() for i in refused]
    assert all(each["reason"] for each in rejected)
    assert set(found.rows["_ordinal"].to_pylist()) == {*range(len(FEED))} - {*refused}


@pytest.mark.parametrize(
    ("type", "given"), [("CHAR(3)", ["a", "a ", "a  "]), ("DOUBLE", [0.0, -0.0, 0.0])]
)
def test_equal_keys_are_the_same_however_messages_write_them(
    warehouse: str, type: str, given: list[Any]
) -> None:
    spec = feed("debezium-json", f"id {type}; v INT")
    table = kt.connect(warehouse).create_table("t", spec.columns, ["id"])
    messages = batch([{"op": "c", "after": {"id": key, "v": 1}} for key in given])

    found = adapt_to_table(decode(messages, spec), messages, writable_view(table.stored))

    assert found.rejected.num_rows == 0
    assert found.rows.schema == spec.rows_schema
    assert len({str(key) for key in found.rows["id"].to_pylist()}) == 1


@pytest.mark.parametrize("exists", [True, False])
def test_feed_goes_into_no_table_that_takes_kinds_from_a_column(
    warehouse: str, exists: bool
) -> None:
    lake, options = kt.connect(warehouse), {"rowkind.field": "op"}
    columns = feed("debezium-json", "id INT; op STRING").columns
    if exists:
        lake.create_table("t", columns, ["id"], options=options)
    request = FeedRequest(
        warehouse, "t", "", "debezium-json",
        columns=columns, primary_key=("id",), options={"Rowkind.Field": "op"},
    )  # fmt: skip
    before = lake.tables()
    with pytest.raises(kt.InvalidError, match="reads row kinds from column 'op'"):
        feed_target(lake.catalog, request, batch(FEED))
    assert lake.tables() == before


@pytest.mark.parametrize("key", [("id",), ("id", "half")], ids=["value", "key"])
def test_generated_columns_are_computed_and_other_values_rejected(
    warehouse: str, key: tuple[str, ...]
) -> None:
    columns = feed("debezium-json", "id INT; half INT").columns
    lake = kt.connect(warehouse)
    table = lake.create_table("t", columns, key, generated={"half": "id DIV 2"})
    rows = ({"id": 6}, {"id": 7, "half": 3}, {"id": 8, "half": 5})
    messages = batch([{"op": "c", "after": row} for row in rows])
    request = FeedRequest(warehouse, "t", "", "debezium-json")
    stored, spec = feed_target(lake.catalog, request, messages)

    found = adapt_to_table(decode(messages, spec), messages, writable_view(stored))

    [rejected] = found.rejected.to_pylist()
    assert rejected["ordinal"] == 2
    assert "another 'half'" in rejected["reason"]
    table.write(found.rows.select(["id", "half"]))
    assert table.scan().to_polars().sort("id").rows() == [(6, 3), (7, 3)]
