"""Topics whose values are rows, and whose keys say of which row a message is."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from fake import FakeKafka, FakeTopic
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.feeds.feed import FeedRequest, columns_of
from keytide.feeds.kafka.ingest import KafkaRequest, feed_topics
from keytide.feeds.kafka.topics import rows_with_keys
from table_rows import rows

Message = tuple[bytes | None, bytes | None]


def fed(lake: kt.Lake, *messages: Message, **feed: Any) -> Any:
    """All messages go into the table by one run."""
    kafka = FakeKafka({"t": FakeTopic(partitions=[list(messages)])})
    request = FeedRequest(lake.uri, "t", "kafka://fake/t", "json", **feed)
    return feed_topics(KafkaRequest.of(request), lake.catalog, kafka)


def test_key_columns_come_with_the_key_or_the_value_and_no_value_deletes(lake: kt.Lake) -> None:
    report = fed(
        lake,
        (b'{"id": 1}', b'{"name": "a", "tags": {"x": null}}'),
        (b'{"schema": {}, "payload": {"id": 2}}', b' {"id": 2, "name": "b"} \n'),
        (b'{"id": 9}', b'{"id": 3, "name": "of the value"}'),
        (b'{"id": 4}', b"{ }"),
        (b'{"id": 5}', b'{"name": "gone"}'),
        (b'{"schema": {}, "payload": {"id": 5}}', None),
        (b'{"id": 1}', b'{"name": "A"}'),
    )  # fmt: skip
    assert (report.rows_in, report.applied, report.rejected) == (7, 7, 0)
    found = lake.table("t").scan(["id", "name"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [
        (1, "A"), (2, "b"), (3, "of the value"), (4, None),
    ]  # fmt: skip


def test_plain_text_is_the_key_of_a_table_with_one_key_column(lake: kt.Lake) -> None:
    fed(
        lake, (b"k-7", b'{"n": 1}'), (b'"k-8"', b'{"n": 2}'), (b"k-9", b'{"n": 3}'), (b"k-9", None),
        (b"null", b'{"n": 4}'), (b"it's", b'{"n": 5}'), primary_key=("id",),
    )  # fmt: skip
    assert {row["id"]: row["n"] for row in lake.table("t").scan().to_pylist()} == {
        "k-7": 1, "k-8": 2, "null": 4, "it's": 5,
    }  # fmt: skip


def test_what_is_no_row_of_the_table_is_a_dead_letter(lake: kt.Lake) -> None:
    report = fed(
        lake, (b"1", b'{"n": 1}'), (b"2", b"no JSON"), (b"3", b"[1]"), (b"x", b'{"n": 1}'),
        (None, None), (b"4", b"\xff"), (b"\xff", b'{"n": 1}'), (b"5", b'{"n": 1}}'),
        (b"6", b'{"n": "x"}'), primary_key=("id",), columns=columns_of("id BIGINT, n INT"),
    )  # fmt: skip
    assert rows(lake.table("t")) == [(1, 1)]
    letters = lake.table(report.dead_letter).scan(["topic_offset", "raw"]).to_pylist()
    raws = {row["topic_offset"]: row["raw"] for row in letters}
    assert raws == {
        1: b"no JSON", 2: b"[1]", 3: b'{"n": 1}', 4: None, 5: b"\xff", 6: b'{"n": 1}',
        7: b'{"n": 1}}', 8: b'{"n": "x"}',
    }  # fmt: skip


def test_a_sequence_field_orders_rows_and_deletes_have_to_have_it(lake: kt.Lake) -> None:
    report = fed(
        lake, (b"1", b'{"n": 2, "at": 5}'), (b"1", b'{"n": 1, "at": 4}'), (b"1", None),
        primary_key=("id",), options={"sequence.field": "at"},
    )  # fmt: skip
    assert [row["n"] for row in lake.table("t").scan().to_pylist()] == [2]
    [letter] = lake.table(report.dead_letter).scan(["reason"]).to_pylist()
    assert "the table has a sequence field" in letter["reason"]


def test_new_members_become_columns_with_merge_schema(lake: kt.Lake) -> None:
    fed(lake, (b'{"id": 1}', b'{"a": 1}'))
    kafka = FakeKafka({"t": FakeTopic(partitions=[[(b'{"id": 2}', b'{"b": "new"}')]])})
    request = FeedRequest(
        lake.uri, "t", "kafka://fake/t", "json", merge_schema=True, if_lost="earliest"
    )
    kafka.held["t"].id = "again"
    feed_topics(KafkaRequest.of(request), lake.catalog, kafka)
    found = lake.table("t").scan(["id", "a", "b"]).to_pylist()
    assert sorted(map(str, (tuple(row.values()) for row in found))) == [
        "(1, 1, None)",
        "(2, None, 'new')",
    ]


BYTES = st.none() | st.binary(max_size=6) | st.sampled_from(
    [b"{}", b'{"id":1}', b'{"id":1,"id":2}', b' {"a":{}} ', b'"x"', b"{", b"null", b'{"payload":1}']
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    messages=st.lists(st.tuples(BYTES, BYTES), max_size=4),
    key=st.sampled_from(["a", "a b", "~/\"'"]),
)
def test_any_keys_and_values_are_joined_or_left_as_they_are(
    messages: list[Message], key: str
) -> None:
    columns = zip(*messages, strict=True) if messages else ([], [])
    arrays = [pa.array(column, pa.binary()) for column in columns]
    table = pa.table(arrays, names=["key", "message"])
    for names in ([key], [key, "b"]):
        found = rows_with_keys(table, names, is_ordered=False).to_pylist()
        assert len(found) == len(messages)
        for (_, value), document in zip(messages, found, strict=True):
            assert document is not None
            assert value is None or document == value or is_object(document)


def is_object(document: bytes) -> bool:
    return isinstance(json.loads(document), dict)
