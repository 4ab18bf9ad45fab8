"""Several tables fed by one run, each from its topics, one of which may fail."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fake import FakeKafka, FakeTopic, change

import keytide as kt
from keytide.feeds.feed import FeedRequest
from keytide.feeds.kafka import ingest
from keytide.feeds.kafka.ingest import IngestListeners, KafkaRequest, feed_tables
from keytide.feeds.kafka.offsets import stored_topics
from keytide.feeds.kafka.topics import KafkaAddress, resolve_patterns, topics_by_table


def fed(
    lake: kt.Lake, held: dict[str, FakeTopic], template: str = "shop.{table}", topics: str = "*",
    listeners: IngestListeners | None = None, starting_offsets: str | None = None, **feed: Any,
) -> Any:  # fmt: skip
    given = {"primary_key": ("id",), "starting_offsets": starting_offsets, **feed}
    request = FeedRequest(lake.uri, template, f"kafka://fake/{topics}", "debezium-json", **given)
    return feed_tables(
        KafkaRequest.of(request),
        lake.catalog,
        lambda size: FakeKafka(held),
        listeners or IngestListeners(),
    )


def names(lake: kt.Lake, table: str) -> dict[int, str]:
    return {row["id"]: row["name"] for row in lake.table(table).scan(["id", "name"]).to_pylist()}


def topic(*messages: Any) -> FakeTopic:
    return FakeTopic(partitions=[list(messages)])


def test_each_topic_feeds_its_table_and_goes_on_there(lake: kt.Lake) -> None:
    held = {
        "db.public.orders": topic(change("c", 1, 1, "a"), change("c", 2, 2, "b")),
        "db.public.people": topic(change("c", 1, 7, "x")),
        "other.public.orders": topic(change("c", 3, 3, "of another")),
        "elsewhere": topic(change("c", 1, 1, "not fed")),
    }
    batches: list[tuple[str, int]] = []
    told = IngestListeners(lambda table, batch: batches.append((table, batch.rows_in)))
    report = fed(lake, held, topics="*.public.*", listeners=told)
    assert report.failed == {}
    assert {each.table: each.rows_in for each in report.tables} == {
        "shop.orders": 3, "shop.people": 1,
    }  # fmt: skip
    assert sorted(batches) == [("shop.orders", 3), ("shop.people", 1)]
    assert names(lake, "shop.orders") == {1: "a", 2: "b", 3: "of another"}
    told_of = stored_topics(lake.table("shop.orders").stored)
    assert told_of == ("db.public.orders", "other.public.orders")

    held["db.public.people"].partitions[0].append(change("u", 2, 7, "y"))
    report = fed(lake, held, topics="*.public.*")
    assert {each.table: each.rows_in for each in report.tables} == {
        "shop.orders": 0, "shop.people": 1,
    }  # fmt: skip
    assert names(lake, "shop.people") == {7: "y"}


def test_a_table_that_fails_stops_no_other_one(lake: kt.Lake) -> None:
    held = {"p.a": topic(change("c", 1, 1, "a")), "p.b": topic(change("c", 1, 1, "b"))}
    lake.sql("CREATE TABLE shop.a (id BIGINT, name STRING)")  # it has no primary key
    failures: list[str] = []
    report = fed(
        lake, held, listeners=IngestListeners(failure=lambda table, error: failures.append(table))
    )
    assert failures == ["shop.a"]
    assert "primary key" in str(report.failed["shop.a"])
    assert [each.table for each in report.tables] == ["shop.b"]
    assert names(lake, "shop.b") == {1: "b"}


def test_starting_offsets_are_those_of_each_topic(lake: kt.Lake) -> None:
    held = {n: topic(change("c", 1, 1, "old"), change("c", 2, 2, "new")) for n in ("p.a", "p.b")}
    fed(lake, held, starting_offsets='{"p.a": {"0": 1}}')
    assert (names(lake, "shop.a"), len(names(lake, "shop.b"))) == ({2: "new"}, 2)
    with pytest.raises(
        kt.InvalidError, match=r"for topic p\.c, but the topics to read are p\.a, p\.b"
    ):
        fed(lake, held, starting_offsets='{"p.c": {"0": 1}}')


def test_topics_that_are_made_later_are_fed_too(
    lake: kt.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "POLL_SECONDS", 0.05)
    held = {"p.a": topic(change("c", 1, 1, "a"))}
    fed_tables = set[str]()

    class StoppedError(Exception):
        pass

    def batch(table: str, batch: Any) -> None:
        fed_tables.add(table)
        held["p.b"] = topic(change("c", 1, 1, "b"))
        if len(fed_tables) == 2:
            raise StoppedError

    before = threading.active_count()
    with pytest.raises(StoppedError):
        fed(lake, held, listeners=IngestListeners(batch), continuous=True)
    assert names(lake, "shop.b") == {1: "b"}
    assert threading.active_count() < before + 20


@pytest.mark.parametrize(
    ("template", "topics", "expected"),
    [
        ("{database}.{table}", ["x.shop.a", "x.shop.b"], {"shop.a": 1, "shop.b": 1}),
        ("raw.{topic}", ["x.shop.a", "b"], {"raw.x_shop_a": 1, "raw.b": 1}),
        ("{table}", ["x.a", "y.a", "a"], {"a": 3}),
    ],
)
def test_topics_are_dealt_by_their_names(
    template: str, topics: list[str], expected: dict[str, int]
) -> None:
    assert {
        name: len(found) for name, found in topics_by_table(template, topics).items()
    } == expected


@pytest.mark.parametrize("template", ["shop", "{schema}.t", "{table", "{}", "{table}}"])
def test_other_templates_are_refused(template: str) -> None:
    with pytest.raises(kt.InvalidError, match="expected a name with"):
        topics_by_table(template, ["a.b"])


def test_topics_without_such_a_part_and_patterns_that_none_fits_are_refused(lake: kt.Lake) -> None:
    with pytest.raises(
        kt.InvalidError, match=r"name of topic orders has too few parts for \{database\}"
    ):
        topics_by_table("{database}.{table}", ["orders"])
    with pytest.raises(
        kt.NotFoundError, match=r"no topic at fake:9092 matches 'x\.\*'; topics: a, b"
    ):
        resolve_patterns(KafkaAddress.parse("kafka://fake/x.*"), ["a", "b", "__c"])
    with pytest.raises(kt.InvalidError, match="a schema applies to one table only"):
        fed(lake, {"p.a": topic()}, columns=())
    with pytest.raises(kt.InvalidError, match=r"use Lake\.ingest_tables"):
        lake.ingest("{table}", "kafka://fake/t", format="json")
