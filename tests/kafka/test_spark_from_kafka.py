"""Streams of Spark's own source for Kafka into tables: every message once, through a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from broker import Broker
from spark_with_kafka import JARS, begin, skip_where_missing

import keytide as kt

pytestmark = pytest.mark.kafka

MESSAGES, PER_BATCH = 600, 60

STREAMS = """
import sys
from glob import glob
import keytide as kt

warehouse, brokers, jars, trigger = sys.argv[1:]
spark = kt.spark.session(
    {"spark.jars": ",".join(glob(f"{jars}/*.jar"))}, spark_driver_memory="1g",
    spark_sql_shuffle_partitions=2,
)
lake = kt.connect(warehouse, spark=spark)

def events():
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers)
    read = read.option("subscribe", "moves").option("startingOffsets", "earliest")
    rows = read.option("maxOffsetsPerTrigger", PER_BATCH).load()
    members = "'k LONG, v STRING, op STRING, s LONG'"
    event = f"from_json(CAST(value AS STRING), {members}) AS event"
    return rows.selectExpr("partition", "offset", event).selectExpr(
        "partition", "offset", "event.*"
    )

how = {"availableNow": True} if trigger == "rest" else {"processingTime": "0 seconds"}
log = lake.table("shop.log")
queries = [
    events().writeStream.format("keytide").trigger(**how)
    .option("checkpointLocation", f"{warehouse}/../log").start(log.uri),
    lake.auto_cdc(
        "shop.newest", events().drop("partition", "offset"), "k", "s", apply_as_deletes="op = 'd'",
        apply_as_truncates="op = 't'", except_column_list=["op"], trigger=how,
        checkpoint=f"{warehouse}/../newest",
    ),
]
for query in queries:
    query.awaitTermination()
""".replace("PER_BATCH", str(PER_BATCH))


def streams(lake: kt.Lake, broker: Broker, trigger: str) -> subprocess.Popen[str]:
    return begin(STREAMS, lake.uri, broker.address, str(JARS), trigger)


def events() -> list[dict[str, Any]]:
    """Changes of some keys, out of order, and a truncate."""
    picker = random.Random(5)
    made: list[dict[str, Any]] = [
        {"k": picker.randrange(40), "v": f"v{s}", "op": picker.choice("uuud"), "s": s}
        for s in range(MESSAGES)
    ]
    made[MESSAGES // 2] |= {"op": "t"}
    for start in range(0, MESSAGES, 100):
        part = made[start : start + 100]
        picker.shuffle(part)
        made[start : start + 100] = part
    return made


def test_streams_apply_every_message_once_through_a_kill(broker: Broker, tmp_path: Path) -> None:
    skip_where_missing()
    lake = kt.connect(str(tmp_path / "lake"))
    columns = "partition INT, offset BIGINT, k BIGINT, v STRING, op STRING, s BIGINT"
    lake.sql(f"CREATE TABLE shop.log ({columns})")
    broker.create("moves", partitions=2)
    sent = events()
    broker.send("moves", [json.dumps(event) for event in sent],
                keys=[str(event["k"]).encode() for event in sent])  # fmt: skip

    killed = streams(lake, broker, "all")
    await_batches(lake, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    rest = streams(lake, broker, "rest")
    out, _ = rest.communicate(timeout=300)
    assert rest.returncode == 0, out[-4000:]

    log = lake.table("shop.log").scan().to_pylist()
    assert len(log) == len({(row["partition"], row["offset"]) for row in log}) == MESSAGES
    newest: dict[int, Any] = {}
    for event in sorted(sent, key=lambda event: event["s"]):
        if event["op"] == "t":
            newest.clear()
        elif event["op"] == "d":
            newest.pop(event["k"], None)
        else:
            newest[event["k"]] = event["v"]
    found = lake.table("shop.newest").scan(["k", "v"]).to_pylist()
    assert {row["k"]: row["v"] for row in found} == newest


def await_batches(lake: kt.Lake, process: subprocess.Popen[str]) -> None:
    """Return when both queries have committed some batches, and are not at the end."""
    until = time.monotonic() + 240
    while time.monotonic() < until:
        known = [name for name in ("shop.log", "shop.newest") if name in lake.tables("shop")]
        counts = [len(lake.table(name).snapshots()) for name in known]
        if len(counts) == 2 and min(counts) >= 2:
            return
        assert process.poll() is None, process.communicate()[0][-4000:]
        time.sleep(0.1)
    raise AssertionError("no batch was committed")
