"""The pages about Kafka show what happens, with topics in memory and with those of a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import Broker
from fake import FakeKafka, FakeTopic, change
from spark_with_kafka import JARS, begin, skip_where_missing

import keytide as kt
from pages import PAGES, WITH_KAFKA, Changed, blocks_of, pages_run_by, run_page

SHOWN_ID, SHOWN_PLACE = "Pfysit-kQPGkHJuWTB0B1A", "localhost:9092"


def creations(ids: range) -> list[tuple[bytes, bytes]]:
    """The key and the value of a message for each row."""
    return [(b'{"id": %d}' % each, change("c", each, each, "a")) for each in ids]


TOPICS = {
    # As many of each partition as the page shows.
    "shop.public.orders": [creations(range(700)), creations(range(700, 1_278))],
    "shop.public.customers": [creations(range(3))],
    "prices": [[(b"k-7", b'{"price": 3}')]],
}


@pytest.fixture(params=["in memory", pytest.param("of a broker", marks=pytest.mark.kafka)])
def texts(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """The topics of the pages: what the pages read otherwise to find them."""
    # Nobody is there to stop a command. What commands have read is new to Python.
    texts = {" --continuous": "", "-w lake": "-w lake_of_commands"}
    if request.param == "in memory":
        held = {name: FakeTopic(SHOWN_ID, [*map(list, parts)]) for name, parts in TOPICS.items()}
        for module in ("ingest", "start"):
            monkeypatch.setattr(
                f"keytide.feeds.kafka.{module}.Client", lambda *given: FakeKafka(held)
            )
        yield texts
        return
    broker: Broker = request.getfixturevalue("broker")
    for name, parts in TOPICS.items():
        broker.create(name, partitions=len(parts))
        for number, messages in enumerate(parts):
            keys, values = zip(*messages, strict=True)
            broker.send(name, values, number, keys)
    yield texts | {SHOWN_PLACE: broker.address, SHOWN_ID: "..."}
    for name in TOPICS:
        broker.delete(name)


@pytest.mark.takes_turns
@pytest.mark.parametrize("page", pages_run_by("tests/kafka/test_kafka_pages.py"))
def test_page_does_what_it_says(
    page: str, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    lake = kt.connect("lake")
    run_page(PAGES / page, {"lake": lake}, lambda: capsys.readouterr().out,
             changed=Changed(tmp_path, texts))  # fmt: skip
    assert lake.table("shop.orders").scan().count() == 1_278


STREAMS = """
import sys
from glob import glob
import keytide as kt

warehouse, jars, code = sys.argv[1:]
spark = kt.spark.session(
    {"spark.jars": ",".join(glob(f"{jars}/*.jar"))}, spark_driver_memory="1g",
    spark_sql_shuffle_partitions=2,
)
lake = kt.connect(warehouse, spark=spark)
exec(code)
for query in spark.streams.active:
    query.processAllAvailable()
    query.stop()
"""


@pytest.mark.kafka
def test_stream_of_spark_does_what_the_page_says(broker: Broker, tmp_path: Path) -> None:
    skip_where_missing()
    lake = kt.connect(tmp_path / "lake")
    lake.sql("CREATE TABLE shop.log (k BIGINT, v STRING, op STRING, s BIGINT)")
    broker.create("moves")
    moves = [{"k": 1, "v": "a", "op": "u", "s": 1}, {"k": 2, "v": "b", "op": "u", "s": 2},
             {"k": 2, "v": None, "op": "d", "s": 3}]  # fmt: skip
    broker.send("moves", map(json.dumps, moves))
    [code] = [block.code for block in blocks_of(PAGES / "kafka.md") if block.mark == WITH_KAFKA]
    changed = Changed(tmp_path, {SHOWN_PLACE: broker.address})
    done = begin(STREAMS, lake.uri, str(JARS), changed(code))
    said, _ = done.communicate(timeout=280)
    broker.delete("moves")
    assert done.returncode == 0, said[-4000:]
    assert lake.table("shop.newest").scan(["k", "v"]).to_pylist() == [{"k": 1, "v": "a"}]
    assert lake.table("shop.log").scan().count() == 3
