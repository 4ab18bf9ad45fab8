"""Topics of a real broker: kills of those who read and of the broker, restarts, losses."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from broker import Broker
from fake import change

import keytide as kt
from keytide.feeds.kafka import ingest as runs

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parents[2]
FEEDS = ROOT / "tests" / "data" / "cdc"
CAPTURED = [("orders", "order_id", ()), ("pgbench_accounts", "aid", ("filler",))]


@pytest.fixture
def topic(broker: Broker) -> str:
    """The name of a topic that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"


def ingest(lake: kt.Lake, broker: Broker, topics: str, **given: Any) -> Any:
    asked = {"format": "debezium-json", "primary_key": ["id"], **given}
    return lake.ingest("shop.people", broker.source(topics), **asked)


def rows(lake: kt.Lake) -> dict[int, str]:
    table: Any = lake.table("shop.people")
    return {row["id"]: row["name"] for row in table.scan(["id", "name"])}


def lags(lake: kt.Lake, broker: Broker, topics: str) -> list[tuple[int | None, int, int]]:
    table: Any = lake.table("shop.people")
    found = table.kafka_lag(broker.source(topics))
    return [(each.next_offset, each.lag, each.lost) for each in found]


def captured(table: str, key: str) -> tuple[list[bytes], list[bytes]]:
    """Messages of a real server, and the keys by which a connector deals them to partitions."""
    messages = gzip.decompress((FEEDS / table / "changes.jsonl.gz").read_bytes()).splitlines()
    images = [json.loads(message) for message in messages]
    keys = [(image["after"] or image["before"])[key] for image in images]
    return messages, [json.dumps({key: value}).encode() for value in keys]


def command(lake: kt.Lake, table: str, source: str, *options: str) -> list[str]:
    given = ["-w", lake.uri, table, "--from", source, "--format", "debezium-json", *options]
    return [sys.executable, "-m", "keytide_command", "ingest", *given]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def run_killed(arguments: Sequence[str], seed: int, kills: int) -> None:
    """Run a command again and again, killed later each time, and to its end in the end."""
    chance = random.Random(seed)
    for kill in range(kills):
        process = subprocess.Popen(arguments, env=environment(), stderr=subprocess.PIPE)
        assert process.stderr is not None
        # When it has told of so many batches it is in the midst of the next one.
        for _ in range(1 + kill % 3):
            process.stderr.readline()
        time.sleep(chance.uniform(0, 0.15))
        process.kill()
        process.communicate()
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def running(lake: kt.Lake, broker: Broker, topics: str, **given: Any) -> Iterator[list[Any]]:
    """A continuous feed in a thread; gives its batches. Its last batch has a row named 'stop'."""
    batches: list[Any] = []
    ended = threading.Event()

    def told(batch: Any) -> None:
        batches.append(batch)
        if ended.is_set():
            raise KeyboardInterrupt

    def run() -> None:
        try:
            ingest(lake, broker, topics, continuous=True, on_batch=told, **given)
        except KeyboardInterrupt:
            pass
        except kt.KeytideError as error:
            batches.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield batches
    ended.set()
    broker.send(topics, [change("c", 1 << 40, -1, "stop")], 0)
    thread.join(60)
    assert not thread.is_alive()


def wait_for(seen: Any, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(("table", "key", "empty"), CAPTURED, ids=["orders", "pgbench_accounts"])
def test_captured_feed_ends_in_the_rows_of_its_server_however_often_it_is_killed(
    broker: Broker, lake: kt.Lake, topic: str, table: str, key: str, empty: tuple[str, ...]
) -> None:
    messages, keys = captured(table, key)
    broker.create(topic, 3)
    broker.send(topic, messages, keys=keys)
    options = [option for name in empty for option in ("--empty-as-null", name)]
    source = broker.source(topic)
    name = f"shop.{table}"

    run_killed(command(lake, name, source, "--max-messages-per-batch", "100", *options), 1, kills=5)

    final = pl.read_parquet(FEEDS / table / "final.parquet").sort(key)
    found: Any = lake.table(name)
    assert found.primary_key == (key,)  # the messages' keys say so
    types = {n: t for n, t in final.schema.items() if n in final.columns}
    shown = found.scan(final.columns).to_polars().sort(key)
    assert shown.cast(types).equals(final)
    assert lake.tables("shop") == [name]  # no dead letters
    assert sum(each.lag for each in found.kafka_lag(source)) == 0


@pytest.mark.parametrize("options", ["bucket=2", "bucket=-1"])
def test_sums_count_every_message_once_however_often_their_feed_is_killed(
    broker: Broker, lake: kt.Lake, topic: str, options: str
) -> None:
    broker.create(topic, 2)
    lake.create_table(
        "shop.sums", kt.parse_sql_type("ROW<k BIGINT, n BIGINT>").fields, ["k"],  # type: ignore[attr-defined]
        options={"merge-engine": "aggregation", "fields.n.aggregate-function": "sum",
                 **dict([options.split("=")])},
    )  # fmt: skip
    count, expected = 3_000, [0] * 7
    ones = [{"op": "c", "after": {"k": n % 7, "n": n}} for n in range(count)]
    for one in ones:
        expected[one["after"]["k"]] += one["after"]["n"]  # type: ignore[index]
    broker.send(topic, [json.dumps(one).encode() for one in ones] + [b"bad"] * 3)

    run_killed(
        command(lake, "shop.sums", broker.source(topic), "--max-messages-per-batch", "150"), 2, 5
    )

    table: Any = lake.table("shop.sums")
    assert table.scan().to_polars().sort("k")["n"].to_list() == expected
    letters: Any = lake.table("shop.sums_dead_letters")
    assert letters.scan().count() == 3


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_feed_goes_on_when_its_broker_comes_back(
    broker: Broker, lake: kt.Lake, topic: str, end: str
) -> None:
    broker.create(topic)
    broker.send(topic, [change("c", 1, 1, "a")])
    with running(lake, broker, topic) as batches:
        wait_for(lambda: batches)
        getattr(broker, end)()
        time.sleep(2)
        broker.start()
        broker.send(topic, [change("c", 2, 2, "b")])
        wait_for(lambda: len(batches) > 1)
    assert rows(lake) == {1: "a", 2: "b", -1: "stop"}
    assert lags(lake, broker, topic) == [(3, 0, 0)]


def test_two_feeds_of_one_topic_at_once_apply_each_message_once(
    broker: Broker, lake: kt.Lake, topic: str
) -> None:
    broker.create(topic)
    broker.send(topic, [change("c", n, n, "a") for n in range(2_000)])
    columns = kt.parse_sql_type("ROW<id BIGINT, name STRING, _lsn BIGINT>").fields  # type: ignore[attr-defined]
    lake.create_table("shop.people", columns, ["id"], options={"sequence.field": "_lsn"})
    asked = command(
        lake, "shop.people", broker.source(topic), "--primary-key", "id",
        "--sequence-by", "source.lsn", "--max-messages-per-batch", "20",
    )  # fmt: skip
    both = [
        subprocess.Popen(asked, env=environment(), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes == [0, 1], said
    assert "another process has loaded the table" in "".join(said)
    table: Any = lake.table("shop.people")
    appended = [s for s in table.metadata.snapshots() if s.commit_kind.value == "APPEND"]
    assert len(appended) == 100
    assert len(rows(lake)) == 2_000


def test_partition_that_is_added_while_a_feed_runs_is_read_from_its_beginning(
    broker: Broker, lake: kt.Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "POLL_SECONDS", 0.5)
    broker.create(topic)
    broker.send(topic, [change("c", 1, 1, "a")], 0)
    with running(lake, broker, topic, starting_offsets="earliest") as batches:
        wait_for(lambda: batches)
        broker.add_partitions(topic, 2)
        broker.send(topic, [change("c", 2, 2, "b")], 1)
        wait_for(lambda: len(batches) > 1)
    assert rows(lake) == {1: "a", 2: "b", -1: "stop"}
    assert lags(lake, broker, topic) == [(2, 0, 0), (1, 0, 0)]


def test_expired_messages_are_named_and_left_out_where_that_is_asked_for(
    broker: Broker, lake: kt.Lake, topic: str
) -> None:
    broker.create(topic)
    broker.send(topic, [change("c", 1, 1, "a")])
    ingest(lake, broker, topic)
    broker.send(topic, [change("c", n, n, "b") for n in (2, 3, 4)])
    broker.delete_records(topic, 0, 3)
    with pytest.raises(kt.DataError, match="offsets 1 to 2 of partition 0 expired"):
        ingest(lake, broker, topic)
    assert lags(lake, broker, topic) == [(1, 1, 2)]
    ingest(lake, broker, topic, if_lost="earliest")
    assert rows(lake) == {1: "a", 4: "b"}


def test_messages_that_expire_under_a_running_feed_stop_it(
    broker: Broker, lake: kt.Lake, topic: str
) -> None:
    broker.create(topic)
    broker.send(topic, [change("c", n, n, "x" * 1000) for n in range(5_000)])
    seen: list[Any] = []

    def expire(batch: Any) -> None:
        if not seen:
            broker.delete_records(topic, 0, 4_999)
        seen.append(batch)

    # What was read ahead is applied; what comes behind it is gone.
    properties = {"queued.min.messages": "1", "fetch.message.max.bytes": "20000"}
    with pytest.raises(kt.DataError, match="expired before they were read"):
        ingest(
            lake, broker, topic, max_messages_per_batch=10, on_batch=expire,
            consumer_properties=properties,
        )  # fmt: skip
    assert len(rows(lake)) == sum(batch.rows_in for batch in seen) < 4_999


def test_topic_that_was_made_anew_is_refused_though_it_has_as_many_messages(
    broker: Broker, lake: kt.Lake, topic: str
) -> None:
    broker.create(topic)
    broker.send(topic, [change("c", 1, 1, "a")])
    ingest(lake, broker, topic)
    broker.delete(topic)
    time.sleep(1)
    broker.create(topic)
    broker.send(topic, [change("c", n, n, "b") for n in (8, 9)])
    with pytest.raises(kt.DataError, match="was recreated"):
        ingest(lake, broker, topic)
    ingest(lake, broker, topic, if_lost="earliest")
    assert rows(lake) == {1: "a", 8: "b", 9: "b"}


def test_transactions_are_read_when_they_are_committed(
    broker: Broker, lake: kt.Lake, topic: str
) -> None:
    broker.create(topic)
    for n in (1, 2):
        broker.send(topic, [change("c", n, n, "a")], **{"transactional.id": topic})
    report = ingest(lake, broker, topic)
    assert (report.rows_in, rows(lake)) == (2, {1: "a", 2: "a"})
    # The marks of the transactions have offsets too.
    assert lags(lake, broker, topic) == [(4, 0, 0)]
    assert ingest(lake, broker, topic).batches == ()


def test_messages_with_schemas_tombstones_and_keys_of_several_topics(
    broker: Broker, lake: kt.Lake, topic: str
) -> None:
    other = f"{topic}-b"
    broker.create(topic)
    broker.create(other, 2)
    fields = [{"field": "id", "type": "int64", "optional": False},
              {"field": "born", "type": "int32", "name": "io.debezium.time.Date",
               "optional": True}]  # fmt: skip
    schema = {"type": "struct", "fields": [{"field": "after", "fields": fields}]}

    def wrapped(op: str, lsn: int, key: int) -> bytes:
        row = {"id": key, "born": 1}
        images = {"before": row} if op == "d" else {"after": row}
        payload = {"op": op, **images, "source": {"lsn": lsn}}
        return json.dumps({"schema": schema, "payload": payload}).encode()

    def key(value: int) -> bytes:
        return json.dumps({"schema": {}, "payload": {"id": value}}).encode()

    sent = [wrapped("c", 1, 1), wrapped("d", 2, 1), None]
    broker.send(topic, sent, keys=[key(1)] * 3)
    broker.send(other, [wrapped("c", 3, 2), wrapped("c", 4, 3)], keys=[key(2), key(3)])

    report = ingest(lake, broker, f"{topic},{other}", primary_key=())

    table: Any = lake.table("shop.people")
    assert table.primary_key == ("id",)
    shown = table.scan(["id", "born"]).to_polars().sort("id")
    assert shown.rows() == [(each, shown["born"][0]) for each in (2, 3)]
    assert str(shown["born"][0]) == "1970-01-02"
    assert (report.applied, sum(batch.skipped for batch in report.batches)) == (4, 1)


@pytest.mark.parametrize("format", ["maxwell-json", "canal-json"])
def test_feeds_of_maxwell_and_canal_come_by_topics_too(
    broker: Broker, lake: kt.Lake, topic: str, format: str
) -> None:
    broker.create(topic)
    row = {"id": 1, "name": "a"}
    maxwell = {"type": "insert", "position": "mysql-bin.000001:40", "ts": 5, "xid": 1,
               "data": row, "primary_key_columns": ["id"]}  # fmt: skip
    types = {"id": "bigint", "name": "varchar(9)"}
    canal = {"type": "INSERT", "isDdl": False, "es": 5, "id": 1, "pkNames": ["id"],
             "mysqlType": types, "data": [{"id": "1", "name": "a"}]}  # fmt: skip
    broker.send(topic, [json.dumps(maxwell if format == "maxwell-json" else canal).encode()])
    ingest(lake, broker, topic, format=format)
    assert rows(lake) == {1: "a"}


def test_command_tells_the_lag_of_each_partition(
    broker: Broker, lake: kt.Lake, topic: str, tmp_path: Path
) -> None:
    broker.create(topic)
    broker.send(topic, [change("c", n, n, "a") for n in range(3)])
    ingest(lake, broker, topic)
    broker.send(topic, [change("c", 9, 9, "b")] * 4)
    config = tmp_path / "client.properties"
    config.write_text("client.id=watcher\n")
    done = subprocess.run(
        [sys.executable, "-m", "keytide_command", "lag", "-w", lake.uri, "shop.people", "--from",
         broker.source(topic), "--format", "csv", "--consumer-config", config],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        '"topic","partition","next_offset","end_offset","lag","lost"',
        f'"{topic}",0,3,7,4,0',
    ]


def test_nobody_at_an_address_is_said(lake: kt.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from keytide.feeds.kafka import client

    monkeypatch.setitem(client._TIMEOUT, "request_timeout", 1)
    with pytest.raises(kt.DataError, match=r"no broker of 127\.0\.0\.1:1 responds"):
        lake.ingest("shop.people", "kafka://127.0.0.1:1/t", format="debezium-json")


@pytest.mark.parametrize(
    ("name", "found"),
    [("no.such.property", "no.such.property"), ("auto.offset.reset", "is set by Keytide"),
     ("queued.min.messages", "queued.min.messages")],
)  # fmt: skip
def test_property_that_is_none_is_refused(lake: kt.Lake, name: str, found: str) -> None:
    with pytest.raises(kt.InvalidError, match=found):
        lake.ingest(
            "shop.people", "kafka://127.0.0.1:1/t", format="debezium-json",
            consumer_properties={name: "x"},
        )  # fmt: skip


def test_several_tables_of_one_run_through_kills(lake: kt.Lake, broker: Broker, topic: str) -> None:
    for name in ("a", "b", "c"):
        broker.create(f"{topic}.{name}", partitions=2)
        messages = [change("c", lsn, lsn % 50, f"{name}{lsn}") for lsn in range(400)]
        keys = [b"%d" % (lsn % 50) for lsn in range(400)]
        broker.send(f"{topic}.{name}", messages, keys=keys)
    lake.sql("CREATE TABLE shop.c (id BIGINT, name STRING)")  # without a key it takes no changes
    arguments = command(
        lake, "shop.{table}", broker.source(f"{topic}.*"), "--primary-key", "id",
        "--max-messages-per-batch", "40",
    )  # fmt: skip
    process = subprocess.Popen(arguments, env=environment(), stderr=subprocess.PIPE)
    assert process.stderr is not None
    for _ in range(3):
        process.stderr.readline()
    process.kill()
    process.communicate()
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "shop.c" in done.stderr
    for name in ("a", "b"):
        table: Any = lake.table(f"shop.{name}")
        assert {row["id"]: row["name"] for row in table.scan(["id", "name"])} == {
            lsn % 50: f"{name}{lsn}" for lsn in range(350, 400)
        }
        written = sum(
            snapshot.delta_record_count
            for snapshot in table.snapshots()
            if snapshot.commit_kind.value == "APPEND"
        )
        assert written <= 400
        assert {each.lag for each in table.kafka_lag(broker.source(f"{topic}.{name}"))} == {0}


def test_plain_rows_with_keys_and_deletes(lake: kt.Lake, broker: Broker, topic: str) -> None:
    broker.create(topic, partitions=3)
    values: list[bytes | None] = [b'{"name": "a"}', b'{"name": "b"}', b'{"name": "c"}', None]
    broker.send(topic, values, keys=[b"1", b"2", b"1", b"2"])
    report = ingest(lake, broker, topic, format="json", schema="id BIGINT, name STRING")
    assert (report.applied, rows(lake)) == (4, {1: "c"})
