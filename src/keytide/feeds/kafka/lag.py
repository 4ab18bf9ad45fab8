"""Computes how far a table is behind its topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keytide.base.record import Record
from keytide.feeds.kafka.beginning import check_topics
from keytide.feeds.kafka.client import BATCH_BYTES_MAX, Broker, Client, Topic
from keytide.feeds.kafka.offsets import Offsets, offsets_told
from keytide.feeds.kafka.topics import KafkaAddress, resolved
from keytide.snapshot.pinned import StoredTable

__all__ = ["PartitionLag", "lag", "lag_of", "told_lags"]


@dataclass(frozen=True)
class PartitionLag(Record):
    """A partition of a topic: what a table has read, and what exists.

    `next_offset` is where the table continues, None if it has read nothing yet. `lag` is the number
    of offsets from there, or from the first one, to the end. It includes gaps from transactions and
    compaction. `lost` is the number of offsets that expired, or were removed otherwise, before they
    were read.
    """

    topic: str
    partition: int
    next_offset: int | None
    end_offset: int
    lag: int
    lost: int


def lag(
    table: StoredTable, address: KafkaAddress, properties: Mapping[str, str] | None = None
) -> tuple[PartitionLag, ...]:
    """The lag of a table for each partition of some topics.

    Sends requests to the brokers but reads no messages. Raises as `Client.topics`, and
    `NotFoundError` for topics that do not exist.
    """
    with Client(address.brokers, properties or {}, BATCH_BYTES_MAX) as client:
        return lag_of(table, address, client)


def lag_of(table: StoredTable, address: KafkaAddress, broker: Broker) -> tuple[PartitionLag, ...]:
    """The same with a given broker."""
    if address.has_patterns:
        address = resolved(address, broker.names())
    topics = broker.topics(address.topics)
    check_topics(address.topics, topics, address.brokers)
    return told_lags(offsets_told(table, address.topics), topics)


def told_lags(told: Offsets, topics: Mapping[str, Topic]) -> tuple[PartitionLag, ...]:
    """Compare stored offsets with the topics. Pure."""
    found: list[PartitionLag] = []
    for name, topic in topics.items():
        offsets = told.get(name)
        known = {} if offsets is None or offsets.id != topic.id else offsets.next
        found += (_of_partition(name, topic, each, known.get(each)) for each in sorted(topic.first))
    return tuple(found)


def _of_partition(name: str, topic: Topic, partition: int, offset: int | None) -> PartitionLag:
    first, end = topic.first[partition], topic.end[partition]
    at = first if offset is None else max(offset, first)
    lost = 0 if offset is None else max(0, first - offset)
    return PartitionLag(name, partition, offset, end, max(0, end - at), lost)
