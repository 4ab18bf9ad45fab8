from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds import Message, batch, decoded, feed, lines
from keytide.cdc import FeedSpec, SequenceSource, decode
from keytide.errors import InvalidError, UnsupportedError

SPEC = feed("debezium-json", "id INT; v STRING")


def created(**row: Any) -> dict[str, Any]:
    return {"op": "c", "after": row}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('{"op": "c"', "not valid JSON"),
        ("", "not valid JSON"),
        (b'{"op": "\xff"}', "not UTF-8 text"),
        ("5", "JSON of type UBIGINT, expected an object"),
        ("[]", "JSON of type ARRAY, expected an object"),
        ({}, 'op: found nothing, expected one of "c", "r", "u", "d"'),
        ({"op": "x"}, 'op: found "x", expected one of "c", "r", "u", "d"'),
        ({"op": "c"}, "insert without an after image"),
        ({"op": "u", "before": {"id": 1}}, "update without an after image"),
        ({"op": "d", "before": None}, "delete without a before image"),
        ({"op": "c", "after": "text"}, "insert without an after image"),
        (created(v="a"), "column id: found no value, expected INT NOT NULL"),
        (created(id=None), "column id: found no value, expected INT NOT NULL"),
        (created(id="a"), "column id: found 'a', expected INT"),
        (created(id=2147483648), "column id: found 2147483648, expected INT"),
        (created(id={"a": 1}), 'column id: found {"a":1}, expected INT'),
    ],
)
def test_bad_message_is_rejected_with_a_reason_and_its_neighbours_go_on(
    message: Message, reason: str
) -> None:
    good = created(id=1, v="a")
    assert lines(SPEC, good, message, good) == ["0 +I id=1 v=a", f"1 ! {reason}", "2 +I id=1 v=a"]


def test_rejected_message_keeps_its_text() -> None:
    spec = feed("debezium-json", "id INT; v DECIMAL(4, 2)")
    text = '{"op": "c", "after": {"id": 1, "v": 1.2345678901234567890}}'
    [bad] = decoded(spec, text).rejected.to_pylist()
    assert bad["raw"] == text.encode()
    assert bad["reason"] == "column v: found 1.2345678901234567890, expected DECIMAL(4, 2)"


def test_long_value_is_shortened_in_the_reason_only() -> None:
    spec = feed("debezium-json", "id INT; v VARCHAR(3)")
    [bad] = decoded(spec, created(id=1, v="x" * 5000)).rejected.to_pylist()
    assert bad["reason"] == f"column v: found '{'x' * 100}...', expected VARCHAR(3)"


def test_null_of_a_not_null_column_is_rejected_but_not_in_a_delete() -> None:
    spec = feed("debezium-json", "id INT; v STRING NOT NULL")
    assert lines(spec, created(id=1), {"op": "d", "before": {"id": 1, "v": None}}) == [
        "0 ! column v: found no value, expected STRING NOT NULL",
        "1 -D id=1 v=None",
    ]


def test_empty_batch_gives_empty_tables_of_the_full_schema() -> None:
    result = decode(pa.array([], pa.string()), SPEC)
    assert result.rows.schema == SPEC.rows_schema
    assert result.rows.schema.names == [
        "id",
        "v",
        "_row_kind",
        "_ordinal",
        "_unavailable",
        "_message",
    ]
    assert result.rejected.schema.names == ["raw", "reason", "ordinal"]
    assert (result.rows.num_rows, result.rejected.num_rows) == (0, 0)


def test_batch_of_only_bad_messages_keeps_the_schema() -> None:
    result = decoded(SPEC, "x", "y")
    assert result.rows.schema == SPEC.rows_schema
    assert result.rejected["ordinal"].to_pylist() == [0, 1]


MESSAGES = st.sampled_from(
    [
        json.dumps(created(id=1, v="a")),
        json.dumps({"op": "u", "before": {"id": 1}, "after": {"id": 2}}),
        json.dumps({"op": "d", "before": {"id": 1}}),
        json.dumps({"op": "m"}),
        json.dumps({"op": "t"}),
        json.dumps(created(id="x")),
        "null",
        "{",
        None,
    ]
) | st.text(max_size=8)


@given(st.lists(MESSAGES, max_size=12))
def test_every_message_is_counted_exactly_once(messages: list[str | None]) -> None:
    result = decode(pa.array(messages, pa.string()), SPEC)
    applied = set(result.rows["_ordinal"].to_pylist())
    rejected = result.rejected["ordinal"].to_pylist()
    assert len(rejected) == len(set(rejected))
    assert applied.isdisjoint(rejected)
    counted = len(applied) + len(rejected) + result.tombstones + result.control
    assert counted == len(messages)
    assert result.rows["_ordinal"].to_pylist() == sorted(result.rows["_ordinal"].to_pylist())


@given(st.lists(MESSAGES, max_size=12), st.integers(0, 12))
def test_batching_does_not_change_the_rows(messages: list[str | None], cut: int) -> None:
    whole = decode(pa.array(messages, pa.string()), SPEC).rows.drop_columns(["_ordinal"])
    parts = [
        decode(pa.array(part, pa.string()), SPEC).rows.drop_columns(["_ordinal"])
        for part in (messages[:cut], messages[cut:])
    ]
    assert pa.concat_tables(parts).to_pylist() == whole.to_pylist()


@pytest.mark.parametrize(
    "type", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()]
)
def test_messages_of_every_text_type_and_chunking_decode_alike(type: pa.DataType) -> None:
    messages = batch([created(id=1, v="é"), None, created(id=2, v="b")]).cast(pa.binary())
    chunked = pa.chunked_array([messages.slice(0, 1), messages.slice(1)]).cast(type)
    result = decode(chunked, SPEC)
    assert result.rows["v"].to_pylist() == ["é", "b"]
    assert result.tombstones == 1


def test_spec_travels_by_pickle_and_decodes_alike_in_many_threads() -> None:
    spec: FeedSpec = pickle.loads(pickle.dumps(SPEC))
    batches = [batch([created(id=i, v=str(i))] * 200) for i in range(16)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda messages: decode(messages, spec), batches))
    assert [set(result.rows["id"].to_pylist()) for result in results] == [{i} for i in range(16)]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id INT", {"key": "x"}, "primary_key: found 'x', expected one of id"),
        ("id INT", {"key": ""}, "primary_key is empty"),
        ("id INT", {"empty_as_null": frozenset({"x"})}, "empty_as_null: found 'x'"),
        ("id INT", {"sequence": (SequenceSource("ts_ms", "_ts"),)}, "sequence: found '_ts'"),
        ("id INT; _row_kind STRING", {}, "Column '_row_kind' is added by the decoder"),
    ],
)
def test_spec_that_does_not_go_together_is_refused(
    columns: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        feed("debezium-json", columns, **options)


def test_type_without_a_feed_spelling_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="Column 'v': a change feed has no values of type"):
        feed("debezium-json", "id INT; v VARIANT")


def test_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidError, match="format: found 'xml', expected one of debezium-json"):
        decode(batch([None]), feed("xml", "id INT"))
