"""Feeds of topics, from memory in the place of a broker: offsets, restarts, losses."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake import FakeKafka, FakeTopic, change

import keytide as kt
from keytide.feeds.feed import FeedRequest
from keytide.feeds.kafka import ingest as topics
from keytide.feeds.kafka.client import Messages, Topic, read_properties
from keytide.feeds.kafka.ingest import KafkaRequest
from keytide.feeds.kafka.offsets import TopicOffsets, stored_offsets, stored_topics
from keytide.feeds.kafka.start import Start, lag_of, start_offsets
from keytide.feeds.kafka.topics import KafkaAddress, key_columns

# -- addresses, offsets, beginnings: values ------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "brokers", "names"),
    [
        ("kafka://localhost:9092/orders", "localhost:9092", ("orders",)),
        ("kafka://a,b:19092/x,y,x", "a:9092,b:19092", ("x", "y")),
        ("KAFKA://[::1]:9092/shop.public.orders/", "[::1]:9092", ("shop.public.orders",)),
    ],
)
def test_address_names_brokers_and_topics(text: str, brokers: str, names: tuple[str, ...]) -> None:
    assert KafkaAddress.parse(text) == KafkaAddress(brokers, names)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("kafka://localhost", "contains no topic"),
        ("kafka://localhost/", "contains no topic"),
        ("kafka:///orders", "'' is not a host and port"),
        ("kafka://a:0/orders", "'a:0' is not a host and port"),
        ("kafka://a:99999/orders", "'a:99999' is not a host and port"),
        ("kafka://user:pw@a/orders", "'user:pw@a' is not a host and port"),
        ("kafka://a/x,,y", "'' is not a valid topic name"),
        ("kafka://a/x?y", "'x?y' is not a valid topic name"),
        ("kafka://a/x/y", "'x/y' is not a valid topic name"),
    ],
)
def test_address_that_is_none_is_refused(text: str, found: str) -> None:
    with pytest.raises(kt.InvalidError, match="expected kafka://host:port/topic") as error:
        KafkaAddress.parse(text)
    assert found in str(error.value)


def test_offsets_are_read_as_they_were_written() -> None:
    offsets = TopicOffsets("Pfysit-kQPG", {10: 3, 2: 1 << 40})
    text = offsets.to_text()
    assert text == '{"id":"Pfysit-kQPG","next":{"2":1099511627776,"10":3}}'
    assert TopicOffsets.from_text(text, "p") == offsets
    for torn in ("", "{}", '{"id":"a","next":[1]}', '{"id":"a","next":{"x":1}}'):
        with pytest.raises(kt.DataError, match="'p' of the latest snapshot"):
            TopicOffsets.from_text(torn, "p")


NOW = Topic("new", {0: 5, 1: 0}, {0: 9, 1: 4})


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", {0: 5, 1: 0}),
        ("latest", {0: 9, 1: 4}),
        ('{"t": {"0": 7}}', {0: 7, 1: 0}),
        ('{"t": {"0": -1, "1": -2}}', {0: 9, 1: 0}),
    ],
)
def test_feed_begins_where_it_is_asked_to(start: str, expected: dict[int, int]) -> None:
    found = start_offsets({}, {"t": NOW}, Start.parse(start), "fail")
    assert found == {"t": TopicOffsets("new", expected)}


@pytest.mark.parametrize(
    "start",
    ["newest", "[]", '{"t": 3}', '{"t": {"0": "a"}}', '{"t": {"0": true}}', '{"t": {"0": -3}}',
     '{"t": {"0": 4}}', '{"t": {"0": 10}}', '{"t": {"2": 0}}', '{"x": {"0": 5}}'],
)  # fmt: skip
def test_start_that_is_none_or_not_there_is_refused(start: str) -> None:
    with pytest.raises(kt.InvalidError, match="starting offset"):
        start_offsets({}, {"t": NOW}, Start.parse(start), "fail")


@pytest.mark.parametrize(
    ("told", "found", "earliest", "latest"),
    [
        (TopicOffsets("new", {0: 6}), None, {0: 6, 1: 0}, {0: 6, 1: 0}),  # 1 was added
        (TopicOffsets("new", {0: 3, 1: 2}), "offsets 3 to 4 of partition 0 expired",
         {0: 5, 1: 2}, {0: 9, 1: 2}),
        (TopicOffsets("new", {0: 9, 1: 6}), "partition 1 ends at 4, before 6",
         {0: 9, 1: 0}, {0: 9, 1: 4}),
        (TopicOffsets("old", {0: 6, 1: 2}), "topic t was recreated", {0: 5, 1: 0}, {0: 9, 1: 4}),
    ],
)  # fmt: skip
def test_feed_goes_on_where_the_table_says_and_names_what_is_lost(
    told: TopicOffsets, found: str | None, earliest: dict[int, int], latest: dict[int, int]
) -> None:
    if found is not None:
        with pytest.raises(kt.DataError, match="if_lost='earliest'") as error:
            start_offsets({"t": told}, {"t": NOW}, Start(), "fail")
        assert found in str(error.value)
    for if_lost, expected in (("earliest", earliest), ("latest", latest)):
        assert start_offsets({"t": told}, {"t": NOW}, Start(), if_lost)["t"].next == expected  # type: ignore[arg-type]


def test_properties_of_a_file_are_those_of_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# a comment\n\nsasl.password = a=b \nssl.ca.location=/x\n")
    assert read_properties(file) == {"sasl.password": "a=b", "ssl.ca.location": "/x"}
    file.write_text("sasl.username=me\nhunter2\n")
    with pytest.raises(kt.InvalidError, match=r"line 2: expected name=value$"):
        read_properties(file)


# -- feeding a table -----------------------------------------------------------------------------


@dataclass
class Shop:
    """A lake, a topic, and what feeds the one from the other."""

    warehouse: str
    kafka: FakeKafka = field(default_factory=lambda: FakeKafka({"people": FakeTopic()}))

    @property
    def topic(self) -> FakeTopic:
        return self.kafka.held["people"]

    @property
    def table(self) -> Any:
        return kt.connect(self.warehouse).table("shop.people")

    def send(self, *messages: bytes | None, partition: int = 0) -> None:
        self.topic.partitions[partition] += messages

    def run(
        self, names: str = "people", kafka: Any = None, messages_max: int = 100,
        starting_offsets: str | None = None, if_lost: str | None = None, **feed: Any,
    ) -> Any:  # fmt: skip
        given = {"primary_key": ("id",), **feed}
        request = KafkaRequest.of(
            FeedRequest(
                self.warehouse, "shop.people", f"kafka://fake/{names}", "debezium-json",
                starting_offsets=starting_offsets, max_messages_per_batch=messages_max,
                if_lost=if_lost, **given,
            )
        )  # fmt: skip
        catalog = kt.connect(self.warehouse).catalog
        return topics.feed_topics(request, catalog, kafka or self.kafka)

    def rows(self) -> dict[int, str]:
        return {row["id"]: row["name"] for row in self.table.scan(["id", "name"])}

    def told(self) -> dict[int, int]:
        return dict(stored_offsets(self.table.stored, ["people"])["people"].next)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    return Shop(str(tmp_path / "lake"))


def test_batches_are_committed_with_the_offsets_that_they_reach(shop: Shop) -> None:
    shop.send(change("c", 1, 1, "a"), change("c", 2, 2, "b"), change("u", 3, 1, "c"))
    report = shop.run(messages_max=2)

    assert [batch.rows_in for batch in report.batches] == [2, 1]
    assert shop.rows() == {1: "c", 2: "b"}
    stored = [shop.table.metadata.snapshot(number).properties or {} for number in (1, 2)]
    assert [each["keytide.kafka.people"] for each in stored] == [
        f'{{"id":"first","next":{{"0":{offset}}}}}' for offset in (2, 3)
    ]
    assert stored_topics(shop.table.stored) == ("people",)


def test_next_run_goes_on_at_the_offsets_of_the_table(shop: Shop) -> None:
    shop.send(change("c", 1, 1, "a"))
    shop.run()
    assert shop.run().batches == ()
    shop.send(change("d", 2, 1), change("c", 3, 2, "b"))
    assert [batch.rows_in for batch in shop.run().batches] == [2]
    assert shop.rows() == {2: "b"}


def test_writes_between_two_runs_carry_the_offsets_on(shop: Shop) -> None:
    shop.send(change("c", 1, 1, "a"))
    shop.run()
    shop.table.write([{"id": 7, "name": "x", "_epoch": 1, "_commit_lsn": 0, "_lsn": 1}])
    shop.table.compact(full=True)
    assert shop.told() == {0: 1}
    assert shop.run().batches == ()


def test_rollback_takes_the_offsets_back_with_the_rows(shop: Shop) -> None:
    shop.send(change("c", 1, 1, "a"))
    shop.run()
    shop.send(change("u", 2, 1, "b"))
    shop.run()
    shop.table.rollback_to(1)
    assert (shop.told(), shop.rows()) == ({0: 1}, {1: "a"})
    assert [batch.rows_in for batch in shop.run().batches] == [1]
    assert shop.rows() == {1: "b"}


def test_messages_that_change_no_row_move_the_offsets_too(shop: Shop) -> None:
    shop.send(change("c", 1, 1, "a"), change("d", 2, 1))
    shop.run()
    shop.send(None, b"no JSON", None)
    [batch] = shop.run().batches
    assert (batch.rejected, batch.skipped, batch.applied) == (1, 2, 0)
    assert shop.told() == {0: 5}
    assert shop.run().batches == ()


def test_dead_letters_say_where_their_messages_stand(shop: Shop) -> None:
    shop.topic.partitions.append([])
    shop.send(change("c", 1, 1, "a"))
    shop.send(change("c", 1, 3, "a"), b"\xff", b"{}", partition=1)
    report = shop.run()
    columns = ["topic", "topic_partition", "topic_offset", "raw_key", "raw"]
    letters = kt.connect(shop.warehouse).table(report.dead_letter).scan(columns).to_pylist()
    assert [tuple(row.values()) for row in letters] == [
        ("people", 1, 1, b"key", b"\xff"), ("people", 1, 2, b"key", b"{}"),
    ]  # fmt: skip
    assert shop.rows() == {1: "a", 3: "a"}


def test_batch_that_dies_before_its_commit_is_applied_once_by_the_next_run(shop: Shop) -> None:
    shop.send(change("c", 1, 1, "a"), b"no JSON")

    with pytest.raises(RuntimeError, match="killed"):
        shop.run(kafka=DyingKafka(shop.kafka.held, killed_at=2), messages_max=1)
    assert (shop.told(), shop.rows()) == ({0: 1}, {1: "a"})
    shop.run()
    assert shop.told() == {0: 2}


@dataclass
class DyingKafka(FakeKafka):
    """A consumer that fails when it is asked for messages once more."""

    killed_at: int = 1
    reads: int = 0

    def read(self, messages_max: int, wait_seconds: float) -> Messages:
        self.reads += 1
        if self.reads == self.killed_at:
            raise RuntimeError("killed")
        return super().read(messages_max, wait_seconds)


@dataclass
class OvertakenKafka(FakeKafka):
    """A consumer beside which another run reads the same topic."""

    other: Any = None

    def read(self, messages_max: int, wait_seconds: float) -> Messages:
        found = super().read(messages_max, wait_seconds)
        other, self.other = self.other, None
        if other is not None:
            other()
        return found


@pytest.mark.one_in(14)
@pytest.mark.parametrize("options", [{}, {"bucket": "-1"}, {"upsert.mode": "full"}], ids=str)
def test_second_run_of_the_same_topic_is_a_conflict(shop: Shop, options: dict[str, str]) -> None:
    shop.send(change("c", 1, 1, "a"), change("c", 2, 2, "b"))
    given: dict[str, Any] = {"options": options, "sequence_by": ("source.lsn",)}
    kafka = OvertakenKafka(shop.kafka.held, other=lambda: shop.run(**given))

    with pytest.raises(kt.ConflictError, match="another process has loaded the table"):
        shop.run(kafka=kafka, **given)
    assert [s.commit_kind.value for s in shop.table.metadata.snapshots()].count("APPEND") == 1
    assert (shop.told(), shop.rows()) == ({0: 2}, {1: "a", 2: "b"})


def test_runs_of_different_topics_feed_one_table_side_by_side(shop: Shop) -> None:
    shop.kafka.held["others"] = FakeTopic("second", [[change("c", 5, 2, "b")]])
    shop.send(change("c", 1, 1, "a"))
    kafka = OvertakenKafka(shop.kafka.held, other=lambda: shop.run("others"))
    shop.run(kafka=kafka)
    assert shop.rows() == {1: "a", 2: "b"}
    assert stored_topics(shop.table.stored) == ("others", "people")


def test_feed_that_starts_at_the_end_tells_so_before_there_is_a_message(shop: Shop) -> None:
    shop.send(change("c", 1, 1, "a"))
    columns = kt.parse_sql_type("ROW<id BIGINT, name STRING>").fields
    shop.run(starting_offsets="latest", columns=columns)
    assert (shop.told(), shop.rows()) == ({0: 1}, {})
    shop.send(change("c", 2, 2, "b"))
    shop.run(starting_offsets="latest")
    assert shop.rows() == {2: "b"}


@pytest.mark.takes_turns
def test_lost_messages_and_topics_made_anew_stop_a_run_until_it_is_told_to_go_on(
    shop: Shop,
) -> None:
    shop.send(*(change("c", lsn, lsn, "a") for lsn in range(1, 4)))
    shop.run(messages_max=1)
    shop.table.rollback_to(1)
    shop.topic.expired[0] = 2
    with pytest.raises(kt.DataError, match="offsets 1 to 1 of partition 0 expired"):
        shop.run()
    shop.run(if_lost="earliest")
    assert (shop.told(), shop.rows()) == ({0: 3}, {1: "a", 3: "a"})

    shop.kafka.held["people"] = FakeTopic("second", [[change("c", 9, 9, "z")] * 3])
    with pytest.raises(kt.DataError, match="recreated"):
        shop.run()
    shop.run(if_lost="earliest")
    assert shop.rows() == {1: "a", 3: "a", 9: "z"}


def test_lag_counts_what_is_to_come_and_what_is_lost(shop: Shop) -> None:
    shop.send(*(change("c", lsn, lsn, "a") for lsn in range(1, 6)))
    shop.run(messages_max=2)
    shop.table.rollback_to(1)
    shop.topic.expired[0] = 3
    shop.topic.partitions.append([b""] * 4)
    address = KafkaAddress.parse("kafka://fake/people")
    found = [
        (each.partition, each.next_offset, each.end_offset, each.lag, each.lost)
        for each in lag_of(shop.table.stored, address, shop.kafka)
    ]
    assert found == [(0, 2, 5, 2, 1), (1, None, 4, 4, 0)]


@pytest.mark.takes_turns
def test_table_grows_with_its_feed_where_that_is_asked_for(shop: Shop) -> None:
    shop.send(change("c", 1, 1, "a"))
    shop.run()
    more = b'{"op": "c", "after": {"id": 2, "name": "b", "age": 3}, "source": {"lsn": 2}}'
    shop.send(more, more.replace(b'"id": 2', b'"id": 3'))
    shop.run(messages_max=1)
    assert "age" not in shop.table.schema.names
    shop.table.rollback_to(1)
    shop.run(messages_max=1, merge_schema=True)
    found = shop.table.scan(["id", "age"]).to_pylist()
    assert sorted(row["age"] or 0 for row in found) == [0, 3, 3]


def test_topic_that_is_not_there_is_named(shop: Shop) -> None:
    with pytest.raises(kt.NotFoundError, match="topic orders does not exist at fake:9092"):
        shop.run("people,orders")


@pytest.mark.parametrize(
    ("keys", "columns"),
    [
        ([b'{"id": 1}', None, b'{"id": 2}'], ("id",)),
        ([b'{"schema": {"type": "struct"}, "payload": {"a": 1, "b": 2}}'], ("a", "b")),
        ([b'{"id": 1}', b'{"other": 2}'], ()),
        ([b"1", b"x", b"\xff"], ()),
        ([], ()),
    ],
)
def test_members_of_the_messages_keys_are_the_primary_key_of_a_new_table(
    keys: list[bytes | None], columns: tuple[str, ...]
) -> None:
    assert key_columns(pa.array(keys, pa.binary())) == columns


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"source": "/feed", "starting_offsets": "latest"}, "starting offsets"),
        ({"source": "/feed", "consumer_properties": {"a": "b"}}, "consumer properties"),
        ({"source": "/feed", "max_messages_per_batch": 3}, "messages per batch"),
        ({"source": "/feed", "if_lost": "fail"}, "if offsets are lost"),
        ({"source": "kafka://a/b", "checkpoint": "/c"}, "a checkpoint"),
        ({"source": "kafka://a/b", "max_files_per_batch": 3}, "files per batch"),
        ({"source": "kafka://a/b", "max_messages_per_batch": 0}, "0 messages per batch"),
    ],
)
def test_option_of_the_other_kind_of_source_is_refused(
    tmp_path: Path, given: dict[str, Any], found: str
) -> None:
    with pytest.raises(kt.InvalidError, match=found):
        kt.connect(tmp_path).ingest("shop.t", format="debezium-json", **given)
    assert not (tmp_path / "shop.db").exists()


def test_order_of_several_components_needs_one_field_in_a_table_with_a_key_index(
    shop: Shop,
) -> None:
    shop.send(change("c", 1, 1, "a"))
    with pytest.raises(kt.InvalidError, match="give one field with sequence_by"):
        shop.run(options={"upsert.mode": "full"})


def test_table_with_the_earlier_order_is_refused_or_goes_on_by_request(shop: Shop) -> None:
    shop.send(change("c", 1, 1, "a"))
    shop.run(sequence_by=("source.lsn",))
    shop.send(change("u", 2, 1, "b"))
    with pytest.raises(kt.InvalidError, match="to keep this order"):
        shop.run()
    shop.run(sequence_by=("source.lsn",))
    assert shop.rows() == {1: "b"}


@pytest.mark.takes_turns
def test_change_of_another_table_or_log_stops_the_run_before_anything_is_written(
    shop: Shop,
) -> None:
    def binlog(file: str, id: int, table: str = "people") -> bytes:
        source = {"connector": "mysql", "db": "d", "table": table, "file": file, "pos": 4, "row": 0}
        row = {"id": id, "name": file}
        return json.dumps({"op": "c", "after": row, "source": source}).encode()

    shop.send(binlog("b.9", 1))
    shop.run()
    shop.send(binlog("b.9", 2), binlog("a.1", 1))
    with pytest.raises(kt.DataError, match="log a is in no known epoch"):
        shop.run()
    assert (shop.told(), shop.rows()) == ({0: 1}, {1: "b.9"})
    shop.run(epochs=("b", "a"))
    assert shop.rows() == {1: "a.1", 2: "b.9"}
    assert shop.table.options["user.feed-epochs"] == "b, a"
    shop.send(binlog("a.2", 3, "pets"))
    with pytest.raises(kt.DataError, match=r"found a change of d\.pets, expected d\.people"):
        shop.run()
    shop.run(source_table="d.p*")
    assert shop.rows() == {1: "a.1", 2: "b.9", 3: "a.2"}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("order", [*itertools.permutations(range(4))], ids=str)
def test_omitted_values_do_not_depend_on_order_or_batches(
    shop: Shop, order: tuple[int, ...]
) -> None:
    def said(op: str, lsn: int, name: str | None, n: int | None = None) -> bytes:
        after = None if op == "d" else {"id": 1, "name": name, "n": n}
        source = {"connector": "postgresql", "lsn": lsn}
        return json.dumps(
            {"op": op, "before": {"id": 1}, "after": after, "source": source}
        ).encode()

    omitted = "__debezium_unavailable_value"
    messages = [said("c", 1, "a", 1), said("d", 2, None), said("c", 3, "b", 3),
                said("u", 4, omitted, 4)]  # fmt: skip
    columns = kt.parse_sql_type("ROW<id BIGINT, name STRING, n INT>").fields  # type: ignore[attr-defined]
    for place in order:
        shop.send(messages[place])
        shop.run(columns=columns)
    assert shop.table.scan(["id", "name", "n"]).to_pylist() == [{"id": 1, "name": "b", "n": 4}]
    assert "shop.people_dead_letters" not in map(str, kt.connect(shop.warehouse).tables())
