"""A broker of Kafka for tests: one process of Java on loopback ports, with its data in a folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[2] / ".venv-kafka"
JARS = HOME / "broker"

_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={folder}/log
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
file.delete.delay.ms=100
auto.create.topics.enable=false
num.network.threads=1
num.io.threads=2
background.threads=2
"""

_JVM = ("-Xmx384m", "-XX:TieredStopAtLevel=1")


class Broker:
    """A broker that is started and stopped; what it stored outlives a stop and a kill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, controller = _free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: Any = None
        folder.mkdir(parents=True, exist_ok=True)
        settings = _SETTINGS.format(port=self.port, controller=controller, folder=folder)
        (folder / "server.properties").write_text(settings)
        self._java("kafka.tools.StorageTool", "format", "-t", _cluster_id()).wait(60)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def source(self, *topics: str) -> str:
        return f"kafka://{self.address}/{','.join(topics)}"

    def start(self) -> None:
        self._process = self._java("kafka.Kafka")
        deadline = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log.txt").read_text()[-4000:])
            time.sleep(0.2)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    # -- what tests have it hold ----------------------------------------------------------------

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        from confluent_kafka.admin import NewTopic

        dotted = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dotted)
        self._done(self.admin.create_topics([new]))
        self._await_topic(topic, partitions)

    def delete(self, topic: str) -> None:
        self._done(self.admin.delete_topics([topic]))

    def add_partitions(self, topic: str, count: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self._done(self.admin.create_partitions([NewPartitions(topic, count)]))
        self._await_topic(topic, count)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Have the messages before an offset expire."""
        from confluent_kafka import TopicPartition

        self._done(self.admin.delete_records([TopicPartition(topic, partition, before)]))

    def send(
        self, topic: str, messages: Iterable[bytes | str | None], partition: int | None = None,
        keys: Iterable[bytes] = (), **config: Any,
    ) -> None:  # fmt: skip
        """Store messages; without a partition their keys deal them."""
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self.address, "linger.ms": 20, "log_level": 0, **config}
        )
        transactional = "transactional.id" in config
        if transactional:
            producer.init_transactions(30)
            producer.begin_transaction()
        keyed = iter(keys)
        place = {} if partition is None else {"partition": partition}
        for message in messages:
            while True:
                try:
                    producer.produce(topic, message, next(keyed, None), **place)
                    break
                except BufferError:
                    producer.poll(0.1)
        if transactional:
            producer.commit_transaction(30)
        assert producer.flush(60) == 0

    @property
    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        # One for as long as its answers are waited for.
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        return self._admin

    # -- its process ----------------------------------------------------------------------------

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
        settings = self.folder / "server.properties"
        given = ["-c", settings] if arguments else [settings]
        return subprocess.Popen(
            [java, *_JVM, "-cp", f"{JARS}/*", main, *arguments, *given],
            cwd=self.folder,
            stdout=(self.folder / "log.txt").open("ab"),
            stderr=subprocess.STDOUT,
        )

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return bool(self.admin.list_topics(timeout=10).brokers)
        return False

    def _end(self, by: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(by)
            self._process.wait(60)
            self._process = None

    def _await_topic(self, topic: str, partitions: int) -> None:
        for _ in range(200):
            found = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
            if len(found) == partitions and all(p.leader >= 0 for p in found.values()):
                return
            time.sleep(0.05)
        raise AssertionError(f"{topic} has no {partitions} partitions")

    @staticmethod
    def _done(futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(30)


def _cluster_id() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A", 1)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


if __name__ == "__main__":  # by hand: python tests/kafka/broker.py FOLDER
    broker = Broker(Path(sys.argv[1]))
    broker.start()
    print(broker.address, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    broker.stop()
