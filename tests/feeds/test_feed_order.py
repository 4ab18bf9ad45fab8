"""The order of feeds: epochs, what gives none, and what is in no known one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from feeds import batch, decoded, lines, ordered_feed
from keytide.cdc import FeedSpec, default_sequence, infer_columns
from keytide.errors import DataError, InvalidError, UnsupportedError
from keytide.feeds.epochs import Epoch, extended, parse_epochs
from keytide.feeds.feed import check_places


def mysql(file: str, pos: int = 4, **source: Any) -> dict[str, Any]:
    told = {"connector": "mysql", "file": file, "pos": pos, "row": 0, **source}
    return {"op": "c", "after": {"id": 1}, "source": told}


def postgres(lsn: int, **source: Any) -> dict[str, Any]:
    return {
        "op": "c",
        "after": {"id": 1},
        "source": {"connector": "postgresql", "lsn": lsn, **source},
    }


def spec_of(*messages: Any, epochs: Sequence[str] = ()) -> FeedSpec:
    """A feed whose sample is the given messages."""
    sequence = default_sequence(batch(messages), "debezium-json", epochs=epochs)
    return ordered_feed("debezium-json", "id INT", *sequence)


def epochs(*messages: Any) -> list[str]:
    first, *_ = default_sequence(batch(messages), "debezium-json")
    return [epoch.text for epoch in first.epochs]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([mysql("a.9"), mysql("a.10")], ["a"]),
        ([mysql("b.900", ts_ms=1), mysql("a.3", ts_ms=9)], ["b", "a"]),
        ([mysql("a.9", server_id=1), mysql("a.10", server_id=2)], ["a@1+2"]),
        ([mysql("a.9", server_id=1), mysql("a.1", server_id=2)], ["a@1", "a@2"]),
        (
            [mysql("a.9", server_id=1, ts_ms=1), mysql("a.1", server_id=2, ts_ms=9)],
            ["a@1", "a@2 since 1970-01-01T00:00:00.009Z"],
        ),
        ([postgres(5), postgres(3)], ["*"]),
    ],
)
def test_logs_of_a_feed_in_its_order_are_its_epochs(messages: Any, expected: list[str]) -> None:
    assert epochs(*messages) == expected


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([mysql("a.9", ts_ms=1), mysql("a.1", ts_ms=9)], "go back from 9 to 1"),
        (
            [
                mysql("a.9", ts_ms=1),
                mysql("a.1", server_id=2, ts_ms=1),
                mysql("a.1", 5, server_id=2, ts_ms=9),
            ],
            "do not tell where the log started again",
        ),
        ([mysql("a.9", ts_ms=9), mysql("b.1", ts_ms=1)], "neither their order nor their times"),
        ([mysql("a.9"), mysql("b.1"), mysql("a.9")], "neither their order nor their times"),
        ([mysql("log")], "expected a name with a number"),
        (
            [
                postgres(9, ts_ms=1, sequence='["8","9"]'),
                postgres(5, ts_ms=2, sequence='["4","5"]'),
            ],
            "go back from 8 to 4",
        ),
    ],
)
def test_logs_without_an_order_are_refused(messages: Any, problem: str) -> None:
    with pytest.raises(InvalidError, match=problem):
        epochs(*messages)


def test_change_from_an_unknown_log_is_rejected_until_its_epoch_is_named() -> None:
    known, after = mysql("a.9", server_id=1), mysql("b.1", server_id=2)
    spec = spec_of(known)
    [reason] = decoded(spec, known, after).rejected["reason"].to_pylist()
    assert reason.startswith("order: log b of server 2 is in no known epoch (a@1)")
    assert lines(spec_of(known, epochs=["a@1", "b"]), known, after) == [
        "0 +I id=1 _epoch=1 _file=9 _pos=4 _row=0",
        "1 +I id=1 _epoch=2 _file=1 _pos=4 _row=0",
    ]


def test_numbering_that_starts_again_is_an_epoch_from_a_time_on() -> None:
    first, again = mysql("a.9", ts_ms=1_000), mysql("a.1", ts_ms=9_000)
    spec = spec_of(first, again, epochs=["a", "a since 1970-01-01T00:00:05Z"])
    assert decoded(spec, first, again).rows["_epoch"].to_pylist() == [1, 2]


def test_row_of_a_snapshot_has_the_epoch_of_its_time() -> None:
    snapshot = {**mysql("a.9", ts_ms=1, server_id=0, snapshot="true"), "op": "r"}
    messages = [snapshot, mysql("a.9", 9, ts_ms=2, server_id=1), mysql("a.1", ts_ms=9, server_id=2)]
    spec = spec_of(*messages)
    assert decoded(spec, *messages).rows["_epoch"].to_pylist() == [1, 1, 2]
    rejected = decoded(spec_of(*messages, epochs=["a@1", "a@2"]), *messages).rejected
    assert rejected["ordinal"].to_pylist() == [0]


@pytest.mark.parametrize("text", ["", "a b", "a@x", "a since then", "@1"])
def test_epoch_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="epoch"):
        Epoch.parse(text)


@pytest.mark.parametrize("text", ["a", "a@1", "a@1+22", "*", "a@3 since 2026-01-01T00:00:00.000Z"])
def test_epoch_is_read_as_it_is_written(text: str) -> None:
    assert Epoch.parse(text).text == text


def test_known_epochs_stay_the_first_ones() -> None:
    known = parse_epochs(["a@1"])
    assert extended(known, parse_epochs(["a@1+2", "b"]), "t") == parse_epochs(["a@1+2", "b"])
    assert extended(known, (), "t") == known
    for given in (["b", "a@1"], ["a@2"], ["a@1 since 2026-01-01"]):
        with pytest.raises(InvalidError, match="has the epochs a@1"):
            extended(known, parse_epochs(given), "t")


def test_changes_of_two_tables_are_refused_by_name() -> None:
    one = postgres(1, db="d", schema="s", table="a")
    other = postgres(2, db="d", schema="s", table="b")
    with pytest.raises(InvalidError, match=r"2 tables \(d.s.a, d.s.b\)"):
        default_sequence(batch([one, other]), "debezium-json")
    sequence = default_sequence(batch([one]), "debezium-json")
    [reason] = (
        decoded(ordered_feed("debezium-json", "id INT", *sequence), one, other)
        .rejected["reason"]
        .to_pylist()
    )
    assert reason.startswith("source table: found a change of d.s.b, expected d.s.a")


def test_connector_of_documents_is_refused_by_its_name() -> None:
    source = {"connector": "mongodb", "ts_ms": 1}
    messages = batch([json.dumps({"op": "c", "after": '{"_id": 1}', "source": source})])
    for asked in (default_sequence, infer_columns):
        with pytest.raises(UnsupportedError, match="connector mongodb is not supported"):
            asked(messages, "debezium-json")


def test_first_events_of_a_flow_can_be_deletes_without_types(tmp_path: Any) -> None:
    lake = kt.connect(tmp_path)

    def apply(**columns: Any) -> None:
        lake.auto_cdc(
            "t",
            pa.table(columns),
            "id",
            "s",
            apply_as_deletes="op = 'd'",
            except_column_list=["op"],
        )

    apply(id=[1], v=pa.nulls(1), s=[3], op=["d"])
    apply(id=[2], v=pa.nulls(1), s=[3], op=["d"])
    apply(id=[1, 2], v=["late", "new"], s=[2, 4], op=["u", "u"])
    apply(id=[3], v=pa.nulls(1), s=[4], op=["d"])
    assert lake.table("t").scan(["id", "v"]).to_pylist() == [{"id": 2, "v": "new"}]


def test_error_names_a_change_without_a_place_and_nothing_is_written() -> None:
    known = mysql("a.9")
    spec = spec_of(known)
    check_places(decoded(spec, known, "broken"))
    with pytest.raises(DataError, match="log b is in no known epoch"):
        check_places(decoded(spec, known, mysql("b.1")))
