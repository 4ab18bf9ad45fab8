"""How far a table is behind its topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keytide.kafka.address import KafkaAddress
from keytide.kafka.beginning import check_topics
from keytide.kafka.broker import Broker, Topic
from keytide.kafka.client import BATCH_BYTES_MAX, Client
from keytide.kafka.dealing import resolved
from keytide.kafka.offsets import Offsets, offsets_told
from keytide.record import Record
from keytide.table.state.stored import StoredTable

__all__ = ["PartitionLag", "lag", "lag_of", "told_lags"]


@dataclass(frozen=True)
class PartitionLag(Record):
    """A partition of a topic: what a table has of it, and what there is.

    `next_offset` is the one that the table goes on at, None where it has read nothing yet. `lag`
    counts the offsets from there, or from the first one, to the end: messages and, in topics of
    transactions and compacted ones, what is between them. `lost` counts those that expired, or
    are gone otherwise, before they were read.
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
    """How far a table is behind, for each partition of some topics.

    Asks the brokers and reads no message. Raises as `Client.topics`, and `NotFoundError` for topics
    that are not there.
    """
    with Client(address.brokers, properties or {}, BATCH_BYTES_MAX) as client:
        return lag_of(table, address, client)


def lag_of(table: StoredTable, address: KafkaAddress, broker: Broker) -> tuple[PartitionLag, ...]:
    """The same, asked of a broker that is known."""
    if address.has_patterns:
        address = resolved(address, broker.names())
    topics = broker.topics(address.topics)
    check_topics(address.topics, topics, address.brokers)
    return told_lags(offsets_told(table, address.topics), topics)


def told_lags(told: Offsets, topics: Mapping[str, Topic]) -> tuple[PartitionLag, ...]:
    """What is told of topics, compared with what they are. Pure."""
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
