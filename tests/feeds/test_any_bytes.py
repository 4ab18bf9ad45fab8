"""Whatever a line holds, it is applied or rejected as it is, and its neighbours go on."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds import decoded, feed, lines
from keytide.cdc import FORMATS, default_sequence, infer_columns, infer_primary_key
from keytide.errors import InvalidError, KeytideError
from keytide.feeds.formats import DELETED

ROW = {"id": 1, "v": "a"}
TYPES = [
    {"field": "id", "type": "int32", "optional": False},
    {"field": "v", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
     "parameters": {"scale": "2", "connect.decimal.precision": "9"}},
    {"field": "l", "type": "array", "items": {"type": "struct", "fields": [{"field": "x"}]}},
]  # fmt: skip
GOOD: dict[str, Any] = {
    "debezium-json": {"op": "c", "after": ROW},
    "maxwell-json": {"type": "insert", "data": ROW, "ts": 1},
    "canal-json": {"type": "INSERT", "data": [ROW], "es": 1, "id": 1},
    "dms-json": {"data": ROW, "metadata": {"operation": "insert", "record-type": "data"}},
    "json": ROW,
}
RICH: dict[str, Any] = {
    "debezium-json": {
        "schema": {"type": "struct", "fields": [{"field": "after", "fields": TYPES}]},
        "payload": {"op": "u", "before": ROW, "after": ROW, "source": {"lsn": 5}, "ts_ms": 6},
    },
    "maxwell-json": {**GOOD["maxwell-json"], "type": "update", "old": {"v": "b"}, "xid": 7},
    "canal-json": {
        **GOOD["canal-json"], "type": "UPDATE", "old": [{"v": "b"}],
        "mysqlType": {"id": "int", "v": "decimal(9,2)"}, "pkNames": ["id"],
    },
    "dms-json": {**GOOD["dms-json"], "before-image": ROW},
    "json": {**ROW, DELETED: True},
}  # fmt: skip
SPECS = {name: feed(name, "id INT; v STRING; l ARRAY<DECIMAL(9, 2)>") for name in FORMATS}

ANYTHING = st.recursive(
    st.sampled_from([None, True, 0, -1, 10**30, 1e300, "", "a", "\0", "{}", "[1]", "99"])
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "v", "field", "fields", "", "~/"]), inner, max_size=3
        )
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a document there is something."""
    if not isinstance(value, dict | list):
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


def with_other(document: Any, path: tuple[Any, ...], other: Any) -> Any:
    """The document with something else at a place."""
    if not path:
        return other
    changed = copy.deepcopy(document)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = other
    return changed


@st.composite
def messages(draw: st.DrawFn, format: str) -> bytes:
    """A message that is wrong in one place, as text or as bytes."""
    document = draw(st.sampled_from([GOOD[format], RICH[format]]))
    place = draw(st.sampled_from(places(document)))
    text = json.dumps(with_other(document, place, draw(ANYTHING))).encode()
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.sampled_from([b"", b"", b"\xff", b"\0", b"\\ud800"])) + text[at:]


@pytest.mark.takes_turns
@given(st.data())
def test_any_message_is_rejected_byte_for_byte_or_counted(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from(sorted(FORMATS)))
    given_messages = data.draw(st.lists(messages(format) | st.binary(max_size=9), max_size=4))
    good = json.dumps(GOOD[format]).encode()
    batch = [good, *given_messages, good]
    result = decoded(SPECS[format], *batch)

    rejected = {bad["ordinal"]: bad["raw"] for bad in result.rejected.to_pylist()}
    assert rejected == {ordinal: batch[ordinal] for ordinal in rejected}
    applied = set(result.rows["_ordinal"].to_pylist())
    assert {0, len(batch) - 1} <= applied
    assert applied.isdisjoint(rejected)
    assert len(applied) + len(rejected) + result.tombstones + result.control == len(batch)


@given(st.data())
def test_any_sample_shows_columns_or_is_refused(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from(sorted(FORMATS)))
    sample = pa.array(data.draw(st.lists(messages(format), min_size=1, max_size=4)), pa.binary())
    infer_primary_key(sample, format)
    with contextlib.suppress(InvalidError):  # a sample may give no order, as Maxwell's times
        default_sequence(sample, format)
    with contextlib.suppress(KeytideError):  # a sample may show no row at all
        assert infer_columns(sample, format)


@pytest.mark.parametrize("depth", [10, 1_000_000])
@pytest.mark.parametrize("part", ["schema", "source"])
def test_nesting_of_any_depth_stops_nothing(part: str, depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    message = f'{{"{part}": {deep}, "payload": {{"op": "c", "after": {json.dumps(ROW)}}}}}'
    spec = feed("debezium-json", "id INT; v STRING")
    is_read = part == "source" or depth == 10
    outcome = "0 +I id=1 v=a" if is_read else "0 ! schema: nested too deep to be read"
    assert lines(spec, message, GOOD["debezium-json"]) == [outcome, "1 +I id=1 v=a"]


def test_message_with_a_value_left_out_goes_along_with_its_row() -> None:
    spec = feed("debezium-json", "id INT; v BYTES")
    left_out = json.dumps(
        {"op": "u", "after": {"id": 1, "v": "__debezium_unavailable_value"}}
    ).encode()
    whole = json.dumps({"op": "c", "after": {"id": 2, "v": "YQ=="}}).encode()
    assert decoded(spec, left_out, whole).rows["_message"].to_pylist() == [left_out, None]
